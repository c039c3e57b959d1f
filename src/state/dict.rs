//! What does a program keep, as names and tensors? And how is it put back?

use super::load::{Load, LoadError, LoadReport};
use crate::ckpt::plan::{Policy, Which};
use crate::interp::{MemoryCheckpoint, Scope, Tensor};
use crate::ir::Program;

/// The cells of a program that have a value, by name, in the order of its declarations: parameters, or masters,
/// accumulators and loss-scaling state, or all. The tensors share their data with the scope until one side writes.
pub fn state_dict(program: &Program, scope: &Scope, which: Which) -> Vec<(String, Tensor)> {
    let kept = super::cells(program).into_iter().filter(|c| which.has(c.role));
    kept.filter_map(|c| scope.get(&c.name).cloned().map(|t| (c.name, t))).collect()
}

/// Puts tensors into the cells of a program, with the policies and the report of a file load.
///
/// # Errors
/// [`LoadError`]; the scope is then as it was.
pub fn set_state_dict(
    program: &Program,
    scope: &mut Scope,
    state: &[(String, Tensor)],
    policy: Policy,
) -> Result<LoadReport, LoadError> {
    let source = checkpoint_of("state dict", state);
    Load::plan(program, &[&source], policy).run(scope, 1, &|_| ())
}

/// Tensors as a checkpoint in memory; `path` is what errors call it.
pub fn checkpoint_of(path: &str, state: &[(String, Tensor)]) -> MemoryCheckpoint {
    MemoryCheckpoint::new(path, state.iter().map(|(n, t)| (&n[..], t.clone())))
}
