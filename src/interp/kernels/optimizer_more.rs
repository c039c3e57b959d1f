//! How do parameters move by the rarer rules? Lamb, Adagrad, Adadelta, Adamax, RMSProp, by Paddle 2.6.2's
//! formulas (its CPU kernels), in float32. Masters as in `optimizer.rs`.

use super::super::context::OpCx;
use super::super::error::InterpError;
use super::Kernel;
use super::optimizer::{Target, number, powers, skips};

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("lamb", lamb), ("adagrad", adagrad), ("adadelta", adadelta), ("adamax", adamax), ("rmsprop", rmsprop)];

type Result<T> = std::result::Result<T, InterpError>;

/// Adam's direction, scaled by ‖p‖ / ‖direction‖ (norms in float64). Without `weight_decay` the ratio is 1
/// unless `always_adapt`.
fn lamb(cx: &mut OpCx<'_, '_>) -> Result<()> {
    if skips(cx)? {
        return Ok(());
    }
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (moment1, mut m1) = target.beside(cx, "Moment1")?;
    let (moment2, mut m2) = target.beside(cx, "Moment2")?;
    let (beta1, beta2) = (cx.attr_f32("beta1", 0.9)?, cx.attr_f32("beta2", 0.999)?);
    let (epsilon, decay) = (cx.attr_f32("epsilon", 1e-6)?, cx.attr_f32("weight_decay", 0.01)?);
    let (pow1, pow2) = (number(cx, "Beta1Pow")?, number(cx, "Beta2Pow")?);
    let lr = number(cx, "LearningRate")?;
    let mut direction = Vec::with_capacity(grad.len());
    for (((p, g), m1), m2) in target.values.iter().zip(grad).zip(&mut m1).zip(&mut m2) {
        *m1 = beta1 * *m1 + (1.0 - beta1) * g;
        *m2 = beta2 * *m2 + (1.0 - beta2) * g * g;
        let (a, b) = (*m1 / (1.0 - pow1), *m2 / (1.0 - pow2));
        direction.push(a / (b.sqrt() + epsilon) + decay * p);
    }
    let norm = |v: &[f32]| v.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let (own, step) = (norm(&target.values), norm(&direction));
    let adapts = decay > 0.0 || cx.attr_bool("always_adapt", false)?;
    let ratio = if adapts && own > 0.0 && step > 0.0 { (own / step) as f32 } else { 1.0 };
    target.values.iter_mut().zip(direction).for_each(|(p, d)| *p -= lr * ratio * d);
    target.keep(cx, "Moment1Out", &moment1, m1)?;
    target.keep(cx, "Moment2Out", &moment2, m2)?;
    powers(cx, beta1, beta2)?;
    target.finish(cx)
}

/// m += g²; p −= lr · g / (√m + ε)
fn adagrad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (moment, mut m) = target.beside(cx, "Moment")?;
    let (lr, epsilon) = (number(cx, "LearningRate")?, cx.attr_f32("epsilon", 1e-6)?);
    for ((p, g), m) in target.values.iter_mut().zip(grad).zip(&mut m) {
        *m += g * g;
        *p -= lr * g / (m.sqrt() + epsilon);
    }
    target.keep(cx, "MomentOut", &moment, m)?;
    target.finish(cx)
}

/// a = ρa + (1−ρ)g²; u = −√((b+ε)/(a+ε)) · g; b = ρb + (1−ρ)u²; p += lr · u
fn adadelta(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (grads, mut a) = target.beside(cx, "AvgSquaredGrad")?;
    let (updates, mut b) = target.beside(cx, "AvgSquaredUpdate")?;
    let (rho, epsilon) = (cx.attr_f32("rho", 0.95)?, cx.attr_f32("epsilon", 1e-6)?);
    let lr = number(cx, "LearningRate")?;
    for (((p, g), a), b) in target.values.iter_mut().zip(grad).zip(&mut a).zip(&mut b) {
        *a = rho * *a + (1.0 - rho) * g * g;
        let u = -((*b + epsilon) / (*a + epsilon)).sqrt() * g;
        *b = rho * *b + (1.0 - rho) * u * u;
        *p += lr * u;
    }
    target.keep(cx, "AvgSquaredGradOut", &grads, a)?;
    target.keep(cx, "AvgSquaredUpdateOut", &updates, b)?;
    target.finish(cx)
}

/// m = β₁m + (1−β₁)g; n = max(|g|, β₂n + ε); p −= lr / (1 − β₁ᵗ) · m / n. The power is the program's own to
/// advance.
fn adamax(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (moment, mut m) = target.beside(cx, "Moment")?;
    let (norm, mut n) = target.beside(cx, "InfNorm")?;
    let (beta1, beta2) = (cx.attr_f32("beta1", 0.9)?, cx.attr_f32("beta2", 0.999)?);
    let epsilon = cx.attr_f32("epsilon", 1e-8)?;
    let lr = number(cx, "LearningRate")? / (1.0 - number(cx, "Beta1Pow")?);
    for (((p, g), m), n) in target.values.iter_mut().zip(grad).zip(&mut m).zip(&mut n) {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *n = g.abs().max(beta2 * *n + epsilon);
        *p -= lr * (*m / *n);
    }
    target.keep(cx, "MomentOut", &moment, m)?;
    target.keep(cx, "InfNormOut", &norm, n)?;
    target.finish(cx)
}

/// s = ρs + (1−ρ)g²; v = μv + lr · g / √(s + ε), with `centered` √(s − mean² + ε); p −= v
fn rmsprop(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (square, mut s) = target.beside(cx, "MeanSquare")?;
    let (moment, mut v) = target.beside(cx, "Moment")?;
    let (mu, decay) = (cx.attr_f32("momentum", 0.0)?, cx.attr_f32("decay", 0.9)?);
    let (lr, epsilon) = (number(cx, "LearningRate")?, cx.attr_f32("epsilon", 1e-10)?);
    let mut mean = match cx.attr_bool("centered", false)? {
        true => Some(target.beside(cx, "MeanGrad")?),
        false => None,
    };
    for (i, ((p, g), (s, v))) in target.values.iter_mut().zip(grad).zip(s.iter_mut().zip(&mut v)).enumerate() {
        *s = decay * *s + (1.0 - decay) * g * g;
        let spread = match &mut mean {
            Some((_, m)) => {
                m[i] = decay * m[i] + (1.0 - decay) * g;
                *s - m[i] * m[i]
            }
            None => *s,
        };
        *v = mu * *v + lr * g / (spread + epsilon).sqrt();
        *p -= *v;
    }
    target.keep(cx, "MeanSquareOut", &square, s)?;
    target.keep(cx, "MomentOut", &moment, v)?;
    match mean {
        Some((like, m)) => target.keep(cx, "MeanGradOut", &like, m)?,
        None => {
            if let Some(m) = cx.opt_input("MeanGrad")? {
                cx.set_opt("MeanGradOut", m)?;
            }
        }
    }
    target.finish(cx)
}
