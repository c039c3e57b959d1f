//! Where do two rewrites of one program differ? Ops are aligned by the source; inserted casts belong to the op
//! before which (or after which) they stand.

use mastercast::ir::{Attr, BlockId, OpId, Program, Section};
use mastercast::names::sym;
use std::collections::{BTreeMap, BTreeSet};

/// The variable that a copy copies; other names as they are.
pub fn base(name: &str) -> &str {
    let at = [".cast_fp16", ".cast_fp32", ".result_fp16", ".result_fp32"].iter().filter_map(|s| name.find(s)).min();
    at.map_or(name, |at| &name[..at])
}

/// A cast that a rewrite inserted: operand, result, attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inserted {
    pub x: String,
    pub out: String,
    pub attrs: BTreeMap<String, String>,
    pub op: OpId,
}

/// A source op in a rewritten program.
#[derive(Clone, Debug)]
pub struct Row {
    pub op: OpId,
    pub before: Vec<Inserted>,
    pub after: Vec<Inserted>,
}

pub fn attrs(program: &Program, list: &[Attr]) -> BTreeMap<String, String> {
    list.iter().map(|a| (program.sym(a.name).to_owned(), format!("{:?}", a.value))).collect()
}

fn inserted(program: &Program, op: OpId) -> Inserted {
    let r = program.op(op);
    let one = |args: &[mastercast::names::Name]| program.name(args[0]).to_owned();
    Inserted { x: one(r.input(sym::X)), out: one(r.output(sym::OUT)), attrs: attrs(program, r.attrs()), op }
}

/// Whether a cast makes, or reads back, a copy that only a rewrite makes.
fn is_inserted(program: &Program, op: OpId) -> Option<bool> {
    let r = program.op(op);
    if r.kind() != sym::CAST {
        return None;
    }
    let i = inserted(program, op);
    let copy = |out: &str, x: &str| {
        out.strip_prefix(x).is_some_and(|s| s.starts_with(".cast_fp") || s.starts_with(".result_fp"))
    };
    if copy(&i.out, &i.x) {
        Some(false)
    } else if copy(&i.x, &i.out) {
        Some(true)
    } else {
        None
    }
}

/// The source ops of a block, each with its casts.
pub fn rows(program: &Program, block: BlockId) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    let mut before = Vec::new();
    for op in program.ops(block) {
        match is_inserted(program, op.id) {
            Some(false) => before.push(inserted(program, op.id)),
            Some(true) => out.last_mut().expect("an op before").after.push(inserted(program, op.id)),
            None => out.push(Row { op: op.id, before: std::mem::take(&mut before), after: Vec::new() }),
        }
    }
    assert!(before.is_empty(), "casts at the end of a block");
    out
}

/// A place where two rewrites differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// block, and place of the source op there; `None` for a declaration
    pub at: Option<(usize, usize)>,
    /// what each has
    pub what: String,
    /// the names at stake
    pub names: BTreeSet<String>,
}

type Slots = Vec<(String, Vec<String>)>;

fn args(program: &Program, op: OpId) -> (Slots, Slots) {
    let r = program.op(op);
    let slot = |s: mastercast::ir::Slot<'_>| {
        (program.sym(s.name).to_owned(), s.args.iter().map(|&n| program.name(n).to_owned()).collect::<Vec<_>>())
    };
    (r.inputs().map(slot).collect(), r.outputs().map(slot).collect())
}

fn same(a: &[Inserted], b: &[Inserted]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (&a.x, &a.out, &a.attrs) == (&b.x, &b.out, &b.attrs))
}

fn decls(program: &Program, block: BlockId) -> BTreeMap<String, String> {
    program
        .block(block)
        .vars
        .iter()
        .map(|&v| {
            let d = program.var(v);
            let text = format!("{:?} {} {:?} {:?} {:?}", d.kind, d.dtype, program.shape(v), d.lod_level, d.flags);
            (program.name(d.name).to_owned(), text)
        })
        .collect()
}

