//! How do parameters move? SGD, Momentum, Adam, AdamW by Paddle 2.6.2's formulas (its CPU kernels), in float32.
//!
//! With `multi_precision` and a master, the master is updated in float32 and the parameter becomes the
//! narrowed master, so that after each step `ParamOut = narrow(MasterParamOut)` bit for bit. Without a
//! master a 16-bit parameter is widened, updated and rounded. float64 parameters are refused.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::from_f32;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("sgd", sgd), ("momentum", momentum), ("adam", |cx| adam(cx, false)), ("adamw", |cx| adam(cx, true))];

type Result<T> = std::result::Result<T, InterpError>;

/// The parameter to update, or its master.
pub(super) struct Target {
    param: Tensor,
    master: bool,
    /// the values that are updated
    pub values: Vec<f32>,
}

impl Target {
    pub fn of(cx: &OpCx<'_, '_>) -> Result<Target> {
        let param = cx.input("Param")?;
        if !matches!(param.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            return Err(dtype_fault("Param", &param, "where float32 or a 16-bit float is needed"));
        }
        let master = match cx.attr_bool("multi_precision", false)? {
            true => cx.opt_input("MasterParam")?,
            false => None,
        };
        match master {
            // A 16-bit parameter, or a master to write: there must be one to read.
            None if cx.attr_bool("multi_precision", false)?
                && (param.dtype().is_low() || cx.wants("MasterParamOut")) =>
            {
                Err(Fault::MissingSlot { slot: "MasterParam".into() }.into())
            }
            None => Ok(Target { values: param.to_f32_vec(), param, master: false }),
            Some(m) if m.dtype() != DType::F32 => Err(dtype_fault("MasterParam", &m, "where float32 is needed")),
            Some(m) if m.shape() != param.shape() => {
                Err(shape_fault("MasterParam", &m, format!("where `Param` has {:?}", param.shape())))
            }
            Some(m) => Ok(Target { values: m.to_f32_vec(), param, master: true }),
        }
    }

    /// Another slot's values, one for each element of the parameter.
    pub fn beside(&self, cx: &OpCx<'_, '_>, slot: &str) -> Result<(Tensor, Vec<f32>)> {
        let t = cx.input(slot)?;
        if !t.dtype().is_float() {
            return Err(dtype_fault(slot, &t, "where a floating type is needed"));
        }
        if t.shape() != self.param.shape() {
            return Err(shape_fault(slot, &t, format!("where `Param` has {:?}", self.param.shape())));
        }
        let values = t.to_f32_vec();
        Ok((t, values))
    }

    /// Writes new values of state that stands beside the parameter.
    pub fn keep(&self, cx: &mut OpCx<'_, '_>, slot: &str, like: &Tensor, values: Vec<f32>) -> Result<()> {
        let t = from_f32(values, like.dtype(), like.shape())?;
        cx.set(slot, t)
    }

    /// Writes the new values.
    pub fn finish(self, cx: &mut OpCx<'_, '_>) -> Result<()> {
        let param = from_f32(self.values.clone(), self.param.dtype(), self.param.shape())?;
        if self.master {
            let master = Tensor::new(self.param.shape(), self.values)?;
            cx.set("MasterParamOut", master)?;
        }
        cx.set("ParamOut", param)
    }
}

/// The first element of a slot, as float32.
pub(super) fn number(cx: &OpCx<'_, '_>, slot: &str) -> Result<f32> {
    let t = cx.input(slot)?;
    t.to_f32_vec().first().copied().ok_or_else(|| shape_fault(slot, &t, "where one element is needed"))
}

/// A coefficient from its tensor, or else from its attribute.
fn coefficient(cx: &OpCx<'_, '_>, slot: &str, attr: &str, default: f32) -> Result<f32> {
    match cx.opt_input(slot)? {
        Some(t) if !t.is_empty() => Ok(t.to_f32_vec()[0]),
        _ => cx.attr_f32(attr, default),
    }
}

/// p −= lr · g
fn sgd(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let lr = number(cx, "LearningRate")?;
    target.values.iter_mut().zip(grad).for_each(|(p, g)| *p -= lr * g);
    target.finish(cx)
}

