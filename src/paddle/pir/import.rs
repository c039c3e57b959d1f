//! How does a file become part of a program? Ops in order, values to names, names of cells at the end.

use super::error::{PirError, PirErrorKind as Kind};
use super::json::{self, Walk};
use super::kinds::{self, Row};
use super::{MAX_BLOCKS, MAX_FILE, VERSION, export, value};
use crate::entity::EntityId;
use crate::ir::{
    Attr, AttrListId, AttrValue, BlockId, DType, Entity, Extra, OpId, Origin, OriginId, Program, Section, SectionData,
    VarDef, VarFlag, VarId, VarKind,
};
use crate::names::{Name, SeededMap, Symbol};
use std::borrow::Cow;

mod naming;

/// Reads a PIR file into an empty section of a program.
///
/// # Errors
/// [`PirError`] with the place at fault. The section is empty again then; rows that were made before the
/// fault was found stay in the pools, in no section.
pub fn import(text: &str, section: Section, program: &mut Program) -> Result<(), PirError> {
    if program.section(section) != &SectionData::default() {
        return Err(PirError::new(Kind::Occupied));
    }
    if text.len() > MAX_FILE {
        return Err(PirError::new(Kind::TooLarge));
    }
    let compact = json::compact(text)?;
    let result = Importer::new(&compact, section, program).run();
    if result.is_err() {
        program.sections[section as usize] = SectionData::default();
        program.set_extra(Entity::Section(section), Extra::default());
        return result;
    }
    if export(program, section).ok().as_deref() != Some(text) {
        let extra = program.take_extra(Entity::Section(section));
        program.set_extra(Entity::Section(section), Extra { verbatim: Some(text.as_bytes().into()), ..extra });
    }
    Ok(())
}

/// Reads a program from its files; a section without a file stays empty.
///
/// # Errors
/// As [`import`].
pub fn read_program(startup: Option<&str>, main: Option<&str>) -> Result<Program, PirError> {
    let mut program = Program::new();
    for (section, text) in [(Section::Startup, startup), (Section::Main, main)] {
        if let Some(text) = text {
            import(text, section, &mut program)?;
        }
    }
    Ok(program)
}

fn expected<T>(what: &'static str) -> impl FnOnce() -> Result<T, PirError> {
    move || Err(PirError::new(Kind::Expected(what)))
}

fn need<T>(value: Option<T>, what: &'static str) -> Result<T, PirError> {
    value.map_or_else(expected(what), Ok)
}

fn once<'t>(slot: &mut Option<&'t str>, key: &str, value: &'t str) -> Result<(), PirError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(PirError::new(Kind::DuplicateKey(key.to_owned()))),
    }
}

/// A value of the file.
#[derive(Clone, Copy)]
struct Val<'t> {
    name: Name,
    /// its type, as text
    ty: &'t str,
    var: VarId,
    /// the op that gives it, and which of its results it is
    op: OpId,
    index: u32,
    block: BlockId,
    /// whether it is a plain value, that a cell's name may be given to
    plain: bool,
}

/// A declared cell.
struct Cell<'t> {
    ty: &'t str,
    var: VarId,
}

/// A block being read.
struct Frame<'t> {
    ops: Walk<'t>,
    block: BlockId,
    index: usize,
    path: String,
}

/// An op's members.
#[derive(Default)]
struct OpText<'t> {
    kind: Option<&'t str>,
    attrs: Option<&'t str>,
    operands: Option<&'t str>,
    results: Option<&'t str>,
    result_attrs: Option<&'t str>,
    regions: Option<&'t str>,
    /// the others
    more: Vec<(&'t str, &'t str)>,
}

#[derive(Clone, Copy)]
struct KindInfo {
    kind: Symbol,
    row: Option<&'static Row>,
}

