//! Does every ProgramDesc come back byte for byte, and does a bad one get an error with its place?

mod proto_tree;

use mastercast::ir::{At, Attr, AttrValue, DType, Edit, Entity, NewOp, Program, ProgramBuilder, Section, VarKind};
use mastercast::names::sym;
use mastercast::paddle::proto::{
    Document, MAX_GROUP_DEPTH, MAX_SLOTS, ProtoError, ProtoErrorKind as Bad, export, import, looks_like_program,
    read_program,
};
use proptest::prelude::*;
use proto_tree::{Body, Field, Kind, Message, varint};
use std::path::{Path, PathBuf};

fn data() -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto");
    let mut found = Vec::new();
    programs(&dir, &mut found);
    assert!(found.len() >= 10, "the files of {} are missing", dir.display());
    found.into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto").join(name)).unwrap()
}

fn programs(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            programs(&path, found);
        } else if path.extension().is_some_and(|e| e == "pb" || e == "pdmodel") {
            found.push(path);
        }
    }
    found.sort();
}

fn read(bytes: &[u8]) -> Result<Program, ProtoError> {
    read_program(None, Some(bytes))
}

/// Reads and writes by both ways; the bytes must be equal. Returns the program.
#[track_caller]
fn check(bytes: &[u8]) -> Result<Program, ProtoError> {
    if let Ok(doc) = Document::decode(bytes) {
        assert!(doc.encode() == bytes, "the document differs");
    }
    let program = read(bytes)?;
    assert!(export(&program, Section::Main) == bytes, "the export differs");
    Ok(program)
}

#[track_caller]
fn fails(bytes: &[u8], kind: Bad, path: &str) -> ProtoError {
    let error = match check(bytes) {
        Ok(_) => panic!("no error, expected {kind} at {path}"),
        Err(e) => e,
    };
    assert_eq!((error.kind(), error.path().as_str()), (kind, path), "{error}");
    assert!(error.offset() <= bytes.len());
    error
}

// ---- files

