//! What is a run-time value? A typed, dense, row-major tensor; clones share the data until one is written.

use super::error::TensorError;
use crate::convert::{self, Narrowing};
use crate::ir::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::fmt;
use std::sync::Arc;

/// The elements of a tensor.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Data {
    Bool(Vec<bool>),
    U8(Vec<u8>),
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// Runs one expression over whichever vector a [`Data`] holds.
macro_rules! each {
    ($data:expr, $v:ident => $e:expr) => {
        match $data {
            $crate::interp::Data::Bool($v) => $e,
            $crate::interp::Data::U8($v) => $e,
            $crate::interp::Data::I8($v) => $e,
            $crate::interp::Data::I16($v) => $e,
            $crate::interp::Data::I32($v) => $e,
            $crate::interp::Data::I64($v) => $e,
            $crate::interp::Data::F16($v) => $e,
            $crate::interp::Data::BF16($v) => $e,
            $crate::interp::Data::F32($v) => $e,
            $crate::interp::Data::F64($v) => $e,
        }
    };
}
pub(super) use each;

macro_rules! data_from {
    ($($t:ty => $variant:ident),*) => {$(
        impl From<Vec<$t>> for Data {
            fn from(v: Vec<$t>) -> Data {
                Data::$variant(v)
            }
        }
    )*};
}
data_from!(bool => Bool, u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f16 => F16, bf16 => BF16,
    f32 => F32, f64 => F64);

