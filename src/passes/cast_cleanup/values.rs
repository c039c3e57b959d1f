//! Which copies hold what another variable holds wherever they are read?
//!
//! Values are numbered along one walk in program order. A write gives a variable a new number; an assignment and a
//! cast to the type that is there give the operand's; a narrowing of a value that was widened from that type gives
//! back the narrow one; equal casts of one value give one number.

use super::{Copies, Replace, made_copy};
use crate::analysis::effects::Effects;
use crate::analysis::numbers::Numbers;
use crate::entity::EntityId;
use crate::ir::{BlockId, OpId, OpRef, Program, Section, VarId};
use crate::names::{Name, sym};
use crate::ops::Effect;
use crate::verify::{MAX_NESTING, copied};
use rustc_hash::FxHashMap;

struct Candidate {
    copy: VarId,
    value: u32,
    holder: VarId,
    good: bool,
    reads: Vec<(OpId, u32)>,
}

struct Walk<'w, 'p> {
    program: &'p Program,
    effects: &'w Effects<'p>,
    copies: &'w Copies,
    /// by declaration: the number of its value, 0 when it was not seen yet
    value: Vec<u32>,
    undo: Vec<(VarId, u32)>,
    depth: usize,
    numbers: Numbers,
    /// by number: the first variable that held it
    holder: FxHashMap<u32, VarId>,
    candidates: Vec<Candidate>,
    by_copy: FxHashMap<VarId, usize>,
    done: Vec<bool>,
}

/// The copies that can go. A copy is replaced at all its reads or at none.
pub(super) fn find(program: &Program, effects: &Effects<'_>, copies: &Copies) -> Vec<Replace> {
    let mut walk = Walk {
        program,
        effects,
        copies,
        value: vec![0; program.var_rows()],
        undo: Vec::new(),
        depth: 0,
        numbers: Numbers::default(),
        holder: FxHashMap::default(),
        candidates: Vec::new(),
        by_copy: FxHashMap::default(),
        done: vec![false; program.block_rows()],
    };
    if let Some(global) = program.global_block(Section::Main) {
        walk.block(global);
    }
    let seen_all = |c: &Candidate| c.reads.len() == copies.reads[c.copy.index()] as usize;
    let good = walk.candidates.into_iter().filter(|c| c.good && seen_all(c));
    good.map(|c| Replace { copy: c.copy, holder: c.holder, reads: c.reads }).collect()
}

impl Walk<'_, '_> {
    fn set(&mut self, var: VarId, value: u32) {
        let old = std::mem::replace(&mut self.value[var.index()], value);
        if self.depth > 0 {
            self.undo.push((var, old));
        }
    }

    /// The number of a variable's value.
    fn of(&mut self, var: VarId) -> u32 {
        if self.value[var.index()] == 0 {
            let value = self.numbers.fresh();
            self.set(var, value);
            self.holder.insert(value, var);
        }
        self.value[var.index()]
    }

    fn write(&mut self, block: BlockId, name: Name) {
        if let Some(var) = self.copies.decls.find(block, name) {
            let value = self.numbers.fresh();
            self.set(var, value);
            self.holder.insert(value, var);
        }
    }

    fn block(&mut self, block: BlockId) {
        if std::mem::replace(&mut self.done[block.index()], true) {
            return;
        }
        let program = self.program;
        for op in program.ops(block) {
            self.reads(block, op);
            if op.has_sub_blocks() {
                self.sub_blocks(block, op);
                op.output_args().for_each(|n| self.write(block, n));
                continue;
            }
            match self.effects.effect(op) {
                Effect::Cast => self.cast(block, op),
                Effect::Copy if op.kind() == sym::ASSIGN => self.assign(block, op),
                Effect::Unknown => op.input_args().chain(op.output_args()).for_each(|n| self.write(block, n)),
                _ => op.output_args().for_each(|n| self.write(block, n)),
            }
        }
    }

