//! How is a batch normalised? batch_norm and its gradient, per channel.
//!
//! Means, variances and sums in float64 and index order; elements in float32 (float64 for float64),
//! rounded once. Scale, bias and statistics may be float32 beside 16-bit activations. `SavedVariance` is
//! the inverse deviation 1/√(var + ε); the running variance takes the population's. Formulas: Paddle
//! 2.6.2's CPU kernel (a GPU's cuDNN feeds the running variance with the sample's).

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::float_input;
use super::norm::{stat_dtype, stats};
use super::real::{Real, real};

pub(super) const KERNELS: &[(&str, Kernel)] = &[("batch_norm", batch_norm), ("batch_norm_grad", batch_norm_grad)];

type Result<T> = std::result::Result<T, InterpError>;

/// Runs of elements of one channel.
struct Layout {
    channels: usize,
    /// elements in a run
    inner: usize,
    /// elements of a channel
    each: usize,
}

impl Layout {
    fn of(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<Layout> {
        let shape = x.shape();
        let last = match cx.attr_str("data_layout")?.unwrap_or("NCHW") {
            "NHWC" => true,
            "NCHW" | "AnyLayout" => false,
            other => return Err(Fault::Unsupported { what: format!("layout {other:?}") }.into()),
        };
        if shape.len() < 2 || x.is_empty() {
            return Err(shape_fault("X", x, "where a batch of channels is needed"));
        }
        let (channels, inner) = match last && shape.len() > 2 {
            true => (shape[shape.len() - 1], 1),
            false => (shape[1], shape[2..].iter().product()),
        };
        Ok(Layout { channels, inner, each: x.len() / channels })
    }

    /// The channel of a run.
    fn channel(&self, run: usize) -> usize {
        run % self.channels
    }

    fn sums<T: Real>(&self, v: &[T], mut f: impl FnMut(usize, f64) -> f64) -> Vec<f64> {
        let mut sum = vec![0.0; self.channels];
        for (run, v) in v.chunks_exact(self.inner).enumerate() {
            let c = self.channel(run);
            sum[c] = v.iter().fold(sum[c], |s, x| s + f(c, x.wide()));
        }
        sum
    }
}

/// Whether the running statistics are used and not the batch's.
fn global(cx: &OpCx<'_, '_>) -> Result<bool> {
    let test = cx.attr_bool("is_test", false)? && !cx.attr_bool("trainable_statistics", false)?;
    Ok(test || cx.attr_bool("use_global_stats", false)?)
}

fn batch_norm(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = float_input(cx, "X")?;
    let l = Layout::of(cx, &x)?;
    let (scale, bias) = (stats(cx, "Scale", l.channels)?, stats(cx, "Bias", l.channels)?);
    let (mean, var) = (stats(cx, "Mean", l.channels)?, stats(cx, "Variance", l.channels)?);
    let epsilon = f64::from(cx.attr_f32("epsilon", 1e-5)?);
    let keep = match cx.opt_input("MomentumTensor")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_f64_vec()[0],
        None => f64::from(cx.attr_f32("momentum", 0.9)?),
    };
    let own = !global(cx)?;
    let (y, mean, var) = real!(x.dtype(), T => {
        let v = T::read(&x);
        let (mean, var) = match own {
            false => (mean, var),
            true => {
                let n = l.each as f64;
                let batch: Vec<f64> = l.sums(&v, |_, x| x).into_iter().map(|s| s / n).collect();
                let square = l.sums(&v, |c, x| (x - batch[c]) * (x - batch[c]));
                let spread: Vec<f64> = square.into_iter().map(|s| s / n).collect();
                let follow = |old: Vec<f64>, new: &[f64]| -> Vec<f64> {
                    old.into_iter().zip(new).map(|(o, n)| o * keep + n * (1.0 - keep)).collect()
                };
                running(cx, &x, "MeanOut", follow(mean, &batch))?;
                running(cx, &x, "VarianceOut", follow(var, &spread))?;
                (batch, spread)
            }
        };
        let by: Vec<T> = (0..l.channels).map(|c| T::of(scale[c] / (var[c] + epsilon).sqrt())).collect();
        let mut y = Vec::with_capacity(v.len());
        for (run, v) in v.chunks_exact(l.inner).enumerate() {
            let c = l.channel(run);
            let (mean, by, bias) = (T::of(mean[c]), by[c], T::of(bias[c]));
            y.extend(v.iter().map(|&x| (x - mean) * by + bias));
        }
        (T::tensor(y, x.dtype(), x.shape())?, mean, var)
    });
    if own {
        running(cx, &x, "SavedMean", mean)?;
        running(cx, &x, "SavedVariance", var.into_iter().map(|v| 1.0 / (v + epsilon).sqrt()).collect())?;
    } else {
        // The cells of the running statistics keep what they hold.
        for (from, to) in [("Mean", "MeanOut"), ("Variance", "VarianceOut")] {
            let t = cx.input(from)?;
            cx.set_opt(to, t)?;
        }
    }
    cx.set("Y", y)
}