struct Importer<'t, 'p> {
    text: &'t str,
    section: Section,
    program: &'p mut Program,
    prefix: &'static str,
    /// by small id: the value's row plus one
    small: Vec<u32>,
    ids: SeededMap<i64, u32>,
    vals: Vec<Val<'t>>,
    kinds: SeededMap<&'t str, KindInfo>,
    attrs: SeededMap<(Symbol, &'t str, &'t str), AttrListId>,
    types: SeededMap<&'t str, (VarKind, DType, Vec<i64>, bool)>,
    cells: SeededMap<Name, Cell<'t>>,
    /// by name: the cell that it turned out to be
    renames: SeededMap<Name, Name>,
    /// elements of a list that `builtin.combine` made
    lists: SeededMap<Name, Vec<Name>>,
    /// a `load_combine` that was read just now: the op, its text, its result
    loaded: Option<(OpId, &'t str, i64)>,
}

impl<'t, 'p> Importer<'t, 'p> {
    fn new(text: &'t str, section: Section, program: &'p mut Program) -> Self {
        Importer {
            text,
            section,
            program,
            prefix: if section == Section::Main { "%" } else { "%s" },
            small: vec![0; text.len() / 32 + 16],
            ids: SeededMap::default(),
            vals: Vec::new(),
            kinds: SeededMap::default(),
            attrs: SeededMap::default(),
            types: SeededMap::default(),
            cells: SeededMap::default(),
            renames: SeededMap::default(),
            lists: SeededMap::default(),
            loaded: None,
        }
    }

