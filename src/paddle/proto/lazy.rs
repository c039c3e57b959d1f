//! What is the codec's own form of a file? Rows over the input: ops split into slots and arguments, the rest raw.
//!
//! [`Document::decode`] makes one pass. An op that looks as protobuf writes it (fields in order,
//! lengths minimal, nothing unknown) takes the short way ([`plain_op`]), which accepts or declines
//! but never judges; whatever it declines is read field by field ([`Document::odd_op`]), which finds
//! the error or notes what is unusual. Attributes and declarations stay raw until asked for: real
//! programs repeat them, and most readers want few of them.

use super::MAX_FILE;
use super::MAX_SLOTS;
use super::error::{ProtoError, ProtoErrorKind as Kind, Step};
use super::schema::{block, op, program, slot};
use super::wire::{Field, LEN, Part, Reader, Value, short_len, tag};

/// A decoded file; borrows its bytes.
pub struct Document<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) blocks: Vec<BlockRow>,
    /// `VarDesc` messages, undecoded
    pub(crate) vars: Vec<Part>,
    pub(crate) ops: Vec<OpRow>,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) args: Vec<Part>,
    pub(crate) odd: Vec<Odd>,
    /// fields beside the blocks, in file order
    pub(crate) rest: Vec<Field>,
    /// the blocks and the rest do not encode to the file
    pub(crate) verbatim: bool,
}

