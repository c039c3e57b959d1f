//! Where do casts stand, and what do ops read through them?
//!
//! A cast is keyed by (variable, reaching definition, dtype): a write between two uses makes a new cast. In a
//! sub-block only a cast that dominates it is reused. PaddlePaddle 2.6.2 keys by name, which is the same on
//! programs that write each variable once and have no sub-block; elsewhere it computes wrong numbers.
//!
//! A result of another dtype than its variable (the variable has several writers) goes through a copy and a
//! cast after the op, so that every variable holds what its declaration says. An op that reads and writes
//! one name through a cast has both renamed.
//!
//! Cost: one walk of the blocks with dense tables by declaration; leaving a sub-block undoes what it did.

use super::decide::{Choice, Decisions};
use crate::analysis::effects::Effects;
use crate::entity::EntityId;
use crate::ir::{BlockId, DType, OpId, OpRef, Program, Section, VarId};
use crate::names::{Name, sym};
use crate::ops::Effect;
use crate::verify::MAX_NESTING;
use rustc_hash::{FxHashMap, FxHashSet};

/// A variable that holds another one in another dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// the variable that it holds
    pub of: VarId,
    /// the block that makes it
    pub block: BlockId,
    /// its dtype
    pub dtype: DType,
    /// whether an op writes it, to be cast to the variable
    pub result: bool,
}

/// A cast to be inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CastOp {
    /// the copy, by its place in [`Plan::copies`]
    pub copy: u32,
    /// the op that needs it
    pub at: OpId,
    /// from the copy to the variable, after the op; else to the copy, before it
    pub back: bool,
}

/// What the casts of a program will be.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// the variables that casts make
    pub copies: Vec<Copy>,
    /// the casts, those of one place in order
    pub casts: Vec<CastOp>,
    /// arguments to be replaced: op, place among its inputs and then its outputs, copy
    pub args: Vec<(OpId, u32, u32)>,
}

/// Plans the casts that the decisions ask for.
pub fn plan(program: &Program, effects: &Effects<'_>, decisions: &Decisions) -> Plan {
    let several = program.section(Section::Main).blocks.len() > 1;
    let mut walk = Walk {
        program,
        effects,
        decisions,
        plan: Plan::default(),
        available: vec![0; program.var_rows()],
        undo: Vec::new(),
        depth: 0,
        floor: 0,
        runs: if several { runs(program) } else { vec![0; program.block_rows()] },
        needs: if several { needs(program, decisions) } else { FxHashMap::default() },
        done: vec![false; program.block_rows()],
        here: Vec::new(),
        renamed: FxHashMap::default(),
        written: FxHashSet::default(),
    };
    if let Some(global) = program.global_block(Section::Main) {
        walk.block(global);
    }
    // Blocks that no op runs, or that are nested too deep to follow.
    for block in program.section_blocks(Section::Main) {
        walk.fresh(block);
    }
    walk.plan
}

/// How many ops run each block.
fn runs(program: &Program) -> Vec<u32> {
    let mut runs = vec![0; program.block_rows()];
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)).filter(|op| op.has_sub_blocks()) {
        for sub in op.sub_blocks() {
            runs[sub.index()] += 1;
        }
    }
    runs
}

/// The variables of outer blocks that a sub-block, or one in it, reads in another dtype than they have.
fn needs(program: &Program, decisions: &Decisions) -> FxHashMap<BlockId, FxHashSet<VarId>> {
    let mut order: Vec<(usize, BlockId)> = Vec::new();
    for block in program.section_blocks(Section::Main).filter(|&b| program.block(b).index != 0) {
        let chain = std::iter::successors(Some(block), |&b| program.parent(b));
        order.push((chain.take(MAX_NESTING).count(), block));
    }
    order.sort_by_key(|&(depth, block)| (std::cmp::Reverse(depth), block));
    let mut needs: FxHashMap<BlockId, FxHashSet<VarId>> = FxHashMap::default();
    for (_, block) in order {
        let mut own: FxHashSet<VarId> = FxHashSet::default();
        for op in program.ops(block) {
            for sub in op.sub_blocks() {
                own.extend(needs.get(&sub).into_iter().flatten());
            }
            let Some(target) = target(decisions, op) else { continue };
            for slot in op.inputs().filter(|s| !(target.is_low() && decisions.keeps_input(op, s.name))) {
                for &name in slot.args {
                    if let Some(var) = wants(program, decisions, block, name, target) {
                        own.insert(var);
                    }
                }
            }
        }
        own.retain(|&v| program.var(v).block != block);
        needs.insert(block, own);
    }
    needs
}

