//! How is a distributed checkpoint written? Each rank's shards into its file, the metadata last, so that a
//! version without metadata is no version and the old one stays whole.

use super::super::TensorData;
use super::super::error::CkptError;
use super::super::limits::MAX_RANK;
use super::super::pickle::{PickleOptions, Pickler, write_pickle};
use super::super::rect::Rect;
use super::super::write::{AtomicFile, sync_dir};
use super::metadata::versions;
use crate::ir::DType;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Whose reader the metadata is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DistFlavour {
    /// Paddle 2.6.2: neither dtype nor global shape
    V2,
    /// Paddle 3.3.1
    #[default]
    V3,
}

/// A version under way. Nothing of it is visible to a reader until [`DistWriter::finish`].
pub struct DistWriter {
    dir: PathBuf,
    id: u64,
    flavour: DistFlavour,
    rows: Vec<Row>,
    files: Vec<String>,
}

struct Row {
    key: String,
    dtype: DType,
    shape: Vec<u64>,
    rect: Rect,
    flat: Option<Range<u64>>,
    file: usize,
}

/// One shard for a writer: its data, and its place in the whole tensor.
pub struct ShardData<'a> {
    /// key, type, and data; the shape is that of the data (one dimension for a flattened range)
    pub data: TensorData<'a>,
    /// of the whole tensor
    pub shape: Vec<u64>,
    /// the part of it
    pub rect: Rect,
    /// the elements of the flattened part; `None`: all of it
    pub flat: Option<Range<u64>>,
}

impl DistWriter {
    /// Begins the version after the highest in the directory, which is made when it is not there.
    pub fn create(dir: &Path, flavour: DistFlavour) -> Result<DistWriter, CkptError> {
        std::fs::create_dir_all(dir).map_err(|e| CkptError::io(dir, e))?;
        let id = versions(dir)?.last().map_or(Ok(0), |(id, _)| {
            id.checked_add(1).ok_or_else(|| CkptError::unsupported(dir, "there is no version number left"))
        })?;
        Ok(DistWriter { dir: dir.to_path_buf(), id, flavour, rows: Vec::new(), files: Vec::new() })
    }

