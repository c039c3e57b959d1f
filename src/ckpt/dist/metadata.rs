//! What does the metadata of a distributed checkpoint say? Every tensor, its shards, and their files.
//!
//! Read from the pickle of `Metadata`; which class paths are known stands in the pickle machine's allow-list.
//! 2.6.2 has neither the dtype nor the global shape: the shape is what the shards reach to, the dtype comes from
//! the shard files.

use super::super::error::CkptError;
use super::super::limits::{MAX_ENTRIES, MAX_FILES, MAX_NAME, MAX_RANK};
use super::super::map::{Access, Source};
use super::super::pickle::heap::{Class, Heap, Value};
use super::super::pickle::machine::unpickle;
use super::super::rect::Rect;
use super::super::{Manifest, TensorEntry};
use crate::ir::DType;
use crate::names::SeededMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The metadata of one version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DistMetadata {
    /// the version: the number before `.metadata`
    pub id: u64,
    /// in the order of the file
    pub tensors: Vec<DistTensor>,
    /// the names of the shard files, in order of first use
    pub files: Vec<String>,
}

/// A tensor and its shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DistTensor {
    /// the key in the state dict
    pub key: String,
    /// element type; 2.6.2 does not say
    pub dtype: Option<DType>,
    /// of the whole tensor
    pub shape: Vec<u64>,
    /// in the order of the file
    pub shards: Vec<DistShard>,
}

/// A shard that a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DistShard {
    /// the part of the tensor; with `flat`, the part that is flattened
    pub rect: Rect,
    /// the elements of the flattened part that the shard holds; may pass its end, which is padding
    pub flat: Option<Range<u64>>,
    /// which file, in [`DistMetadata::files`]
    pub file: usize,
}

impl DistShard {
    /// The boxes of the tensor that the shard holds, each with the element of the shard's data where it begins.
    pub fn tiles(&self) -> Vec<(Rect, u64)> {
        match &self.flat {
            None => vec![(self.rect.clone(), 0)],
            Some(range) => {
                let end = range.end.min(self.rect.count());
                let mut at = 0;
                let place = |rect: Rect| {
                    at += rect.count();
                    let start = at - rect.count();
                    (rect, start)
                };
                self.rect.flat(range.start.min(end)..end).into_iter().map(place).collect()
            }
        }
    }
}

/// The versions in a directory: number and path of each `<number>.metadata`, in order of the numbers.
pub fn versions(dir: &Path) -> Result<Vec<(u64, PathBuf)>, CkptError> {
    let io = |e| CkptError::io(dir, e);
    let mut found = Vec::new();
    for (seen, item) in std::fs::read_dir(dir).map_err(io)?.enumerate() {
        if seen > MAX_FILES {
            return Err(CkptError::unsupported(dir, format!("more than {MAX_FILES} files")));
        }
        let item = item.map_err(io)?;
        let name = item.file_name();
        // By the whole name: `11.metadata` is version 11 and not also version 1.
        let id =
            name.to_str().and_then(|n| n.strip_suffix(".metadata")).filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        if let Some(id) = id.and_then(|n| n.parse().ok())
            && item.path().is_file()
        {
            found.push((id, item.path()));
        }
    }
    found.sort();
    Ok(found)
}

impl DistMetadata {
    /// Reads an `<id>.metadata` file.
    pub fn open(path: &Path) -> Result<DistMetadata, CkptError> {
        let source = Source::open(path, Access::Read)?;
        let pickle = unpickle(&source)?;
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        Reader { path, heap: &pickle.heap, known: Known::default() }.metadata(pickle.root, stem.parse().unwrap_or(0))
    }

    /// The tensors as a manifest. A dtype that 2.6.2's metadata does not tell is `Other(-1)`, without bytes.
    pub fn manifest(&self, path: &Path) -> Manifest {
        let entry = |t: &DistTensor| {
            let dtype = t.dtype.unwrap_or(DType::Other(-1));
            let bytes = t.shape.iter().product::<u64>() * dtype.size().unwrap_or(0) as u64;
            TensorEntry { name: t.key.clone(), dtype, shape: t.shape.clone(), bytes }
        };
        Manifest::of_entries(path, "distributed", self.tensors.iter().map(entry).collect())
    }

    /// The tensor of this key.
    pub fn find(&self, key: &str) -> Option<&DistTensor> {
        self.tensors.iter().find(|t| t.key == key)
    }
}

struct Reader<'a> {
    path: &'a Path,
    heap: &'a Heap,
    known: Known,
}

/// The texts of field names, once seen.
#[derive(Default)]
struct Known {
    offset: u32,
    shape: u32,
    dtype: u32,
    global: u32,
    range: u32,
    key: u32,
}