#[test]
fn files_come_back_byte_for_byte() {
    for (path, bytes) in data() {
        check(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(looks_like_program(&bytes), "{}", path.display());
        // A section does not matter, nor what the other one holds.
        let mut p = read_program(Some(&file("fc_norm.pb")), None).unwrap();
        import(&bytes, Section::Main, &mut p).unwrap();
        assert!(export(&p, Section::Main) == bytes && export(&p, Section::Startup) == file("fc_norm.pb"));
    }
}

/// Set MASTERCAST_CORPUS to a directory to check every `.pb` and `.pdmodel` file below it.
#[test]
fn a_corpus_comes_back_byte_for_byte() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let mut found = Vec::new();
    programs(Path::new(&dir), &mut found);
    assert!(!found.is_empty());
    let (mut bytes_read, mut kept) = (0, 0);
    for path in &found {
        let bytes = std::fs::read(path).unwrap();
        let p = check(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        bytes_read += bytes.len();
        kept += p.extras().count()
            + p.section_blocks(Section::Main)
                .flat_map(|b| p.ops(b))
                .filter(|o| o.attrs().iter().any(|a| a.raw.is_some()))
                .count();
    }
    eprintln!("{} files, {bytes_read} bytes, equal; {kept} entities with bytes beside the IR", found.len());
}

#[test]
fn real_files_need_no_bytes_beside_the_ir() {
    for (path, bytes) in data().into_iter().filter(|(p, _)| !p.ends_with("unknown.pb") && !p.ends_with("kinds.pb")) {
        let p = read(&bytes).unwrap();
        assert_eq!(p.extras().count(), 0, "{}", path.display());
        for op in p.section_blocks(Section::Main).flat_map(|b| p.ops(b)) {
            assert!(op.attrs().iter().all(|a| a.raw.is_none()), "{}: {op:?}", path.display());
        }
    }
}

#[test]
fn every_kind_of_attribute_is_encoded_as_protobuf_does() {
    let p = read(&file("kinds.pb")).unwrap();
    let op = p.ops(p.global_block(Section::Main).unwrap()).next().unwrap();
    for a in op.attrs() {
        assert!(a.raw.is_none(), "{}: {:?}", p.sym(a.name), a.value);
        assert!(!matches!(a.value, AttrValue::Unknown { .. }), "{}", p.sym(a.name));
    }
    let value = |name: &str| op.attr(p.symbols().lookup(name).unwrap()).unwrap().clone();
    assert_eq!(value("int_6"), AttrValue::Int(i32::MIN));
    assert_eq!(value("block_2"), AttrValue::Block(-1));
    assert_eq!(value("long_8"), AttrValue::Long(i64::MIN));
    assert_eq!(value("double_7"), AttrValue::F64(5e-324.into()));
    assert_eq!(value("bools_all"), AttrValue::Bools([true, false].into()));
    assert_eq!(value("ints_none"), AttrValue::Ints([].into()));
    assert!(matches!(value("scalars_all"), AttrValue::Scalars(s) if s.len() == 4));
    let targets: Vec<_> = p.ops(p.global_block(Section::Main).unwrap()).skip(1).map(|o| o.is_target()).collect();
    assert_eq!(targets, [Some(false), Some(true)]);
    // Only what the IR has no room for is kept: readers, tuples and the like, and their declarations' attributes.
    let kept: Vec<_> = p
        .extras()
        .map(|(e, x)| match e {
            Entity::Var(v) => (p.name(p.var(v).name), x.verbatim.is_some()),
            e => panic!("{e:?}"),
        })
        .collect();
    let beyond =
        ["READER", "TUPLE", "STRING", "STRINGS", "VOCAB", "SPARSE_COO", "SPARSE_CSR"].map(|k| format!("kind_{k}"));
    assert_eq!(kept.len(), beyond.len() + 1);
    assert!(beyond.iter().all(|b| kept.contains(&(b.as_str(), true))));
    assert!(kept.contains(&("with_attrs", false)));
}

#[test]
fn a_program_reads_as_what_it_says() {
    let p = read(&file("while_loop.train.O2.fp16.pb")).unwrap();
    let global = p.global_block(Section::Main).unwrap();
    let while_op = p.ops(global).find(|o| o.kind() == sym::WHILE).expect("a while op");
    assert!(while_op.has_sub_blocks() && while_op.sub_blocks().count() == 1);
    let sub = while_op.sub_blocks().next().unwrap();
    assert_eq!(p.parent(sub), Some(global));
    assert!(p.ops(sub).len() > 0);
    let low = p.block(global).vars.iter().filter(|&&v| p.var(v).is_parameter() && p.var(v).dtype == DType::F16);
    assert!(low.count() > 0);
    let p = read(&file("mlp.fwd.fp32.raw.pb")).unwrap();
    let op = p.ops(p.global_block(Section::Main).unwrap()).next().unwrap();
    assert!(op.attr(sym::OP_CALLSTACK).unwrap().as_strs().unwrap().len() > 2);
    assert_eq!(p.origin(op.origin()), mastercast::ir::Origin::File { block: 0, index: 0 });
    // Absent differs from zero and false.
    let var = |n: &str| {
        let p = read(&file("kinds.pb")).unwrap();
        let n = p.names().lookup(n).unwrap();
        p.block(p.global_block(Section::Main).unwrap())
            .vars
            .iter()
            .map(|&v| p.var_def(v))
            .find(|v| v.name == n)
            .unwrap()
    };
    assert_eq!(var("kind_LOD_TENSOR_ARRAY").lod_level, None);
    assert_eq!(var("kind_LOD_TENSOR").lod_level, Some(2));
    assert_eq!(var("kind_LOD_TENSOR").shape, [-1, 3, 1 << 40]);
    assert_eq!(var("kind_SELECTED_ROWS").dtype, DType::F64);
    assert_eq!(var("no_tensor").kind, VarKind::LOD_TENSOR);
    assert_eq!(format!("{:?}", var("flags_5").flags), "{Persistable: true, NeedCheckFeed: false}");
}

#[test]
fn empty_sections_and_messages() {
    assert_eq!(export(&Program::new(), Section::Main), b"");
    let p = check(b"").unwrap();
    assert_eq!(p.global_block(Section::Main), None);
    assert!(!looks_like_program(b""));
    let mut p = read(&file("fc_norm.pb")).unwrap();
    assert_eq!(export(&p, Section::Startup), b"");
    let e = import(b"", Section::Main, &mut p).unwrap_err();
    assert_eq!(e.kind(), Bad::Occupied);
}

#[test]
fn a_built_program_is_written_as_protobuf_writes_it() {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Main);
    s.param("w", DType::BF16, [4, -1]);
    s.op("cast").arg("X", ["w"]).out("Out", ["m"]).attr("in_dtype", DType::BF16).done();
    let bytes = export(&b.finish(), Section::Main);
    // Written by Python's protobuf for the same messages.
    let expected: &[u8] = b"\x0A\x59\x08\x00\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\
        \x1A\x20\x0A\x01w\x12\x17\x08\x07\x1A\x13\x0A\x0F\x08\x16\x10\x04\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\x10\x00\x18\x01\x28\x01\
        \x22\x28\x0A\x06\x0A\x01X\x12\x01w\x12\x08\x0A\x03Out\x12\x01m\x1A\x04cast\x22\x0E\x0A\x08in_dtype\x10\x00\x18\x16";
    assert_eq!(bytes, expected);
    check(&bytes).unwrap();
}

