//! Which storage cells does an op read and write, its sub-blocks included?
//!
//! An op of unknown kind may read and write everything it names. What a sub-block touches outside
//! itself counts as touched by the op that runs it. Names that the sub-block declares are its own, unless they
//! are persistable: a persistable is one cell, wherever it is declared.

use crate::entity::{EntityId, IdVec};
use crate::ir::{BlockId, OpRef, Program};
use crate::names::Name;
use crate::ops::{Effect, Kinds};
use rustc_hash::FxHashSet;

/// How an op touches a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// reads it
    Read,
    /// writes it, whatever happens
    Write,
    /// may write it: a branch not taken, a loop that runs no iteration, an unknown op
    MayWrite,
}

/// What a sub-block touches outside itself.
#[derive(Clone, Debug, Default)]
pub struct BlockEffect {
    /// cells read, each once, in order of first use
    pub reads: Vec<Name>,
    /// cells written, each once, in order of first write
    pub writes: Vec<Name>,
    /// whether an op of unknown kind, or a block that contains itself, is inside
    pub unknown: bool,
    /// whether an op inside may write a file
    pub saves: bool,
}

/// Effects of a program's ops.
pub struct Effects<'p> {
    program: &'p Program,
    kinds: Kinds<'p>,
    blocks: IdVec<BlockId, BlockEffect>,
    /// by name: whether some declaration calls it persistable; only filled when there are sub-blocks
    persistable: Vec<bool>,
}

impl<'p> Effects<'p> {
    /// Computes the effects of all sub-blocks; those of ops are read off on demand.
    pub fn new(program: &'p Program, kinds: &Kinds<'p>) -> Self {
        let n = program.block_rows();
        let mut this = Effects {
            program,
            kinds: kinds.clone(),
            blocks: IdVec::filled(BlockEffect::default(), n),
            persistable: Vec::new(),
        };
        if program.block_ids().any(|b| program.block(b).index != 0) {
            this.persistable = vec![false; program.names().len()];
            let vars = program.block_ids().flat_map(|b| &program.block(b).vars).map(|&v| program.var(v));
            vars.filter(|v| v.persistable()).for_each(|v| this.persistable[v.name.index()] = true);
            let mut state = IdVec::filled(Visit::New, n);
            for block in program.block_ids() {
                if program.block(block).index != 0 {
                    this.visit_block(block, &mut state);
                }
            }
        }
        this
    }

    /// What a sub-block touches outside itself.
    pub fn block(&self, block: BlockId) -> &BlockEffect {
        &self.blocks[block]
    }

    /// The cells that exist while a sub-block runs and no longer.
    pub fn locals(&self, block: BlockId) -> impl Iterator<Item = Name> + '_ {
        let names = self.program.block(block).vars.iter().map(|&v| self.program.var(v).name);
        names.filter(|n| !self.persistable[n.index()])
    }

    /// Depth first over blocks with an explicit stack, so that deep nesting cannot overflow ours.
    fn visit_block(&mut self, root: BlockId, state: &mut IdVec<BlockId, Visit>) {
        let mut stack = vec![(root, false)];
        while let Some((block, ready)) = stack.pop() {
            if ready {
                let effect = self.summarise(block, state);
                self.blocks[block] = effect;
                state[block] = Visit::Done;
                continue;
            }
            if state[block] != Visit::New {
                continue;
            }
            state[block] = Visit::Open;
            stack.push((block, true));
            for op in self.program.ops(block).filter(|op| op.has_sub_blocks()) {
                stack.extend(op.sub_blocks().filter(|&b| state[b] == Visit::New).map(|b| (b, false)));
            }
        }
    }

    fn summarise(&self, block: BlockId, state: &IdVec<BlockId, Visit>) -> BlockEffect {
        let own: FxHashSet<Name> = self.locals(block).collect();
        let (mut reads, mut writes) = (FxHashSet::default(), FxHashSet::default());
        let mut out = BlockEffect::default();
        for op in self.program.ops(block) {
            // A block that is still open contains itself; the verifier reports it.
            out.saves |= self.may_save(op);
            out.unknown |= self.effect(op) == Effect::Unknown
                || op.sub_blocks().any(|b| state[b] == Visit::Open || self.blocks[b].unknown);
            self.each(op, |name, access| {
                if own.contains(&name) {
                    return;
                }
                match access {
                    Access::Read => {
                        if reads.insert(name) {
                            out.reads.push(name);
                        }
                    }
                    Access::Write | Access::MayWrite => {
                        if writes.insert(name) {
                            out.writes.push(name);
                        }
                    }
                }
            });
        }
        out
    }

    /// Calls `f` for each cell that an op touches, reads before writes; a cell may come several times.
    #[inline]
    pub fn each(&self, op: OpRef<'_>, mut f: impl FnMut(Name, Access)) {
        op.input_args().for_each(|n| f(n, Access::Read));
        op.attr_vars().for_each(|n| f(n, Access::Read));
        let effect = self.effect(op);
        if op.has_sub_blocks() {
            for b in op.sub_blocks() {
                self.blocks[b].reads.iter().for_each(|&n| f(n, Access::Read));
            }
        }
        match effect {
            Effect::Unknown => {
                op.output_args().for_each(|n| f(n, Access::Read));
                op.input_args().for_each(|n| f(n, Access::MayWrite));
                op.attr_vars().for_each(|n| f(n, Access::MayWrite));
                op.output_args().for_each(|n| f(n, Access::MayWrite));
            }
            Effect::Cond | Effect::While => op.output_args().for_each(|n| f(n, Access::MayWrite)),
            _ => op.output_args().for_each(|n| f(n, Access::Write)),
        }
        if op.has_sub_blocks() {
            for b in op.sub_blocks() {
                self.blocks[b].writes.iter().for_each(|&n| f(n, Access::MayWrite));
                if effect == Effect::Unknown {
                    self.blocks[b].reads.iter().for_each(|&n| f(n, Access::MayWrite));
                }
            }
        }
    }

    /// Whether an op, or one in its sub-blocks, may write a file.
    pub fn may_save(&self, op: OpRef<'_>) -> bool {
        matches!(self.effect(op), Effect::Save | Effect::Unknown)
            || op.has_sub_blocks() && op.sub_blocks().any(|b| self.blocks[b].saves)
    }

    /// The effect class of an op. What runs sub-blocks and is no control op of the table is unknown.
    #[inline]
    pub fn effect(&self, op: OpRef<'_>) -> Effect {
        match self.kinds.get(op.kind()).effect {
            control @ (Effect::Cond | Effect::While) => control,
            // An op of unknown kind may write what the loop's values share their memory with.
            Effect::Regions if op.sub_blocks().all(|b| !self.blocks[b].unknown) => Effect::Regions,
            _ if op.has_sub_blocks() => Effect::Unknown,
            effect => effect,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Open,
    Done,
}
