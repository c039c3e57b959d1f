//! What do gradient ops read and write once the forward part is of mixed precision?

use super::TrainError;
use super::flow::{CopyRow, CopyState, Entry, Flow, Insert, Part, Unsettled};
use super::grads::{self, Grads};
use super::matching::{self, Match, Region, is_empty};
use super::split::Aside;
use crate::entity::EntityId;
use crate::ir::{At, Attr, AttrValue, BlockId, DType, Edit, EditSummary, OpId, OpRef, Program, Role, Section, VarId};
use crate::names::{Name, Symbol, sym};
use crate::passes::precision::cast_attrs;
use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// What a rewrite of the backward ops leaves to do.
pub(super) struct Backward {
    pub summary: EditSummary,
    /// ops that are not understood: they compute in float32
    pub others: Vec<OpId>,
}

/// Rewrites the backward ops of main.
pub(super) fn rewrite(before: &Program, work: &mut Program, aside: &Aside, pass: &str) -> Result<Backward, TrainError> {
    let grads = Grads::new(before);
    let blocks: Vec<BlockId> = work.section_blocks(Section::Main).collect();
    let Some(&global) = blocks.first() else {
        return Ok(Backward { summary: EditSummary::default(), others: Vec::new() });
    };
    let mut regions: FxHashMap<BlockId, Vec<Region>> = FxHashMap::default();
    for &block in &blocks {
        regions.insert(block, matching::regions(before, work, aside, &grads, block));
    }
    let mut symbols = vec![None; work.symbols().len()];
    for (s, text) in work.symbols().iter() {
        symbols[s.index()] = text.strip_suffix(grads::GRAD).and_then(|t| work.symbols().lookup(t));
    }
    let copies = copies(before, work);
    let flow = Flow::new(before, work, &grads, copies, global);
    let mut walk = Walk {
        flow,
        regions,
        symbols,
        others: Vec::new(),
        overwritten: FxHashSet::default(),
        renewed: FxHashMap::default(),
        moved: Vec::new(),
    };
    for &block in &blocks {
        walk.block(block)?;
    }
    Ok(walk.finish(pass))
}

/// The variables that casts of the forward part make.
fn copies(before: &Program, work: &Program) -> IndexMap<VarId, CopyRow> {
    let mut by_name: FxHashMap<(BlockId, Name), VarId> = FxHashMap::default();
    for i in before.var_rows()..work.var_rows() {
        let var = VarId::from_index(i);
        by_name.insert((work.var(var).block, work.var(var).name), var);
    }
    let mut out = IndexMap::new();
    for block in work.section_blocks(Section::Main) {
        for (place, op) in work.ops(block).enumerate() {
            if op.id.index() < before.op_rows() || op.kind() != sym::CAST {
                continue;
            }
            let (&[x], &[y]) = (op.input(sym::X), op.output(sym::OUT)) else { continue };
            // Either the cast makes the copy, or an op does and the cast makes the variable.
            let (name, of) = if by_name.contains_key(&(block, y)) { (y, x) } else { (x, y) };
            let Some(&var) = by_name.get(&(block, name)) else { continue };
            let row = CopyRow { of, name, dtype: work.var(var).dtype, block, place: place as i64 };
            out.entry(var).or_insert(row);
        }
    }
    out
}

struct Walk<'f> {
    flow: Flow<'f>,
    regions: FxHashMap<BlockId, Vec<Region>>,
    /// by symbol: what stands before `@GRAD` in it
    symbols: Vec<Option<Symbol>>,
    others: Vec<OpId>,
    /// what an earlier optimizer wrote: copies of that are old
    overwritten: FxHashSet<Name>,
    /// copies that were made anew in the region at hand
    renewed: FxHashMap<Name, Name>,
    /// casts that make the gradient of a parameter
    moved: Vec<(usize, OpId)>,
}

/// What the gradient block of a control op leaves.
#[derive(Default)]
struct Inner {
    /// gradients of outer copies that it writes
    outer: IndexMap<VarId, Name>,
    /// gradients that it writes
    written: FxHashSet<Name>,
}

