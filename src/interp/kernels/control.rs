//! How do sub-blocks run? `while`, `conditional_block`, their gradients, and the ops that pick a branch.
//!
//! What a block declares is local to one activation; everything else belongs to the parents. When an
//! op of the program reads the step scopes (a gradient op), the locals of each activation are kept, and
//! for a loop also what its carried variables held before the iteration.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::scope::Locals;
use super::super::tensor::Tensor;
use super::Kernel;
use crate::convert::Narrowing;
use crate::ir::{AttrValue, DType};
use crate::names::Name;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("while", while_loop),
    ("while_grad", while_grad),
    ("conditional_block", conditional_block),
    ("conditional_block_infer", conditional_block),
    ("conditional_block_grad", conditional_block_grad),
    ("select_output", select_output),
];

pub(super) fn condition(t: &Tensor, slot: &str) -> Result<bool, InterpError> {
    if t.dtype() != DType::Bool {
        return Err(dtype_fault(slot, t, "where bool is needed"));
    }
    if t.len() != 1 {
        return Err(shape_fault(slot, t, "where one element is needed"));
    }
    Ok(t.to_bool_vec()[0])
}

/// Runs the block while `Condition` holds; the block writes that variable.
fn while_loop(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let block = cx.sub_block("sub_block")?;
    let keep = cx.keeps_scopes("StepScopes") && !cx.attr_bool("is_test", false)?;
    let outs = cx.output_names("Out");
    let carried: Vec<Name> = cx.input_names("X").iter().copied().filter(|n| outs.contains(n)).collect();
    let mut kept = Vec::new();
    while condition(&cx.input("Condition")?, "Condition")? {
        let before: Vec<(Name, Tensor)> = match keep {
            true => carried.iter().filter_map(|&n| Some((n, cx.value(n)?))).collect(),
            false => Vec::new(),
        };
        let mut locals = cx.run_block(block)?;
        if keep {
            for (name, value) in before {
                cx.give(&mut locals, name, value)?;
            }
            kept.push(locals);
        } else {
            cx.drop_locals(locals);
        }
        // A block without ops would spend no fuel.
        cx.spend()?;
    }
    if keep { cx.store_scopes("StepScopes", kept) } else { Ok(()) }
}

/// Runs the block once if the condition holds: `Cond` is true with `is_scalar_condition`, and otherwise
/// has elements in every tensor.
fn conditional_block(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let holds = match cx.attr_bool("is_scalar_condition", false)? {
        true => condition(&cx.input("Cond")?, "Cond")?,
        false => cx.inputs("Cond")?.iter().all(|t| !t.is_empty()),
    };
    if !holds {
        return Ok(());
    }
    let block = cx.sub_block("sub_block")?;
    let locals = cx.run_block(block)?;
    if cx.keeps_scopes("Scope") {
        return cx.store_scopes("Scope", vec![locals]);
    }
    cx.drop_locals(locals);
    Ok(())
}

/// The gradient's name inside a gradient block.
fn inner(cx: &OpCx<'_, '_>, name: Name) -> Option<Name> {
    cx.program().names().lookup(&format!("{}@GRAD", cx.text(name)))
}

fn zeros_like(cx: &OpCx<'_, '_>, name: Name) -> Result<Option<Tensor>, InterpError> {
    match cx.value(name).filter(|t| t.dtype().is_float()) {
        Some(t) => Ok(Some(Tensor::zeros(t.dtype(), t.shape())?)),
        None => Ok(None),
    }
}

/// If the branch ran: its gradient block, over the branch's locals. Otherwise zeros.
fn conditional_block_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let block = cx.sub_block("sub_block")?;
    let (inputs, grads) = (cx.input_names("Input"), cx.output_names("Input@GRAD"));
    let locals = match cx.take_scopes("Scope").pop() {
        Some(left) => Some(cx.run_block_over(block, left, Vec::new())?),
        None => None,
    };
    for (&input, &grad) in inputs.iter().zip(grads) {
        let found = locals.as_ref().zip(inner(cx, input)).and_then(|(l, name)| l.get(name).cloned());
        let value = match found {
            Some(t) => Some(t),
            None => zeros_like(cx, input)?,
        };
        if let Some(value) = value.filter(|_| cx.present(grad)) {
            cx.write(grad, value)?;
        }
    }
    if let Some(locals) = locals {
        cx.drop_locals(locals);
    }
    Ok(())
}

/// Backwards through the iterations: each gets the gradients of the carried variables as the iteration
/// after it left them; gradients of what the loop only reads add up.
fn while_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let block = cx.sub_block("sub_block")?;
    let (xs, grads) = (cx.input_names("X"), cx.output_names("X@GRAD"));
    let outer = cx.input_names("Out@GRAD");
    let names = cx.attr("original_output_grad").and_then(AttrValue::as_strs).unwrap_or(&[]);
    if names.len() != outer.len() {
        let what = format!("{} names for {} gradients", names.len(), outer.len());
        return Err(Fault::BadAttr { name: "original_output_grad".into(), what }.into());
    }
    let inside: Vec<Option<Name>> = names.iter().map(|n| cx.program().names().lookup(n)).collect();
    let mut seen = vec![false; grads.len()];
    for left in cx.take_scopes("StepScopes").into_iter().rev() {
        let link = outer.iter().zip(&inside).filter_map(|(&o, &i)| Some((i?, cx.value(o)?)));
        let given: Vec<(Name, Tensor)> = link.collect();
        let locals = cx.run_block_over(block, left, given)?;
        for ((&x, &grad), seen) in xs.iter().zip(grads).zip(&mut seen) {
            let Some(value) = gradient(cx, &locals, x).filter(|_| cx.present(grad)) else { continue };
            let value = match cx.value(grad).filter(|_| *seen && !outer.contains(&grad)) {
                Some(sum) => add(&sum, &value)?,
                None => value,
            };
            *seen = true;
            cx.write(grad, value)?;
        }
        cx.drop_locals(locals);
    }
    for ((&x, &grad), seen) in xs.iter().zip(grads).zip(seen) {
        // Without an iteration, a carried gradient passes through and the others are zero.
        if !seen
            && cx.present(grad)
            && !outer.contains(&grad)
            && let Some(zeros) = zeros_like(cx, x)?
        {
            cx.write(grad, zeros)?;
        }
    }
    Ok(())
}

fn gradient(cx: &OpCx<'_, '_>, locals: &Locals, x: Name) -> Option<Tensor> {
    locals.get(inner(cx, x)?).cloned()
}

fn add(a: &Tensor, b: &Tensor) -> Result<Tensor, InterpError> {
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Err(shape_fault("X@GRAD", b, format!("beside {a:?}")));
    }
    if a.dtype() == DType::F64 {
        let sum: Vec<f64> = a.to_f64_vec().into_iter().zip(b.to_f64_vec()).map(|(a, b)| a + b).collect();
        return Ok(Tensor::new(a.shape(), sum)?);
    }
    let sum: Vec<f32> = a.to_f32_vec().into_iter().zip(b.to_f32_vec()).map(|(a, b)| a + b).collect();
    Ok(Tensor::new(a.shape(), sum)?.cast(a.dtype(), Narrowing::NearestEven)?)
}

/// `select_output`: the output that `Mask` names gets `X`; the others keep what they have.
fn select_output(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (x, mask) = (cx.input("X")?, cx.input("Mask")?);
    let outs = cx.output_names("Out");
    let pick = super::transfer::branch(&mask, outs.len())?;
    cx.write(outs[pick], x)
}
