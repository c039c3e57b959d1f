//! Where do inserted and moved ops go? Kept by anchor, merged into each touched block in one sweep.

use super::{At, block_of, touch};
use crate::ir::{BlockId, Entity, OpId, Program};
use rustc_hash::FxHashMap;

/// What changes in the order of ops, by anchor.
#[derive(Default)]
pub(super) struct Order {
    before: FxHashMap<OpId, Vec<OpId>>,
    after: FxHashMap<OpId, Vec<OpId>>,
    start: FxHashMap<BlockId, Vec<OpId>>,
    end: FxHashMap<BlockId, Vec<OpId>>,
    /// ops that leave their old place; a moved op may also be an anchor at its new one
    taken: FxHashMap<OpId, BlockId>,
    pub(super) removed: Vec<OpId>,
    blocks: Vec<BlockId>,
}

impl Order {
    pub(super) fn put(&mut self, program: &mut Program, place: At, op: OpId) {
        let block = block_of(program, place);
        self.blocks.push(block);
        match place {
            At::Before(at) => self.before.entry(at).or_default().push(op),
            At::After(at) => self.after.entry(at).or_default().push(op),
            At::Start(b) => self.start.entry(b).or_default().push(op),
            At::End(b) => self.end.entry(b).or_default().push(op),
        }
    }

    pub(super) fn take(&mut self, program: &mut Program, op: OpId) {
        let block = program.ops[op].block;
        self.blocks.push(block);
        let twice = self.taken.insert(op, block);
        assert!(twice.is_none(), "an op is moved or removed twice in one edit");
    }

    /// Whether something goes before or after this op.
    pub(super) fn anchors(&self, op: OpId) -> bool {
        self.before.contains_key(&op) || self.after.contains_key(&op)
    }

    pub(super) fn merge(mut self, program: &mut Program) {
        self.blocks.sort_unstable();
        self.blocks.dedup();
        for &op in &self.removed {
            program.ops[op].removed = true;
            program.drop_verbatim(Entity::Op(op));
        }
        for block in std::mem::take(&mut self.blocks) {
            let old = std::mem::take(&mut program.blocks[block].ops);
            let mut new = Vec::with_capacity(old.len() + 16);
            new.extend(self.start.remove(&block).unwrap_or_default());
            for op in old {
                let leaves = self.taken.contains_key(&op);
                // What is queued around an op that moves has no place: the assertion below says so.
                if !leaves || program.ops[op].removed {
                    self.place(op, !leaves, &mut new);
                }
            }
            new.extend(self.end.remove(&block).unwrap_or_default());
            program.blocks[block].ops = new;
            touch(program, block);
        }
        assert!(self.before.is_empty() && self.after.is_empty(), "an edit names an anchor that is in no block");
    }

    /// An op that leaves is replaced by what was inserted around it.
    fn place(&mut self, op: OpId, stays: bool, new: &mut Vec<OpId>) {
        if !self.before.is_empty() {
            new.extend(self.before.remove(&op).unwrap_or_default());
        }
        if stays {
            new.push(op);
        }
        if !self.after.is_empty() {
            new.extend(self.after.remove(&op).unwrap_or_default());
        }
    }
}
