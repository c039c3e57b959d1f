//! What do load and save reach? Files on disk by way of `ckpt`, or whatever the caller puts in their place.

use super::tensor::Tensor;
use crate::ckpt::{self, Access, Checkpoint, CkptError, TensorData, TensorEntry};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How an op writes its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaveFormat {
    /// one unnamed tensor in Paddle's stream format (`save`)
    Single,
    /// unnamed tensors one after the other (`save_combine`)
    Combined,
}

/// The files of a run.
pub trait Files {
    /// Opens a checkpoint. A file of unnamed tensors gives entries without names.
    fn open(&self, path: &Path) -> Result<Arc<dyn Checkpoint>, CkptError>;

    /// Opens a file of unnamed tensors whose names are known from elsewhere.
    fn open_combined(&self, path: &Path, names: &[&str]) -> Result<Arc<dyn Checkpoint>, CkptError>;

    /// Writes tensors to a file.
    fn write(&self, path: &Path, format: SaveFormat, tensors: &[(&str, Tensor)]) -> Result<(), CkptError>;
}

/// Files on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFiles;

impl Files for DiskFiles {
    fn open(&self, path: &Path) -> Result<Arc<dyn Checkpoint>, CkptError> {
        Ok(ckpt::open(path)?.into())
    }

    fn open_combined(&self, path: &Path, names: &[&str]) -> Result<Arc<dyn Checkpoint>, CkptError> {
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        Ok(Arc::new(ckpt::open_combined(path, &names, Access::Map)?))
    }

    fn write(&self, path: &Path, format: SaveFormat, tensors: &[(&str, Tensor)]) -> Result<(), CkptError> {
        let data = |(name, t): &(&str, Tensor)| {
            let shape: Vec<u64> = t.shape().iter().map(|&d| d as u64).collect();
            TensorData::new((*name).to_owned(), t.dtype(), shape, t.to_bytes())
        };
        match (format, tensors) {
            (SaveFormat::Single, [one]) => ckpt::write_stream(path, &data(one)),
            // One at a time: the bytes of a tensor go when it is written.
            _ => ckpt::write_combined(path, tensors.iter().map(data)),
        }
    }
}

/// A checkpoint held in memory: for tests, and for tensors that come from elsewhere than a file.
#[derive(Clone, Debug, Default)]
pub struct MemoryCheckpoint {
    path: PathBuf,
    entries: Vec<TensorEntry>,
    data: Vec<Vec<u8>>,
}

impl MemoryCheckpoint {
    /// A checkpoint of these tensors; `path` is what errors call it.
    pub fn new<'t>(path: impl Into<PathBuf>, tensors: impl IntoIterator<Item = (&'t str, Tensor)>) -> Self {
        let mut ckpt = MemoryCheckpoint { path: path.into(), ..Self::default() };
        for (name, t) in tensors {
            ckpt.entries.push(TensorEntry {
                name: name.to_owned(),
                dtype: t.dtype(),
                shape: t.shape().iter().map(|&d| d as u64).collect(),
                bytes: t.bytes(),
            });
            ckpt.data.push(t.to_bytes());
        }
        ckpt
    }
}

impl Checkpoint for MemoryCheckpoint {
    fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> &'static str {
        "memory"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        Ok(Cow::Borrowed(&self.data[index]))
    }
}
