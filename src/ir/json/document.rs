//! Which fields does the document have, and how do they become rows? Reading and writing share one set of structs.
//!
//! Writing streams: a block's rows are made one at a time from the pools, so that a large program
//! is never held twice.

use super::scalar::Hex;
use super::{FORMAT, JSON_VERSION, JsonError};
use crate::ir::{
    Attr, AttrValue, BlockId, DType, Entity, Extra, F32, F64, OpRef, Origin, Program, Scalar, Section, Slot, VarDef,
    VarFlag, VarFlags, VarId, VarKind,
};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

// ---- the fields

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    format: String,
    version: u64,
    #[serde(default)]
    startup: Option<SectionDoc>,
    #[serde(default)]
    main: Option<SectionDoc>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SectionDoc {
    #[serde(default)]
    version: Option<i64>,
    #[serde(default)]
    op_versions: Option<Hex>,
    #[serde(default)]
    unknown: Option<Hex>,
    #[serde(default)]
    verbatim: Option<Hex>,
    blocks: Vec<BlockDoc>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockDoc {
    parent: i32,
    #[serde(default)]
    forward: Option<i32>,
    #[serde(default)]
    unknown: Option<Hex>,
    #[serde(default)]
    verbatim: Option<Hex>,
    vars: Vec<VarDoc>,
    ops: Vec<OpDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VarDoc {
    name: String,
    kind: VarKind,
    dtype: DType,
    shape: Vec<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lod_level: Option<i32>,
    #[serde(default)]
    flags: FlagsDoc,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown: Option<Hex>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verbatim: Option<Hex>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FlagsDoc {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    persistable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    need_check_feed: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    is_parameter: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop_gradient: Option<bool>,
}

type SlotDoc = (String, Vec<String>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpDoc {
    kind: String,
    inputs: Vec<SlotDoc>,
    outputs: Vec<SlotDoc>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attrs: Vec<AttrDoc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    is_target: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown: Option<Hex>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verbatim: Option<Hex>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttrDoc {
    name: String,
    value: ValueDoc,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<Hex>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ValueDoc {
    Int(i32),
    Float(F32),
    String(Box<str>),
    Ints(Box<[i32]>),
    Floats(Box<[F32]>),
    Strings(Box<[Box<str>]>),
    Bool(bool),
    Bools(Box<[bool]>),
    Block(i32),
    Blocks(Box<[i32]>),
    Long(i64),
    Longs(Box<[i64]>),
    F64(F64),
    F64s(Box<[F64]>),
    Var(String),
    Vars(Vec<String>),
    Scalar(ScalarDoc),
    Scalars(Vec<ScalarDoc>),
    Unknown { tag: i32, raw: Hex },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScalarDoc {
    Bool(bool),
    Long(i64),
    F64(F64),
    C128(F64, F64),
}

// ---- writing

/// A whole program, as it is written.
#[derive(Serialize)]
pub(super) struct Written<'p> {
    format: &'static str,
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    startup: Option<SectionOut<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    main: Option<SectionOut<'p>>,
}

impl<'p> Written<'p> {
    pub(super) fn of(program: &'p Program) -> Self {
        let section = |section| (!program.is_blank(section)).then_some(SectionOut { program, section });
        Written {
            format: FORMAT,
            version: JSON_VERSION,
            startup: section(Section::Startup),
            main: section(Section::Main),
        }
    }
}

/// Rows that are made while they are written.
struct Rows<I>(I);

impl<T: Serialize, I: Iterator<Item = T> + Clone> Serialize for Rows<I> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(None)?;
        for row in self.0.clone() {
            seq.serialize_element(&row)?;
        }
        seq.end()
    }
}

fn extra_entries<M: SerializeMap>(map: &mut M, extra: Option<&Extra>) -> Result<(), M::Error> {
    let (unknown, verbatim) = extra_docs(extra);
    if let Some(unknown) = unknown {
        map.serialize_entry("unknown", &unknown)?;
    }
    if let Some(verbatim) = verbatim {
        map.serialize_entry("verbatim", &verbatim)?;
    }
    Ok(())
}

fn extra_docs(extra: Option<&Extra>) -> (Option<Hex>, Option<Hex>) {
    let unknown = extra.filter(|x| !x.unknown.is_empty()).map(|x| Hex(x.unknown.clone()));
    (unknown, extra.and_then(|x| x.verbatim.clone()).map(Hex))
}

#[derive(Clone, Copy)]
struct SectionOut<'p> {
    program: &'p Program,
    section: Section,
}

impl Serialize for SectionOut<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let SectionOut { program, section } = *self;
        let data = program.section(section);
        let mut map = s.serialize_map(None)?;
        if let Some(version) = data.version {
            map.serialize_entry("version", &version)?;
        }
        if let Some(bytes) = &data.op_versions {
            map.serialize_entry("op_versions", &Hex(bytes.clone()))?;
        }
        extra_entries(&mut map, program.extra(Entity::Section(section)))?;
        map.serialize_entry("blocks", &Rows(data.blocks.iter().map(|&block| BlockOut { program, block })))?;
        map.end()
    }
}

struct BlockOut<'p> {
    program: &'p Program,
    block: BlockId,
}

