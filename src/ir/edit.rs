//! How is a program changed? Edits are queued against a frozen program, then committed once.
//!
//! An edit names places by op, never by position, so queueing costs the edit alone and the
//! commit merges each touched block in one linear sweep. Two commits of equal queues give equal
//! programs. Edits of one anchor apply in the order in which they were queued.

mod order;

use crate::ir::{Attr, AttrListId, BlockId, DType, Entity, OpId, Origin, OriginId, Program, SlotData, VarDef, VarId};
use crate::names::{Name, Symbol};
use order::Order;
use std::borrow::Cow;

/// Where an op goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// directly before this op
    Before(OpId),
    /// directly after this op
    After(OpId),
    /// at the start of a block
    Start(BlockId),
    /// at the end of a block
    End(BlockId),
}

/// An op to be inserted: slots and attributes by value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewOp {
    /// what it does
    pub kind: Symbol,
    /// input slots
    pub inputs: Vec<(Symbol, Vec<Name>)>,
    /// output slots
    pub outputs: Vec<(Symbol, Vec<Name>)>,
    /// attributes
    pub attrs: Vec<Attr>,
}

impl NewOp {
    /// An op of a kind, without slots and attributes.
    pub fn new(kind: Symbol) -> Self {
        NewOp { kind, inputs: Vec::new(), outputs: Vec::new(), attrs: Vec::new() }
    }

    /// The same with one more input slot.
    #[must_use]
    pub fn input(mut self, slot: Symbol, args: impl Into<Vec<Name>>) -> Self {
        self.inputs.push((slot, args.into()));
        self
    }

    /// The same with one more output slot.
    #[must_use]
    pub fn output(mut self, slot: Symbol, args: impl Into<Vec<Name>>) -> Self {
        self.outputs.push((slot, args.into()));
        self
    }

    /// The same with one more attribute.
    #[must_use]
    pub fn attr(mut self, name: Symbol, value: impl Into<crate::ir::AttrValue>) -> Self {
        self.attrs.push(Attr::new(name, value));
        self
    }

    /// A copy of an op of the program, to be changed and inserted elsewhere.
    pub fn copy_of(program: &Program, op: OpId) -> Self {
        let op = program.op(op);
        NewOp {
            kind: op.kind(),
            inputs: op.inputs().map(|s| (s.name, s.args.to_vec())).collect(),
            outputs: op.outputs().map(|s| (s.name, s.args.to_vec())).collect(),
            attrs: op.attrs().to_vec(),
        }
    }
}

