//! Does a damaged or oddly written file ever panic, or come back as other bytes? Random changes to real files.

mod proto_common;

use mastercast::ir::{At, Edit, NewOp, Section};
use mastercast::names::sym;
use mastercast::paddle::proto::{export, looks_like_program};
use proptest::prelude::*;
use proto_common::tree::{Body, Field, Kind, Message, varint};
use proto_common::{check, data, file};

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