/// The dtype in which an op wants its inputs.
fn target(decisions: &Decisions, op: OpRef<'_>) -> Option<DType> {
    match decisions.op(op.id).choice {
        Choice::Float32 => Some(DType::F32),
        Choice::Low => Some(decisions.low),
        Choice::Skip | Choice::Cast => None,
    }
}

/// The variable of a name when it must be cast to `target`.
#[inline]
fn wants(program: &Program, decisions: &Decisions, block: BlockId, name: Name, target: DType) -> Option<VarId> {
    let var = decisions.decls.find(block, name)?;
    let other = if target == DType::F32 { decisions.low } else { DType::F32 };
    (decisions.dtype(var) == other && program.var(var).kind.has_tensor()).then_some(var)
}

/// Arguments that are looked through one by one.
const FEW: usize = 8;

struct Walk<'w, 'p> {
    program: &'p Program,
    effects: &'w Effects<'p>,
    decisions: &'w Decisions,
    plan: Plan,
    /// by declaration: 1 + the copy that holds its value now, 0 for none
    available: Vec<u32>,
    /// what to put back into `available` when a sub-block ends
    undo: Vec<(VarId, u32)>,
    depth: usize,
    /// copies below this one are not reused: the block at hand may be run from elsewhere
    floor: u32,
    runs: Vec<u32>,
    needs: FxHashMap<BlockId, FxHashSet<VarId>>,
    done: Vec<bool>,
    /// casts before the op at hand
    here: Vec<CastOp>,
    /// variables that the op at hand writes to a copy; whether the cast back is planned
    renamed: FxHashMap<Name, (u32, bool)>,
    /// what the op at hand writes, when that is much
    written: FxHashSet<Name>,
}

impl Walk<'_, '_> {
    fn set(&mut self, var: VarId, copy: u32) {
        let row = &mut self.available[var.index()];
        if *row != copy {
            if self.depth > 0 {
                self.undo.push((var, *row));
            }
            *row = copy;
        }
    }

    /// A block that inherits nothing.
    fn fresh(&mut self, block: BlockId) {
        let floor = std::mem::replace(&mut self.floor, self.plan.copies.len() as u32);
        self.block(block);
        self.floor = floor;
    }

    fn block(&mut self, block: BlockId) {
        if std::mem::replace(&mut self.done[block.index()], true) {
            return;
        }
        let program = self.program;
        for op in program.ops(block) {
            let effect = self.effects.effect(op);
            let control = op.has_sub_blocks() && matches!(effect, Effect::Cond | Effect::While);
            self.inputs(block, op, control);
            if op.has_sub_blocks() {
                self.sub_blocks(block, op, control, effect == Effect::While);
            }
            self.outputs(block, op, control, effect == Effect::Unknown);
        }
    }

