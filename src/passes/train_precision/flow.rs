//! Where does each gradient come from while a backward pass is rewritten?
//!
//! A gradient of the float32 program has one or more *parts*, one for each op that read the variable. Of the
//! rewritten program some of these parts are of a copy of the variable: they add up to the copy's gradient, and a
//! cast makes one part of that. Names are settled when a gradient is read, so that a `sum` of one part is none.

use super::grads::{GRAD, Grads, RENAME};
use crate::ir::{
    At, Attr, AttrValue, BlockId, DType, Edit, NewOp, OpId, OriginId, Program, Role, VarDef, VarFlag, VarId,
};
use crate::names::{Name, Symbol, sym};
use crate::passes::precision::cast_attrs;
use crate::verify::DeclIndex;
use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};

/// The slots of an op that is changed.
pub(super) struct Slots {
    pub inputs: Vec<(Symbol, Vec<Name>)>,
    pub outputs: Vec<(Symbol, Vec<Name>)>,
}

/// An output argument of an op: slot and place there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub op: OpId,
    pub slot: usize,
    pub at: usize,
}

/// What makes a gradient, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// an op, at this time
    Op(Part, usize),
    /// the cast of the gradient of a copy
    Copy(VarId),
    /// an inserted op, at this time
    Inserted(usize, usize),
    /// something that is not followed
    Literal(Name),
}

/// A copy of a variable that the forward part reads.
pub(super) struct CopyRow {
    pub of: Name,
    pub name: Name,
    pub dtype: DType,
    /// the block of the cast
    pub block: BlockId,
    /// the place of the cast there
    pub place: i64,
}

/// How far the gradient of a copy is.
#[derive(Default)]
pub(super) struct CopyState {
    pub parts: Vec<Part>,
    /// the inserted cast and its time
    pub cast: Option<(usize, usize)>,
    /// the name of one part of the variable's gradient, which the cast may take
    pub spare: Option<Name>,
    /// whether the cast's result was read under its name
    pub read: bool,
}

/// An op to be inserted.
pub(super) struct Insert {
    pub at: At,
    pub op: NewOp,
}

/// A gradient that no op would write.
pub(super) struct Unsettled(pub Name);

/// The rewrite of all backward ops.
pub(super) struct Flow<'f> {
    pub before: &'f Program,
    pub work: &'f mut Program,
    pub grads: &'f Grads,
    pub decls: DeclIndex,
    pub copies: IndexMap<VarId, CopyRow>,
    pub slots: FxHashMap<OpId, Slots>,
    /// the ops of `slots` in the order in which they were changed
    pub changed: Vec<OpId>,
    pub inserts: Vec<Insert>,
    pub removed: Vec<OpId>,
    pub attrs: Vec<(OpId, Attr)>,
    pub declares: Vec<(BlockId, VarDef, OriginId)>,
    declared: FxHashSet<(BlockId, Name)>,
    pub time: usize,
    // ---- of the region at hand
    pub block: BlockId,
    pub defs: IndexMap<Name, Vec<Entry>>,
    pub states: FxHashMap<VarId, CopyState>,
}

impl<'f> Flow<'f> {
    pub fn new(
        before: &'f Program,
        work: &'f mut Program,
        grads: &'f Grads,
        copies: IndexMap<VarId, CopyRow>,
        block: BlockId,
    ) -> Self {
        Flow {
            before,
            decls: DeclIndex::new(work),
            work,
            grads,
            copies,
            slots: FxHashMap::default(),
            changed: Vec::new(),
            inserts: Vec::new(),
            removed: Vec::new(),
            attrs: Vec::new(),
            declares: Vec::new(),
            declared: FxHashSet::default(),
            time: 0,
            block,
            defs: IndexMap::new(),
            states: FxHashMap::default(),
        }
    }

    pub fn tick(&mut self) -> usize {
        self.time += 1;
        self.time
    }

    /// The slots of an op, to be changed.
    pub fn slots(&mut self, op: OpId) -> &mut Slots {
        if !self.slots.contains_key(&op) {
            let r = self.before.op(op);
            let list = |s: crate::ir::Slot<'_>| (s.name, s.args.to_vec());
            let slots = Slots { inputs: r.inputs().map(list).collect(), outputs: r.outputs().map(list).collect() };
            self.slots.insert(op, slots);
            self.changed.push(op);
        }
        self.slots.get_mut(&op).expect("it is there")
    }

    fn output(&self, part: Part) -> Name {
        match self.slots.get(&part.op) {
            Some(s) => s.outputs[part.slot].1[part.at],
            None => self.before.op(part.op).outputs().nth(part.slot).expect("the slot").args[part.at],
        }
    }

    pub fn set_output(&mut self, part: Part, name: Name) {
        if self.output(part) != name {
            self.slots(part.op).outputs[part.slot].1[part.at] = name;
        }
    }

    /// The name of the gradient of a copy, declared in the block at hand.
    pub fn copy_grad(&mut self, copy: VarId) -> Name {
        let text = format!("{}{GRAD}", self.work.name(self.copies[&copy].name));
        let name = self.work.intern(&text);
        self.declare_as(copy, name);
        name
    }

