//! Stage 0: may the other stages index freely?
//!
//! - V1 `bad-handle`: every id held in a row is in range; spans lie in their pools; an op, declaration
//!   or block is listed once, in the block or section that it names; nothing removed is listed; an
//!   origin derives from an earlier one.
//!
//! Every row type is taken apart without `..`, so that a new field does not compile before this
//! file has an opinion on it.

use crate::diag::{Code, Diagnostic, Diagnostics, Place};
use crate::entity::{EntityId, IdVec};
use crate::ir::{
    Attr, AttrValue, BlockData, Entity, OpData, Origin, Program, Section, SectionData, SlotData, Span, VarData,
};

struct Stage {
    out: Diagnostics,
}

impl Stage {
    /// Reports when `ok` does not hold.
    fn need(&mut self, ok: bool, message: impl FnOnce() -> String) {
        if !ok {
            // The row cannot be printed: that would follow the bad handle.
            self.out.push(Diagnostic::new(Code::BadHandle, message(), Place::Nowhere));
        }
    }

    fn row<K: EntityId, V>(&mut self, rows: &IdVec<K, V>, id: K, who: impl FnOnce() -> String) {
        self.need(id.index() < rows.len(), || format!("{} names {id:?}, which does not exist", who()));
    }

    fn interned<K: EntityId>(&mut self, len: usize, id: K, who: impl FnOnce() -> String) {
        self.need(id.index() < len, || format!("{} names {id:?}, which does not exist", who()));
    }
}

