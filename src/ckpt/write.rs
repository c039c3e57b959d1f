//! How does a file appear whole or not at all? Written beside its target, flushed to the disk, renamed.

use super::error::CkptError;
use super::limits::BLOCK;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file under way. Dropped before [`AtomicFile::commit`], it disappears and the target stays as
/// it was. A process that is killed leaves a hidden file beside the target (readers of directories
/// skip those), never a part of the target.
pub(crate) struct AtomicFile {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl AtomicFile {
    pub(crate) fn create(path: &Path) -> Result<AtomicFile, CkptError> {
        // The rename would put a file in the place of a pipe, a device, or a link to an open file
        // (`/dev/stdout`).
        let is_link = || std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
        let special = std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
        if special || (path.starts_with("/dev") || path.starts_with("/proc")) && is_link() {
            return Err(CkptError::unsupported(path, "is not a regular file, which a checkpoint must be"));
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(path.file_name().ok_or_else(|| CkptError::unsupported(path, "is not the name of a file"))?);
        // A name near the system's limit leaves no room for the prefix.
        let prefix = if prefix.len() > 200 { ".part".into() } else { prefix };
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        ordinary_permissions(&mut builder, 0o666);
        let file = builder.tempfile_in(parent(path)).map_err(|e| CkptError::io(path, e))?;
        Ok(AtomicFile { out: BufWriter::with_capacity(BLOCK, file), path: path.to_path_buf() })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CkptError> {
        self.out.write_all(bytes).map_err(|e| CkptError::io(&self.path, e))
    }

    /// Makes the data durable and puts the file in its place. The rename itself is durable once the
    /// directory is ([`sync_dir`]).
    pub(crate) fn persist(self) -> Result<(), CkptError> {
        let AtomicFile { out, path } = self;
        let io = |e| CkptError::io(&path, e);
        let file = out.into_inner().map_err(|e| io(e.into_error()))?;
        file.as_file().sync_all().map_err(io)?;
        file.persist(&path).map_err(|e| io(e.error))?;
        Ok(())
    }

    /// [`AtomicFile::persist`], durable at the end.
    pub(crate) fn commit(self) -> Result<(), CkptError> {
        let path = self.path.clone();
        self.persist()?;
        sync_dir(parent(&path))
    }
}

/// The directory of a path, `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Temporary files are private by default; what is renamed into place must be as any new file is.
pub(crate) fn ordinary_permissions(builder: &mut tempfile::Builder<'_, '_>, mode: u32) {
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = (builder, mode);
}

/// Makes a rename in the directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), CkptError> {
    #[cfg(unix)]
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| CkptError::io(dir, e))?;
    #[cfg(not(unix))]
    let _ = (dir, File::open);
    Ok(())
}
