//! How does a section become a file? Names become values: the last one of each name is meant.

use super::error::{PirError, PirErrorKind as Kind};
use super::import::{BLOCKS, BLOCKS_OF, ELEMENTS, RENAME};
use super::kinds::{self, Row};
use super::{NEW_HEAD, head, json, value};
use crate::diag::Place;
use crate::entity::EntityId;
use crate::ir::{AttrListId, AttrValue, BlockId, DType, Entity, OpId, OpRef, Program, Section, VarFlag};
use crate::names::{Name, SeededMap, sym};
use crate::verify::DeclIndex;
use std::fmt::Write;

mod write;

pub(super) use write::load_text;
use write::new_result_attrs;

/// Writes a section as a PIR file.
///
/// # Errors
/// [`PirError`] with the op that PIR has no form for: a kind of ProgramDesc, a `load` of several
/// cells (`lower` makes one each), a cell that a sub-block writes.
pub fn export(program: &Program, section: Section) -> Result<String, PirError> {
    if let Some(kept) = program.extra(Entity::Section(section)).and_then(|x| x.verbatim.as_deref())
        && let Ok(text) = std::str::from_utf8(kept)
    {
        return Ok(text.to_owned());
    }
    let head = head(program, section).unwrap_or(NEW_HEAD);
    let mut out = Out::new(program, section, head.contains("\"trainable\":true"));
    let members: Vec<(&str, &str)> = json::object(head).map(Iterator::collect).unwrap_or_default();
    let mut put_body = Some(|out: &mut Out<'_>| out.body());
    out.text.push('{');
    for (i, (key, value)) in members.into_iter().enumerate() {
        if key > "program"
            && let Some(put) = put_body.take()
        {
            out.comma(i);
            put(&mut out)?;
            out.text.push(',');
        } else {
            out.comma(i);
        }
        let _ = write!(out.text, "\"{key}\":{value}");
    }
    if let Some(put) = put_body.take() {
        out.comma(usize::from(out.text.len() > 1));
        put(&mut out)?;
    }
    out.text.push('}');
    Ok(out.text)
}

/// The current value of a name.
#[derive(Clone, Copy)]
struct Cur {
    id: i64,
    /// its element type, when not the one that the name is declared with
    dtype: Option<DType>,
}

/// Which op gives a cell the value that is to be named, and whether that is done.
#[derive(Clone, Copy)]
struct Mark {
    def: Option<OpId>,
    /// the last op that names it
    by: Option<OpId>,
    /// place of `def` and `by`
    at: (usize, usize),
}

struct Frame {
    block: BlockId,
    next: usize,
    /// blocks of the op at hand that are to come, by region, the next region and block last
    regions: Vec<Vec<BlockId>>,
    /// what names meant before this block
    undo: Vec<(Name, Option<Cur>)>,
}

/// The parts of an attribute list as the file has them, written once.
struct Lists {
    attrs: String,
    results: Option<String>,
}

struct Out<'p> {
    program: &'p Program,
    section: Section,
    decls: DeclIndex,
    text: String,
    trainable: bool,
    now: Vec<Option<Cur>>,
    next_id: i64,
    next_arg: i64,
    regions: usize,
    blocks: usize,
    marks: SeededMap<Name, Mark>,
    /// by name: whether the file reads the cell from the scope
    from_scope: Vec<bool>,
    /// Cells that are both read from the scope and given a value, and the op that names it, if there is one: the
    /// executor takes no further values once a variable has two.
    at_end: Vec<(Name, Option<OpId>)>,
    stack: Vec<Frame>,
    lists: SeededMap<(AttrListId, &'static str), std::rc::Rc<Lists>>,
    /// names of which a value was written already in the block's op list
    first: bool,
}

impl<'p> Out<'p> {
    fn new(program: &'p Program, section: Section, trainable: bool) -> Self {
        Out {
            program,
            section,
            decls: DeclIndex::new(program),
            text: String::new(),
            trainable,
            now: vec![None; program.names().len()],
            next_id: 1,
            next_arg: -1,
            regions: 0,
            blocks: 0,
            marks: SeededMap::default(),
            from_scope: vec![false; program.names().len()],
            at_end: Vec::new(),
            stack: Vec::new(),
            lists: SeededMap::default(),
            first: true,
        }
    }

    fn comma(&mut self, index: usize) {
        if index > 0 {
            self.text.push(',');
        }
    }

    fn no_form(&self, op: OpId, what: impl Into<String>) -> PirError {
        PirError { path: Place::op(self.program, op).to_string(), kind: Kind::NoForm(what.into()) }
    }

    fn body(&mut self) -> Result<(), PirError> {
        self.text.push_str("\"program\":{\"regions\":[");
        if let Some(global) = self.program.global_block(self.section) {
            self.find_marks(global);
            self.open_region();
            self.open_block(global);
            self.run()?;
        }
        self.text.push_str("]}");
        Ok(())
    }

    /// Cells that get a value here, and the op that gives the last one.
    fn find_marks(&mut self, global: BlockId) {
        for (at, op) in self.program.ops(global).enumerate() {
            if let Some(attr) = kinds::names_cell(op.kind_str()) {
                if matches!(op.kind_str(), kinds::SET_PARAMETER | kinds::SHADOW_OUTPUT)
                    && let Some(cell) = self.named(op, attr)
                {
                    let mark = self.marks.entry(cell).or_insert(Mark { def: None, by: None, at: (0, 0) });
                    (mark.by, mark.at.1) = (Some(op.id), at);
                }
                continue;
            }
            if op.kind_str().starts_with(RENAME) {
                continue;
            }
            let row = kinds::of_ir(op.kind_str());
            for name in self.fresh_outputs(op, row) {
                let mark = self.marks.entry(name).or_insert(Mark { def: None, by: None, at: (0, 0) });
                (mark.def, mark.at.0) = (Some(op.id), at);
            }
        }
        let cells = |n: &Name| self.decls.find(global, *n).is_some_and(|v| self.program.var(v).persistable());
        self.marks.retain(|n, m| m.by.is_some() || cells(n));
    }

    /// Outputs that are new values, not operands written in place.
    fn fresh_outputs(&self, op: OpRef<'p>, row: Option<&'static Row>) -> impl Iterator<Item = Name> + use<'p> {
        let program = self.program;
        let in_place = move |slot: &str, name: Name| {
            let Some(row) = row else { return slot == ELEMENTS };
            row.in_place.iter().any(|&(o, i)| {
                row.outputs[o] == slot && op.inputs().any(|s| program.sym(s.name) == row.inputs[i] && s.args == [name])
            })
        };
        op.outputs().flat_map(move |s| s.args.iter().copied().filter(move |&n| !in_place(program.sym(s.name), n)))
    }

    fn named(&self, op: OpRef<'_>, attr: &str) -> Option<Name> {
        let attr = self.program.symbols().lookup(attr)?;
        self.program.names().lookup(op.attr(attr)?.as_str()?)
    }

    fn open_region(&mut self) {
        let _ = write!(self.text, "{{\"#\":\"region_{}\",\"blocks\":[", self.regions);
        self.regions += 1;
    }

    fn open_block(&mut self, block: BlockId) {
        let _ = write!(self.text, "{{\"#\":\"block_{}\",\"args\":[", self.blocks);
        self.blocks += 1;
        let mut frame = Frame { block, next: 0, regions: Vec::new(), undo: Vec::new() };
        let mut n = 0;
        for &var in &self.program.block(block).vars {
            let v = self.program.var(var);
            let text = self.program.name(v.name);
            if text.starts_with("%-") || text.starts_with("%s-") {
                self.comma(n);
                let _ = write!(self.text, "{{\"#\":{},\"TT\":", self.next_arg);
                self.put_type(block, v.name, None);
                self.text.push('}');
                let cur = Cur { id: self.next_arg, dtype: None };
                frame.undo.push((v.name, self.now[v.name.index()].replace(cur)));
                self.next_arg -= 1;
                n += 1;
            }
        }
        self.text.push_str("],\"ops\":[");
        self.first = true;
        self.stack.push(frame);
    }

    fn run(&mut self) -> Result<(), PirError> {
        while let Some(frame) = self.stack.last_mut() {
            // Blocks of the op that was written last.
            if let Some(region) = frame.regions.last_mut() {
                match region.pop() {
                    Some(block) => self.open_block(block),
                    None => {
                        frame.regions.pop();
                        self.text.push_str("]}");
                        match self.stack.last().is_some_and(|f| f.regions.is_empty()) {
                            true => self.text.push_str("]}"),
                            false => {
                                self.text.push(',');
                                self.open_region();
                            }
                        }
                    }
                }
                continue;
            }
            let (block, at) = (frame.block, frame.next);
            let Some(&id) = self.program.block(block).ops.get(at) else {
                if self.stack.len() == 1 {
                    self.end(block)?;
                }
                let frame = self.stack.pop().expect("a frame");
                for (name, old) in frame.undo.into_iter().rev() {
                    self.now[name.index()] = old;
                }
                self.text.push_str("]}");
                self.first = false;
                match self.stack.last().and_then(|f| f.regions.last()) {
                    Some(region) if !region.is_empty() => self.text.push(','),
                    Some(_) => {}
                    // The global block's region.
                    None => self.text.push_str("]}"),
                }
                continue;
            };
            frame.next += 1;
            self.op(block, self.program.op(id))?;
        }
        Ok(())
    }

    /// Names what could not be named before the end.
    fn end(&mut self, block: BlockId) -> Result<(), PirError> {
        for (cell, op) in std::mem::take(&mut self.at_end) {
            match (op, self.now[cell.index()]) {
                (Some(op), Some(cur)) => {
                    self.start_op();
                    self.plain(block, self.program.op(op), None, &[Some(cur)], &[])?;
                }
                _ => self.name_last(cell),
            }
        }
        Ok(())
    }

    fn start_op(&mut self) {
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
    }

    fn op(&mut self, block: BlockId, op: OpRef<'p>) -> Result<(), PirError> {
        let kind = op.kind_str();
        if let Some(attr) = kinds::names_cell(kind) {
            let Some(cell) = self.named(op, attr) else { return Err(self.no_form(op.id, "it names no cell")) };
            return match kind {
                kinds::PARAMETER => self.parameter(block, op, cell),
                kinds::DATA => {
                    self.from_scope[cell.index()] = true;
                    self.start_op();
                    self.plain(block, op, None, &[], &[(cell, None)])
                }
                _ => match self.marks.get(&cell) {
                    Some(m) if m.by == Some(op.id) && (m.def.is_none() || m.at.0 < m.at.1) => {
                        if m.def.is_some() && self.from_scope[cell.index()] {
                            self.at_end.push((cell, Some(op.id)));
                            return Ok(());
                        }
                        let cur = self.read(block, op, cell, None)?;
                        self.start_op();
                        self.plain(block, op, None, &[Some(cur)], &[])
                    }
                    _ => Ok(()),
                },
            };
        }
        if kind == "load" {
            self.load(block, op)?;
        } else {
            self.general(block, op)?;
        }
        if self.program.block(block).index == 0 {
            for name in op.output_args() {
                self.mark(op.id, name);
            }
        }
        Ok(())
    }

    /// Names a cell's last value, when no op that comes does.
    fn mark(&mut self, op: OpId, cell: Name) {
        let Some(mark) = self.marks.get(&cell) else { return };
        if mark.def != Some(op) || (mark.by.is_some() && mark.at.1 > mark.at.0) {
            return;
        }
        match self.from_scope[cell.index()] {
            true => self.at_end.push((cell, None)),
            false => self.name_last(cell),
        }
    }

    /// Names a cell's value.
    fn name_last(&mut self, cell: Name) {
        let Some(cur) = self.now[cell.index()] else { return };
        let global = self.stack[0].block;
        let parameter = self.decls.find(global, cell).is_some_and(|v| self.program.var(v).is_parameter());
        let (kind, attr) =
            if parameter { ("0.set_parameter", "parameter_name") } else { ("0.shadow_output", "output_name") };
        let name = json::quote(self.program.name(cell));
        self.start_op();
        let _ = write!(
            self.text,
            "{{\"#\":\"{kind}\",\"A\":[{{\"AT\":{{\"#\":\"0.a_str\",\"D\":{name}}},\"N\":\"{attr}\"}}],\
             \"I\":[{{\"%\":{}}}],\"O\":[]{}}}",
            cur.id,
            if self.trainable { ",\"OA\":[]" } else { "" }
        );
    }

    /// An op that the table knows, or one whose slots are places.
    fn general(&mut self, block: BlockId, op: OpRef<'p>) -> Result<(), PirError> {
        let kind = op.kind_str();
        let row = kinds::of_ir(kind);
        if row.is_none() && !kind.contains('.') {
            return Err(self.no_form(op.id, format!("PIR has no `{kind}` with the slots of ProgramDesc")));
        }
        let one = |args: &[Name]| match args {
            [] => Ok(None),
            &[name] => Ok(Some(name)),
            _ => Err(self.no_form(op.id, format!("`{kind}` takes one value in a slot"))),
        };
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        match row {
            Some(row) => {
                for s in op.inputs() {
                    let slot = self.program.sym(s.name);
                    let Some(i) = row.inputs.iter().position(|r| *r == slot) else {
                        return Err(self.no_form(op.id, format!("`{}` has no operand `{slot}`", row.pir)));
                    };
                    put_at(&mut ins, i, one(s.args)?);
                }
                for s in op.outputs() {
                    let slot = self.program.sym(s.name);
                    let Some(i) = row.outputs.iter().position(|r| *r == slot) else {
                        return Err(self.no_form(op.id, format!("`{}` has no result `{slot}`", row.pir)));
                    };
                    put_at(&mut outs, i, one(s.args)?);
                }
            }
            None => {
                for s in op.inputs() {
                    ins.push(one(s.args)?);
                }
                for s in op.outputs().filter(|s| self.program.sym(s.name) != ELEMENTS) {
                    outs.push(one(s.args)?);
                }
            }
        }
        if kind.starts_with(RENAME) {
            outs.clear();
        }
        let wanted = self.taken(block, op, row, &outs);
        let mut operands = Vec::with_capacity(ins.len());
        for name in &ins {
            operands.push(match name {
                Some(name) => Some(self.read(block, op, *name, wanted)?),
                None => None,
            });
        }
        let mut results = Vec::with_capacity(outs.len());
        for name in outs {
            let Some(name) = name else { return Err(self.no_form(op.id, "a result is missing between others")) };
            let dtype = match kind {
                "cast" => op.attr(sym::OUT_DTYPE).and_then(AttrValue::as_int).map(|c| DType::from_code(c as i32)),
                "assign" => operands.first().copied().flatten().and_then(|c| c.dtype),
                _ => None,
            };
            results.push((name, dtype));
        }
        if self.program.block(block).index != 0
            && let Some(name) = self
                .fresh_outputs(op, row)
                .find(|&n| self.decls.find(block, n).is_none_or(|v| self.program.var(v).block != block))
            && !kind.starts_with(RENAME)
        {
            let name = self.program.name(name);
            return Err(self.no_form(op.id, format!("a sub-block writes `{name}`, which is not its own")));
        }
        self.start_op();
        self.plain(block, op, row, &operands, &results)
    }

    /// The element type that an op takes its operand to have.
    fn taken(&self, block: BlockId, op: OpRef<'_>, row: Option<&Row>, outs: &[Option<Name>]) -> Option<DType> {
        match row?.kind {
            "cast" => op.attr(sym::IN_DTYPE).and_then(AttrValue::as_int).map(|c| DType::from_code(c as i32)),
            "assign" => {
                let var = self.decls.find(block, (*outs.first()?)?)?;
                Some(self.program.var(var).dtype)
            }
            _ => None,
        }
    }

    /// The value of a name. A cell without one is read from the scope first.
    fn read(&mut self, block: BlockId, op: OpRef<'_>, name: Name, wanted: Option<DType>) -> Result<Cur, PirError> {
        if let Some(cur) = self.now[name.index()] {
            return Ok(cur);
        }
        let text = self.program.name(name);
        let Some(var) = self.decls.find(block, name) else {
            return Err(self.no_form(op.id, format!("`{text}` is not declared")));
        };
        let v = *self.program.var(var);
        if text.starts_with('%') || !(v.persistable() || v.flags.is(VarFlag::NeedCheckFeed)) {
            return Err(self.no_form(op.id, format!("`{text}` has no value yet")));
        }
        if self.program.block(block).index != 0 {
            return Err(self.no_form(op.id, format!("a sub-block reads `{text}`, which has no value before it")));
        }
        let dtype = wanted.filter(|d| *d != v.dtype);
        let (quoted, id) = (json::quote(text), self.new_id());
        self.start_op();
        if v.is_parameter() {
            let _ = write!(self.text, "{{\"#\":\"p\",\"A\":[0,1,1,{quoted}],\"DA\":[],\"O\":{{\"%\":{id},\"TT\":");
            self.put_type(block, name, dtype);
            self.text.push('}');
            if self.trainable {
                self.text.push_str(",\"OA\":[1,0,1]");
            }
            self.text.push_str(",\"QA\":[]}");
        } else {
            let attr = |n: &str, v: AttrValue| {
                format!("{{\"AT\":{},\"N\":\"{n}\"}}", value::encode(n, &v).unwrap_or_default())
            };
            let attrs = [
                attr("name", AttrValue::str(text)),
                attr("shape", AttrValue::Longs(self.program.shape(var).into())),
                attr("dtype", AttrValue::from(dtype.unwrap_or(v.dtype))),
                attr("place", AttrValue::Ints([0, 0].into())),
            ];
            let _ = write!(
                self.text,
                "{{\"#\":\"1.data\",\"A\":[{}],\"I\":[],\"O\":[{{\"%\":{id},\"TT\":",
                attrs.join(",")
            );
            self.put_type(block, name, dtype);
            self.text.push_str("}],\"OA\":");
            self.text.push_str(&new_result_attrs(1, true));
            self.text.push('}');
        }
        let cur = Cur { id, dtype };
        self.from_scope[name.index()] = true;
        self.set(name, cur);
        Ok(cur)
    }

    fn new_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn set(&mut self, name: Name, cur: Cur) {
        let old = self.now[name.index()].replace(cur);
        if self.stack.len() > 1
            && let Some(frame) = self.stack.last_mut()
        {
            frame.undo.push((name, old));
        }
    }

    /// Ends an op, or begins its regions.
    fn sub_blocks(&mut self, op: OpRef<'_>) -> Result<(), PirError> {
        let find = |name| self.program.symbols().lookup(name).and_then(|s| op.attr(s));
        let Some(AttrValue::Blocks(_)) = find(BLOCKS) else {
            if op.has_sub_blocks() {
                return Err(self.no_form(op.id, "its sub-blocks are no regions"));
            }
            self.text.push('}');
            return Ok(());
        };
        let mut blocks = op.sub_blocks();
        let counts = match find(BLOCKS_OF) {
            Some(AttrValue::Ints(counts)) => counts.to_vec(),
            _ => vec![1; op.sub_blocks().count()],
        };
        let mut regions: Vec<Vec<BlockId>> =
            counts.iter().map(|&n| blocks.by_ref().take(n.max(0) as usize).collect()).collect();
        regions.reverse();
        regions.iter_mut().for_each(|r| r.reverse());
        self.text.push_str(",\"regions\":[");
        if regions.is_empty() {
            self.text.push_str("]}");
            return Ok(());
        }
        if self.stack.len() > super::MAX_BLOCKS {
            return Err(self.no_form(op.id, "its regions are nested too deep"));
        }
        self.open_region();
        self.stack.last_mut().expect("a frame").regions = regions;
        Ok(())
    }
}

fn put_at<T>(list: &mut Vec<Option<T>>, at: usize, value: Option<T>) {
    while list.len() <= at {
        list.push(None);
    }
    list[at] = value;
}
