//! How does a file become part of a program? Rows of the document are interned; each distinct list is decoded once.
//!
//! Real programs repeat themselves: most ops share the bytes of their attributes with others, most
//! declarations the bytes of their type. Both are looked up by those bytes first and decoded on a
//! miss only. What cannot be held goes to [`Extra`], by the rules in the [module docs](super).

use super::error::{ProtoError, ProtoErrorKind as Kind, Step};
use super::lazy::{BlockRow, Document, OpRow};
use super::schema::{block, program as prog, version};
use super::var::{self, DeclRef};
use super::wire::{Part, Reader, Value, put_bytes, put_int};
use super::{attr, memo};
use crate::ir::{
    AttrListId, BlockId, Entity, Extra, OpId, Origin, Program, Section, SectionData, SlotData, Span, VarData, VarFlags,
    VarKind,
};
use crate::names::{Name, Symbol};

/// Reads a ProgramDesc file into an empty section of a program.
///
/// # Errors
/// [`ProtoError`] with the byte and the message at fault. The section is empty again then; rows that
/// were made before the fault was found stay in the pools, in no section.
pub fn import(bytes: &[u8], section: Section, program: &mut Program) -> Result<(), ProtoError> {
    if program.section(section) != &SectionData::default() {
        return Err(ProtoError::new(Kind::Occupied, 0));
    }
    let doc = Document::decode(bytes)?;
    let result = Importer::new(&doc, section, program).run();
    if result.is_err() {
        program.sections[section as usize] = SectionData::default();
        program.set_extra(Entity::Section(section), Extra::default());
    }
    result
}

/// Reads a program from its files; a section without a file stays empty.
///
/// # Errors
/// As [`import`].
pub fn read_program(startup: Option<&[u8]>, main: Option<&[u8]>) -> Result<Program, ProtoError> {
    let mut program = Program::new();
    for (section, bytes) in [(Section::Startup, startup), (Section::Main, main)] {
        if let Some(bytes) = bytes {
            import(bytes, section, &mut program)?;
        }
    }
    Ok(program)
}

/// A declaration's bytes after its name, decoded.
struct Decoded {
    kind: VarKind,
    dtype: crate::ir::DType,
    shape: Span,
    lod_level: Option<i32>,
    flags: VarFlags,
    unknown: Box<[u8]>,
    verbatim: bool,
}

struct Importer<'d, 'p> {
    doc: &'d Document<'d>,
    file: &'d [u8],
    section: Section,
    program: &'p mut Program,
    symbols: memo::Memo<'d, Symbol>,
    attrs: memo::Memo<'d, AttrListId>,
    decls: memo::Memo<'d, u32>,
    decoded: Vec<Decoded>,
    /// names of all declarations of the document
    var_names: Vec<Name>,
    /// where the document's arguments begin in the program's pool
    first_arg: u32,
}

/// Names that are checked to be text before they are interned together.
const CHUNK: usize = 256;

impl<'d, 'p> Importer<'d, 'p> {
    fn new(doc: &'d Document<'d>, section: Section, program: &'p mut Program) -> Self {
        Importer {
            doc,
            file: doc.file,
            section,
            program,
            symbols: memo::Memo::new(),
            attrs: memo::Memo::new(),
            decls: memo::Memo::new(),
            decoded: Vec::new(),
            var_names: Vec::new(),
            first_arg: 0,
        }
    }

    fn run(mut self) -> Result<(), ProtoError> {
        let doc = self.doc;
        self.program.reserve(doc.ops.len(), doc.slots.len(), doc.args.len());
        self.var_names();
        self.args()?;
        for (i, b) in doc.blocks.iter().enumerate() {
            self.block(i, b).map_err(|e| e.within(Step::At("blocks", i)))?;
        }
        self.rest()
    }

    /// Version, op versions and unknown fields of the file.
    fn rest(self) -> Result<(), ProtoError> {
        let (mut version, mut op_versions, mut unknown) = (None, None, Vec::new());
        for f in &self.doc.rest {
            match (f.number, f.value) {
                (prog::VERSION, Value::Len(part)) => {
                    let mut again = Vec::new();
                    let value = version_of(self.file, part).map_err(|e| e.within(Step::In("version")))?;
                    if let Some(v) = value {
                        version = value;
                        put_int(&mut again, version::VERSION, v);
                    }
                    // Beyond the number, or without one: protobuf merges a message that comes twice.
                    if value.is_none() || again != part.of(self.file) {
                        unknown.extend_from_slice(f.whole.of(self.file));
                    }
                }
                (prog::OP_VERSION_MAP, Value::Len(part)) => {
                    op_versions.get_or_insert_with(Vec::new).extend_from_slice(part.of(self.file));
                }
                _ => unknown.extend_from_slice(f.whole.of(self.file)),
            }
        }
        self.program.set_section_info(self.section, version, op_versions.clone().map(Into::into));
        let mut again = Vec::new();
        put_rest(version, op_versions.as_deref(), &unknown, &mut again);
        let same = again.iter().eq(self.doc.rest.iter().flat_map(|f| f.whole.of(self.file)));
        let verbatim = (self.doc.verbatim || !same).then(|| self.file.into());
        if verbatim.is_some() || !unknown.is_empty() {
            self.program.set_extra(Entity::Section(self.section), Extra { unknown: unknown.into(), verbatim });
        }
        Ok(())
    }

