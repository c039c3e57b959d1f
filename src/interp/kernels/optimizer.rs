//! How do parameters move? SGD, Momentum, Adam, AdamW by Paddle 2.6.2's formulas (its CPU kernels), in float32.
//!
//! With `multi_precision` and a master, the master is updated in float32 and the parameter becomes the
//! narrowed master, so that after each step `ParamOut = narrow(MasterParamOut)` bit for bit. Without a
//! master a 16-bit parameter is widened, updated and rounded. float64 parameters are refused.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor, narrow_into};
use super::Kernel;
use super::lanes::from_f32;
use super::real::{Real, wide};
use crate::convert::Narrowing;
use crate::ir::DType;
use crate::names::Name;

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("sgd", sgd), ("momentum", momentum), ("adam", |cx| adam(cx, false)), ("adamw", |cx| adam(cx, true))];

type Result<T> = std::result::Result<T, InterpError>;

/// The parameter to update, and whether its master is what is updated.
pub(super) struct Target {
    shape: Vec<usize>,
    dtype: DType,
    master: bool,
}

/// Values taken to be updated: out of their cells where an op updates in place, so that none is copied.
pub(super) struct Taken<const N: usize> {
    /// the parameter, or its master
    pub own: Vec<f32>,
    /// other state, in the order asked for
    pub state: [Vec<f32>; N],
    dtypes: [DType; N],
    slots: [&'static str; N],
}

impl Target {
    pub fn of(cx: &OpCx<'_, '_>) -> Result<Target> {
        let param = cx.input("Param")?;
        if !matches!(param.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            return Err(dtype_fault("Param", &param, "where float32 or a 16-bit float is needed"));
        }
        let multi = cx.attr_bool("multi_precision", false)?;
        let master = if multi { cx.opt_input("MasterParam")? } else { None };
        match &master {
            // A 16-bit parameter, or a master to write: there must be one to read.
            None if multi && (param.dtype().is_low() || cx.wants("MasterParamOut")) => {
                return Err(Fault::MissingSlot { slot: "MasterParam".into() }.into());
            }
            Some(m) if m.dtype() != DType::F32 => {
                return Err(dtype_fault("MasterParam", m, "where float32 is needed"));
            }
            Some(m) if m.shape() != param.shape() => {
                return Err(shape_fault("MasterParam", m, format!("where `Param` has {:?}", param.shape())));
            }
            _ => {}
        }
        Ok(Target { shape: param.shape().to_vec(), dtype: param.dtype(), master: master.is_some() })
    }

    /// Another slot's value, of a floating type and with one element for each of the parameter.
    pub fn beside(&self, cx: &OpCx<'_, '_>, slot: &str) -> Result<Tensor> {
        let t = cx.input(slot)?;
        if !t.dtype().is_float() {
            return Err(dtype_fault(slot, &t, "where a floating type is needed"));
        }
        if t.shape() != self.shape {
            return Err(shape_fault(slot, &t, format!("where `Param` has {:?}", self.shape)));
        }
        Ok(t)
    }

    fn own_slot(&self) -> (&'static str, &'static str) {
        if self.master { ("MasterParam", "MasterParamOut") } else { ("Param", "ParamOut") }
    }

