//! How does a section become a file? Sizes first, then one sweep; each distinct attribute list is encoded once.

use super::attr;
use super::import::put_rest;
use super::schema::{block, op, program as prog, slot};
use super::var::DeclRef;
use super::wire::{counted_len, put_bytes, put_head, put_int, varint_len};
use crate::entity::EntityId;
use crate::ir::{BlockId, Entity, Extra, OpId, OpRef, Program, Section, SlotData, VarId};

/// Writes a section as a ProgramDesc file.
///
/// The bytes depend on the program alone. An unedited import gives its file back. A section without
/// a block gives the empty message unless it has a version: Paddle reads it as a program without
/// blocks, and [`import`](super::import) as the empty section that it was.
pub fn export(program: &Program, section: Section) -> Vec<u8> {
    if let Some(Extra { verbatim: Some(bytes), .. }) = program.extra(Entity::Section(section)) {
        return bytes.to_vec();
    }
    Exporter::new(program, section).run(section)
}

struct Exporter<'p> {
    program: &'p Program,
    /// lengths of names and symbols, so that sizes need no text
    names: Vec<u32>,
    symbols: Vec<u32>,
    /// encoded attribute lists, and where each lies; made for the lists that the section uses
    lists: Vec<u8>,
    spans: Vec<(usize, usize)>,
}

const UNMADE: (usize, usize) = (usize::MAX, 0);

impl<'p> Exporter<'p> {
    fn new(program: &'p Program, section: Section) -> Self {
        let mut e = Exporter {
            program,
            names: program.names().iter().map(|(_, s)| s.len() as u32).collect(),
            symbols: program.symbols().iter().map(|(_, s)| s.len() as u32).collect(),
            lists: Vec::new(),
            spans: vec![UNMADE; program.attr_list_count()],
        };
        let mut one = Vec::new();
        for op in program.section_blocks(section).flat_map(|b| program.ops(b)) {
            let id = op.data().attrs;
            if e.spans[id.index()] == UNMADE {
                let start = e.lists.len();
                for a in program.attr_list(id) {
                    one.clear();
                    attr::put(a, program.symbols(), program.names(), &mut one);
                    put_bytes(&mut e.lists, op::ATTRS, &one);
                }
                e.spans[id.index()] = (start, e.lists.len());
            }
        }
        e
    }

    fn run(&self, section: Section) -> Vec<u8> {
        let p = self.program;
        let mut op_sizes = Vec::new();
        let mut block_sizes = Vec::new();
        for b in p.section_blocks(section) {
            block_sizes.push(self.block_size(b, &mut op_sizes));
        }
        let mut rest = Vec::new();
        let s = p.section(section);
        put_rest(s.version, s.op_versions.as_deref(), unknown(p.extra(Entity::Section(section))), &mut rest);
        let total = block_sizes.iter().map(|&n| counted_len(n)).sum::<usize>() + rest.len();
        let mut out = Vec::with_capacity(total);
        let mut sizes = op_sizes.iter();
        for (b, &size) in p.section_blocks(section).zip(&block_sizes) {
            put_head(&mut out, prog::BLOCKS, size);
            let start = out.len();
            self.put_block(b, &mut sizes, &mut out);
            debug_assert_eq!(out.len() - start, size);
        }
        out.extend_from_slice(&rest);
        debug_assert_eq!(out.len(), total);
        out
    }

    fn block_size(&self, id: BlockId, op_sizes: &mut Vec<usize>) -> usize {
        let p = self.program;
        let extra = p.extra(Entity::Block(id));
        if let Some(Extra { verbatim: Some(bytes), .. }) = extra {
            return bytes.len();
        }
        let b = p.block(id);
        let int = |v: i64| 1 + varint_len(v as u64);
        let mut size = int(i64::from(b.index)) + int(i64::from(b.parent)) + b.forward.map_or(0, |f| int(f.into()));
        size += b.vars.iter().map(|&v| counted_len(self.var_size(v))).sum::<usize>();
        op_sizes.reserve(b.ops.len());
        for &op in &b.ops {
            let n = self.op_size(op);
            size += counted_len(n);
            op_sizes.push(n);
        }
        size + unknown(extra).len()
    }

