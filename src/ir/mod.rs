//! What does a program look like in memory? Dense rows in pools, and order as a list of ids per block.
//!
//! The IR holds only what a file can hold. Whatever is derived (pairs, effects, def-use, coherence)
//! is computed on demand by `analysis`. Rows are never reused: a removed op keeps its id.
//!
//! Reading order: [`dtype`](DType), [`var`](VarData), [`attr`](AttrValue), [`op`](OpRef), this file,
//! [`edit`](Edit), [`build`](ProgramBuilder).

mod attr;
mod build;
mod compact;
mod dtype;
mod edit;
mod json;
mod op;
mod origin;
mod role;
mod var;

pub use attr::{Attr, AttrValue, F32, F64, Scalar};
pub use build::{OpBuild, ProgramBuilder, SectionBuilder};
pub use dtype::DType;
pub use edit::{At, Edit, EditNote, EditSummary, NewOp};
pub use json::{JSON_VERSION, JsonError, MAX_JSON};
pub use op::{AttrListId, OpData, OpId, OpRef, Slot, SlotData};
pub use origin::{Origin, OriginId};
pub use role::Role;
pub use var::{Span, VarData, VarDef, VarFlag, VarFlags, VarKind};

use crate::entity::{EntityId, IdVec, entity};
use crate::names::{Name, Names, Seeded, Symbol, Symbols, sym};
use hashbrown::HashTable;
use indexmap::IndexMap;
use std::hash::BuildHasher;
use std::sync::Arc;

entity! {
    /// A block of a program; both sections share one numbering.
    BlockId, "block"
}
entity! {
    /// A declaration of a variable.
    VarId, "var"
}

/// One of the two programs of a training job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Section {
    /// Run once: initialise.
    Startup,
    /// Run every step.
    Main,
}

impl Section {
    /// Both, in the order in which they run.
    pub const ALL: [Section; 2] = [Section::Startup, Section::Main];

    /// `startup` or `main`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Section::Startup => "startup",
            Section::Main => "main",
        }
    }
}

/// A block: an ordered list of ops and the declarations of a scope level.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockData {
    /// the program that it is part of
    pub section: Section,
    /// its index in that program's file
    pub index: u32,
    /// parent as an index in the section; -1 for the global block (Paddle's `kNoneBlockIndex`)
    pub parent: i32,
    /// the forward block of a gradient block, as the file has it
    pub forward: Option<i32>,
    /// ops in order
    pub ops: Vec<OpId>,
    /// declarations in order
    pub vars: Vec<VarId>,
}

/// What belongs to one whole program besides its blocks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SectionData {
    /// blocks by their index in the file; block 0 is the global one
    pub blocks: Vec<BlockId>,
    /// the file's framework version
    pub version: Option<i64>,
    /// the file's op version map, as raw protobuf bytes
    pub op_versions: Option<Box<[u8]>>,
}

/// What a side table row belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Entity {
    /// a whole program
    Section(Section),
    /// a block
    Block(BlockId),
    /// a declaration
    Var(VarId),
    /// an op
    Op(OpId),
}

/// Bytes of a file that the IR has no row for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extra {
    /// protobuf fields that this crate does not know, in file order; written after the known ones
    pub unknown: Box<[u8]>,
    /// The entity's message as it stood in the file, kept when the known fields do not encode to
    /// it (an unusual order, a longer varint). Dropped when the entity is edited.
    pub verbatim: Option<Box<[u8]>>,
}

#[derive(Clone, Debug)]
pub(crate) struct AttrList {
    pub attrs: Arc<[Attr]>,
    pub role: Option<Role>,
    pub has_blocks: bool,
    pub has_vars: bool,
}

/// A startup and a main program over one space of names.
#[derive(Clone)]
pub struct Program {
    pub(crate) names: Names,
    pub(crate) symbols: Symbols,
    pub(crate) ops: IdVec<OpId, OpData>,
    pub(crate) vars: IdVec<VarId, VarData>,
    pub(crate) blocks: IdVec<BlockId, BlockData>,
    pub(crate) sections: [SectionData; 2],
    pub(crate) slots: Vec<SlotData>,
    pub(crate) args: Vec<Name>,
    pub(crate) attr_lists: IdVec<AttrListId, AttrList>,
    pub(crate) attr_table: HashTable<AttrListId>,
    pub(crate) seeded: Seeded,
    pub(crate) shapes: Vec<i64>,
    pub(crate) origins: IdVec<OriginId, Origin>,
    pub(crate) extras: IndexMap<Entity, Extra>,
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

fn attrs_hash(seeded: &Seeded, attrs: &[Attr]) -> u64 {
    seeded.hash_one(attrs)
}

impl Program {
    /// Both sections without a block.
    pub fn new() -> Self {
        Program {
            names: Names::new(),
            symbols: crate::names::symbols(),
            ops: IdVec::new(),
            vars: IdVec::new(),
            blocks: IdVec::new(),
            sections: Default::default(),
            slots: Vec::new(),
            args: Vec::new(),
            attr_lists: IdVec::new(),
            attr_table: HashTable::new(),
            seeded: Seeded::default(),
            shapes: Vec::new(),
            origins: IdVec::new(),
            extras: IndexMap::new(),
        }
    }

