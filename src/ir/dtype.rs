//! Which element types are there? Those that Paddle 2.6.2's `VarType.Type` numbers.

use std::fmt;

/// Element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// boolean, one byte
    Bool,
    /// signed 16-bit integer
    I16,
    /// signed 32-bit integer
    I32,
    /// signed 64-bit integer
    I64,
    /// IEEE 754 binary16
    F16,
    /// IEEE 754 binary32
    F32,
    /// IEEE 754 binary64
    F64,
    /// unsigned 8-bit integer
    U8,
    /// signed 8-bit integer
    I8,
    /// bfloat16: the upper half of binary32
    BF16,
    /// complex of two binary32
    C64,
    /// complex of two binary64
    C128,
    /// A code that this crate does not know; kept as it is.
    Other(i32),
}

impl DType {
    /// The number in Paddle 2.6.2's `VarType.Type` (framework.proto).
    pub const fn code(self) -> i32 {
        match self {
            DType::Bool => 0,
            DType::I16 => 1,
            DType::I32 => 2,
            DType::I64 => 3,
            DType::F16 => 4,
            DType::F32 => 5,
            DType::F64 => 6,
            DType::U8 => 20,
            DType::I8 => 21,
            DType::BF16 => 22,
            DType::C64 => 23,
            DType::C128 => 24,
            DType::Other(code) => code,
        }
    }

    /// The type of a Paddle code; total, unknown codes become [`DType::Other`].
    pub const fn from_code(code: i32) -> DType {
        match code {
            0 => DType::Bool,
            1 => DType::I16,
            2 => DType::I32,
            3 => DType::I64,
            4 => DType::F16,
            5 => DType::F32,
            6 => DType::F64,
            20 => DType::U8,
            21 => DType::I8,
            22 => DType::BF16,
            23 => DType::C64,
            24 => DType::C128,
            code => DType::Other(code),
        }
    }

    /// Short name, as in the text format; `None` for [`DType::Other`].
    pub const fn short(self) -> Option<&'static str> {
        Some(match self {
            DType::Bool => "bool",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::BF16 => "bf16",
            DType::C64 => "c64",
            DType::C128 => "c128",
            DType::Other(_) => return None,
        })
    }

    /// The type of a short name, or of Paddle's long one (`float16`, `bfloat16`, `int64` …).
    pub fn parse(text: &str) -> Option<DType> {
        Some(match text {
            "bool" => DType::Bool,
            "i16" | "int16" => DType::I16,
            "i32" | "int32" => DType::I32,
            "i64" | "int64" => DType::I64,
            "f16" | "float16" => DType::F16,
            "f32" | "float32" => DType::F32,
            "f64" | "float64" => DType::F64,
            "u8" | "uint8" => DType::U8,
            "i8" | "int8" => DType::I8,
            "bf16" | "bfloat16" => DType::BF16,
            "c64" | "complex64" => DType::C64,
            "c128" | "complex128" => DType::C128,
            _ => return None,
        })
    }

    /// Bytes of one element; `None` for [`DType::Other`].
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
            DType::Other(_) => return None,
        })
    }

    /// float16 or bfloat16: the types that a parameter with a master may have.
    pub const fn is_low(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Any floating type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.short() {
            Some(s) => f.write_str(s),
            None => write!(f, "dtype({})", self.code()),
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
