//! How are tensors summed, averaged and searched? Sums run in index order, in float64.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::grad::from_f64;
use super::lanes::{Lanes, float_input};
use super::real::{Real, real, sum as sum_of};
use super::transfer::{axis_of, strides};
use super::walk::Walk;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("reduce_sum", |cx| reduce(cx, false)),
    ("reduce_mean", |cx| reduce(cx, true)),
    ("reduce_any", |cx| reduce_bool(cx, false)),
    ("reduce_all", |cx| reduce_bool(cx, true)),
    ("reduce_sum_grad", |cx| reduce_grad(cx, false)),
    ("reduce_mean_grad", |cx| reduce_grad(cx, true)),
    ("reduce_max", |cx| reduce_best(cx, |x, best| x > best)),
    ("reduce_min", |cx| reduce_best(cx, |x, best| x < best)),
    ("reduce_max_grad", reduce_best_grad),
    ("reduce_min_grad", reduce_best_grad),
    ("mean", mean),
    ("mean_grad", mean_grad),
    ("sum", sum),
];

/// The slot of the axes in `pd_op.mean` and `pd_op.mean_grad`.
const AXES: &str = "Axis";

/// Which axes are reduced, and where each element goes.
struct Reduction {
    /// the result's shape
    shape: Vec<usize>,
    /// from each element of the input to its place in the result
    walk: Walk,
    /// elements that make one of the result
    count: usize,
}

impl Reduction {
    /// Sums, in index order.
    fn sums<T: Real>(&self, n: usize, v: &[T]) -> Vec<f64> {
        let mut sum = vec![0.0; n];
        self.walk.runs(|r| {
            let v = &v[r.a..r.a + r.len];
            match r.step.1 {
                0 => sum[r.b] = v.iter().fold(sum[r.b], |s, x| s + x.wide()),
                1 => sum[r.b..r.b + r.len].iter_mut().zip(v).for_each(|(s, x)| *s += x.wide()),
                step => v.iter().enumerate().for_each(|(k, x)| sum[r.b + k * step] += x.wide()),
            }
        });
        sum
    }

    /// Every element of the input and its place in the result.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        self.walk.runs(|r| (0..r.len).for_each(|k| f(r.a + k * r.step.0, r.b + k * r.step.1)));
    }
}

fn reduction(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<Reduction, InterpError> {
    // In PIR the axes are a tensor.
    let (dim, keep) = match cx.opt_input(AXES)? {
        Some(axes) => (axes.to_i64_vec(), "keepdim"),
        None => (cx.attr_ints("dim")?.unwrap_or_else(|| vec![0]), "keep_dim"),
    };
    let rank = x.shape().len();
    let all = cx.attr_bool("reduce_all", false)? || dim.is_empty();
    let keep = cx.attr_bool(keep, false)?;
    let mut reduced = vec![all; rank];
    if !all && rank > 0 {
        for &d in &dim {
            reduced[axis_of(d, rank, "dim")?] = true;
        }
    }
    let kept: Vec<usize> = x.shape().iter().zip(&reduced).map(|(&d, &r)| if r { 1 } else { d }).collect();
    let mut by = strides(&kept);
    by.iter_mut().zip(&reduced).for_each(|(s, &r)| *s *= usize::from(!r));
    let shape = match keep {
        true => kept.clone(),
        false => kept.iter().zip(&reduced).filter(|&(_, &r)| !r).map(|(&d, _)| d).collect(),
    };
    let count = x.shape().iter().zip(&reduced).filter(|&(_, &r)| r).map(|(&d, _)| d).product();
    Ok(Reduction { shape, walk: Walk::new(x.shape(), &strides(x.shape()), &by), count })
}

fn reduce(cx: &mut OpCx<'_, '_>, mean: bool) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let r = reduction(cx, &x)?;
    let n = super::super::tensor::count(&r.shape)?;
    let dtype = cx.attr_dtype("out_dtype")?;
    if mean && r.count == 0 && n > 0 {
        return Err(shape_fault("X", &x, "has no elements along the averaged axes"));
    }
    let out = if x.dtype().is_float() {
        let mut sum = real!(x.dtype(), T => r.sums(n, &T::read(&x)));
        if mean {
            sum.iter_mut().for_each(|s| *s /= r.count as f64);
        }
        from_f64(sum, dtype.unwrap_or(x.dtype()), &r.shape)?
    } else if mean {
        return Err(dtype_fault("X", &x, "where a floating type is needed"));
    } else {
        let mut sum = vec![0i64; n];
        let v = x.to_i64_vec();
        r.each(|i, at| sum[at] = sum[at].wrapping_add(v[i]));
        // A sum of booleans or narrow integers is counted in 64 bits, as in Paddle.
        let wide = if x.dtype() == DType::I32 || x.dtype() == DType::Bool { DType::I64 } else { x.dtype() };
        Lanes::Int(sum).tensor(dtype.unwrap_or(wide), &r.shape)?
    };
    cx.set("Out", out)
}