/// One change, as a report tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EditNote {
    /// an op was inserted, and why
    Inserted(OpId, Cow<'static, str>),
    /// an op was moved, and why
    Moved(OpId, Cow<'static, str>),
    /// an op was removed, and why
    Removed(OpId, Cow<'static, str>),
    /// an op's slots or attributes were changed, and why
    Changed(OpId, Cow<'static, str>),
    /// a variable was declared or its declaration changed
    Declared(VarId, Cow<'static, str>),
}

/// What a commit did: the statistics, "changed?" and provenance of a pass.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EditSummary {
    /// ops inserted
    pub inserted: usize,
    /// ops moved
    pub moved: usize,
    /// ops removed
    pub removed: usize,
    /// ops whose slots or attributes changed
    pub changed_ops: usize,
    /// declarations added or changed
    pub declared: usize,
    /// each change with its reason, in the order in which they were queued
    pub notes: Vec<EditNote>,
}

impl EditSummary {
    /// Whether anything changed.
    pub fn changed(&self) -> bool {
        self.inserted + self.moved + self.removed + self.changed_ops + self.declared > 0
    }

    /// Adds what a later commit did.
    pub fn merge(&mut self, other: EditSummary) {
        self.inserted += other.inserted;
        self.moved += other.moved;
        self.removed += other.removed;
        self.changed_ops += other.changed_ops;
        self.declared += other.declared;
        self.notes.extend(other.notes);
    }
}

enum Change {
    Insert {
        place: At,
        op: NewOp,
        why: Cow<'static, str>,
    },
    InsertSmall {
        place: At,
        kind: Symbol,
        attrs: AttrListId,
        input: (Symbol, Name),
        output: (Symbol, Name),
        why: Cow<'static, str>,
    },
    SetArg {
        op: OpId,
        at: u32,
        to: Name,
        why: Cow<'static, str>,
    },
    Move {
        op: OpId,
        place: At,
        why: Cow<'static, str>,
    },
    Remove {
        op: OpId,
        why: Cow<'static, str>,
    },
    SetSlots {
        op: OpId,
        inputs: Vec<(Symbol, Vec<Name>)>,
        outputs: Vec<(Symbol, Vec<Name>)>,
        why: Cow<'static, str>,
    },
    ReplaceArg {
        op: OpId,
        from: Name,
        to: Name,
        inputs: bool,
        outputs: bool,
        why: Cow<'static, str>,
    },
    SetAttr {
        op: OpId,
        attr: Attr,
        why: Cow<'static, str>,
    },
    Declare {
        block: BlockId,
        def: VarDef,
        anchor: OriginId,
        why: Cow<'static, str>,
    },
    SetDType {
        var: VarId,
        dtype: DType,
        why: Cow<'static, str>,
    },
    Rename {
        var: VarId,
        name: Name,
        why: Cow<'static, str>,
    },
}

/// A queue of changes to one program.
///
/// ```
/// use mastercast::ir::{At, Edit, NewOp, ProgramBuilder, Section};
/// use mastercast::names::sym;
/// let mut b = ProgramBuilder::new();
/// let last = b.section(Section::Main).op("relu").arg("X", ["x"]).out("Out", ["y"]).done();
/// let mut program = b.finish();
/// let (x, y) = (program.intern("x"), program.intern("y"));
///
/// let mut edit = Edit::new();
/// edit.insert(At::Before(last), NewOp::new(sym::ASSIGN).input(sym::X, [y]).output(sym::OUT, [x]), "an example");
/// edit.replace_output(last, y, x, "in place");
/// let summary = edit.commit(&mut program, "example");
///
/// assert_eq!((summary.inserted, summary.changed_ops), (1, 1));
/// let block = program.global_block(Section::Main).unwrap();
/// let lines: Vec<String> = program.ops(block).map(|op| format!("{op:?}")).collect();
/// assert_eq!(lines, ["(Out: x) = assign(X: y)", "(Out: x) = relu(X: x)"]);
/// ```
#[derive(Default)]
pub struct Edit {
    changes: Vec<Change>,
}

impl Edit {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of queued changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Inserts an op.
    pub fn insert(&mut self, place: At, op: NewOp, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::Insert { place, op, why: why.into() });
    }

    /// Inserts an op of one input and one output whose attribute list the program already has: no allocation.
    pub fn insert_small(
        &mut self,
        place: At,
        kind: Symbol,
        attrs: AttrListId,
        input: (Symbol, Name),
        output: (Symbol, Name),
        why: impl Into<Cow<'static, str>>,
    ) {
        self.changes.push(Change::InsertSmall { place, kind, attrs, input, output, why: why.into() });
    }

    /// Replaces one argument of an op: that at this place among its inputs and then its outputs, slot by slot.
    ///
    /// The commit panics when the op has no such argument.
    pub fn set_arg(&mut self, op: OpId, at: u32, to: Name, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::SetArg { op, at, to, why: why.into() });
    }

    /// Moves an op, also from one block to another of the same section.
    pub fn relocate(&mut self, op: OpId, place: At, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::Move { op, place, why: why.into() });
    }

    /// Removes an op.
    pub fn remove(&mut self, op: OpId, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::Remove { op, why: why.into() });
    }

    /// Replaces all slots of an op.
    pub fn set_slots(
        &mut self,
        op: OpId,
        inputs: Vec<(Symbol, Vec<Name>)>,
        outputs: Vec<(Symbol, Vec<Name>)>,
        why: impl Into<Cow<'static, str>>,
    ) {
        self.changes.push(Change::SetSlots { op, inputs, outputs, why: why.into() });
    }

    /// Replaces a name among an op's inputs.
    pub fn replace_input(&mut self, op: OpId, from: Name, to: Name, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::ReplaceArg { op, from, to, inputs: true, outputs: false, why: why.into() });
    }

    /// Replaces a name among an op's outputs.
    pub fn replace_output(&mut self, op: OpId, from: Name, to: Name, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::ReplaceArg { op, from, to, inputs: false, outputs: true, why: why.into() });
    }

    /// Sets an attribute, in place when it exists, else at the end.
    pub fn set_attr(&mut self, op: OpId, attr: Attr, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::SetAttr { op, attr, why: why.into() });
    }

    /// Declares a variable; `anchor` is the origin from which it derives.
    pub fn declare(&mut self, block: BlockId, def: VarDef, anchor: OriginId, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::Declare { block, def, anchor, why: why.into() });
    }

    /// Changes a declaration's element type.
    pub fn set_dtype(&mut self, var: VarId, dtype: DType, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::SetDType { var, dtype, why: why.into() });
    }

    /// Changes the name that a declaration declares; the ops that use the old one are the caller's to change.
    pub fn rename(&mut self, var: VarId, name: Name, why: impl Into<Cow<'static, str>>) {
        self.changes.push(Change::Rename { var, name, why: why.into() });
    }

    /// Carries the queue out as the work of `pass`.
    ///
    /// What is queued around an op that the same edit removes takes its place.
    ///
    /// Panics when a place names an op that an earlier edit removed or that this one moves, and when one op is
    /// moved or removed twice: that is a fault of the pass.
    pub fn commit(self, program: &mut Program, pass: &str) -> EditSummary {
        let mut summary = EditSummary::default();
        if self.changes.is_empty() {
            return summary;
        }
        let pass = program.symbol(pass);
        let mut order = Order::default();
        for change in self.changes {
            match change {
                Change::Insert { place, op, why } => {
                    let id = make_op(program, place, op, pass);
                    order.put(program, place, id);
                    summary.inserted += 1;
                    summary.notes.push(EditNote::Inserted(id, why));
                }
                Change::InsertSmall { place, kind, attrs, input, output, why } => {
                    let origin = derive(program, place, pass);
                    let id = program.push_op_row(block_of(program, place), kind, attrs, origin);
                    program.push_input(id, input.0, [input.1]);
                    program.push_output(id, output.0, [output.1]);
                    order.put(program, place, id);
                    summary.inserted += 1;
                    summary.notes.push(EditNote::Inserted(id, why));
                }
                Change::SetArg { op, at, to, why } => {
                    if set_arg(program, op, at, to) {
                        note_changed(program, &mut summary, op, why);
                    }
                }
                Change::Move { op, place, why } => {
                    assert!(!order.anchors(op), "an anchor is moved in the same edit");
                    order.take(program, op);
                    order.put(program, place, op);
                    let block = block_of(program, place);
                    program.ops[op].block = block;
                    summary.moved += 1;
                    summary.notes.push(EditNote::Moved(op, why));
                }
                Change::Remove { op, why } => {
                    order.take(program, op);
                    order.removed.push(op);
                    summary.removed += 1;
                    summary.notes.push(EditNote::Removed(op, why));
                }
                Change::SetSlots { op, inputs, outputs, why } => {
                    set_slots(program, op, &inputs, &outputs);
                    note_changed(program, &mut summary, op, why);
                }
                Change::ReplaceArg { op, from, to, inputs, outputs, why } => {
                    if replace_arg(program, op, from, to, inputs, outputs) {
                        note_changed(program, &mut summary, op, why);
                    }
                }
                Change::SetAttr { op, attr, why } => {
                    if set_attr(program, op, attr) {
                        note_changed(program, &mut summary, op, why);
                    }
                }
                Change::Declare { block, def, anchor, why } => {
                    let origin = program.push_origin(Origin::Derived { pass, from: anchor });
                    let id = program.push_var(block, &def, origin);
                    touch(program, block);
                    summary.declared += 1;
                    summary.notes.push(EditNote::Declared(id, why));
                }
                Change::SetDType { var, dtype, why } => {
                    if program.vars[var].dtype != dtype {
                        program.vars[var].dtype = dtype;
                        program.drop_verbatim(Entity::Var(var));
                        touch(program, program.vars[var].block);
                        summary.declared += 1;
                        summary.notes.push(EditNote::Declared(var, why));
                    }
                }
                Change::Rename { var, name, why } => {
                    if program.vars[var].name != name {
                        program.vars[var].name = name;
                        program.drop_verbatim(Entity::Var(var));
                        touch(program, program.vars[var].block);
                        summary.declared += 1;
                        summary.notes.push(EditNote::Declared(var, why));
                    }
                }
            }
        }
        order.merge(program);
        summary
    }
}

