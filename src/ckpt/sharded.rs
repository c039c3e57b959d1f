//! safetensors in several files: an index JSON that says which file holds which tensor.
//!
//! `{"metadata": {…}, "weight_map": {name: file}}`, as the usual libraries write beside the files. Recognised by
//! content, or in a directory that has one `*.safetensors.index.json`.

use super::dist::check_file_name;
use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_ENTRIES, MAX_HEADER};
use super::map::{Access, Source};
use super::safetensors::SafetensorsFile;
use super::{Checkpoint, Skipped, TensorEntry, entry_at};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// How an index file's name ends.
pub(super) const INDEX: &str = ".safetensors.index.json";

/// Several safetensors files, opened by their index.
pub struct SafetensorsIndex {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    entries: Vec<TensorEntry>,
    /// file and entry of each
    places: Vec<(usize, usize)>,
    index: NameIndex,
    skipped: Vec<Skipped>,
}

impl SafetensorsIndex {
    /// Opens an index and the header of every file it names.
    pub fn open(path: &Path, access: Access) -> Result<SafetensorsIndex, CkptError> {
        let source = Source::open(path, Access::Read)?;
        if source.len() > MAX_HEADER {
            return Err(CkptError::malformed(path, 0, format!("an index of more than {MAX_HEADER} bytes")));
        }
        let bytes = source.bytes(0, source.len(), "the index")?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|e| CkptError::malformed(path, 0, e.to_string()))?;
        let dir = super::write::parent(path);
        let (mut files, mut names): (Vec<SafetensorsFile>, BTreeMap<&str, usize>) = Default::default();
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        for (name, file) in &index.weight_map.0 {
            let at = match names.get(&file[..]) {
                Some(&at) => at,
                None => {
                    check_file_name(path, file)?;
                    if !dir.join(file).is_file() {
                        let what = format!("lists `{}`, which is not there", file.escape_debug());
                        return Err(CkptError::unsupported(path, what));
                    }
                    files.push(SafetensorsFile::open(&dir.join(file), access)?);
                    names.insert(file, files.len() - 1);
                    files.len() - 1
                }
            };
            let entry = files[at].find(name).ok_or_else(|| {
                CkptError::malformed(path, 0, format!("`{}` is not in {}", name.escape_debug(), file.escape_debug()))
            })?;
            entries.push(files[at].entries()[entry].clone());
            places.push((at, entry));
        }
        let index = NameIndex::unique(&entries).map_err(|i| {
            CkptError::malformed(path, 0, format!("`{}` is listed twice", entries[i].name.escape_debug()))
        })?;
        let mut skipped = Vec::new();
        for file in &files {
            for e in file.entries().iter().filter(|e| index.find(&entries, &e.name).is_none()) {
                let file = file.path().file_name().unwrap_or_default().to_string_lossy();
                skipped.push(Skipped { name: format!("{file}: {}", e.name), why: "is not in the index".to_owned() });
            }
        }
        Ok(SafetensorsIndex { path: path.to_path_buf(), files, entries, places, index, skipped })
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: Rows,
}

/// Names and files in order; a name that is there twice is an error.
struct Rows(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowsVisitor;
        impl<'de> Visitor<'de> for RowsVisitor {
            type Value = Rows;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor and file names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rows, A::Error> {
                let mut rows = Vec::new();
                while let Some(row) = map.next_entry()? {
                    if rows.len() == MAX_ENTRIES {
                        map.next_value::<IgnoredAny>().ok();
                        return Err(A::Error::custom(format_args!("more than {MAX_ENTRIES} tensors")));
                    }
                    rows.push(row);
                }
                Ok(Rows(rows))
            }
        }
        deserializer.deserialize_map(RowsVisitor)
    }
}

impl Checkpoint for SafetensorsIndex {
    fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> &'static str {
        "safetensors-index"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        entry_at(&self.path, &self.entries, index)?;
        let (file, entry) = self.places[index];
        self.files[file].read(entry)
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        entry_at(&self.path, &self.entries, index)?;
        let (file, entry) = self.places[index];
        self.files[file].read_into(entry, offset, buffer)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn dtype_name(&self, index: usize) -> Cow<'static, str> {
        let (file, entry) = self.places[index];
        self.files[file].dtype_name(entry)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}