    fn reads(&mut self, block: BlockId, op: OpRef<'_>) {
        for (at, name) in op.input_args().enumerate() {
            let Some(var) = self.copies.decls.find(block, name) else { continue };
            let Some(&i) = self.by_copy.get(&var) else { continue };
            let c = &self.candidates[i];
            let holds = |v: VarId| self.value[v.index()] == c.value;
            // A name between may hide the holder.
            let visible = self.copies.decls.find(block, self.program.var(c.holder).name) == Some(c.holder);
            // What a control op lists is brought up to date afterwards; other ops that run blocks are left alone.
            let mut good = holds(var) && holds(c.holder) && visible;
            // A copy whose variable was overwritten since is not named for what it holds any more.
            if good && let Some(named) = self.named(block, c.holder) {
                let (from, to) = (self.program.var(named).dtype, self.program.var(c.holder).dtype);
                let value = c.value;
                let source = self.of(named);
                good = self.numbers.cast(source, from, to) == value;
            }
            let c = &mut self.candidates[i];
            c.good &= good;
            c.reads.push((op.id, at as u32));
        }
    }

    /// The variable that a copy's name says it copies.
    fn named(&self, block: BlockId, var: VarId) -> Option<VarId> {
        let of = copied(self.program.name(self.program.var(var).name))?;
        self.copies.decls.find(block, self.program.names().lookup(of)?)
    }

    fn sub_blocks(&mut self, block: BlockId, op: OpRef<'_>) {
        let effect = self.effects.effect(op);
        for sub in op.sub_blocks() {
            let known = matches!(effect, Effect::Cond | Effect::While) && !op.kind_str().ends_with("_grad");
            if known && self.depth < MAX_NESTING {
                let mark = self.undo.len();
                self.depth += 1;
                if effect == Effect::While {
                    self.forget(block, sub);
                }
                self.block(sub);
                while self.undo.len() > mark {
                    let Some((var, old)) = self.undo.pop() else { break };
                    self.value[var.index()] = old;
                }
                self.depth -= 1;
            }
        }
        for sub in op.sub_blocks() {
            self.forget(block, sub);
        }
    }

    fn forget(&mut self, block: BlockId, sub: BlockId) {
        for i in 0..self.effects.block(sub).writes.len() {
            self.write(block, self.effects.block(sub).writes[i]);
        }
    }

    fn assign(&mut self, block: BlockId, op: OpRef<'_>) {
        let find = |args: &[Name]| args.first().and_then(|&n| self.copies.decls.find(block, n));
        match (find(op.input(sym::X)), find(op.output(sym::OUT))) {
            (Some(x), Some(out)) if self.program.var(x).dtype == self.program.var(out).dtype => {
                let value = self.of(x);
                self.set(out, value);
            }
            _ => op.output_args().for_each(|n| self.write(block, n)),
        }
    }

    fn cast(&mut self, block: BlockId, op: OpRef<'_>) {
        let find = |args: &[Name]| args.first().and_then(|&n| self.copies.decls.find(block, n));
        let (Some(x), Some(out)) = (find(op.input(sym::X)), find(op.output(sym::OUT))) else {
            op.output_args().for_each(|n| self.write(block, n));
            return;
        };
        let (from, to) = (self.program.var(x).dtype, self.program.var(out).dtype);
        let said = op.attr(sym::OUT_DTYPE).and_then(|v| v.as_int());
        if said != Some(i64::from(to.code())) || !self.program.var(x).kind.has_tensor() {
            self.write(block, self.program.var(out).name);
            return;
        }
        let source = self.of(x);
        let value = self.numbers.cast(source, from, to);
        let holder = self.holder.get(&value).copied().filter(|&h| h != out && self.value[h.index()] == value);
        self.set(out, value);
        let made = made_copy(self.program, &self.copies.decls, op).is_some() && self.copies.casts.contains_key(&out);
        match holder {
            Some(holder) if made && self.fits(block, holder, out) => {
                self.by_copy.insert(out, self.candidates.len());
                self.candidates.push(Candidate { copy: out, value, holder, good: true, reads: Vec::new() });
            }
            Some(_) => {}
            None => {
                self.holder.insert(value, out);
            }
        }
    }

    /// Whether one variable can stand for another.
    fn fits(&self, block: BlockId, holder: VarId, copy: VarId) -> bool {
        let (a, b) = (self.program.var(holder), self.program.var(copy));
        self.copies.decls.find(block, a.name) == Some(holder) && (a.dtype, a.kind) == (b.dtype, b.kind)
    }
}
