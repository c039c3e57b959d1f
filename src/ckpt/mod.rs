//! How is a checkpoint read and written? One trait, one file per format, and an attack list.
//!
//! [`open`] recognises a format by content and reads its manifest; [`Checkpoint::read`] then costs
//! the tensor. Writers write beside the target, flush to the disk and rename, so that a reader sees
//! the old file or the new one, never a part.
//!
//! | format | read | write |
//! |---|---|---|
//! | safetensors | [`open`] | [`write_safetensors`] |
//! | Paddle tensor stream, one tensor (`save`, `load`) | [`open`] | [`write_stream`], [`convert_to_streams`] |
//! | Paddle tensor streams in one file (`save_combine`, `load_combine`) | [`open_combined`] | [`write_combined`] |
//! | `paddle.save` pickle (`.pdparams`, `.pdopt`) | [`open`] | [`write_pickle`] |
//! | distributed checkpoint (`*.metadata`, `*.distcp`) of Paddle 2.6.2 and 3.3.1 | [`open`], [`DistDir::open_version`] | [`DistWriter`] |
//! | safetensors in several files, by their index JSON | [`open`] | no |
//! | NumPy archive (`np.savez`) | [`open`] | no |
//! | directory of tensor streams (`save_vars`) | [`open`] | [`convert_to_streams`] |
//!
//! ```
//! use mastercast::ckpt::{open, write_safetensors, TensorData};
//! use mastercast::ir::DType;
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("weights.safetensors");
//! let bytes: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! write_safetensors(&path, [TensorData::new("w", DType::F32, vec![2], bytes.clone())], &Default::default())?;
//!
//! let checkpoint = open(&path)?; // whatever its format
//! assert_eq!(checkpoint.entries()[0].name, "w");
//! assert_eq!(*checkpoint.read(0)?, bytes[..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Attack list
//! A checkpoint is input from outside. Each line is a test in `tests/ckpt_attacks.rs`; all of them
//! end in a [`CkptError`], none in a panic, a hang or an allocation past [`limits`].
//!
//! Tensor streams
//! 1. a file cut at any byte
//! 2. a version that is not 0
//! 3. LoD levels: too many, longer than the file, not whole offsets
//! 4. a `TensorDesc` longer than the file or the limit, or of negative size
//! 5. a `TensorDesc` with unknown or repeated fields, endless varints, no element type
//! 6. dimensions that are negative, too many, or whose product overflows
//! 7. data longer than the file
//! 8. an unknown element type
//! 9. bytes after the last tensor
//! 10. a SelectedRows file, which begins like a tensor
//! 11. a combined file opened with too few, too many or repeated names
//!
//! safetensors
//! 12. a header longer than the file or the limit, or empty
//! 13. a header that is no UTF-8, no JSON, no object, or nested without end
//! 14. repeated tensor names, fields and metadata keys
//! 15. data ranges that overlap, leave holes, run backwards, pass the end, or stop before it
//! 16. a range that is not as long as shape and type say; shapes whose product overflows
//! 17. an element type that nobody knows (typed error), or that Paddle does not (listed, readable)
//! 18. too many dimensions, a name without end
//!
//! NumPy archives
//! 26. cut at any byte; a directory, a member or a header that points elsewhere, or is of another length
//! 27. compressed or encrypted members, Fortran order, big-endian numbers, Python objects
//!
//! Pickles (`tests/ckpt_pickle_attacks.rs`)
//! 28. cut at any byte
//! 29. names that are not on the allow-list, and those that are, called otherwise than Paddle does
//! 30. opcodes that Paddle does not write
//! 31. stacks: too few values, marks in the wrong place, values left over
//! 32. memo indices that were never set, or that skip
//! 33. texts, bytes and frames longer than the file; text that is not UTF-8
//! 34. containers inside themselves, or too deep
//! 35. sharing that multiplies
//! 36. more values than the limit
//! 37. arrays: shapes, lengths, byte and memory order, objects, fields, built never or twice
//! 38. protocol 2's text that is no bytes, or of another length
//! 39. two tensors of one name, keys that are no names, names without end
//! 40. tables of slices and of layer names that do not fit
//! 41. bytes behind the end
//!
//! Checkpoints of several files (`tests/ckpt_dist.rs`)
//! 42. metadata that is cut, of another kind, without a field, or of other shapes than its files
//! 43. shards that leave holes, or overlap and differ
//! 44. file names that leave the directory; metadata that names itself
//! 45. shard files that are missing, or of another save
//! 46. a safetensors index with repeated names, foreign files, missing tensors
//!
//! Files
//! 19. a pipe, a device, an empty file, an empty directory
//! 20. a directory with foreign, hidden and combined files, links to itself, directories without end
//! 21. a file that shrinks or is replaced after it was opened
//!
//! Writers
//! 22. names that leave the directory: `..`, absolute, empty parts, through a link
//! 23. two tensors for one file, a file where a directory must be
//! 24. data that is not as long as the shape says
//! 25. a failure in the middle: the old file stays, nothing is left beside it

