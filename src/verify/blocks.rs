//! Do the blocks form a tree, and do control-flow ops name their children?
//!
//! - V2 `block-tree`: the global block has no parent; every other block has one, following parents
//!   ends at the global block, and takes at most [`MAX_NESTING`] steps. A forward block exists.
//! - V3 `dangling-block`: a block that an attribute names exists, is not the global one, and its
//!   parent is the block of the op. (Paddle 2.6.2 makes gradient blocks so too.) At most
//!   [`MAX_RUNS`] ops run one block (in the programs of the corpus one does): what a block touches
//!   counts for each op that runs it, so that without a bound a small file could stand for endless work.

use super::{Cx, MAX_NESTING, all_blocks, ops_at};
use crate::diag::Code;
use crate::entity::EntityId;
use crate::ir::{BlockData, BlockId, Program, Section};

/// Ops that may run one block.
pub const MAX_RUNS: usize = 16;

/// What is wrong with a block's place in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    GlobalHasParent,
    NoParent,
    Cycle,
    TooDeep,
    NoForward,
}

/// Checks V2.
pub(super) fn check_tree(cx: &mut Cx<'_>) {
    for section in Section::ALL {
        for (block, fault) in faults(cx.program, section) {
            cx.block(Code::BlockTree, block, |p| {
                let BlockData { index, parent, forward, .. } = p.block(block);
                match fault {
                    Fault::GlobalHasParent => format!("the global block names block {parent} as its parent"),
                    Fault::NoParent => {
                        format!("block {index} names block {parent} as its parent, which does not exist")
                    }
                    Fault::Cycle => format!("following parents from block {index} runs in a circle"),
                    Fault::TooDeep => format!("block {index} is nested more than {MAX_NESTING} deep"),
                    Fault::NoForward => format!(
                        "block {index} names block {} as its forward block, which does not exist",
                        forward.unwrap_or(-1)
                    ),
                }
            });
        }
    }
}

/// Whether V2 and V3 hold.
pub(super) fn is_sound(program: &Program) -> bool {
    Section::ALL.into_iter().all(|s| faults(program, s).is_empty())
        && all_blocks(program).all(|b| program.ops(b).all(|op| bad_sub_blocks(program, b, op.id).is_empty()))
}

/// All faults of a section's tree, in block order; linear.
fn faults(p: &Program, section: Section) -> Vec<(BlockId, Fault)> {
    let blocks = &p.section(section).blocks;
    let mut found = Vec::new();
    // Depth by block: 0 not known yet, 1 the global block; MAX marks the chain being followed.
    const ON_PATH: u32 = u32::MAX;
    const BROKEN: u32 = u32::MAX - 1;
    let mut depth = vec![0u32; blocks.len()];
    let mut path = Vec::new();
    for (i, &b) in blocks.iter().enumerate() {
        let data = p.block(b);
        if i == 0 {
            if data.parent != -1 {
                found.push((b, Fault::GlobalHasParent));
            }
            depth[0] = 1;
        }
        let mut at = i;
        let mut end = None;
        while depth[at] == 0 {
            depth[at] = ON_PATH;
            path.push(at);
            match p.block_at(section, p.block(blocks[at]).parent) {
                Some(parent) => at = p.block(parent).index as usize,
                None => {
                    end = Some(Fault::NoParent);
                    break;
                }
            }
        }
        if end.is_none() && depth[at] == ON_PATH {
            end = Some(Fault::Cycle);
        }
        if let Some(fault) = end {
            // One finding a broken chain, at the block where it breaks or closes.
            found.push((blocks[at], fault));
        }
        let mut below = if end.is_some() { BROKEN } else { depth[at] };
        while let Some(k) = path.pop() {
            below = if below == BROKEN { BROKEN } else { below + 1 };
            depth[k] = below;
            if below != BROKEN && below as usize == MAX_NESTING + 1 {
                found.push((blocks[k], Fault::TooDeep));
            }
        }
        if data.forward.is_some_and(|f| f != -1 && p.block_at(section, f).is_none()) {
            found.push((b, Fault::NoForward));
        }
    }
    found
}

/// Checks V3.
pub(super) fn check_sub_blocks(cx: &mut Cx<'_>) {
    let p = cx.program;
    let mut runs = vec![0; p.block_rows()];
    for block in all_blocks(p) {
        for at in ops_at(p, block) {
            for sub in p.op(at.id).sub_blocks() {
                runs[sub.index()] += 1;
                if runs[sub.index()] == MAX_RUNS + 1 {
                    cx.op(Code::DanglingBlock, at, |p| {
                        format!("names sub-block {}, which more than {MAX_RUNS} ops run", p.block(sub).index)
                    });
                }
            }
            for (index, why) in bad_sub_blocks(p, block, at.id) {
                cx.op(Code::DanglingBlock, at, |p| match why {
                    Why::Missing => format!("names sub-block {index}, which does not exist"),
                    Why::Global => "names the global block as its sub-block".into(),
                    Why::NotAChild => format!(
                        "names sub-block {index}, whose parent is block {}, not block {}",
                        p.block_at(p.block(block).section, index).map_or(-1, |b| p.block(b).parent),
                        p.block(block).index
                    ),
                });
            }
        }
    }
}

enum Why {
    Missing,
    Global,
    NotAChild,
}

fn bad_sub_blocks(p: &Program, block: BlockId, op: crate::ir::OpId) -> Vec<(i32, Why)> {
    let op = p.op(op);
    if !op.has_sub_blocks() {
        return Vec::new();
    }
    let BlockData { section, index, .. } = *p.block(block);
    op.sub_block_indices()
        .filter_map(|i| match p.block_at(section, i) {
            None => Some((i, Why::Missing)),
            Some(_) if i == 0 => Some((i, Why::Global)),
            Some(sub) if p.block(sub).parent != index as i32 => Some((i, Why::NotAChild)),
            Some(_) => None,
        })
        .collect()
}
