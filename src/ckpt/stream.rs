//! Paddle's tensor stream: what `save` and `save_combine` write and `load` and `load_combine` read.
//!
//! One tensor, all integers little endian:
//! ```text
//! u32  0                  version of the LoDTensor
//! u64  LoD levels, then per level: u64 bytes, that many bytes of u64 offsets
//! u32  0                  version of the tensor
//! i32  bytes of the TensorDesc
//!      TensorDesc         protobuf: 1 data_type (enum), 2 dims (repeated int64, not packed)
//!      data               row major, no padding
//! ```
//! A file of `save` holds one tensor and no name; a file of `save_combine` holds several, one after
//! the other, without names, count or index. Read off files by Paddle 2.6.2 and 3.3.1, which are
//! the same in this.

use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_DESC, MAX_ENTRIES, MAX_LOD_LEVELS, MAX_RANK};
use super::map::{Access, Source};
use super::write::AtomicFile;
use super::{Checkpoint, TensorData, TensorEntry, byte_len, entry_at, no_such_type};
use crate::ir::DType;
use std::borrow::Cow;
use std::path::Path;

/// An open file of one or several tensor streams.
pub struct StreamFile {
    source: Source,
    entries: Vec<TensorEntry>,
    places: Vec<Place>,
    index: NameIndex,
    format: &'static str,
}

/// Where the parts of one tensor lie in its file.
pub(super) struct Place {
    /// of the first LoD level
    lod_at: u64,
    lod_levels: u64,
    /// of the data
    pub(super) data_at: u64,
}

impl StreamFile {
    /// Opens a file of `save` (one entry, named as the file) or of `save_combine` (several, in file
    /// order, without names).
    pub fn open(path: &Path, access: Access) -> Result<StreamFile, CkptError> {
        let source = Source::open(path, access)?;
        let (mut entries, places) = read_all(&source)?;
        let format = match &mut entries[..] {
            [only] => {
                // A name that is no UTF-8 cannot be a variable's; the entry stays nameless.
                only.name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
                "tensor-stream"
            }
            _ => "tensor-stream-combined",
        };
        let index = NameIndex::first_of(&entries);
        Ok(StreamFile { source, entries, places, index, format })
    }
}

/// Opens a file of `save_combine`, whose tensors are these variables in this order.
///
/// Errors when there are more or fewer names than tensors, or a name is empty or repeated.
pub fn open_combined(path: &Path, names: &[String], access: Access) -> Result<StreamFile, CkptError> {
    let source = Source::open(path, access)?;
    let (mut entries, places) = read_all(&source)?;
    if names.len() != entries.len() {
        return Err(CkptError::NameCount { path: path.into(), names: names.len(), tensors: entries.len() });
    }
    for (entry, name) in entries.iter_mut().zip(names) {
        if name.is_empty() {
            return Err(CkptError::bad_name(name, "is empty"));
        }
        entry.name.clone_from(name);
    }
    let index = NameIndex::unique(&entries)
        .map_err(|i| CkptError::bad_name(&entries[i].name, "is given to two tensors of one file"))?;
    Ok(StreamFile { source, entries, places, index, format: "tensor-stream-combined" })
}

impl Checkpoint for StreamFile {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> &'static str {
        self.format
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        self.source.bytes(self.places[index].data_at, entry.bytes, "the data")
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        check_part(entry, offset, buffer)?;
        self.source.read_into(self.places[index].data_at + offset, buffer)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn lod(&self, index: usize) -> Result<Vec<Vec<u64>>, CkptError> {
        entry_at(self.path(), &self.entries, index)?;
        read_lod(&self.source, &self.places[index])
    }
}

/// That `buffer` lies within the tensor when it starts at `offset`.
pub(super) fn check_part(entry: &TensorEntry, offset: u64, buffer: &[u8]) -> Result<(), CkptError> {
    match offset.checked_add(buffer.len() as u64) {
        Some(end) if end <= entry.bytes => Ok(()),
        end => Err(CkptError::WrongLength {
            name: entry.name.clone(),
            expected: end.unwrap_or(u64::MAX),
            found: entry.bytes,
        }),
    }
}

/// Whether a file that begins like this can be a tensor stream.
pub(super) fn sniff(head: &[u8]) -> bool {
    matches!(head.first_chunk::<12>(), Some([0, 0, 0, 0, levels @ ..]) if u64::from_le_bytes(*levels) <= MAX_LOD_LEVELS)
}

/// Whether the whole file is one SelectedRows value: rows and height stand where a tensor has its
/// LoD. Asked only when the file is no tensor stream.
pub(super) fn is_selected_rows(source: &Source) -> bool {
    let whole = || -> Result<bool, CkptError> {
        let version = u32::from_le_bytes(source.array(0, "the version")?);
        let rows = u64::from_le_bytes(source.array(4, "the number of rows")?);
        let at = rows.checked_mul(8).and_then(|n| n.checked_add(20)).filter(|_| version == 0);
        let Some(at) = at.filter(|&at| at < source.len()) else { return Ok(false) };
        let (entry, data_at) = read_tensor(source, at)?;
        Ok(data_at + entry.bytes == source.len())
    };
    whole().unwrap_or(false)
}

