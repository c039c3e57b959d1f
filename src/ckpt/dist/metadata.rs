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
use std::collections::HashMap;
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
        Reader { path, heap: &pickle.heap }.metadata(pickle.root, stem.parse().unwrap_or(0))
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
}

/// One shard as `state_dict_metadata` lists it, and whether a file has it.
struct Listed {
    rect: Rect,
    flat: Option<Range<u64>>,
    stored: bool,
}

impl Reader<'_> {
    fn bad(&self, what: impl Into<String>) -> CkptError {
        CkptError::malformed(self.path, 0, what)
    }

    fn metadata(&self, root: Value, id: u64) -> Result<DistMetadata, CkptError> {
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
        let mut listed: Vec<Vec<Listed>> = Vec::with_capacity(state.len());
        let mut by_key: HashMap<&str, usize> = HashMap::with_capacity(state.len());
        for &(key, shards) in state {
            let key = heap.str(key).ok_or_else(|| self.bad("a key that is no name"))?;
            if key.is_empty() || key.len() > MAX_NAME || by_key.insert(key, listed.len()).is_some() {
                return Err(self.bad(format!("the key `{}` is empty, too long or there twice", key.escape_debug())));
            }
            let (tensor, shards) = self.tensor(key, shards)?;
            out.tensors.push(tensor);
            listed.push(shards);
        }
        let mut files: HashMap<&str, usize> = HashMap::new();
        for &(index, file) in storage {
            let index =
                heap.record(index, Class::LocalTensorIndex).ok_or_else(|| self.bad("an index of a wrong class"))?;
            let key = heap.get(index, "tensor_key").and_then(|k| heap.str(k));
            let key = key.ok_or_else(|| self.bad("an index without a key"))?;
            let shown = key.escape_debug();
            let Some(&at) = by_key.get(key) else {
                return Err(self.bad(format!("`{shown}` is stored and not described")));
            };
            let file = heap.str(file).ok_or_else(|| self.bad("a file that is no name"))?;
            check_file_name(self.path, file)?;
            let file = *files.entry(file).or_insert_with(|| {
                out.files.push(file.to_owned());
                out.files.len() - 1
            });
            let (offset, flat) = self.place(index)?;
            // Sorted by place; one box may be listed under several ranges.
            let first = listed[at].partition_point(|l| (&l.rect.offset, start(&l.flat)) < (&offset, start(&flat)));
            let mut same = (first..listed[at].len())
                .take_while(|&i| listed[at][i].rect.offset == offset && listed[at][i].flat == flat);
            // 3.3.1 tells the shape, too; two boxes may begin at one place.
            let shape = heap.get(index, "local_shape").and_then(|s| heap.dims(s));
            let row = same.find(|&i| shape.as_ref().is_none_or(|s| *s == listed[at][i].rect.shape));
            let row = row
                .ok_or_else(|| self.bad(format!("the shard of `{shown}` at {offset:?} is stored and not described")))?;
            let shard = &mut listed[at][row];
            shard.stored = true;
            out.tensors[at].shards.push(DistShard { rect: shard.rect.clone(), flat, file });
        }
        for (tensor, shards) in out.tensors.iter().zip(&listed) {
            if let Some(lost) = shards.iter().find(|s| !s.stored && !s.rect.is_empty()) {
                let (key, rect) = (tensor.key.escape_debug(), &lost.rect);
                return Err(self.bad(format!("the shard {rect} of `{key}` is described and in no file")));
            }
        }
        Ok(out)
    }

    /// A tensor and its shards, sorted by place.
    fn tensor(&self, key: &str, shards: Value) -> Result<(DistTensor, Vec<Listed>), CkptError> {
        let heap = self.heap;
        let bad = |what: &str| self.bad(format!("`{}`: {what}", key.escape_debug()));
        let rows = heap.sequence(shards).ok_or_else(|| bad("no list of shards"))?;
        let (mut listed, mut dtype, mut shape) = (Vec::with_capacity(rows.len()), None, None::<Vec<u64>>);
        let mut told = false;
        for &row in rows {
            let row = heap.record(row, Class::LocalTensorMetadata).ok_or_else(|| bad("a shard of a wrong class"))?;
            let (offset, flat) = self.place(row)?;
            let local = heap
                .get(row, "local_shape")
                .and_then(|s| heap.dims(s))
                .ok_or_else(|| bad("a shard without a shape"))?;
            let rect = Rect { offset, shape: local };
            if rect.offset.len() != rect.shape.len() || rect.shape.len() > MAX_RANK {
                return Err(bad("a shard whose offset and shape do not go together"));
            }
            if let Some(name) = heap.get(row, "dtype").and_then(|d| heap.str(d)) {
                let this = DType::parse(name).ok_or_else(|| {
                    let (key, name) = (key.escape_debug(), name.escape_debug());
                    CkptError::unsupported(self.path, format!("`{key}` has the unknown element type `{name}`"))
                })?;
                if dtype.replace(this).is_some_and(|d| d != this) {
                    return Err(bad("shards of several types"));
                }
            }
            match heap.get(row, "global_shape").and_then(|s| heap.dims(s)) {
                Some(global) => {
                    if (told && shape.as_ref() != Some(&global)) || !rect.fits(&global) {
                        return Err(bad("a shard that passes the tensor's shape, or several shapes"));
                    }
                    (told, shape) = (true, Some(global));
                }
                None => {
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
            listed.push(Listed { rect, flat, stored: false });
        }
        listed.sort_by(|a, b| (&a.rect.offset, start(&a.flat)).cmp(&(&b.rect.offset, start(&b.flat))));
        let shape = shape.ok_or_else(|| bad("no shard"))?;
        if shape.iter().try_fold(16u64, |n, &d| n.checked_mul(d.max(1))).is_none() {
            return Err(bad("more elements than any file holds"));
        }
        Ok((DistTensor { key: key.to_owned(), dtype, shape, shards: Vec::with_capacity(listed.len()) }, listed))
    }

    /// Offset and flattened range of a shard or an index.
    fn place(&self, row: Value) -> Result<(Vec<u64>, Option<Range<u64>>), CkptError> {
        let heap = self.heap;
        let offset = heap.get(row, "global_offset").and_then(|o| heap.dims(o));
        let offset = offset.ok_or_else(|| self.bad("a shard without an offset"))?;
        let flat = match heap.get(row, "flattened_range") {
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
