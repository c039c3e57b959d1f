//! Do two training programs hold the same ops with the same dtypes?

use mastercast::ir::{BlockId, OpRef, Program, Section};
use mastercast::names::Name;
use mastercast::verify::DeclIndex;
use std::collections::BTreeMap;

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

/// The ops of a section as a multiset.
pub fn multiset(program: &Program, section: Section) -> BTreeMap<String, i64> {
    let decls = DeclIndex::new(program);
    let mut out = BTreeMap::new();
    for block in program.section_blocks(section) {
        for op in program.ops(block) {
            *out.entry(signature(program, &decls, block, op)).or_insert(0) += 1;
        }
    }
    out
}

/// What one program has more of than the other.
pub fn differences(ours: &Program, theirs: &Program) -> Vec<String> {
    let mut out = Vec::new();
    for section in [Section::Main] {
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
