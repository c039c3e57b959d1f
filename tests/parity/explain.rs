//! Is Paddle's program unsound where it differs from ours? Nothing is excepted by name: each difference must be
//! at a place where a check of Paddle's own program fails, or in a variable whose dtype follows from such a place.
//!
//! The checks are those of `mastercast check` (V10, V11, V13 to V16), and two that compare with the source: a cast
//! of the user's computes something else, and an op of the user's own lists computes in the other precision.

use super::compare::{Difference, base, rows};
use mastercast::diag::Code;
use mastercast::ir::{Program, Section};
use mastercast::names::sym;
use mastercast::ops::Ops;
use mastercast::passes::Precision;
use mastercast::passes::precision::Level;
use mastercast::verify::{DeclIndex, cast_uses, mixed_dtypes};
use std::collections::{BTreeMap, BTreeSet};

/// Why Paddle's program is unsound, by variable.
#[derive(Default)]
pub struct Faults {
    pub by_name: BTreeMap<String, BTreeSet<&'static str>>,
    /// places with a fault: block, source op
    pub places: BTreeMap<(usize, usize), BTreeSet<&'static str>>,
    pub count: BTreeMap<&'static str, usize>,
}

impl Faults {
    fn add(&mut self, why: &'static str, at: Option<(usize, usize)>, names: &[&str]) {
        *self.count.entry(why).or_default() += 1;
        for name in names {
            self.by_name.entry(base(name).to_owned()).or_default().insert(why);
        }
        if let Some(at) = at {
            self.places.entry(at).or_default().insert(why);
        }
    }
}

fn reason(code: Code) -> &'static str {
    code.as_str()
}

fn float_dtype(program: &Program, decls: &DeclIndex, block: mastercast::ir::BlockId, name: &str) -> Option<String> {
    let name = program.names().lookup(name)?;
    Some(program.var(decls.find(block, name)?).dtype.to_string())
}

/// Checks Paddle's program, alone and beside its source.
pub fn faults(source: &Program, theirs: &Program, options: &Precision) -> Faults {
    let mut out = Faults::default();
    let decls = DeclIndex::new(theirs);
    let blocks: Vec<_> = theirs.section_blocks(Section::Main).collect();
    let source_blocks: Vec<_> = source.section_blocks(Section::Main).collect();
    // Where each op of theirs, casts included, belongs in the source.
    let mut places = BTreeMap::new();
    for (i, &block) in blocks.iter().enumerate() {
        for (j, row) in rows(theirs, block).iter().enumerate() {
            places.insert(row.op, (i, j));
            for c in row.before.iter().chain(&row.after) {
                places.insert(c.op, (i, j));
            }
        }
    }
    let findings =
        cast_uses(theirs, Ops::standard(), Section::Main).into_iter().chain(mixed_dtypes(theirs, Section::Main));
    for f in findings {
        let mut names = vec![theirs.name(f.name)];
        names.extend(f.other.map(|n| theirs.name(n)));
        if f.code == Code::MixedDtype {
            // What it writes is of the wrong type; of what it reads both are suspect.
            names.extend(theirs.op(f.op).output_args().map(|n| theirs.name(n)));
        }
        out.add(reason(f.code), places.get(&f.op).copied(), &names);
    }
    for &block in &blocks {
        for op in theirs.ops(block).filter(|op| op.kind() == sym::CAST) {
            let (Some(&x), Some(said)) = (op.input(sym::X).first(), op.attr(sym::IN_DTYPE)) else { continue };
            let is = decls.find(block, x).map(|v| i64::from(theirs.var(v).dtype.code()));
            if is.is_some() && said.as_int() != is {
                out.add("cast-attribute", places.get(&op.id).copied(), &[theirs.name(x)]);
            }
        }
    }
    for (i, (&a, &b)) in source_blocks.iter().zip(&blocks).enumerate() {
        for (j, (was, row)) in source.ops(a).zip(rows(theirs, b)).enumerate() {
            let op = theirs.op(row.op);
            let outputs: Vec<&str> = op.output_args().map(|n| theirs.name(n)).collect();
            if was.kind() == sym::CAST && was.attr(sym::OUT_DTYPE) != op.attr(sym::OUT_DTYPE) {
                out.add("user-cast-changed", Some((i, j)), &outputs);
            }
            if options.level != Level::OD {
                continue;
            }
            let on = |list: &[String]| list.iter().any(|k| k == op.kind_str());
            let types: BTreeSet<String> =
                op.output_args().filter_map(|n| float_dtype(theirs, &decls, b, theirs.name(n))).collect();
            let low = options.dtype.dtype().to_string();
            let reads_float = row.before.iter().any(|c| c.out.ends_with("_fp16")) || types.contains(&low);
            if on(&options.black) && reads_float {
                out.add("user-list-dropped", Some((i, j)), &outputs);
            }
            if on(&options.white) && types.contains("f32") && !types.contains(&low) {
                out.add("user-list-dropped", Some((i, j)), &outputs);
            }
        }
    }
    out
}

/// What explains each difference; those that nothing explains are second.
pub fn explain(
    ours: &Program,
    theirs: &Program,
    faults: &Faults,
    differences: &[Difference],
) -> (BTreeMap<String, usize>, Vec<Difference>) {
    // A dtype that differs follows from a fault when an op that writes the variable reads one that does.
    let mut tainted = faults.by_name.clone();
    let blocks = |p: &Program| p.section_blocks(Section::Main).collect::<Vec<_>>();
    let (a, b) = (DeclIndex::new(ours), DeclIndex::new(theirs));
    for (&x, &y) in blocks(ours).iter().zip(&blocks(theirs)) {
        for row in rows(theirs, y) {
            let op = theirs.op(row.op);
            let mut why = BTreeSet::new();
            for name in op.input_args().map(|n| base(theirs.name(n)).to_owned()) {
                why.extend(tainted.get(&name).into_iter().flatten().copied());
            }
            if why.is_empty() {
                continue;
            }
            for name in op.output_args().map(|n| theirs.name(n).to_owned()) {
                if float_dtype(ours, &a, x, &name) != float_dtype(theirs, &b, y, &name) {
                    tainted.entry(base(&name).to_owned()).or_default().extend(&why);
                }
            }
        }
    }
    let (mut explained, mut open) = (BTreeMap::new(), Vec::new());
    for d in differences {
        let why: Option<BTreeSet<&str>> = d.names.iter().try_fold(BTreeSet::new(), |mut all, n| {
            all.extend(tainted.get(base(n))?.iter().copied());
            Some(all)
        });
        match why {
            Some(why) if !why.is_empty() => {
                *explained.entry(why.into_iter().collect::<Vec<_>>().join(" + ")).or_default() += 1;
            }
            _ => open.push(d.clone()),
        }
    }
    (explained, open)
}
