//! How are class losses computed? `softmax`, `softmax_with_cross_entropy` and their gradients.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{float_input, from_f32, same_dtype};
use super::real::Real;
use super::transfer::axis_of;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("softmax", softmax),
    ("softmax_grad", softmax_grad),
    ("softmax_with_cross_entropy", cross_entropy),
    ("softmax_with_cross_entropy_grad", cross_entropy_grad),
];

/// A tensor seen as lines along one axis.
struct Lines {
    outer: usize,
    len: usize,
    inner: usize,
}

impl Lines {
    fn of(cx: &OpCx<'_, '_>, t: &Tensor, slot: &str) -> Result<(Lines, usize), InterpError> {
        if t.shape().is_empty() {
            return Err(shape_fault(slot, t, "where a vector or more is needed"));
        }
        let axis = axis_of(cx.attr_i64("axis", -1)?, t.shape().len(), "axis")?;
        let (outer, inner) = (t.shape()[..axis].iter().product(), t.shape()[axis + 1..].iter().product());
        Ok((Lines { outer, len: t.shape()[axis], inner }, axis))
    }

    /// Runs `f` on each line's number and the offset of its first element.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        for line in 0..self.outer * self.inner {
            f(line, line / self.inner * self.len * self.inner + line % self.inner);
        }
    }
}

/// The softmax of one line, whose elements are `step` apart.
fn softmax_line(x: &[f32], out: &mut [f32], step: usize) {
    let line = || x.iter().step_by(step);
    let max = line().fold(f32::NEG_INFINITY, |m, &x| if x > m || x.is_nan() { x } else { m });
    let mut sum = 0.0;
    for (o, &x) in out.iter_mut().step_by(step).zip(line()) {
        *o = (x - max).exp();
        sum += *o;
    }
    out.iter_mut().step_by(step).for_each(|o| *o /= sum);
}

fn softmax_of(x: &[f32], lines: &Lines) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    let span = lines.len * lines.inner;
    for (x, out) in x.chunks_exact(span.max(1)).zip(out.chunks_exact_mut(span.max(1))) {
        match lines.inner {
            1 => softmax_line(x, out, 1),
            inner => (0..inner).for_each(|i| softmax_line(&x[i..], &mut out[i..], inner)),
        }
    }
    out
}

fn softmax(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = float_input(cx, "X")?;
    let (lines, _) = Lines::of(cx, &x, "X")?;
    let out = from_f32(softmax_of(&f32::read(&x), &lines), x.dtype(), x.shape())?;
    cx.set("Out", out)
}

fn softmax_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (out, g) = (float_input(cx, "Out")?, float_input(cx, "Out@GRAD")?);
    same_dtype("Out", &out, "Out@GRAD", g.dtype())?;
    if out.shape() != g.shape() {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} is needed", out.shape())));
    }
    let (lines, _) = Lines::of(cx, &out, "Out")?;
    let (o, gv) = (f32::read(&out), f32::read(&g));
    let mut dx = vec![0.0; o.len()];
    lines.each(|_, start| {
        let at = || (0..lines.len).map(|i| start + i * lines.inner);
        let dot: f32 = at().map(|i| o[i] * gv[i]).sum();
        at().for_each(|i| dx[i] = (gv[i] - dot) * o[i]);
    });
    let dx = from_f32(dx, g.dtype(), g.shape())?;
    cx.set("X@GRAD", dx)
}

/// The class of each line, `None` for one to ignore.
fn classes(cx: &OpCx<'_, '_>, label: &Tensor, lines: &Lines) -> Result<Vec<Option<usize>>, InterpError> {
    if label.len() != lines.outer * lines.inner {
        return Err(shape_fault("Label", label, format!("where {} labels are needed", lines.outer * lines.inner)));
    }
    let ignore = cx.attr_i64("ignore_index", -100)?;
    let class = |v: i64| match usize::try_from(v) {
        _ if v == ignore => Ok(None),
        Ok(c) if c < lines.len => Ok(Some(c)),
        _ => Err(Fault::Unsupported { what: format!("label {v} with {} classes", lines.len) }.into()),
    };
    label.to_i64_vec().into_iter().map(class).collect()
}

