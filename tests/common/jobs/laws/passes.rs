//! Does the rewrite mend, keep what was loaded, respect dependences, and lower to the same values?

use super::run::{differing, narrow, run, same};
use super::{Said, Tally, rewrite, tally};
use crate::jobs::{FILES, Job, Pair, Rng, Step, path};
use mastercast::analysis::cells::Cells;
use mastercast::analysis::depgraph::DepGraph;
use mastercast::analysis::effects::Effects;
use mastercast::analysis::{Finding, Obligation, Subject, Verdict, coherence};
use mastercast::ir::{At, AttrValue, DType, Edit, OpId, OpRef, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::{Effect, Ops};
use mastercast::passes::{Lower, ManagerOptions, Pass, PassCx, PassManager};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use std::collections::BTreeMap;

/// After the pipeline the program verifies; and if startup gives every cell a first value, another run changes
/// nothing, and what is still open has a reason that no pass can mend.
pub fn pipeline_mends(job: &Job) -> Said {
    let mut p = job.program();
    let before = verify(&p, Checks::STRUCTURE);
    if before.has_errors() {
        return Err("the generator makes programs that do not verify".into());
    }
    rewrite(&mut p)?;
    if verify(&p, Checks::STRUCTURE).has_errors() {
        return Err("the rewritten program does not verify".into());
    }
    if !all_set(job) {
        return Ok(tally([("not all set", 1)]));
    }
    // What one run mended can show the next something to do; that ends.
    let (mut once, mut settled, mut late) = (text::print(&p), false, 0);
    for _ in 0..3 {
        let changed = rewrite(&mut p)?;
        let now = text::print(&p);
        settled = now == once;
        if settled {
            break;
        }
        assert!(changed, "an edit that is not told");
        (late, once) = (1, now);
    }
    if !settled {
        return Err(format!("another run changes the program to\n{once}"));
    }
    let proof = coherence(&p);
    let mut out = tally([("jobs", 1), ("settled late", late)]);
    for verdict in &proof.verdicts {
        let pair = matches!(verdict.subject, Subject::Pair(_));
        *out.entry(if pair { "pairs" } else { "other subjects" }).or_default() += 1;
        if verdict.proved() {
            *out.entry(if pair { "pairs proved" } else { "others proved" }).or_default() += 1;
            continue;
        }
        for finding in &verdict.findings {
            let excuse = excuse(job, &p, verdict, finding)
                .ok_or_else(|| format!("{finding:?} of {:?} stays\n{once}", subject_text(&p, &verdict.subject)))?;
            *out.entry(excuse).or_default() += 1;
        }
    }
    Ok(out)
}

fn subject_text(p: &Program, s: &Subject) -> String {
    match s {
        Subject::Pair(pair) => format!("pair {}, {}", p.name(pair.param), p.name(pair.master)),
        Subject::Copy { cell, .. } => format!("copy {}", p.name(*cell)),
        Subject::Param(n) => format!("parameter {}", p.name(*n)),
    }
}

/// Whether startup gives every cell a value before anything reads it.
fn all_set(job: &Job) -> bool {
    let first = job.startup.iter().take_while(|s| matches!(s, Step::Init { .. } | Step::Load { .. }));
    let set: Vec<usize> =
        first.filter_map(|s| if let Step::Init { out, .. } = s { Some(*out) } else { None }).collect();
    (0..job.cells.len()).all(|c| set.contains(&c))
}

/// Why a finding may stay after the pipeline.
fn excuse(job: &Job, p: &Program, verdict: &Verdict, finding: &Finding) -> Option<&'static str> {
    // The job's own number of the pair.
    let pair = match verdict.subject {
        Subject::Pair(q) => job.pairs.iter().position(|i| job.cells[i.param].name == p.name(q.param)),
        _ => None,
    };
    let of_pair = |i: usize| pair == Some(i);
    match finding {
        // Whether such an op rounds the master is decided at run time; the passes insert none.
        _ if job.any(|s| matches!(s, Step::Resync { pair, direction: "auto", .. } if of_pair(*pair))) => {
            Some("decided at run time")
        }
        Finding::Unproved { obligation: Obligation::UnknownOp(_), .. } => Some("unknown op"),
        // A wild job rounds a master in ways of its own; a plain one never.
        Finding::Lossy { .. } | Finding::Unproved { obligation: Obligation::Rounded(_), .. } if job.wild => {
            Some("rounded by the job")
        }
        // A block reads a variable of its own before it writes it: no run gets so far.
        Finding::Unproved { obligation: Obligation::NeverWritten(_), .. } if job.any(|s| s.hides()) => {
            Some("never written")
        }
        // Copies are derived again where that can be done; what is claimed is that of pairs.
        _ if matches!(verdict.subject, Subject::Copy { .. }) => Some("copy"),
        _ => None,
    }
}

