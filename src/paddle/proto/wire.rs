//! How does protobuf lay fields out in bytes? Varints, fixed words, counted bytes, groups; no schema here.
//!
//! Positions count from the start of the file, also inside nested messages: a [`Reader`] walks the
//! file cut off at the end of the message that it reads.

use super::error::{ProtoError, ProtoErrorKind as Kind};

/// Groups nested deeper than this are refused (protobuf's own limit on nesting is 100, too).
pub const MAX_GROUP_DEPTH: usize = 100;

/// A byte range of a file; files are shorter than 2 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Part {
    pub start: u32,
    pub end: u32,
}

impl Part {
    #[inline]
    pub fn new(start: usize, end: usize) -> Self {
        // A file has less than 2^31 bytes: checked before the first part is made.
        Part { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub fn of(self, file: &[u8]) -> &[u8] {
        &file[self.start as usize..self.end as usize]
    }

    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Wire types.
pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const LEN: u32 = 2;
pub(crate) const START_GROUP: u32 = 3;
pub(crate) const END_GROUP: u32 = 4;
pub(crate) const FIXED32: u32 = 5;

/// A tag: the field's number and wire type.
pub(crate) const fn tag(field: u32, wire: u32) -> u32 {
    field << 3 | wire
}

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// counted bytes
    Len(Part),
    /// a whole group, skipped
    Group,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub number: u32,
    pub value: Value,
    /// from its tag to its end
    pub whole: Part,
    /// whether the tag and the length or varint are as short as they can be
    pub minimal: bool,
}

/// Walks the fields of one message.
pub(crate) struct Reader<'a> {
    /// the file up to the end of the message
    buf: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    pub fn new(file: &'a [u8], message: Part) -> Self {
        Reader { buf: &file[..message.end as usize], pos: message.start as usize }
    }

    fn fault(&self, kind: Kind) -> ProtoError {
        ProtoError::new(kind, self.pos)
    }

    /// A varint, and whether it is as short as it can be.
    pub fn varint(&mut self) -> Result<(u64, bool), ProtoError> {
        let mut value = 0u64;
        for i in 0..10 {
            let &byte = self.buf.get(self.pos + i).ok_or_else(|| self.fault(Kind::Cut))?;
            if i == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte < 0x80 {
                self.pos += i + 1;
                return Ok((value, byte != 0 || i == 0));
            }
        }
        Err(self.fault(Kind::VarintTooLong))
    }

    fn take(&mut self, len: u64) -> Result<Part, ProtoError> {
        if len > (self.buf.len() - self.pos) as u64 {
            return Err(self.fault(Kind::Cut));
        }
        let part = Part::new(self.pos, self.pos + len as usize);
        self.pos = part.end as usize;
        Ok(part)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let part = self.take(N as u64)?;
        Ok(part.of(self.buf).try_into().expect("as many bytes as asked for"))
    }

    fn tag(&mut self) -> Result<(u32, u32, bool), ProtoError> {
        let start = self.pos;
        let (tag, minimal) = self.varint()?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 != 0 => Ok((tag >> 3, tag & 7, minimal)),
            _ => Err(ProtoError::new(Kind::FieldNumber, start)),
        }
    }

    /// The next field, or `None` at the end of the message.
    pub fn next(&mut self) -> Result<Option<Field>, ProtoError> {
        if self.pos == self.buf.len() {
            return Ok(None);
        }
        let start = self.pos;
        let (number, wire, tag_minimal) = self.tag()?;
        let mut minimal = true;
        let value = match wire {
            VARINT => {
                let (v, m) = self.varint()?;
                minimal = m;
                Value::Varint(v)
            }
            FIXED64 => Value::Fixed64(u64::from_le_bytes(self.fixed()?)),
            FIXED32 => Value::Fixed32(u32::from_le_bytes(self.fixed()?)),
            LEN => {
                let (len, m) = self.varint()?;
                minimal = m;
                Value::Len(self.take(len)?)
            }
            START_GROUP => {
                self.skip_group(number)?;
                Value::Group
            }
            END_GROUP => return Err(ProtoError::new(Kind::EndGroup, start)),
            other => return Err(ProtoError::new(Kind::WireType(other as u8), start)),
        };
        Ok(Some(Field { number, value, whole: Part::new(start, self.pos), minimal: minimal && tag_minimal }))
    }

