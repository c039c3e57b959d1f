//! NumPy archives (`np.savez`): a ZIP file of `.npy` members, stored without compression.
//!
//! The central directory is believed for names and places only as far as the local headers and the `.npy`
//! headers agree with it: a member must lie before the directory and be exactly as long as its dtype and shape
//! say. Compressed archives, Fortran order of more than one dimension, big-endian numbers and Python objects are
//! typed errors. A member that is no `.npy` is skipped. Sources: PKWARE's APPNOTE 6.3 (records, ZIP64), NumPy's
//! NEP 1 (`.npy` versions 1 to 3).

use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_ENTRIES, MAX_NAME, MAX_RANK};
use super::map::{Access, Source};
use super::{Checkpoint, Skipped, TensorEntry, byte_len, entry_at};
use crate::ir::DType;
use std::borrow::Cow;
use std::path::Path;

/// Bytes of one `.npy` header: NumPy pads to 64, and only a shape is of any length.
const MAX_NPY_HEADER: u64 = 4096;
/// The record at the end of a ZIP file, its comment apart, and the longest comment.
const END: u64 = 22;
const MAX_COMMENT: u64 = 65_535;
/// What a 32-bit field holds when the number is in the ZIP64 field instead.
const IN_ZIP64: u64 = 0xffff_ffff;

/// An open NumPy archive.
pub struct NpzFile {
    source: Source,
    entries: Vec<TensorEntry>,
    /// where the data of each begins
    places: Vec<u64>,
    index: NameIndex,
    skipped: Vec<Skipped>,
}

impl NpzFile {
    /// Opens an archive; reads its directory and the header of each member.
    pub fn open(path: &Path, access: Access) -> Result<NpzFile, CkptError> {
        let source = Source::open(path, access)?;
        let bad = |at: u64, what: &str| CkptError::malformed(path, at, what);
        let (first, count) = directory(&source)?;
        let (mut entries, mut places, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = first;
        for _ in 0..count {
            let member = Member::read(&source, &mut at)?;
            let Some(name) = member.name.strip_suffix(".npy") else {
                skipped.push(Skipped { name: member.name, why: "is no array".to_owned() });
                continue;
            };
            if member.compressed {
                let what = format!("`{}` is compressed: save the arrays with numpy.savez", member.name.escape_debug());
                return Err(CkptError::unsupported(path, what));
            }
            let start = member.data_at(&source)?;
            let end = start.checked_add(member.size).filter(|&end| end <= first);
            let end = end.ok_or_else(|| bad(member.local, "a member that runs into the directory"))?;
            let array = Array::read(&source, start, end, &member.name)?;
            entries.push(TensorEntry {
                name: name.to_owned(),
                dtype: array.dtype,
                shape: array.shape,
                bytes: end - array.data,
            });
            places.push(array.data);
        }
        let index = NameIndex::unique(&entries).map_err(|_| bad(first, "two members of one name"))?;
        Ok(NpzFile { source, entries, places, index, skipped })
    }
}

impl Checkpoint for NpzFile {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> &'static str {
        "npz"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        self.source.bytes(self.places[index], entry.bytes, "the data")
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        let end = offset.saturating_add(buffer.len() as u64);
        if end > entry.bytes {
            return Err(CkptError::WrongLength { name: entry.name.clone(), expected: end, found: entry.bytes });
        }
        self.source.read_into(self.places[index] + offset, buffer)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

/// Little-endian fields of a record, which is long enough.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u64 {
        u64::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }
    fn u32(&self, at: usize) -> u64 {
        self.u16(at) | self.u16(at + 2) << 16
    }
    fn u64(&self, at: usize) -> u64 {
        self.u32(at) | self.u32(at + 4) << 32
    }
}

/// Where the central directory begins, and how many members it lists.
fn directory(source: &Source) -> Result<(u64, u64), CkptError> {
    let len = source.len();
    let tail_at = len.saturating_sub(END + MAX_COMMENT);
    let tail = source.bytes(tail_at, len - tail_at, "the end of the archive")?;
    let found = tail.windows(END as usize).rposition(|w| {
        let rest = tail.len() - END as usize;
        w.starts_with(b"PK\x05\x06") && Fields(w).u16(20) <= rest as u64
    });
    let Some(found) = found else {
        return Err(CkptError::malformed(source.path(), len, "a ZIP file without its directory"));
    };
    let end = Fields(&tail[found..]);
    let (mut count, mut at) = (end.u16(10), end.u32(16));
    let end_at = tail_at + found as u64;
    if (count == 0xffff || at == IN_ZIP64) && end_at >= 20 {
        let locator = source.array::<20>(end_at - 20, "the ZIP64 locator")?;
        if locator.starts_with(b"PK\x06\x07") {
            let record = source.array::<56>(Fields(&locator).u64(8), "the ZIP64 record")?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(CkptError::malformed(source.path(), end_at, "a ZIP64 locator that leads nowhere"));
            }
            (count, at) = (Fields(&record).u64(32), Fields(&record).u64(48));
        }
    }
    if count > MAX_ENTRIES as u64 {
        return Err(CkptError::unsupported(source.path(), format!("{count} members, at most {MAX_ENTRIES} are read")));
    }
    Ok((at, count))
}

/// A row of the central directory.
struct Member {
    name: String,
    compressed: bool,
    size: u64,
    /// where its local header stands
    local: u64,
}

