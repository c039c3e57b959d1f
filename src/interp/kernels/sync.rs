//! How are parameters narrowed and pairs brought in step? `amp_init` and `resync` (see `ops::io`).
//!
//! Narrowing is to nearest even. With [`Narrowing::Truncate`], `resync` narrows as the `cast` that it is
//! lowered to, and `amp_init` as Paddle 2.6.2's Python does on a CPU: bfloat16 towards zero, float16 (by
//! way of NumPy) to nearest even.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor, narrow, narrow_into, widen_into};
use super::Kernel;
use crate::convert::Narrowing;
use crate::ir::DType;
use crate::names::Name;

pub(super) const KERNELS: &[(&str, Kernel)] = &[("amp_init", amp_init), ("resync", resync)];

/// The 16-bit type in the attribute `dtype`.
fn target(cx: &OpCx<'_, '_>) -> Result<DType, InterpError> {
    let dtype = cx.attr_dtype("dtype")?;
    let dtype = cx.need("dtype", dtype)?;
    match dtype.is_low() {
        true => Ok(dtype),
        false => Err(Fault::BadAttr { name: "dtype".into(), what: format!("{dtype} is no 16-bit float") }.into()),
    }
}

fn must_be_float(slot: &str, t: &Tensor) -> Result<(), InterpError> {
    if t.dtype().is_float() { Ok(()) } else { Err(dtype_fault(slot, t, "where a floating type is needed")) }
}

/// Narrows `X` to `dtype` in `Out`; what has that dtype stays. Then the masters of the parameters in
/// `MasterOf` become the widened narrowed value.
fn amp_init(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let dtype = target(cx)?;
    let how = match (cx.options().narrowing, dtype) {
        (Narrowing::Truncate, DType::BF16) => Narrowing::Truncate,
        _ => Narrowing::NearestEven,
    };
    let xs = cx.inputs("X")?;
    xs.iter().try_for_each(|x| must_be_float("X", x))?;
    // One at a time: the old tensor goes as soon as the new one is there.
    let outs = cx.output_names("Out");
    if outs.len() != xs.len() {
        let what = format!("slot `Out` has {} arguments, `X` {}", outs.len(), xs.len());
        return Err(Fault::Unsupported { what }.into());
    }
    for (&name, x) in outs.iter().zip(xs) {
        let out = x.cast(dtype, how)?;
        drop(x);
        cx.write(name, out)?;
    }
    let masters = cx.inputs("MasterOf")?.iter().map(|p| p.cast(DType::F32, how)).collect::<Result<Vec<_>, _>>()?;
    if !masters.is_empty() || !cx.output_names("MasterParamOut").is_empty() {
        cx.set_all("MasterParamOut", masters)?;
    }
    Ok(())
}

/// What decides the value of a pair.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Param,
    Master,
    Both,
}

struct Pair {
    param: Name,
    master: Name,
    param_out: Name,
    master_out: Name,
    dtype: DType,
    how: Narrowing,
}

fn arg(slot: &str, names: &[Name]) -> Result<Name, InterpError> {
    names.first().copied().ok_or_else(|| Fault::MissingSlot { slot: slot.to_owned() }.into())
}

/// Brings one pair in step, in the direction of the table in `ops::io`.
fn resync(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let pair = Pair {
        param: arg("Param", cx.input_names("Param"))?,
        master: arg("MasterParam", cx.input_names("MasterParam"))?,
        param_out: arg("ParamOut", cx.output_names("ParamOut"))?,
        master_out: arg("MasterParamOut", cx.output_names("MasterParamOut"))?,
        dtype: target(cx)?,
        how: cx.options().narrowing,
    };
    let fresh = |name| cx.machine.cell(name).is_some_and(|c| c.fresh());
    let direction = match cx.attr_str("direction")?.unwrap_or("auto") {
        "param" => Direction::Param,
        "master" => Direction::Master,
        "both" => Direction::Both,
        "auto" => match (fresh(pair.param), fresh(pair.master)) {
            (true, true) => Direction::Both,
            (true, false) => Direction::Param,
            (false, true) => Direction::Master,
            (false, false) => return Ok(()),
        },
        other => {
            let what = format!("{other:?} is none of param, master, both, auto");
            return Err(Fault::BadAttr { name: "direction".into(), what }.into());
        }
    };
    pair.run(cx, direction)?;
    let now = cx.machine.scope.tick();
    for name in [pair.param, pair.master, pair.param_out, pair.master_out] {
        if let Some(slot) = cx.machine.slot(name) {
            cx.machine.scope.stamp_synced(slot, now);
        }
    }
    Ok(())
}