fn reduce_bool(cx: &mut OpCx<'_, '_>, all: bool) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let r = reduction(cx, &x)?;
    let mut out = vec![all; super::super::tensor::count(&r.shape)?];
    let v = x.to_bool_vec();
    r.each(|i, at| out[at] = if all { out[at] && v[i] } else { out[at] || v[i] });
    let out = Tensor::new(&r.shape, out)?;
    cx.set("Out", out)
}

fn reduce_grad(cx: &mut OpCx<'_, '_>, mean: bool) -> Result<(), InterpError> {
    let (x, g) = (cx.input("X")?, float_input(cx, "Out@GRAD")?);
    let r = reduction(cx, &x)?;
    if g.len() != super::super::tensor::count(&r.shape)? {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} is needed", r.shape)));
    }
    // A product and not a quotient, as in Paddle: gradient × (1 / count).
    let dtype = if x.dtype().is_float() { x.dtype() } else { g.dtype() };
    let out = real!(dtype, T => {
        let by = if mean { T::of(1.0 / r.count as f64) } else { T::ONE };
        let (g, mut out) = (T::read(&g), Vec::with_capacity(x.len()));
        r.each(|_, at| out.push(g[at] * by));
        T::tensor(out, dtype, x.shape())?
    });
    cx.set("X@GRAD", out)
}

/// The largest or smallest; NaN beats all. An axis without elements has none.
fn reduce_best(cx: &mut OpCx<'_, '_>, beats: fn(f64, f64) -> bool) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let r = reduction(cx, &x)?;
    let n = super::super::tensor::count(&r.shape)?;
    if n > 0 && r.count == 0 {
        return Err(shape_fault("X", &x, "has no elements along the reduced axes"));
    }
    // Which element it is: the values themselves keep their type.
    let (v, mut best) = (x.to_f64_vec(), vec![usize::MAX; n]);
    r.each(|i, to| {
        let old = best[to];
        if old == usize::MAX || beats(v[i], v[old]) || v[i].is_nan() {
            best[to] = i;
        }
    });
    let out = super::transfer::permute(&x, &r.shape, &best)?;
    cx.set("Out", out)
}

/// Every element that equals the result gets its gradient.
fn reduce_best_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (x, out, g) = (float_input(cx, "X")?, float_input(cx, "Out")?, float_input(cx, "Out@GRAD")?);
    let r = reduction(cx, &x)?;
    let n = super::super::tensor::count(&r.shape)?;
    for (slot, t) in [("Out", &out), ("Out@GRAD", &g)] {
        if t.len() != n {
            return Err(shape_fault(slot, t, format!("where {:?} is needed", r.shape)));
        }
    }
    let (x_v, o, gv) = (x.to_f64_vec(), out.to_f64_vec(), g.to_f64_vec());
    let mut dx = vec![0.0; x_v.len()];
    r.each(|i, at| dx[i] = if x_v[i] == o[at] { gv[at] } else { 0.0 });
    let dx = from_f64(dx, x.dtype(), x.shape())?;
    cx.set("X@GRAD", dx)
}

/// `mean`: of all elements; the result has no dimensions.
fn mean(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = float_input(cx, "X")?;
    if x.is_empty() {
        return Err(shape_fault("X", &x, "has no elements to average"));
    }
    let sum = real!(x.dtype(), T => sum_of(T::read(&x).iter().copied()));
    let out = from_f64(vec![sum / x.len() as f64], x.dtype(), &[])?;
    cx.set("Out", out)
}

fn mean_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (x, g) = (float_input(cx, "X")?, float_input(cx, "Out@GRAD")?);
    if g.len() != 1 {
        return Err(shape_fault("Out@GRAD", &g, "where one element is needed"));
    }
    let each = g.to_f64_vec()[0] / x.len() as f64;
    let out = from_f64(vec![each; x.len()], x.dtype(), x.shape())?;
    cx.set("X@GRAD", out)
}

/// `sum`: of several tensors of one shape, left to right, in float32 for 16-bit floats.
fn sum(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let xs = cx.inputs("X")?;
    let Some((first, rest)) = xs.split_first() else { return Err(Fault::MissingSlot { slot: "X".into() }.into()) };
    for x in rest {
        if x.shape() != first.shape() {
            return Err(shape_fault("X", x, format!("beside {:?}", first.shape())));
        }
        if x.dtype() != first.dtype() {
            return Err(dtype_fault("X", x, format!("beside {}", first.dtype())));
        }
    }
    let mut out = super::lanes::lanes(first);
    for x in rest {
        match &mut out {
            Lanes::F32(v) => v.iter_mut().zip(x.to_f32_vec()).for_each(|(a, b)| *a += b),
            Lanes::F64(v) => v.iter_mut().zip(x.to_f64_vec()).for_each(|(a, b)| *a += b),
            Lanes::Int(v) => v.iter_mut().zip(x.to_i64_vec()).for_each(|(a, b)| *a = a.wrapping_add(b)),
        }
    }
    let out = out.tensor(first.dtype(), first.shape())?;
    cx.set("Out", out)
}
