//! In which type does a kernel compute, and how is the result rounded?
//!
//! float16, bfloat16 and float32 in float32; float64 in float64; integers and booleans in wrapping
//! 64-bit integers. The result is brought to the output's dtype once, to nearest even.

use super::super::context::{OpCx, dtype_fault};
use super::super::error::InterpError;
use super::super::tensor::{Tensor, narrow};
use super::real::{Real, wide};
use crate::convert::Narrowing;
use crate::ir::DType;

/// Elements in the type that arithmetic is done in.
pub(super) enum Lanes {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Int(Vec<i64>),
}

/// The elements of a tensor, to compute with.
pub(super) fn lanes(t: &Tensor) -> Lanes {
    match t.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => Lanes::F32(t.to_f32_vec()),
        DType::F64 => Lanes::F64(t.to_f64_vec()),
        _ => Lanes::Int(t.to_i64_vec()),
    }
}

impl Lanes {
    /// A tensor of these elements, rounded to `dtype`.
    pub(super) fn tensor(self, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError> {
        Ok(match self {
            Lanes::F32(v) => from_f32(v, dtype, shape)?,
            Lanes::F64(v) => Tensor::new(shape, v)?.cast(dtype, Narrowing::NearestEven)?,
            Lanes::Int(v) => Tensor::new(shape, v)?.cast(dtype, Narrowing::NearestEven)?,
        })
    }
}

/// A tensor of float32 results, rounded to `dtype`.
pub(super) fn from_f32(v: Vec<f32>, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError> {
    Ok(match dtype {
        DType::F32 => Tensor::new(shape, v)?,
        DType::F16 | DType::BF16 => Tensor::new(shape, narrow(&v, dtype, Narrowing::NearestEven)?)?,
        _ => Tensor::new(shape, v)?.cast(dtype, Narrowing::NearestEven)?,
    })
}

/// Applies one of three functions to every element.
pub(super) fn map(
    t: &Tensor,
    f32s: impl Fn(f32) -> f32,
    f64s: impl Fn(f64) -> f64,
    ints: impl Fn(i64) -> i64,
) -> Result<Tensor, InterpError> {
    match t.dtype() {
        DType::F64 => f64::tensor(wide(|| f64::read(t).iter().map(|&x| f64s(x)).collect()), DType::F64, t.shape()),
        d if d.is_float() => f32::tensor(wide(|| f32::read(t).iter().map(|&x| f32s(x)).collect()), d, t.shape()),
        d => Lanes::Int(t.to_i64_vec().into_iter().map(ints).collect()).tensor(d, t.shape()),
    }
}

/// The first value of a slot, which must be of a floating type.
pub(super) fn float_input(cx: &OpCx<'_, '_>, slot: &str) -> Result<Tensor, InterpError> {
    let t = cx.input(slot)?;
    if t.dtype().is_float() { Ok(t) } else { Err(dtype_fault(slot, &t, "where a floating type is needed")) }
}

/// Refuses a tensor whose dtype is not that of another slot.
pub(super) fn same_dtype(slot: &str, t: &Tensor, other: &str, dtype: DType) -> Result<(), InterpError> {
    if t.dtype() == dtype { Ok(()) } else { Err(dtype_fault(slot, t, format!("where `{other}` has {dtype}"))) }
}