/// In a startup of initialisers, casts, loads and `amp_init` alone, the loaded values survive as the table
/// of SEMANTICS §4 says, and every pair is proved.
pub fn loaded_values_survive(job: &Job) -> Said {
    // A load that alone gives a cell its value cannot go behind what reads it.
    if !all_set(job) {
        return Ok(tally([("not all set", 1)]));
    }
    let mut p = job.program();
    rewrite(&mut p)?;
    let ran = run(&p, &job.store());
    let original = run(&job.program(), &job.store());
    let Some(entry) = &ran.entry else {
        return match original.entry {
            Some(_) => Err(format!("the rewritten startup stops: {}", ran.error.unwrap_or_default())),
            None => Ok(tally([("startup stops", 1)])),
        };
    };
    let mut out = Tally::new();
    for pair in &job.pairs {
        let (pname, mname) = (&job.cells[pair.param].name, &job.cells[pair.master].name);
        let last = |cell: usize| {
            job.startup.iter().rev().find_map(|s| match s {
                Step::Load { file, outs, .. } => {
                    outs.iter().rev().find(|o| o.0 == cell).map(|o| job.entry(*file as usize, o.1))
                }
                _ => None,
            })
        };
        if held_back(job, pair) {
            *out.entry("held back").or_default() += 1;
            continue;
        }
        let (p_load, m_load) = (last(pair.param), last(pair.master));
        let (class, master) = match (&p_load, &m_load) {
            (_, Some(m)) => ("master or both loaded", narrow(m, DType::F32)),
            (Some(p), None) => ("parameter loaded", narrow(p, DType::F32)),
            (None, None) => continue,
        };
        let param = narrow(&master, pair.low);
        let (Some(pv), Some(mv)) = (entry.get(pname), entry.get(mname)) else {
            // Without an optimizer and a cast nothing makes it a pair.
            if coherence(&p)
                .of_param(p.names().lookup(pname).expect("a name"))
                .is_some_and(|v| matches!(v.subject, Subject::Pair(_)))
            {
                return Err(format!("{pname} or {mname} has no value"));
            }
            continue;
        };
        let is_pair = coherence(&p)
            .verdicts
            .iter()
            .any(|v| matches!(v.subject, Subject::Pair(q) if p.name(q.param) == pname && p.name(q.master) == mname));
        if !is_pair {
            continue;
        }
        if !same(mv, &master) || !same(pv, &param) {
            return Err(format!(
                "{pname} is {pv:?}, wanted {param:?}; its master is {mv:?}, wanted {master:?}\n{}",
                text::print(&p)
            ));
        }
        *out.entry(class).or_default() += 1;
    }
    *out.entry("startup runs").or_default() += 1;
    Ok(out)
}

/// Whether a load of a master stands before an initialiser of it, and between the two an op that it may not
/// pass: another load of one of its cells, or one that derives from them. Then the loaded master is lost.
fn held_back(job: &Job, pair: &Pair) -> bool {
    let outs = |s: &Step| match s {
        Step::Load { outs, .. } => outs.iter().map(|o| o.0).collect(),
        _ => Vec::new(),
    };
    let initialises = |s: &Step| match s {
        Step::Init { out, .. } | Step::Cast { out, .. } => *out == pair.master,
        _ => false,
    };
    let last = job.startup.iter().rposition(initialises).unwrap_or(0);
    let before = &job.startup[..last];
    before.iter().enumerate().any(|(i, s)| {
        let own = outs(s);
        let blocks = |t: &Step| match t {
            Step::Load { .. } => outs(t).iter().any(|c| own.contains(c)),
            Step::Cast { x, out, .. } => own.contains(x) && !own.contains(out),
            Step::Copy { x, .. } | Step::Pure { x, .. } | Step::Concat { x, .. } => own.contains(x),
            _ => false,
        };
        own.contains(&pair.master) && before[i + 1..].iter().any(blocks)
    })
}