    /// A name for a part of the gradient of a copy.
    fn part_name(&mut self, of: Name, i: usize) -> Name {
        let text = format!("{}{RENAME}block{}@{i}", self.work.name(of), self.work.block(self.block).index);
        self.work.intern(&text)
    }

    /// A name for one part more than the program has of a gradient.
    fn new_part(&mut self, of: Name, from: usize, taken: &FxHashSet<Name>) -> Name {
        let mut i = from;
        loop {
            let name = self.part_name(of, i);
            if !taken.contains(&name) && self.decls.find(self.block, name).is_none() {
                if let Some(var) = self.grads.of(of).and_then(|of| self.forward_var(of)) {
                    self.declare_as(var, name);
                }
                return name;
            }
            i += 1;
        }
    }

    /// Declares a gradient like a variable of the forward part, in the block at hand.
    pub fn declare_as(&mut self, var: VarId, name: Name) {
        if !self.declared.insert((self.block, name)) || self.decls.declared_in(self.block, name).is_some() {
            return;
        }
        let of = self.work.var(var);
        let def = VarDef {
            name,
            kind: of.kind,
            dtype: of.dtype,
            shape: self.work.shape(var).to_vec(),
            lod_level: of.lod_level,
            flags: VarDef::tensor(name, of.dtype, []).flags.with(VarFlag::StopGradient, Some(false)),
        };
        self.declares.push((self.block, def, of.origin));
    }

    /// The inserted op's index.
    pub fn insert(&mut self, at: At, op: NewOp) -> usize {
        self.inserts.push(Insert { at, op });
        self.inserts.len() - 1
    }

    fn sum(&mut self, at: At, parts: Vec<Name>, out: Name) -> usize {
        let attrs = [
            Attr::new(sym::OP_DEVICE, ""),
            Attr::new(sym::OP_ROLE, Role::BACKWARD.0),
            Attr::new(sym::OP_ROLE_VAR, AttrValue::Strings(Box::new([]))),
            Attr::new(sym::USE_MKLDNN, false),
            Attr::new(sym::WITH_QUANT_ATTR, false),
        ];
        let mut op = NewOp::new(sym::SUM).input(sym::X, parts).output(sym::OUT, [out]);
        op.attrs = attrs.to_vec();
        self.insert(at, op)
    }

    /// Adds up the parts of a copy's gradient under its name.
    pub fn add_up(&mut self, copy: VarId, at: At) -> Name {
        let name = self.copy_grad(copy);
        let parts = std::mem::take(&mut self.states.entry(copy).or_default().parts);
        if parts.len() > 1 {
            let mut names = Vec::with_capacity(parts.len());
            for (i, &part) in parts.iter().enumerate() {
                let part_name = self.part_name(name, i);
                self.declare_as(copy, part_name);
                self.set_output(part, part_name);
                names.push(part_name);
            }
            self.sum(at, names, name);
        }
        name
    }

    /// Casts the gradient of a copy, which is complete, to a part of the variable's.
    pub fn flush(&mut self, copy: VarId, at: At) {
        let x = self.add_up(copy, at);
        let row = &self.copies[&copy];
        let of = self.decls.find(row.block, row.of);
        let to = of.map_or(DType::F32, |v| self.work.var(v).dtype);
        let mut op = NewOp::new(sym::CAST).input(sym::X, [x]);
        op.attrs = cast_attrs(row.dtype, to, "", Role::BACKWARD);
        let spare = self.states[&copy].spare.expect("a part has a name");
        let index = self.insert(at, op.output(sym::OUT, [spare]));
        let time = self.tick();
        self.states.get_mut(&copy).expect("it has parts").cast = Some((index, time));
    }

    /// Gives what makes a gradient its name; false when it was read under another one.
    fn name_it(&mut self, entry: Entry, name: Name, at: At) -> bool {
        match entry {
            Entry::Op(part, _) => self.set_output(part, name),
            Entry::Inserted(i, _) => self.inserts[i].op.outputs[0].1 = vec![name],
            Entry::Literal(n) => return n == name,
            Entry::Copy(copy) => {
                if self.states[&copy].cast.is_none() {
                    self.flush(copy, at);
                }
                let state = self.states.get_mut(&copy).expect("it was flushed");
                let (i, _) = state.cast.expect("it was flushed");
                let out = &mut self.inserts[i].op.outputs[0].1;
                if state.read && out[0] != name {
                    return false;
                }
                out[0] = name;
                state.read = true;
            }
        }
        true
    }

    fn time_of(&self, entry: Entry) -> usize {
        match entry {
            Entry::Op(_, t) | Entry::Inserted(_, t) => t,
            Entry::Copy(c) => self.states[&c].cast.map_or(usize::MAX, |(_, t)| t),
            Entry::Literal(_) => 0,
        }
    }

