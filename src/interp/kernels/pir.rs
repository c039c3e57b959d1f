//! What do ops of Paddle 3.x compute that ProgramDesc has no kind for? Source: Paddle 3.3.1's `pd_op` dialect.

use super::super::context::OpCx;
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor};
use super::Kernel;
use crate::convert::Narrowing;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    // They name values; see `paddle::pir`.
    ("builtin.parameter", |_| Ok(())),
    ("builtin.set_parameter", |_| Ok(())),
    ("builtin.shadow_output", |_| Ok(())),
    ("pd_op.data", |_| Ok(())),
    ("pd_op.fetch", fetch),
    ("pd_op.full_int_array", full_int_array),
    ("pd_op.full_like", full_like),
];

fn fetch(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("I0")?;
    cx.set("O0", x)
}

fn full_int_array(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let values = cx.attr_ints("value")?;
    let values = cx.need("value", values)?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::I64);
    cx.room(dtype, &[values.len()])?;
    let out = Tensor::new(&[values.len()], values)?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("O0", out)
}

/// A tensor of the shape of the first operand, filled with the second.
fn full_like(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (x, value) = (cx.input("I0")?, cx.input("I1")?);
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(x.dtype());
    let n = cx.room(DType::F64, x.shape())?;
    let Some(&value) = value.to_f64_vec().first() else {
        return Err(Fault::MissingSlot { slot: "I1".into() }.into());
    };
    let out = Tensor::new(x.shape(), Data::from(vec![value; n]))?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("O0", out)
}
