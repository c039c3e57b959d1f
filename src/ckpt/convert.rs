//! How does a checkpoint of any format become files that Paddle's `load` reads? One tensor stream
//! per variable, in blocks, so that memory stays small however large the checkpoint is.

use super::error::CkptError;
use super::limits::{BLOCK, MAX_NAME};
use super::stream::{check_writable, header};
use super::write::{AtomicFile, ordinary_permissions, parent, sync_dir};
use super::{Checkpoint, entry_at};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes entries of a checkpoint into `dir`, one tensor stream file each. `items` pairs an entry's
/// index with its target name; a `/` in a name makes a directory. `progress` is told the bytes of
/// data after each block.
///
/// When `dir` does not exist, it appears whole by one rename, or not at all. When it exists, each
/// file is replaced by a rename of its own and other files are left alone.
///
/// Names, types and indices are checked before anything is written: a name with `.`, `..` or an
/// empty part, or with a backslash, colon or NUL, is refused ([`CkptError::BadName`]), and so are
/// two tensors for one file and a directory below `dir` that is a link.
pub fn convert_to_streams(
    ckpt: &dyn Checkpoint,
    items: &[(usize, &str)],
    dir: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), CkptError> {
    check_items(ckpt, items)?;
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |e| CkptError::io(&path, e)
    };
    if fs::exists(dir).map_err(io(dir))? {
        return write_entries(ckpt, items, dir, progress);
    }
    let beside = parent(dir);
    fs::create_dir_all(beside).map_err(io(beside))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".params.");
    ordinary_permissions(&mut builder, 0o777);
    let temp = builder.tempdir_in(beside).map_err(io(beside))?;
    write_entries(ckpt, items, temp.path(), progress)?;
    fs::rename(temp.path(), dir).map_err(io(dir))?;
    // It has moved: there is nothing left to remove.
    let _ = temp.keep();
    sync_dir(beside)
}

fn write_entries(
    ckpt: &dyn Checkpoint,
    items: &[(usize, &str)],
    dir: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), CkptError> {
    let mut directories = BTreeSet::from([dir.to_path_buf()]);
    for &(index, name) in items {
        make_directories(dir, name, &mut directories)?;
        write_entry(ckpt, index, &dir.join(name), progress)?;
    }
    directories.iter().try_for_each(|d| sync_dir(d))
}

fn check_items(ckpt: &dyn Checkpoint, items: &[(usize, &str)]) -> Result<(), CkptError> {
    let mut files = BTreeSet::new();
    for &(index, name) in items {
        let entry = entry_at(ckpt.path(), ckpt.entries(), index)?;
        check_name(name)?;
        if !files.insert(name) {
            return Err(CkptError::bad_name(name, "is given to two tensors of one directory"));
        }
        if entry.dtype.size().is_none() {
            let (name, dtype) = (entry.name.escape_debug(), ckpt.dtype_name(index));
            let what = format!("tensor `{name}` has element type {dtype}, which a tensor stream cannot hold");
            return Err(CkptError::unsupported(ckpt.path(), what));
        }
    }
    for name in &files {
        if name.match_indices('/').any(|(at, _)| files.contains(&name[..at])) {
            return Err(CkptError::bad_name(name, "needs a directory where another tensor needs a file"));
        }
    }
    Ok(())
}

/// That the name, joined to a directory, stays below it, on every system.
fn check_name(name: &str) -> Result<(), CkptError> {
    if name.len() > MAX_NAME {
        return Err(CkptError::bad_name(name, "is too long"));
    }
    // A directory that has such a file is taken for a distributed checkpoint.
    if name.strip_suffix(".metadata").is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())) {
        return Err(CkptError::bad_name(name, "is the name of a distributed checkpoint's metadata"));
    }
    if name.contains(['\0', '\\', ':']) {
        return Err(CkptError::bad_name(name, "has a NUL, a backslash or a colon, which is no file name everywhere"));
    }
    for part in name.split('/') {
        match part {
            "" => return Err(CkptError::bad_name(name, "has an empty part")),
            "." | ".." => return Err(CkptError::bad_name(name, "would leave the directory")),
            part if part.len() > 255 => {
                return Err(CkptError::bad_name(name, "has a part that is too long for a file"));
            }
            part if part.starts_with('.') => {
                return Err(CkptError::bad_name(name, "has a part that begins with a dot: readers skip hidden files"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The directories between `root` and the file, added to `used`; none of them may be a link.
fn make_directories(root: &Path, name: &str, used: &mut BTreeSet<PathBuf>) -> Result<(), CkptError> {
    for (at, _) in name.match_indices('/') {
        let path = root.join(&name[..at]);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(CkptError::bad_name(name, "needs a directory where there is a file or a link")),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                fs::create_dir(&path).map_err(|e| CkptError::io(&path, e))?;
            }
            Err(e) => return Err(CkptError::io(&path, e)),
        }
        used.insert(path);
    }
    Ok(())
}

fn write_entry(
    ckpt: &dyn Checkpoint,
    index: usize,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), CkptError> {
    let entry = &ckpt.entries()[index];
    let lod = ckpt.lod(index)?;
    check_writable(path, &entry.name, entry.dtype, &entry.shape, &lod)?;
    let mut file = AtomicFile::create(path)?;
    file.write(&header(entry.dtype, &entry.shape, &lod))?;
    let mut buffer = vec![0; BLOCK.min(usize::try_from(entry.bytes).unwrap_or(BLOCK))];
    let mut at = 0;
    while at < entry.bytes {
        let count = buffer.len().min((entry.bytes - at) as usize);
        ckpt.read_into(index, at, &mut buffer[..count])?;
        file.write(&buffer[..count])?;
        at += count as u64;
        progress(count as u64);
    }
    file.persist()
}
