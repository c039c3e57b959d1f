//! How is a checkpoint read and written? One trait, one file per format, and an attack list.

use crate::ir::DType;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// One tensor of a checkpoint, as its manifest tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorEntry {
    /// the key; empty for a file that holds one unnamed tensor
    pub name: String,
    /// element type as stored
    pub dtype: DType,
    /// dimensions, row major
    pub shape: Vec<u64>,
    /// bytes of the data
    pub bytes: u64,
}

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CkptError {
    /// the file system refused
    #[error("{path}: {source}")]
    Io {
        /// the file
        path: PathBuf,
        /// what it said
        source: std::io::Error,
    },
    /// the bytes are not what the format says
    #[error("{path}: at byte {at}: {what}")]
    Malformed {
        /// the file
        path: PathBuf,
        /// where in it
        at: u64,
        /// what is wrong there
        what: String,
    },
    /// no format was recognised
    #[error("{path}: not a checkpoint of a known format ({known})")]
    UnknownFormat {
        /// the file
        path: PathBuf,
        /// the formats that are known
        known: &'static str,
    },
    /// an operation of this format that this build cannot do
    #[error("{path}: {what}")]
    Unsupported {
        /// the file
        path: PathBuf,
        /// what cannot be done
        what: String,
    },
}

/// A checkpoint that is open. Opening costs the manifest; reading costs the tensor.
pub trait Checkpoint: Send + Sync {
    /// Where it was opened.
    fn path(&self) -> &Path;
    /// The format's name (`safetensors`, `tensor-stream`, …).
    fn format(&self) -> &'static str;
    /// All tensors, in file order.
    fn entries(&self) -> &[TensorEntry];
    /// The data of entry `index`, little endian, row major, `entries()[index].bytes` long.
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError>;
    /// The index of the entry with this name.
    fn find(&self, name: &str) -> Option<usize> {
        self.entries().iter().position(|e| e.name == name)
    }
}
