//! How is a state dict written so that `paddle.load` reads it? Protocol 4, the globals that NumPy 1 and 2 both
//! have, nothing else.
//!
//! A flat dict as `paddle.save(layer.state_dict())` makes it; with `nested` keys, tensors are `(name, array)`
//! tuples as Paddle writes them for an optimizer with master weights (FORMATS: the presence of a nested dict
//! switches the whole file).

use super::super::error::CkptError;
use super::super::limits::{MAX_ENTRIES, MAX_NAME, MAX_RANK};
use super::super::write::AtomicFile;
use super::super::{Plain, TensorData, no_such_type};
use super::STRUCTURED;
use crate::ir::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a state dict holds besides its tensors.
#[derive(Clone, Debug, Default)]
pub struct PickleOptions {
    /// layer name to parameter name: Paddle's `StructuredToParameterName@@`; a key without a row has its own name
    pub structured: Vec<(String, String)>,
    /// values that are no tensors, by dotted name; a first part before a dot becomes a dict
    /// (`LR_Scheduler.last_epoch`)
    pub plain: Vec<(String, Plain)>,
    /// keys that begin with `master_weights.` go into a dict of that name, as in a `.pdopt`
    pub nest_masters: bool,
}

/// The key of the nested dict of masters.
const MASTERS: &str = "master_weights";

/// Writes tensors as a pickle that `paddle.load` reads, in their order. bfloat16 is stored as uint16, as Paddle
/// does. Errors: a repeated or empty name, LoD, a type NumPy does not have.
pub fn write_pickle<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = TensorData<'a>>,
    options: &PickleOptions,
) -> Result<(), CkptError> {
    let mut file = AtomicFile::create(path)?;
    let mut out = Pickler::default();
    let (mut count, mut masters, mut order) = (0usize, Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    out.bytes.extend([0x80, 4, b'}', b'(']);
    let nested = options.nest_masters;
    let mut check = |t: &TensorData<'_>| {
        count += 1;
        if count > MAX_ENTRIES || t.shape.len() > MAX_RANK {
            let what = format!("more than {MAX_ENTRIES} tensors or {MAX_RANK} dimensions");
            return Err(CkptError::unsupported(path, what));
        }
        match &t.name[..] {
            "" => Err(CkptError::bad_name("", "is empty")),
            long if long.len() > MAX_NAME => Err(CkptError::bad_name(long, "is too long")),
            name if !names.insert(name.to_owned()) => {
                Err(CkptError::bad_name(name, "is given to two tensors of one file"))
            }
            _ => t.checked_len(path),
        }
    };
    for t in tensors {
        check(&t)?;
        match t.name.strip_prefix("master_weights.").filter(|_| nested) {
            // Kept until the dict of masters is written, which comes last. They are borrowed or shared, usually.
            Some(_) => masters.push(t),
            None => {
                order.push(t.name.to_string());
                out.text(&t.name);
                out.tensor(&mut file, path, &t, nested.then_some(&t.name[..]))?;
            }
        }
    }
    if !masters.is_empty() {
        out.text(MASTERS);
        out.bytes.extend([b'}', b'(']);
        for t in masters {
            let param = &t.name[MASTERS.len() + 1..];
            out.text(param);
            out.tensor(&mut file, path, &t, Some(&format!("{param}_fp32_master_0")))?;
        }
        out.bytes.push(b'u');
    }
    out.plain(path, &options.plain)?;
    if !nested {
        // Paddle makes tensors of what the table names, and leaves the rest NumPy arrays.
        let named: BTreeMap<&str, &str> = options.structured.iter().map(|(l, p)| (&l[..], &p[..])).collect();
        out.text(STRUCTURED);
        out.bytes.extend([b'}', b'(']);
        for name in &order {
            out.text(name);
            out.text(named.get(&name[..]).unwrap_or(&&name[..]));
        }
        out.bytes.push(b'u');
    }
    out.bytes.extend(b"u.");
    out.flush(&mut file)?;
    file.commit()
}

/// Bytes under way, and what the memo of the reader holds.
#[derive(Default)]
pub(in super::super) struct Pickler {
    pub bytes: Vec<u8>,
    memo: BTreeMap<&'static str, u32>,
}