/// A block's row. Its ops and declarations are contiguous in the document.
pub(crate) struct BlockRow {
    pub raw: Part,
    pub idx: i32,
    pub parent: i32,
    pub forward: Option<i32>,
    pub vars: (u32, u32),
    pub ops: (u32, u32),
    pub unknown: Vec<Part>,
    /// the rows do not encode to `raw`
    pub verbatim: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct OpRow {
    pub raw: Part,
    pub kind: Part,
    /// the attribute fields of a plain op, tags included; empty for an odd op
    pub attrs: Part,
    pub slots: u32,
    pub inputs: u16,
    pub outputs: u16,
    /// index in `Document::odd`, or `PLAIN`
    pub odd: u32,
    pub is_target: Option<bool>,
}

pub(crate) const PLAIN: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub(crate) struct SlotRow {
    pub name: Part,
    pub args: u32,
    pub len: u32,
}

impl OpRow {
    /// The place of slot `i` in the op.
    pub fn slot_step(&self, i: usize) -> Step {
        let inputs = usize::from(self.inputs);
        if i < inputs { Step::At("inputs", i) } else { Step::At("outputs", i - inputs) }
    }
}

/// What an op that is not plain has besides its row.
#[derive(Default)]
pub(crate) struct Odd {
    /// `OpDesc.Attr` messages, in order
    pub attrs: Vec<Part>,
    /// unknown fields, whole, in order
    pub unknown: Vec<Part>,
    /// the row does not encode to the op's message
    pub verbatim: bool,
}

const INPUTS: u8 = tag(op::INPUTS, LEN) as u8;
const OUTPUTS: u8 = tag(op::OUTPUTS, LEN) as u8;
const TYPE: u8 = tag(op::TYPE, LEN) as u8;
const ATTRS: u8 = tag(op::ATTRS, LEN) as u8;
const IS_TARGET: u8 = tag(op::IS_TARGET, super::wire::VARINT) as u8;
const PARAMETER: u8 = tag(slot::PARAMETER, LEN) as u8;
const ARGUMENTS: u8 = tag(slot::ARGUMENTS, LEN) as u8;

/// An op written as protobuf writes it, or `None`. Rows that it pushed before it declined are the caller's to drop.
fn plain_op(file: &[u8], raw: Part, slots: &mut Vec<SlotRow>, args: &mut Vec<Part>) -> Option<OpRow> {
    let end = raw.end as usize;
    let body = &file[..end];
    let mut at = raw.start as usize;
    let first = slots.len();
    let mut direction = |at: &mut usize, tag: u8| -> Option<u16> {
        let before = slots.len();
        while body.get(*at) == Some(&tag) {
            let (len, start) = short_len(body, *at + 1)?;
            // The slot ends inside the op, or declines.
            let one = body.get(..start.checked_add(len)?)?;
            if *one.get(start)? != PARAMETER {
                return None;
            }
            let (len, name) = short_len(one, start + 1)?;
            let mut next = name + len;
            let from = args.len();
            while next < one.len() {
                if one[next] != ARGUMENTS {
                    return None;
                }
                let (len, arg) = short_len(one, next + 1)?;
                next = arg + len;
                args.push(Part::new(arg, next));
            }
            if next != one.len() {
                return None;
            }
            slots.push(SlotRow {
                name: Part::new(name, name + len),
                args: from as u32,
                len: (args.len() - from) as u32,
            });
            *at = one.len();
        }
        u16::try_from(slots.len() - before).ok()
    };
    let inputs = direction(&mut at, INPUTS)?;
    let outputs = direction(&mut at, OUTPUTS)?;
    if *body.get(at)? != TYPE {
        return None;
    }
    let (len, start) = short_len(body, at + 1)?;
    at = start.checked_add(len)?;
    let kind = Part::new(start, at);
    if at > end {
        return None;
    }
    let attrs = at;
    while body.get(at) == Some(&ATTRS) {
        let (len, start) = short_len(body, at + 1)?;
        at = start.checked_add(len)?;
        if at > end {
            return None;
        }
    }
    let attrs = Part::new(attrs, at);
    let mut is_target = None;
    if body.get(at) == Some(&IS_TARGET) {
        is_target = match *body.get(at + 1)? {
            0 => Some(false),
            1 => Some(true),
            _ => return None,
        };
        at += 2;
    }
    (at == end).then_some(OpRow { raw, kind, attrs, slots: first as u32, inputs, outputs, odd: PLAIN, is_target })
}

impl<'a> Document<'a> {
    /// Reads a file. Time and memory are linear in its length.
    pub fn decode(file: &'a [u8]) -> Result<Self, ProtoError> {
        if file.len() > MAX_FILE {
            return Err(ProtoError::new(Kind::TooLarge, MAX_FILE));
        }
        let mut doc = Document {
            file,
            blocks: Vec::new(),
            vars: Vec::new(),
            ops: Vec::new(),
            slots: Vec::new(),
            args: Vec::new(),
            odd: Vec::new(),
            rest: Vec::new(),
            verbatim: false,
        };
        let mut r = Reader::new(file, Part::new(0, file.len()));
        let mut order = Order::default();
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (program::BLOCKS, Value::Len(part)) => {
                    order.repeated(f);
                    doc.block(part, f.whole.start as usize)
                        .map_err(|e| e.within(Step::At("blocks", doc.blocks.len())))?;
                }
                (program::VERSION, Value::Len(_)) | (program::OP_VERSION_MAP, Value::Len(_)) => {
                    order.singular(f);
                    doc.rest.push(f);
                }
                _ => {
                    order.unknown();
                    doc.rest.push(f);
                }
            }
        }
        doc.verbatim = order.broken;
        Ok(doc)
    }

    fn block(&mut self, raw: Part, at: usize) -> Result<(), ProtoError> {
        let (first_var, first_op) = (self.vars.len(), self.ops.len());
        let (mut idx, mut parent, mut forward) = (None, None, None);
        let mut unknown = Vec::new();
        let mut order = Order::default();
        let mut r = Reader::new(self.file, raw);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (block::OPS, Value::Len(part)) => {
                    order.repeated(f);
                    self.op(part, f.whole.start as usize)
                        .map_err(|e| e.within(Step::At("ops", self.ops.len() - first_op)))?;
                }
                (block::VARS, Value::Len(part)) => {
                    order.repeated(f);
                    self.vars.push(part);
                }
                (block::IDX, Value::Varint(v)) => idx = Some(order.int32(f, v)),
                (block::PARENT_IDX, Value::Varint(v)) => parent = Some(order.int32(f, v)),
                (block::FORWARD_BLOCK_IDX, Value::Varint(v)) => forward = Some(order.int32(f, v)),
                _ => {
                    order.unknown();
                    unknown.push(f.whole);
                }
            }
        }
        let missing = |field| ProtoError::new(Kind::Missing(field), at);
        self.blocks.push(BlockRow {
            raw,
            idx: idx.ok_or_else(|| missing("idx"))?,
            parent: parent.ok_or_else(|| missing("parent_idx"))?,
            forward,
            vars: (first_var as u32, self.vars.len() as u32),
            ops: (first_op as u32, self.ops.len() as u32),
            unknown,
            verbatim: order.broken,
        });
        Ok(())
    }

    #[inline]
    fn op(&mut self, raw: Part, at: usize) -> Result<(), ProtoError> {
        let (slots, args) = (self.slots.len(), self.args.len());
        let row = match plain_op(self.file, raw, &mut self.slots, &mut self.args) {
            Some(row) => row,
            None => {
                self.slots.truncate(slots);
                self.args.truncate(args);
                self.odd_op(raw, at)?
            }
        };
        self.ops.push(row);
        Ok(())
    }

    /// Any op, read field by field: repeated singular fields overwrite, as in protobuf.
    #[cold]
    fn odd_op(&mut self, raw: Part, at: usize) -> Result<OpRow, ProtoError> {
        let (mut inputs, mut outputs, mut kind, mut is_target) = (Vec::new(), Vec::new(), None, None);
        let mut odd = Odd::default();
        let mut r = Reader::new(self.file, raw);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (op::INPUTS, Value::Len(part)) => inputs.push((part, f.whole.start)),
                (op::OUTPUTS, Value::Len(part)) => outputs.push((part, f.whole.start)),
                (op::TYPE, Value::Len(part)) => kind = Some(part),
                (op::ATTRS, Value::Len(part)) => odd.attrs.push(part),
                (op::IS_TARGET, Value::Varint(v)) => is_target = Some(v != 0),
                _ => odd.unknown.push(f.whole),
            }
        }
        let kind = kind.ok_or_else(|| ProtoError::new(Kind::Missing("type"), at))?;
        let first = self.slots.len();
        let inputs = self.odd_slots(&inputs, "inputs", at)?;
        let outputs = self.odd_slots(&outputs, "outputs", at)?;
        let odd_index = self.odd.len() as u32;
        let row = OpRow {
            raw,
            kind,
            attrs: Part::default(),
            slots: first as u32,
            inputs,
            outputs,
            odd: odd_index,
            is_target,
        };
        self.odd.push(odd);
        let mut again = Vec::with_capacity(raw.len());
        self.put_op(&row, &mut again);
        self.odd[odd_index as usize].verbatim = again != raw.of(self.file);
        Ok(row)
    }

    fn odd_slots(&mut self, parts: &[(Part, u32)], field: &'static str, at: usize) -> Result<u16, ProtoError> {
        let count = u16::try_from(parts.len()).ok().filter(|&n| usize::from(n) <= MAX_SLOTS);
        let count = count.ok_or_else(|| ProtoError::new(Kind::TooManySlots, at))?;
        for (i, &(part, at)) in parts.iter().enumerate() {
            self.odd_slot(part, at as usize).map_err(|e| e.within(Step::At(field, i)))?;
        }
        Ok(count)
    }

    fn odd_slot(&mut self, part: Part, at: usize) -> Result<(), ProtoError> {
        let (mut name, from) = (None, self.args.len());
        let mut r = Reader::new(self.file, part);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (slot::PARAMETER, Value::Len(part)) => name = Some(part),
                (slot::ARGUMENTS, Value::Len(part)) => self.args.push(part),
                // Kept by the op's verbatim bytes alone.
                _ => {}
            }
        }
        let name = name.ok_or_else(|| ProtoError::new(Kind::Missing("parameter"), at))?;
        self.slots.push(SlotRow { name, args: from as u32, len: (self.args.len() - from) as u32 });
        Ok(())
    }

    #[inline]
    pub(crate) fn slot_args(&self, s: &SlotRow) -> &[Part] {
        &self.args[s.args as usize..][..s.len as usize]
    }

    pub(crate) fn block_vars(&self, b: &BlockRow) -> &[Part] {
        &self.vars[b.vars.0 as usize..b.vars.1 as usize]
    }

    pub(crate) fn block_ops(&self, b: &BlockRow) -> &[OpRow] {
        &self.ops[b.ops.0 as usize..b.ops.1 as usize]
    }

    #[inline]
    pub(crate) fn op_slots(&self, o: &OpRow) -> &[SlotRow] {
        &self.slots[o.slots as usize..][..usize::from(o.inputs) + usize::from(o.outputs)]
    }

    #[inline]
    pub(crate) fn odd_of(&self, o: &OpRow) -> Option<&Odd> {
        if o.odd == PLAIN { None } else { Some(&self.odd[o.odd as usize]) }
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Ops of a block, in order; empty when there is no such block.
    pub fn ops(&self, block: usize) -> impl ExactSizeIterator<Item = DocOp<'_>> {
        let rows = self.blocks.get(block).map_or(&[][..], |b| self.block_ops(b));
        rows.iter().map(move |row| DocOp { doc: self, row })
    }

    /// Declarations of a block as `VarDesc` messages, in order; empty when there is no such block.
    pub fn vars(&self, block: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + '_ {
        let rows = self.blocks.get(block).map_or(&[][..], |b| self.block_vars(b));
        rows.iter().map(|v| v.of(self.file))
    }
}