impl Member {
    fn read(source: &Source, at: &mut u64) -> Result<Member, CkptError> {
        let bad = |what: &str| CkptError::malformed(source.path(), *at, what);
        let record = source.array::<46>(*at, "a row of the directory")?;
        let f = Fields(&record);
        if !record.starts_with(b"PK\x01\x02") {
            return Err(bad("no row of the directory"));
        }
        let (name_len, extra_len, comment_len) = (f.u16(28), f.u16(30), f.u16(32));
        if name_len > MAX_NAME as u64 {
            return Err(bad("a name longer than any"));
        }
        let name = source.bytes(*at + 46, name_len, "a name")?;
        let name = std::str::from_utf8(&name).map_err(|_| bad("a name that is not UTF-8"))?.to_owned();
        let extra = source.bytes(*at + 46 + name_len, extra_len, "an extra field")?;
        let (mut stored, mut size, mut local) = (f.u32(20), f.u32(24), f.u32(42));
        let mut wide = zip64(&extra).ok_or_else(|| bad("an extra field that is cut short"))?.chunks_exact(8);
        for field in [&mut size, &mut stored, &mut local] {
            if *field == IN_ZIP64 {
                let value = wide.next().ok_or_else(|| bad("a ZIP64 field that is cut short"))?;
                *field = Fields(value).u64(0);
            }
        }
        let (encrypted, method) = (f.u16(8) & 1 != 0, f.u16(10));
        if encrypted || (method == 0 && stored != size) {
            return Err(bad("a member that is encrypted, or stored with two lengths"));
        }
        *at += 46 + name_len + extra_len + comment_len;
        Ok(Member { name, compressed: method != 0, size, local })
    }

    /// Where the member's bytes begin, behind its local header.
    fn data_at(&self, source: &Source) -> Result<u64, CkptError> {
        let header = source.array::<30>(self.local, "a local header")?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(CkptError::malformed(source.path(), self.local, "no local header"));
        }
        Ok(self.local + 30 + Fields(&header).u16(26) + Fields(&header).u16(28))
    }
}

/// The ZIP64 part of an extra field, empty when there is none; `None` when the field is cut short.
fn zip64(mut extra: &[u8]) -> Option<&[u8]> {
    while !extra.is_empty() {
        let (id, len) = (extra.get(..2)?, extra.get(2..4)?);
        let body = extra.get(4..4 + Fields(len).u16(0) as usize)?;
        if id == [1, 0] {
            return Some(body);
        }
        extra = &extra[4 + body.len()..];
    }
    Some(&[])
}

/// What an `.npy` header says.
struct Array {
    dtype: DType,
    shape: Vec<u64>,
    /// where the data begins
    data: u64,
}

impl Array {
    fn read(source: &Source, start: u64, end: u64, name: &str) -> Result<Array, CkptError> {
        let bad = |what: &str| CkptError::malformed(source.path(), start, format!("`{}`: {what}", name.escape_debug()));
        let no = |what: String| CkptError::unsupported(source.path(), format!("`{}` {what}", name.escape_debug()));
        let head = source.array::<12>(start, "an array's header")?;
        let (header_at, header_len) = match head {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, ..] => (start + 10, Fields(&head).u16(8)),
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, ..] => (start + 12, Fields(&head).u32(8)),
            _ => return Err(bad("no .npy header")),
        };
        if header_len > MAX_NPY_HEADER || header_at + header_len > end {
            return Err(bad("a header longer than the member, or than any"));
        }
        let header = source.bytes(header_at, header_len, "an array's header")?;
        let header = std::str::from_utf8(&header).map_err(|_| bad("a header that is not UTF-8"))?;
        let field = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
        let (Some(descr), Some(order), Some(shape)) = (field("descr"), field("fortran_order"), field("shape")) else {
            return Err(bad("a header without descr, fortran_order and shape"));
        };
        let descr = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|(d, _)| d);
        let Some(descr) = descr else { return Err(no("has fields: only plain arrays are read".to_owned())) };
        let dtype = dtype(descr).ok_or_else(|| no(format!("has element type {descr:?}, which is not read")))?;
        let shape = shape.strip_prefix('(').and_then(|s| s.split_once(')')).map(|(s, _)| s);
        let shape: Option<Vec<u64>> = shape.and_then(|s| {
            let dims = s.split(',').map(str::trim).filter(|d| !d.is_empty());
            dims.take(MAX_RANK + 1).map(|d| d.parse().ok()).collect()
        });
        let shape = shape.filter(|s| s.len() <= MAX_RANK).ok_or_else(|| bad("a shape that is none"))?;
        if order.starts_with("True") && shape.len() > 1 {
            return Err(no("is in Fortran order: save numpy.ascontiguousarray of it".to_owned()));
        }
        let data = header_at + header_len;
        let expected = dtype.size().and_then(|size| byte_len(&shape, size as u64 * 8));
        match expected {
            Some(n) if n == end - data => Ok(Array { dtype, shape, data }),
            n => Err(CkptError::WrongLength {
                name: name.to_owned(),
                expected: n.unwrap_or(u64::MAX),
                found: end - data,
            }),
        }
    }
}

/// The element type of a little-endian `descr`.
fn dtype(descr: &str) -> Option<DType> {
    Some(match descr {
        "|b1" => DType::Bool,
        "|i1" => DType::I8,
        "|u1" => DType::U8,
        "<i2" => DType::I16,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "<f2" => DType::F16,
        "<f4" => DType::F32,
        "<f8" => DType::F64,
        "<c8" => DType::C64,
        "<c16" => DType::C128,
        _ => return None,
    })
}