/// v = mu · v + g; p −= lr · v, or with `use_nesterov` p −= lr · (g + mu · v).
fn momentum(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (velocity, mut v) = target.beside(cx, "Velocity")?;
    let (lr, mu) = (number(cx, "LearningRate")?, cx.attr_f32("mu", 0.0)?);
    let nesterov = cx.attr_bool("use_nesterov", false)?;
    let rescale = cx.attr_f32("rescale_grad", 1.0)?;
    let decay = match cx.attr_str("regularization_method")?.unwrap_or("") {
        "" => 0.0,
        "l2_decay" => cx.attr_f32("regularization_coeff", 0.0)?,
        other => {
            let what = format!("{other:?} is not known");
            return Err(Fault::BadAttr { name: "regularization_method".into(), what }.into());
        }
    };
    for ((p, g), v) in target.values.iter_mut().zip(grad).zip(&mut v) {
        let mut g = g * rescale;
        if decay != 0.0 {
            g += decay * *p;
        }
        *v = *v * mu + g;
        *p -= if nesterov { (g + *v * mu) * lr } else { lr * *v };
    }
    let v = from_f32(v, velocity.dtype(), velocity.shape())?;
    cx.set("VelocityOut", v)?;
    target.finish(cx)
}

/// Adam and AdamW. The powers of the betas are those of this step: they are multiplied on afterwards,
/// unless `use_global_beta_pow`. `lazy_mode` concerns sparse gradients only.
fn adam(cx: &mut OpCx<'_, '_>, decoupled: bool) -> Result<()> {
    if skips(cx)? {
        return Ok(());
    }
    let mut target = Target::of(cx)?;
    let (_, grad) = target.beside(cx, "Grad")?;
    let (moment1, mut m1) = target.beside(cx, "Moment1")?;
    let (moment2, mut m2) = target.beside(cx, "Moment2")?;
    let beta1 = coefficient(cx, "Beta1Tensor", "beta1", 0.9)?;
    let beta2 = coefficient(cx, "Beta2Tensor", "beta2", 0.999)?;
    let epsilon = coefficient(cx, "EpsilonTensor", "epsilon", 1e-8)?;
    let (pow1, pow2) = (number(cx, "Beta1Pow")?, number(cx, "Beta2Pow")?);
    let lr = number(cx, "LearningRate")?;
    let (ratio, decay) = match decoupled {
        false => (1.0, 0.0),
        true => {
            let ratio = cx.attr_f32("lr_ratio", 1.0)?;
            let coeff = if cx.attr_bool("with_decay", false)? { cx.attr_f32("coeff", 0.01)? } else { 0.0 };
            (ratio, lr * ratio * coeff)
        }
    };
    let step = lr * ratio * (1.0 - pow2).sqrt() / (1.0 - pow1);
    let epsilon = epsilon * (1.0 - pow2).sqrt();
    for (((p, g), m1), m2) in target.values.iter_mut().zip(grad).zip(&mut m1).zip(&mut m2) {
        *m1 = beta1 * *m1 + (1.0 - beta1) * g;
        *m2 = beta2 * *m2 + (1.0 - beta2) * g * g;
        if decay != 0.0 {
            *p -= decay * *p;
        }
        *p -= step * (*m1 / (m2.sqrt() + epsilon));
    }
    target.keep(cx, "Moment1Out", &moment1, m1)?;
    target.keep(cx, "Moment2Out", &moment2, m2)?;
    if !cx.attr_bool("use_global_beta_pow", false)? {
        powers(cx, beta1, beta2)?;
    }
    target.finish(cx)
}

/// Multiplies the powers of the betas on.
pub(super) fn powers(cx: &mut OpCx<'_, '_>, beta1: f32, beta2: f32) -> Result<()> {
    let (pow1, pow2) = (number(cx, "Beta1Pow")?, number(cx, "Beta2Pow")?);
    {
        for (slot, out, value) in [("Beta1Pow", "Beta1PowOut", beta1 * pow1), ("Beta2Pow", "Beta2PowOut", beta2 * pow2)]
        {
            let pow = cx.input(slot)?;
            let next = from_f32(vec![value; pow.len()], pow.dtype(), pow.shape())?;
            cx.set(out, next)?;
        }
    }
    Ok(())
}

/// Whether the step is skipped; one that is copies all state.
pub(super) fn skips(cx: &mut OpCx<'_, '_>) -> Result<bool> {
    if cx.opt_input("SkipUpdate")?.is_none_or(|skip| skip.to_bool_vec().first() != Some(&true)) {
        return Ok(false);
    }
    for (slot, out) in [
        ("Param", "ParamOut"),
        ("Moment1", "Moment1Out"),
        ("Moment2", "Moment2Out"),
        ("Beta1Pow", "Beta1PowOut"),
        ("Beta2Pow", "Beta2PowOut"),
        ("MasterParam", "MasterParamOut"),
    ] {
        if cx.wants(out) {
            let value = cx.input(slot)?;
            cx.set(out, value)?;
        }
    }
    Ok(true)
}