/// A shard that no file has yet.
const UNSTORED: usize = usize::MAX;

impl<'a> Reader<'a> {
    fn bad(&self, what: impl Into<String>) -> CkptError {
        CkptError::malformed(self.path, 0, what)
    }

    fn metadata(&mut self, root: Value, id: u64) -> Result<DistMetadata, CkptError> {
        let heap = self.heap;
        let root = heap.record(root, Class::Metadata).ok_or_else(|| {
            CkptError::unsupported(self.path, "is a pickle, and not the metadata of a distributed checkpoint")
        })?;
        let field = |name: &str| {
            let value = heap.get(root, name).and_then(|v| heap.dict(v));
            value.ok_or_else(|| self.bad(format!("there is no dict `{name}`")))
        };
        let (state, storage) = (field("state_dict_metadata")?, field("storage_metadata")?);
        if state.len() > MAX_ENTRIES || storage.len() > 16 * MAX_ENTRIES {
            return Err(self.bad(format!("more than {MAX_ENTRIES} tensors")));
        }
        let mut out = DistMetadata { id, ..DistMetadata::default() };
        out.tensors.reserve(state.len());
        let mut by_key: SeededMap<&str, usize> = SeededMap::default();
        by_key.reserve(state.len());
        for &[key, shards] in state {
            let key = heap.str(key).ok_or_else(|| self.bad("a key that is no name"))?;
            if key.is_empty() || key.len() > MAX_NAME || by_key.insert(key, out.tensors.len()).is_some() {
                return Err(self.bad(format!("the key `{}` is empty, too long or there twice", key.escape_debug())));
            }
            out.tensors.push(self.tensor(key, shards)?);
        }
        let mut files: SeededMap<&str, usize> = SeededMap::default();
        for &[index, file] in storage {
            let index =
                heap.record(index, Class::LocalTensorIndex).ok_or_else(|| self.bad("an index of a wrong class"))?;
            let key = heap.field(index, "tensor_key", &mut self.known.key).and_then(|k| heap.str(k));
            let key = key.ok_or_else(|| self.bad("an index without a key"))?;
            let Some(&at) = by_key.get(key) else {
                return Err(self.bad(format!("`{}` is stored and not described", key.escape_debug())));
            };
            let file = heap.str(file).ok_or_else(|| self.bad("a file that is no name"))?;
            let file = match files.get(file) {
                Some(&known) => known,
                None => {
                    check_file_name(self.path, file)?;
                    out.files.push(file.to_owned());
                    files.insert(file, out.files.len() - 1);
                    out.files.len() - 1
                }
            };
            self.store(&mut out.tensors[at], index, file)?;
        }
        for tensor in &mut out.tensors {
            if let Some(lost) = tensor.shards.iter().find(|s| s.file == UNSTORED && !s.rect.is_empty()) {
                let (key, rect) = (tensor.key.escape_debug(), &lost.rect);
                return Err(self.bad(format!("the shard {rect} of `{key}` is described and in no file")));
            }
            tensor.shards.retain(|s| s.file != UNSTORED);
        }
        Ok(out)
    }

    /// Gives the shard that an index speaks of its file; a replica gets a row of its own.
    fn store(&mut self, tensor: &mut DistTensor, index: Value, file: usize) -> Result<(), CkptError> {
        let heap = self.heap;
        let (offset, flat) = self.place(index)?;
        // 3.3.1 tells the shape, too; two boxes may begin at one place.
        let shape = heap.field(index, "local_shape", &mut self.known.shape);
        let is = |s: &DistShard| {
            heap.dims_are(offset, &s.rect.offset)
                && s.flat == flat
                && shape.is_none_or(|shape| heap.dims_are(shape, &s.rect.shape))
        };
        // Sorted by place: the rows of one place stand together.
        let first = match tensor.shards.len() {
            0..8 => 0,
            _ => {
                let offset = heap.dims(offset).unwrap_or_default();
                let place = (&offset, start(&flat));
                tensor.shards.partition_point(|s| (&s.rect.offset, start(&s.flat)) < place)
            }
        };
        let Some(row) = (first..tensor.shards.len()).find(|&i| is(&tensor.shards[i])) else {
            let offset = heap.dims(offset).unwrap_or_default();
            let key = tensor.key.escape_debug();
            return Err(self.bad(format!("the shard of `{key}` at {offset:?} is stored and not described")));
        };
        if tensor.shards[row].file == UNSTORED {
            tensor.shards[row].file = file;
        } else {
            let replica = DistShard { file, ..tensor.shards[row].clone() };
            tensor.shards.insert(row + 1, replica);
        }
        Ok(())
    }