    // ---- names

    /// The variable names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The op kinds, slot and attribute names.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// A variable name's text.
    #[inline]
    pub fn name(&self, name: Name) -> &str {
        self.names.get(name)
    }

    /// A symbol's text.
    #[inline]
    pub fn sym(&self, symbol: Symbol) -> &str {
        self.symbols.get(symbol)
    }

    /// The name of `text`, made on first use.
    pub fn intern(&mut self, text: &str) -> Name {
        self.names.intern(text)
    }

    /// The symbol of `text`, made on first use.
    pub fn symbol(&mut self, text: &str) -> Symbol {
        self.symbols.intern(text)
    }

    /// A name that no variable has yet: `base`, or `base.1`, `base.2` ….
    pub fn fresh_name(&mut self, base: &str) -> Name {
        if self.names.lookup(base).is_none() {
            return self.names.intern(base);
        }
        for i in 1u64.. {
            let text = format!("{base}.{i}");
            if self.names.lookup(&text).is_none() {
                return self.names.intern(&text);
            }
        }
        unreachable!("2^64 names")
    }

    // ---- reading

    /// A whole program's data.
    pub fn section(&self, section: Section) -> &SectionData {
        &self.sections[section as usize]
    }

    /// A block.
    #[inline]
    pub fn block(&self, block: BlockId) -> &BlockData {
        &self.blocks[block]
    }

    /// The block with this index in a section, `None` when there is none.
    pub fn block_at(&self, section: Section, index: i32) -> Option<BlockId> {
        self.sections[section as usize].blocks.get(usize::try_from(index).ok()?).copied()
    }

    /// The global block of a section, `None` when the section is empty.
    pub fn global_block(&self, section: Section) -> Option<BlockId> {
        self.block_at(section, 0)
    }

    /// The parent of a block, `None` for a global block or a dangling index.
    pub fn parent(&self, block: BlockId) -> Option<BlockId> {
        let b = self.block(block);
        self.block_at(b.section, b.parent)
    }

    /// An op.
    #[inline]
    pub fn op(&self, id: OpId) -> OpRef<'_> {
        OpRef { program: self, id }
    }

