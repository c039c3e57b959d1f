//! What is an op? A fixed-size row, with its slots, arguments and attributes in pools.

use crate::entity::entity;
use crate::ir::{Attr, AttrValue, BlockId, OriginId, Program, Role, Section};
use crate::names::{Name, Symbol};

entity! {
    /// An op of a program.
    OpId, "op"
}
entity! {
    /// An attribute list; ops with equal lists share one.
    AttrListId, "attrs"
}

/// One op. Its slots are `inputs + outputs` rows of the slot pool, inputs first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpData {
    /// what it does
    pub kind: Symbol,
    pub(crate) slots: u32,
    pub(crate) inputs: u16,
    pub(crate) outputs: u16,
    /// its attributes
    pub attrs: AttrListId,
    /// the block that holds it
    pub block: BlockId,
    /// where it comes from
    pub origin: OriginId,
    pub(crate) is_target: Option<bool>,
    pub(crate) removed: bool,
}

/// A named list of arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotData {
    pub(crate) name: Symbol,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A slot of an op, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot<'p> {
    /// the slot's name
    pub name: Symbol,
    /// its arguments; may be empty
    pub args: &'p [Name],
}

/// An op of a program, resolved; cheap to copy.
#[derive(Clone, Copy)]
pub struct OpRef<'p> {
    pub(crate) program: &'p Program,
    /// its id
    pub id: OpId,
}

impl<'p> OpRef<'p> {
    /// The row.
    #[inline]
    pub fn data(self) -> &'p OpData {
        &self.program.ops[self.id]
    }

    /// What it does.
    #[inline]
    pub fn kind(self) -> Symbol {
        self.data().kind
    }

    /// The kind as text.
    pub fn kind_str(self) -> &'p str {
        self.program.sym(self.kind())
    }

    /// The block that holds it.
    pub fn block(self) -> BlockId {
        self.data().block
    }

    /// The section that holds it.
    pub fn section(self) -> Section {
        self.program.block(self.block()).section
    }

    /// Where it comes from.
    pub fn origin(self) -> OriginId {
        self.data().origin
    }

    fn slots(self, from: usize, len: usize) -> impl DoubleEndedIterator<Item = Slot<'p>> + ExactSizeIterator {
        let p = self.program;
        p.slots[from..from + len]
            .iter()
            .map(move |s| Slot { name: s.name, args: &p.args[s.start as usize..s.start as usize + s.len as usize] })
    }

    /// Input slots in file order.
    #[inline]
    pub fn inputs(self) -> impl DoubleEndedIterator<Item = Slot<'p>> + ExactSizeIterator {
        let d = self.data();
        self.slots(d.slots as usize, d.inputs as usize)
    }

    /// Output slots in file order.
    #[inline]
    pub fn outputs(self) -> impl DoubleEndedIterator<Item = Slot<'p>> + ExactSizeIterator {
        let d = self.data();
        self.slots(d.slots as usize + d.inputs as usize, d.outputs as usize)
    }

    /// All arguments read by name, slot by slot.
    pub fn input_args(self) -> impl Iterator<Item = Name> + 'p {
        self.inputs().flat_map(|s| s.args.iter().copied())
    }

    /// All arguments written by name, slot by slot.
    pub fn output_args(self) -> impl Iterator<Item = Name> + 'p {
        self.outputs().flat_map(|s| s.args.iter().copied())
    }

    /// Arguments of an input slot; empty when there is no such slot.
    pub fn input(self, slot: Symbol) -> &'p [Name] {
        self.inputs().find(|s| s.name == slot).map_or(&[], |s| s.args)
    }

    /// Arguments of an output slot; empty when there is no such slot.
    pub fn output(self, slot: Symbol) -> &'p [Name] {
        self.outputs().find(|s| s.name == slot).map_or(&[], |s| s.args)
    }

    /// The attributes in file order.
    pub fn attrs(self) -> &'p [Attr] {
        self.program.attr_list(self.data().attrs)
    }

    /// The value of an attribute.
    pub fn attr(self, name: Symbol) -> Option<&'p AttrValue> {
        self.attrs().iter().find(|a| a.name == name).map(|a| &a.value)
    }

    /// The `op_role` attribute, if there is one.
    pub fn role(self) -> Option<Role> {
        self.program.attr_lists[self.data().attrs].role
    }

    /// Sub-blocks by index in the op's section, from every attribute that names one, in order.
    pub fn sub_block_indices(self) -> impl Iterator<Item = i32> + 'p {
        self.attrs()
            .iter()
            .flat_map(|a| match &a.value {
                AttrValue::Block(b) => std::slice::from_ref(b),
                AttrValue::Blocks(bs) => &bs[..],
                _ => &[],
            })
            .copied()
    }

    /// Sub-blocks that exist.
    pub fn sub_blocks(self) -> impl Iterator<Item = BlockId> + 'p {
        let (program, section) = (self.program, self.section());
        self.sub_block_indices().filter_map(move |i| program.block_at(section, i))
    }

    /// Whether the list of attributes names a sub-block (constant time).
    pub fn has_sub_blocks(self) -> bool {
        self.program.attr_lists[self.data().attrs].has_blocks
    }

    /// Variables that attributes name (constant time when there are none).
    pub fn attr_vars(self) -> impl Iterator<Item = Name> + 'p {
        let attrs = if self.program.attr_lists[self.data().attrs].has_vars { self.attrs() } else { &[] };
        attrs
            .iter()
            .flat_map(|a| match &a.value {
                AttrValue::Var(v) => std::slice::from_ref(v),
                AttrValue::Vars(vs) => &vs[..],
                _ => &[],
            })
            .copied()
    }

    /// The `is_target` field of the file.
    pub fn is_target(self) -> Option<bool> {
        self.data().is_target
    }
}

impl std::fmt::Debug for OpRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = |args: &[Name]| args.iter().map(|&n| self.program.name(n)).collect::<Vec<_>>().join(", ");
        let slots = |slots: &mut dyn Iterator<Item = Slot<'_>>| {
            slots.map(|s| format!("{}: {}", self.program.sym(s.name), join(s.args))).collect::<Vec<_>>().join("; ")
        };
        write!(f, "({}) = {}({})", slots(&mut self.outputs()), self.kind_str(), slots(&mut self.inputs()))
    }
}