// ---- unknown fields and edits

#[test]
fn unknown_fields_survive_edits_of_their_entity() {
    let bytes = file("unknown.pb");
    let mut p = check(&bytes).unwrap();
    let b = p.global_block(Section::Main).unwrap();
    let (op, var) = (p.block(b).ops[1], p.block(b).vars[0]);
    let tensor = *p.block(b).vars.iter().find(|&&v| p.name(p.var(v).name) == "kind_LOD_TENSOR").unwrap();
    for e in [Entity::Section(Section::Main), Entity::Block(b), Entity::Op(op), Entity::Var(var), Entity::Var(tensor)] {
        assert!(!p.extra(e).unwrap().unknown.is_empty(), "{e:?}");
    }
    let mut e = Edit::new();
    e.set_attr(op, Attr::new(sym::OP_ROLE, 1), "test");
    e.set_dtype(tensor, DType::F32, "test");
    e.commit(&mut p, "test");
    let edited = export(&p, Section::Main);
    let again = check(&edited).unwrap();
    let b = again.global_block(Section::Main).unwrap();
    let tensor = *again.block(b).vars.iter().find(|&&v| again.name(again.var(v).name) == "kind_LOD_TENSOR").unwrap();
    assert_eq!(again.var(tensor).dtype, DType::F32);
    // The unknown fields of the op, the declaration, its type, its tensor and the tensor's description.
    let mark = b"\xC2\x3E\x02hi";
    let count = |bytes: &[u8]| bytes.windows(mark.len()).filter(|w| w == mark).count();
    assert_eq!(count(&edited), count(&bytes));
    assert_eq!(again.op(again.block(b).ops[1]).attr(sym::OP_ROLE), Some(&AttrValue::Int(1)));
}

#[test]
fn an_edit_drops_only_the_bytes_that_it_contradicts() {
    let bytes = file("fc_norm.pb");
    let mut m = Message::parse(Kind::Program, &bytes);
    // An op with its type first, a block with its parent first.
    m.first(Kind::Op).fields.reverse();
    m.first(Kind::Block).fields.swap(0, 1);
    let bytes = m.encode();
    let mut p = check(&bytes).unwrap();
    let b = p.global_block(Section::Main).unwrap();
    let (first, last) = (p.block(b).ops[0], *p.block(b).ops.last().unwrap());
    let mut e = Edit::new();
    e.insert(At::After(last), NewOp::new(sym::ASSIGN), "test");
    e.commit(&mut p, "test");
    assert!(p.extra(Entity::Op(first)).unwrap().verbatim.is_some());
    assert!(p.extra(Entity::Block(b)).is_none());
    let edited = export(&p, Section::Main);
    let again = check(&edited).unwrap();
    assert_eq!(format!("{again:?}"), format!("{p:?}"));
    let mut e = Edit::new();
    e.set_attr(first, Attr::new(sym::OP_ROLE, 1), "test");
    e.commit(&mut p, "test");
    assert!(p.extra(Entity::Op(first)).is_none());
    let again = check(&export(&p, Section::Main)).unwrap();
    assert_eq!(format!("{again:?}"), format!("{p:?}"));
}