/// The memory of a cell that is rewritten in place, when it has the dtype wanted and the shape of `like`.
fn reuse(cx: &mut OpCx<'_, '_>, cell: Name, out: Name, dtype: DType, like: &Tensor) -> Option<Tensor> {
    let fits = cx.value(cell).is_some_and(|t| t.dtype() == dtype && t.shape() == like.shape());
    if cell == out && fits { cx.machine.lend(cell) } else { None }
}

impl Pair {
    fn run(&self, cx: &mut OpCx<'_, '_>, mut direction: Direction) -> Result<(), InterpError> {
        if direction == Direction::Both {
            direction = self.arbitrate(cx)?;
        }
        match direction {
            Direction::Param => {
                let param = cx.input("Param")?;
                must_be_float("Param", &param)?;
                let low = param.cast(self.dtype, self.how)?;
                let own = match param.dtype().is_low() {
                    true => reuse(cx, self.master, self.master_out, DType::F32, &param),
                    false => None,
                };
                let master = match own {
                    Some(mut own) => {
                        widen_into(param.data(), own.data_mut())?;
                        own
                    }
                    None => param.cast(DType::F32, self.how)?,
                };
                cx.write(self.master_out, master)?;
                drop(param);
                cx.write(self.param_out, low)
            }
            _ => {
                let master = cx.input("MasterParam")?;
                must_be_float("MasterParam", &master)?;
                let master = master.cast(DType::F32, self.how)?;
                let low = self.narrowed(cx, &master)?;
                cx.write(self.param_out, low)?;
                cx.write(self.master_out, master)
            }
        }
    }

    /// narrow(master), in the parameter's own memory when that has the right size.
    fn narrowed(&self, cx: &mut OpCx<'_, '_>, master: &Tensor) -> Result<Tensor, InterpError> {
        let Data::F32(values) = master.data() else { return Err(dtype_fault("MasterParam", master, "")) };
        let own = reuse(cx, self.param, self.param_out, self.dtype, master);
        match own {
            Some(mut own) => {
                narrow_into(values, own.data_mut(), self.how)?;
                Ok(own)
            }
            None => Ok(Tensor::new(master.shape(), narrow(values, self.dtype, self.how)?)?),
        }
    }

    /// Both were loaded: the master decides, and by `on_conflict` when the parameter is not the narrowed
    /// master (NaNs of any payload are equal).
    fn arbitrate(&self, cx: &mut OpCx<'_, '_>) -> Result<Direction, InterpError> {
        let (param, master) = (cx.input("Param")?, cx.input("MasterParam")?);
        must_be_float("Param", &param)?;
        must_be_float("MasterParam", &master)?;
        if param.shape() != master.shape() {
            return Err(shape_fault("MasterParam", &master, format!("where `Param` has {:?}", param.shape())));
        }
        let policy = cx.attr_str("on_conflict")?.unwrap_or("master");
        if !["error", "master", "param"].contains(&policy) {
            let what = format!("{policy:?} is none of error, master, param");
            return Err(Fault::BadAttr { name: "on_conflict".into(), what }.into());
        }
        let has = param.cast(self.dtype, self.how)?.to_f32_vec();
        let should = master.cast(self.dtype, self.how)?.to_f32_vec();
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        if !has.iter().zip(&should).any(differs) {
            return Ok(Direction::Master);
        }
        let largest = has.iter().zip(&should).filter(|&p| differs(p)).map(|(a, b)| (a - b).abs());
        // A difference that is NaN (a NaN or an infinity on one side) is the largest.
        let largest = largest.fold(0.0f32, |m, d| if d > m || d.is_nan() { d } else { m });
        let (param, master) = (cx.text(self.param).to_owned(), cx.text(self.master).to_owned());
        match policy {
            "error" => Err(Fault::Conflict { param, master, largest }.into()),
            "param" => Ok(Direction::Param),
            _ => {
                cx.warn(format!(
                    "`{param}` and `{master}` were both loaded and differ by up to {largest:e}; the master is kept"
                ));
                Ok(Direction::Master)
            }
        }
    }
}
