//! Which smooth and piecewise functions are there beyond `math.rs`? gelu, relu6, clip, dropout and their
//! gradients, cumsum, and the norms that clip gradients.
//!
//! Elementwise results are computed in float32 (float64 for float64) and rounded once.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor};
use super::Kernel;
use super::grad::{both, unary as unary_grad};
use super::init::{Stream, given};
use super::lanes::{float_input, map};
use super::real::{Real, real, sum};
use super::transfer::axis_of;
use crate::ir::DType;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("gelu", gelu),
    ("gelu_grad", gelu_grad),
    ("relu6", |cx| smooth(cx, |x| x.clamp(0.0, 6.0))),
    ("relu6_grad", |cx| unary_grad(cx, "Out", both!(|o, g| if o > 0.0 && o < 6.0 { g } else { 0.0 }))),
    ("rsqrt", |cx| smooth(cx, |x| 1.0 / x.sqrt())),
    ("rsqrt_grad", |cx| unary_grad(cx, "Out", both!(|o, g| g * -0.5 * o * o * o))),
    ("sign", sign),
    ("clip", clip),
    ("clip_grad", clip_grad),
    ("clip_by_norm", clip_by_norm),
    ("squared_l2_norm", squared_l2_norm),
    ("dropout", dropout),
    ("dropout_grad", dropout_grad),
    ("cumsum", |cx| cumsum(cx, "X", "Out", false)),
    ("cumsum_grad", |cx| cumsum(cx, "Out@GRAD", "X@GRAD", true)),
];

type Result<T> = std::result::Result<T, InterpError>;

/// A function computed in float64 and rounded to the type that computes, then to the output's.
fn smooth(cx: &mut OpCx<'_, '_>, f: impl Fn(f64) -> f64) -> Result<()> {
    let out = map(&float_input(cx, "X")?, |x| f(f64::from(x)) as f32, &f, |x| x)?;
    cx.set("Out", out)
}

const GELU: f64 = 0.044715;

/// x · Φ(x), or with `approximate` its tanh form.
fn gelu(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let c = (2.0 / PI).sqrt();
    match cx.attr_bool("approximate", false)? {
        true => smooth(cx, |x| 0.5 * x * (1.0 + (c * (x + GELU * x * x * x)).tanh())),
        false => smooth(cx, |x| 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2))),
    }
}

fn gelu_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let c = (2.0 / PI).sqrt();
    let exact = |x: f64| {
        let density = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (-0.5 * x * x).exp();
        0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) + x * density
    };
    let tanh = |x: f64| {
        let t = (c * (x + GELU * x * x * x)).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * GELU * x * x)
    };
    let slope = |x: f64, approximate: bool| if approximate { tanh(x) } else { exact(x) };
    let a = cx.attr_bool("approximate", false)?;
    unary_grad(
        cx,
        "X",
        (|x: f32, g: f32| (slope(f64::from(x), a) * f64::from(g)) as f32, |x: f64, g: f64| slope(x, a) * g),
    )
}

/// -1, 0 or 1; NaN as 0.
fn sign(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let sign = |x: f64| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0));
    let out = map(&cx.input("X")?, |x| sign(f64::from(x)) as f32, sign, i64::signum)?;
    cx.set("Out", out)
}

/// The bounds, from their tensors or else their attributes.
fn bounds(cx: &OpCx<'_, '_>) -> Result<(f32, f32)> {
    let bound = |slot: &str, attr: &str| match cx.opt_input(slot)? {
        Some(t) if !t.is_empty() => Ok(t.to_f32_vec()[0]),
        _ => cx.attr_f32(attr, 0.0),
    };
    let (min, max) = (bound("Min", "min")?, bound("Max", "max")?);
    if min > max {
        return Err(Fault::BadAttr { name: "max".into(), what: format!("{max} is below min, {min}") }.into());
    }
    Ok((min, max))
}

/// NaN stays NaN.
fn clip(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (min, max) = bounds(cx)?;
    let (lo, hi) = (f64::from(min), f64::from(max));
    let clip32 = |x: f32| {
        if x < min {
            min
        } else if x > max {
            max
        } else {
            x
        }
    };
    let clip64 = |x: f64| {
        if x < lo {
            lo
        } else if x > hi {
            hi
        } else {
            x
        }
    };
    let out = map(&cx.input("X")?, clip32, clip64, |x| x.max(min as i64).min(max as i64))?;
    cx.set("Out", out)
}

/// The gradient strictly between the bounds.
fn clip_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (min, max) = bounds(cx)?;
    let (lo, hi) = (f64::from(min), f64::from(max));
    unary_grad(
        cx,
        "X",
        (
            |x: f32, g: f32| if x > min && x < max { g } else { 0.0 },
            |x: f64, g: f64| if x > lo && x < hi { g } else { 0.0 },
        ),
    )
}

fn squares(t: &Tensor) -> f64 {
    real!(t.dtype(), T => sum(T::read(t).iter().map(|&x| x.wide() * x.wide())))
}

/// X · min(1, max_norm / ‖X‖); the norm in float64.
fn clip_by_norm(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = float_input(cx, "X")?;
    let (norm, limit) = (squares(&x).sqrt(), f64::from(cx.attr_f32("max_norm", 1.0)?));
    let by = if norm > limit { limit / norm } else { 1.0 };
    let out = map(&x, |x| x * by as f32, |x| x * by, |x| x)?;
    cx.set("Out", out)
}

