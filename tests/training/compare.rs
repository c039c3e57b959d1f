//! Do two training programs hold the same ops with the same dtypes, and if not, is Paddle's the unsound one?

use mastercast::analysis::effects::Effects;
use mastercast::ir::{BlockId, DType, OpId, OpRef, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::Ops;
use mastercast::verify::{DeclIndex, EMPTY_VAR};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of an op, and by slot the dtypes of its arguments.
pub fn signature(program: &Program, decls: &DeclIndex, block: BlockId, op: OpRef<'_>) -> String {
    let dtype = |n: &Name| match decls.find(block, *n) {
        Some(v) if program.var(v).kind.has_tensor() => program.var(v).dtype.to_string(),
        Some(_) => "-".to_owned(),
        None => "?".to_owned(),
    };
    let slots = |slots: &mut dyn Iterator<Item = mastercast::ir::Slot<'_>>| {
        let mut all: Vec<String> = slots
            .filter(|s| !s.args.is_empty())
            .map(|s| {
                let list: Vec<String> = s.args.iter().map(dtype).collect();
                format!("{}: {}", program.sym(s.name), list.join(" "))
            })
            .collect();
        all.sort();
        all.join("; ")
    };
    format!("({}) = {}({})", slots(&mut op.outputs()), op.kind_str(), slots(&mut op.inputs()))
}

/// Ops of startup whose results nobody sees: written again before they are read, or of a cell that main does not
/// name.
pub fn dead(program: &Program) -> BTreeSet<OpId> {
    let in_main: BTreeSet<Name> = program
        .section_blocks(Section::Main)
        .flat_map(|b| program.ops(b))
        .flat_map(|op| op.input_args().chain(op.output_args()))
        .collect();
    let mut dead = BTreeSet::new();
    let mut unread: BTreeMap<Name, OpId> = BTreeMap::new();
    for op in program.global_block(Section::Startup).into_iter().flat_map(|b| program.ops(b)) {
        for name in op.input_args() {
            unread.remove(&name);
        }
        for name in op.output_args() {
            if let Some(earlier) = unread.insert(name, op.id) {
                dead.insert(earlier);
            }
        }
    }
    dead.extend(unread.into_iter().filter(|(name, _)| !in_main.contains(name)).map(|(_, op)| op));
    dead
}

/// The ops of a section as a multiset.
pub fn multiset(program: &Program, section: Section) -> BTreeMap<String, i64> {
    let decls = DeclIndex::new(program);
    let dead = dead(program);
    let mut out = BTreeMap::new();
    for block in program.section_blocks(section) {
        for op in program.ops(block).filter(|op| !dead.contains(&op.id)) {
            *out.entry(signature(program, &decls, block, op)).or_insert(0) += 1;
        }
    }
    out
}

/// The ops of main in order.
pub fn sequence(program: &Program) -> Vec<Vec<String>> {
    let decls = DeclIndex::new(program);
    let blocks = program.section_blocks(Section::Main);
    blocks.map(|b| program.ops(b).map(|op| signature(program, &decls, b, op)).collect()).collect()
}

/// Attributes that say where an op is made, or that a kernel library sets: they change nothing of what is computed.
const APART: &[&str] = &[
    "op_namescope",
    "op_callstack",
    "use_mkldnn",
    "mkldnn_data_type",
    "use_quantizer",
    "Scale_x",
    "Scale_y",
    "Scale_out",
];

/// Attributes of ops of main, by kind, name and value, that one program has more of; roles are among them. Attributes
/// that only one writes for a kind are left out, and `multi_precision` where Paddle leaves masters idle.
pub fn attributes(ours: &Program, theirs: &Program) -> Vec<String> {
    let all = |p: &Program| {
        let mut out: BTreeMap<(String, String), BTreeMap<String, i64>> = BTreeMap::new();
        for op in p.section_blocks(Section::Main).flat_map(|b| p.ops(b)) {
            for a in op.attrs() {
                let key = (op.kind_str().to_owned(), p.sym(a.name).to_owned());
                *out.entry(key).or_default().entry(format!("{:?}", a.value)).or_default() += 1;
            }
        }
        out
    };
    let (a, b) = (all(ours), all(theirs));
    let mut out = Vec::new();
    for ((kind, name), values) in &a {
        let Some(others) = b.get(&(kind.clone(), name.clone())) else { continue };
        let idle = kind == "rmsprop" && name == "multi_precision";
        if values != others && !APART.contains(&name.as_str()) && !idle {
            let more = values.iter().find(|(v, n)| others.get(*v) != Some(n));
            out.push(format!("{kind} {name}: {more:?} of {others:?}"));
        }
    }
    out
}