mod compare;
mod convert;
mod detect;
mod dir;
mod dist;
mod error;
mod index;
pub mod limits;
mod map;
pub mod names;
pub(crate) mod nearest;
mod npz;
mod open;
mod pickle;
pub mod plan;
pub mod rect;
mod safetensors;
mod sharded;
pub mod shards;
mod stream;
mod write;

pub use compare::{agree_narrowed, agree_narrowed_as};
pub use convert::convert_to_streams;
pub use dir::StreamDir;
pub use dist::{DistDir, DistFlavour, DistMetadata, DistShard, DistTensor, DistWriter, ShardData, versions};
pub use error::{CkptError, KNOWN_FORMATS};
pub use map::Access;
pub(crate) use map::prefer_huge_pages;
pub use npz::NpzFile;
pub use open::{open, open_with};
pub use pickle::{PickleFile, PickleOptions, write_pickle};
pub use safetensors::{SafetensorsFile, write_safetensors};
pub use sharded::SafetensorsIndex;
pub use stream::{StreamFile, open_combined, write_combined, write_stream};

use crate::ir::DType;
use index::NameIndex;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One tensor of a checkpoint, as its manifest tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorEntry {
    /// The key. A file that holds one unnamed tensor gives it the file's name; a combined file that
    /// was opened without names leaves it empty.
    pub name: String,
    /// Element type as stored. A type that Paddle has no code for is `Other` with a negative code;
    /// [`Checkpoint::dtype_name`] says what the file calls it.
    pub dtype: DType,
    /// dimensions, row major
    pub shape: Vec<u64>,
    /// bytes of the data
    pub bytes: u64,
}

/// A value of a checkpoint that is no tensor.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Plain {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// bytes, of which only the number is kept
    Bytes(u64),
}

/// A file in a checkpoint's directory that holds no tensor of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// path below the directory, with `/`
    pub name: String,
    /// why it is not read
    pub why: String,
}

/// A checkpoint that is open. Opening costs the manifest; reading costs the tensor.
pub trait Checkpoint: Send + Sync {
    /// Where it was opened.
    fn path(&self) -> &Path;
    /// The format's name (`safetensors`, `safetensors-index`, `pickle`, `distributed`, `npz`, `tensor-stream`, `tensor-stream-combined`, `tensor-stream-dir`).
    fn format(&self) -> &'static str;
    /// All tensors, in file order; a directory's by name.
    fn entries(&self) -> &[TensorEntry];
    /// The data of entry `index`, little endian, row major, `entries()[index].bytes` long. Borrowed
    /// where the file is mapped. No alignment is promised.
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError>;
    /// Fills `buffer` with the data of entry `index` from byte `offset` of it: for tensors that are
    /// moved in blocks. This default reads the whole tensor each time; formats that read from a file
    /// override it.
    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let data = self.read(index)?;
        let part = usize::try_from(offset).ok().and_then(|at| data.get(at..)?.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or_else(|| CkptError::WrongLength {
            name: self.entries()[index].name.clone(),
            expected: offset.saturating_add(buffer.len() as u64),
            found: data.len() as u64,
        })?);
        Ok(())
    }
    /// The index of the entry with this name, in constant time in the formats of this crate.
    fn find(&self, name: &str) -> Option<usize> {
        self.entries().iter().position(|e| e.name == name)
    }
    /// The LoD offsets of entry `index`: level by level, empty for ordinary tensors.
    fn lod(&self, index: usize) -> Result<Vec<Vec<u64>>, CkptError> {
        let _ = index;
        Ok(Vec::new())
    }
    /// What the file calls the element type of entry `index`.
    fn dtype_name(&self, index: usize) -> Cow<'static, str> {
        match self.entries()[index].dtype.short() {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.entries()[index].dtype.to_string()),
        }
    }
    /// Another name that the file itself gives to entry `index`: the parameter's for a layer's name, or that of
    /// the tensor which was saved under this key.
    fn alias(&self, index: usize) -> Option<&str> {
        let _ = index;
        None
    }
    /// Values that are no tensors (a learning-rate schedule's), by dotted name, in file order.
    fn plain(&self) -> &[(String, Plain)] {
        &[]
    }
    /// Files that were looked at and hold no tensor of this checkpoint, by name.
    fn skipped(&self) -> &[Skipped] {
        &[]
    }
}

/// The names, types and shapes of a checkpoint without its data: cheap to clone and to keep after
/// the checkpoint is closed.
#[derive(Clone, Debug)]
pub struct Manifest {
    path: Arc<Path>,
    format: &'static str,
    entries: Arc<[TensorEntry]>,
    index: Arc<NameIndex>,
    aliases: Arc<[Option<Box<str>>]>,
}

