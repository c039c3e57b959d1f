//! In which floating type does a kernel's loop run? float64 for float64, float32 for all narrower types.
//!
//! A kernel is written once over [`Real`]; [`real!`] picks the type from a dtype. Elements are read
//! without a copy where they are of that type already, and results are rounded once, to nearest even.

use super::super::error::InterpError;
use super::super::tensor::{Data, Tensor};
use super::lanes::from_f32;
use crate::convert::Narrowing;
use crate::ir::DType;
use std::borrow::Cow;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// A type that kernels compute in.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + 'static
{
    const ZERO: Self;
    const ONE: Self;

    /// The elements of a tensor of any type.
    fn read(t: &Tensor) -> Cow<'_, [Self]>;
    /// A tensor of results, rounded to `dtype`.
    fn tensor(v: Vec<Self>, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError>;
    /// The nearest value to a float64.
    fn of(x: f64) -> Self;
    /// Exactly.
    fn wide(self) -> f64;
    fn exp(self) -> Self;
    fn tanh(self) -> Self;
    /// `a[m, k] · b[k, n]` added to `c[m, n]`, see `gemm.rs`.
    fn gemm(a: Mat<'_, Self>, b: Mat<'_, Self>, c: &mut [Self]);
}

/// A matrix in memory, row by row; or column by column when `transposed`.
#[derive(Clone, Copy)]
pub(super) struct Mat<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub cols: usize,
    pub transposed: bool,
}

impl<'a, T> Mat<'a, T> {
    /// Row-major.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Mat { data, rows, cols, transposed: false }
    }

    /// The transposed matrix, in the same memory.
    pub fn t(self) -> Self {
        Mat { data: self.data, rows: self.cols, cols: self.rows, transposed: !self.transposed }
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn read(t: &Tensor) -> Cow<'_, [f32]> {
        match t.data() {
            Data::F32(v) => Cow::Borrowed(v),
            _ => Cow::Owned(t.to_f32_vec()),
        }
    }
    fn tensor(v: Vec<f32>, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError> {
        from_f32(v, dtype, shape)
    }
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn exp(self) -> f32 {
        f32::exp(self)
    }
    fn tanh(self) -> f32 {
        f32::tanh(self)
    }
    fn gemm(a: Mat<'_, f32>, b: Mat<'_, f32>, c: &mut [f32]) {
        super::gemm::f32s(a, b, c);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn read(t: &Tensor) -> Cow<'_, [f64]> {
        match t.data() {
            Data::F64(v) => Cow::Borrowed(v),
            _ => Cow::Owned(t.to_f64_vec()),
        }
    }
    fn tensor(v: Vec<f64>, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError> {
        match dtype {
            DType::F64 => Ok(Tensor::new(shape, v)?),
            DType::F16 | DType::BF16 => from_f32(v.into_iter().map(|x| x as f32).collect(), dtype, shape),
            _ => Ok(Tensor::new(shape, v)?.cast(dtype, Narrowing::NearestEven)?),
        }
    }
    fn of(x: f64) -> f64 {
        x
    }
    fn wide(self) -> f64 {
        self
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    fn gemm(a: Mat<'_, f64>, b: Mat<'_, f64>, c: &mut [f64]) {
        super::gemm::f64s(a, b, c);
    }
}

/// Runs an expression with a type bound to the one that computes a dtype.
macro_rules! real {
    ($dtype:expr, $t:ident => $e:expr) => {
        if $dtype == $crate::ir::DType::F64 {
            type $t = f64;
            $e
        } else {
            type $t = f32;
            $e
        }
    };
}
pub(super) use real;

/// Runs a loop compiled for the widest vectors that this processor has. Elementwise arithmetic gives the same
/// bits on all of them: nothing is reordered or fused.
#[inline(always)]
pub(super) fn wide<R>(f: impl FnOnce() -> R) -> R {
    struct Loop<F>(F);
    impl<F: FnOnce() -> R, R> pulp::NullaryFnOnce for Loop<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Loop(f))
}

/// The sum, in float64 and index order.
pub(super) fn sum<T: Real>(v: impl IntoIterator<Item = T>) -> f64 {
    v.into_iter().fold(0.0, |s, x| s + x.wide())
}