#[test]
fn a_block_keeps_an_index_that_is_not_its_position() {
    let mut m = Message::parse(Kind::Program, &file("fc_norm.pb"));
    m.first(Kind::Block).fields[0] = Field::int(1, 7);
    let mut p = check(&m.encode()).unwrap();
    let b = p.global_block(Section::Main).unwrap();
    let mut e = Edit::new();
    e.remove(p.block(b).ops[0], "test");
    e.commit(&mut p, "test");
    let again = Message::parse(Kind::Program, &export(&p, Section::Main));
    let Body::Message(block) = &again.fields[0].body else { panic!() };
    let idx = block.fields.iter().rfind(|f| f.number == 1).unwrap();
    assert!(matches!(&idx.body, Body::Bytes(b) if b == &[7]));
}

#[test]
fn attributes_that_no_kind_holds_survive_as_bytes() {
    let attr = |fields: Vec<Field>| {
        let mut m = Message::parse(Kind::Program, &file("fc_norm.pb"));
        *m.first(Kind::Attr) = Message::new(Kind::Attr, fields);
        let p = check(&m.encode()).unwrap();
        let op = p.ops(p.global_block(Section::Main).unwrap()).next().unwrap();
        op.attrs()[0].clone()
    };
    let name = || Field::bytes(1, "a");
    // A kind of a later Paddle.
    let a = attr(vec![name(), Field::int(2, 99), Field::bytes(40, "new")]);
    assert!(matches!(a.value, AttrValue::Unknown { tag: 99, ref raw } if raw.ends_with(b"new")) && a.raw.is_none());
    // A string that is not UTF-8, alone and in a list.
    let a = attr(vec![name(), Field::int(2, 2), Field::bytes(5, [0xFF])]);
    assert!(matches!(a.value, AttrValue::Unknown { tag: 2, .. }) && a.raw.is_none());
    let a = attr(vec![name(), Field::int(2, 5), Field::bytes(8, "ok"), Field::bytes(8, [0xC0])]);
    assert!(matches!(a.value, AttrValue::Unknown { tag: 5, .. }) && a.raw.is_none());
    // A known kind with an unknown field: the value and the bytes.
    let a = attr(vec![name(), Field::int(2, 0), Field::int(3, 4), Field::int(50, 1)]);
    assert!(a.value == AttrValue::Int(4) && a.raw.is_some());
    // The value absent is the default; packed lists are read.
    let a = attr(vec![name(), Field::int(2, 0)]);
    assert!(a.value == AttrValue::Int(0) && a.raw.is_some());
    let a = attr(vec![name(), Field::int(2, 3), Field::bytes(6, [1, 2, 0x80, 1])]);
    assert!(a.value == AttrValue::Ints([1, 2, 128].into()) && a.raw.is_some());
    // A scalar of an unknown type.
    let s = Message::new(Kind::Scalar, vec![Field::int(1, 9)]);
    let a = attr(vec![name(), Field::int(2, 16), Field::message(20, s)]);
    assert!(matches!(a.value, AttrValue::Unknown { tag: 16, .. }) && a.raw.is_none());
    // Two values of a singular field: the last counts.
    let a = attr(vec![name(), Field::int(2, 0), Field::int(3, 4), Field::int(3, 5)]);
    assert!(a.value == AttrValue::Int(5) && a.raw.is_some());
}

// ---- the attack list of the module docs, a test a line

/// `fc_norm.pb` with one message of a kind replaced by what `f` makes of it.
fn with(kind: Kind, f: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut m = Message::parse(Kind::Program, &file("fc_norm.pb"));
    f(m.first(kind));
    m.encode()
}

#[test]
fn attack_cut_file() {
    let bytes = file("mlp.jit.pdmodel");
    for end in 1..bytes.len() {
        // A cut between top-level fields leaves a file; all others are errors.
        match check(&bytes[..end]) {
            Ok(p) => assert!(p.section_blocks(Section::Main).count() <= 1),
            Err(e) => assert!(e.offset() <= end),
        }
    }
    fails(&bytes[..100], Bad::Cut, "");
}