    /// Interns the names of all declarations that begin with theirs.
    fn var_names(&mut self) {
        let (doc, file) = (self.doc, self.file);
        self.program.names.reserve(doc.vars.len());
        self.var_names.reserve(doc.vars.len());
        let text = |&message: &Part| {
            let (name, _) = super::lazy::leading_name(file, message)?;
            std::str::from_utf8(name.of(file)).ok()
        };
        let mut texts = Vec::with_capacity(CHUNK);
        for chunk in doc.vars.chunks(CHUNK) {
            texts.clear();
            // Another order of fields, or a fault: `var` sees to it.
            texts.extend(chunk.iter().map(|v| text(v).unwrap_or_default()));
            self.program.names.intern_all(&texts, &mut self.var_names);
        }
    }

    /// Interns all arguments: the pool of the document becomes the end of the program's.
    fn args(&mut self) -> Result<(), ProtoError> {
        let (doc, file) = (self.doc, self.file);
        self.first_arg = self.program.args.len() as u32;
        let mut texts = Vec::with_capacity(CHUNK);
        for (i, chunk) in doc.args.chunks(CHUNK).enumerate() {
            texts.clear();
            for (k, arg) in chunk.iter().enumerate() {
                let text = std::str::from_utf8(arg.of(file));
                texts.push(text.map_err(|_| doc.arg_error(i * CHUNK + k))?);
            }
            self.program.names.intern_all(&texts, &mut self.program.args);
        }
        Ok(())
    }

    fn block(&mut self, index: usize, b: &BlockRow) -> Result<(), ProtoError> {
        let doc = self.doc;
        let id = self.program.push_block(self.section, b.parent, b.forward);
        let mut unknown: Vec<u8> = b.unknown.iter().flat_map(|u| u.of(self.file)).copied().collect();
        let moved = i64::from(b.idx) != index as i64;
        if moved {
            // The last of two numbers counts.
            put_int(&mut unknown, block::IDX, i64::from(b.idx));
        }
        if b.verbatim || moved || !unknown.is_empty() {
            let verbatim = (b.verbatim || moved).then(|| b.raw.of(self.file).into());
            self.program.set_extra(Entity::Block(id), Extra { unknown: unknown.into(), verbatim });
        }
        for (i, &message) in doc.block_vars(b).iter().enumerate() {
            let origin = Origin::File { block: index as u32, index: i as u32 };
            self.var(id, message, self.var_names[b.vars.0 as usize + i], origin)
                .map_err(|e| e.within(Step::At("vars", i)))?;
        }
        for (i, row) in doc.block_ops(b).iter().enumerate() {
            let origin = Origin::File { block: index as u32, index: i as u32 };
            self.op(id, row, origin).map_err(|e| e.within(Step::At("ops", i)))?;
        }
        Ok(())
    }

    /// `name` is the declaration's, or the empty one when it does not begin with a name that is text.
    fn var(&mut self, block: BlockId, message: Part, name: Name, origin: Origin) -> Result<(), ProtoError> {
        // The name first, minimally framed: what follows it determines the rest.
        let named = super::lazy::leading_name(self.file, message);
        let (part, row) = match named.and_then(|(name, rest)| Some((name, self.decls.get(rest.of(self.file))?))) {
            Some(hit) => hit,
            None => {
                let (name, decl, unknown) = var::decode(self.file, message)?;
                let start = self.program.shapes.len();
                let mut again = Vec::with_capacity(message.len());
                DeclRef {
                    name: name.of(self.file),
                    kind: decl.kind,
                    dtype: decl.dtype,
                    shape: &decl.shape,
                    lod_level: decl.lod_level,
                    flags: decl.flags,
                }
                .put(&mut again);
                again.extend_from_slice(&unknown);
                self.program.shapes.extend_from_slice(&decl.shape);
                self.decoded.push(Decoded {
                    kind: decl.kind,
                    dtype: decl.dtype,
                    shape: Span { start: start as u32, len: decl.shape.len() as u32 },
                    lod_level: decl.lod_level,
                    flags: decl.flags,
                    unknown: unknown.into(),
                    verbatim: again != message.of(self.file),
                });
                let row = self.decoded.len() as u32 - 1;
                // Behind it may stand another name, which counts: then the rest determines nothing.
                if let Some((_, rest)) = named.filter(|&(leading, _)| leading == name) {
                    self.decls.insert(rest.of(self.file), row);
                }
                (name, row)
            }
        };
        let leading = named.is_some_and(|(leading, _)| leading == part);
        let whole = leading && self.program.name(name).len() == part.len();
        let name = if whole { name } else { self.name(part, "variable name")? };
        let origin = self.program.push_origin(origin);
        let d = &self.decoded[row as usize];
        let id = self.program.vars.push(VarData {
            name,
            block,
            origin,
            shape: d.shape,
            kind: d.kind,
            dtype: d.dtype,
            lod_level: d.lod_level,
            flags: d.flags,
        });
        self.program.blocks[block].vars.push(id);
        if d.verbatim || !d.unknown.is_empty() {
            let verbatim = d.verbatim.then(|| message.of(self.file).into());
            self.program.set_extra(Entity::Var(id), Extra { unknown: d.unknown.clone(), verbatim });
        }
        Ok(())
    }

