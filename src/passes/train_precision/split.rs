//! Which ops are the forward part? They are rewritten alone, and the others put back around them.

use crate::entity::EntityId;
use crate::ir::{BlockId, OpId, OpRef, Program, Role, Section, VarId};
use crate::names::sym;

/// The ops of main before any was set aside.
pub(super) struct Aside {
    /// each block with its ops
    blocks: Vec<(BlockId, Vec<OpId>)>,
    /// by op: it was set aside
    out: Vec<bool>,
    /// whether there are gradient ops
    pub trains: bool,
}

fn is_aside(op: OpRef<'_>) -> bool {
    op.role().is_some_and(|r| r.has(Role::BACKWARD) || r.has(Role::OPTIMIZE) || r.has(Role::LR_SCHED))
}

impl Aside {
    /// Whether an op was set aside; ops that a pass made since were not.
    pub fn is_out(&self, op: OpId) -> bool {
        self.out.get(op.index()).copied().unwrap_or(false)
    }
}

/// Takes backward, optimizer and schedule ops out of their blocks, and in the global block whatever follows the
/// first backward op (it may read what an optimizer wrote).
pub(super) fn set_aside(work: &mut Program) -> Aside {
    let blocks: Vec<BlockId> = work.section_blocks(Section::Main).collect();
    let mut aside = Aside { blocks: Vec::new(), out: vec![false; work.op_rows()], trains: false };
    for block in blocks {
        let ops = work.block(block).ops.clone();
        let global = work.block(block).index == 0;
        let mut after = false;
        for &op in &ops {
            let r = work.op(op);
            let backward = r.role().is_some_and(|r| r.has(Role::BACKWARD));
            aside.trains |= backward;
            after |= global && backward;
            aside.out[op.index()] = after || is_aside(r);
        }
        work.blocks[block].ops.retain(|op| !aside.out[op.index()]);
        aside.blocks.push((block, ops));
    }
    aside
}

/// Puts the ops back, each directly behind the op that it followed (and the casts behind that).
pub(super) fn put_back(work: &mut Program, before: &Program, aside: &Aside) {
    let mut new = vec![false; work.names().len()];
    for i in before.var_rows()..work.var_rows() {
        new[work.var(VarId::from_index(i)).name.index()] = true;
    }
    for (block, old) in &aside.blocks {
        if old.iter().all(|op| !aside.out[op.index()]) {
            continue;
        }
        let now = std::mem::take(&mut work.blocks[*block].ops);
        let mut merged = Vec::with_capacity(now.len() + old.len());
        // An inserted op that writes a new variable belongs to the op after it, else to the one before.
        let leads = |op: OpId| op.index() >= before.op_rows() && work.op(op).output_args().any(|n| new[n.index()]);
        let mut next = 0;
        for &op in &now {
            if leads(op) || op.index() < before.op_rows() {
                while next < old.len() && aside.out[old[next].index()] {
                    merged.push(old[next]);
                    next += 1;
                }
            }
            merged.push(op);
            if op.index() < before.op_rows() {
                next += 1;
            }
        }
        merged.extend(&old[next..]);
        work.blocks[*block].ops = merged;
    }
}

/// A sign that main was decorated before: its kind as text.
pub(super) fn scaled(program: &Program) -> Option<&str> {
    let ops = program.section_blocks(Section::Main).flat_map(|b| program.ops(b));
    let mut marks = ops.filter(|op| matches!(op.kind(), sym::CHECK_FINITE_AND_UNSCALE | sym::UPDATE_LOSS_SCALING));
    marks.next().map(|op| op.kind_str())
}