fn running(cx: &mut OpCx<'_, '_>, x: &Tensor, slot: &str, v: Vec<f64>) -> Result<()> {
    let n = v.len();
    let t = f64::tensor(v, stat_dtype(x), &[n])?;
    cx.set_opt(slot, t)
}

fn batch_norm_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, dy) = (float_input(cx, "X")?, float_input(cx, "Y@GRAD")?);
    let l = Layout::of(cx, &x)?;
    if dy.shape() != x.shape() {
        return Err(shape_fault("Y@GRAD", &dy, format!("where {:?} is needed", x.shape())));
    }
    let scale = stats(cx, "Scale", l.channels)?;
    let own = !global(cx)?;
    let (mean, inv) = match own {
        true => (stats(cx, "SavedMean", l.channels)?, stats(cx, "SavedVariance", l.channels)?),
        false => {
            // The slots are named for training; with global statistics they hold the running ones.
            let read = |one: &str, other: &str| match cx.input_names(one).is_empty() {
                true => stats(cx, other, l.channels),
                false => stats(cx, one, l.channels),
            };
            let epsilon = f64::from(cx.attr_f32("epsilon", 1e-5)?);
            let var = read("VarianceOut", "Variance")?;
            (read("MeanOut", "Mean")?, var.into_iter().map(|v| 1.0 / (v + epsilon).sqrt()).collect())
        }
    };
    let (dx, dscale, dbias) = real!(x.dtype(), T => {
        let (v, g) = (T::read(&x), T::read(&dy));
        let dbias = l.sums(&g, |_, g| g);
        let mut dscale = vec![0.0; l.channels];
        for (run, (v, g)) in v.chunks_exact(l.inner).zip(g.chunks_exact(l.inner)).enumerate() {
            let c = l.channel(run);
            let dot = v.iter().zip(g).fold(0.0, |s, (x, g)| s + (x.wide() - mean[c]) * g.wide());
            dscale[c] += dot * inv[c];
        }
        let n = l.each as f64;
        let mut dx = Vec::with_capacity(v.len());
        for (run, (v, g)) in v.chunks_exact(l.inner).zip(g.chunks_exact(l.inner)).enumerate() {
            let c = l.channel(run);
            let by = T::of(scale[c] * inv[c]);
            let (shift, slope) = match own {
                true => (T::of(dbias[c] / n), T::of(dscale[c] * inv[c] / n)),
                false => (T::ZERO, T::ZERO),
            };
            let mean = T::of(mean[c]);
            dx.extend(v.iter().zip(g).map(|(&x, &g)| by * (g - shift - (x - mean) * slope)));
        }
        (T::tensor(dx, x.dtype(), x.shape())?, dscale, dbias)
    });
    for (slot, sums) in [("Scale@GRAD", dscale), ("Bias@GRAD", dbias)] {
        let out = f64::tensor(sums, cx.input("Scale")?.dtype(), &[l.channels])?;
        cx.set_opt(slot, out)?;
    }
    cx.set_opt("X@GRAD", dx)
}
