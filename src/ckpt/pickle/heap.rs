//! What can a pickle make? Plain values, containers, NumPy arrays by their place in the file, and records of
//! a distributed checkpoint. Nothing else has a representation.
//!
//! A value is 16 bytes; containers live in pools and are named by index, so that a list may hold itself
//! without harm. What a pool holds is bounded by [`MAX_PICKLE_VALUES`].

use super::super::limits::{MAX_PICKLE_TEXT, MAX_PICKLE_VALUES};
use crate::ir::DType;

/// A value on the machine's stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) enum Value {
    /// where the items of a container begin
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// an index of [`Heap::texts`]
    Text(u32),
    /// an index of [`Heap::spans`]
    Bytes(u32),
    /// a range of [`Heap::items`]
    Tuple {
        start: u32,
        len: u32,
    },
    /// an index of `Heap::runs`
    List(u32),
    /// an index of `Heap::runs`
    Dict(u32),
    /// a callable of the allow-list, or a class
    Global(Global),
    /// an index of [`Heap::arrays`]
    Array(u32),
    /// an index of [`Heap::dtypes`]
    DType(u32),
    /// an index of [`Heap::records`]
    Record(u32),
}

/// Everything that a pickle may name. Each has a meaning of this crate's own; none is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Global {
    /// `numpy.core.multiarray._reconstruct`: makes an array that BUILD fills
    Reconstruct,
    /// `numpy.core.multiarray.scalar`: one element
    Scalar,
    /// `numpy.ndarray`
    NdArray,
    /// `numpy.dtype`
    DType,
    /// `_codecs.encode`, for latin-1: the bytes of protocol 2
    Encode,
    /// `tuple` of one argument: how Paddle reduces a tensor
    Tuple,
    /// `bytes` without argument
    Bytes,
    /// `eval`, which Paddle uses as `eval('data', {'data': x})` and nothing else
    Eval,
    /// `collections.OrderedDict`
    OrderedDict,
    /// a class of a distributed checkpoint's metadata
    Class(Class),
}

/// The records of a distributed checkpoint's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Class {
    Metadata,
    LocalTensorMetadata,
    LocalTensorIndex,
}

impl Global {
    /// The allow-list.
    pub fn find(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Global::Reconstruct,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Global::Scalar,
            ("numpy", "ndarray") => Global::NdArray,
            ("numpy", "dtype") => Global::DType,
            ("_codecs", "encode") => Global::Encode,
            ("builtins" | "__builtin__", "tuple") => Global::Tuple,
            ("builtins" | "__builtin__", "bytes") => Global::Bytes,
            ("builtins" | "__builtin__", "eval") => Global::Eval,
            ("collections", "OrderedDict") => Global::OrderedDict,
            (
                "paddle.distributed.checkpoint.metadata" | "paddle.distributed.flex_checkpoint.dcp.metadata",
                "Metadata" | "LocalTensorMetadata" | "LocalTensorIndex",
            ) => Global::Class(match name {
                "Metadata" => Class::Metadata,
                "LocalTensorMetadata" => Class::LocalTensorMetadata,
                _ => Class::LocalTensorIndex,
            }),
            _ => return None,
        })
    }
}

/// A text: its place in the file and, when it is short enough for a name, a copy.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Text {
    /// in the file
    pub at: u64,
    /// bytes
    pub len: u32,
    /// in [`Heap::text`], `u32::MAX` when it was not copied
    copy: u32,
}

/// Bytes in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Span {
    /// in the file
    pub at: u64,
    /// bytes there
    pub stored: u64,
    /// stored as the UTF-8 of latin-1 text: bytes from 0x80 on take two
    pub latin1: bool,
}

/// An element type of NumPy, little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Element {
    /// what it is to the rest of the crate
    pub dtype: DType,
    /// bytes
    pub size: u32,
    /// what the file calls it
    pub name: &'static str,
}

impl Element {
    /// The type of NumPy's short name. Paddle keeps bfloat16 as `u2`, and has no tensors of uint16.
    pub fn parse(text: &str) -> Option<Element> {
        let (dtype, name) = match text {
            "b1" => (DType::Bool, "bool"),
            "i1" => (DType::I8, "i8"),
            "u1" => (DType::U8, "u8"),
            "i2" => (DType::I16, "i16"),
            "u2" => (DType::BF16, "bf16 (as uint16)"),
            "i4" => (DType::I32, "i32"),
            "i8" => (DType::I64, "i64"),
            "f2" => (DType::F16, "f16"),
            "f4" => (DType::F32, "f32"),
            "f8" => (DType::F64, "f64"),
            "c8" => (DType::C64, "c64"),
            "c16" => (DType::C128, "c128"),
            // Paddle has no code for these: listed, readable, and no cell takes them.
            "u4" => (DType::Other(-1001), "uint32"),
            "u8" => (DType::Other(-1002), "uint64"),
            _ => return None,
        };
        let size = dtype.size().unwrap_or(if text == "u4" { 4 } else { 8 }) as u32;
        Some(Element { dtype, size, name })
    }
}

/// An array; `None` until BUILD.
pub(in super::super) type Array = Option<Built>;

/// What BUILD said of an array, checked.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Built {
    /// dimensions: integers, in [`Heap::items`]
    pub shape: (u32, u32),
    pub element: Element,
    /// bytes of the data
    pub bytes: u64,
    pub data: Span,
}

/// A run of the pool that can grow: a list, or a dict.
#[derive(Clone, Copy, Default)]
struct Run {
    start: u32,
    len: u32,
    /// items that are its own, from `start` on
    room: u32,
}

