//! Which format is this file? Its content says, never its name.

use super::Checkpoint;
use super::dir::StreamDir;
use super::error::CkptError;
use super::map::{Access, Source};
use super::safetensors::SafetensorsFile;
use super::stream::{StreamFile, is_selected_rows, read_one, sniff};
use std::path::Path;

/// The formats [`open`] recognises.
pub const KNOWN_FORMATS: &str = "safetensors, Paddle tensor stream, directory of Paddle tensor streams";

/// Opens a checkpoint of any known format, files by memory map (see [`Access`]).
///
/// A file of several tensor streams gets entries without names: use
/// [`open_combined`](super::open_combined) when they are known.
pub fn open(path: &Path) -> Result<Box<dyn Checkpoint>, CkptError> {
    open_with(path, Access::Map)
}

/// [`open`], with a choice of how the files are read.
pub fn open_with(path: &Path, access: Access) -> Result<Box<dyn Checkpoint>, CkptError> {
    if std::fs::metadata(path).map_err(|e| CkptError::io(path, e))?.is_dir() {
        return Ok(Box::new(StreamDir::open(path, access)?));
    }
    let source = Source::open(path, Access::Read)?;
    match content(&source)? {
        Content::Safetensors => Ok(Box::new(SafetensorsFile::open(path, access)?)),
        Content::Stream => Ok(Box::new(StreamFile::open(path, access)?)),
        what @ (Content::SelectedRows | Content::Pickle) => Err(CkptError::unsupported(path, describe(what))),
        Content::Unknown => Err(CkptError::UnknownFormat { path: path.into(), known: KNOWN_FORMATS }),
    }
}

/// What a file holds, as far as its beginning tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Safetensors,
    Stream,
    SelectedRows,
    Pickle,
    Unknown,
}

/// Why a file of this content is not read where it stands.
pub(super) fn describe(content: Content) -> &'static str {
    match content {
        Content::Safetensors => "is a safetensors file, a checkpoint of its own",
        Content::Stream => "is a tensor stream",
        Content::SelectedRows => "holds SelectedRows (a sparse gradient), which no parameter is",
        Content::Pickle => "is a pickle (paddle.save), which this version does not read",
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
        // Protocols 2 to 5 begin with the opcode PROTO; older ones have no mark.
        [0x80, 2..=5, ..] => Content::Pickle,
        head if sniff(head) => match read_one(source, 0) {
            Err(CkptError::Malformed { .. }) if is_selected_rows(source) => Content::SelectedRows,
            _ => Content::Stream,
        },
        [0, 0, 0, 0, ..] if is_selected_rows(source) => Content::SelectedRows,
        _ => Content::Unknown,
    })
}
