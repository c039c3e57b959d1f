//! What can an op's attribute hold? The kinds of Paddle's `AttrType`, and anything else as raw bytes.

use crate::names::{Name, Symbol};
use std::fmt;
use std::sync::Arc;

/// A binary32 that compares and hashes by its bits, so that NaN payloads and signed zeros survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F32(pub u32);

impl F32 {
    /// The number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl From<f32> for F32 {
    fn from(v: f32) -> Self {
        F32(v.to_bits())
    }
}

impl fmt::Debug for F32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}f", self.get())
    }
}

/// A binary64 that compares and hashes by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F64(pub u64);

impl F64 {
    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for F64 {
    fn from(v: f64) -> Self {
        F64(v.to_bits())
    }
}

impl fmt::Debug for F64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Paddle's `Scalar`: a number that keeps its own type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scalar {
    /// boolean
    Bool(bool),
    /// 64-bit integer
    Long(i64),
    /// binary64
    F64(F64),
    /// complex of two binary64: real, imaginary
    C128(F64, F64),
}

/// The value of an attribute.
///
/// `Block` and `Blocks` hold indices into the block list of the op's own section; they may
/// dangle (the verifier says so), because a file may.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AttrValue {
    /// 32-bit integer; also how dtypes are stored (their Paddle code)
    Int(i32),
    /// binary32
    Float(F32),
    /// UTF-8 string
    String(Box<str>),
    /// list of 32-bit integers
    Ints(Box<[i32]>),
    /// list of binary32
    Floats(Box<[F32]>),
    /// list of strings
    Strings(Box<[Box<str>]>),
    /// boolean
    Bool(bool),
    /// list of booleans
    Bools(Box<[bool]>),
    /// sub-block, by index in the section
    Block(i32),
    /// list of sub-blocks
    Blocks(Box<[i32]>),
    /// 64-bit integer
    Long(i64),
    /// list of 64-bit integers
    Longs(Box<[i64]>),
    /// binary64
    F64(F64),
    /// list of binary64
    F64s(Box<[F64]>),
    /// a variable
    Var(Name),
    /// list of variables
    Vars(Box<[Name]>),
    /// typed number
    Scalar(Scalar),
    /// list of typed numbers
    Scalars(Box<[Scalar]>),
    /// A kind that this crate does not know: its tag and the undecoded payload.
    Unknown {
        /// the `AttrType` number
        tag: i32,
        /// protobuf fields of the attribute other than its name and type, in file order
        raw: Box<[u8]>,
    },
}

impl AttrValue {
    /// A string value.
    pub fn str(text: impl Into<Box<str>>) -> Self {
        AttrValue::String(text.into())
    }

    /// A list of strings.
    pub fn strs<S: Into<Box<str>>>(items: impl IntoIterator<Item = S>) -> Self {
        AttrValue::Strings(items.into_iter().map(Into::into).collect())
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            AttrValue::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The integer, if it is a 32- or 64-bit one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            AttrValue::Int(i) => Some(i64::from(*i)),
            AttrValue::Long(i) => Some(*i),
            _ => None,
        }
    }

    /// The number as binary32, if it is a float of either width.
    pub fn as_float(&self) -> Option<f32> {
        match self {
            AttrValue::Float(v) => Some(v.get()),
            AttrValue::F64(v) => Some(v.get() as f32),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            AttrValue::String(s) => Some(s),
            _ => None,
        }
    }

    /// The strings, if it is a list of them.
    pub fn as_strs(&self) -> Option<&[Box<str>]> {
        match self {
            AttrValue::Strings(s) => Some(s),
            _ => None,
        }
    }

    /// The integers, whatever their width.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        match self {
            AttrValue::Ints(v) => Some(v.iter().map(|&i| i64::from(i)).collect()),
            AttrValue::Longs(v) => Some(v.to_vec()),
            _ => None,
        }
    }
}

impl From<i32> for AttrValue {
    fn from(v: i32) -> Self {
        AttrValue::Int(v)
    }
}
impl From<i64> for AttrValue {
    fn from(v: i64) -> Self {
        AttrValue::Long(v)
    }
}
impl From<f32> for AttrValue {
    fn from(v: f32) -> Self {
        AttrValue::Float(v.into())
    }
}
impl From<bool> for AttrValue {
    fn from(v: bool) -> Self {
        AttrValue::Bool(v)
    }
}
impl From<&str> for AttrValue {
    fn from(v: &str) -> Self {
        AttrValue::String(v.into())
    }
}
impl From<crate::ir::DType> for AttrValue {
    fn from(v: crate::ir::DType) -> Self {
        AttrValue::Int(v.code())
    }
}

/// One attribute of an op.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attr {
    /// its name
    pub name: Symbol,
    /// its value
    pub value: AttrValue,
    /// The bytes of the attribute's protobuf message, when they are not what `name` and `value`
    /// encode to (fields that this crate does not know, an unusual order). They stand for the
    /// attribute on export until its value is replaced.
    pub raw: Option<Arc<[u8]>>,
}

impl Attr {
    /// An attribute without raw bytes.
    pub fn new(name: Symbol, value: impl Into<AttrValue>) -> Self {
        Attr { name, value: value.into(), raw: None }
    }
}