    fn put_block(&self, id: BlockId, sizes: &mut std::slice::Iter<'_, usize>, out: &mut Vec<u8>) {
        let p = self.program;
        let extra = p.extra(Entity::Block(id));
        if let Some(Extra { verbatim: Some(bytes), .. }) = extra {
            return out.extend_from_slice(bytes);
        }
        let b = p.block(id);
        put_int(out, block::IDX, i64::from(b.index));
        put_int(out, block::PARENT_IDX, i64::from(b.parent));
        for &v in &b.vars {
            self.put_var(v, out);
        }
        for (&op, &size) in b.ops.iter().zip(sizes) {
            put_head(out, block::OPS, size);
            self.put_op(p.op(op), out);
        }
        if let Some(f) = b.forward {
            put_int(out, block::FORWARD_BLOCK_IDX, i64::from(f));
        }
        out.extend_from_slice(unknown(extra));
    }

    fn decl(&self, id: VarId) -> DeclRef<'p> {
        let v = self.program.var(id);
        DeclRef {
            name: self.program.name(v.name).as_bytes(),
            kind: v.kind,
            dtype: v.dtype,
            shape: self.program.shape(id),
            lod_level: v.lod_level,
            flags: v.flags,
        }
    }

    fn var_size(&self, id: VarId) -> usize {
        match self.program.extra(Entity::Var(id)) {
            Some(Extra { verbatim: Some(bytes), .. }) => bytes.len(),
            extra => self.decl(id).len() + unknown(extra).len(),
        }
    }

    fn put_var(&self, id: VarId, out: &mut Vec<u8>) {
        put_head(out, block::VARS, self.var_size(id));
        match self.program.extra(Entity::Var(id)) {
            Some(Extra { verbatim: Some(bytes), .. }) => out.extend_from_slice(bytes),
            extra => {
                self.decl(id).put(out);
                out.extend_from_slice(unknown(extra));
            }
        }
    }

    #[inline]
    fn slots(&self, op: OpRef<'p>) -> (&'p [SlotData], usize) {
        let d = op.data();
        let all = usize::from(d.inputs) + usize::from(d.outputs);
        (&self.program.slots[d.slots as usize..][..all], usize::from(d.inputs))
    }

    #[inline]
    fn slot_size(&self, s: &SlotData) -> usize {
        let args = &self.program.args[s.start as usize..][..s.len as usize];
        counted_len(self.symbols[s.name.index()] as usize)
            + args.iter().map(|a| counted_len(self.names[a.index()] as usize)).sum::<usize>()
    }

    fn list(&self, op: OpRef<'p>) -> &[u8] {
        let (start, end) = self.spans[op.data().attrs.index()];
        &self.lists[start..end]
    }

    fn op_size(&self, id: OpId) -> usize {
        let op = self.program.op(id);
        let extra = self.program.extra(Entity::Op(id));
        if let Some(Extra { verbatim: Some(bytes), .. }) = extra {
            return bytes.len();
        }
        let slots = self.slots(op).0.iter().map(|s| counted_len(self.slot_size(s))).sum::<usize>();
        let target = if op.is_target().is_some() { 2 } else { 0 };
        slots
            + counted_len(self.symbols[op.kind().index()] as usize)
            + self.list(op).len()
            + target
            + unknown(extra).len()
    }

    fn put_op(&self, op: OpRef<'p>, out: &mut Vec<u8>) {
        let p = self.program;
        let extra = p.extra(Entity::Op(op.id));
        if let Some(Extra { verbatim: Some(bytes), .. }) = extra {
            return out.extend_from_slice(bytes);
        }
        let (slots, inputs) = self.slots(op);
        for (i, s) in slots.iter().enumerate() {
            put_head(out, if i < inputs { op::INPUTS } else { op::OUTPUTS }, self.slot_size(s));
            put_bytes(out, slot::PARAMETER, p.sym(s.name).as_bytes());
            for &a in &p.args[s.start as usize..][..s.len as usize] {
                put_bytes(out, slot::ARGUMENTS, p.name(a).as_bytes());
            }
        }
        put_bytes(out, op::TYPE, op.kind_str().as_bytes());
        out.extend_from_slice(self.list(op));
        if let Some(t) = op.is_target() {
            put_int(out, op::IS_TARGET, i64::from(t));
        }
        out.extend_from_slice(unknown(extra));
    }
}

fn unknown(extra: Option<&Extra>) -> &[u8] {
    extra.map_or(&[], |x| &x.unknown)
}
