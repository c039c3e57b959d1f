//! How is the loss scale kept? Paddle's `check_finite_and_unscale` and `update_loss_scaling`.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::InterpError;
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::from_f32;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("check_finite_and_unscale", check_finite_and_unscale), ("update_loss_scaling", update_loss_scaling)];

fn one(cx: &OpCx<'_, '_>, slot: &str) -> Result<Tensor, InterpError> {
    let t = cx.input(slot)?;
    if t.len() == 1 { Ok(t) } else { Err(shape_fault(slot, &t, "where one element is needed")) }
}

/// `Out` = `X` / `Scale` (as a product with the inverse, in float32, rounded once); `FoundInfinite` is
/// whether any element of any `X`, so unscaled, is infinite or NaN. As Paddle's GPU kernel, `Out` is
/// written in either case.
fn check_finite_and_unscale(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let inverse = 1.0 / one(cx, "Scale")?.to_f32_vec()[0];
    let (xs, mut found, mut outs) = (cx.inputs("X")?, false, Vec::new());
    for x in &xs {
        if !matches!(x.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            return Err(dtype_fault("X", x, "where float32 or a 16-bit float is needed"));
        }
        let v: Vec<f32> = x.to_f32_vec().into_iter().map(|v| v * inverse).collect();
        found |= v.iter().any(|v| !v.is_finite());
        outs.push(from_f32(v, x.dtype(), x.shape())?);
    }
    cx.set_all("Out", outs)?;
    let found = Tensor::new(&[1], vec![found])?;
    cx.set("FoundInfinite", found)
}

/// After `decr_every_n_nan_or_inf` bad steps in a row the scale is multiplied by `decr_ratio` (but stays at
/// least 1), after `incr_every_n_steps` good ones by `incr_ratio` (unless that is infinite). On a bad
/// step every `Out` is zero. With `stop_update` only this last part happens.
fn update_loss_scaling(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let found = one(cx, "FoundInfinite")?.to_bool_vec()[0];
    let outs = cx.inputs("X")?;
    let outs = match found {
        false => outs,
        true => outs.iter().map(|x| Tensor::zeros(x.dtype(), x.shape())).collect::<Result<_, _>>()?,
    };
    cx.set_all("Out", outs)?;
    let stop = match cx.opt_input("StopUpdate")? {
        Some(t) => t.to_bool_vec().first() == Some(&true),
        None => cx.attr_bool("stop_update", false)?,
    };
    if stop {
        return Ok(());
    }
    let scale = one(cx, "PrevLossScaling")?;
    let (good_in, bad_in) = (one(cx, "InGoodSteps")?, one(cx, "InBadSteps")?);
    let (mut good, mut bad) = (good_in.to_i64_vec()[0], bad_in.to_i64_vec()[0]);
    let mut value = scale.to_f32_vec()[0];
    if found {
        good = 0;
        bad = bad.wrapping_add(1);
        if bad == cx.attr_i64("decr_every_n_nan_or_inf", 2)? {
            value = (value * cx.attr_f32("decr_ratio", 0.8)?).max(1.0);
            bad = 0;
        }
    } else {
        bad = 0;
        good = good.wrapping_add(1);
        if good == cx.attr_i64("incr_every_n_steps", 1000)? {
            let next = value * cx.attr_f32("incr_ratio", 2.0)?;
            value = if next.is_finite() { next } else { value };
            good = 0;
        }
    }
    let value = from_f32(vec![value], scale.dtype(), scale.shape())?;
    cx.set("LossScaling", value)?;
    for (slot, like, steps) in [("OutGoodSteps", good_in, good), ("OutBadSteps", bad_in, bad)] {
        let steps = super::lanes::Lanes::Int(vec![steps]).tensor(like.dtype(), like.shape())?;
        cx.set(slot, steps)?;
    }
    Ok(())
}