#[test]
fn attack_lying_length() {
    // Longer than the file, longer than its message but not the file, and near the top of 64 bits.
    fails(b"\x0A\x05\x08\x00", Bad::Cut, "");
    let inside = with(Kind::Slot, |_| {}).replace_first(b"\x0A\x01X", b"\x0A\x7FX");
    fails(&inside, Bad::Cut, "blocks[0].ops[0].inputs[0]");
    fails(b"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", Bad::Cut, "");
    fails(b"\x0A\xFF\xFF\xFF\xFF\x0F", Bad::Cut, "");
}

#[test]
fn attack_long_varint() {
    fails(b"\x0A\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", Bad::VarintTooLong, "");
    fails(b"\x20\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02", Bad::VarintTooLong, "");
    let long = |m: &mut Message| m.fields[0].body = Body::Bytes(vec![0xFF; 11]);
    fails(&with(Kind::Block, long), Bad::VarintTooLong, "blocks[0]");
}

#[test]
fn attack_padded_varints() {
    // A longer varint than needed is legal protobuf: it is read, and comes back as long.
    for kind in [Kind::Block, Kind::Var, Kind::VarType, Kind::LodTensor, Kind::Tensor, Kind::Op, Kind::Slot, Kind::Attr]
    {
        for pad in [(1, 0), (0, 1), (3, 4)] {
            let bytes = with(kind, |m| {
                m.fields[0].pad = pad;
                if let (0, Body::Bytes(b)) = (m.fields[0].wire, &mut m.fields[0].body) {
                    let last = b.pop().unwrap();
                    b.extend([last | 0x80, 0x00]);
                }
            });
            check(&bytes).unwrap();
        }
    }
}

#[test]
fn attack_nested_groups() {
    let nest = |n: usize| [vec![0x6B; n], vec![0x6C; n]].concat();
    check(&nest(MAX_GROUP_DEPTH)).unwrap();
    fails(&nest(MAX_GROUP_DEPTH + 1), Bad::GroupDepth, "");
    fails(&vec![0x6B; 1_000_000], Bad::GroupDepth, "");
    fails(&[0x6B], Bad::Cut, "");
    fails(&[0x6C], Bad::EndGroup, "");
    fails(&[0x6B, 0x74], Bad::EndGroup, "");
    let bytes = with(Kind::Op, |m| {
        m.fields.push(Field { number: 13, wire: 3, body: Body::Bytes(vec![0x08, 0x01, 0x6C]), pad: (0, 0) });
    });
    let p = check(&bytes).unwrap();
    assert_eq!(p.extras().count(), 1);
}

#[test]
fn attack_field_numbers() {
    fails(&[0x00], Bad::FieldNumber, "");
    fails(&[0x02, 0x00], Bad::FieldNumber, "");
    fails(&[0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 0x00], Bad::FieldNumber, "");
    fails(&with(Kind::Op, |m| m.fields.push(Field::int(0, 1))), Bad::FieldNumber, "blocks[0].ops[0]");
    check(&[0xF8, 0xFF, 0xFF, 0xFF, 0x0F, 0x00]).unwrap();
}

#[test]
fn attack_wire_types() {
    fails(&[0x0E], Bad::WireType(6), "");
    fails(&[0x0F], Bad::WireType(7), "");
    // A known field of another wire type is an unknown field, as in protobuf.
    let bytes = with(Kind::Op, |m| {
        for number in 1..=4 {
            m.fields.push(Field::int(number, 300));
        }
        m.fields.push(Field::bytes(5, "?"));
    });
    let p = check(&bytes).unwrap();
    assert_eq!(p.extras().count(), 1);
    for kind in [Kind::Block, Kind::Var, Kind::VarType, Kind::LodTensor, Kind::Tensor, Kind::Attr, Kind::Slot] {
        check(&with(kind, |m| {
            for number in 1..=25 {
                m.fields.push(Field { number, wire: 1, body: Body::Bytes(vec![9; 8]), pad: (0, 0) });
            }
        }))
        .unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    }
}