impl Pickler {
    pub fn flush(&mut self, file: &mut AtomicFile) -> Result<(), CkptError> {
        file.write(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    pub fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(len) => self.bytes.extend([0x8c, len]),
            Err(_) => {
                self.bytes.push(b'X');
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
    }

    pub fn int(&mut self, n: i64) {
        match n {
            0..=255 => self.bytes.extend([b'K', n as u8]),
            _ if i32::try_from(n).is_ok() => {
                self.bytes.push(b'J');
                self.bytes.extend((n as i32).to_le_bytes());
            }
            _ => {
                self.bytes.extend([0x8a, 8]);
                self.bytes.extend(n.to_le_bytes());
            }
        }
    }

    /// What `make` writes, the first time; from the memo afterwards.
    fn once(&mut self, key: &'static str, make: impl FnOnce(&mut Self)) {
        match self.memo.get(key) {
            Some(&index) => {
                self.bytes.push(b'j');
                self.bytes.extend(index.to_le_bytes());
            }
            None => {
                make(self);
                self.bytes.push(0x94);
                self.memo.insert(key, self.memo.len() as u32);
            }
        }
    }

    pub fn global(&mut self, key: &'static str, module: &str, name: &str) {
        self.once(key, |p| {
            p.bytes.push(b'c');
            p.bytes.extend(format!("{module}\n{name}\n").bytes());
        });
    }

    /// An array, inside `tuple((name, array))` when it has a name.
    fn tensor(
        &mut self,
        file: &mut AtomicFile,
        path: &Path,
        t: &TensorData<'_>,
        name: Option<&str>,
    ) -> Result<(), CkptError> {
        let code = code_of(t.dtype).ok_or_else(|| no_such_type(path, &t.name, t.dtype))?;
        if !t.lod.is_empty() {
            let what = format!("tensor `{}` has LoD, which a state dict cannot hold", t.name.escape_debug());
            return Err(CkptError::unsupported(path, what));
        }
        if let Some(name) = name {
            self.global("tuple", "builtins", "tuple");
            self.text(name);
        }
        // NumPy 1 and 2 both resolve this path.
        self.global("reconstruct", "numpy.core.multiarray", "_reconstruct");
        self.global("ndarray", "numpy", "ndarray");
        self.bytes.extend([b'K', 0, 0x85, b'C', 1, b'b', 0x87, b'R', b'(', b'K', 1, b'(']);
        t.shape.iter().for_each(|&d| self.int(d as i64));
        self.bytes.push(b't');
        self.once(code, |p| {
            p.global("dtype", "numpy", "dtype");
            p.text(code);
            p.bytes.extend([0x89, 0x88, 0x87, b'R', b'(', b'K', 3]);
            p.text(if code.ends_with('1') { "|" } else { "<" });
            p.bytes.extend(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb");
        });
        self.bytes.push(0x89);
        match u32::try_from(t.data.len()) {
            Ok(len) => {
                self.bytes.push(b'B');
                self.bytes.extend(len.to_le_bytes());
            }
            Err(_) => {
                self.bytes.push(0x8e);
                self.bytes.extend((t.data.len() as u64).to_le_bytes());
            }
        }
        self.flush(file)?;
        file.write(&t.data)?;
        self.bytes.extend(b"tb");
        if name.is_some() {
            self.bytes.extend([0x86, 0x85, b'R']);
        }
        Ok(())
    }

    fn plain(&mut self, path: &Path, values: &[(String, Plain)]) -> Result<(), CkptError> {
        type Rows<'v> = Vec<(&'v str, &'v Plain)>;
        let mut groups: Vec<(Option<&str>, Rows<'_>)> = Vec::new();
        for (name, value) in values {
            let (group, key) = match name.split_once('.') {
                Some((group, key)) => (Some(group), key),
                None => (None, &name[..]),
            };
            match groups.iter_mut().find(|(g, _)| *g == group) {
                Some((_, rows)) => rows.push((key, value)),
                None => groups.push((group, vec![(key, value)])),
            }
        }
        for (group, rows) in groups {
            if let Some(group) = group {
                self.text(group);
                self.bytes.extend([b'}', b'(']);
            }
            for (key, value) in rows {
                self.text(key);
                match value {
                    Plain::None => self.bytes.push(b'N'),
                    Plain::Bool(x) => self.bytes.push(if *x { 0x88 } else { 0x89 }),
                    Plain::Int(x) => self.int(*x),
                    Plain::Float(x) => {
                        self.bytes.push(b'G');
                        self.bytes.extend(x.to_be_bytes());
                    }
                    Plain::Text(x) => self.text(x),
                    Plain::Bytes(_) => return Err(CkptError::unsupported(path, format!("`{key}` holds bytes"))),
                }
            }
            if group.is_some() {
                self.bytes.push(b'u');
            }
        }
        Ok(())
    }
}

/// NumPy's name of an element type, as Paddle uses it.
fn code_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "b1",
        DType::I8 => "i1",
        DType::U8 => "u1",
        DType::I16 => "i2",
        DType::BF16 => "u2",
        DType::I32 => "i4",
        DType::I64 => "i8",
        DType::F16 => "f2",
        DType::F32 => "f4",
        DType::F64 => "f8",
        DType::C64 => "c8",
        DType::C128 => "c16",
        DType::Other(_) => return None,
    })
}
