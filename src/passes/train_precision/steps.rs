//! Which backward passes does main hold, and which optimizer ops belong to each?

use super::grads::Grads;
use crate::entity::EntityId;
use crate::ir::{OpId, Program, Role, Section};
use crate::names::{Name, sym};
use crate::ops::{Effect, Kinds};
use rustc_hash::{FxHashMap, FxHashSet};

/// One backward pass and the ops behind it.
#[derive(Default)]
pub(super) struct Step {
    /// the ops that set the gradient of a loss to a constant
    pub losses: Vec<OpId>,
    /// the last op of the backward pass
    pub last: Option<OpId>,
    /// gradients of parameters, as the backward pass leaves them, and the op that makes each
    pub grads: FxHashMap<Name, (Name, usize, OpId)>,
    /// by gradient: the place of the first backward op that reads it, and all that do
    pub reads: FxHashMap<Name, (usize, Vec<OpId>)>,
    /// backward ops that are not understood
    pub others: Vec<OpId>,
    /// ops of the optimizer role, of sub-blocks too, in order
    pub ops: Vec<OpId>,
    /// those of them that update parameters: parameter, gradient
    pub params: Vec<(OpId, Vec<Name>, Vec<Name>)>,
}

/// The backward passes of main, each with the optimizer ops behind it.
pub(super) fn steps(
    before: &Program,
    work: &Program,
    kinds: &Kinds<'_>,
    grads: &Grads,
    others: &FxHashSet<OpId>,
) -> Vec<Step> {
    let Some(global) = work.global_block(Section::Main) else { return Vec::new() };
    let mut all = vec![Step::default()];
    for (place, op) in work.ops(global).enumerate() {
        let role = op.role().unwrap_or(Role::FORWARD);
        if role.has(Role::BACKWARD) && all.last().is_some_and(|s| !s.ops.is_empty()) {
            all.push(Step::default());
        }
        let step = all.last_mut().expect("a step");
        if role.has(Role::BACKWARD) {
            step.last = Some(op.id);
            step.others.extend(others.get(&op.id));
            let fills = op.kind() == sym::FILL_CONSTANT && role.has(Role::LOSS);
            if fills && op.output(sym::OUT).first().is_some_and(|&n| grads.of(n).is_some()) {
                step.losses.push(op.id);
            }
            for name in op.input_args().filter(|&n| grads.of(n).is_some()) {
                step.reads.entry(name).or_insert((place, Vec::new())).1.push(op.id);
            }
            for name in op.output_args() {
                let whole = !work.name(name).contains(super::grads::RENAME);
                if let Some(of) = grads.of(name).filter(|_| whole) {
                    step.reads.remove(&name);
                    step.grads.insert(of, (name, place, op.id));
                }
            }
            inside(work, op.id, kinds, step);
        } else if op.id.index() >= before.op_rows() && role.has(Role::OPTIMIZE) && step.last.is_some() {
            // A cast of a parameter's gradient, moved there.
            step.last = Some(op.id);
            for name in op.output_args() {
                if let Some(of) = grads.of(name) {
                    step.grads.insert(of, (name, place, op.id));
                }
            }
        } else if role.has(Role::OPTIMIZE) {
            collect(work, op.id, kinds, step, 0);
        } else {
            inside(work, op.id, kinds, step);
        }
    }
    all
}

/// Optimizer ops in the blocks of an op that has another role.
fn inside(work: &Program, id: OpId, kinds: &Kinds<'_>, step: &mut Step) {
    if step.last.is_none() {
        return;
    }
    for sub in work.op(id).sub_blocks() {
        for op in work.ops(sub).filter(|op| op.role().is_some_and(|r| r.has(Role::OPTIMIZE))) {
            collect(work, op.id, kinds, step, 0);
        }
    }
}

fn collect(work: &Program, id: OpId, kinds: &Kinds<'_>, step: &mut Step, depth: usize) {
    let op = work.op(id);
    step.ops.push(id);
    if matches!(kinds.get(op.kind()).effect, Effect::Optimizer(_)) {
        step.params.push((id, op.input(sym::PARAM).to_vec(), op.input(sym::GRAD).to_vec()));
    }
    if depth < crate::verify::MAX_NESTING {
        for sub in op.sub_blocks() {
            work.block(sub).ops.iter().for_each(|&op| collect(work, op, kinds, step, depth + 1));
        }
    }
}
