//! How are activations normalised? layer_norm, group_norm, instance_norm, batch_norm, p_norm, and gradients.
//!
//! Every mean, variance and sum is taken in float64 and in index order; elements are computed in float32
//! (float64 for float64) and rounded once. Scale, bias and statistics may be float32 beside 16-bit
//! activations; means and variances are written in float32 then. Variances are those of the population.
//! Formulas: Paddle 2.6.2's CPU kernels.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::float_input;
use super::real::{Real, real};
use super::transfer::axis_of;
use crate::ir::DType;
use std::borrow::Cow;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("layer_norm", |cx| forward(cx, Kind::Layer)),
    ("layer_norm_grad", |cx| backward(cx, Kind::Layer)),
    ("group_norm", |cx| forward(cx, Kind::Group)),
    ("group_norm_grad", |cx| backward(cx, Kind::Group)),
    ("instance_norm", |cx| forward(cx, Kind::Instance)),
    ("instance_norm_grad", |cx| backward(cx, Kind::Instance)),
    ("p_norm", p_norm),
    ("p_norm_grad", p_norm_grad),
];

type Result<T> = std::result::Result<T, InterpError>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Layer,
    Group,
    Instance,
}

/// Which elements share statistics, and which scale belongs to each.
struct Groups {
    /// groups of `len` elements in a row
    count: usize,
    len: usize,
    /// elements of scale and bias
    scales: usize,
    /// element i has scale `i / repeat % scales`
    repeat: usize,
    epsilon: f64,
    /// shape of means and variances
    shape: Vec<usize>,
}

