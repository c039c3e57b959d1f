//! `paddle.save`: pickles of NumPy arrays (`.pdparams`, `.pdopt`, `.distcp`).
//!
//! `machine.rs` runs the opcodes against an allow-list and makes `heap.rs`; here the tensors in it get names.
//! A tensor inside dicts, lists and tuples is named by the way to it, joined with dots:
//! `{"master_weights": {"linear_0.w_0": …}}` gives `master_weights.linear_0.w_0`, as Paddle's own flattening
//! does. What the file calls it besides (the name of an eager tensor, the parameter's name in
//! `StructuredToParameterName@@`) is its [`alias`](Checkpoint::alias). Values that are no tensors
//! (`LR_Scheduler`) are [`plain`](Checkpoint::plain).
//!
//! Opening reads what lies between the arrays. Protocol 2 stores bytes as the UTF-8 of latin-1 text; they are
//! decoded when they are read, and its length is known for certain only then.

pub(super) mod heap;
mod latin1;
pub(super) mod machine;
mod reader;
mod write;

pub(super) use write::Pickler;
pub use write::{PickleOptions, write_pickle};

use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_ENTRIES, MAX_NAME, MAX_PICKLE_DEPTH, MAX_PICKLE_TEXT, MAX_PICKLE_VALUES};
use super::map::{Access, Source};
use super::stream::check_part;
use super::{Checkpoint, Plain, TensorEntry, entry_at};
use heap::{Built, Heap, Span, Value};
use machine::{Unpickled, unpickle};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The table of layer names and parameter names that `paddle.save` puts into a state dict.
const STRUCTURED: &str = "StructuredToParameterName@@";
/// The table of arrays that protocols 2 and 3 cut into slices.
const SLICES: &str = "UnpackBigParamInfor@@";

/// An open file of `paddle.save`.
pub struct PickleFile {
    source: Source,
    entries: Vec<TensorEntry>,
    /// where the data of each entry is: usually one part
    places: Vec<Vec<Part>>,
    names: Vec<&'static str>,
    aliases: Vec<Option<String>>,
    plain: Vec<(String, Plain)>,
    index: NameIndex,
    cursor: Mutex<latin1::Cursor>,
}

/// Consecutive bytes of an entry.
#[derive(Clone, Copy)]
struct Part {
    span: Span,
    /// bytes once decoded
    bytes: u64,
}

impl PickleFile {
    /// Opens a file; errors when it holds no state dict but, for instance, a distributed checkpoint's metadata.
    pub fn open(path: &Path, access: Access) -> Result<PickleFile, CkptError> {
        let source = Source::open(path, access)?;
        let Unpickled { heap, root } = unpickle(&source)?;
        PickleFile::of(source, &heap, root)
    }

    pub(super) fn of(source: Source, heap: &Heap, root: Value) -> Result<PickleFile, CkptError> {
        let mut found = Found { heap, path: source.path(), rows: Vec::new(), plain: Vec::new(), seen: 0, text: 0 };
        let mut name = String::new();
        found.walk(&mut name, root, 0)?;
        if let [only] = &mut found.rows[..]
            && only.name.is_empty()
        {
            only.name = match &only.alias {
                Some(alias) => alias.clone(),
                None => source.path().file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned(),
            };
        }
        if heap.dict(root).is_some() {
            found.join_slices(root)?;
            found.structured_names(root)?;
        }
        let Found { rows, plain, .. } = found;
        let (mut entries, mut places, mut names, mut aliases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for Row { name, built, shape, parts, alias } in rows {
            let bytes = parts.iter().map(|p| p.bytes).sum();
            entries.push(TensorEntry { name, dtype: built.element.dtype, shape, bytes });
            names.push(built.element.name);
            places.push(parts);
            aliases.push(alias);
        }
        let index = NameIndex::unique(&entries).map_err(|i| {
            let name = entries[i].name.escape_debug();
            CkptError::malformed(source.path(), 0, format!("two tensors are called `{name}`"))
        })?;
        Ok(PickleFile { source, entries, places, names, aliases, plain, index, cursor: Mutex::default() })
    }

    /// Where an entry's data lies when it is one run of raw bytes.
    fn raw(&self, index: usize) -> Option<u64> {
        match self.places[index][..] {
            [Part { span: Span { at, latin1: false, .. }, .. }] => Some(at),
            _ => None,
        }
    }
}

struct Row {
    name: String,
    built: Built,
    shape: Vec<u64>,
    parts: Vec<Part>,
    alias: Option<String>,
}

/// What the walk over a pickle's values has found.
struct Found<'h> {
    heap: &'h Heap,
    path: &'h Path,
    rows: Vec<Row>,
    plain: Vec<(String, Plain)>,
    seen: usize,
    /// bytes of all names
    text: usize,
}