/// The whole file no longer stands as it was.
fn touch(program: &mut Program, block: BlockId) {
    let section = program.blocks[block].section;
    program.drop_verbatim(Entity::Block(block));
    program.drop_verbatim(Entity::Section(section));
}

fn note_changed(program: &mut Program, summary: &mut EditSummary, op: OpId, why: Cow<'static, str>) {
    program.drop_verbatim(Entity::Op(op));
    touch(program, program.ops[op].block);
    summary.changed_ops += 1;
    summary.notes.push(EditNote::Changed(op, why));
}

fn block_of(program: &Program, place: At) -> BlockId {
    match place {
        At::Before(op) | At::After(op) => program.ops[op].block,
        At::Start(block) | At::End(block) => block,
    }
}

/// The origin of an op that a pass makes at a place.
fn derive(program: &mut Program, place: At, pass: Symbol) -> OriginId {
    let from = match place {
        At::Before(anchor) | At::After(anchor) => program.ops[anchor].origin,
        At::Start(_) | At::End(_) => program.push_origin(Origin::Built { tag: 0 }),
    };
    program.push_origin(Origin::Derived { pass, from })
}

fn make_op(program: &mut Program, place: At, op: NewOp, pass: Symbol) -> OpId {
    let block = block_of(program, place);
    let origin = derive(program, place, pass);
    let attrs = program.intern_attrs(op.attrs);
    let id = program.push_op_row(block, op.kind, attrs, origin);
    for (slot, args) in op.inputs {
        program.push_input(id, slot, args);
    }
    for (slot, args) in op.outputs {
        program.push_output(id, slot, args);
    }
    id
}

