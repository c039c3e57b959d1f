//! Which reader opens this path? The one for what stands in the file, or in the directory.

use super::Checkpoint;
use super::detect::{Content, content, describe};
use super::dir::StreamDir;
use super::dist::{DistDir, versions};
use super::error::{CkptError, KNOWN_FORMATS};
use super::map::{Access, Source};
use super::npz::NpzFile;
use super::pickle::PickleFile;
use super::pickle::heap::Value;
use super::pickle::machine::unpickle;
use super::safetensors::SafetensorsFile;
use super::sharded::{INDEX, SafetensorsIndex};
use super::stream::StreamFile;
use super::write::parent;
use std::path::{Path, PathBuf};

/// Opens a checkpoint of any known format, files by memory map (see [`Access`]).
///
/// A file of several tensor streams gets entries without names: use
/// [`open_combined`](super::open_combined) when they are known.
pub fn open(path: &Path) -> Result<Box<dyn Checkpoint>, CkptError> {
    open_with(path, Access::Map)
}

/// [`open`], with a choice of how the files are read.
///
/// A directory with `<number>.metadata` files is a distributed checkpoint, one with a safetensors index is that;
/// any other directory is one of tensor streams.
pub fn open_with(path: &Path, access: Access) -> Result<Box<dyn Checkpoint>, CkptError> {
    if !std::fs::metadata(path).map_err(|e| CkptError::io(path, e))?.is_dir() {
        return open_file(path, access);
    }
    if !versions(path)?.is_empty() {
        return Ok(Box::new(DistDir::open(path, access)?));
    }
    match &indexes(path)?[..] {
        [] => Ok(Box::new(StreamDir::open(path, access)?)),
        [one] => Ok(Box::new(SafetensorsIndex::open(one, access)?)),
        _ => Err(CkptError::unsupported(path, "has several safetensors indexes: open one of them")),
    }
}

/// Opens a file of any known format.
pub(super) fn open_file(path: &Path, access: Access) -> Result<Box<dyn Checkpoint>, CkptError> {
    let source = Source::open(path, Access::Read)?;
    match content(&source)? {
        Content::Safetensors => Ok(Box::new(SafetensorsFile::open(path, access)?)),
        Content::Npz => Ok(Box::new(NpzFile::open(path, access)?)),
        Content::Stream => Ok(Box::new(StreamFile::open(path, access)?)),
        Content::Index => Ok(Box::new(SafetensorsIndex::open(path, access)?)),
        Content::Pickle => {
            let source = Source::open(path, access)?;
            let pickle = unpickle(&source)?;
            if let Value::Record(_) = pickle.root {
                return Ok(Box::new(DistDir::open_metadata(parent(path), path, access)?));
            }
            Ok(Box::new(PickleFile::of(source, &pickle.heap, pickle.root)?))
        }
        what @ Content::SelectedRows => Err(CkptError::unsupported(path, describe(what))),
        Content::Unknown => Err(CkptError::UnknownFormat { path: path.into(), known: KNOWN_FORMATS }),
    }
}

/// Opens a shard file of a distributed checkpoint, which can only be a pickle or safetensors: metadata that names
/// metadata would not end.
pub(super) fn open_shard(path: &Path, access: Access) -> Result<Box<dyn Checkpoint>, CkptError> {
    match content(&Source::open(path, Access::Read)?)? {
        Content::Safetensors => Ok(Box::new(SafetensorsFile::open(path, access)?)),
        Content::Pickle => Ok(Box::new(PickleFile::open(path, access)?)),
        _ => Err(CkptError::unsupported(path, "is no file of shards (a pickle or safetensors)")),
    }
}

/// The safetensors indexes of a directory, by name.
fn indexes(dir: &Path) -> Result<Vec<PathBuf>, CkptError> {
    let io = |e| CkptError::io(dir, e);
    let mut found = Vec::new();
    for item in std::fs::read_dir(dir).map_err(io)? {
        let item = item.map_err(io)?;
        if item.file_name().to_str().is_some_and(|n| n.ends_with(INDEX)) && item.path().is_file() {
            found.push(item.path());
        }
    }
    found.sort();
    Ok(found)
}
