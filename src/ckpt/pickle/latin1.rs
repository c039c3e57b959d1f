//! How are bytes read that protocol 2 keeps as text? Each byte from 0x80 on stands there as two bytes of UTF-8.
//!
//! Where byte n of the data is, only the data tells. A cursor remembers where the last read ended, so that reads
//! in order cost the data once.

use super::super::error::CkptError;
use super::super::map::Source;
use super::heap::Span;
use std::sync::Mutex;

const WINDOW: u64 = 64 << 10;

/// Where the last read of a text ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    /// where the text begins in the file; texts do not share a beginning
    text: u64,
    /// bytes of data before the cursor
    decoded: u64,
    /// bytes of text before it
    stored: u64,
}

/// Fills `out` with the data from byte `from` on.
pub(super) fn read(
    source: &Source,
    span: Span,
    from: u64,
    out: &mut [u8],
    cursor: &Mutex<Cursor>,
) -> Result<(), CkptError> {
    let mut at = seek(source, span, from, cursor)?;
    let mut filled = 0;
    let mut window = vec![0; WINDOW.min(span.stored - at.stored) as usize];
    while filled < out.len() {
        let len = WINDOW.min(span.stored - at.stored) as usize;
        if len == 0 {
            return Err(short(source, span, at));
        }
        source.read_into(span.at + at.stored, &mut window[..len])?;
        let (used, made) = decode(&window[..len], &mut out[filled..]).ok_or_else(|| {
            CkptError::malformed(source.path(), span.at + at.stored, "an array's text has characters that are no bytes")
        })?;
        filled += made;
        (at.stored, at.decoded) = (at.stored + used as u64, at.decoded + made as u64);
    }
    *Cursor::lock(cursor) = at;
    Ok(())
}

/// That the text ends where the data does.
pub(super) fn check_end(source: &Source, span: Span, bytes: u64, cursor: &Mutex<Cursor>) -> Result<(), CkptError> {
    let at = seek(source, span, bytes, cursor)?;
    if at.stored == span.stored { Ok(()) } else { Err(short(source, span, at)) }
}

fn short(source: &Source, span: Span, at: Cursor) -> CkptError {
    let what = format!("the text of an array holds {} bytes, then {} more", at.decoded, span.stored - at.stored);
    CkptError::malformed(source.path(), span.at, what)
}

/// The cursor at byte `from` of the data.
fn seek(source: &Source, span: Span, from: u64, cursor: &Mutex<Cursor>) -> Result<Cursor, CkptError> {
    let mut at = *Cursor::lock(cursor);
    if at.text != span.at || at.decoded > from {
        at = Cursor { text: span.at, decoded: 0, stored: 0 };
    }
    let mut window = Vec::new();
    while at.decoded < from {
        let len = WINDOW.min(span.stored - at.stored) as usize;
        if len == 0 {
            return Err(short(source, span, at));
        }
        window.resize(len, 0);
        source.read_into(span.at + at.stored, &mut window)?;
        for &byte in &window {
            // A byte that continues a character belongs to the one before it.
            if byte & 0xc0 != 0x80 {
                if at.decoded == from {
                    break;
                }
                at.decoded += 1;
            }
            at.stored += 1;
        }
        // The window may end inside a character; its second byte is still to come.
        if at.decoded == from && at.stored < span.stored {
            let next: [u8; 1] = source.array(span.at + at.stored, "a character")?;
            at.stored += u64::from(next[0] & 0xc0 == 0x80);
        }
    }
    Ok(at)
}

/// Decodes whole characters until either side is used up: bytes used, bytes made. `None` when a character is
/// above 0xff, or no UTF-8.
fn decode(text: &[u8], out: &mut [u8]) -> Option<(usize, usize)> {
    let (mut i, mut o) = (0, 0);
    while o < out.len() && i < text.len() {
        let lead = text[i];
        if lead < 0x80 {
            out[o] = lead;
            i += 1;
        } else {
            let &next = match text.get(i + 1) {
                Some(next) => next,
                // The rest of the character is in the next window; there is one, or the text is cut.
                None if i > 0 => break,
                None => return None,
            };
            if !matches!(lead, 0xc2 | 0xc3) || next & 0xc0 != 0x80 {
                return None;
            }
            out[o] = (lead << 6) | (next & 0x3f);
            i += 2;
        }
        o += 1;
    }
    Some((i, o))
}
