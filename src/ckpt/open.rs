//! Which reader opens this path? The one for what stands in the file; a directory is one of tensor streams.

use super::Checkpoint;
use super::detect::{Content, content, describe};
use super::dir::StreamDir;
use super::error::{CkptError, KNOWN_FORMATS};
use super::map::{Access, Source};
use super::npz::NpzFile;
use super::pickle::PickleFile;
use super::safetensors::SafetensorsFile;
use super::stream::StreamFile;
use std::path::Path;

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
        Content::Npz => Ok(Box::new(NpzFile::open(path, access)?)),
        Content::Stream => Ok(Box::new(StreamFile::open(path, access)?)),
        Content::Pickle => Ok(Box::new(PickleFile::open(path, access)?)),
        what @ Content::SelectedRows => Err(CkptError::unsupported(path, describe(what))),
        Content::Unknown => Err(CkptError::UnknownFormat { path: path.into(), known: KNOWN_FORMATS }),
    }
}
