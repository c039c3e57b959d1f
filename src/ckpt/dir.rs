//! A directory of tensor streams: one file per variable, as `save_vars` without a file name leaves it.
//!
//! The name of a tensor is the path of its file below the directory, with `/`. What is no tensor is
//! listed in [`Checkpoint::skipped`]; a file that begins like a tensor and is broken is an error.
//! Only the heads of the files are read when the directory is opened.

use super::detect::{Content, content, describe};
use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_DEPTH, MAX_ENTRIES, MAX_FILES, MAX_NAME};
use super::map::{Access, Source};
use super::stream::{Place, check_part, read_lod, read_one};
use super::{Checkpoint, Skipped, TensorEntry, entry_at};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Files below this are read instead of mapped: a map costs at least a page and a system call or
/// two, and their number is limited.
const SMALL: u64 = 64 << 10;

/// The entry that was read last, and its open file.
type LastRead = (usize, Arc<(Source, Place)>);

/// An open directory of tensor streams.
pub struct StreamDir {
    path: PathBuf,
    access: Access,
    entries: Vec<TensorEntry>,
    /// maps of large files, made when first read
    maps: Vec<OnceLock<(Source, Place)>>,
    /// the file that `read_into` read last: the blocks of one tensor come from one open file, even
    /// when its name is given to another one meanwhile
    last: Mutex<Option<LastRead>>,
    index: NameIndex,
    skipped: Vec<Skipped>,
}

impl StreamDir {
    /// Opens a directory. Without a single tensor in it, it is of no known format.
    pub fn open(path: &Path, access: Access) -> Result<StreamDir, CkptError> {
        let mut found = Walk { root: path, entries: Vec::new(), skipped: Vec::new(), seen: 0 };
        // A list of what is still to visit, not recursion: the depth is the directory's choice.
        let mut pending = vec![(String::new(), 0)];
        while let Some((below, depth)) = pending.pop() {
            found.directory(&below, depth, &mut pending)?;
        }
        let Walk { mut entries, mut skipped, .. } = found;
        if entries.is_empty() {
            return Err(CkptError::UnknownFormat { path: path.into(), known: super::KNOWN_FORMATS });
        }
        // The system lists files in any order.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        skipped.sort_by(|a, b| a.name.cmp(&b.name));
        let index = NameIndex::first_of(&entries);
        let maps = entries.iter().map(|_| OnceLock::new()).collect();
        Ok(StreamDir { path: path.to_path_buf(), access, entries, maps, last: Mutex::new(None), index, skipped })
    }

    /// Opens the file of an entry again and checks that it still is what the manifest says.
    fn source(&self, entry: &TensorEntry, access: Access) -> Result<(Source, Place), CkptError> {
        let source = Source::open(&self.path.join(&entry.name), access)?;
        let (now, place) = read_one(&source, 0)?;
        if (now.dtype, &now.shape) != (entry.dtype, &entry.shape) || place.data_at + now.bytes != source.len() {
            return Err(CkptError::malformed(source.path(), 0, "changed since the checkpoint was opened"));
        }
        Ok((source, place))
    }
}

struct Walk<'a> {
    root: &'a Path,
    entries: Vec<TensorEntry>,
    skipped: Vec<Skipped>,
    seen: usize,
}

impl Walk<'_> {
    fn skip(&mut self, name: &str, why: impl Into<String>) {
        self.skipped.push(Skipped { name: name.to_owned(), why: why.into() });
    }

    fn directory(&mut self, below: &str, depth: usize, pending: &mut Vec<(String, usize)>) -> Result<(), CkptError> {
        let path = self.root.join(below);
        for item in fs::read_dir(&path).map_err(|e| CkptError::io(&path, e))? {
            let item = item.map_err(|e| CkptError::io(&path, e))?;
            self.seen += 1;
            if self.seen > MAX_FILES || self.entries.len() > MAX_ENTRIES {
                let what = format!("more than {MAX_FILES} files or {MAX_ENTRIES} tensors");
                return Err(CkptError::unsupported(self.root, what));
            }
            let file = item.file_name();
            let join = |file: &str| if below.is_empty() { file.to_owned() } else { format!("{below}/{file}") };
            let Some(file) = file.to_str() else {
                self.skip(&join(&file.to_string_lossy()), "the file name is not UTF-8");
                continue;
            };
            let name = join(file);
            // A link counts as what it leads to, but links to directories are not followed: they can lead back.
            let kind = item.file_type().map_err(|e| CkptError::io(&item.path(), e))?;
            if file.starts_with('.') {
                self.skip(&name, "is hidden");
            } else if name.len() > MAX_NAME {
                self.skip(&name, "the name is too long");
            } else if kind.is_dir() && depth + 1 >= MAX_DEPTH {
                self.skip(&name, format!("more than {MAX_DEPTH} directories deep"));
            } else if kind.is_dir() {
                pending.push((name, depth + 1));
            } else {
                self.file(name, &item.path())?;
            }
        }
        Ok(())
    }

    fn file(&mut self, name: String, path: &Path) -> Result<(), CkptError> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => self.skip(&name, "a link to a directory"),
            Ok(meta) if !meta.is_file() => self.skip(&name, "is not a regular file"),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.skip(&name, "a link that leads nowhere"),
            Err(e) => return Err(CkptError::io(path, e)),
            Ok(_) => {
                let source = Source::open(path, Access::Read)?;
                let content = content(&source)?;
                if content != Content::Stream {
                    self.skip(&name, describe(content));
                    return Ok(());
                }
                let (entry, place) = read_one(&source, 0)?;
                if place.data_at + entry.bytes == source.len() {
                    self.entries.push(TensorEntry { name, ..entry });
                } else {
                    // Either several tensors, which have no names here, or something is behind the first.
                    read_one(&source, place.data_at + entry.bytes)?;
                    self.skip(&name, "holds several tensors without names");
                }
            }
        }
        Ok(())
    }
}

impl Checkpoint for StreamDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> &'static str {
        "tensor-stream-dir"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(&self.path, &self.entries, index)?;
        let small = entry.bytes < SMALL || self.access == Access::Read;
        if small && self.maps[index].get().is_none() {
            let (source, place) = self.source(entry, Access::Read)?;
            return Ok(Cow::Owned(source.bytes(place.data_at, entry.bytes, "the data")?.into_owned()));
        }
        // Two threads may open the file at once; one of the two is kept.
        let (source, place) = match self.maps[index].get() {
            Some(open) => open,
            None => {
                let open = self.source(entry, Access::Map)?;
                self.maps[index].get_or_init(|| open)
            }
        };
        source.bytes(place.data_at, entry.bytes, "the data")
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(&self.path, &self.entries, index)?;
        check_part(entry, offset, buffer)?;
        // What the lock guards is replaced whole, so that a panic elsewhere cannot leave it half done.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let file = match last {
            Some((i, file)) if i == index && offset != 0 => file,
            _ => {
                let file = Arc::new(self.source(entry, Access::Read)?);
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, file.clone()));
                file
            }
        };
        file.0.read_into(file.1.data_at + offset, buffer)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn lod(&self, index: usize) -> Result<Vec<Vec<u64>>, CkptError> {
        let (source, place) = self.source(entry_at(&self.path, &self.entries, index)?, Access::Read)?;
        read_lod(&source, &place)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}
