//! Does every ProgramDesc come back byte for byte, also with fields that no Paddle has, and after an edit?

mod proto_common;

use mastercast::ir::{
    At, Attr, AttrValue, DType, Edit, Entity, NewOp, Origin, Program, Section, VarDef, VarFlag, VarFlags, VarKind,
};
use mastercast::names::sym;
use mastercast::paddle::proto::{ProtoErrorKind as Bad, export, import, looks_like_program, read_program};
use proto_common::tree::{Body, Field, Kind, Message};
use proto_common::{check, data, file, programs, read};
use std::path::Path;

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
    assert_eq!(p.origin(op.origin()), Origin::File { block: 0, index: 0 });
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
fn a_made_program_is_written_as_protobuf_writes_it() {
    let mut p = Program::new();
    let block = p.ensure_global_block(Section::Main);
    let origin = p.push_origin(Origin::Built { tag: 0 });
    let w = p.intern("w");
    let mut def = VarDef::tensor(w, DType::BF16, [4, -1]);
    def.lod_level = Some(0);
    def.flags = VarFlags::default().with(VarFlag::Persistable, Some(true)).with(VarFlag::IsParameter, Some(true));
    p.push_var(block, &def, origin);
    let attrs = p.intern_attrs(vec![Attr::new(sym::IN_DTYPE, DType::BF16)]);
    let op = p.push_op(block, sym::CAST, attrs, origin);
    let m = p.intern("m");
    p.push_input(op, sym::X, [w]);
    p.push_output(op, sym::OUT, [m]);
    let bytes = export(&p, Section::Main);
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