/// Everything a pickle has made.
#[derive(Default)]
pub(in super::super) struct Heap {
    text: String,
    pub texts: Vec<Text>,
    pub spans: Vec<Span>,
    pub items: Vec<Value>,
    /// lists, and dicts with keys and values in turn: runs of `items`
    runs: Vec<Run>,
    pub arrays: Vec<Array>,
    pub dtypes: Vec<Element>,
    /// class, and the dict of its fields once BUILD gave it
    pub records: Vec<(Class, Option<u32>)>,
    made: usize,
}

impl Heap {
    /// Counts values; the error says that there are too many.
    pub fn count(&mut self, n: usize) -> Result<(), String> {
        self.made = self.made.saturating_add(n);
        if self.made > MAX_PICKLE_VALUES {
            return Err(format!("more than {MAX_PICKLE_VALUES} values"));
        }
        Ok(())
    }

    /// Keeps a text that begins at `at` in the file; `copy` is its content when it is short.
    pub fn push_text(&mut self, at: u64, len: u32, copy: Option<&str>) -> Result<Value, String> {
        self.count(1)?;
        let copied = match copy {
            Some(text) => {
                if self.text.len() + text.len() > MAX_PICKLE_TEXT {
                    return Err(format!("more than {MAX_PICKLE_TEXT} bytes of text"));
                }
                self.text.push_str(text);
                (self.text.len() - text.len()) as u32
            }
            None => u32::MAX,
        };
        self.texts.push(Text { at, len, copy: copied });
        Ok(Value::Text(self.texts.len() as u32 - 1))
    }

    /// A text's content; `None` when it is too long for a name.
    pub fn text(&self, id: u32) -> Option<&str> {
        let Text { len, copy, .. } = self.texts[id as usize];
        (copy != u32::MAX).then(|| &self.text[copy as usize..copy as usize + len as usize])
    }

    /// The content of a value that is a short text.
    pub fn str(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(id) => self.text(id),
            _ => None,
        }
    }

    /// A new list or dict, by index.
    pub fn new_run(&mut self) -> u32 {
        self.runs.push(Run { start: self.items.len() as u32, ..Run::default() });
        self.runs.len() as u32 - 1
    }

    /// Appends values to a list or dict. A run that cannot grow where it is moves to the end of the pool, with
    /// room for as many again.
    pub fn extend_run(&mut self, run: u32, values: &[Value]) -> Result<(), String> {
        let Run { start, len, room } = self.runs[run as usize];
        let (at, wanted) = ((start + len) as usize, len as usize + values.len());
        if wanted <= room as usize {
            self.items[at..at + values.len()].copy_from_slice(values);
            self.runs[run as usize].len = wanted as u32;
            return self.count(values.len());
        }
        if (start + room) as usize == self.items.len() {
            let old = at.min(self.items.len());
            self.items.truncate(old);
            self.items.extend_from_slice(values);
            self.runs[run as usize] = Run { start, len: wanted as u32, room: wanted as u32 };
            return self.count(values.len());
        }
        let (old, room) = (start as usize..at, wanted.max(2 * len as usize));
        self.count(room)?;
        let start = self.items.len();
        self.items.extend_from_within(old);
        self.items.extend_from_slice(values);
        self.items.resize(start + room, Value::None);
        self.runs[run as usize] = Run { start: start as u32, len: wanted as u32, room: room as u32 };
        Ok(())
    }

    fn run(&self, run: u32) -> &[Value] {
        let Run { start, len, .. } = self.runs[run as usize];
        &self.items[start as usize..(start + len) as usize]
    }

    /// The items of a tuple or a list.
    pub fn sequence(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Tuple { start, len } => Some(&self.items[start as usize..(start + len) as usize]),
            Value::List(id) => Some(self.run(id)),
            _ => None,
        }
    }

    /// The rows of a dict: key and value.
    pub fn dict(&self, value: Value) -> Option<&[[Value; 2]]> {
        match value {
            Value::Dict(id) => Some(self.run(id).as_chunks().0),
            _ => None,
        }
    }

    /// The value of a text key; of several, the last.
    pub fn get(&self, dict: Value, key: &str) -> Option<Value> {
        self.dict(dict)?.iter().rev().find(|[k, _]| self.str(*k) == Some(key)).map(|&[_, v]| v)
    }

    /// The value of a field that many records have: its name is usually one text, which `known` remembers.
    pub fn field(&self, dict: Value, key: &str, known: &mut u32) -> Option<Value> {
        let rows = self.dict(dict)?;
        if let Some(&[_, value]) = rows.iter().find(|[k, _]| *k == Value::Text(*known)) {
            return Some(value);
        }
        let &[name, value] = rows.iter().rev().find(|[k, _]| self.str(*k) == Some(key))?;
        if let Value::Text(id) = name {
            *known = id;
        }
        Some(value)
    }

    /// Whether a tuple or list is these integers.
    pub fn dims_are(&self, value: Value, dims: &[u64]) -> bool {
        let same = |(v, d): (&Value, &u64)| matches!(v, Value::Int(n) if u64::try_from(*n) == Ok(*d));
        self.sequence(value).is_some_and(|s| s.len() == dims.len() && s.iter().zip(dims).all(same))
    }

    /// The fields of a record of a class.
    pub fn record(&self, value: Value, class: Class) -> Option<Value> {
        match value {
            Value::Record(id) => match self.records[id as usize] {
                (c, Some(fields)) if c == class => Some(Value::Dict(fields)),
                _ => None,
            },
            _ => None,
        }
    }

    /// A tuple or list of integers that are not negative.
    pub fn dims(&self, value: Value) -> Option<Vec<u64>> {
        let dim = |v: &Value| match v {
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        };
        self.sequence(value)?.iter().map(dim).collect()
    }
}