#[test]
fn attack_duplicate_fields() {
    for kind in [Kind::Block, Kind::Var, Kind::VarType, Kind::LodTensor, Kind::Tensor, Kind::Op, Kind::Slot, Kind::Attr]
    {
        check(&with(kind, |m| m.fields.extend_from_within(..))).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    }
    // Two version messages, an empty one, one with an unknown field, and two maps, which are one when read.
    let v = |fields: Vec<Field>| Field::message(4, Message::new(Kind::Version, fields));
    let m = Message::new(
        Kind::Program,
        vec![
            v(vec![Field::int(1, 3)]),
            v(vec![]),
            v(vec![Field::int(1, 4), Field::int(9, 9)]),
            Field::bytes(5, "\x0A\x01a"),
            Field::bytes(5, "\x0A\x01b"),
        ],
    );
    let p = check(&m.encode()).unwrap();
    assert_eq!(p.section(Section::Main).version, Some(4));
    assert_eq!(p.section(Section::Main).op_versions.as_deref(), Some(&b"\x0A\x01a\x0A\x01b"[..]));
}

#[test]
fn attack_missing_fields() {
    let drop = |kind, number: u32| with(kind, |m| m.fields.retain(|f| f.number != number));
    fails(&drop(Kind::Block, 1), Bad::Missing("idx"), "blocks[0]");
    fails(&drop(Kind::Block, 2), Bad::Missing("parent_idx"), "blocks[0]");
    fails(&drop(Kind::Var, 1), Bad::Missing("name"), "blocks[0].vars[0]");
    fails(&drop(Kind::Var, 2), Bad::Missing("type"), "blocks[0].vars[0]");
    fails(&drop(Kind::VarType, 1), Bad::Missing("type"), "blocks[0].vars[0]");
    fails(&drop(Kind::LodTensor, 1), Bad::Missing("tensor"), "blocks[0].vars[0]");
    fails(&drop(Kind::Tensor, 1), Bad::Missing("data_type"), "blocks[0].vars[0]");
    fails(&drop(Kind::Op, 3), Bad::Missing("type"), "blocks[0].ops[0]");
    fails(&drop(Kind::Slot, 1), Bad::Missing("parameter"), "blocks[0].ops[0].inputs[0]");
    fails(&drop(Kind::Attr, 1), Bad::Missing("name"), "blocks[0].ops[0].attrs[0]");
    fails(&drop(Kind::Attr, 2), Bad::Missing("type"), "blocks[0].ops[0].attrs[0]");
    fails(b"\x0A\x00", Bad::Missing("idx"), "blocks[0]");
}

#[test]
fn attack_names_that_are_not_utf8() {
    let bad = |kind, number: u32| {
        with(kind, |m| {
            m.fields.iter_mut().filter(|f| f.number == number).for_each(|f| f.body = Body::Bytes(vec![b'a', 0xFF]))
        })
    };
    fails(&bad(Kind::Var, 1), Bad::NotUtf8("variable name"), "blocks[0].vars[0]");
    fails(&bad(Kind::Op, 3), Bad::NotUtf8("op type"), "blocks[0].ops[0]");
    fails(&bad(Kind::Slot, 1), Bad::NotUtf8("slot name"), "blocks[0].ops[0].inputs[0]");
    let e = fails(&bad(Kind::Slot, 2), Bad::NotUtf8("argument"), "blocks[0].ops[0].inputs[0]");
    assert!(e.to_string().starts_with("blocks[0].ops[0].inputs[0] (byte "), "{e}");
    fails(&bad(Kind::Attr, 1), Bad::NotUtf8("attribute name"), "blocks[0].ops[0].attrs[0]");
}

#[test]
fn attack_many_slots_and_rows() {
    let slots = |n: usize| {
        with(Kind::Op, |m| {
            let slot = m.fields[0].clone();
            m.fields.splice(0..0, std::iter::repeat_n(slot, n - 2));
        })
    };
    check(&slots(MAX_SLOTS)).unwrap();
    fails(&slots(MAX_SLOTS + 1), Bad::TooManySlots, "blocks[0].ops[0]");
    // The smallest messages that are rows: a million blocks of four bytes.
    let p = check(&b"\x0A\x04\x08\x00\x10\x00".repeat(100_000)).unwrap();
    assert_eq!(p.section_blocks(Section::Main).count(), 100_000);
    let ops = b"\x22\x02\x1A\x00".repeat(100_000);
    let mut block = b"\x08\x00\x10\x00".to_vec();
    block.extend(ops);
    let mut bytes = Vec::new();
    Field::bytes(1, block).encode(&mut bytes);
    assert_eq!(check(&bytes).unwrap().op_rows(), 100_000);
}