    /// The gradient is about to be read: it gets its name, and a `sum` when it has several parts.
    pub fn settle(&mut self, name: Name, at: At) -> Result<(), Unsettled> {
        let Some(mut entries) = self.defs.get(&name).cloned() else { return Ok(()) };
        let done = match entries[..] {
            [] => false,
            [one] => self.name_it(one, name, at),
            _ => {
                for &e in &entries {
                    if let Entry::Copy(c) = e
                        && self.states[&c].cast.is_none()
                    {
                        self.flush(c, at);
                    }
                }
                entries.sort_by_key(|&e| self.time_of(e));
                let mut names = Vec::with_capacity(entries.len());
                let of = self.grads.of(name).and_then(|of| self.forward_var(of));
                for (i, &e) in entries.iter().enumerate() {
                    let part = self.part_name(name, i);
                    if let Some(var) = of {
                        self.declare_as(var, part);
                    }
                    if !self.name_it(e, part, at) {
                        return Err(Unsettled(name));
                    }
                    names.push(part);
                }
                let index = self.sum(at, names, name);
                let time = self.tick();
                self.defs.insert(name, vec![Entry::Inserted(index, time)]);
                true
            }
        };
        if done { Ok(()) } else { Err(Unsettled(name)) }
    }

    fn forward_var(&self, of: Name) -> Option<VarId> {
        self.decls.find(self.block, of)
    }

    /// A `sum` of the program: it adds up the parts that are left.
    pub fn add(&mut self, op: OpId) -> Result<(), Unsettled> {
        let r = self.before.op(op);
        let out = r.output(sym::OUT)[0];
        let (slot, args) = {
            let slot = r.inputs().position(|s| s.name == sym::X).expect("a sum has X");
            (slot, r.input(sym::X).to_vec())
        };
        let mut entries: Vec<Entry> = Vec::with_capacity(args.len());
        let mut seen: FxHashSet<VarId> = FxHashSet::default();
        let mut spare: FxHashMap<VarId, Name> = FxHashMap::default();
        for &arg in &args {
            match self.defs.swap_remove(&arg) {
                None => entries.push(Entry::Literal(arg)),
                Some(found) => {
                    for e in found {
                        match e {
                            Entry::Copy(c) if !seen.insert(c) => {}
                            Entry::Copy(c) => {
                                spare.insert(c, arg);
                                entries.push(e);
                            }
                            _ => entries.push(e),
                        }
                    }
                }
            }
        }
        for &c in &seen {
            if self.states[&c].cast.is_none() {
                self.flush(c, At::Before(op));
            }
        }
        entries.sort_by_key(|&e| self.time_of(e));
        match entries[..] {
            [] => {
                self.removed.push(op);
                self.defs.insert(out, Vec::new());
            }
            [one] if !matches!(one, Entry::Literal(_)) => {
                self.removed.push(op);
                self.defs.insert(out, vec![one]);
            }
            _ => {
                let mut taken: FxHashSet<Name> = FxHashSet::default();
                let mut names = Vec::with_capacity(entries.len());
                for &e in &entries {
                    let mut name = match e {
                        Entry::Op(part, _) => self.output(part),
                        Entry::Inserted(i, _) => self.inserts[i].op.outputs[0].1[0],
                        Entry::Literal(n) => n,
                        Entry::Copy(c) => spare[&c],
                    };
                    if !taken.insert(name) {
                        // One op writes the gradient itself and that of a copy.
                        name = match args.iter().find(|&&a| !taken.contains(&a)) {
                            Some(&free) => free,
                            None => self.new_part(out, args.len(), &taken),
                        };
                        taken.insert(name);
                    }
                    if !self.name_it(e, name, At::Before(op)) {
                        return Err(Unsettled(name));
                    }
                    names.push(name);
                }
                if names != args {
                    self.slots(op).inputs[slot].1 = names;
                }
                let time = self.tick();
                let out_slot = r.outputs().position(|s| s.name == sym::OUT).expect("a sum has Out");
                self.defs.insert(out, vec![Entry::Op(Part { op, slot: out_slot, at: 0 }, time)]);
            }
        }
        Ok(())
    }

    /// Queues what was found, and gives the program back.
    pub fn queue(self, edit: &mut Edit) -> &'f mut Program {
        for op in self.removed.iter().copied() {
            edit.remove(op, "one part is left of the sum");
        }
        let mut slots = self.slots;
        let removed: FxHashSet<OpId> = self.removed.iter().copied().collect();
        for op in self.changed.iter().filter(|op| !removed.contains(*op)) {
            let Slots { inputs, outputs } = slots.remove(op).expect("a changed op has slots");
            edit.set_slots(*op, inputs, outputs, "reads and writes what its forward op does");
        }
        for (block, def, origin) in self.declares {
            edit.declare(block, def, origin, "the gradient of a copy");
        }
        for Insert { at, op } in self.inserts {
            edit.insert(at, op, "");
        }
        for (op, attr) in self.attrs {
            edit.set_attr(op, attr, "follows its forward op");
        }
        self.work
    }
}