impl Found<'_> {
    fn bad(&self, what: impl Into<String>) -> CkptError {
        CkptError::malformed(self.path, 0, what)
    }

    fn walk(&mut self, name: &mut String, value: Value, depth: usize) -> Result<(), CkptError> {
        self.seen += 1;
        self.text += name.len();
        if self.seen > MAX_PICKLE_VALUES || self.text > MAX_PICKLE_TEXT || self.rows.len() > MAX_ENTRIES {
            return Err(self.bad(format!("more values than {MAX_ENTRIES} tensors can need")));
        }
        if depth > MAX_PICKLE_DEPTH {
            return Err(self.bad(format!("containers more than {MAX_PICKLE_DEPTH} deep, or inside themselves")));
        }
        if let Some(items) = self.heap.sequence(value) {
            // An eager tensor: its name and its array.
            if let [text, Value::Array(id)] = *items
                && matches!(value, Value::Tuple { .. })
                && let Some(alias) = self.heap.str(text)
            {
                return self.tensor(name, id, Some(alias.to_owned()));
            }
            for (i, &item) in items.iter().enumerate() {
                self.below(name, &i.to_string(), item, depth)?;
            }
            return Ok(());
        }
        if let Some(rows) = self.heap.dict(value) {
            for &[key, item] in rows {
                match key {
                    _ if depth == 0 && matches!(self.heap.str(key), Some(STRUCTURED | SLICES)) => {}
                    Value::Int(n) => self.below(name, &n.to_string(), item, depth)?,
                    _ => match self.heap.str(key) {
                        Some(key) => self.below(name, key, item, depth)?,
                        None => return Err(self.bad("a key that is neither a name nor a number")),
                    },
                }
            }
            return Ok(());
        }
        let plain = match value {
            Value::Array(id) => return self.tensor(name, id, None),
            Value::None => Plain::None,
            Value::Bool(x) => Plain::Bool(x),
            Value::Int(x) => Plain::Int(x),
            Value::Float(x) => Plain::Float(x),
            Value::Text(id) => Plain::Text(self.heap.text(id).unwrap_or("(a long text)").to_owned()),
            Value::Bytes(id) => Plain::Bytes(self.heap.spans[id as usize].stored),
            Value::Record(_) => {
                let what = "is the metadata of a distributed checkpoint: open its directory";
                return Err(CkptError::unsupported(self.path, what));
            }
            _ => return Err(self.bad("a function or a type where a value must be")),
        };
        self.plain.push((name.clone(), plain));
        Ok(())
    }

    fn below(&mut self, name: &mut String, key: &str, value: Value, depth: usize) -> Result<(), CkptError> {
        let len = name.len();
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(key);
        if name.len() > MAX_NAME {
            return Err(self.bad("a name longer than any"));
        }
        self.walk(name, value, depth + 1)?;
        name.truncate(len);
        Ok(())
    }

    fn tensor(&mut self, name: &str, id: u32, alias: Option<String>) -> Result<(), CkptError> {
        let built = self.heap.arrays[id as usize].ok_or_else(|| self.bad("an array that was never built"))?;
        let (start, len) = built.shape;
        let shape = self.heap.dims(Value::Tuple { start, len }).expect("the machine has checked the dimensions");
        let parts = vec![Part { span: built.data, bytes: built.bytes }];
        self.rows.push(Row { name: name.to_owned(), built, shape, parts, alias });
        Ok(())
    }

    /// Puts arrays together that protocols 2 and 3 cut: `{name: {"OriginShape": …, "slices": [keys]}}`.
    fn join_slices(&mut self, root: Value) -> Result<(), CkptError> {
        let heap = self.heap;
        let Some(table) = heap.get(root, SLICES) else { return Ok(()) };
        let bad = |what: &str| CkptError::malformed(self.path, 0, format!("the table of slices: {what}"));
        let mut by_name: BTreeMap<String, Row> =
            std::mem::take(&mut self.rows).into_iter().map(|r| (r.name.clone(), r)).collect();
        // The first of a name stays first in order; what is joined comes after what was not cut.
        let mut joined = Vec::new();
        for &[key, info] in heap.dict(table).ok_or_else(|| bad("is no dict"))? {
            let name = heap.str(key).ok_or_else(|| bad("a key that is no name"))?;
            let shape = heap.get(info, "OriginShape").and_then(|s| heap.dims(s)).ok_or_else(|| bad("no shape"))?;
            let slices = heap.get(info, "slices").and_then(|s| heap.sequence(s)).ok_or_else(|| bad("no slices"))?;
            let mut whole: Option<Row> = None;
            for &slice in slices {
                let row = heap.str(slice).and_then(|s| by_name.remove(s)).ok_or_else(|| bad("a slice is missing"))?;
                match &mut whole {
                    None => whole = Some(Row { name: name.to_owned(), shape: shape.clone(), ..row }),
                    Some(w) if w.built.element == row.built.element => w.parts.extend(row.parts),
                    Some(_) => return Err(bad("slices of several types")),
                }
            }
            let whole = whole.ok_or_else(|| bad("a tensor without slices"))?;
            let bytes: u64 = whole.parts.iter().map(|p| p.bytes).sum();
            if super::byte_len(&shape, u64::from(whole.built.element.size) * 8) != Some(bytes) {
                return Err(bad("slices that do not make up the shape"));
            }
            joined.push(whole);
        }
        self.rows = by_name.into_values().chain(joined).collect();
        Ok(())
    }

    /// Takes `{layer name: parameter name}` as aliases.
    fn structured_names(&mut self, root: Value) -> Result<(), CkptError> {
        let heap = self.heap;
        let Some(table) = heap.get(root, STRUCTURED) else { return Ok(()) };
        let rows = heap.dict(table).ok_or_else(|| self.bad(format!("`{STRUCTURED}` is no dict")))?;
        let text = |v| heap.str(v).ok_or_else(|| self.bad(format!("`{STRUCTURED}` holds what is no name")));
        let mut names = BTreeMap::new();
        for &[key, value] in rows {
            names.insert(text(key)?, text(value)?);
        }
        for row in &mut self.rows {
            if let Some(&alias) = names.get(&row.name[..]).filter(|a| **a != row.name) {
                row.alias = Some(alias.to_owned());
            }
        }
        Ok(())
    }
}

