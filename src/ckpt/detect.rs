//! What does this file hold? Its content says, never its name.

use super::error::CkptError;
use super::map::Source;
use super::stream::{is_selected_rows, read_one, sniff};

/// What a file holds, as far as its beginning tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Safetensors,
    Stream,
    SelectedRows,
    Npz,
    Pickle,
    /// of several safetensors files
    Index,
    Unknown,
}

/// Why a file of this content is not read where it stands.
pub(super) fn describe(content: Content) -> &'static str {
    match content {
        Content::Safetensors => "is a safetensors file, a checkpoint of its own",
        Content::Stream => "is a tensor stream",
        Content::Npz => "is a NumPy archive, a file of its own",
        Content::SelectedRows => "holds SelectedRows (a sparse gradient), which no parameter is",
        Content::Pickle => "is a pickle (paddle.save), a checkpoint of its own",
        Content::Index => "is the index of several safetensors files, a checkpoint of its own",
        Content::Unknown => "is no tensor",
    }
}

pub(super) fn content(source: &Source) -> Result<Content, CkptError> {
    let mut buffer = [0; 12];
    let len = source.len().min(12) as usize;
    source.read_into(0, &mut buffer[..len])?;
    Ok(match &buffer[..len] {
        // A header size below 2^48, then the header. In a tensor stream, the byte of the brace
        // belongs to a count of at most 16.
        [_, _, _, _, _, _, 0, 0, b'{', ..] => Content::Safetensors,
        // `paddle.save` writes no ZIP file.
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Content::Npz,
        // Protocols 2 to 5 begin with the opcode PROTO; older ones have no mark.
        [0x80, 2..=5, ..] => Content::Pickle,
        head if sniff(head) => match read_one(source, 0) {
            Err(CkptError::Malformed { .. }) if is_selected_rows(source) => Content::SelectedRows,
            _ => Content::Stream,
        },
        [0, 0, 0, 0, ..] if is_selected_rows(source) => Content::SelectedRows,
        [b'{', ..] if is_index(source)? => Content::Index,
        _ => Content::Unknown,
    })
}

/// Whether a JSON file has the key of a safetensors index near its beginning.
fn is_index(source: &Source) -> Result<bool, CkptError> {
    let mut head = vec![0; source.len().min(64 << 10) as usize];
    source.read_into(0, &mut head)?;
    let key = b"\"weight_map\"";
    Ok(head.windows(key.len()).any(|w| w == key))
}