impl Data {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::Bool(_) => DType::Bool,
            Data::U8(_) => DType::U8,
            Data::I8(_) => DType::I8,
            Data::I16(_) => DType::I16,
            Data::I32(_) => DType::I32,
            Data::I64(_) => DType::I64,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
            Data::F32(_) => DType::F32,
            Data::F64(_) => DType::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` zeros.
    pub fn zeros(dtype: DType, len: usize) -> Result<Data, TensorError> {
        Ok(match dtype {
            DType::Bool => Data::Bool(vec![false; len]),
            DType::U8 => Data::U8(vec![0; len]),
            DType::I8 => Data::I8(vec![0; len]),
            DType::I16 => Data::I16(vec![0; len]),
            DType::I32 => Data::I32(vec![0; len]),
            DType::I64 => Data::I64(vec![0; len]),
            DType::F16 => Data::F16(vec![f16::ZERO; len]),
            DType::BF16 => Data::BF16(vec![bf16::ZERO; len]),
            DType::F32 => Data::F32(vec![0.0; len]),
            DType::F64 => Data::F64(vec![0.0; len]),
            dtype => return Err(TensorError::DType { dtype }),
        })
    }
}

/// Most dimensions of a tensor. Paddle stops at 9.
pub const MAX_RANK: usize = crate::ckpt::limits::MAX_RANK;

/// Number of elements of a shape, checked: the bytes of any element type fit in `isize`, and so they
/// do for any part of the dimensions, also where another one is zero.
pub fn count(shape: &[usize]) -> Result<usize, TensorError> {
    if shape.len() > MAX_RANK {
        return Err(TensorError::Rank { rank: shape.len() });
    }
    let whole = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    match whole.filter(|n| *n <= isize::MAX as usize / 16) {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(n) => Ok(n),
        None => Err(TensorError::TooLarge { shape: shape.to_vec() }),
    }
}

/// A dense tensor. The dtype is that of its elements; a cell takes the dtype of the last value written.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    shape: Arc<[usize]>,
    data: Arc<Data>,
}

impl Tensor {
    /// A tensor of these elements.
    pub fn new(shape: &[usize], data: impl Into<Data>) -> Result<Tensor, TensorError> {
        let data = data.into();
        let wanted = count(shape)?;
        if wanted != data.len() {
            return Err(TensorError::Count { shape: shape.to_vec(), wanted, got: data.len() });
        }
        Ok(Tensor { shape: shape.into(), data: Arc::new(data) })
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        Tensor::new(shape, Data::zeros(dtype, count(shape)?)?)
    }

    /// A tensor without dimensions.
    pub fn scalar<T>(value: T) -> Tensor
    where
        Data: From<Vec<T>>,
    {
        Tensor { shape: Arc::new([]), data: Arc::new(Data::from(vec![value])) }
    }

    /// A tensor from little-endian, row-major bytes. A `bool` byte that is not zero is true.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let (len, size) = (count(shape)?, dtype.size().ok_or(TensorError::DType { dtype })?);
        if len * size != bytes.len() {
            return Err(TensorError::Bytes { shape: shape.to_vec(), dtype, wanted: len * size, got: bytes.len() });
        }
        fn le<T, const N: usize>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|&c| of(c)).collect()
        }
        let data = match dtype {
            DType::Bool => Data::Bool(bytes.iter().map(|&b| b != 0).collect()),
            DType::U8 => Data::U8(bytes.to_vec()),
            DType::I8 => le(bytes, i8::from_le_bytes).into(),
            DType::I16 => le(bytes, i16::from_le_bytes).into(),
            DType::I32 => le(bytes, i32::from_le_bytes).into(),
            DType::I64 => le(bytes, i64::from_le_bytes).into(),
            DType::F16 => le(bytes, f16::from_le_bytes).into(),
            DType::BF16 => le(bytes, bf16::from_le_bytes).into(),
            DType::F32 => le(bytes, f32::from_le_bytes).into(),
            DType::F64 => le(bytes, f64::from_le_bytes).into(),
            dtype => return Err(TensorError::DType { dtype }),
        };
        Tensor::new(shape, data)
    }

    /// The elements as little-endian, row-major bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self.data() {
            Data::Bool(v) => v.iter().map(|&b| u8::from(b)).collect(),
            Data::U8(v) => v.clone(),
            Data::I8(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::I16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::BF16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> u64 {
        self.len() as u64 * self.dtype().size().unwrap_or(0) as u64
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, to be written; copied first when another tensor shares them. The length must stay.
    pub(super) fn data_mut(&mut self) -> &mut Data {
        Arc::make_mut(&mut self.data)
    }

    /// The elements, owned; copied only when another tensor shares them.
    pub fn into_data(self) -> Data {
        Arc::unwrap_or_clone(self.data)
    }

    /// The same elements in another shape.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        let wanted = count(shape)?;
        if wanted != self.len() {
            return Err(TensorError::Count { shape: shape.to_vec(), wanted, got: self.len() });
        }
        Ok(Tensor { shape: shape.into(), data: self.data.clone() })
    }

    /// The elements as float32: exact from 16 bits, nearest even from float64 and integers.
    pub fn to_f32_vec(&self) -> Vec<f32> {
        match self.data() {
            Data::Bool(v) => v.iter().map(|&x| f32::from(u8::from(x))).collect(),
            Data::U8(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Data::I8(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Data::I16(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Data::I32(v) => v.iter().map(|&x| x as f32).collect(),
            Data::I64(v) => v.iter().map(|&x| x as f32).collect(),
            Data::F16(v) => {
                let mut out = vec![0.0; v.len()];
                convert::f16_to_f32(v, &mut out);
                out
            }
            Data::BF16(v) => {
                let mut out = vec![0.0; v.len()];
                convert::bf16_to_f32(v, &mut out);
                out
            }
            Data::F32(v) => v.clone(),
            Data::F64(v) => v.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The elements as float64: exact from all but 64-bit integers.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match self.data() {
            Data::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Data::F64(v) => v.clone(),
            _ => self.to_f32_vec().into_iter().map(f64::from).collect(),
        }
    }

    /// The elements as 64-bit integers: floats towards zero, saturating, NaN as 0.
    pub fn to_i64_vec(&self) -> Vec<i64> {
        match self.data() {
            Data::Bool(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Data::U8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Data::I8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Data::I16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Data::I32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Data::I64(v) => v.clone(),
            _ => self.to_f64_vec().into_iter().map(|x| x as i64).collect(),
        }
    }

    /// The elements as booleans: true is not zero (NaN included).
    pub fn to_bool_vec(&self) -> Vec<bool> {
        match self.data() {
            Data::Bool(v) => v.clone(),
            Data::F16(_) | Data::BF16(_) | Data::F32(_) | Data::F64(_) => {
                self.to_f64_vec().into_iter().map(|x| x != 0.0).collect()
            }
            _ => self.to_i64_vec().into_iter().map(|x| x != 0).collect(),
        }
    }

    /// The tensor in another dtype. To 16-bit floats by way of float32 (as Paddle does), narrowed as
    /// `how` says; to integers towards zero, wrapping between integers, saturating from floats.
    pub fn cast(&self, dtype: DType, how: Narrowing) -> Result<Tensor, TensorError> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let data: Data = match dtype {
            DType::F16 | DType::BF16 => match self.data() {
                Data::F32(v) => narrow(v, dtype, how)?,
                _ => narrow(&self.to_f32_vec(), dtype, how)?,
            },
            DType::F32 => self.to_f32_vec().into(),
            DType::F64 => self.to_f64_vec().into(),
            DType::Bool => self.to_bool_vec().into(),
            DType::I64 => self.to_i64_vec().into(),
            DType::I32 => self.to_i64_vec().into_iter().map(|x| x as i32).collect::<Vec<_>>().into(),
            DType::I16 => self.to_i64_vec().into_iter().map(|x| x as i16).collect::<Vec<_>>().into(),
            DType::I8 => self.to_i64_vec().into_iter().map(|x| x as i8).collect::<Vec<_>>().into(),
            DType::U8 => self.to_i64_vec().into_iter().map(|x| x as u8).collect::<Vec<_>>().into(),
            dtype => return Err(TensorError::DType { dtype }),
        };
        Ok(Tensor { shape: self.shape.clone(), data: Arc::new(data) })
    }

    /// Whether dtype, shape and every bit are equal, so that NaN equals itself and 0 differs from -0.
    pub fn bits_eq(&self, other: &Tensor) -> bool {
        let floats = match (self.data(), other.data()) {
            (Data::F16(a), Data::F16(b)) => a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
            (Data::BF16(a), Data::BF16(b)) => a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
            (Data::F32(a), Data::F32(b)) => a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
            (Data::F64(a), Data::F64(b)) => a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
            (a, b) => a == b,
        };
        self.shape == other.shape && self.len() == other.len() && floats
    }
}

/// float32 elements as 16 bits.
pub(super) fn narrow(v: &[f32], dtype: DType, how: Narrowing) -> Result<Data, TensorError> {
    let mut data = Data::zeros(dtype, v.len())?;
    narrow_into(v, &mut data, how)?;
    Ok(data)
}

/// float32 elements into the memory of a 16-bit vector of the same length.
pub(super) fn narrow_into(v: &[f32], to: &mut Data, how: Narrowing) -> Result<(), TensorError> {
    let dtype = to.dtype();
    match to {
        Data::F16(to) => convert::narrow(dtype, v, to.reinterpret_cast_mut(), how),
        Data::BF16(to) => convert::narrow(dtype, v, to.reinterpret_cast_mut(), how),
        _ => return Err(TensorError::DType { dtype }),
    }
    Ok(())
}

/// 16-bit elements into the memory of a float32 vector of the same length.
pub(super) fn widen_into(from: &Data, to: &mut Data) -> Result<(), TensorError> {
    match (from, to) {
        (Data::F16(from), Data::F32(to)) => convert::f16_to_f32(from, to),
        (Data::BF16(from), Data::F32(to)) => convert::bf16_to_f32(from, to),
        (from, _) => return Err(TensorError::DType { dtype: from.dtype() }),
    }
    Ok(())
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{}{:?} ", self.dtype(), self.shape)?;
        let more = if self.len() > SHOWN { ", …" } else { "" };
        each!(self.data(), v => {
            f.write_str("[")?;
            for (i, x) in v.iter().take(SHOWN).enumerate() {
                write!(f, "{}{x:?}", if i > 0 { ", " } else { "" })?;
            }
            write!(f, "{more}]")
        })
    }
}