impl Serialize for BlockOut<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let BlockOut { program, block } = *self;
        let data = program.block(block);
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("parent", &data.parent)?;
        if let Some(forward) = data.forward {
            map.serialize_entry("forward", &forward)?;
        }
        extra_entries(&mut map, program.extra(Entity::Block(block)))?;
        map.serialize_entry("vars", &Rows(data.vars.iter().map(|&v| var_doc(program, v))))?;
        map.serialize_entry("ops", &Rows(data.ops.iter().map(|&op| op_doc(program, program.op(op)))))?;
        map.end()
    }
}

fn var_doc(program: &Program, id: VarId) -> VarDoc {
    let VarDef { name, kind, dtype, shape, lod_level, flags } = program.var_def(id);
    let (unknown, verbatim) = extra_docs(program.extra(Entity::Var(id)));
    VarDoc {
        name: program.name(name).to_owned(),
        kind,
        dtype,
        shape,
        lod_level,
        flags: FlagsDoc {
            persistable: flags.get(VarFlag::Persistable),
            need_check_feed: flags.get(VarFlag::NeedCheckFeed),
            is_parameter: flags.get(VarFlag::IsParameter),
            stop_gradient: flags.get(VarFlag::StopGradient),
        },
        unknown,
        verbatim,
    }
}

fn op_doc(program: &Program, op: OpRef<'_>) -> OpDoc {
    let slot = |s: Slot<'_>| {
        (program.sym(s.name).to_owned(), s.args.iter().map(|&a| program.name(a).to_owned()).collect::<Vec<_>>())
    };
    let (unknown, verbatim) = extra_docs(program.extra(Entity::Op(op.id)));
    OpDoc {
        kind: op.kind_str().to_owned(),
        inputs: op.inputs().map(slot).collect(),
        outputs: op.outputs().map(slot).collect(),
        attrs: op.attrs().iter().map(|a| attr_doc(program, a)).collect(),
        is_target: op.is_target(),
        unknown,
        verbatim,
    }
}

fn attr_doc(program: &Program, attr: &Attr) -> AttrDoc {
    let name = |n| program.name(n).to_owned();
    let value = match attr.value.clone() {
        AttrValue::Int(v) => ValueDoc::Int(v),
        AttrValue::Float(v) => ValueDoc::Float(v),
        AttrValue::String(v) => ValueDoc::String(v),
        AttrValue::Ints(v) => ValueDoc::Ints(v),
        AttrValue::Floats(v) => ValueDoc::Floats(v),
        AttrValue::Strings(v) => ValueDoc::Strings(v),
        AttrValue::Bool(v) => ValueDoc::Bool(v),
        AttrValue::Bools(v) => ValueDoc::Bools(v),
        AttrValue::Block(v) => ValueDoc::Block(v),
        AttrValue::Blocks(v) => ValueDoc::Blocks(v),
        AttrValue::Long(v) => ValueDoc::Long(v),
        AttrValue::Longs(v) => ValueDoc::Longs(v),
        AttrValue::F64(v) => ValueDoc::F64(v),
        AttrValue::F64s(v) => ValueDoc::F64s(v),
        AttrValue::Var(v) => ValueDoc::Var(name(v)),
        AttrValue::Vars(v) => ValueDoc::Vars(v.iter().map(|&n| name(n)).collect()),
        AttrValue::Scalar(v) => ValueDoc::Scalar(scalar_doc(v)),
        AttrValue::Scalars(v) => ValueDoc::Scalars(v.iter().map(|&v| scalar_doc(v)).collect()),
        AttrValue::Unknown { tag, raw } => ValueDoc::Unknown { tag, raw: Hex(raw) },
    };
    AttrDoc { name: program.sym(attr.name).to_owned(), value, raw: attr.raw.as_ref().map(|r| Hex((**r).into())) }
}

fn scalar_doc(v: Scalar) -> ScalarDoc {
    match v {
        Scalar::Bool(v) => ScalarDoc::Bool(v),
        Scalar::Long(v) => ScalarDoc::Long(v),
        Scalar::F64(v) => ScalarDoc::F64(v),
        Scalar::C128(re, im) => ScalarDoc::C128(re, im),
    }
}

// ---- reading

impl Document {
    pub(super) fn into_program(self) -> Result<Program, JsonError> {
        if self.format != FORMAT {
            return Err(JsonError::Format(self.format));
        }
        if self.version != u64::from(JSON_VERSION) {
            return Err(JsonError::Version(self.version));
        }
        let mut program = Program::new();
        for (section, doc) in [(Section::Startup, self.startup), (Section::Main, self.main)] {
            if let Some(doc) = doc {
                read_section(&mut program, section, doc)?;
            }
        }
        Ok(program)
    }
}

fn set_extra(program: &mut Program, entity: Entity, unknown: Option<Hex>, verbatim: Option<Hex>) {
    if unknown.is_some() || verbatim.is_some() {
        let unknown = unknown.map(|h| h.0).unwrap_or_default();
        program.set_extra(entity, Extra { unknown, verbatim: verbatim.map(|h| h.0) });
    }
}

