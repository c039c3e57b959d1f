//! How is elementwise arithmetic done? Binary ops with Paddle's `axis` broadcast, unary ops, comparisons.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::grad::both;
use super::lanes::{Lanes, float_input, map, same_dtype};
use super::real::Real;
use super::transfer::strides;
use super::walk::Walk;
use crate::ir::DType;

macro_rules! modulo {
    ($x:expr, $y:expr, $zero:expr) => {{
        let (y, rest) = ($y, $x % $y);
        if rest != $zero && (rest < $zero) != (y < $zero) { rest + y } else { rest }
    }};
}

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("elementwise_add", |cx| binary(cx, |x, y| x + y, |x, y| x + y, |x, y| Some(x.wrapping_add(y)))),
    ("elementwise_sub", |cx| binary(cx, |x, y| x - y, |x, y| x - y, |x, y| Some(x.wrapping_sub(y)))),
    ("elementwise_mul", |cx| binary(cx, |x, y| x * y, |x, y| x * y, |x, y| Some(x.wrapping_mul(y)))),
    ("elementwise_div", |cx| binary(cx, |x, y| x / y, |x, y| x / y, |x, y| (y != 0).then(|| x.wrapping_div(y)))),
    // Integers go by way of float64, as in Paddle.
    ("elementwise_pow", |cx| binary(cx, f32::powf, f64::powf, |x, y| Some((x as f64).powf(y as f64).round() as i64))),
    // The sign of the divisor.
    ("elementwise_mod", |cx| {
        binary(cx, both!(|x, y| modulo!(x, y, 0.0)).0, both!(|x, y| modulo!(x, y, 0.0)).1, |x, y| match y {
            0 | -1 => (y != 0).then_some(0),
            y => Some(modulo!(x, y, 0)),
        })
    }),
    ("elementwise_max", |cx| binary(cx, max32, max64, |x, y| Some(x.max(y)))),
    ("elementwise_min", |cx| binary(cx, min32, min64, |x, y| Some(x.min(y)))),
    ("relu", |cx| {
        unary_any(cx, |x| if x > 0.0 { x } else { 0.0 * x }, |x| if x > 0.0 { x } else { 0.0 * x }, |x| x.max(0))
    }),
    ("square", |cx| unary_any(cx, |x| x * x, |x| x * x, |x| x.wrapping_mul(x))),
    ("abs", |cx| unary_any(cx, f32::abs, f64::abs, i64::wrapping_abs)),
    ("tanh", |cx| unary(cx, f32::tanh, f64::tanh)),
    ("sigmoid", |cx| unary(cx, |x| 1.0 / (1.0 + (-x).exp()), |x| 1.0 / (1.0 + (-x).exp()))),
    ("exp", |cx| unary(cx, f32::exp, f64::exp)),
    ("log", |cx| unary(cx, f32::ln, f64::ln)),
    ("sqrt", |cx| unary(cx, f32::sqrt, f64::sqrt)),
    ("less_than", |cx| compare(cx, |x, y| x < y, |x, y| x < y)),
    ("less_equal", |cx| compare(cx, |x, y| x <= y, |x, y| x <= y)),
    ("greater_than", |cx| compare(cx, |x, y| x > y, |x, y| x > y)),
    ("greater_equal", |cx| compare(cx, |x, y| x >= y, |x, y| x >= y)),
    ("equal", |cx| compare(cx, |x, y| x == y, |x, y| x == y)),
    ("not_equal", |cx| compare(cx, |x, y| x != y, |x, y| x != y)),
    ("logical_and", |cx| logical(cx, |x, y| x && y)),
    ("logical_or", |cx| logical(cx, |x, y| x || y)),
    ("logical_xor", |cx| logical(cx, |x, y| x != y)),
    ("logical_not", logical_not),
    ("increment", increment),
    ("isfinite_v2", isfinite),
];

fn max32(x: f32, y: f32) -> f32 {
    if x > y || x.is_nan() { x } else { y }
}
fn max64(x: f64, y: f64) -> f64 {
    if x > y || x.is_nan() { x } else { y }
}
fn min32(x: f32, y: f32) -> f32 {
    if x < y || x.is_nan() { x } else { y }
}
fn min64(x: f64, y: f64) -> f64 {
    if x < y || x.is_nan() { x } else { y }
}

/// How two shapes combine: the result's shape, and each operand's strides over it.
pub(super) struct Broadcast {
    pub shape: Vec<usize>,
    pub x: Vec<usize>,
    pub y: Vec<usize>,
}

impl Broadcast {
    /// A walk over both operands.
    pub fn walk(&self) -> Walk {
        Walk::new(&self.shape, &self.x, &self.y)
    }
}