#[test]
fn attack_packed_lists_that_lie() {
    let attr = |field: Field, kind| {
        with(Kind::Attr, |m| {
            *m = Message::new(Kind::Attr, vec![Field::bytes(1, "a"), Field::int(2, kind), field]);
        })
    };
    fails(&attr(Field::bytes(6, [0x80]), 3), Bad::Cut, "blocks[0].ops[0].attrs[0]");
    fails(&attr(Field::bytes(7, [0; 6]), 4), Bad::Cut, "blocks[0].ops[0].attrs[0]");
    fails(&attr(Field::bytes(16, [0; 9]), 12), Bad::Cut, "blocks[0].ops[0].attrs[0]");
    fails(&with(Kind::Tensor, |m| m.fields.push(Field::bytes(2, [0xFF; 12]))), Bad::VarintTooLong, "blocks[0].vars[0]");
}

#[test]
fn attack_odd_indices() {
    // Blocks that are their own parents or name blocks that are not there: the verifier's matter, not the reader's.
    let p = check(b"\x0A\x04\x08\x00\x10\x00\x0A\x06\x08\x05\x10\x63\x28\x07").unwrap();
    let blocks: Vec<_> = p.section_blocks(Section::Main).map(|b| p.block(b).clone()).collect();
    assert_eq!((blocks[1].index, blocks[1].parent, blocks[1].forward), (1, 99, Some(7)));
    check(b"\x0A\x0D\x08\x00\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01").unwrap();
    // -1 in five bytes: read as protobuf reads it, kept as it was.
    let p = check(b"\x0A\x08\x08\x00\x10\xFF\xFF\xFF\xFF\x0F").unwrap();
    assert_eq!(p.block(p.global_block(Section::Main).unwrap()).parent, -1);
}

#[test]
fn attack_not_a_program() {
    for text in [
        "",
        "\n",
        "program {\n  main {\n",
        "\n\n\"text\"",
        "{\"base_code\": {\"magic\": \"pir\"}}",
        "\"\"\n(x)",
        "*\n\n",
    ] {
        assert!(!looks_like_program(text.as_bytes()), "{text:?}");
    }
    assert!(!looks_like_program(b"\x80\x04\x95"), "a pickle");
    assert!(!looks_like_program(b"\x00\x00\x00\x00\x00\x00\x00\x00"), "a tensor stream");
    assert!(looks_like_program(&file("fc_norm.pb")[..40]), "a cut program");
}

#[test]
fn a_failed_import_leaves_the_section_empty() {
    let mut p = read_program(Some(&file("fc_norm.pb")), None).unwrap();
    let bad = with(Kind::Attr, |m| m.fields.retain(|f| f.number != 2));
    import(&bad, Section::Main, &mut p).unwrap_err();
    assert_eq!(export(&p, Section::Main), b"");
    assert_eq!(export(&p, Section::Startup), file("fc_norm.pb"));
    import(&file("kinds.pb"), Section::Main, &mut p).unwrap();
    assert_eq!(export(&p, Section::Main), file("kinds.pb"));
}

trait ReplaceFirst {
    fn replace_first(self, from: &[u8], to: &[u8]) -> Vec<u8>;
}

impl ReplaceFirst for Vec<u8> {
    fn replace_first(mut self, from: &[u8], to: &[u8]) -> Vec<u8> {
        let at = self.windows(from.len()).position(|w| w == from).expect("the bytes to replace");
        self.splice(at..at + from.len(), to.iter().copied());
        self
    }
}

// ---- properties

/// One change to raw bytes.
#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Flip(usize, u8),
    Splice { from: usize, len: usize, to: usize, replace: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<usize>(), 0..300usize, any::<usize>(), 0..300usize)
            .prop_map(|(from, len, to, replace)| Damage::Splice { from, len, to, replace }),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let n = bytes.len();
    match *damage {
        Damage::Cut(at) => bytes.truncate(at % n),
        Damage::Flip(at, bit) => bytes[at % n] ^= 1 << bit,
        Damage::Splice { from, len, to, replace } => {
            let from = from % n;
            let piece = bytes[from..(from + len).min(n)].to_vec();
            let to = to % n;
            bytes.splice(to..(to + replace).min(n), piece);
        }
    }
}