/// Checks V1.
pub(super) fn check(program: &Program) -> Diagnostics {
    let Program {
        names,
        symbols,
        ops,
        vars,
        blocks,
        sections,
        slots,
        args,
        attr_lists,
        attr_table: _, // derived from `attr_lists`
        seeded: _,
        shapes,
        origins,
        extras,
    } = program;
    let mut stage = Stage { out: Diagnostics::new() };
    let s = &mut stage;

    let mut block_seen = vec![false; blocks.len()];
    for (section, data) in Section::ALL.into_iter().zip(sections) {
        let SectionData { blocks: listed, version: _, op_versions: _ } = data;
        for (i, &b) in listed.iter().enumerate() {
            let who = || format!("{} block {i}", section.as_str());
            s.row(blocks, b, who);
            let Some(BlockData { section: own, index, .. }) = blocks.get(b) else { continue };
            s.need(*own == section && *index as usize == i, || format!("{b:?} does not know that it is {}", who()));
            s.need(!std::mem::replace(&mut block_seen[b.index()], true), || format!("{b:?} is listed twice"));
        }
    }

    let mut op_seen = vec![false; ops.len()];
    let mut var_seen = vec![false; vars.len()];
    for (b, data) in blocks.iter() {
        // Parent and forward block are numbers of the file, which V2 judges.
        let BlockData { section: _, index: _, parent: _, forward: _, ops: listed, vars: declared } = data;
        s.need(block_seen[b.index()], || format!("{b:?} is in no section"));
        for &op in listed {
            s.row(ops, op, || format!("{b:?}"));
            let Some(row) = ops.get(op) else { continue };
            s.need(row.block == b, || format!("{op:?} is listed in {b:?} but names {:?}", row.block));
            s.need(!row.removed, || format!("{op:?} was removed but is listed in {b:?}"));
            s.need(!std::mem::replace(&mut op_seen[op.index()], true), || format!("{op:?} is listed twice"));
        }
        for &var in declared {
            s.row(vars, var, || format!("{b:?}"));
            let Some(row) = vars.get(var) else { continue };
            s.need(row.block == b, || format!("{var:?} is listed in {b:?} but names {:?}", row.block));
            s.need(!std::mem::replace(&mut var_seen[var.index()], true), || format!("{var:?} is listed twice"));
        }
    }

    for (id, data) in ops.iter() {
        let OpData { kind, slots: first, inputs, outputs, attrs, block, origin, is_target: _, removed } = *data;
        let who = || format!("{id:?}");
        s.interned(symbols.len(), kind, who);
        s.row(attr_lists, attrs, who);
        s.row(blocks, block, who);
        s.row(origins, origin, who);
        s.need(removed || op_seen[id.index()], || format!("{id:?} is in no block"));
        let end = first as usize + usize::from(inputs) + usize::from(outputs);
        s.need(end <= slots.len(), || format!("{id:?} has slots beyond the pool"));
    }
    for (i, slot) in slots.iter().enumerate() {
        let SlotData { name, start, len } = *slot;
        s.interned(symbols.len(), name, || format!("slot {i}"));
        s.need(start as usize + len as usize <= args.len(), || format!("slot {i} has arguments beyond the pool"));
    }
    for (i, &name) in args.iter().enumerate() {
        s.interned(names.len(), name, || format!("argument {i}"));
    }

    for (id, data) in vars.iter() {
        let VarData { name, block, origin, shape, kind: _, dtype: _, lod_level: _, flags: _ } = *data;
        let who = || format!("{id:?}");
        s.interned(names.len(), name, who);
        s.row(blocks, block, who);
        s.row(origins, origin, who);
        s.need(var_seen[id.index()], || format!("{id:?} is in no block"));
        let Span { start, len } = shape;
        s.need(start as usize + len as usize <= shapes.len(), || format!("{id:?} has a shape beyond the pool"));
    }

    for (id, list) in attr_lists.iter() {
        // the others are derived from `attrs`.
        let crate::ir::AttrList { attrs, role: _, has_blocks: _, has_vars: _ } = list;
        for Attr { name, value, raw: _ } in attrs.iter() {
            s.interned(symbols.len(), *name, || format!("{id:?}"));
            let variables = match value {
                AttrValue::Var(n) => std::slice::from_ref(n),
                AttrValue::Vars(ns) => &ns[..],
                _ => &[],
            };
            for &n in variables {
                s.interned(names.len(), n, || format!("{id:?}"));
            }
        }
    }

    for (id, origin) in origins.iter() {
        match *origin {
            Origin::File { block: _, index: _ } | Origin::Text { start: _, end: _ } | Origin::Built { tag: _ } => {}
            Origin::Derived { pass, from } => {
                s.interned(symbols.len(), pass, || format!("{id:?}"));
                s.need(from < id, || format!("{id:?} derives from {from:?}, which is not earlier"));
            }
        }
    }

    for &entity in extras.keys() {
        let ok = match entity {
            Entity::Section(_) => true,
            Entity::Block(b) => blocks.get(b).is_some(),
            Entity::Var(v) => vars.get(v).is_some(),
            Entity::Op(o) => ops.get(o).is_some(),
        };
        s.need(ok, || format!("bytes are kept for {entity:?}, which does not exist"));
    }
    stage.out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::render_plain;
    use crate::ir::{AttrListId, BlockId, DType, OpId, OriginId, ProgramBuilder, VarId};
    use crate::names::{Name, Symbol};

    fn sound() -> Program {
        let mut b = ProgramBuilder::new();
        let mut s = b.section(Section::Main);
        s.var("x", DType::F32, [2]);
        s.op("cast").arg("X", ["x"]).out("Out", ["x"]).attr("a", AttrValue::Int(1)).done();
        b.finish()
    }

    /// One handle of a sound program is bent; the finding says which.
    fn bend(change: impl FnOnce(&mut Program), wanted: &str) {
        let mut p = sound();
        assert!(check(&p).is_empty());
        change(&mut p);
        let found = check(&p);
        let text = render_plain(&found);
        assert!(found.iter().all(|d| d.code == Code::BadHandle));
        assert!(text.contains(wanted), "wanted {wanted:?} in:\n{text}");
        // The public entry stops there.
        assert_eq!(crate::verify::verify(&p, crate::verify::Checks::ALL), found);
    }

    #[test]
    fn every_bad_handle_is_found() {
        let op = OpId::from_index(0);
        let var = VarId::from_index(0);
        let block = BlockId::from_index(0);
        bend(|p| p.ops[op].kind = Symbol::from_index(9999), "op0 names sym9999");
        bend(|p| p.ops[op].attrs = AttrListId::from_index(9), "op0 names attrs9");
        bend(|p| p.ops[op].block = BlockId::from_index(9), "op0 is listed in block0 but names block9");
        bend(|p| p.ops[op].origin = OriginId::from_index(9), "op0 names origin9");
        bend(|p| p.ops[op].slots = 9, "op0 has slots beyond the pool");
        bend(|p| p.ops[op].removed = true, "op0 was removed but is listed");
        bend(|p| p.slots[1].start = u32::MAX, "slot 1 has arguments beyond the pool");
        bend(|p| p.slots[0].name = Symbol::from_index(9999), "slot 0 names sym9999");
        bend(|p| p.args[0] = Name::from_index(9), "argument 0 names name9");
        bend(|p| p.vars[var].name = Name::from_index(9), "var0 names name9");
        bend(|p| p.vars[var].block = BlockId::from_index(9), "var0 names block9");
        bend(|p| p.vars[var].shape = Span { start: 1, len: 1 }, "var0 has a shape beyond the pool");
        bend(|p| p.vars[var].origin = OriginId::from_index(9), "var0 names origin9");
        bend(|p| p.blocks[block].ops.push(op), "op0 is listed twice");
        bend(|p| p.blocks[block].vars.push(var), "var0 is listed twice");
        bend(|p| p.blocks[block].ops.push(OpId::from_index(9)), "block0 names op9");
        bend(|p| p.blocks[block].ops.clear(), "op0 is in no block");
        bend(|p| p.blocks[block].vars.clear(), "var0 is in no block");
        bend(|p| p.blocks[block].index = 1, "block0 does not know that it is main block 0");
        bend(|p| p.sections[0].blocks.push(BlockId::from_index(9)), "startup block 0 names block9");
        bend(|p| p.sections[1].blocks.clear(), "block0 is in no section");
        bend(
            |p| {
                let n = AttrValue::Var(Name::from_index(9));
                p.attr_lists[AttrListId::from_index(0)].attrs = vec![Attr::new(Symbol::from_index(0), n)].into();
            },
            "attrs0 names name9",
        );
        bend(
            |p| {
                let from = OriginId::from_index(1);
                p.origins[from] = Origin::Derived { pass: Symbol::from_index(0), from };
            },
            "origin1 derives from origin1",
        );
        bend(
            |p| {
                let extra = crate::ir::Extra { unknown: [1].into(), verbatim: None };
                p.set_extra(Entity::Op(OpId::from_index(9)), extra);
            },
            "bytes are kept for Op(op9)",
        );
    }
}
