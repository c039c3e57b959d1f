//! How does a document become bytes again? Ops from their slots and arguments, everything raw copied.

use super::lazy::{BlockRow, Document, OpRow, SlotRow};
use super::schema::{block, op, program, slot};
use super::wire::{counted_len, put_bytes, put_head, put_int, varint_len};

impl Document<'_> {
    /// Writes the document out again: the bytes that were read.
    ///
    /// Ops are put together from their slots and arguments; attributes and declarations are copied.
    pub fn encode(&self) -> Vec<u8> {
        if self.verbatim {
            return self.file.to_vec();
        }
        let op_sizes: Vec<u32> = self.ops.iter().map(|o| self.op_size(o) as u32).collect();
        let block_sizes: Vec<usize> = self.blocks.iter().map(|b| self.block_size(b, &op_sizes)).collect();
        let total = block_sizes.iter().map(|&n| counted_len(n)).sum::<usize>()
            + self.rest.iter().map(|f| f.whole.len()).sum::<usize>();
        let mut out = Vec::with_capacity(total);
        for (b, &size) in self.blocks.iter().zip(&block_sizes) {
            put_head(&mut out, program::BLOCKS, size);
            self.put_block(b, &op_sizes, &mut out);
        }
        for f in &self.rest {
            out.extend_from_slice(f.whole.of(self.file));
        }
        out
    }

    fn block_size(&self, b: &BlockRow, op_sizes: &[u32]) -> usize {
        if b.verbatim {
            return b.raw.len();
        }
        let int = |v: i32| 1 + varint_len(i64::from(v) as u64);
        int(b.idx)
            + int(b.parent)
            + self.block_vars(b).iter().map(|v| counted_len(v.len())).sum::<usize>()
            + op_sizes[b.ops.0 as usize..b.ops.1 as usize].iter().map(|&n| counted_len(n as usize)).sum::<usize>()
            + b.forward.map_or(0, int)
            + b.unknown.iter().map(|u| u.len()).sum::<usize>()
    }

    fn put_block(&self, b: &BlockRow, op_sizes: &[u32], out: &mut Vec<u8>) {
        if b.verbatim {
            return out.extend_from_slice(b.raw.of(self.file));
        }
        put_int(out, block::IDX, i64::from(b.idx));
        put_int(out, block::PARENT_IDX, i64::from(b.parent));
        for v in self.block_vars(b) {
            put_bytes(out, block::VARS, v.of(self.file));
        }
        for (o, &size) in self.block_ops(b).iter().zip(&op_sizes[b.ops.0 as usize..]) {
            put_head(out, block::OPS, size as usize);
            match self.odd_of(o) {
                Some(odd) if odd.verbatim => out.extend_from_slice(o.raw.of(self.file)),
                _ => self.put_op(o, out),
            }
        }
        if let Some(f) = b.forward {
            put_int(out, block::FORWARD_BLOCK_IDX, i64::from(f));
        }
        for u in &b.unknown {
            out.extend_from_slice(u.of(self.file));
        }
    }

    #[inline]
    fn slot_size(&self, s: &SlotRow) -> usize {
        counted_len(s.name.len()) + self.slot_args(s).iter().map(|a| counted_len(a.len())).sum::<usize>()
    }

    fn op_size(&self, o: &OpRow) -> usize {
        let slots = self.op_slots(o).iter().map(|s| counted_len(self.slot_size(s))).sum::<usize>();
        let fixed = slots + counted_len(o.kind.len()) + if o.is_target.is_some() { 2 } else { 0 };
        match self.odd_of(o) {
            None => fixed + o.attrs.len(),
            Some(odd) if odd.verbatim => o.raw.len(),
            Some(odd) => {
                fixed
                    + odd.attrs.iter().map(|a| counted_len(a.len())).sum::<usize>()
                    + odd.unknown.iter().map(|u| u.len()).sum::<usize>()
            }
        }
    }

    pub(crate) fn put_op(&self, o: &OpRow, out: &mut Vec<u8>) {
        for (i, s) in self.op_slots(o).iter().enumerate() {
            put_head(out, if i < usize::from(o.inputs) { op::INPUTS } else { op::OUTPUTS }, self.slot_size(s));
            put_bytes(out, slot::PARAMETER, s.name.of(self.file));
            for a in self.slot_args(s) {
                put_bytes(out, slot::ARGUMENTS, a.of(self.file));
            }
        }
        put_bytes(out, op::TYPE, o.kind.of(self.file));
        out.extend_from_slice(o.attrs.of(self.file));
        let odd = self.odd_of(o);
        for a in odd.iter().flat_map(|odd| &odd.attrs) {
            put_bytes(out, op::ATTRS, a.of(self.file));
        }
        if let Some(t) = o.is_target {
            put_int(out, op::IS_TARGET, i64::from(t));
        }
        for u in odd.iter().flat_map(|odd| &odd.unknown) {
            out.extend_from_slice(u.of(self.file));
        }
    }
}