/// An op of a document; names are the file's bytes, not checked to be UTF-8.
#[derive(Clone, Copy)]
pub struct DocOp<'d> {
    doc: &'d Document<'d>,
    row: &'d OpRow,
}

impl<'d> DocOp<'d> {
    /// What it does.
    pub fn kind(self) -> &'d [u8] {
        self.row.kind.of(self.doc.file)
    }

    /// Input slots, then output slots: whether it is an output, its name, its arguments.
    pub fn slots(self) -> impl ExactSizeIterator<Item = (bool, &'d [u8], impl ExactSizeIterator<Item = &'d [u8]>)> {
        let Self { doc, row } = self;
        doc.op_slots(row).iter().enumerate().map(move |(i, s)| {
            let args = doc.slot_args(s);
            (i >= usize::from(row.inputs), s.name.of(doc.file), args.iter().map(move |a| a.of(doc.file)))
        })
    }

    /// The attributes as `OpDesc.Attr` messages.
    pub fn attrs(self) -> Vec<&'d [u8]> {
        self.doc.attr_parts(self.row).into_iter().map(|p| p.of(self.doc.file)).collect()
    }
}

impl Document<'_> {
    /// The error for an argument that is not UTF-8.
    #[cold]
    pub(crate) fn arg_error(&self, arg: usize) -> ProtoError {
        let mut error = ProtoError::new(Kind::NotUtf8("argument"), self.args[arg].start as usize);
        for (b, block) in self.blocks.iter().enumerate() {
            for (o, op) in self.block_ops(block).iter().enumerate() {
                let holds = |s: &SlotRow| (s.args as usize..s.args as usize + s.len as usize).contains(&arg);
                if let Some(i) = self.op_slots(op).iter().position(holds) {
                    error = error.within(op.slot_step(i)).within(Step::At("ops", o)).within(Step::At("blocks", b));
                }
            }
        }
        error
    }

    /// The `OpDesc.Attr` messages of an op.
    pub(crate) fn attr_parts(&self, o: &OpRow) -> Vec<Part> {
        if let Some(odd) = self.odd_of(o) {
            return odd.attrs.clone();
        }
        let mut parts = Vec::new();
        let body = &self.file[..o.attrs.end as usize];
        let mut at = o.attrs.start as usize;
        // `plain_op` walked the same bytes, so that no length is cut here.
        while at < body.len() {
            let Some((len, start)) = short_len(body, at + 1) else { break };
            at = start + len;
            parts.push(Part::new(start, at));
        }
        parts
    }
}