    /// Skips what follows the start of group `number`, to its end.
    fn skip_group(&mut self, number: u32) -> Result<(), ProtoError> {
        let mut open = vec![number];
        while let Some(&inner) = open.last() {
            let start = self.pos;
            let (number, wire, _) = self.tag()?;
            match wire {
                VARINT => drop(self.varint()?),
                FIXED64 => drop(self.take(8)?),
                FIXED32 => drop(self.take(4)?),
                LEN => {
                    let (len, _) = self.varint()?;
                    self.take(len)?;
                }
                START_GROUP if open.len() == MAX_GROUP_DEPTH => return Err(ProtoError::new(Kind::GroupDepth, start)),
                START_GROUP => open.push(number),
                END_GROUP if number == inner => drop(open.pop()),
                END_GROUP => return Err(ProtoError::new(Kind::EndGroup, start)),
                other => return Err(ProtoError::new(Kind::WireType(other as u8), start)),
            }
        }
        Ok(())
    }

    /// The varints of a packed list, or an error where the list is cut.
    pub fn packed_varints(file: &'a [u8], list: Part, mut each: impl FnMut(u64)) -> Result<(), ProtoError> {
        let mut r = Reader::new(file, list);
        while r.pos < r.buf.len() {
            each(r.varint()?.0);
        }
        Ok(())
    }

    /// The words of a packed list of `N`-byte words.
    pub fn packed_fixed<const N: usize>(
        file: &'a [u8],
        list: Part,
        mut each: impl FnMut([u8; N]),
    ) -> Result<(), ProtoError> {
        let mut r = Reader::new(file, list);
        while r.pos < r.buf.len() {
            each(r.fixed()?);
        }
        Ok(())
    }
}

/// A minimal length at `at` and the position after it; `None` when it is cut or not minimal.
#[inline(always)]
pub(crate) fn short_len(buf: &[u8], at: usize) -> Option<(usize, usize)> {
    let byte = *buf.get(at)?;
    if byte < 0x80 { Some((byte as usize, at + 1)) } else { longer_len(buf, at, byte) }
}

fn longer_len(buf: &[u8], at: usize, first: u8) -> Option<(usize, usize)> {
    let mut len = (first & 0x7F) as usize;
    for i in 1..5 {
        let byte = *buf.get(at + i)?;
        len |= ((byte & 0x7F) as usize) << (7 * i);
        if byte < 0x80 {
            return (byte != 0).then_some((len, at + i + 1));
        }
    }
    None
}

/// Bytes of a varint.
#[inline(always)]
pub(crate) const fn varint_len(value: u64) -> usize {
    // 1 for 0..=127, 2 up to 2^14 - 1, …; (bits * 9 + 64) / 64 is ceil(bits / 7) for 1..=64 bits.
    ((64 - (value | 1).leading_zeros()) as usize * 9 + 64) / 64
}

/// Bytes of a counted field with a one-byte tag.
#[inline(always)]
pub(crate) const fn counted_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Writes a varint.
#[inline(always)]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a tag.
#[inline(always)]
pub(crate) fn put_tag(out: &mut Vec<u8>, field: u32, wire: u32) {
    put_varint(out, u64::from(tag(field, wire)));
}

/// Writes an integer field; 32-bit ones are sign-extended, as protobuf does.
#[inline]
pub(crate) fn put_int(out: &mut Vec<u8>, field: u32, value: i64) {
    put_tag(out, field, VARINT);
    put_varint(out, value as u64);
}

/// Writes a field of counted bytes.
#[inline(always)]
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes the tag and length of a nested message whose `len` bytes follow.
#[inline(always)]
pub(crate) fn put_head(out: &mut Vec<u8>, field: u32, len: usize) {
    put_tag(out, field, LEN);
    put_varint(out, len as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_lengths() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1u64 << bits) - 1, u64::MAX >> bits] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
                let mut r = Reader::new(&out, Part::new(0, out.len()));
                assert_eq!(r.varint(), Ok((value, true)));
            }
        }
    }

    #[test]
    fn a_padded_varint_is_read_and_marked() {
        let bytes = [0x81, 0x80, 0x00];
        assert_eq!(Reader::new(&bytes, Part::new(0, 3)).varint(), Ok((1, false)));
        assert_eq!(short_len(&bytes, 0), None);
        assert_eq!(short_len(&[0x80, 0x01], 0), Some((128, 2)));
        assert_eq!(Reader::new(&[0], Part::new(0, 1)).varint(), Ok((0, true)));
    }
}