impl Manifest {
    /// The manifest of an open checkpoint.
    pub fn of(ckpt: &dyn Checkpoint) -> Manifest {
        let entries: Arc<[TensorEntry]> = ckpt.entries().into();
        let index = Arc::new(NameIndex::first_of(&entries));
        let aliases: Vec<Option<Box<str>>> = (0..entries.len()).map(|i| ckpt.alias(i).map(Into::into)).collect();
        // Most formats have none.
        let aliases = if aliases.iter().any(Option::is_some) { aliases.into() } else { Arc::new([]) as Arc<[_]> };
        Manifest { path: ckpt.path().into(), format: ckpt.format(), entries, index, aliases }
    }

    /// Where the checkpoint was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format's name, as [`Checkpoint::format`].
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// All tensors, in file order.
    pub fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    /// A manifest of these entries, which has no file of its own.
    pub(crate) fn of_entries(path: &Path, format: &'static str, entries: Vec<TensorEntry>) -> Manifest {
        let index = Arc::new(NameIndex::first_of(&entries));
        Manifest { path: path.into(), format, entries: entries.into(), index, aliases: Arc::new([]) }
    }

    /// The same with a name for its only entry, which has none.
    pub(crate) fn with_only_name(&self, name: &str) -> Manifest {
        let entries: Arc<[TensorEntry]> =
            self.entries.iter().map(|e| TensorEntry { name: name.to_owned(), ..e.clone() }).collect();
        let index = Arc::new(NameIndex::first_of(&entries));
        Manifest { entries, index, ..self.clone() }
    }

    /// Another name that the file gives to entry `index`, see [`Checkpoint::alias`].
    pub fn alias(&self, index: usize) -> Option<&str> {
        self.aliases.get(index)?.as_deref()
    }

    /// The entry with this name, in constant time.
    pub fn find(&self, name: &str) -> Option<&TensorEntry> {
        self.index.find(&self.entries, name).map(|i| &self.entries[i])
    }
}

/// One tensor handed to a writer.
#[derive(Clone, Debug)]
pub struct TensorData<'a> {
    /// the key; not stored by the tensor stream formats
    pub name: Cow<'a, str>,
    /// element type
    pub dtype: DType,
    /// dimensions, row major
    pub shape: Cow<'a, [u64]>,
    /// little endian, row major
    pub data: Cow<'a, [u8]>,
    /// LoD offsets, level by level; empty for ordinary tensors. Only the tensor stream formats hold them.
    pub lod: Vec<Vec<u64>>,
}

impl<'a> TensorData<'a> {
    /// An ordinary tensor, without LoD.
    pub fn new(
        name: impl Into<Cow<'a, str>>,
        dtype: DType,
        shape: impl Into<Cow<'a, [u64]>>,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> TensorData<'a> {
        TensorData { name: name.into(), dtype, shape: shape.into(), data: data.into(), lod: Vec::new() }
    }

    /// Entry `index` of an open checkpoint, its data borrowed where the checkpoint can lend it.
    pub fn of(ckpt: &'a dyn Checkpoint, index: usize) -> Result<TensorData<'a>, CkptError> {
        let data = ckpt.read(index)?;
        let entry = &ckpt.entries()[index];
        Ok(TensorData {
            name: Cow::Borrowed(&entry.name),
            dtype: entry.dtype,
            shape: Cow::Borrowed(&entry.shape),
            data,
            lod: ckpt.lod(index)?,
        })
    }

    /// Checks that the data is as long as the shape says; the length.
    fn checked_len(&self, path: &Path) -> Result<u64, CkptError> {
        let found = self.data.len() as u64;
        let size = self.dtype.size().ok_or_else(|| no_such_type(path, &self.name, self.dtype))?;
        match byte_len(&self.shape, size as u64 * 8) {
            Some(expected) if expected == found => Ok(found),
            expected => Err(CkptError::WrongLength {
                name: self.name.to_string(),
                expected: expected.unwrap_or(u64::MAX),
                found,
            }),
        }
    }
}

fn no_such_type(path: &Path, name: &str, dtype: DType) -> CkptError {
    CkptError::unsupported(
        path,
        format!("tensor `{}` has element type {dtype}, which cannot be written", name.escape_debug()),
    )
}

/// Bytes of a tensor; `None` on overflow or when the elements end inside a byte.
fn byte_len(shape: &[u64], bits: u64) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// The entry, or the error for an index that is not there.
fn entry_at<'a>(path: &Path, entries: &'a [TensorEntry], index: usize) -> Result<&'a TensorEntry, CkptError> {
    entries.get(index).ok_or_else(|| CkptError::NoEntry { path: PathBuf::from(path), index, len: entries.len() })
}
