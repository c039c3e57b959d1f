//! How are images pooled? pool2d, largest or average, with gradients. Layout NCHW.
//!
//! The largest is exact; the first of equal ones takes the gradient. Averages are summed in float64 and
//! rounded once.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{float_input, same_dtype};
use super::real::{Real, real};
use super::window::{axes, steps};
use std::ops::Range;

pub(super) const KERNELS: &[(&str, Kernel)] = &[("pool2d", pool2d), ("pool2d_grad", pool2d_grad)];

type Result<T> = std::result::Result<T, InterpError>;

/// For each output row and column: the input elements its window sees, and how many it counts.
struct Pool {
    rows: Vec<(Range<usize>, usize)>,
    cols: Vec<(Range<usize>, usize)>,
    largest: bool,
    shape: [usize; 4],
    plane: usize,
    width: usize,
}

impl Pool {
    fn of(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<Pool> {
        if cx.attr_str("data_format")?.is_some_and(|l| l != "NCHW" && l != "AnyLayout") {
            return Err(Fault::Unsupported { what: "pooling in a layout other than NCHW".into() }.into());
        }
        let &[n, c, height, width] = x.shape() else { return Err(shape_fault("X", x, "where NCHW is needed")) };
        let largest = match cx.attr_str("pooling_type")?.unwrap_or("") {
            "max" => true,
            "avg" => false,
            other => {
                let what = format!("{other:?} is not known");
                return Err(Fault::BadAttr { name: "pooling_type".into(), what }.into());
            }
        };
        let size = steps(cx, "ksize", 1)?;
        let &[kh, kw] = &size[..] else {
            return Err(Fault::BadAttr { name: "ksize".into(), what: format!("{size:?} for two axes") }.into());
        };
        let whole = cx.attr_bool("global_pooling", false)?;
        let (rows, cols) = if whole || cx.attr_bool("adaptive", false)? {
            let (oh, ow) = if whole { (1, 1) } else { (kh, kw) };
            cx.room(crate::ir::DType::F64, &[n, c, oh, ow])?;
            // Window i covers ⌊i·in/out⌋ to ⌈(i+1)·in/out⌉.
            let parts = |input: usize, output: usize| -> Vec<(Range<usize>, usize)> {
                let each = |i: usize| i * input / output..((i + 1) * input).div_ceil(output);
                (0..output).map(|i| (each(i), each(i).len())).collect()
            };
            (parts(height, oh), parts(width, ow))
        } else {
            let [h, w] = axes(cx, "X", x, [kh, kw], &[1, 1], cx.attr_bool("ceil_mode", false)?)?;
            cx.room(crate::ir::DType::F64, &[n, c, h.output, w.output])?;
            let exclusive = cx.attr_bool("exclusive", true)?;
            let parts = |a: &super::window::Axis| -> Vec<(Range<usize>, usize)> {
                let each = |o: usize| {
                    let start = o * a.stride;
                    let end = (start + a.kernel).saturating_sub(a.before).min(a.input);
                    let from = start.saturating_sub(a.before).min(end);
                    // Inclusive windows count padding, but not beyond it.
                    let counted = (start + a.kernel).min(a.input + 2 * a.before) - start;
                    (from..end, if exclusive { end - from } else { counted })
                };
                (0..a.output).map(each).collect()
            };
            (parts(&h), parts(&w))
        };
        if let Some((r, _)) = rows.iter().chain(&cols).find(|(r, _)| r.is_empty()) {
            return Err(shape_fault("X", x, format!("leaves a window of {size:?} empty at {}", r.start)));
        }
        let shape = [n, c, rows.len(), cols.len()];
        Ok(Pool { rows, cols, largest, shape, plane: height * width, width })
    }

    fn forward<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(self.shape.iter().product());
        for plane in x.chunks_exact(self.plane) {
            for (rows, nr) in &self.rows {
                let (first, last) = (rows.start * self.width, rows.end * self.width);
                for (cols, nc) in &self.cols {
                    let lines = || plane[first..last].chunks_exact(self.width).map(|l| &l[cols.start..cols.end]);
                    out.push(if self.largest {
                        let mut best = plane[first + cols.start];
                        for line in lines() {
                            for &x in line {
                                best = if x > best || is_nan(x) { x } else { best };
                            }
                        }
                        best
                    } else {
                        let mut sum = 0.0;
                        for line in lines() {
                            line.iter().for_each(|x| sum += x.wide());
                        }
                        T::of(sum / (nr * nc) as f64)
                    });
                }
            }
        }
        out
    }

    fn backward<T: Real>(&self, x: &[T], out: &[T], g: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; x.len()];
        let mut o = 0;
        for (plane, dx) in x.chunks_exact(self.plane).zip(dx.chunks_exact_mut(self.plane)) {
            for (rows, nr) in &self.rows {
                for (cols, nc) in &self.cols {
                    let g = if self.largest { g[o] } else { T::of(g[o].wide() / (nr * nc) as f64) };
                    'window: for r in rows.clone() {
                        for i in r * self.width + cols.start..r * self.width + cols.end {
                            if !self.largest {
                                dx[i] += g;
                            } else if plane[i] == out[o] {
                                dx[i] += g;
                                break 'window;
                            }
                        }
                    }
                    o += 1;
                }
            }
        }
        dx
    }
}

#[allow(clippy::eq_op, reason = "only NaN differs from itself")]
fn is_nan<T: Real>(x: T) -> bool {
    x != x
}

fn pool2d(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = float_input(cx, "X")?;
    let pool = Pool::of(cx, &x)?;
    let out = real!(x.dtype(), T => T::tensor(pool.forward(&T::read(&x)), x.dtype(), &pool.shape)?);
    cx.set("Out", out)
}

fn pool2d_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, out, g) = (float_input(cx, "X")?, float_input(cx, "Out")?, float_input(cx, "Out@GRAD")?);
    let pool = Pool::of(cx, &x)?;
    for (slot, t) in [("Out", &out), ("Out@GRAD", &g)] {
        same_dtype(slot, t, "X", x.dtype())?;
        if t.shape() != pool.shape {
            return Err(shape_fault(slot, t, format!("where {:?} is needed", pool.shape)));
        }
    }
    let dx = real!(x.dtype(), T => {
        T::tensor(pool.backward(&T::read(&x), &T::read(&out), &T::read(&g)), x.dtype(), x.shape())?
    });
    cx.set("X@GRAD", dx)
}