    fn inputs(&mut self, block: BlockId, op: OpRef<'_>, control: bool) {
        self.renamed.clear();
        let Some(target) = target(self.decisions, op) else { return };
        self.written.clear();
        if op.outputs().map(|s| s.args.len()).sum::<usize>() > FEW {
            self.written.extend(op.output_args());
        }
        let facts = self.decisions.kinds.get(op.kind());
        let mut at = 0u32;
        // Slots stand by name in what Paddle writes; where they do not, order casts as Paddle would.
        let sorted = self.decisions.slot_order(op);
        let slots = op.inputs().map(|s| {
            let start = at;
            at += s.args.len() as u32;
            (s, start)
        });
        let mut each = |(slot, start): (crate::ir::Slot<'_>, u32)| {
            if target.is_low() && self.decisions.kinds.keeps_input(facts, slot.name) {
                return;
            }
            for (i, &name) in slot.args.iter().enumerate() {
                let Some(var) = wants(self.program, self.decisions, block, name, target) else { continue };
                if control {
                    if self.wanted_inside(op, var, name) {
                        self.copy(block, op, var, target, false);
                    }
                    continue;
                }
                let writes = match self.written.is_empty() {
                    true => op.output_args().any(|n| n == name),
                    false => self.written.contains(&name),
                };
                let copy = self.copy(block, op, var, target, writes);
                if writes {
                    self.renamed.entry(name).or_insert((copy, false));
                }
                self.plan.args.push((op.id, start + i as u32, copy));
            }
        };
        match sorted {
            None => slots.for_each(&mut each),
            Some(order) => {
                let slots: Vec<_> = slots.collect();
                order.into_iter().for_each(|i| each(slots[i]));
            }
        }
        // Paddle puts each in front of the one before.
        self.plan.casts.extend(self.here.drain(..).rev());
    }

    /// Whether a sub-block of a control op reads a captured variable in another dtype, and the value is the
    /// one that the variable has before the op.
    fn wanted_inside(&self, op: OpRef<'_>, var: VarId, name: Name) -> bool {
        op.sub_blocks().any(|sub| {
            self.runs[sub.index()] == 1
                && self.needs.get(&sub).is_some_and(|n| n.contains(&var))
                && !self.effects.block(sub).writes.contains(&name)
        })
    }

    /// The copy of a variable in a dtype, made before `op` when there is none. One that `op` writes must be of
    /// its own block.
    fn copy(&mut self, block: BlockId, op: OpRef<'_>, var: VarId, dtype: DType, written: bool) -> u32 {
        let have = self.available[var.index()];
        if have > self.floor && (!written || self.plan.copies[have as usize - 1].block == block) {
            return have - 1;
        }
        let copy = self.plan.copies.len() as u32;
        self.plan.copies.push(Copy { of: var, block, dtype, result: false });
        self.here.push(CastOp { copy, at: op.id, back: false });
        self.set(var, copy + 1);
        copy
    }

    fn sub_blocks(&mut self, block: BlockId, op: OpRef<'_>, control: bool, is_loop: bool) {
        for sub in op.sub_blocks() {
            if self.depth >= MAX_NESTING {
                continue;
            }
            let mark = self.undo.len();
            self.depth += 1;
            let renamed = std::mem::take(&mut self.renamed);
            if is_loop {
                // The value at the head of the loop may come from its end.
                self.forget(block, sub);
            }
            if control && self.runs[sub.index()] == 1 {
                self.block(sub);
            } else {
                self.fresh(sub);
            }
            self.renamed = renamed;
            while self.undo.len() > mark {
                let Some((var, old)) = self.undo.pop() else { break };
                self.available[var.index()] = old;
            }
            self.depth -= 1;
        }
        for sub in op.sub_blocks() {
            self.forget(block, sub);
        }
    }

    /// Forgets the copies of what a sub-block of `block` may write.
    fn forget(&mut self, block: BlockId, sub: BlockId) {
        for name in &self.effects.block(sub).writes {
            if let Some(var) = self.decisions.decls.find(block, *name) {
                self.set(var, 0);
            }
        }
    }