    /// A tensor and its shards, sorted by place, not yet stored.
    fn tensor(&mut self, key: &str, shards: Value) -> Result<DistTensor, CkptError> {
        let (heap, path) = (self.heap, self.path);
        let bad = |what: &str| CkptError::malformed(path, 0, format!("`{}`: {what}", key.escape_debug()));
        let rows = heap.sequence(shards).ok_or_else(|| bad("no list of shards"))?;
        let (mut listed, mut dtype, mut shape) = (Vec::with_capacity(rows.len()), None, None::<Vec<u64>>);
        let mut told = false;
        for &row in rows {
            let row = heap.record(row, Class::LocalTensorMetadata).ok_or_else(|| bad("a shard of a wrong class"))?;
            let (offset, flat) = self.place(row)?;
            let offset = heap.dims(offset).ok_or_else(|| bad("a shard without an offset"))?;
            let local = heap.field(row, "local_shape", &mut self.known.shape).and_then(|s| heap.dims(s));
            let rect = Rect { offset, shape: local.ok_or_else(|| bad("a shard without a shape"))? };
            if rect.offset.len() != rect.shape.len() || rect.shape.len() > MAX_RANK {
                return Err(bad("a shard whose offset and shape do not go together"));
            }
            if let Some(name) = heap.field(row, "dtype", &mut self.known.dtype).and_then(|d| heap.str(d)) {
                let this = DType::parse(name).ok_or_else(|| {
                    let (key, name) = (key.escape_debug(), name.escape_debug());
                    CkptError::unsupported(path, format!("`{key}` has the unknown element type `{name}`"))
                })?;
                if dtype.replace(this).is_some_and(|d| d != this) {
                    return Err(bad("shards of several types"));
                }
            }
            match heap.field(row, "global_shape", &mut self.known.global) {
                Some(global) if heap.sequence(global).is_some() => {
                    if !told {
                        shape = Some(heap.dims(global).ok_or_else(|| bad("a shape that is none"))?);
                        told = true;
                    }
                    let whole = shape.as_deref().unwrap_or_default();
                    if !heap.dims_are(global, whole) || !rect.fits(whole) {
                        return Err(bad("a shard that passes the tensor's shape, or several shapes"));
                    }
                }
                _ => {
                    let reach = rect.offset.iter().zip(&rect.shape).map(|(&o, &n)| o.checked_add(n));
                    let reach: Option<Vec<u64>> = reach.collect();
                    let reach = reach.ok_or_else(|| bad("a shard that reaches past any tensor"))?;
                    shape = Some(match shape.filter(|_| !told) {
                        None => reach,
                        Some(s) if s.len() == reach.len() => s.iter().zip(reach).map(|(&a, b)| a.max(b)).collect(),
                        Some(_) => return Err(bad("shards of several ranks")),
                    });
                }
            }
            listed.push(DistShard { rect, flat, file: UNSTORED });
        }
        listed.sort_by(|a, b| (&a.rect.offset, start(&a.flat)).cmp(&(&b.rect.offset, start(&b.flat))));
        let shape = shape.ok_or_else(|| bad("no shard"))?;
        if shape.iter().try_fold(16u64, |n, &d| n.checked_mul(d.max(1))).is_none() {
            return Err(bad("more elements than any file holds"));
        }
        Ok(DistTensor { key: key.to_owned(), dtype, shape, shards: listed })
    }

    /// Offset and flattened range of a shard or an index.
    fn place(&mut self, row: Value) -> Result<(Value, Option<Range<u64>>), CkptError> {
        let heap = self.heap;
        let offset = heap.field(row, "global_offset", &mut self.known.offset).filter(|&o| heap.sequence(o).is_some());
        let offset = offset.ok_or_else(|| self.bad("a shard without an offset"))?;
        let flat = match heap.field(row, "flattened_range", &mut self.known.range) {
            None | Some(Value::None) => None,
            Some(range) => match heap.dims(range).as_deref() {
                Some(&[start, end]) if start <= end => Some(start..end),
                _ => return Err(self.bad("a flattened range that is none")),
            },
        };
        Ok((offset, flat))
    }
}

/// Where a range begins; no range comes first.
fn start(flat: &Option<Range<u64>>) -> (u64, u64) {
    flat.as_ref().map_or((0, 0), |r| (r.start + 1, r.end))
}

/// That a file named by metadata lies in its directory.
pub(in super::super) fn check_file_name(path: &Path, name: &str) -> Result<(), CkptError> {
    let plain =
        !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\\', ':', '\0']) && !name.starts_with('.');
    if plain {
        return Ok(());
    }
    Err(CkptError::malformed(path, 0, format!("names the file `{}`, which is not one beside it", name.escape_debug())))
}