    fn run(mut self) -> Result<(), PirError> {
        let first_arg = self.program.args.len();
        let mut body = None;
        let mut head = String::from("{");
        for (key, value) in need(json::object(self.text), "an object")? {
            if key == "program" {
                once(&mut body, key, value)?;
                continue;
            }
            if key == "base_code" {
                check_head(value).map_err(|e| e.within("base_code"))?;
            }
            if head.len() > 1 {
                head.push(',');
            }
            head.push_str(&format!("\"{key}\":{value}"));
        }
        head.push('}');
        if !head.starts_with("{\"base_code\":") && !head.contains(",\"base_code\":") {
            return Err(PirError::new(Kind::NotPir("it has no `base_code`")));
        }
        let body = need(body, "a `program`")?;
        self.program
            .set_extra(Entity::Section(self.section), Extra { unknown: head.into_bytes().into(), verbatim: None });
        let mut regions = None;
        for (key, value) in need(json::object(body), "an object").map_err(|e| e.within("program"))? {
            match key {
                "regions" => once(&mut regions, key, value)?,
                _ => return Err(PirError::new(Kind::NotPir("`program` has another key than `regions`"))),
            }
        }
        let blocks = self.regions(need(regions, "`regions`").map_err(|e| e.within("program"))?, -1, "program")?;
        let [mut first] = <[Vec<Frame<'t>>; 1]>::try_from(blocks)
            .map_err(|_| PirError::new(Kind::NotPir("it has not one region")))?;
        if first.len() != 1 {
            return Err(PirError::new(Kind::NotPir("its region has not one block")));
        }
        let mut stack = vec![first.pop().expect("one block")];
        while let Some(frame) = stack.last_mut() {
            if !frame.ops.element() {
                stack.pop();
                continue;
            }
            let (block, index) = (frame.block, frame.index);
            frame.index += 1;
            let text = frame.ops.value();
            let path = || format!("{}.ops[{index}]", stack.last().expect("a frame").path);
            let origin = self.origin(block, index);
            let more = self.op(text, block, origin, &path).map_err(|e| e.within(&path()))?;
            if stack.len() + more.len().min(1) > MAX_BLOCKS {
                return Err(PirError::new(Kind::TooDeep).within(&path()));
            }
            stack.extend(more.into_iter().rev());
        }
        self.finish(first_arg);
        Ok(())
    }

    fn origin(&mut self, block: BlockId, index: usize) -> OriginId {
        let block = self.program.block(block).index;
        self.program.push_origin(Origin::File { block, index: index as u32 })
    }

    /// The blocks of each region, made and their arguments declared.
    fn regions(&mut self, text: &'t str, parent: i32, path: &str) -> Result<Vec<Vec<Frame<'t>>>, PirError> {
        let mut out = Vec::new();
        for (r, region) in need(json::list(text), "a list")?.enumerate() {
            let mut blocks = None;
            for (key, value) in need(json::object(region), "an object")? {
                match key {
                    "#" => {}
                    "blocks" => once(&mut blocks, key, value)?,
                    _ => return Err(PirError::new(Kind::NotPir("a region has an unknown key"))),
                }
            }
            let mut frames = Vec::new();
            for (b, block) in need(json::list(need(blocks, "`blocks`")?), "a list")?.enumerate() {
                let path = format!("{path}.regions[{r}].blocks[{b}]");
                frames.push(self.block(block, parent, path.clone()).map_err(|e| e.within(&path))?);
            }
            out.push(frames);
        }
        Ok(out)
    }

    fn block(&mut self, text: &'t str, parent: i32, path: String) -> Result<Frame<'t>, PirError> {
        let (mut args, mut ops) = (None, None);
        for (key, value) in need(json::object(text), "an object")? {
            match key {
                "#" => {}
                "args" => once(&mut args, key, value)?,
                "ops" => once(&mut ops, key, value)?,
                _ => return Err(PirError::new(Kind::NotPir("a block has an unknown key"))),
            }
        }
        let block = self.program.push_block(self.section, parent, None);
        for (i, arg) in need(json::list(args.unwrap_or("[]")), "a list")?.enumerate() {
            let origin = self.origin(block, i);
            let (id, ty) = self.value_text(arg, "#")?;
            let name = self.value_name(id)?;
            let var = self.declare(block, name, ty, origin);
            self.define(id, Val { name, ty, var, op: OpId::from_index(0), index: 0, block, plain: false })?;
        }
        let ops = need(Walk::into(ops.unwrap_or("[]"), b'['), "a list of ops")?;
        Ok(Frame { ops, block, index: 0, path })
    }

    /// A value's id and type.
    fn value_text(&self, text: &'t str, id_key: &str) -> Result<(i64, &'t str), PirError> {
        let (mut id, mut ty) = (None, None);
        for (key, value) in need(json::object(text), "a value")? {
            match key {
                _ if key == id_key => once(&mut id, key, value)?,
                "TT" => once(&mut ty, key, value)?,
                _ => return Err(PirError::new(Kind::Expected("a value with an id and `TT` alone"))),
            }
        }
        let id = id.and_then(|v| v.parse::<i64>().ok());
        Ok((need(id, "a value id")?, need(ty, "a type `TT`")?))
    }

    fn value_name(&mut self, id: i64) -> Result<Name, PirError> {
        use std::fmt::Write;
        let mut text = String::with_capacity(12);
        let _ = write!(text, "{}{id}", self.prefix);
        Ok(self.program.intern(&text))
    }

    fn cell_name(&mut self, text: &str) -> Result<Name, PirError> {
        if text.starts_with('%') || text.is_empty() {
            return Err(PirError::new(Kind::BadName(text.to_owned())));
        }
        Ok(self.program.intern(text))
    }

    fn define(&mut self, id: i64, val: Val<'t>) -> Result<(), PirError> {
        let row = u32::try_from(self.vals.len() + 1).map_err(|_| PirError::new(Kind::TooMany("values")))?;
        self.vals.push(val);
        let old = match usize::try_from(id).ok().and_then(|i| self.small.get_mut(i)) {
            Some(slot) => std::mem::replace(slot, row),
            None => self.ids.insert(id, row).unwrap_or(0),
        };
        match old {
            0 if id != 0 => Ok(()),
            _ => Err(PirError::new(Kind::DuplicateId(id))),
        }
    }

    fn find(&self, id: i64) -> Result<usize, PirError> {
        let row = match usize::try_from(id).ok().and_then(|i| self.small.get(i)) {
            Some(&row) => row,
            None => self.ids.get(&id).copied().unwrap_or(0),
        };
        (row as usize).checked_sub(1).ok_or_else(|| PirError::new(Kind::UnknownId(id)))
    }

    fn declare(&mut self, block: BlockId, name: Name, ty: &'t str, origin: OriginId) -> VarId {
        let decoded = self.types.entry(ty).or_insert_with(|| {
            let Some((dtype, dims)) = value::tensor_type(ty) else {
                return (VarKind::RAW, DType::Other(-1), Vec::new(), true);
            };
            let mut again = String::new();
            let raw = !value::put_type(&mut again, dtype, &dims) || again != ty;
            (VarKind::LOD_TENSOR, dtype, dims, raw)
        });
        let def = VarDef { kind: decoded.0, ..VarDef::tensor(name, decoded.1, decoded.2.clone()) };
        let raw = decoded.3;
        let var = self.program.push_var(block, &def, origin);
        if raw {
            self.program.set_extra(Entity::Var(var), Extra { unknown: ty.as_bytes().into(), verbatim: None });
        }
        var
    }

    /// Reads an op; its sub-blocks, in order, are returned to be read next.
    fn op(
        &mut self,
        text: &'t str,
        block: BlockId,
        origin: OriginId,
        path: &dyn Fn() -> String,
    ) -> Result<Vec<Frame<'t>>, PirError> {
        let mut op = OpText::default();
        for (key, value) in need(json::object(text), "an op")? {
            match key {
                "#" => once(&mut op.kind, key, value)?,
                "A" => once(&mut op.attrs, key, value)?,
                "I" => once(&mut op.operands, key, value)?,
                "O" => once(&mut op.results, key, value)?,
                "OA" => once(&mut op.result_attrs, key, value)?,
                "regions" => once(&mut op.regions, key, value)?,
                _ if op.more.iter().any(|(k, _)| *k == key) => {
                    return Err(PirError::new(Kind::DuplicateKey(key.to_owned())));
                }
                _ => op.more.push((key, value)),
            }
        }
        let kind = need(op.kind.and_then(|k| k.strip_prefix('"')?.strip_suffix('"')), "a kind `#`")?;
        let loaded = self.loaded.take();
        if kind == "0.slice"
            && let Some(loaded) = loaded
            && let Some(done) = self.load(loaded, text, &op)
        {
            return done.map(|()| Vec::new());
        }
        if kind == "p" {
            self.parameter(&op, block, origin)?;
            return Ok(Vec::new());
        }
        let info = match self.kinds.get(kind) {
            Some(&info) => info,
            None => {
                let long = kinds::long(&need(json::string(op.kind.unwrap_or_default()), "a kind `#`")?);
                let row = kinds::of_pir(&long);
                let kind_sym = self.program.symbol(row.map_or(&long, |r| r.kind));
                *self.kinds.entry(kind).or_insert(KindInfo { kind: kind_sym, row })
            }
        };
        let operands = self.operands(op.operands.unwrap_or("[]"))?;
        let results: Vec<&'t str> =
            need(json::list(op.results.unwrap_or("[]")), "a list").map_err(|e| e.within(".O"))?.collect();
        // More operands than the table knows: another op than it speaks of.
        let row = info.row.filter(|r| operands.len() <= r.inputs.len() && results.len() <= r.outputs.len());
        let kind_sym = match (info.row, row) {
            (Some(r), None) => self.program.symbol(r.pir),
            _ => info.kind,
        };
        let attrs = self.attr_list(kind_sym, row, op.attrs.unwrap_or("[]"), op.result_attrs.unwrap_or("[]"))?;
        let kind_text = self.program.sym(kind_sym).to_owned();
        if let Some(attr) = kinds::names_cell(&kind_text) {
            let cell = self.cell_of(attrs, attr)?;
            return self.naming(&kind_text, kind_sym, cell, attrs, &operands, &results, (block, origin), &op);
        }

        let mut subs = Vec::new();
        let mut attrs = attrs;
        if let Some(regions) = op.regions {
            let index = self.program.block(block).index as i32;
            let frames = self.regions(regions, index, &path())?;
            attrs = self.with_blocks(attrs, &frames)?;
            subs.extend(frames.into_iter().flatten());
        }
        let id = self.program.push_op(block, kind_sym, attrs, origin);
        if operands.len() > usize::from(u16::MAX) || results.len() >= usize::from(u16::MAX) {
            return Err(PirError::new(Kind::TooMany("operands")));
        }
        let mut in_place_list = Vec::new();
        for (i, operand) in operands.iter().enumerate() {
            let name = operand.map(|v| self.vals[v].name);
            let slot = self.slot(row.map(|r| r.inputs[i]), 'I', i);
            self.program.push_input(id, slot, name);
            if row.is_none() && kind_text.ends_with('_') {
                in_place_list.extend(name.and_then(|n| self.lists.get(&n)).into_iter().flatten().copied());
            }
        }
        let mut types = Vec::new();
        for (i, result) in results.iter().enumerate() {
            let (value, ty) = self.value_text(result, "%").map_err(|e| e.within(&format!(".O[{i}]")))?;
            let alias = row.and_then(|r| r.in_place.iter().find(|a| a.0 == i)).and_then(|a| *operands.get(a.1)?);
            let val = match alias {
                Some(v) => {
                    let old = self.vals[v];
                    if old.ty != ty {
                        types.push((i, ty));
                    }
                    // What is updated in place and has a name outlives the run.
                    if self.cells.get(&old.name).is_some_and(|c| c.var == old.var) {
                        let flags = &mut self.program.vars[old.var].flags;
                        *flags = flags.with(VarFlag::Persistable, Some(true));
                    }
                    Val { ty, op: id, index: i as u32, plain: false, ..old }
                }
                None => {
                    let name = self.value_name(value)?;
                    let var = self.declare(block, name, ty, origin);
                    Val { name, ty, var, op: id, index: i as u32, block, plain: true }
                }
            };
            let slot = self.slot(row.map(|r| r.outputs[i]), 'O', i);
            self.program.push_output(id, slot, [val.name]);
            self.define(value, val).map_err(|e| e.within(&format!(".O[{i}]")))?;
            if kind == "1.load_combine" {
                self.loaded = Some((id, text, value));
            }
            if kind_text == "builtin.combine" {
                let elements = operands.iter().flatten().map(|&v| self.vals[v].name).collect();
                self.lists.insert(val.name, elements);
            }
        }
        if !in_place_list.is_empty() {
            let slot = self.program.symbol(ELEMENTS);
            self.program.push_output(id, slot, in_place_list);
        }
        for (i, ty) in types {
            self.override_type(id, i, ty);
        }
        self.keep_more(id, &op.more);
        Ok(subs)
    }

    fn slot(&mut self, known: Option<&str>, letter: char, index: usize) -> Symbol {
        match known {
            Some(name) => self.program.symbol(name),
            None => self.program.symbol(&format!("{letter}{index}")),
        }
    }

    fn keep_more(&mut self, op: OpId, more: &[(&str, &str)]) {
        if !more.is_empty() {
            let list: Vec<String> = more.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
            let unknown = format!("{{{}}}", list.join(",")).into_bytes().into();
            self.program.set_extra(Entity::Op(op), Extra { unknown, verbatim: None });
        }
    }

    fn override_type(&mut self, op: OpId, index: usize, ty: &str) {
        let name = self.program.symbol(&format!("{TYPE}{index}"));
        let mut attrs = self.program.op(op).attrs().to_vec();
        attrs.push(Attr::new(name, AttrValue::str(ty)));
        let list = self.program.intern_attrs(attrs);
        self.program.ops[op].attrs = list;
    }

    fn operands(&self, text: &'t str) -> Result<Vec<Option<usize>>, PirError> {
        let mut out = Vec::new();
        for (i, item) in need(json::list(text), "a list").map_err(|e| e.within(".I"))?.enumerate() {
            let within = |e: PirError| e.within(&format!(".I[{i}]"));
            let id = item.strip_prefix("{\"%\":").and_then(|v| v.strip_suffix('}')).and_then(|v| v.parse::<i64>().ok());
            let id = need(id, "an operand `{\"%\": id}`").map_err(within)?;
            out.push(if id == 0 { None } else { Some(self.find(id).map_err(within)?) });
        }
        Ok(out)
    }

    fn attr_list(
        &mut self,
        kind: Symbol,
        row: Option<&'static Row>,
        attrs: &'t str,
        of_results: &'t str,
    ) -> Result<AttrListId, PirError> {
        if let Some(&list) = self.attrs.get(&(kind, attrs, of_results)) {
            return Ok(list);
        }
        let mut list = Vec::new();
        for (text, key, prefix) in [(attrs, ".A", ""), (of_results, ".OA", RESULT)] {
            for (i, item) in need(json::list(text), "a list").map_err(|e| e.within(key))?.enumerate() {
                let attr = self.attr(item, row.filter(|_| prefix.is_empty()), prefix);
                list.push(attr.map_err(|e| e.within(&format!("{key}[{i}]")))?);
            }
        }
        let id = self.program.intern_attrs(list);
        self.attrs.insert((kind, attrs, of_results), id);
        Ok(id)
    }

    fn attr(&mut self, item: &'t str, row: Option<&'static Row>, prefix: &str) -> Result<Attr, PirError> {
        let (mut name, mut at) = (None, None);
        for (key, value) in need(json::object(item), "an attribute")? {
            match key {
                "N" => once(&mut name, key, value)?,
                "AT" => once(&mut at, key, value)?,
                _ => return Err(PirError::new(Kind::Expected("an attribute of `N` and `AT` alone"))),
            }
        }
        let name = need(name.and_then(json::string), "a name `N`")?;
        let at = need(at, "a value `AT`")?;
        if prefix.is_empty() && [RESULT, TYPE, BLOCKS].iter().any(|p| name.starts_with(p)) {
            return Err(PirError::new(Kind::BadName(name.into_owned())));
        }
        let value = value::decode(&name, at);
        // One that passes give new ops is told from the file's own by its text.
        let own = name == "op_role" || name == "in_dtype";
        let raw = (own || value::encode(&name, &value).as_deref() != Some(at)).then(|| at.as_bytes().into());
        let renamed = row.and_then(|r| r.renames.iter().find(|(file, _)| *file == name)).map(|r| r.1);
        let name: Cow<'_, str> = match renamed {
            Some(ir) => Cow::Borrowed(ir),
            None => Cow::Owned(format!("{prefix}{name}")),
        };
        let name = self.program.symbol(&name);
        Ok(Attr { name, value, raw })
    }

    /// The list with the op's sub-blocks, and how many of them each region has if not one.
    fn with_blocks(&mut self, list: AttrListId, frames: &[Vec<Frame<'t>>]) -> Result<AttrListId, PirError> {
        let blocks = frames.iter().flatten().map(|f| self.program.block(f.block).index as i32).collect();
        let mut attrs = self.program.attr_list(list).to_vec();
        attrs.push(Attr::new(self.program.symbol(BLOCKS), AttrValue::Blocks(blocks)));
        if frames.iter().any(|f| f.len() != 1) {
            let counts = frames.iter().map(|f| f.len() as i32).collect();
            attrs.push(Attr::new(self.program.symbol(BLOCKS_OF), AttrValue::Ints(counts)));
        }
        Ok(self.program.intern_attrs(attrs))
    }

    /// Writes the names of cells over those of the values that turned out to be theirs.
    fn finish(self, first_arg: usize) {
        if self.renames.is_empty() {
            return;
        }
        let mut to: Vec<Name> = (0..self.program.names().len()).map(Name::from_index).collect();
        self.renames.iter().for_each(|(&from, &cell)| to[from.index()] = cell);
        self.program.args[first_arg..].iter_mut().for_each(|n| *n = to[n.index()]);
    }
}

/// Attributes of results have this before their names.
pub(super) const RESULT: &str = "oa:";
/// The type of a result that is not as its name is declared, with its place.
pub(super) const TYPE: &str = "tt:";
/// The sub-blocks of an op's regions, in order.
pub(super) const BLOCKS: &str = "regions";
/// How many of them each region has, when not one.
pub(super) const BLOCKS_OF: &str = "regions_of";
/// What an op of unknown kind may write through a list, as output slot.
pub(super) const ELEMENTS: &str = "Elements";
/// Before the kind of an op that renames a value at run time.
pub(super) const RENAME: &str = "rename:";

fn check_head(text: &str) -> Result<(), PirError> {
    let (mut magic, mut version) = (None, None);
    for (key, value) in need(json::object(text), "an object")? {
        match key {
            "magic" => once(&mut magic, key, value)?,
            "version" => once(&mut version, key, value)?,
            _ => {}
        }
    }
    if magic != Some("\"pir\"") {
        return Err(PirError::new(Kind::NotPir("its `magic` is not `pir`")));
    }
    match version {
        Some(VERSION) => Ok(()),
        other => Err(PirError::new(Kind::Version(other.unwrap_or("(none)").chars().take(20).collect()))),
    }
}