/// All differences, declarations last.
pub fn compare(ours: &Program, theirs: &Program) -> Vec<Difference> {
    let blocks = |p: &Program| p.section_blocks(Section::Main).collect::<Vec<_>>();
    let (a, b) = (blocks(ours), blocks(theirs));
    assert_eq!(a.len(), b.len());
    let mut out = Vec::new();
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let (x, y) = (rows(ours, a), rows(theirs, b));
        assert_eq!(x.len(), y.len(), "block {i}");
        for (j, (x, y)) in x.iter().zip(&y).enumerate() {
            let mut what = Vec::new();
            let mut names = BTreeSet::new();
            if !same(&x.before, &y.before) {
                let show = |l: &[Inserted]| l.iter().map(|c| c.out.clone()).collect::<Vec<_>>();
                what.push(format!("casts before: {:?} / {:?}", show(&x.before), show(&y.before)));
                let only = |a: &[Inserted], b: &[Inserted]| {
                    let b = b.iter().map(|c| (&c.x, &c.out, &c.attrs)).collect::<Vec<_>>();
                    a.iter().filter(|c| !b.contains(&(&c.x, &c.out, &c.attrs))).map(|c| c.x.clone()).collect::<Vec<_>>()
                };
                let before = names.len();
                names.extend(only(&x.before, &y.before));
                names.extend(only(&y.before, &x.before));
                // The same casts in another order.
                if names.len() == before {
                    names.insert("the order of casts".to_owned());
                }
            }
            if !x.after.is_empty() {
                what.push(format!("casts after: {:?}", x.after.iter().map(|c| c.x.clone()).collect::<Vec<_>>()));
                names.extend(x.after.iter().flat_map(|c| [c.x.clone(), c.out.clone()]));
            }
            let (p, q) = (args(ours, x.op), args(theirs, y.op));
            if p != q {
                what.push(format!("arguments: {p:?} / {q:?}"));
                let flat = |l: &Slots| l.iter().flat_map(|s| s.1.clone()).collect::<BTreeSet<_>>();
                let (p, q) = (&flat(&p.0) | &flat(&p.1), &flat(&q.0) | &flat(&q.1));
                names.extend(p.symmetric_difference(&q).cloned());
            }
            let (p, q) = (attrs(ours, ours.op(x.op).attrs()), attrs(theirs, theirs.op(y.op).attrs()));
            if p != q {
                let keys: BTreeSet<_> =
                    p.keys().chain(q.keys()).filter(|k| p.get(k.as_str()) != q.get(k.as_str())).collect();
                let show = keys.iter().map(|k| format!("{k}: {:?} / {:?}", p.get(k.as_str()), q.get(k.as_str())));
                what.push(format!("attributes: {}", show.collect::<Vec<_>>().join(", ")));
                // `in_dtype` is about what is read, the others are about what is written.
                if keys.iter().any(|k| k.as_str() == "in_dtype") {
                    names.extend(args(ours, x.op).0.into_iter().flat_map(|s| s.1));
                }
                if keys.iter().any(|k| k.as_str() != "in_dtype") {
                    names.extend(args(ours, x.op).1.into_iter().flat_map(|s| s.1));
                }
            }
            if !what.is_empty() {
                let what = format!("{}: {}", ours.op(x.op).kind_str(), what.join("; "));
                out.push(Difference { at: Some((i, j)), what, names });
            }
        }
    }
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let (x, y) = (decls(ours, a), decls(theirs, b));
        let keys: BTreeSet<_> = x.keys().chain(y.keys()).filter(|k| x.get(k.as_str()) != y.get(k.as_str())).collect();
        for k in keys {
            let what = format!("block {i} declares {k}: {:?} / {:?}", x.get(k), y.get(k));
            out.push(Difference { at: None, what, names: BTreeSet::from([k.clone()]) });
        }
    }
    out
}