/// A message that begins with its name, minimally framed: the name, and what follows it.
pub(crate) fn leading_name(file: &[u8], message: Part) -> Option<(Part, Part)> {
    let body = &file[..message.end as usize];
    let start = message.start as usize;
    if *body.get(start)? != PARAMETER {
        return None;
    }
    let (len, name) = short_len(body, start + 1)?;
    let end = name.checked_add(len).filter(|&end| end <= body.len())?;
    Some((Part::new(name, end), Part::new(end, body.len())))
}

/// Watches whether fields come as protobuf writes them: ascending, singular ones once, unknown ones last.
#[derive(Default)]
struct Order {
    last: u32,
    broken: bool,
}

impl Order {
    #[inline]
    fn repeated(&mut self, f: Field) {
        self.broken |= f.number < self.last || !f.minimal;
        self.last = f.number;
    }

    fn singular(&mut self, f: Field) {
        self.broken |= f.number == self.last;
        self.repeated(f);
    }

    fn int32(&mut self, f: Field, value: u64) -> i32 {
        self.singular(f);
        let v = value as i32;
        self.broken |= i64::from(v) as u64 != value;
        v
    }

    fn unknown(&mut self) {
        self.last = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_small() {
        assert!(size_of::<OpRow>() <= 40 && size_of::<SlotRow>() == 16 && size_of::<Part>() == 8);
    }

    /// The short way and the general one must make the same of every op that the short way accepts.
    #[test]
    fn both_ways_agree() {
        let mut plain = 0;
        for name in ["fc_norm.pb", "kinds.pb", "mlp.train.O2.fp16.raw.pb", "while_loop.train.O2.fp16.pb"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto").join(name);
            let bytes = std::fs::read(path).expect("a file of the tests");
            let doc = Document::decode(&bytes).expect("a program");
            let mut again = decode_none(&bytes);
            assert!(doc.odd.is_empty(), "protobuf wrote {name}: every op is plain");
            for row in &doc.ops {
                let odd = again.odd_op(row.raw, 0).expect("an op");
                assert!(!again.odd[odd.odd as usize].verbatim);
                assert_eq!((odd.kind, odd.inputs, odd.outputs, odd.is_target), {
                    (row.kind, row.inputs, row.outputs, row.is_target)
                });
                assert_eq!(again.attr_parts(&odd), doc.attr_parts(row));
                for (a, b) in doc.op_slots(row).iter().zip(again.op_slots(&odd)) {
                    assert_eq!(a.name, b.name);
                    assert_eq!(doc.slot_args(a), again.slot_args(b));
                }
                plain += 1;
            }
        }
        assert!(plain >= 90, "{plain}");
    }

    fn decode_none(file: &[u8]) -> Document<'_> {
        Document { file, ..Document::decode(b"").expect("the empty message") }
    }
}