fn set_slots(program: &mut Program, op: OpId, inputs: &[(Symbol, Vec<Name>)], outputs: &[(Symbol, Vec<Name>)]) {
    let start = u32::try_from(program.slots.len()).expect("more than 2^32 slots");
    for (slot, args) in inputs.iter().chain(outputs) {
        let at = program.args.len() as u32;
        program.args.extend_from_slice(args);
        program.slots.push(SlotData { name: *slot, start: at, len: args.len() as u32 });
    }
    let d = &mut program.ops[op];
    d.slots = start;
    d.inputs = u16::try_from(inputs.len()).expect("more than 65,535 input slots");
    d.outputs = u16::try_from(outputs.len()).expect("more than 65,535 output slots");
}

fn replace_arg(program: &mut Program, op: OpId, from: Name, to: Name, inputs: bool, outputs: bool) -> bool {
    let d = program.ops[op];
    let first = d.slots as usize + if inputs { 0 } else { d.inputs as usize };
    let last = d.slots as usize + d.inputs as usize + if outputs { d.outputs as usize } else { 0 };
    let mut hit = false;
    for slot in first..last {
        let SlotData { start, len, .. } = program.slots[slot];
        for arg in &mut program.args[start as usize..start as usize + len as usize] {
            if *arg == from {
                *arg = to;
                hit = true;
            }
        }
    }
    hit && from != to
}