fn read_all(source: &Source) -> Result<(Vec<TensorEntry>, Vec<Place>), CkptError> {
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    let mut at = 0;
    // A file without bytes fails at its first tensor. Every tensor takes at least 22 bytes, so this ends.
    while at < source.len() || entries.is_empty() {
        if entries.len() == MAX_ENTRIES {
            return Err(CkptError::malformed(source.path(), at, format!("more than {MAX_ENTRIES} tensors")));
        }
        let (entry, place) = read_one(source, at)?;
        at = place.data_at + entry.bytes;
        entries.push(entry);
        places.push(place);
    }
    Ok((entries, places))
}

/// The tensor at `at`, without a name. Its data lies within the file.
pub(super) fn read_one(source: &Source, at: u64) -> Result<(TensorEntry, Place), CkptError> {
    let bad = |at, what: String| CkptError::malformed(source.path(), at, what);
    let version = u32::from_le_bytes(source.array(at, "the version of a LoDTensor")?);
    if version != 0 {
        return Err(bad(at, format!("LoDTensor version {version}, only 0 is known")));
    }
    let lod_levels = u64::from_le_bytes(source.array(at + 4, "the number of LoD levels")?);
    if lod_levels > MAX_LOD_LEVELS {
        return Err(bad(at + 4, format!("{lod_levels} LoD levels, at most {MAX_LOD_LEVELS} are read")));
    }
    let lod_at = at + 12;
    let mut at = lod_at;
    for _ in 0..lod_levels {
        let bytes = u64::from_le_bytes(source.array(at, "the size of a LoD level")?);
        if bytes % 8 != 0 {
            return Err(bad(at, format!("a LoD level of {bytes} bytes, which are not whole offsets")));
        }
        let rest = source.len() - (at + 8);
        if bytes > rest {
            return Err(bad(at, format!("a LoD level of {bytes} bytes, the file has {rest} more")));
        }
        at += 8 + bytes;
    }
    let (entry, data_at) = read_tensor(source, at)?;
    Ok((entry, Place { lod_at, lod_levels, data_at }))
}

/// The tensor part at `at` (from its version on): the entry and where its data begins.
fn read_tensor(source: &Source, at: u64) -> Result<(TensorEntry, u64), CkptError> {
    let bad = |at, what: String| CkptError::malformed(source.path(), at, what);
    let version = u32::from_le_bytes(source.array(at, "the version of a tensor")?);
    if version != 0 {
        return Err(bad(at, format!("tensor version {version}, only 0 is known")));
    }
    let size = i32::from_le_bytes(source.array(at + 4, "the size of a TensorDesc")?);
    let size = match u64::try_from(size) {
        Ok(size) if size <= MAX_DESC => size,
        _ => return Err(bad(at + 4, format!("a TensorDesc of {size} bytes, 2 to {MAX_DESC} are read"))),
    };
    let desc_at = at + 8;
    let desc = source.bytes(desc_at, size, "a TensorDesc")?;
    let (dtype, shape) = read_desc(&desc).map_err(|(offset, what)| bad(desc_at + offset as u64, what))?;
    let data_at = desc_at + size;
    let Some(item) = dtype.size() else {
        let what = format!("at byte {desc_at}: element type {} is not known", dtype.code());
        return Err(CkptError::unsupported(source.path(), what));
    };
    let bytes = byte_len(&shape, item as u64 * 8)
        .ok_or_else(|| bad(desc_at, format!("the dimensions {shape:?} are more than any file holds")))?;
    let rest = source.len() - data_at;
    if bytes > rest {
        return Err(bad(data_at, format!("the data needs {bytes} bytes, the file has {rest} more")));
    }
    Ok((TensorEntry { name: String::new(), dtype, shape, bytes }, data_at))
}

/// `VarType.TensorDesc`; an error has its offset in the message.
fn read_desc(desc: &[u8]) -> Result<(DType, Vec<u64>), (usize, String)> {
    let (mut dtype, mut shape) = (None, Vec::new());
    let mut at = 0;
    while at < desc.len() {
        let field_at = at;
        match varint(desc, &mut at)? {
            // field 1, varint
            0x08 => {
                let code = varint(desc, &mut at)?;
                let code = i32::try_from(code).map_err(|_| (field_at, format!("element type {code} is not known")))?;
                if dtype.replace(DType::from_code(code)).is_some() {
                    return Err((field_at, "a second element type".into()));
                }
            }
            // field 2, varint: one dimension
            0x10 => dimension(desc, &mut at, &mut shape)?,
            // field 2, packed: Paddle does not write it, but a protobuf reader takes both
            0x12 => {
                let bytes = varint(desc, &mut at)?;
                let end = usize::try_from(bytes).ok().and_then(|n| at.checked_add(n)).filter(|&end| end <= desc.len());
                let end = end.ok_or_else(|| (field_at, format!("packed dimensions of {bytes} bytes pass the end")))?;
                while at < end {
                    dimension(&desc[..end], &mut at, &mut shape)?;
                }
            }
            key => return Err((field_at, format!("unknown TensorDesc field (key {key:#x})"))),
        }
    }
    Ok((dtype.ok_or_else(|| (0, "the TensorDesc has no element type".to_owned()))?, shape))
}