/// The sum of squares, in float64, as one element.
fn squared_l2_norm(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = float_input(cx, "X")?;
    let out = f64::tensor(vec![squares(&x)], x.dtype(), &[1])?;
    cx.set("Out", out)
}

/// What dropout does to the elements that stay, and to all when testing.
struct Drop {
    prob: f32,
    kept: f32,
    test: Option<f32>,
}

fn drop_attrs(cx: &OpCx<'_, '_>) -> Result<Drop> {
    let prob = cx.attr_f32("dropout_prob", 0.5)?;
    if !(0.0..=1.0).contains(&prob) {
        return Err(Fault::BadAttr { name: "dropout_prob".into(), what: format!("{prob} is not in [0, 1]") }.into());
    }
    let upscale = match cx.attr_str("dropout_implementation")?.unwrap_or("downgrade_in_infer") {
        "upscale_in_train" => true,
        "downgrade_in_infer" => false,
        other => {
            let what = format!("{other:?} is not known");
            return Err(Fault::BadAttr { name: "dropout_implementation".into(), what }.into());
        }
    };
    // With probability 1 nothing stays.
    let kept = if upscale && prob < 1.0 { 1.0 / (1.0 - prob) } else { 1.0 };
    let test = cx.attr_bool("is_test", false)?.then_some(if upscale { 1.0 } else { 1.0 - prob });
    Ok(Drop { prob, kept, test })
}

/// Each element is dropped with probability `dropout_prob`, drawn from this crate's own stream (see
/// [`super::Kernels`]) by the name of `Out`. `Mask` is 1 where one stays.
fn dropout(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, d) = (float_input(cx, "X")?, drop_attrs(cx)?);
    if let Some(by) = d.test {
        let out = map(&x, |x| x * by, |x| x * f64::from(by), |x| x)?;
        return cx.set("Out", out);
    }
    cx.room(DType::U8, x.shape())?;
    let mask = match given(cx, "Mask", DType::U8, x.shape())? {
        Some(mask) => mask,
        None => {
            let (mut stream, prob) = (Stream::of(cx)?, f64::from(d.prob));
            let mask: Vec<u8> = (0..x.len()).map(|_| u8::from(stream.unit() >= prob)).collect();
            Tensor::new(x.shape(), mask)?
        }
    };
    let out = keep(&x, &mask, d.kept)?;
    cx.set_opt("Mask", mask)?;
    cx.set("Out", out)
}

fn keep(x: &Tensor, mask: &Tensor, by: f32) -> Result<Tensor> {
    let Data::U8(m) = mask.data() else { return Err(dtype_fault("Mask", mask, "where uint8 is needed")) };
    real!(x.dtype(), T => {
        let by = T::of(f64::from(by));
        let out = T::read(x).iter().zip(m).map(|(&x, &m)| if m != 0 { x * by } else { T::ZERO }).collect();
        T::tensor(out, x.dtype(), x.shape())
    })
}

fn dropout_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (g, d) = (float_input(cx, "Out@GRAD")?, drop_attrs(cx)?);
    let out = match d.test {
        Some(by) => map(&g, |x| x * by, |x| x * f64::from(by), |x| x)?,
        None => {
            let mask = cx.input("Mask")?;
            if mask.shape() != g.shape() {
                return Err(shape_fault("Mask", &mask, format!("where {:?} is needed", g.shape())));
            }
            keep(&g, &mask, d.kept)?
        }
    };
    cx.set("X@GRAD", out)
}

/// Running sums along an axis, in float64 (integers in 64 bits); the gradient runs the other way.
fn cumsum(cx: &mut OpCx<'_, '_>, from: &str, to: &str, back: bool) -> Result<()> {
    let x = cx.input(from)?;
    let shape = if back { cx.input("X")?.shape().to_vec() } else { x.shape().to_vec() };
    let flat = cx.attr_bool("flatten", false)?;
    let (exclusive, reverse) = (cx.attr_bool("exclusive", false)?, cx.attr_bool("reverse", false)? != back);
    let dims = if flat { vec![x.len()] } else { x.shape().to_vec() };
    if dims.is_empty() {
        return cx.set(to, x);
    }
    let axis = if flat { 0 } else { axis_of(cx.attr_i64("axis", -1)?, dims.len(), "axis")? };
    let (len, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let outer: usize = dims[..axis].iter().product();
    let run = |put: &mut dyn FnMut(usize, Option<usize>)| {
        for line in 0..outer * inner {
            let start = line / inner * len * inner + line % inner;
            let at = |i: usize| start + if reverse { len - 1 - i } else { i } * inner;
            (0..len).for_each(|i| put(at(i), i.checked_sub(1).map(at)));
        }
    };
    let shape = if flat && !back { dims.clone() } else { shape };
    let out = if x.dtype().is_float() {
        let v = x.to_f64_vec();
        let mut out = vec![0.0; v.len()];
        run(&mut |i, before| {
            let (sum, last) = before.map_or((0.0, 0.0), |b| (out[b], v[b]));
            out[i] = if exclusive { sum + last } else { sum + v[i] };
        });
        f64::tensor(out, x.dtype(), &shape)?
    } else {
        let v = x.to_i64_vec();
        let mut out = vec![0i64; v.len()];
        run(&mut |i, before| {
            let (sum, last) = before.map_or((0, 0), |b| (out[b], v[b]));
            out[i] = sum.wrapping_add(if exclusive { last } else { v[i] });
        });
        super::lanes::Lanes::Int(out).tensor(x.dtype(), &shape)?
    };
    cx.set(to, out)
}