fn plain(cx: &OpCx<'_, '_>) -> Result<bool, InterpError> {
    if !cx.attr_bool("use_softmax", true)? {
        return Err(Fault::Unsupported { what: "softmax_with_cross_entropy without use_softmax".into() }.into());
    }
    cx.attr_bool("soft_label", false)
}

/// Paddle 2.6.2's CPU kernel takes no logit to lie further than this below the largest, so that a loss is at
/// most 64 and the logarithm of the number of classes.
const LEAST: f32 = -64.0;

fn cross_entropy(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (x, label) = (float_input(cx, "Logits")?, cx.input("Label")?);
    let soft = plain(cx)?;
    let (lines, axis) = Lines::of(cx, &x, "Logits")?;
    let xs = f32::read(&x);
    let mut loss = vec![0.0f32; lines.outer * lines.inner];
    let target = Target::of(cx, &x, &label, &lines, soft)?;
    lines.each(|line, start| {
        let at = |i: usize| start + i * lines.inner;
        let all = || (0..lines.len).map(at);
        let max = all().fold(f32::NEG_INFINITY, |m, i| if xs[i] > m || xs[i].is_nan() { xs[i] } else { m });
        let sum: f32 = all().map(|i| (xs[i] - max).exp()).sum();
        let log = |i: usize| (xs[i] - max).max(LEAST) - sum.ln();
        loss[line] = match &target {
            Target::Class(c) => c[line].map_or(0.0, |c| -log(at(c))),
            Target::Soft(w) => all().map(|i| if w[i] == 0.0 { 0.0 } else { -w[i] * log(i) }).sum(),
        };
    });
    let soft = from_f32(softmax_of(&xs, &lines), x.dtype(), x.shape())?;
    let mut shape = x.shape().to_vec();
    shape[axis] = 1;
    let loss = from_f32(loss, x.dtype(), &shape)?;
    cx.set_opt("Softmax", soft)?;
    cx.set("Loss", loss)
}

enum Target {
    Class(Vec<Option<usize>>),
    Soft(Vec<f32>),
}

impl Target {
    fn of(cx: &OpCx<'_, '_>, x: &Tensor, label: &Tensor, lines: &Lines, soft: bool) -> Result<Target, InterpError> {
        if !soft {
            return classes(cx, label, lines).map(Target::Class);
        }
        if label.shape() != x.shape() {
            return Err(shape_fault("Label", label, format!("where {:?} is needed", x.shape())));
        }
        Ok(Target::Soft(label.to_f32_vec()))
    }
}

/// (softmax − target) × the loss's gradient; an ignored line has none.
fn cross_entropy_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (s, label, g) = (float_input(cx, "Softmax")?, cx.input("Label")?, float_input(cx, "Loss@GRAD")?);
    let soft = plain(cx)?;
    let (lines, _) = Lines::of(cx, &s, "Softmax")?;
    if g.len() != lines.outer * lines.inner {
        return Err(shape_fault("Loss@GRAD", &g, format!("where {} losses are needed", lines.outer * lines.inner)));
    }
    let target = Target::of(cx, &s, &label, &lines, soft)?;
    let (sv, gv) = (f32::read(&s), f32::read(&g));
    let mut dx = vec![0.0; sv.len()];
    lines.each(|line, start| {
        for k in 0..lines.len {
            let i = start + k * lines.inner;
            dx[i] = match &target {
                Target::Class(c) => match c[line] {
                    None => 0.0,
                    Some(c) => (sv[i] - if k == c { 1.0 } else { 0.0 }) * gv[line],
                },
                Target::Soft(w) => (sv[i] - w[i]) * gv[line],
            };
        }
    });
    let dx = from_f32(dx, s.dtype(), s.shape())?;
    cx.set("Logits@GRAD", dx)
}
