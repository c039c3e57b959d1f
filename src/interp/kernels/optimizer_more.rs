//! How do parameters move by the rarer rules? Lamb, Adagrad, Adadelta, Adamax, RMSProp, by Paddle 2.6.2's
//! formulas (its CPU kernels), in float32. Masters as in `optimizer.rs`.

use super::super::context::OpCx;
use super::super::error::InterpError;
use super::Kernel;
use super::optimizer::{Target, number, powers, skips};
use super::real::Real;

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("lamb", lamb), ("adagrad", adagrad), ("adadelta", adadelta), ("adamax", adamax), ("rmsprop", rmsprop)];

type Result<T> = std::result::Result<T, InterpError>;

/// Adam's direction, scaled by ‖p‖ / ‖direction‖ (norms in float64). Without `weight_decay` the ratio is 1
/// unless `always_adapt`.
fn lamb(cx: &mut OpCx<'_, '_>) -> Result<()> {
    if skips(cx)? {
        return Ok(());
    }
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let (beta1, beta2) = (cx.attr_f32("beta1", 0.9)?, cx.attr_f32("beta2", 0.999)?);
    let (epsilon, decay) = (cx.attr_f32("epsilon", 1e-6)?, cx.attr_f32("weight_decay", 0.01)?);
    let (pow1, pow2) = (number(cx, "Beta1Pow")?, number(cx, "Beta2Pow")?);
    let lr = number(cx, "LearningRate")?;
    let adapts = decay > 0.0 || cx.attr_bool("always_adapt", false)?;
    let mut t = target.take(cx, ["Moment1", "Moment2"])?;
    let [m1, m2] = &mut t.state;
    let mut direction = Vec::with_capacity(grad.len());
    for (((p, &g), m1), m2) in t.own.iter().zip(f32::read(&grad).iter()).zip(m1).zip(m2) {
        *m1 = beta1 * *m1 + (1.0 - beta1) * g;
        *m2 = beta2 * *m2 + (1.0 - beta2) * g * g;
        let (a, b) = (*m1 / (1.0 - pow1), *m2 / (1.0 - pow2));
        direction.push(a / (b.sqrt() + epsilon) + decay * p);
    }
    let norm = |v: &[f32]| v.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let (own, step) = (norm(&t.own), norm(&direction));
    let ratio = if adapts && own > 0.0 && step > 0.0 { (own / step) as f32 } else { 1.0 };
    t.own.iter_mut().zip(direction).for_each(|(p, d)| *p -= lr * ratio * d);
    target.store(cx, t)?;
    powers(cx, beta1, beta2)
}

/// m += g²; p −= lr · g / (√m + ε)
fn adagrad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let (lr, epsilon) = (number(cx, "LearningRate")?, cx.attr_f32("epsilon", 1e-6)?);
    let mut t = target.take(cx, ["Moment"])?;
    for ((p, &g), m) in t.own.iter_mut().zip(f32::read(&grad).iter()).zip(&mut t.state[0]) {
        *m += g * g;
        *p -= lr * g / (m.sqrt() + epsilon);
    }
    target.store(cx, t)
}

/// a = ρa + (1−ρ)g²; u = −√((b+ε)/(a+ε)) · g; b = ρb + (1−ρ)u²; p += lr · u
fn adadelta(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let (rho, epsilon) = (cx.attr_f32("rho", 0.95)?, cx.attr_f32("epsilon", 1e-6)?);
    let lr = number(cx, "LearningRate")?;
    let mut t = target.take(cx, ["AvgSquaredGrad", "AvgSquaredUpdate"])?;
    let [a, b] = &mut t.state;
    for (((p, &g), a), b) in t.own.iter_mut().zip(f32::read(&grad).iter()).zip(a).zip(b) {
        *a = rho * *a + (1.0 - rho) * g * g;
        let u = -((*b + epsilon) / (*a + epsilon)).sqrt() * g;
        *b = rho * *b + (1.0 - rho) * u * u;
        *p += lr * u;
    }
    target.store(cx, t)
}

/// m = β₁m + (1−β₁)g; n = max(|g|, β₂n + ε); p −= lr / (1 − β₁ᵗ) · m / n. The power is the program's own to
/// advance.
fn adamax(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let (beta1, beta2) = (cx.attr_f32("beta1", 0.9)?, cx.attr_f32("beta2", 0.999)?);
    let epsilon = cx.attr_f32("epsilon", 1e-8)?;
    let lr = number(cx, "LearningRate")? / (1.0 - number(cx, "Beta1Pow")?);
    let mut t = target.take(cx, ["Moment", "InfNorm"])?;
    let [m, n] = &mut t.state;
    for (((p, &g), m), n) in t.own.iter_mut().zip(f32::read(&grad).iter()).zip(m).zip(n) {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *n = g.abs().max(beta2 * *n + epsilon);
        *p -= lr * (*m / *n);
    }
    target.store(cx, t)
}

/// s = ρs + (1−ρ)g²; v = μv + lr · g / √(s + ε), with `centered` √(s − mean² + ε); p −= v
fn rmsprop(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let (mu, decay) = (cx.attr_f32("momentum", 0.0)?, cx.attr_f32("decay", 0.9)?);
    let (lr, epsilon) = (number(cx, "LearningRate")?, cx.attr_f32("epsilon", 1e-10)?);
    let grads = f32::read(&grad);
    let step = |p: &mut f32, g: f32, s: f32, spread: f32, v: &mut f32| {
        *v = mu * *v + lr * g / (s - spread + epsilon).sqrt();
        *p -= *v;
    };
    if !cx.attr_bool("centered", false)? {
        let mut t = target.take(cx, ["MeanSquare", "Moment"])?;
        let [s, v] = &mut t.state;
        for ((p, &g), (s, v)) in t.own.iter_mut().zip(grads.iter()).zip(s.iter_mut().zip(v)) {
            *s = decay * *s + (1.0 - decay) * g * g;
            step(p, g, *s, 0.0, v);
        }
        target.store(cx, t)?;
        // Not used, and written nevertheless.
        return match cx.opt_input("MeanGrad")? {
            Some(m) => cx.set_opt("MeanGradOut", m),
            None => Ok(()),
        };
    }
    let mut t = target.take(cx, ["MeanSquare", "Moment", "MeanGrad"])?;
    let [s, v, m] = &mut t.state;
    for ((p, &g), ((s, v), m)) in t.own.iter_mut().zip(grads.iter()).zip(s.iter_mut().zip(v).zip(m)) {
        *s = decay * *s + (1.0 - decay) * g * g;
        *m = decay * *m + (1.0 - decay) * g;
        step(p, g, *s, *m * *m, v);
    }
    target.store(cx, t)
}