    fn outputs(&mut self, block: BlockId, op: OpRef<'_>, control: bool, unknown: bool) {
        if unknown {
            // It may write whatever it names.
            for name in op.input_args() {
                if let Some(var) = self.decisions.decls.find(block, name) {
                    self.set(var, 0);
                }
            }
        }
        let facts = self.decisions.kinds.get(op.kind());
        let mut at = op.inputs().map(|s| s.args.len() as u32).sum::<u32>();
        for slot in op.outputs() {
            for &name in slot.args {
                let place = at;
                at += 1;
                let Some(var) = self.decisions.decls.find(block, name) else { continue };
                if control {
                    self.set(var, 0);
                    continue;
                }
                let (copy, told) = match self.renamed.get(&name) {
                    Some(&found) => found,
                    None => {
                        let kept = self.decisions.kinds.keeps_output(facts, slot.name);
                        let Some(dtype) = self.result(op, var, kept) else {
                            self.set(var, 0);
                            continue;
                        };
                        let copy = self.plan.copies.len() as u32;
                        self.plan.copies.push(Copy { of: var, block, dtype, result: true });
                        (copy, false)
                    }
                };
                self.plan.args.push((op.id, place, copy));
                if !told {
                    self.plan.casts.push(CastOp { copy, at: op.id, back: true });
                    self.renamed.insert(name, (copy, true));
                }
                self.set(var, copy + 1);
            }
        }
    }

    /// The dtype of an op's result when it is not that of its variable.
    fn result(&self, op: OpRef<'_>, var: VarId, kept: bool) -> Option<DType> {
        let declared = self.decisions.dtype(var);
        let before = self.program.var(var);
        let castable = |d: DType| d == DType::F32 || d == self.decisions.low;
        if !castable(declared) || !before.kind.has_tensor() || !before.dtype.is_float() {
            return None;
        }
        let out = || op.attr(sym::OUT_DTYPE).and_then(|v| v.as_int()).and_then(|c| i32::try_from(c).ok());
        let made = match self.decisions.op(op.id).choice {
            Choice::Low if !kept => self.decisions.low,
            Choice::Float32 | Choice::Cast if op.kind() == sym::CAST => DType::from_code(out()?),
            Choice::Float32 if !kept => DType::F32,
            _ => before.dtype,
        };
        (made != declared && castable(made)).then_some(made)
    }
}

/// The names of the copies, those of outer blocks first: `<var>.cast_fp16` (also for bfloat16) or
/// `<var>.cast_fp32`; `.result_…` for what an op writes to be cast; a number behind when the name is taken.
pub fn names(program: &mut Program, decisions: &Decisions, plan: &Plan) -> Vec<Name> {
    let mut order: Vec<usize> = (0..plan.copies.len()).collect();
    let one = plan.copies.iter().all(|c| program.block(c.block).index == 0);
    if !one {
        order.sort_by_key(|&i| program.block(plan.copies[i].block).index);
    }
    let mut names = vec![Name::from_index(0); plan.copies.len()];
    let mut taken: FxHashSet<(BlockId, Name)> = FxHashSet::default();
    taken.reserve(plan.copies.len());
    program.names.reserve(plan.copies.len());
    let mut next: FxHashMap<(BlockId, Name), u32> = FxHashMap::default();
    let mut text = String::new();
    for i in order {
        let copy = plan.copies[i];
        let suffix = match (copy.result, copy.dtype) {
            (false, DType::F32) => ".cast_fp32",
            (false, _) => ".cast_fp16",
            (true, DType::F32) => ".result_fp32",
            (true, _) => ".result_fp16",
        };
        text.clear();
        text.push_str(program.name(program.var(copy.of).name));
        text.push_str(suffix);
        let free = |program: &Program, name: Name, taken: &FxHashSet<(BlockId, Name)>| {
            let mut chain = std::iter::successors(Some(copy.block), |&b| program.parent(b)).take(MAX_NESTING);
            !chain.any(|b| taken.contains(&(b, name))) && decisions.decls.find(copy.block, name).is_none()
        };
        let known = program.names().len();
        let base = program.intern(&text);
        let mut name = base;
        // A name that is new is free.
        if base.index() == known {
            names[i] = name;
            taken.insert((copy.block, name));
            continue;
        }
        let counter = next.entry((copy.block, base)).or_insert(0);
        while !free(program, name, &taken) {
            *counter += 1;
            name = program.intern(&format!("{text}.{counter}"));
        }
        taken.insert((copy.block, name));
        names[i] = name;
    }
    names
}
