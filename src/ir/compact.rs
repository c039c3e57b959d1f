//! How does a program get rid of rows that nothing reaches? By being built anew.
//!
//! An edit leaves rows behind: removed ops, replaced slots and attribute lists, names that no one uses.
//! They cost memory and make every table keyed by an id longer. What is written out never has them.

use crate::entity::{EntityId, IdVec};
use crate::ir::{
    Attr, AttrListId, AttrValue, BlockId, Entity, OpId, Origin, OriginId, Program, Section, Span, VarData, VarId,
};
use crate::names::Name;
use rustc_hash::FxHashMap;

impl Program {
    /// The same program without unreachable rows, all ids renumbered in the order of the file. It prints and
    /// exports as this one does, and its rows have the same origins.
    ///
    /// ```
    /// use mastercast::ir::{Edit, ProgramBuilder, Section};
    /// let mut b = ProgramBuilder::new();
    /// let mut s = b.section(Section::Main);
    /// let first = s.op("relu").arg("X", ["x"]).out("Out", ["y"]).done();
    /// s.op("relu").arg("X", ["y"]).out("Out", ["z"]).done();
    /// let mut program = b.finish();
    /// let mut edit = Edit::new();
    /// edit.remove(first, "not needed");
    /// edit.commit(&mut program, "example");
    ///
    /// let compact = program.compact();
    /// assert_eq!((program.op_rows(), compact.op_rows()), (2, 1));
    /// assert_eq!(compact.to_json(), program.to_json());
    /// ```
    #[must_use]
    pub fn compact(&self) -> Program {
        let mut new = Program::new();
        // The vocabulary is small, and symbols stay as they are.
        new.symbols = self.symbols.clone();
        let mut map = Map {
            old: self,
            names: vec![None; self.names.len()],
            shapes: FxHashMap::default(),
            attrs: IdVec::filled(None, self.attr_lists.len()),
            origins: IdVec::filled(None, self.origins.len()),
            blocks: IdVec::filled(None, self.blocks.len()),
            vars: IdVec::filled(None, self.vars.len()),
            ops: IdVec::filled(None, self.ops.len()),
            new,
        };
        for section in Section::ALL {
            let data = self.section(section);
            map.new.set_section_info(section, data.version, data.op_versions.clone());
            for &block in &data.blocks {
                map.block(block);
            }
        }
        for (&entity, extra) in &self.extras {
            let entity = match entity {
                Entity::Section(section) => Some(Entity::Section(section)),
                Entity::Block(block) => map.blocks[block].map(Entity::Block),
                Entity::Var(var) => map.vars[var].map(Entity::Var),
                Entity::Op(op) => map.ops[op].map(Entity::Op),
            };
            if let Some(entity) = entity {
                map.new.set_extra(entity, extra.clone());
            }
        }
        map.new
    }
}

/// Where each old row went.
struct Map<'p> {
    old: &'p Program,
    new: Program,
    names: Vec<Option<Name>>,
    shapes: FxHashMap<(u32, u32), Span>,
    attrs: IdVec<AttrListId, Option<AttrListId>>,
    origins: IdVec<OriginId, Option<OriginId>>,
    blocks: IdVec<BlockId, Option<BlockId>>,
    vars: IdVec<VarId, Option<VarId>>,
    ops: IdVec<OpId, Option<OpId>>,
}

impl Map<'_> {
    fn block(&mut self, old: BlockId) {
        let data = self.old.block(old);
        let block = self.new.push_block(data.section, data.parent, data.forward);
        self.blocks[old] = Some(block);
        for &var in &data.vars {
            let row = *self.old.var(var);
            let (name, origin, shape) = (self.name(row.name), self.origin(row.origin), self.shape(row.shape));
            let id = self.new.vars.push(VarData { name, block, origin, shape, ..row });
            self.new.blocks[block].vars.push(id);
            self.vars[var] = Some(id);
        }
        for &op in &data.ops {
            self.op(block, op);
        }
    }

    fn op(&mut self, block: BlockId, old: OpId) {
        let op = self.old.op(old);
        let attrs = self.attr_list(op.data().attrs);
        let origin = self.origin(op.origin());
        let new = self.new.push_op(block, op.kind(), attrs, origin);
        self.new.set_is_target(new, op.data().is_target);
        for slot in op.inputs() {
            let args: Vec<Name> = slot.args.iter().map(|&n| self.name(n)).collect();
            self.new.push_input(new, slot.name, args);
        }
        for slot in op.outputs() {
            let args: Vec<Name> = slot.args.iter().map(|&n| self.name(n)).collect();
            self.new.push_output(new, slot.name, args);
        }
        self.ops[old] = Some(new);
    }

    fn name(&mut self, old: Name) -> Name {
        *self.names[old.index()].get_or_insert_with(|| self.new.intern(self.old.name(old)))
    }

    /// Declarations that share a shape go on sharing it.
    fn shape(&mut self, old: Span) -> Span {
        *self.shapes.entry((old.start, old.len)).or_insert_with(|| {
            let start = self.new.shapes.len() as u32;
            self.new.shapes.extend_from_slice(&self.old.shapes[old.range()]);
            Span { start, len: old.len }
        })
    }

    fn attr_list(&mut self, old: AttrListId) -> AttrListId {
        if let Some(new) = self.attrs[old] {
            return new;
        }
        let list: Vec<Attr> = self
            .old
            .attr_list(old)
            .iter()
            .map(|attr| {
                let value = match &attr.value {
                    AttrValue::Var(n) => AttrValue::Var(self.name(*n)),
                    AttrValue::Vars(ns) => AttrValue::Vars(ns.iter().map(|&n| self.name(n)).collect()),
                    _ => return attr.clone(),
                };
                Attr { value, ..attr.clone() }
            })
            .collect();
        let new = self.new.intern_attrs(list);
        self.attrs[old] = Some(new);
        new
    }

    fn origin(&mut self, old: OriginId) -> OriginId {
        // An origin names an earlier one: up to what is mapped, or to the root, and back down.
        let mut chain = Vec::new();
        let mut at = old;
        let mut from = loop {
            if let Some(new) = self.origins[at] {
                break Some(new);
            }
            chain.push(at);
            match self.old.origin(at) {
                Origin::Derived { from, .. } => at = from,
                _ => break None,
            }
        };
        while let Some(id) = chain.pop() {
            let origin = match (self.old.origin(id), from) {
                (Origin::Derived { pass, .. }, Some(from)) => Origin::Derived { pass, from },
                (root, _) => root,
            };
            let new = self.new.push_origin(origin);
            self.origins[id] = Some(new);
            from = Some(new);
        }
        from.expect("a chain has an end")
    }
}