impl Walk<'_> {
    /// The regions of a block, once.
    fn block(&mut self, block: BlockId) -> Result<Inner, TrainError> {
        let mut inner = Inner::default();
        for region in self.regions.remove(&block).unwrap_or_default() {
            let saved = (
                std::mem::replace(&mut self.flow.block, block),
                std::mem::take(&mut self.flow.defs),
                std::mem::take(&mut self.flow.states),
            );
            self.overwritten.extend(&region.written);
            self.renewed.clear();
            let done = self.region(&region, &mut inner);
            (self.flow.block, self.flow.defs, self.flow.states) = saved;
            done?;
        }
        Ok(inner)
    }

    fn region(&mut self, region: &Region, inner: &mut Inner) -> Result<(), TrainError> {
        let mut pending: BTreeMap<i64, VarId> = BTreeMap::new();
        for (i, &op) in region.ops.iter().enumerate() {
            self.flush_above(&mut pending, region.level[i], At::Before(op));
            let done = match region.matched[i] {
                Match::Gradient(forward) => self.gradient(region, op, forward, &mut pending)?,
                Match::Sum => self.flow.add(op),
                Match::Other => self.other(op),
            };
            done.map_err(|Unsettled(name)| self.unsettled(op, name))?;
        }
        let last = *region.ops.last().expect("a region has ops");
        let end = At::After(last);
        self.flush_above(&mut pending, -1, end);
        let names: Vec<Name> = self.flow.defs.iter().filter(|(_, e)| !e.is_empty()).map(|(&n, _)| n).collect();
        for name in names {
            let unread = match self.flow.defs[&name][..] {
                [Entry::Copy(c)] => Some(c).filter(|c| !self.flow.states[c].read),
                _ => None,
            };
            self.flow.settle(name, end).map_err(|Unsettled(name)| self.unsettled(last, name))?;
            inner.written.insert(name);
            if let Some((cast, _)) = unread.and_then(|c| self.flow.states[&c].cast)
                && self.is_param_grad(region, name)
            {
                self.moved.push((cast, last));
            }
        }
        let mut outer: Vec<VarId> =
            self.flow.states.iter().filter(|(_, s)| !s.parts.is_empty()).map(|(&c, _)| c).collect();
        outer.sort_unstable();
        for copy in outer {
            let name = self.flow.add_up(copy, end);
            inner.outer.insert(copy, name);
        }
        Ok(())
    }

    /// The gradient of a float32 parameter, in the global block.
    fn is_param_grad(&self, region: &Region, name: Name) -> bool {
        let work = &*self.flow.work;
        let Some(of) = self.flow.grads.of(name) else { return false };
        let Some(var) = self.flow.decls.find(region.forward, of) else { return false };
        let var = work.var(var);
        work.block(region.grads).index == 0 && var.is_parameter() && var.dtype == DType::F32
    }

    fn unsettled(&self, op: OpId, name: Name) -> TrainError {
        let r = self.flow.before.op(op);
        let block = self.flow.before.block(r.block());
        TrainError::Gradient {
            name: self.flow.work.name(name).to_owned(),
            kind: r.kind_str().to_owned(),
            block: block.index,
            index: block.ops.iter().position(|&o| o == op).unwrap_or(0),
        }
    }

    /// Completes the gradients of copies that are made behind a place of the forward block.
    fn flush_above(&mut self, pending: &mut BTreeMap<i64, VarId>, level: i64, at: At) {
        while let Some((&place, &copy)) = pending.last_key_value().filter(|&(&p, _)| p > level) {
            pending.remove(&place);
            if self.flow.states.get(&copy).is_some_and(|s| s.cast.is_none()) {
                self.flow.flush(copy, at);
            }
        }
    }

    /// What an op reads or writes instead of an argument of its forward op.
    fn now(&self, forward: OpId, output: bool, slot: Symbol, at: usize, name: Name) -> Name {
        let (old, new) = (self.flow.before.op(forward), self.flow.work.op(forward));
        let (a, b) = match output {
            false => (old.input(slot), new.input(slot)),
            true => (old.output(slot), new.output(slot)),
        };
        if a.get(at) == Some(&name) {
            return b.get(at).copied().unwrap_or(name);
        }
        let all = |op: OpRef<'_>| -> Vec<Name> {
            if output { op.output_args().collect() } else { op.input_args().collect() }
        };
        let (a, b) = (all(old), all(new));
        a.iter().position(|&n| n == name).and_then(|i| b.get(i).copied()).unwrap_or(name)
    }

    /// A gradient op.
    fn gradient(
        &mut self,
        region: &Region,
        op: OpId,
        forward: OpId,
        pending: &mut BTreeMap<i64, VarId>,
    ) -> Result<Result<(), Unsettled>, TrainError> {
        let before = self.flow.before;
        let r = before.op(op);
        if r.has_sub_blocks() {
            return self.control(region, op, forward, pending);
        }
        let inputs: Vec<(usize, Symbol, &[Name])> = r.inputs().enumerate().map(|(i, s)| (i, s.name, s.args)).collect();
        for (i, slot, args) in inputs {
            for (at, &name) in args.iter().enumerate() {
                if is_empty(before, name) {
                    continue;
                }
                let new = if let Some(of) = self.flow.grads.of(name) {
                    if let Err(e) = self.flow.settle(name, At::Before(op)) {
                        return Ok(Err(e));
                    }
                    let stem = self.symbols[slot.index()].unwrap_or(slot);
                    let out = self.now(forward, true, stem, at, of);
                    if out == of { name } else { self.result(region, op, name, out) }
                } else {
                    let outs = before.op(forward).output(slot);
                    let new = self.now(forward, outs.get(at) == Some(&name), slot, at, name);
                    if new != name && self.overwritten.contains(&name) {
                        self.renew(region, op, name, new)
                    } else {
                        new
                    }
                };
                if new != name {
                    self.flow.slots(op).inputs[i].1[at] = new;
                }
            }
        }
        let outputs: Vec<(usize, Symbol, &[Name])> =
            r.outputs().enumerate().map(|(i, s)| (i, s.name, s.args)).collect();
        for (slot, symbol, args) in outputs {
            for (at, &name) in args.iter().enumerate() {
                let Some(of) = self.flow.grads.of(name) else { continue };
                let stem = self.symbols[symbol.index()].unwrap_or(symbol);
                let x = self.now(forward, false, stem, at, of);
                self.write(region, Part { op, slot, at }, name, of, x, pending);
            }
        }
        self.attributes(op, forward);
        Ok(Ok(()))
    }

    /// An op writes a gradient: of the variable, or of a copy of it.
    fn write(
        &mut self,
        region: &Region,
        part: Part,
        name: Name,
        of: Name,
        x: Name,
        pending: &mut BTreeMap<i64, VarId>,
    ) {
        let copy = if x == of { None } else { self.flow.decls.find(region.forward, x) };
        let Some(copy) = copy.filter(|c| self.flow.copies.contains_key(c)) else {
            let time = self.flow.tick();
            self.flow.defs.insert(name, vec![Entry::Op(part, time)]);
            return;
        };
        let grad = self.flow.copy_grad(copy);
        self.flow.set_output(part, grad);
        let row = &self.flow.copies[&copy];
        let own = row.block == region.forward;
        if own {
            pending.insert(row.place, copy);
        }
        let state: &mut CopyState = self.flow.states.entry(copy).or_default();
        state.parts.push(part);
        state.spare.get_or_insert(name);
        self.flow.defs.insert(name, if own { vec![Entry::Copy(copy)] } else { Vec::new() });
    }

    /// A copy of what an optimizer wrote since the forward part made one: the program reads the new value.
    fn renew(&mut self, region: &Region, op: OpId, name: Name, copy: Name) -> Name {
        if let Some(&new) = self.renewed.get(&copy) {
            return new;
        }
        let Some(var) = self.flow.decls.find(region.forward, copy) else { return copy };
        let Some(to) = self.flow.copies.get(&var).map(|c| c.dtype) else { return copy };
        let text = self.flow.work.name(copy).to_owned();
        let new = self.flow.work.fresh_name(&text);
        self.flow.declare_as(var, new);
        let from = if to == DType::F32 { self.low() } else { DType::F32 };
        let mut cast = crate::ir::NewOp::new(sym::CAST).input(sym::X, [name]).output(sym::OUT, [new]);
        cast.attrs = cast_attrs(from, to, "", Role::BACKWARD);
        self.flow.insert(At::Before(op), cast);
        self.renewed.insert(copy, new);
        new
    }

    /// The gradient of what an op writes to be cast to the variable.
    fn result(&mut self, region: &Region, op: OpId, grad: Name, out: Name) -> Name {
        let Some(copy) = self.flow.decls.find(region.forward, out) else { return grad };
        let Some(to) = self.flow.copies.get(&copy).map(|c| c.dtype) else { return grad };
        let text = format!("{}{}", self.flow.work.name(out), grads::GRAD);
        let name = self.flow.work.fresh_name(&text);
        self.flow.declare_as(copy, name);
        let from = if to == DType::F32 { self.low() } else { DType::F32 };
        let mut cast = crate::ir::NewOp::new(sym::CAST).input(sym::X, [grad]).output(sym::OUT, [name]);
        cast.attrs = cast_attrs(from, to, "", Role::BACKWARD);
        self.flow.insert(At::Before(op), cast);
        name
    }

    fn low(&self) -> DType {
        self.flow.copies.values().map(|c| c.dtype).find(|d| d.is_low()).unwrap_or(DType::F16)
    }

    /// The gradient of a control op: its block first, then what it lists.
    fn control(
        &mut self,
        region: &Region,
        op: OpId,
        forward: OpId,
        pending: &mut BTreeMap<i64, VarId>,
    ) -> Result<Result<(), Unsettled>, TrainError> {
        let before = self.flow.before;
        let r = before.op(op);
        for name in r.input_args().filter(|&n| self.flow.grads.of(n).is_some()) {
            if let Err(e) = self.flow.settle(name, At::Before(op)) {
                return Ok(Err(e));
            }
        }
        let mut inner = Inner::default();
        for sub in r.sub_blocks() {
            let Inner { outer, written } = self.block(sub)?;
            inner.outer.extend(outer);
            inner.written.extend(written);
        }
        // The list of what the blocks read, and of the gradients of that.
        let lists = r.outputs().enumerate().find_map(|(o, out)| {
            let stem = self.symbols[out.name.index()]?;
            let i = r.inputs().position(|s| s.name == stem && s.args.len() == out.args.len())?;
            Some((i, o, stem, out.args.to_vec()))
        });
        let Some((i, o, stem, grads)) = lists else { return Ok(Ok(())) };
        let list = r.input(stem).to_vec();
        let f = self.flow.work.op(forward);
        let read: Vec<Name> = f.input(stem).to_vec();
        let old: FxHashSet<Name> = before.op(forward).input(stem).iter().copied().collect();
        let kept: FxHashSet<Name> = read.iter().copied().collect();
        let mut rows: Vec<(Name, Option<Name>)> = list.iter().copied().zip(grads.iter().copied().map(Some)).collect();
        let mut sources: FxHashMap<Name, Name> = FxHashMap::default();
        let of_copy = |flow: &Flow<'_>, name: Name| {
            let var = flow.decls.find(region.forward, name)?;
            flow.copies.get(&var).map(|c| (var, c.of))
        };
        for &name in read.iter().filter(|n| !old.contains(n)) {
            let Some((_, of)) = of_copy(&self.flow, name) else { continue };
            match rows.iter_mut().find(|(n, _)| *n == of) {
                Some((n, _)) if !kept.contains(&of) => *n = name,
                _ => rows.push((name, None)),
            }
            sources.insert(name, of);
        }
        let empty = self.flow.work.intern(crate::verify::EMPTY_VAR);
        let names: Vec<Name> = rows.iter().map(|r| r.0).collect();
        if names != list || rows.len() != grads.len() {
            let slots = self.flow.slots(op);
            slots.inputs[i].1 = names;
            slots.outputs[o].1 = vec![empty; rows.len()];
        }
        let by_var: FxHashMap<Name, Name> = list.iter().copied().zip(grads.iter().copied()).collect();
        let mut made: Vec<(Name, Vec<Entry>)> = Vec::new();
        for (at, &(name, grad)) in rows.iter().enumerate() {
            let part = Part { op, slot: o, at };
            let source = sources.get(&name).copied();
            let outer_name = grad.or_else(|| by_var.get(&source?).copied());
            let Some(outer_name) = outer_name.filter(|&g| !is_empty(before, g)) else { continue };
            match source.and_then(|_| of_copy(&self.flow, name)) {
                None => {
                    let Some(of) = self.flow.grads.of(outer_name) else { continue };
                    let local = inner.written.iter().any(|&w| self.flow.grads.of(w) == Some(of));
                    let time = self.flow.tick();
                    if local {
                        self.flow.set_output(part, outer_name);
                        made.push((outer_name, vec![Entry::Op(part, time)]));
                    } else {
                        self.flow.set_output(part, empty);
                        made.push((outer_name, Vec::new()));
                    }
                }
                Some((copy, _)) => {
                    if !inner.outer.contains_key(&copy) {
                        self.flow.set_output(part, empty);
                        made.push((outer_name, Vec::new()));
                        continue;
                    }
                    let name = self.flow.copy_grad(copy);
                    self.flow.set_output(part, name);
                    let row = &self.flow.copies[&copy];
                    let own = row.block == region.forward;
                    if own {
                        pending.insert(row.place, copy);
                    }
                    let state = self.flow.states.entry(copy).or_default();
                    state.parts.push(part);
                    state.spare.get_or_insert(outer_name);
                    made.push((outer_name, if own { vec![Entry::Copy(copy)] } else { Vec::new() }));
                }
            }
        }
        let mut fresh: FxHashSet<Name> = FxHashSet::default();
        for (name, entries) in made {
            if fresh.insert(name) {
                self.flow.defs.insert(name, Vec::new());
            }
            self.flow.defs.get_mut(&name).expect("just made").extend(entries);
        }
        Ok(Ok(()))
    }

    /// An op that is no gradient op and no sum.
    fn other(&mut self, op: OpId) -> Result<(), Unsettled> {
        let r = self.flow.before.op(op);
        for name in r.input_args().filter(|&n| self.flow.grads.of(n).is_some()) {
            self.flow.settle(name, At::Before(op))?;
        }
        for (slot, s) in r.outputs().enumerate() {
            for (at, &name) in s.args.iter().enumerate().filter(|&(_, &n)| self.flow.grads.of(n).is_some()) {
                let time = self.flow.tick();
                self.flow.defs.insert(name, vec![Entry::Op(Part { op, slot, at }, time)]);
            }
        }
        self.others.push(op);
        Ok(())
    }

    /// Attributes that say a dtype are those of the forward op; a cast's are turned round.
    fn attributes(&mut self, op: OpId, forward: OpId) {
        let (before, work) = (self.flow.before, &*self.flow.work);
        let (r, old, new) = (before.op(op), before.op(forward), work.op(forward));
        let typed = [sym::IN_DTYPE, sym::OUT_DTYPE, sym::DTYPE];
        let turned = r.kind() == sym::CAST && old.kind() == sym::CAST;
        for name in typed {
            let of = match name {
                sym::IN_DTYPE if turned => sym::OUT_DTYPE,
                sym::OUT_DTYPE if turned => sym::IN_DTYPE,
                _ => name,
            };
            let (Some(a), Some(b)) = (old.attr(of), new.attr(of)) else { continue };
            if a != b && r.attr(name) == Some(a) {
                self.flow.attrs.push((op, Attr { name, value: b.clone(), raw: None }));
            }
        }
    }

    /// Moves the casts of parameter gradients behind the backward pass, keeps `op_role_var`, and commits.
    fn finish(mut self, pass: &str) -> Backward {
        let holders = self.role_vars();
        let order = param_order(self.flow.before);
        let mut moved: Vec<(usize, OpId)> = std::mem::take(&mut self.moved);
        let rank = |i: usize| {
            let out = self.flow.inserts[i].op.outputs[0].1[0];
            self.flow.grads.of(out).and_then(|p| order.get(&p).copied()).unwrap_or(usize::MAX)
        };
        moved.sort_by_key(|&(i, last)| (last, rank(i)));
        let tail: Vec<Insert> = moved
            .iter()
            .map(|&(i, last)| {
                let mut op = self.flow.inserts[i].op.clone();
                op.attrs.retain(|a| a.name != sym::OP_ROLE_VAR);
                for a in op.attrs.iter_mut().filter(|a| a.name == sym::OP_ROLE) {
                    a.value = Role::OPTIMIZE.0.into();
                }
                Insert { at: At::After(last), op }
            })
            .collect();
        let gone: FxHashSet<usize> = moved.iter().map(|m| m.0).collect();
        let mut index = 0..;
        self.flow.inserts.retain(|_| !gone.contains(&index.next().expect("endless")));
        self.flow.inserts.extend(tail);
        for (op, list) in holders {
            let value = AttrValue::Strings(list.into_iter().map(Into::into).collect());
            self.flow.attrs.push((op, Attr { name: sym::OP_ROLE_VAR, value, raw: None }));
        }
        let mut edit = Edit::new();
        grads::retype(self.flow.work, &self.flow.decls, self.flow.grads, &mut edit);
        let others = std::mem::take(&mut self.others);
        let work = self.flow.queue(&mut edit);
        Backward { summary: edit.commit(work, pass), others }
    }

    /// `op_role_var` names a parameter and its gradient on the op that makes the gradient, so that it can be sent
    /// to other workers: of a cast that is moved behind, on the op that makes its operand. Returns the lists of
    /// ops of the program that change.
    fn role_vars(&mut self) -> Vec<(OpId, Vec<String>)> {
        #[derive(Clone, Copy)]
        enum Maker {
            Op(OpId),
            Insert(usize),
        }
        let mut makers: FxHashMap<(BlockId, Name), Maker> = FxHashMap::default();
        let block_of = |op: OpId| self.flow.work.op(op).block();
        for op in &self.flow.changed {
            for name in self.flow.slots[op].outputs.iter().flat_map(|s| &s.1) {
                makers.insert((block_of(*op), *name), Maker::Op(*op));
            }
        }
        for (i, insert) in self.flow.inserts.iter().enumerate() {
            let (At::Before(at) | At::After(at)) = insert.at else { continue };
            for name in insert.op.outputs.iter().flat_map(|s| &s.1) {
                makers.insert((block_of(at), *name), Maker::Insert(i));
            }
        }
        let moved: FxHashSet<usize> = self.moved.iter().map(|m| m.0).collect();
        let removed: FxHashSet<OpId> = self.flow.removed.iter().copied().collect();
        let mut lists: IndexMap<OpId, Vec<String>> = IndexMap::new();
        let mut of_inserts: IndexMap<usize, Vec<String>> = IndexMap::new();
        let before = self.flow.before;
        let ops = before.section_blocks(Section::Main).flat_map(|b| before.ops(b));
        for op in ops.filter(|op| op.role().is_some_and(|r| r.has(Role::BACKWARD))) {
            let Some(list) = op.attr(sym::OP_ROLE_VAR).and_then(|v| v.as_strs()).filter(|l| !l.is_empty()) else {
                continue;
            };
            if !removed.contains(&op.id) {
                lists.entry(op.id).or_default();
            }
            for pair in list.chunks(2) {
                let mut texts: Vec<String> = pair.iter().map(|t| t.to_string()).collect();
                let grad = pair.get(1).and_then(|g| before.names().lookup(g));
                let mut maker = grad.and_then(|g| makers.get(&(op.block(), g)).copied()).unwrap_or(Maker::Op(op.id));
                if let Maker::Insert(i) = maker
                    && moved.contains(&i)
                {
                    let x = self.flow.inserts[i].op.inputs[0].1[0];
                    maker = makers.get(&(op.block(), x)).copied().unwrap_or(Maker::Op(op.id));
                    texts[1] = self.flow.work.name(x).to_owned();
                }
                match maker {
                    Maker::Op(id) => lists.entry(id).or_default().extend(texts),
                    Maker::Insert(i) => of_inserts.entry(i).or_default().extend(texts),
                }
            }
        }
        for (i, list) in of_inserts {
            let value = AttrValue::Strings(list.into_iter().map(Into::into).collect());
            for a in self.flow.inserts[i].op.attrs.iter_mut().filter(|a| a.name == sym::OP_ROLE_VAR) {
                a.value = value.clone();
            }
        }
        let same = |op: OpId, list: &[String]| {
            let old = before.op(op).attr(sym::OP_ROLE_VAR).and_then(|v| v.as_strs()).unwrap_or(&[]);
            old.iter().map(|t| &**t).eq(list.iter().map(String::as_str))
        };
        lists.into_iter().filter(|(op, list)| !same(*op, list)).collect()
    }
}

/// Parameters in the order in which startup first writes them, as Paddle's lists of parameters are.
pub(super) fn param_order(program: &Program) -> FxHashMap<Name, usize> {
    let mut order = FxHashMap::default();
    let written = program.section_blocks(Section::Startup).flat_map(|b| program.ops(b)).flat_map(|op| op.output_args());
    let declared = program.section_blocks(Section::Main).flat_map(|b| &program.block(b).vars);
    let declared = declared.map(|&v| program.var(v)).filter(|v| v.is_parameter()).map(|v| v.name);
    for (i, name) in written.chain(declared).enumerate() {
        order.entry(name).or_insert(i);
    }
    order
}