    fn op(&mut self, block: BlockId, row: &OpRow, origin: Origin) -> Result<(), ProtoError> {
        let doc = self.doc;
        let kind = self.symbol(row.kind, "op type")?;
        let attrs = self.attr_list(row)?;
        let origin = self.program.push_origin(origin);
        let id = self.program.push_op(block, kind, attrs, origin);
        for (i, s) in doc.op_slots(row).iter().enumerate() {
            let name = self.symbol(s.name, "slot name").map_err(|e| e.within(row.slot_step(i)))?;
            self.program.slots.push(SlotData { name, start: self.first_arg + s.args, len: s.len });
        }
        let data = &mut self.program.ops[id];
        (data.inputs, data.outputs, data.is_target) = (row.inputs, row.outputs, row.is_target);
        if let Some(odd) = doc.odd_of(row) {
            self.odd(id, row, &odd.unknown, odd.verbatim);
        }
        Ok(())
    }

    fn odd(&mut self, id: OpId, row: &OpRow, unknown: &[Part], verbatim: bool) {
        let unknown: Vec<u8> = unknown.iter().flat_map(|u| u.of(self.file)).copied().collect();
        let verbatim = verbatim.then(|| row.raw.of(self.file).into());
        self.program.set_extra(Entity::Op(id), Extra { unknown: unknown.into(), verbatim });
    }

    fn attr_list(&mut self, row: &OpRow) -> Result<AttrListId, ProtoError> {
        let plain = self.doc.odd_of(row).is_none();
        let bytes = row.attrs.of(self.file);
        if plain && let Some(id) = self.attrs.get(bytes) {
            return Ok(id);
        }
        let mut list = Vec::new();
        for (i, part) in self.doc.attr_parts(row).into_iter().enumerate() {
            let attr = attr::decode(self.file, part, self.program);
            list.push(attr.map_err(|e| e.within(Step::At("attrs", i)))?);
        }
        let id = self.program.intern_attrs(list);
        if plain {
            self.attrs.insert(bytes, id);
        }
        Ok(id)
    }

    #[inline]
    fn name(&mut self, part: Part, what: &'static str) -> Result<Name, ProtoError> {
        match std::str::from_utf8(part.of(self.file)) {
            Ok(text) => Ok(self.program.intern(text)),
            Err(_) => Err(ProtoError::new(Kind::NotUtf8(what), part.start as usize)),
        }
    }

    #[inline]
    fn symbol(&mut self, part: Part, what: &'static str) -> Result<Symbol, ProtoError> {
        let program = &mut *self.program;
        self.symbols
            .find(part.of(self.file), |bytes| Some(program.symbol(std::str::from_utf8(bytes).ok()?)))
            .ok_or_else(|| ProtoError::new(Kind::NotUtf8(what), part.start as usize))
    }
}

fn version_of(file: &[u8], message: Part) -> Result<Option<i64>, ProtoError> {
    let mut version = None;
    let mut r = Reader::new(file, message);
    while let Some(f) = r.next()? {
        if let (version::VERSION, Value::Varint(v)) = (f.number, f.value) {
            version = Some(v as i64);
        }
    }
    Ok(version)
}

/// Writes what a file has beside its blocks.
pub(super) fn put_rest(version: Option<i64>, op_versions: Option<&[u8]>, unknown: &[u8], out: &mut Vec<u8>) {
    if let Some(v) = version {
        let mut message = Vec::new();
        put_int(&mut message, version::VERSION, v);
        put_bytes(out, prog::VERSION, &message);
    }
    if let Some(map) = op_versions {
        put_bytes(out, prog::OP_VERSION_MAP, map);
    }
    out.extend_from_slice(unknown);
}