impl Checkpoint for PickleFile {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> &'static str {
        "pickle"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        if let Some(at) = self.raw(index) {
            return self.source.bytes(at, entry.bytes, "the data");
        }
        let len = usize::try_from(entry.bytes)
            .map_err(|_| CkptError::unsupported(self.path(), "a tensor does not fit the address space"))?;
        let mut out = vec![0; len];
        self.read_into(index, 0, &mut out)?;
        // The last part must end where its text ends.
        for part in self.places[index].iter().filter(|p| p.span.latin1) {
            latin1::check_end(&self.source, part.span, part.bytes, &self.cursor)?;
        }
        Ok(Cow::Owned(out))
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        check_part(entry, offset, buffer)?;
        if let Some(at) = self.raw(index) {
            return self.source.read_into(at + offset, buffer);
        }
        let (mut rest, mut from) = (buffer, offset);
        for part in &self.places[index] {
            if from >= part.bytes {
                from -= part.bytes;
                continue;
            }
            let count = rest.len().min((part.bytes - from) as usize);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(count);
            match part.span {
                Span { at, latin1: false, .. } => self.source.read_into(at + from, head)?,
                span => latin1::read(&self.source, span, from, head, &self.cursor)?,
            }
            (rest, from) = (tail, 0);
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn alias(&self, index: usize) -> Option<&str> {
        self.aliases.get(index)?.as_deref()
    }

    fn plain(&self) -> &[(String, Plain)] {
        &self.plain
    }

    fn dtype_name(&self, index: usize) -> Cow<'static, str> {
        Cow::Borrowed(self.names[index])
    }
}

impl latin1::Cursor {
    /// The cursor, whatever happened to another thread: what the lock guards is replaced whole.
    fn lock(of: &Mutex<latin1::Cursor>) -> std::sync::MutexGuard<'_, latin1::Cursor> {
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