/// What one program has more of than the other.
pub fn differences(ours: &Program, theirs: &Program) -> Vec<String> {
    let mut out = Vec::new();
    for section in Section::ALL {
        let (a, b) = (multiset(ours, section), multiset(theirs, section));
        for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
            let (x, y) = (a.get(key).copied().unwrap_or(0), b.get(key).copied().unwrap_or(0));
            if x != y {
                out.push(format!("{} ours {x}, theirs {y}: {key}", section.as_str()));
            }
        }
    }
    out
}

/// What is wrong with a program that Paddle decorated, as `source` and the rules of dtypes show it; a word each.
pub fn faults(source: &Program, theirs: &Program) -> BTreeSet<&'static str> {
    let mut out = BTreeSet::new();
    if !untrained(source, theirs).is_empty() {
        out.insert("a parameter lost its gradient");
    }
    if lost(source, theirs) {
        out.insert("a block drops a gradient");
    }
    if unlisted(theirs) && !unlisted(source) {
        out.insert("a block reads what its control op does not list");
    }
    let decls = DeclIndex::new(theirs);
    for block in theirs.section_blocks(Section::Main) {
        for op in theirs.ops(block).filter(|op| op.kind_str().starts_with("elementwise_")) {
            let dtypes: BTreeSet<DType> = op
                .input_args()
                .filter_map(|n| decls.find(block, n))
                .map(|v| theirs.var(v).dtype)
                .filter(|d| d.is_float())
                .collect();
            if dtypes.len() > 1 {
                out.insert("an op computes on two float types");
            }
        }
    }
    let cells = |section: Section| {
        let vars = theirs.global_block(section).into_iter().flat_map(|b| &theirs.block(b).vars).map(|&v| theirs.var(v));
        let vars = vars.filter(|v| v.persistable() && !v.is_parameter());
        vars.map(|v| (v.name, v.dtype)).collect::<BTreeMap<Name, DType>>()
    };
    let startup = cells(Section::Startup);
    if cells(Section::Main).iter().any(|(n, d)| startup.get(n).is_some_and(|e| e != d)) {
        out.insert("startup and main disagree on the dtype of an accumulator");
    }
    out
}

/// Whether a block of the forward part reads a variable that its control op does not list: no gradient flows there.
fn unlisted(program: &Program) -> bool {
    let kinds = Ops::standard().resolve(program);
    let effects = Effects::new(program, &kinds);
    let mut ops = program.section_blocks(Section::Main).flat_map(|b| program.ops(b));
    ops.any(|op| {
        let listed: BTreeSet<Name> = op.input_args().chain(op.output_args()).collect();
        !op.kind_str().ends_with("_grad")
            && op.sub_blocks().any(|b| effects.block(b).reads.iter().any(|n| !listed.contains(n)))
    })
}

fn trained(program: &Program) -> BTreeSet<String> {
    let ops = program.section_blocks(Section::Main).flat_map(|b| program.ops(b));
    let params = ops.filter(|op| !op.output(program.symbols().lookup("ParamOut").unwrap_or(sym::X)).is_empty());
    params.flat_map(|op| op.input(sym::PARAM)).map(|&n| program.name(n).to_owned()).collect()
}

/// Parameters that are no longer trained.
fn untrained(source: &Program, theirs: &Program) -> Vec<String> {
    trained(source).difference(&trained(theirs)).cloned().collect()
}

/// Whether the gradient of a control op no longer gives the gradient of something that its blocks read.
fn lost(source: &Program, theirs: &Program) -> bool {
    let control = |p: &Program| -> Vec<Vec<(String, bool)>> {
        let ops = p.section_blocks(Section::Main).flat_map(|b| p.ops(b));
        ops.filter(|op| op.kind_str().ends_with("_grad") && op.has_sub_blocks())
            .map(|op| {
                let mut rows = Vec::new();
                for out in op.outputs() {
                    let slot = p.sym(out.name).trim_end_matches("@GRAD");
                    let list = op.inputs().find(|s| p.sym(s.name) == slot).map_or(&[][..], |s| s.args);
                    for (x, g) in list.iter().zip(out.args) {
                        rows.push((p.name(*x).to_owned(), p.name(*g) != EMPTY_VAR && !p.name(*g).is_empty()));
                    }
                }
                rows
            })
            .collect()
    };
    let (a, b) = (control(source), control(theirs));
    let is = |x: &str, y: &str| y == x || y.strip_prefix(x).is_some_and(|rest| rest.starts_with(".cast_fp"));
    a.len() != b.len()
        || a.iter()
            .zip(&b)
            .any(|(a, b)| a.iter().filter(|(_, has)| *has).any(|(x, _)| !b.iter().any(|(y, has)| *has && is(x, y))))
}
