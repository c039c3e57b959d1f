//! What can go wrong with a checkpoint? Typed errors, each with its file.

use std::path::{Path, PathBuf};

/// The formats that [`open`](super::open) recognises.
pub const KNOWN_FORMATS: &str = "safetensors (one file or an index), paddle.save pickle, Paddle distributed checkpoint, Paddle tensor stream, \
     NumPy archive (npz), directory of Paddle tensor streams";

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
    /// a combined file was opened with a list of names of another length
    #[error("{path}: {names} names were given for {tensors} tensors")]
    NameCount {
        /// the file
        path: PathBuf,
        /// names given
        names: usize,
        /// tensors in the file
        tensors: usize,
    },
    /// a tensor name that cannot be used
    #[error("tensor name `{}`: {why}", name.escape_debug())]
    BadName {
        /// the name
        name: String,
        /// what is wrong with it
        why: &'static str,
    },
    /// the data handed to a writer, or by a reader, is not as long as its shape says
    #[error("tensor `{}`: the shape needs {expected} bytes, the data has {found}", name.escape_debug())]
    WrongLength {
        /// the tensor
        name: String,
        /// bytes that the shape and the element type need
        expected: u64,
        /// bytes there are
        found: u64,
    },
    /// an entry was asked for that is not there
    #[error("{path}: there is no entry {index}, the checkpoint has {len}")]
    NoEntry {
        /// the file
        path: PathBuf,
        /// the index asked for
        index: usize,
        /// how many entries there are
        len: usize,
    },
}

impl CkptError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> CkptError {
        CkptError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn malformed(path: &Path, at: u64, what: impl Into<String>) -> CkptError {
        CkptError::Malformed { path: path.to_path_buf(), at, what: what.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> CkptError {
        CkptError::Unsupported { path: path.to_path_buf(), what: what.into() }
    }

    pub(crate) fn bad_name(name: &str, why: &'static str) -> CkptError {
        CkptError::BadName { name: name.to_owned(), why }
    }
}