fn dimension(desc: &[u8], at: &mut usize, shape: &mut Vec<u64>) -> Result<(), (usize, String)> {
    let start = *at;
    let dim = varint(desc, at)?;
    if (dim as i64) < 0 {
        return Err((start, format!("dimension {} is negative", dim as i64)));
    }
    if shape.len() == MAX_RANK {
        return Err((start, format!("more than {MAX_RANK} dimensions")));
    }
    shape.push(dim);
    Ok(())
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, (usize, String)> {
    let start = *at;
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let Some(&byte) = bytes.get(*at) else { return Err((start, "a varint passes the end".into())) };
        *at += 1;
        // The tenth byte has room for one bit.
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err((start, "a varint of more than 64 bits".into()))
}

pub(super) fn read_lod(source: &Source, place: &Place) -> Result<Vec<Vec<u64>>, CkptError> {
    let mut at = place.lod_at;
    let mut lod = Vec::new();
    for _ in 0..place.lod_levels {
        let bytes = u64::from_le_bytes(source.array(at, "the size of a LoD level")?);
        let offsets = source.bytes(at + 8, bytes, "a LoD level")?;
        let (offsets, _) = offsets.as_chunks::<8>();
        lod.push(offsets.iter().map(|&o| u64::from_le_bytes(o)).collect());
        at += 8 + bytes;
    }
    Ok(lod)
}

/// Everything before the data.
pub(super) fn header(dtype: DType, shape: &[u64], lod: &[Vec<u64>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend(0u32.to_le_bytes());
    out.extend((lod.len() as u64).to_le_bytes());
    for level in lod {
        out.extend((level.len() as u64 * 8).to_le_bytes());
        level.iter().for_each(|o| out.extend(o.to_le_bytes()));
    }
    let mut desc = vec![0x08];
    push_varint(&mut desc, dtype.code() as u64);
    for &dim in shape {
        desc.push(0x10);
        push_varint(&mut desc, dim);
    }
    out.extend(0u32.to_le_bytes());
    out.extend((desc.len() as i32).to_le_bytes());
    out.extend(desc);
    out
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Refuses what the reader above would refuse. `path` is for the message.
pub(super) fn check_writable(
    path: &Path,
    name: &str,
    dtype: DType,
    shape: &[u64],
    lod: &[Vec<u64>],
) -> Result<(), CkptError> {
    if dtype.size().is_none() {
        return Err(no_such_type(path, name, dtype));
    }
    if shape.len() > MAX_RANK || lod.len() as u64 > MAX_LOD_LEVELS {
        let what = format!("tensor `{}` has more than {MAX_RANK} dimensions or {MAX_LOD_LEVELS} LoD levels", name);
        return Err(CkptError::unsupported(path, what));
    }
    Ok(())
}

/// Writes one tensor as Paddle's `save` does, byte for byte; the name is not stored.
pub fn write_stream(path: &Path, tensor: &TensorData<'_>) -> Result<(), CkptError> {
    let mut file = AtomicFile::create(path)?;
    write_one(&mut file, path, tensor)?;
    file.commit()
}

/// Writes tensors one after the other as Paddle's `save_combine` does, byte for byte; the reader
/// has to know their names and order. At least one tensor is needed: an empty file is no checkpoint.
pub fn write_combined<'a>(path: &Path, tensors: impl IntoIterator<Item = TensorData<'a>>) -> Result<(), CkptError> {
    let mut file = AtomicFile::create(path)?;
    let mut count = 0;
    for tensor in tensors {
        write_one(&mut file, path, &tensor)?;
        count += 1;
    }
    match count {
        0 => Err(CkptError::unsupported(path, "a combined file without tensors cannot be read again")),
        1..=MAX_ENTRIES => file.commit(),
        _ => Err(CkptError::unsupported(path, format!("more than {MAX_ENTRIES} tensors"))),
    }
}

fn write_one(file: &mut AtomicFile, path: &Path, tensor: &TensorData<'_>) -> Result<(), CkptError> {
    check_writable(path, &tensor.name, tensor.dtype, &tensor.shape, &tensor.lod)?;
    tensor.checked_len(path)?;
    file.write(&header(tensor.dtype, &tensor.shape, &tensor.lod))?;
    file.write(&tensor.data)
}