fn set_arg(program: &mut Program, op: OpId, at: u32, to: Name) -> bool {
    let d = program.ops[op];
    let slots = d.slots as usize..d.slots as usize + d.inputs as usize + d.outputs as usize;
    let mut left = at;
    for SlotData { start, len, .. } in &program.slots[slots] {
        if left < *len {
            let arg = &mut program.args[(start + left) as usize];
            return std::mem::replace(arg, to) != to;
        }
        left -= len;
    }
    panic!("an edit names argument {at} of an op that has fewer");
}

fn set_attr(program: &mut Program, op: OpId, attr: Attr) -> bool {
    let old: AttrListId = program.ops[op].attrs;
    let mut attrs = program.attr_list(old).to_vec();
    match attrs.iter_mut().find(|a| a.name == attr.name) {
        Some(a) if a.value == attr.value => return false,
        Some(a) => *a = attr,
        None => attrs.push(attr),
    }
    let new = program.intern_attrs(attrs);
    program.ops[op].attrs = new;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Section;
    use crate::names::sym;

    fn program(n: usize) -> (Program, BlockId) {
        let mut p = Program::new();
        let b = p.push_block(Section::Main, -1, None);
        let attrs = p.intern_attrs(Vec::new());
        for i in 0..n {
            let origin = p.push_origin(Origin::Built { tag: i as u32 });
            p.push_op(b, sym::ASSIGN, attrs, origin);
        }
        (p, b)
    }

    #[test]
    fn edits_apply_in_queue_order_around_their_anchor() {
        let (mut p, b) = program(3);
        let ids: Vec<_> = p.block(b).ops.clone();
        let mut e = Edit::new();
        e.insert(At::Before(ids[1]), NewOp::new(sym::CAST), "a");
        e.insert(At::Before(ids[1]), NewOp::new(sym::LOAD), "b");
        e.insert(At::After(ids[1]), NewOp::new(sym::SAVE), "c");
        e.insert(At::Start(b), NewOp::new(sym::FEED), "d");
        e.relocate(ids[0], At::End(b), "e");
        e.remove(ids[2], "f");
        let s = e.commit(&mut p, "test");
        let kinds: Vec<_> = p.ops(b).map(|o| o.kind_str()).collect();
        assert_eq!(kinds, ["feed", "cast", "load", "assign", "save", "assign"]);
        assert_eq!((s.inserted, s.moved, s.removed), (4, 1, 1));
        assert!(p.ops[ids[2]].removed);
    }

    #[test]
    fn a_removed_anchor_is_replaced_by_what_was_inserted_around_it() {
        let (mut p, b) = program(2);
        let ids: Vec<_> = p.block(b).ops.clone();
        let mut e = Edit::new();
        e.insert(At::Before(ids[0]), NewOp::new(sym::CAST), "a");
        e.remove(ids[0], "b");
        e.insert(At::After(ids[0]), NewOp::new(sym::LOAD), "c");
        e.commit(&mut p, "test");
        let kinds: Vec<_> = p.ops(b).map(|o| o.kind_str()).collect();
        assert_eq!(kinds, ["cast", "load", "assign"]);
    }

    #[test]
    fn setting_an_equal_attribute_is_no_change() {
        let (mut p, b) = program(1);
        let op = p.block(b).ops[0];
        let mut e = Edit::new();
        e.set_attr(op, Attr::new(sym::DTYPE, 5), "x");
        assert!(e.commit(&mut p, "t").changed());
        let mut e = Edit::new();
        e.set_attr(op, Attr::new(sym::DTYPE, 5), "x");
        assert!(!e.commit(&mut p, "t").changed());
    }
}