/// One change to the fields of a message that leaves it well formed.
#[derive(Clone, Debug)]
enum Twist {
    Reverse,
    Rotate(usize),
    Duplicate(usize),
    Remove(usize),
    Pad(usize, usize, usize),
    Insert(usize, u32, u64),
    InsertBytes(usize, u32, Vec<u8>),
    WrongWire(usize),
}

fn twist() -> impl Strategy<Value = Twist> {
    let at = any::<usize>;
    prop_oneof![
        Just(Twist::Reverse),
        at().prop_map(Twist::Rotate),
        at().prop_map(Twist::Duplicate),
        at().prop_map(Twist::Remove),
        (at(), 0..3usize, 0..3usize).prop_map(|(i, t, l)| Twist::Pad(i, t, l)),
        (at(), 1..25u32, any::<u64>()).prop_map(|(i, n, v)| Twist::Insert(i, n, v)),
        (at(), 1..25u32, prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(i, n, v)| Twist::InsertBytes(i, n, v)),
        at().prop_map(Twist::WrongWire),
    ]
}

fn turn(m: &mut Message, twist: &Twist) {
    let n = m.fields.len().max(1);
    match *twist {
        Twist::Reverse => m.fields.reverse(),
        Twist::Insert(at, number, value) => m.fields.insert(at % (m.fields.len() + 1), Field::int(number, value)),
        Twist::InsertBytes(at, number, ref v) => {
            m.fields.insert(at % (m.fields.len() + 1), Field::bytes(number, v.clone()));
        }
        _ if m.fields.is_empty() => {}
        Twist::Rotate(by) => m.fields.rotate_left(by % n),
        Twist::Duplicate(at) => m.fields.insert(at % n, m.fields[at / 2 % n].clone()),
        Twist::Remove(at) => drop(m.fields.remove(at % n)),
        Twist::Pad(at, tag, len) => m.fields[at % n].pad = (tag, len),
        Twist::WrongWire(at) => {
            let f = &mut m.fields[at % n];
            (f.wire, f.body) = (5, Body::Bytes(vec![1, 2, 3, 4]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_fail_or_come_back(which in any::<usize>(), changes in prop::collection::vec(damage(), 1..4)) {
        let files = data();
        let mut bytes = files[which % files.len()].1.clone();
        for c in &changes {
            apply(&mut bytes, c);
        }
        let _ = looks_like_program(&bytes);
        let _ = check(&bytes);
    }

    #[test]
    fn twisted_files_fail_or_come_back(
        which in 0..4usize,
        changes in prop::collection::vec((any::<usize>(), twist()), 1..6),
    ) {
        let name = ["fc_norm.pb", "kinds.pb", "mlp.jit.pdmodel", "while_loop.startup.train.O2.fp16.pb"][which];
        let mut m = Message::parse(Kind::Program, &file(name));
        for (at, change) in &changes {
            let mut n = at % m.count();
            if let Some(m) = m.nth(&mut n) {
                turn(m, change);
            }
        }
        let bytes = m.encode();
        if let Ok(mut p) = check(&bytes) {
            // An edit drops kept bytes; what is written then must still be a file that comes back, and say the same.
            if let Some(b) = p.global_block(Section::Main) {
                let mut e = Edit::new();
                e.insert(At::Start(b), NewOp::new(sym::ASSIGN), "test");
                e.commit(&mut p, "test");
                let again = check(&export(&p, Section::Main)).unwrap();
                prop_assert_eq!(format!("{:?}", again), format!("{:?}", p));
            }
        }
    }

    #[test]
    fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = looks_like_program(&bytes);
        let _ = check(&bytes);
    }
}

#[test]
fn padding_helper_pads() {
    let mut out = Vec::new();
    varint(1, 2, &mut out);
    assert_eq!(out, [0x81, 0x80, 0x00]);
}
