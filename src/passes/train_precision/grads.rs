//! Whose gradient is a name? Paddle writes `x@GRAD`, `x@GRAD@RENAME@…` for a part that a `sum` adds up, and
//! `grad/x@GRAD` or `x@GRAD_1` where a backward pass before has taken the name.

use crate::entity::EntityId;
use crate::ir::{DType, Edit, Program, Section, VarId};
use crate::names::Name;
use crate::verify::DeclIndex;

/// What stands behind a variable's name in that of its gradient.
pub(super) const GRAD: &str = "@GRAD";
/// What stands behind that in the name of a part.
pub(super) const RENAME: &str = "@RENAME@";

/// The gradients of a program by name.
pub(super) struct Grads {
    of: Vec<Option<Name>>,
}

impl Grads {
    pub fn new(program: &Program) -> Grads {
        let names = program.names();
        let base = |text: &str| {
            // That of a second backward pass has `grad/` in front.
            let text = text.trim_start_matches("grad/");
            let stem = &text[..text.find(RENAME).unwrap_or(text.len())];
            let at = stem.rfind(GRAD)?;
            // A second gradient of one variable has a number behind.
            let rest = &stem[at + GRAD.len()..];
            let number = rest.strip_prefix('_').is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
            if rest.is_empty() || number { names.lookup(&stem[..at]) } else { None }
        };
        Grads { of: names.iter().map(|(_, text)| base(text)).collect() }
    }

    /// The variable whose gradient, or part of one, a name is.
    pub fn of(&self, name: Name) -> Option<Name> {
        self.of.get(name.index()).copied().flatten()
    }
}

/// The declaration whose gradient a declaration is: as its block's forward block sees it.
pub(super) fn owner(program: &Program, decls: &DeclIndex, grads: &Grads, var: VarId) -> Option<VarId> {
    let row = program.var(var);
    let of = grads.of(row.name)?;
    let forward = program.block(row.block).forward.and_then(|i| program.block_at(Section::Main, i));
    decls.find(forward.unwrap_or(row.block), of).or_else(|| decls.find(row.block, of))
}

/// Declares each float32 gradient in the dtype of its variable.
pub(super) fn retype(work: &Program, decls: &DeclIndex, grads: &Grads, edit: &mut Edit) {
    for block in work.section_blocks(Section::Main) {
        for &var in &work.block(block).vars {
            if work.var(var).dtype != DType::F32 {
                continue;
            }
            let Some(of) = owner(work, decls, grads, var) else { continue };
            if work.var(of).dtype.is_low() {
                edit.set_dtype(var, work.var(of).dtype, "the gradient of a 16-bit variable");
            }
        }
    }
}