    /// The version's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Writes the file of one rank. A rank may be written once, and one key once a rank.
    pub fn rank<'a>(&mut self, rank: u64, shards: impl IntoIterator<Item = ShardData<'a>>) -> Result<(), CkptError> {
        let file = format!("{rank}_{}.distcp", self.id);
        if self.files.contains(&file) {
            return Err(CkptError::unsupported(&self.dir.join(file), "is written twice"));
        }
        let path = self.dir.join(&file);
        let (mut rows, mut data) = (Vec::new(), Vec::new());
        for shard in shards {
            let held: u64 = shard.data.shape.iter().product();
            let wanted = shard.flat.as_ref().map_or(shard.rect.count(), |r| r.end.saturating_sub(r.start));
            if !shard.rect.fits(&shard.shape) || shard.shape.len() > MAX_RANK || held != wanted {
                let what =
                    format!("the shard of `{}` is not the part it is said to be", shard.data.name.escape_debug());
                return Err(CkptError::unsupported(&path, what));
            }
            rows.push(Row {
                key: shard.data.name.to_string(),
                dtype: shard.data.dtype,
                shape: shard.shape,
                rect: shard.rect,
                flat: shard.flat,
                file: self.files.len(),
            });
            data.push(shard.data);
        }
        write_pickle(&path, data, &PickleOptions::default())?;
        self.rows.extend(rows);
        self.files.push(file);
        Ok(())
    }

    /// Writes whole tensors as the file of rank 0.
    pub fn whole<'a>(&mut self, tensors: impl IntoIterator<Item = TensorData<'a>>) -> Result<(), CkptError> {
        let shards = tensors.into_iter().map(|data| {
            let shape = data.shape.to_vec();
            ShardData { rect: Rect::whole(&shape), shape, flat: None, data }
        });
        self.rank(0, shards)
    }

    /// Writes the metadata: the version is there. Returns its path.
    pub fn finish(mut self) -> Result<PathBuf, CkptError> {
        // Keys in order of first use, as Paddle gathers them.
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        let mut first = std::collections::HashMap::new();
        for (i, row) in self.rows.iter().enumerate() {
            first.entry(row.key.clone()).or_insert(i);
        }
        order.sort_by_key(|&i| (first[&self.rows[i].key], i));
        let path = self.dir.join(format!("{}.metadata", self.id));
        let mut out = Pickler::default();
        out.start();
        out.object(self.flavour, "Metadata");
        out.begin_dict();
        out.text("state_dict_metadata");
        out.begin_dict();
        let mut at = 0;
        while at < order.len() {
            let key = self.rows[order[at]].key.clone();
            out.text(&key);
            out.begin_list();
            let mut seen: Vec<(&Rect, &Option<Range<u64>>)> = Vec::new();
            while at < order.len() && self.rows[order[at]].key == key {
                let row = &self.rows[order[at]];
                // Replicas are described once.
                if !seen.contains(&(&row.rect, &row.flat)) {
                    seen.push((&row.rect, &row.flat));
                    self.shard(&mut out, row);
                }
                at += 1;
            }
            out.end_list();
        }
        out.end_dict();
        out.text("storage_metadata");
        out.begin_dict();
        for &i in &order {
            let row = &self.rows[i];
            self.index(&mut out, row);
            out.text(&self.files[row.file]);
        }
        out.end_dict();
        if self.flavour == DistFlavour::V3 {
            out.text("flat_mapping");
            out.begin_dict();
            let mut last = None;
            for &i in &order {
                let key = &self.rows[i].key;
                if last != Some(key) {
                    out.text(key);
                    out.text(key);
                    out.tuple1();
                }
                last = Some(key);
            }
            out.end_dict();
        }
        out.end_dict();
        out.build_and_stop();
        let mut file = AtomicFile::create(&path)?;
        out.flush(&mut file)?;
        file.commit()?;
        sync_dir(&self.dir)?;
        self.rows.clear();
        Ok(path)
    }

    fn shard(&self, out: &mut Pickler, row: &Row) {
        out.object(self.flavour, "LocalTensorMetadata");
        out.begin_dict();
        out.text("global_offset");
        out.dims(&row.rect.offset);
        out.text("local_shape");
        out.dims(&row.rect.shape);
        if self.flavour == DistFlavour::V3 {
            out.text("dtype");
            out.text(long_name(row.dtype));
            out.text("global_shape");
            out.dims(&row.shape);
            out.flat(&row.flat);
        }
        out.end_dict();
        out.build();
    }

    fn index(&self, out: &mut Pickler, row: &Row) {
        out.object(self.flavour, "LocalTensorIndex");
        out.begin_dict();
        out.text("tensor_key");
        out.text(&row.key);
        out.text("global_offset");
        out.dims(&row.rect.offset);
        if self.flavour == DistFlavour::V3 {
            out.flat(&row.flat);
            out.text("replica_id");
            out.none();
            out.text("local_shape");
            out.dims(&row.rect.shape);
        }
        out.end_dict();
        out.build();
    }
}

/// Paddle's name of an element type.
fn long_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::C64 => "complex64",
        // `rank` has written the data by now, which refuses any other type.
        DType::C128 | DType::Other(_) => "complex128",
    }
}

/// The pieces of the metadata's pickle.
impl Pickler {
    fn start(&mut self) {
        self.bytes.extend([0x80, 4]);
    }

    fn object(&mut self, flavour: DistFlavour, class: &'static str) {
        let module = match flavour {
            DistFlavour::V2 => "paddle.distributed.checkpoint.metadata",
            DistFlavour::V3 => "paddle.distributed.flex_checkpoint.dcp.metadata",
        };
        self.global(class, module, class);
        self.bytes.extend([b')', 0x81]);
    }

    fn begin_dict(&mut self) {
        self.bytes.extend(b"}(");
    }

    fn end_dict(&mut self) {
        self.bytes.push(b'u');
    }

    fn begin_list(&mut self) {
        self.bytes.extend(b"](");
    }

    fn end_list(&mut self) {
        self.bytes.push(b'e');
    }

    fn build(&mut self) {
        self.bytes.push(b'b');
    }

    fn build_and_stop(&mut self) {
        self.bytes.extend(b"b.");
    }

    fn none(&mut self) {
        self.bytes.push(b'N');
    }

    fn tuple1(&mut self) {
        self.bytes.push(0x85);
    }

    fn dims(&mut self, dims: &[u64]) {
        self.bytes.push(b'(');
        dims.iter().for_each(|&d| self.int(d as i64));
        self.bytes.push(b't');
    }

    fn flat(&mut self, flat: &Option<Range<u64>>) {
        self.text("is_flattened");
        self.bytes.push(if flat.is_some() { 0x88 } else { 0x89 });
        self.text("flattened_range");
        match flat {
            Some(range) => self.dims(&[range.start, range.end]),
            None => self.none(),
        }
    }
}