    /// Ops of a block, in order.
    #[inline]
    pub fn ops(&self, block: BlockId) -> impl DoubleEndedIterator<Item = OpRef<'_>> + ExactSizeIterator {
        self.block(block).ops.iter().map(|&id| OpRef { program: self, id })
    }

    /// Blocks of a section, in file order.
    pub fn section_blocks(&self, section: Section) -> impl Iterator<Item = BlockId> + '_ {
        self.sections[section as usize].blocks.iter().copied()
    }

    /// All blocks of both sections, in order of making.
    pub fn block_ids(&self) -> impl DoubleEndedIterator<Item = BlockId> + ExactSizeIterator + use<> {
        self.blocks.ids()
    }

    /// Number of op rows, removed ones included: the size of a table keyed by [`OpId`].
    pub fn op_rows(&self) -> usize {
        self.ops.len()
    }

    /// Number of declarations made, the size of a table keyed by [`VarId`].
    pub fn var_rows(&self) -> usize {
        self.vars.len()
    }

    /// Number of blocks in both sections.
    pub fn block_rows(&self) -> usize {
        self.blocks.len()
    }

    /// A declaration.
    #[inline]
    pub fn var(&self, id: VarId) -> &VarData {
        &self.vars[id]
    }

    /// A declaration's dimensions; -1 is unknown.
    pub fn shape(&self, id: VarId) -> &[i64] {
        &self.shapes[self.vars[id].shape.range()]
    }

    /// The declaration of a variable, owned.
    pub fn var_def(&self, id: VarId) -> VarDef {
        let v = self.vars[id];
        VarDef {
            name: v.name,
            kind: v.kind,
            dtype: v.dtype,
            shape: self.shape(id).to_vec(),
            lod_level: v.lod_level,
            flags: v.flags,
        }
    }

    /// An attribute list.
    #[inline]
    pub fn attr_list(&self, id: AttrListId) -> &[Attr] {
        &self.attr_lists[id].attrs
    }

    /// Number of distinct attribute lists.
    pub fn attr_list_count(&self) -> usize {
        self.attr_lists.len()
    }

    /// An origin.
    pub fn origin(&self, id: OriginId) -> Origin {
        self.origins[id]
    }

    /// The file place at the root of a chain of derivations, and the passes on the way (last first).
    pub fn origin_root(&self, id: OriginId) -> (Origin, Vec<Symbol>) {
        let (mut at, mut passes) = (id, Vec::new());
        // A chain is finite: an origin can only name an earlier one.
        while let Origin::Derived { pass, from } = self.origins[at] {
            passes.push(pass);
            at = from;
        }
        (self.origins[at], passes)
    }

    /// Bytes kept for an entity.
    pub fn extra(&self, entity: Entity) -> Option<&Extra> {
        if self.extras.is_empty() {
            return None;
        }
        self.extras.get(&entity).filter(|x| **x != Extra::default())
    }

    /// Whether a section has no op and no declaration.
    pub fn is_empty(&self, section: Section) -> bool {
        self.section_blocks(section).all(|b| self.block(b).ops.is_empty() && self.block(b).vars.is_empty())
    }

    /// Whether a section holds nothing at all: no block, no version, no kept bytes.
    pub(crate) fn is_blank(&self, section: Section) -> bool {
        let SectionData { blocks, version, op_versions } = self.section(section);
        blocks.is_empty()
            && version.is_none()
            && op_versions.is_none()
            && self.extra(Entity::Section(section)).is_none()
    }

    // ---- appending (importers and the builder; passes use `Edit`)

    /// Sets what belongs to a whole section besides its blocks.
    pub fn set_section_info(&mut self, section: Section, version: Option<i64>, op_versions: Option<Box<[u8]>>) {
        let s = &mut self.sections[section as usize];
        (s.version, s.op_versions) = (version, op_versions);
    }

    /// Appends a block to a section. `parent` is an index in the section, -1 for none.
    pub fn push_block(&mut self, section: Section, parent: i32, forward: Option<i32>) -> BlockId {
        let index = self.sections[section as usize].blocks.len() as u32;
        let id = self.blocks.push(BlockData { section, index, parent, forward, ops: Vec::new(), vars: Vec::new() });
        self.sections[section as usize].blocks.push(id);
        id
    }

    /// The global block, made when the section is empty.
    pub fn ensure_global_block(&mut self, section: Section) -> BlockId {
        match self.global_block(section) {
            Some(b) => b,
            None => self.push_block(section, -1, None),
        }
    }

    /// Adds an origin.
    pub fn push_origin(&mut self, origin: Origin) -> OriginId {
        if let Origin::Derived { from, .. } = origin {
            assert!(from.index() < self.origins.len(), "an origin names a later one");
        }
        self.origins.push(origin)
    }

    /// Appends a declaration to a block.
    pub fn push_var(&mut self, block: BlockId, def: &VarDef, origin: OriginId) -> VarId {
        let start = self.shapes.len() as u32;
        self.shapes.extend_from_slice(&def.shape);
        let id = self.vars.push(VarData {
            name: def.name,
            block,
            origin,
            shape: Span { start, len: def.shape.len() as u32 },
            kind: def.kind,
            dtype: def.dtype,
            lod_level: def.lod_level,
            flags: def.flags,
        });
        self.blocks[block].vars.push(id);
        id
    }

    /// The shared id of an attribute list.
    pub fn intern_attrs(&mut self, attrs: Vec<Attr>) -> AttrListId {
        let h = attrs_hash(&self.seeded, &attrs);
        if let Some(&id) = self.attr_table.find(h, |&id| *self.attr_lists[id].attrs == attrs[..]) {
            return id;
        }
        let role = attrs.iter().find(|a| a.name == sym::OP_ROLE).and_then(|a| match a.value {
            AttrValue::Int(v) => Some(Role(v)),
            _ => None,
        });
        let has_blocks = attrs.iter().any(|a| matches!(a.value, AttrValue::Block(_) | AttrValue::Blocks(_)));
        let has_vars = attrs.iter().any(|a| matches!(a.value, AttrValue::Var(_) | AttrValue::Vars(_)));
        let id = self.attr_lists.push(AttrList { attrs: attrs.into(), role, has_blocks, has_vars });
        let (lists, seeded) = (&self.attr_lists, &self.seeded);
        self.attr_table.insert_unique(h, id, |&id| attrs_hash(seeded, &lists[id].attrs));
        id
    }

    /// Appends an op without slots to a block; follow with [`Self::push_input`] and then
    /// [`Self::push_output`] before any other op is appended.
    pub fn push_op(&mut self, block: BlockId, kind: Symbol, attrs: AttrListId, origin: OriginId) -> OpId {
        let id = self.push_op_row(block, kind, attrs, origin);
        self.blocks[block].ops.push(id);
        id
    }

    pub(crate) fn push_op_row(&mut self, block: BlockId, kind: Symbol, attrs: AttrListId, origin: OriginId) -> OpId {
        let slots = u32::try_from(self.slots.len()).expect("more than 2^32 slots");
        self.ops.push(OpData {
            kind,
            slots,
            inputs: 0,
            outputs: 0,
            attrs,
            block,
            origin,
            is_target: None,
            removed: false,
        })
    }

    fn push_slot(&mut self, op: OpId, name: Symbol, args: impl IntoIterator<Item = Name>) {
        let d = &self.ops[op];
        assert_eq!(
            d.slots as usize + d.inputs as usize + d.outputs as usize,
            self.slots.len(),
            "slots are given right after their op"
        );
        let start = self.args.len();
        self.args.extend(args);
        let len = u32::try_from(self.args.len() - start).expect("more than 2^32 arguments");
        self.slots.push(SlotData { name, start: u32::try_from(start).expect("more than 2^32 arguments"), len });
    }

    /// Gives the last op an input slot. At most 65,535 slots a direction.
    pub fn push_input(&mut self, op: OpId, slot: Symbol, args: impl IntoIterator<Item = Name>) {
        assert_eq!(self.ops[op].outputs, 0, "inputs are given before outputs");
        self.push_slot(op, slot, args);
        let d = &mut self.ops[op];
        d.inputs = d.inputs.checked_add(1).expect("more than 65,535 input slots");
    }

    /// Gives the last op an output slot. At most 65,535 slots a direction.
    pub fn push_output(&mut self, op: OpId, slot: Symbol, args: impl IntoIterator<Item = Name>) {
        self.push_slot(op, slot, args);
        let d = &mut self.ops[op];
        d.outputs = d.outputs.checked_add(1).expect("more than 65,535 output slots");
    }

    /// Sets an op's `is_target` field.
    pub fn set_is_target(&mut self, op: OpId, value: Option<bool>) {
        self.ops[op].is_target = value;
    }

    /// Keeps bytes for an entity.
    pub fn set_extra(&mut self, entity: Entity, extra: Extra) {
        if extra != Extra::default() {
            self.extras.insert(entity, extra);
        } else if let Some(old) = self.extras.get_mut(&entity) {
            // An empty row counts as none: to take it out would move all that come after it.
            *old = extra;
        }
    }

    /// Takes the bytes kept for an entity, to be changed and set again.
    pub(crate) fn take_extra(&mut self, entity: Entity) -> Extra {
        self.extras.get_mut(&entity).map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn drop_verbatim(&mut self, entity: Entity) {
        if self.extras.is_empty() {
            return;
        }
        if let Some(extra) = self.extras.get_mut(&entity) {
            extra.verbatim = None;
        }
    }

    /// All kept bytes, in the order in which they were kept.
    pub fn extras(&self) -> impl Iterator<Item = (Entity, &Extra)> {
        self.extras.iter().filter(|(_, x)| **x != Extra::default()).map(|(&e, x)| (e, x))
    }

    /// Makes room in the pools, as an importer that knows the size of its file does.
    pub fn reserve(&mut self, ops: usize, slots: usize, args: usize) {
        self.ops.reserve(ops);
        self.slots.reserve(slots);
        self.args.reserve(args);
        self.origins.reserve(ops);
    }

    /// Bytes that the pools hold, without the text of names: a measure for limits and benches.
    pub fn pool_bytes(&self) -> usize {
        self.ops.len() * size_of::<OpData>()
            + self.vars.len() * size_of::<VarData>()
            + self.slots.len() * size_of::<SlotData>()
            + self.args.len() * size_of::<Name>()
            + self.shapes.len() * size_of::<i64>()
            + self.origins.len() * size_of::<Origin>()
            + self.attr_lists.values().map(|l| size_of::<AttrList>() + l.attrs.len() * size_of::<Attr>()).sum::<usize>()
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for section in Section::ALL {
            for b in self.section_blocks(section) {
                writeln!(f, "{} block {}", section.as_str(), self.block(b).index)?;
                for op in self.ops(b) {
                    writeln!(f, "  {op:?}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_row_stays_small() {
        assert!(size_of::<OpData>() <= 32, "{}", size_of::<OpData>());
        assert!(size_of::<SlotData>() <= 12);
    }
}
