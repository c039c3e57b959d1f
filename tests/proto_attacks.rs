//! Does a bad ProgramDesc get an error with its place? The attack list of `paddle::proto`, a test a line.

mod proto_common;

use mastercast::ir::Section;
use mastercast::paddle::proto::{
    MAX_GROUP_DEPTH, MAX_SLOTS, ProtoErrorKind as Bad, contradiction, export, import, looks_like_program, read_program,
};
use proto_common::tree::{Body, Field, Kind, Message};
use proto_common::{check, fails, file, with};

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

/// Of two names in one declaration the last counts, whatever their lengths, and for this declaration alone.
#[test]
fn attack_a_second_name() {
    let var = |bytes: &[u8]| Field::bytes(3, bytes);
    let tensor = b"\x12\x02\x08\x07";
    let two = [b"\x0A\x01x".as_slice(), tensor, b"\x0A\x01y"].concat();
    let more = [b"\x0A\x01z".as_slice(), tensor, b"\x0A\x01y"].concat();
    let longer = [b"\x0A\x01q".as_slice(), tensor, b"\x0A\x02ww"].concat();
    let mut fields = vec![Field::int(1, 0), Field::int(2, u64::MAX)];
    fields.extend([&two[..], &more, &two, &longer].map(var));
    let m = Message::new(Kind::Program, vec![Field::message(1, Message::new(Kind::Block, fields))]);
    let p = check(&m.encode()).unwrap();
    let block = p.block(p.global_block(Section::Main).unwrap());
    let names: Vec<&str> = block.vars.iter().map(|&v| p.name(p.var(v).name)).collect();
    assert_eq!(names, ["y", "y", "y", "ww"]);
}

/// A text or JSON file may keep bytes that say something else: the tool refuses it.
#[test]
fn attack_bytes_that_contradict_their_row() {
    let read = |text: &str| {
        let (program, mistakes) = mastercast::text::parse(text, "t");
        assert!(mistakes.is_empty());
        program
    };
    let honest = mastercast::text::print(&read_program(None, Some(&file("unknown.pb"))).unwrap());
    assert!(contradiction(&read(&honest), Section::Main).is_none());
    let found = (0..10).filter(|digit| {
        // One digit of each kept string is changed.
        let lie = honest.replace(" x\"", &format!(" x\"0{digit}"));
        let (program, mistakes) = mastercast::text::parse(&lie, "t");
        mistakes.is_empty() && contradiction(&program, Section::Main).is_some()
    });
    assert_eq!(found.count(), 10);
}