/// Paddle's rule: the operand of lower rank lies at `axis` of the other (-1: at its end; trailing 1s
/// may hang over), then dimensions of 1 stretch.
pub(super) fn broadcast(cx: &OpCx<'_, '_>, x: &Tensor, y: &Tensor) -> Result<Broadcast, InterpError> {
    if x.shape() == y.shape() {
        let by = strides(x.shape());
        return Ok(Broadcast { shape: x.shape().to_vec(), x: by.clone(), y: by });
    }
    let axis = cx.attr_i64("axis", -1)?;
    let bad = || shape_fault("Y", y, format!("does not combine with X of {:?} at axis {axis}", x.shape()));
    let rank = x.shape().len().max(y.shape().len());
    let place = |t: &Tensor| -> Option<Vec<usize>> {
        let mut own = t.shape();
        let at = if own.len() == rank {
            0
        } else if axis == -1 {
            rank - own.len()
        } else {
            usize::try_from(axis).ok().filter(|&a| a <= rank)?
        };
        while own.len() + at > rank && own.last() == Some(&1) {
            own = &own[..own.len() - 1];
        }
        if own.len() + at > rank {
            return None;
        }
        let mut dims = vec![1; rank];
        dims[at..at + own.len()].copy_from_slice(own);
        Some(dims)
    };
    let (xs, ys) = (place(x).ok_or_else(bad)?, place(y).ok_or_else(bad)?);
    let mut shape = Vec::with_capacity(rank);
    for (&a, &b) in xs.iter().zip(&ys) {
        shape.push(match (a, b) {
            (a, b) if a == b => a,
            (1, b) => b,
            (a, 1) => a,
            _ => return Err(bad()),
        });
    }
    super::super::tensor::count(&shape)?;
    let by = |dims: &[usize]| {
        let mut by = strides(dims);
        by.iter_mut().zip(dims).for_each(|(s, &d)| *s *= usize::from(d != 1));
        by
    };
    Ok(Broadcast { x: by(&xs), y: by(&ys), shape })
}

fn operands(cx: &OpCx<'_, '_>) -> Result<(Tensor, Tensor, Broadcast, usize), InterpError> {
    let (x, y) = (cx.input("X")?, cx.input("Y")?);
    same_dtype("Y", &y, "X", x.dtype())?;
    let b = broadcast(cx, &x, &y)?;
    let n = cx.room(x.dtype(), &b.shape)?;
    Ok((x, y, b, n))
}

fn binary(
    cx: &mut OpCx<'_, '_>,
    f32s: impl Fn(f32, f32) -> f32,
    f64s: impl Fn(f64, f64) -> f64,
    ints: impl Fn(i64, i64) -> Option<i64>,
) -> Result<(), InterpError> {
    let (x, y, b, n) = operands(cx)?;
    let walk = b.walk();
    let out = match x.dtype() {
        DType::F64 => f64::tensor(walk.zip(n, &f64::read(&x), &f64::read(&y), f64s), x.dtype(), &b.shape)?,
        d if d.is_float() => f32::tensor(walk.zip(n, &f32::read(&x), &f32::read(&y), f32s), d, &b.shape)?,
        _ => {
            let out: Option<Vec<i64>> = walk.zip(n, &x.to_i64_vec(), &y.to_i64_vec(), ints).into_iter().collect();
            let out = out.ok_or_else(|| Fault::Arithmetic { what: "integer division by zero".into() })?;
            Lanes::Int(out).tensor(x.dtype(), &b.shape)?
        }
    };
    cx.set("Out", out)
}

fn unary_any(
    cx: &mut OpCx<'_, '_>,
    f32s: impl Fn(f32) -> f32,
    f64s: impl Fn(f64) -> f64,
    ints: impl Fn(i64) -> i64,
) -> Result<(), InterpError> {
    let out = map(&cx.input("X")?, f32s, f64s, ints)?;
    cx.set("Out", out)
}

fn unary(cx: &mut OpCx<'_, '_>, f32s: impl Fn(f32) -> f32, f64s: impl Fn(f64) -> f64) -> Result<(), InterpError> {
    let out = map(&float_input(cx, "X")?, f32s, f64s, |x| x)?;
    cx.set("Out", out)
}

fn compare(
    cx: &mut OpCx<'_, '_>,
    floats: impl Fn(f64, f64) -> bool,
    ints: impl Fn(i64, i64) -> bool,
) -> Result<(), InterpError> {
    let (x, y, b, n) = operands(cx)?;
    let out = match x.dtype().is_float() {
        true => b.walk().zip(n, &f64::read(&x), &f64::read(&y), floats),
        false => b.walk().zip(n, &x.to_i64_vec(), &y.to_i64_vec(), ints),
    };
    let out = Tensor::new(&b.shape, out)?;
    cx.set("Out", out)
}

fn logical(cx: &mut OpCx<'_, '_>, f: impl Fn(bool, bool) -> bool) -> Result<(), InterpError> {
    let (x, y, b, n) = operands(cx)?;
    let out = Tensor::new(&b.shape, b.walk().zip(n, &x.to_bool_vec(), &y.to_bool_vec(), f))?;
    cx.set("Out", out)
}

fn logical_not(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let out = Tensor::new(x.shape(), x.to_bool_vec().into_iter().map(|b| !b).collect::<Vec<_>>())?;
    cx.set("Out", out)
}

fn isfinite(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let out = match x.dtype().is_float() {
        true => x.to_f64_vec().into_iter().map(f64::is_finite).collect(),
        false => vec![true; x.len()],
    };
    let out = Tensor::new(x.shape(), out)?;
    cx.set("Out", out)
}

/// `increment` of a one-element tensor by `step`.
fn increment(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    if x.len() != 1 {
        return Err(shape_fault("X", &x, "where one element is needed"));
    }
    let step = cx.attr_f32("step", 1.0)?;
    let out = map(&x, |x| x + step, |x| x + f64::from(step), |x| x.wrapping_add(step as i64))?;
    cx.set("Out", out)
}