fn read_section(program: &mut Program, section: Section, doc: SectionDoc) -> Result<(), JsonError> {
    program.set_section_info(section, doc.version, doc.op_versions.map(|h| h.0));
    set_extra(program, Entity::Section(section), doc.unknown, doc.verbatim);
    for (index, doc) in doc.blocks.into_iter().enumerate() {
        let block = program.push_block(section, doc.parent, doc.forward);
        set_extra(program, Entity::Block(block), doc.unknown, doc.verbatim);
        let place = |i: usize| Origin::File { block: index as u32, index: i as u32 };
        for (i, var) in doc.vars.into_iter().enumerate() {
            read_var(program, block, var, place(i));
        }
        for (i, op) in doc.ops.into_iter().enumerate() {
            read_op(program, block, op, place(i)).map_err(|what| JsonError::Value {
                section: section.as_str(),
                block: index,
                what: format!("op {i}: {what}"),
            })?;
        }
    }
    Ok(())
}

fn read_var(program: &mut Program, block: BlockId, doc: VarDoc, origin: Origin) {
    let flags = VarFlags::default()
        .with(VarFlag::Persistable, doc.flags.persistable)
        .with(VarFlag::NeedCheckFeed, doc.flags.need_check_feed)
        .with(VarFlag::IsParameter, doc.flags.is_parameter)
        .with(VarFlag::StopGradient, doc.flags.stop_gradient);
    let name = program.intern(&doc.name);
    let origin = program.push_origin(origin);
    let def = VarDef { name, kind: doc.kind, dtype: doc.dtype, shape: doc.shape, lod_level: doc.lod_level, flags };
    let id = program.push_var(block, &def, origin);
    set_extra(program, Entity::Var(id), doc.unknown, doc.verbatim);
}

fn read_op(program: &mut Program, block: BlockId, doc: OpDoc, origin: Origin) -> Result<(), String> {
    for (slots, which) in [(&doc.inputs, "input"), (&doc.outputs, "output")] {
        if slots.len() > usize::from(u16::MAX) {
            return Err(format!("{} {which} slots, at most {} are possible", slots.len(), u16::MAX));
        }
    }
    let kind = program.symbol(&doc.kind);
    let attrs = doc.attrs.into_iter().map(|a| read_attr(program, a)).collect();
    let attrs = program.intern_attrs(attrs);
    let origin = program.push_origin(origin);
    let id = program.push_op(block, kind, attrs, origin);
    program.set_is_target(id, doc.is_target);
    for (slot, args) in doc.inputs {
        let (slot, args) = (program.symbol(&slot), names(program, &args));
        program.push_input(id, slot, args);
    }
    for (slot, args) in doc.outputs {
        let (slot, args) = (program.symbol(&slot), names(program, &args));
        program.push_output(id, slot, args);
    }
    set_extra(program, Entity::Op(id), doc.unknown, doc.verbatim);
    Ok(())
}

fn names(program: &mut Program, args: &[String]) -> Vec<crate::names::Name> {
    args.iter().map(|a| program.intern(a)).collect()
}

fn read_attr(program: &mut Program, doc: AttrDoc) -> Attr {
    let value = match doc.value {
        ValueDoc::Int(v) => AttrValue::Int(v),
        ValueDoc::Float(v) => AttrValue::Float(v),
        ValueDoc::String(v) => AttrValue::String(v),
        ValueDoc::Ints(v) => AttrValue::Ints(v),
        ValueDoc::Floats(v) => AttrValue::Floats(v),
        ValueDoc::Strings(v) => AttrValue::Strings(v),
        ValueDoc::Bool(v) => AttrValue::Bool(v),
        ValueDoc::Bools(v) => AttrValue::Bools(v),
        ValueDoc::Block(v) => AttrValue::Block(v),
        ValueDoc::Blocks(v) => AttrValue::Blocks(v),
        ValueDoc::Long(v) => AttrValue::Long(v),
        ValueDoc::Longs(v) => AttrValue::Longs(v),
        ValueDoc::F64(v) => AttrValue::F64(v),
        ValueDoc::F64s(v) => AttrValue::F64s(v),
        ValueDoc::Var(v) => AttrValue::Var(program.intern(&v)),
        ValueDoc::Vars(v) => AttrValue::Vars(names(program, &v).into()),
        ValueDoc::Scalar(v) => AttrValue::Scalar(read_scalar(v)),
        ValueDoc::Scalars(v) => AttrValue::Scalars(v.into_iter().map(read_scalar).collect()),
        ValueDoc::Unknown { tag, raw } => AttrValue::Unknown { tag, raw: raw.0 },
    };
    Attr { name: program.symbol(&doc.name), value, raw: doc.raw.map(|h| h.0.into()) }
}

fn read_scalar(doc: ScalarDoc) -> Scalar {
    match doc {
        ScalarDoc::Bool(v) => Scalar::Bool(v),
        ScalarDoc::Long(v) => Scalar::Long(v),
        ScalarDoc::F64(v) => Scalar::F64(v),
        ScalarDoc::C128(re, im) => Scalar::C128(re, im),
    }
}