    /// Takes the values to update; slot `S` is written back to `SOut`. All that can fail is looked at before.
    pub fn take<const N: usize>(&self, cx: &mut OpCx<'_, '_>, slots: [&'static str; N]) -> Result<Taken<N>> {
        let mut dtypes = [DType::F32; N];
        for (slot, dtype) in slots.iter().zip(&mut dtypes) {
            *dtype = self.beside(cx, slot)?.dtype();
        }
        let outs = slots.map(|s| format!("{s}Out"));
        let (own, own_out) = self.own_slot();
        for out in outs.iter().map(String::as_str).chain([own_out, "ParamOut"]) {
            if !cx.wants(out) {
                return Err(Fault::MissingSlot { slot: out.to_owned() }.into());
            }
        }
        let mut names: Vec<Option<Name>> = slots.iter().map(|s| cx.input_names(s).first().copied()).collect();
        names.push(cx.input_names(own).first().copied());
        let mut take = |slot: &str, out: &str| -> Result<Vec<f32>> {
            let name = cx.input_names(slot).first().copied();
            let in_place = name == cx.output_names(out).first().copied()
                && names.iter().filter(|&&n| n == name).count() == 1
                && cx.input(slot)?.dtype() == DType::F32;
            match name.filter(|_| in_place).and_then(|n| cx.machine.lend(n)) {
                Some(t) => match t.into_data() {
                    Data::F32(v) => Ok(v),
                    other => Ok(Tensor::new(&self.shape, other)?.to_f32_vec()),
                },
                None => Ok(cx.input(slot)?.to_f32_vec()),
            }
        };
        let mut state = [const { Vec::new() }; N];
        for ((slot, out), state) in slots.iter().zip(&outs).zip(&mut state) {
            *state = take(slot, out)?;
        }
        let own = take(own, own_out)?;
        Ok(Taken { own, state, dtypes, slots })
    }

    /// Writes the new values.
    pub fn store<const N: usize>(&self, cx: &mut OpCx<'_, '_>, taken: Taken<N>) -> Result<()> {
        let Taken { own, state, dtypes, slots } = taken;
        for ((slot, values), dtype) in slots.into_iter().zip(state).zip(dtypes) {
            let t = from_f32(values, dtype, &self.shape)?;
            cx.set(&format!("{slot}Out"), t)?;
        }
        if !self.master {
            let param = from_f32(own, self.dtype, &self.shape)?;
            return cx.set("ParamOut", param);
        }
        let master = Tensor::new(&self.shape, own)?;
        let param = self.narrowed(cx, &master)?;
        cx.set("MasterParamOut", master)?;
        cx.set("ParamOut", param)
    }

    /// narrow(master), in the parameter's own memory when the op updates in place.
    fn narrowed(&self, cx: &mut OpCx<'_, '_>, master: &Tensor) -> Result<Tensor> {
        let (from, to) = (cx.input_names("Param").first().copied(), cx.output_names("ParamOut").first().copied());
        let low = self.dtype.is_low();
        if let (Some(name), true, Data::F32(values)) = (from.filter(|_| from == to), low, master.data())
            && let Some(mut own) = cx.machine.lend(name)
            && own.dtype() == self.dtype
            && own.len() == values.len()
        {
            narrow_into(values, own.data_mut(), Narrowing::NearestEven)?;
            return Ok(own);
        }
        Ok(master.cast(self.dtype, Narrowing::NearestEven)?)
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
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
    let lr = number(cx, "LearningRate")?;
    let mut t = target.take(cx, [])?;
    t.own.iter_mut().zip(f32::read(&grad).iter()).for_each(|(p, &g)| *p -= lr * g);
    target.store(cx, t)
}

/// v = mu · v + g; p −= lr · v, or with `use_nesterov` p −= lr · (g + mu · v).
fn momentum(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
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
    let mut t = target.take(cx, ["Velocity"])?;
    for ((p, &g), v) in t.own.iter_mut().zip(f32::read(&grad).iter()).zip(&mut t.state[0]) {
        let mut g = g * rescale;
        if decay != 0.0 {
            g += decay * *p;
        }
        *v = *v * mu + g;
        *p -= if nesterov { (g + *v * mu) * lr } else { lr * *v };
    }
    target.store(cx, t)
}

/// Adam and AdamW. The powers of the betas are those of this step: they are multiplied on afterwards,
/// unless `use_global_beta_pow`. `lazy_mode` concerns sparse gradients only.
fn adam(cx: &mut OpCx<'_, '_>, decoupled: bool) -> Result<()> {
    if skips(cx)? {
        return Ok(());
    }
    let target = Target::of(cx)?;
    let grad = target.beside(cx, "Grad")?;
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
    let global = cx.attr_bool("use_global_beta_pow", false)?;
    let step = lr * ratio * (1.0 - pow2).sqrt() / (1.0 - pow1);
    let epsilon = epsilon * (1.0 - pow2).sqrt();
    let mut t = target.take(cx, ["Moment1", "Moment2"])?;
    let [m1, m2] = &mut t.state;
    let grads = f32::read(&grad);
    let update = |p: &mut f32, g: f32, m1: &mut f32, m2: &mut f32| {
        *m1 = beta1 * *m1 + (1.0 - beta1) * g;
        *m2 = beta2 * *m2 + (1.0 - beta2) * g * g;
        *p -= step * (*m1 / (m2.sqrt() + epsilon));
    };
    let rows = t.own.iter_mut().zip(grads.iter()).zip(m1.iter_mut().zip(m2));
    match decay == 0.0 {
        true => wide(|| rows.for_each(|((p, &g), (m1, m2))| update(p, g, m1, m2))),
        false => wide(|| {
            rows.for_each(|((p, &g), (m1, m2))| {
                *p -= decay * *p;
                update(p, g, m1, m2);
            })
        }),
    }
    target.store(cx, t)?;
    if global { Ok(()) } else { powers(cx, beta1, beta2) }
}

/// Multiplies the powers of the betas on.
pub(super) fn powers(cx: &mut OpCx<'_, '_>, beta1: f32, beta2: f32) -> Result<()> {
    let (pow1, pow2) = (number(cx, "Beta1Pow")?, number(cx, "Beta2Pow")?);
    for (slot, out, value) in [("Beta1Pow", "Beta1PowOut", beta1 * pow1), ("Beta2Pow", "Beta2PowOut", beta2 * pow2)] {
        let pow = cx.input(slot)?;
        let next = from_f32(vec![value; pow.len()], pow.dtype(), pow.shape())?;
        cx.set(out, next)?;
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
