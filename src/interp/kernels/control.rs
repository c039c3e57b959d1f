//! How do sub-blocks run? `while` and `conditional_block`.
//!
//! What a block declares is local to one activation; everything else belongs to the parents. When an
//! op of the program reads the step scopes (a gradient op), the locals of each activation are kept.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::InterpError;
use super::super::tensor::Tensor;
use super::Kernel;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] =
    &[("while", while_loop), ("conditional_block", conditional_block), ("conditional_block_infer", conditional_block)];

fn condition(t: &Tensor, slot: &str) -> Result<bool, InterpError> {
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
    let mut kept = Vec::new();
    while condition(&cx.input("Condition")?, "Condition")? {
        let locals = cx.run_block(block)?;
        if keep {
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