/// `load-order` keeps the order of every two dependent ops, except a load and what derives from it or
/// initialises it.
pub fn load_order_respects_dependences(job: &Job) -> Said {
    let program = job.program();
    let mut p = program.clone();
    let manager = PassManager::parse("load-order").expect("a pipeline");
    let report = manager.run(&mut p, &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
    let report = report.map_err(|e| e.to_string())?;
    let kinds = Ops::standard().resolve(&program);
    let effects = Effects::new(&program, &kinds);
    let cells = Cells::new(&program);
    let global = program.global_block(Section::Startup).expect("startup");
    let graph = DepGraph::new(&program, &effects, global);
    let place: BTreeMap<OpId, usize> = p.block(global).ops.iter().enumerate().map(|(i, &o)| (o, i)).collect();
    let turned = |load: OpRef<'_>, other: OpRef<'_>| {
        let loaded: Vec<Name> = load.output_args().collect();
        let effect = kinds.get(other.kind()).effect;
        let writes = other.output_args().any(|n| loaded.contains(&n));
        let derives = matches!(effect, Effect::Copy | Effect::Cast | Effect::Pure)
            && other.output_args().all(|n| cells.get(n).persistable);
        let barrier = matches!(
            effect,
            Effect::Load | Effect::Save | Effect::Resync | Effect::Unknown | Effect::Cond | Effect::While
        );
        !barrier && (writes || derives || effect == Effect::AmpInit)
    };
    let mut edges = 0;
    for e in graph.graph.edge_indices() {
        let (a, b) = graph.graph.edge_endpoints(e).expect("an edge");
        let (a, b) = (program.op(graph.graph[a]), program.op(graph.graph[b]));
        edges += 1;
        if place[&a.id] < place[&b.id] {
            continue;
        }
        let is_load = |o: OpRef<'_>| kinds.get(o.kind()).effect == Effect::Load;
        let allowed = (is_load(a) && !is_load(b) && turned(a, b)) || (is_load(b) && !is_load(a) && turned(b, a));
        if !allowed {
            return Err(format!("{b:?} now stands before {a:?}\n{}", text::print(&p)));
        }
    }
    Ok(tally([("edges", edges), ("loads moved", report.passes[0].summary.moved)]))
}

/// Any order that the dependence graph allows computes the same.
pub fn dependences_are_enough(job: &Job) -> Said {
    let program = job.program();
    let kinds = Ops::standard().resolve(&program);
    let effects = Effects::new(&program, &kinds);
    let global = program.global_block(Section::Startup).expect("startup");
    let graph = DepGraph::new(&program, &effects, global);
    let mut rng = Rng::new(job.seed ^ 0x0DE5);
    let ops = program.block(global).ops.clone();
    let mut waits: BTreeMap<OpId, usize> = ops.iter().map(|&o| (o, graph.before(o).len())).collect();
    let mut order = Vec::new();
    while order.len() < ops.len() {
        let ready: Vec<OpId> = ops.iter().copied().filter(|o| waits.get(o) == Some(&0)).collect();
        if ready.is_empty() {
            return Err("the dependence graph has a cycle".into());
        }
        let op = *rng.pick(&ready);
        waits.remove(&op);
        order.push(op);
        graph.after(op).into_iter().for_each(|(o, _)| *waits.get_mut(&o).expect("a later op") -= 1);
    }
    if !graph.respects(&order) {
        return Err("an order made from the edges does not respect them".into());
    }
    let mut p = program.clone();
    let mut edit = Edit::new();
    order.iter().for_each(|&o| edit.relocate(o, At::End(global), ""));
    edit.commit(&mut p, "shuffle");
    let (a, b) = (run(&program, &job.store()), run(&p, &job.store()));
    match (&a.entry, &b.entry) {
        (Some(x), Some(y)) => match differing(job, x, y) {
            d if d.is_empty() => Ok(tally([("orders", 1)])),
            d => Err(format!("another order gives {d:?}\n{}", text::print(&p))),
        },
        (None, _) => Ok(tally([("startup stops", 1)])),
        (Some(_), None) => Err(format!("another order stops: {:?}\n{}", b.error, text::print(&p))),
    }
}

/// The lowered program computes what the rewritten one does.
pub fn lowering_keeps_values(job: &Job) -> Said {
    if job.any(|s| matches!(s, Step::Save { .. })) {
        return Ok(tally([("saves", 1)]));
    }
    let mut p = job.program();
    rewrite(&mut p)?;
    let store = job.store();
    let mut lower = Lower::default();
    for file in 0..FILES as u8 {
        lower.load_dirs.insert(path(file), format!("{}.d", path(file)));
    }
    for block in Section::ALL.into_iter().flat_map(|s| p.section_blocks(s)) {
        for op in p.ops(block).filter(|o| o.kind() == sym::LOAD) {
            let file = op.attr(sym::FILE_PATH).and_then(AttrValue::as_str).unwrap_or("");
            let keys = op.attr(sym::KEYS).and_then(AttrValue::as_strs).unwrap_or(&[]);
            for (out, key) in op.output_args().zip(keys) {
                let out = p.name(out);
                let index = (0..FILES).find(|&f| path(f as u8) == file).expect("a file of the job");
                let cell = job.cells.iter().position(|c| c.name == **key).expect("a cell of the job");
                store.put(&format!("{file}.d/{out}"), out, job.entry(index, cell));
            }
        }
    }
    let mut lowered = p.clone();
    match lower.run(&mut lowered, &mut PassCx::default()) {
        Err(_) => return Ok(tally([("no form", 1)])),
        Ok(_) => {
            if verify(&lowered, Checks::STRUCTURE).has_errors() {
                return Err("the lowered program does not verify".into());
            }
        }
    }
    let (a, b) = (run(&p, &store), run(&lowered, &store));
    let Some(x) = &a.entry else { return Ok(tally([("startup stops", 1)])) };
    let Some(y) = &b.entry else {
        return Err(format!("the lowered startup stops: {:?}\n{}", b.error, text::print(&lowered)));
    };
    let scopes = std::iter::once((x, y)).chain(a.ends.iter().zip(&b.ends));
    for (i, (x, y)) in scopes.enumerate() {
        let d = differing(job, x, y);
        if !d.is_empty() {
            return Err(format!("after step {i} {d:?}\n{}", text::print(&lowered)));
        }
    }
    if a.ends.len() != b.ends.len() {
        return Err(format!("main stops: {:?}; lowered: {:?}\n{}", a.error, b.error, text::print(&lowered)));
    }
    Ok(tally([("startup runs", 1), ("steps", a.ends.len())]))
}