/// Statistics beside 16-bit activations are float32.
pub(super) fn stat_dtype(x: &Tensor) -> DType {
    if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

fn groups(cx: &OpCx<'_, '_>, x: &Tensor, kind: Kind) -> Result<Groups> {
    let (shape, rank) = (x.shape(), x.shape().len());
    let epsilon = f64::from(cx.attr_f32("epsilon", 1e-5)?);
    if kind == Kind::Layer {
        let axis = cx.attr_i64("begin_norm_axis", 1)?;
        let at = usize::try_from(axis).ok().filter(|&a| a > 0 && a < rank);
        let at = at.ok_or_else(|| shape_fault("X", x, format!("cannot be normalised from axis {axis}")))?;
        let (count, len) = (shape[..at].iter().product(), shape[at..].iter().product());
        return Ok(Groups { count, len, scales: len, repeat: 1, epsilon, shape: vec![count] });
    }
    if rank < 2 {
        return Err(shape_fault("X", x, "where [batch, channels, …] is needed"));
    }
    if cx.attr_str("data_layout")?.is_some_and(|l| l != "NCHW" && l != "AnyLayout") {
        return Err(Fault::Unsupported { what: "a layout other than NCHW".into() }.into());
    }
    let (n, c, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
    let g = match kind {
        Kind::Instance => c,
        _ => usize::try_from(cx.attr_i64("groups", 1)?).unwrap_or(0),
    };
    if g == 0 || c % g != 0 {
        return Err(shape_fault("X", x, format!("has {c} channels for {g} groups")));
    }
    let shape = if kind == Kind::Instance { vec![n * c] } else { vec![n, g] };
    Ok(Groups { count: n * g, len: c / g * inner, scales: c, repeat: inner, epsilon, shape })
}

/// Scale or bias as float64, if given.
fn scales(cx: &OpCx<'_, '_>, slot: &str, n: usize) -> Result<Option<Vec<f64>>> {
    let Some(t) = cx.opt_input(slot)? else { return Ok(None) };
    if t.len() != n || !t.dtype().is_float() {
        return Err(shape_fault(slot, &t, format!("of {} where {n} floats are needed", t.dtype())));
    }
    Ok(Some(t.to_f64_vec()))
}

/// Mean and population variance.
pub(super) fn moments<T: Real>(v: &[T]) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = v.iter().fold(0.0, |s, x| s + x.wide()) / n;
    let var = v.iter().fold(0.0, |s, x| s + (x.wide() - mean) * (x.wide() - mean)) / n;
    (mean, var)
}

fn forward(cx: &mut OpCx<'_, '_>, kind: Kind) -> Result<()> {
    let x = float_input(cx, "X")?;
    let g = groups(cx, &x, kind)?;
    let (scale, bias) = (scales(cx, "Scale", g.scales)?, scales(cx, "Bias", g.scales)?);
    let (mut means, mut vars) = (Vec::with_capacity(g.count), Vec::with_capacity(g.count));
    let y = real!(x.dtype(), T => {
        let (v, mut y) = (T::read(&x), Vec::with_capacity(x.len()));
        for i in 0..g.count {
            let v = &v[i * g.len..(i + 1) * g.len];
            let (mean, var) = moments(v);
            let inv = 1.0 / (var + g.epsilon).sqrt();
            y.extend(v.iter().enumerate().map(|(j, x)| {
                let c = (i * g.len + j) / g.repeat % g.scales;
                let norm = (x.wide() - mean) * inv;
                T::of(norm * scale.as_ref().map_or(1.0, |s| s[c]) + bias.as_ref().map_or(0.0, |b| b[c]))
            }));
            means.push(mean);
            // instance_norm keeps the inverse deviation, the others the variance.
            vars.push(if kind == Kind::Instance { inv } else { var });
        }
        T::tensor(y, x.dtype(), x.shape())?
    });
    let (mean, var) = if kind == Kind::Instance { ("SavedMean", "SavedVariance") } else { ("Mean", "Variance") };
    let means = f64::tensor(means, stat_dtype(&x), &g.shape)?;
    cx.set_opt(mean, means)?;
    let vars = f64::tensor(vars, stat_dtype(&x), &g.shape)?;
    cx.set_opt(var, vars)?;
    cx.set("Y", y)
}

/// dx = inv · (dŷ − mean(dŷ) − x̂ · mean(dŷ · x̂)), where dŷ = dy · scale, in each group.
fn backward(cx: &mut OpCx<'_, '_>, kind: Kind) -> Result<()> {
    let (x, dy) = (float_input(cx, "X")?, float_input(cx, "Y@GRAD")?);
    let g = groups(cx, &x, kind)?;
    if dy.shape() != x.shape() {
        return Err(shape_fault("Y@GRAD", &dy, format!("where {:?} is needed", x.shape())));
    }
    let scale = scales(cx, "Scale", g.scales)?;
    let (mean, var) = if kind == Kind::Instance { ("SavedMean", "SavedVariance") } else { ("Mean", "Variance") };
    let (means, vars) = (stats(cx, mean, g.count)?, stats(cx, var, g.count)?);
    let (mut dscale, mut dbias) = (vec![0.0; g.scales], vec![0.0; g.scales]);
    let dx = real!(x.dtype(), T => {
        let (v, dy, mut dx) = (T::read(&x), T::read(&dy), Vec::with_capacity(x.len()));
        for i in 0..g.count {
            let at = i * g.len..(i + 1) * g.len;
            let inv = if kind == Kind::Instance { vars[i] } else { 1.0 / (vars[i] + g.epsilon).sqrt() };
            let (mut sum, mut dot) = (0.0, 0.0);
            let channel = |j: usize| (i * g.len + j) / g.repeat % g.scales;
            for (j, (x, dy)) in v[at.clone()].iter().zip(&dy[at.clone()]).enumerate() {
                let (c, norm, dy) = (channel(j), (x.wide() - means[i]) * inv, dy.wide());
                dscale[c] += dy * norm;
                dbias[c] += dy;
                let dn = dy * scale.as_ref().map_or(1.0, |s| s[c]);
                sum += dn;
                dot += dn * norm;
            }
            let n = g.len as f64;
            dx.extend(v[at.clone()].iter().zip(&dy[at]).enumerate().map(|(j, (x, dy))| {
                let norm = (x.wide() - means[i]) * inv;
                let dn = dy.wide() * scale.as_ref().map_or(1.0, |s| s[channel(j)]);
                T::of(inv * (dn - sum / n - norm * dot / n))
            }));
        }
        T::tensor(dx, x.dtype(), x.shape())?
    });
    for (slot, of, sums) in [("Scale@GRAD", "Scale", dscale), ("Bias@GRAD", "Bias", dbias)] {
        if cx.wants(slot) {
            let like = cx.opt_input(of)?;
            let dtype = like.map_or(stat_dtype(&x), |t| t.dtype());
            let out = f64::tensor(sums, dtype, &[g.scales])?;
            cx.set(slot, out)?;
        }
    }
    cx.set_opt("X@GRAD", dx)
}

/// Saved statistics as float64.
pub(super) fn stats(cx: &OpCx<'_, '_>, slot: &str, n: usize) -> Result<Vec<f64>> {
    let t = float_input(cx, slot)?;
    if t.len() != n {
        return Err(shape_fault(slot, &t, format!("where {n} elements are needed")));
    }
    Ok(t.to_f64_vec())
}

/// Lines of `X` along an axis: offsets of their first elements, length and step.
struct Lines {
    starts: Vec<usize>,
    len: usize,
    step: usize,
    shape: Vec<usize>,
}

fn p_lines(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<(Lines, f64)> {
    let order = f64::from(cx.attr_f32("porder", 2.0)?);
    if !(order.is_finite() && order > 0.0) {
        return Err(Fault::Unsupported { what: format!("p_norm of order {order}") }.into());
    }
    let keep = cx.attr_bool("keepdim", false)?;
    if cx.attr_bool("asvector", false)? {
        let shape = if keep { vec![1; x.shape().len()] } else { Vec::new() };
        return Ok((Lines { starts: vec![0], len: x.len(), step: 1, shape }, order));
    }
    let axis = axis_of(cx.attr_i64("axis", -1)?, x.shape().len(), "axis")?;
    let mut shape = x.shape().to_vec();
    let len = std::mem::replace(&mut shape[axis], 1);
    let step: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    if !keep {
        shape.remove(axis);
    }
    let starts = (0..outer * step).map(|l| l / step * len * step + l % step).collect();
    Ok((Lines { starts, len, step, shape }, order))
}

/// (Σ |x|^p)^(1/p) along an axis.
fn p_norm(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = float_input(cx, "X")?;
    let (lines, p) = p_lines(cx, &x)?;
    let v: Cow<'_, [f64]> = f64::read(&x);
    let power = |x: f64| if p == 2.0 { x * x } else { x.abs().powf(p) };
    let norm = |&s: &usize| {
        let sum: f64 = (0..lines.len).map(|i| power(v[s + i * lines.step])).sum();
        if p == 2.0 { sum.sqrt() } else { sum.powf(1.0 / p) }
    };
    let out = f64::tensor(lines.starts.iter().map(norm).collect(), x.dtype(), &lines.shape)?;
    cx.set("Out", out)
}

/// dx = |x|^(p−1) · sign(x) · dout / (out + epsilon)^(p−1)
fn p_norm_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, out, g) = (float_input(cx, "X")?, float_input(cx, "Out")?, float_input(cx, "Out@GRAD")?);
    let (lines, p) = p_lines(cx, &x)?;
    for (slot, t) in [("Out", &out), ("Out@GRAD", &g)] {
        if t.len() != lines.starts.len() {
            return Err(shape_fault(slot, t, format!("where {:?} is needed", lines.shape)));
        }
    }
    if g.dtype() != x.dtype() {
        return Err(dtype_fault("Out@GRAD", &g, format!("where `X` has {}", x.dtype())));
    }
    let epsilon = f64::from(cx.attr_f32("epsilon", 1e-12)?);
    let (v, o, gv, mut dx) = (f64::read(&x), f64::read(&out), f64::read(&g), vec![0.0; x.len()]);
    for (l, &s) in lines.starts.iter().enumerate() {
        let by = gv[l] * (o[l] + epsilon).powf(1.0 - p);
        for i in (0..lines.len).map(|i| s + i * lines.step) {
            let sign = f64::from(i8::from(v[i] > 0.0) - i8::from(v[i] < 0.0));
            dx[i] = v[i].abs().powf(p - 1.0) * sign * by;
        }
    }
    let dx = f64::tensor(dx, x.dtype(), x.shape())?;
    cx.set("X@GRAD", dx)
}
