//! What do ops of Paddle 3.x compute that ProgramDesc has no kind for? Source: Paddle 3.3.1's `pd_op` dialect.

use super::super::context::OpCx;
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor};
use super::Kernel;
use super::control::condition;
use crate::convert::Narrowing;
use crate::ir::DType;
use crate::names::Name;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    // They name values; see `paddle::pir`.
    ("builtin.parameter", |_| Ok(())),
    ("builtin.set_parameter", |_| Ok(())),
    ("builtin.shadow_output", |_| Ok(())),
    ("pd_op.data", |_| Ok(())),
    ("cf.yield", |_| Ok(())),
    ("pd_op.if", branch),
    ("pd_op.while", while_loop),
    ("pd_op.fetch", fetch),
    ("pd_op.full_int_array", full_int_array),
    ("pd_op.full_like", full_like),
];

/// Runs a block with its arguments given, and takes what its `cf.yield` names.
fn run_block(cx: &mut OpCx<'_, '_>, index: usize, args: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    let program = cx.program();
    let Some(block) = cx.op().sub_blocks().nth(index) else {
        return Err(Fault::NoBlock { index: index as i32 }.into());
    };
    let names = program.block(block).vars.iter().map(|&v| program.var(v).name);
    let names = names.filter(|&n| ["%-", "%s-"].iter().any(|s| program.name(n).starts_with(s)));
    let given: Vec<(Name, Tensor)> = names.zip(args.iter().cloned()).collect();
    if given.len() != args.len() {
        return Err(Fault::MissingSlot { slot: "the block's arguments".into() }.into());
    }
    let yielded: Vec<Name> = match program.ops(block).next_back() {
        Some(op) if op.kind_str() == "cf.yield" => op.input_args().collect(),
        _ => Vec::new(),
    };
    let locals = cx.run_block_with(block, given)?;
    let mut out = Vec::with_capacity(yielded.len());
    for name in yielded {
        let value = locals.get(name).cloned().or_else(|| cx.value(name));
        let missing = || Fault::MissingValue { slot: "cf.yield".into(), name: cx.text(name).to_owned() };
        out.push(value.ok_or_else(missing)?);
    }
    cx.drop_locals(locals);
    Ok(out)
}

/// Gives the results their values, in order.
fn results(cx: &mut OpCx<'_, '_>, values: Vec<Tensor>) -> Result<(), InterpError> {
    let names: Vec<Name> = cx.op().output_args().collect();
    if names.len() > values.len() {
        return Err(Fault::MissingSlot { slot: "cf.yield".into() }.into());
    }
    names.into_iter().zip(values).try_for_each(|(name, value)| cx.write(name, value))
}

/// `if`: the first block when the condition holds, else the second.
fn branch(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let holds = condition(&cx.input("I0")?, "I0")?;
    let values = run_block(cx, usize::from(!holds), &[])?;
    results(cx, values)
}

/// `while`: a condition and the values that go round; the block yields the next of each.
fn while_loop(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let mut values = Vec::new();
    for name in cx.op().input_args() {
        values.push(cx.read("I0", name)?);
    }
    let slot = || Fault::MissingSlot { slot: "I0".into() };
    while condition(values.first().ok_or_else(slot)?, "I0")? {
        values = run_block(cx, 0, &values[1..])?;
        // A block without ops would spend no fuel.
        cx.spend()?;
    }
    values.remove(0);
    results(cx, values)
}

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
