//! In which order do the ops of a section stand, sub-blocks included?

use crate::entity::EntityId;
use crate::ir::{Program, Section};

/// By op row: its place in program order, sub-blocks inside their op; `u32::MAX` for ops that the section
/// does not reach. A block counts where it is first run.
pub fn positions(program: &Program, section: Section) -> Vec<u32> {
    let mut out = vec![u32::MAX; program.op_rows()];
    let Some(global) = program.global_block(section) else { return out };
    let mut next = 0u32;
    let mut entered = vec![false; program.block_rows()];
    let mut stack = vec![(global, 0usize)];
    entered[global.index()] = true;
    while let Some((block, at)) = stack.pop() {
        let ops = &program.block(block).ops;
        let Some(&op) = ops.get(at) else { continue };
        stack.push((block, at + 1));
        out[op.index()] = next;
        next += 1;
        let r = program.op(op);
        if r.has_sub_blocks() {
            let subs: Vec<_> = r.sub_blocks().filter(|b| !entered[b.index()]).collect();
            for b in subs.into_iter().rev() {
                entered[b.index()] = true;
                stack.push((b, 0));
            }
        }
    }
    out
}
