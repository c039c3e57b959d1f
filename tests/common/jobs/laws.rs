//! What must hold of every job? Each law runs a job, or its rewrite, in the interpreter and compares.
//!
//! A law gives `Err` with what is wrong, or a [`Tally`] of what it looked at, so that a test can refuse
//! laws that hold because nothing was looked at. One file, because the laws share their runs.

use super::{FILES, Job, Step, Store, path};
use mastercast::analysis::cells::Cells;
use mastercast::analysis::defuse::{DefSite, DefUse};
use mastercast::analysis::depgraph::DepGraph;
use mastercast::analysis::effects::Effects;
use mastercast::analysis::{Coherence, Finding, Obligation, Pair, Subject, Verdict, coherence};
use mastercast::convert::Narrowing;
use mastercast::interp::{Data, Fault, InterpError, Interpreter, Kernels, OpCx, Options, Scope, Tensor};
use mastercast::ir::{At, AttrValue, DType, Edit, NewOp, OpId, OpRef, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::{Effect, Ops};
use mastercast::passes::{Lower, ManagerOptions, Pass, PassCx, PassManager};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// How often each thing was looked at.
pub type Tally = BTreeMap<&'static str, usize>;

/// What a law says of a job.
pub type Said = Result<Tally, String>;

/// Steps of main that are run.
const STEPS: usize = 3;

/// The pipeline that mends.
pub const PIPELINE: &str = "master-casts,load-order,resync";

fn tally(items: impl IntoIterator<Item = (&'static str, usize)>) -> Tally {
    items.into_iter().filter(|i| i.1 > 0).collect()
}

// ---- kernels of made-up ops, and of ops that watch

thread_local! {
    /// what `observe` saw: pair, whether it agreed
    static SEEN: RefCell<Vec<(usize, bool, String)>> = const { RefCell::new(Vec::new()) };
    /// by cell: its value, and the float32 value that it was rounded from
    static ROUNDED: RefCell<BTreeMap<String, (Tensor, Tensor)>> = const { RefCell::new(BTreeMap::new()) };
    /// by cell: its value, and what it may have been converted from to 16 bits
    static CONVERTED: RefCell<BTreeMap<String, (Tensor, Vec<Tensor>)>> = const { RefCell::new(BTreeMap::new()) };
    /// what `look` saw: the values of its arguments
    static LOOKS: RefCell<Vec<Vec<Option<Tensor>>>> = const { RefCell::new(Vec::new()) };
}

type Done = Result<(), InterpError>;

fn kernels() -> Kernels {
    let mut k = Kernels::standard().clone();
    k.register("made_up", made_up);
    k.register("made_up_block", |cx| {
        if cx.input("Cond")?.to_bool_vec()[0] {
            let locals = cx.sub_block("sub_block").and_then(|b| cx.run_block(b))?;
            cx.drop_locals(locals);
        }
        Ok(())
    });
    k.register("observe", observe);
    k.register("look", |cx| {
        let seen = cx.input_names("X").iter().map(|&n| cx.value(n)).collect();
        LOOKS.with_borrow_mut(|l| l.push(seen));
        Ok(())
    });
    k.register("cast", |cx| watched(cx, "cast"));
    k.register("assign", |cx| watched(cx, "assign"));
    k.register("amp_init", |cx| watched(cx, "amp_init"));
    k.register("resync", |cx| watched(cx, "resync"));
    k.register("load", |cx| loaded(cx, "load"));
    k.register("load_combine", |cx| loaded(cx, "load_combine"));
    // Nothing is claimed of what a transposed or scaled value was rounded from.
    k.register("transpose2", |cx| loaded(cx, "transpose2"));
    k.register("reshape2", |cx| loaded(cx, "reshape2"));
    k.register("scale", |cx| loaded(cx, "scale"));
    k
}

/// Writes some of what it names.
fn made_up(cx: &mut OpCx<'_, '_>) -> Done {
    let writes = cx.attr_i64("writes", 0)?;
    let value = cx.attr_f32("value", 0.0)?;
    let names: Vec<Name> = cx.input_names("X").iter().chain(cx.output_names("Out")).copied().collect();
    for (i, name) in names.into_iter().enumerate() {
        let Some(id) = cx.declaration(name).filter(|_| writes >> i & 1 == 1) else { continue };
        let shape: Vec<usize> = cx.program().shape(id).iter().map(|&d| d as usize).collect();
        let n = shape.iter().product();
        let dtype = cx.value(name).map_or(cx.program().var(id).dtype, |t| t.dtype());
        let t = Tensor::new(&shape, Data::F32(vec![value + i as f32; n]))?.cast(dtype, Narrowing::NearestEven)?;
        cx.write(name, t)?;
    }
    Ok(())
}

fn observe(cx: &mut OpCx<'_, '_>) -> Done {
    let pair = cx.attr_i64("pair", 0)? as usize;
    let low = DType::from_code(cx.attr_i64("dtype", 0)? as i32);
    if let (Some(p), Some(m)) = (cx.value(cx.input_names("P")[0]), cx.value(cx.input_names("M")[0])) {
        let agree = same(&narrow(&p, low), &narrow(&m, low));
        SEEN.with_borrow_mut(|s| s.push((pair, agree, format!("{p:?} and {m:?}"))));
    }
    Ok(())
}

/// Runs an op whose result counts as not rounded: what a load brings, even if a save put it there.
fn loaded(cx: &mut OpCx<'_, '_>, kind: &str) -> Done {
    for &name in cx.output_names("Out") {
        ROUNDED.with_borrow_mut(|r| r.remove(cx.text(name)));
        CONVERTED.with_borrow_mut(|c| c.remove(cx.text(name)));
    }
    Kernels::standard().get(kind).expect("a standard kernel")(cx)
}

/// Runs an op and follows which cells hold what was rounded from float32.
fn watched(cx: &mut OpCx<'_, '_>, kind: &str) -> Done {
    let from: Vec<(Name, Tensor)> = cx.op().input_args().filter_map(|n| Some((n, cx.value(n)?))).collect();
    let outs: Vec<Name> = cx.op().output_args().collect();
    let before = ROUNDED.with_borrow(Clone::clone);
    let source = |name: Name, text: &str, t: &Tensor| {
        let _ = name;
        before.get(text).filter(|(v, _)| same(v, t)).map(|(_, wide)| wide.clone())
    };
    Kernels::standard().get(kind).expect("a standard kernel")(cx)?;
    for out in outs {
        let Some(now) = cx.value(out) else { continue };
        let text = cx.text(out).to_owned();
        let is = |t: &Tensor| same(&narrow(t, now.dtype()), &now);
        let before: Vec<Tensor> =
            from.iter().map(|f| &f.1).filter(|t| t.dtype() != now.dtype() && is(t)).cloned().collect();
        if now.dtype().is_low() && !before.is_empty() {
            CONVERTED.with_borrow_mut(|c| {
                let (value, list) = c.entry(text.clone()).or_insert((now.clone(), Vec::new()));
                if !same(value, &now) {
                    (*value, *list) = (now.clone(), Vec::new());
                }
                list.extend(before);
            });
        }
        // Where the value may come from, and what that was rounded from. With several, none is sure.
        let mut origins: Vec<Option<Tensor>> = Vec::new();
        for (n, t) in from.iter().filter(|f| f.1.dtype().is_float() && now.dtype().is_float()) {
            let rounded = source(*n, cx.text(*n), t);
            let wide = t.dtype() == DType::F32;
            if is(t) {
                origins.push(if wide && now.dtype().is_low() { Some(rounded.unwrap_or(t.clone())) } else { rounded });
            } else if wide && now.dtype() == DType::F32 && kind != "cast" {
                // Narrowed and widened again in this very op.
                let low = [DType::F16, DType::BF16].into_iter().find(|&l| is(&narrow(t, l)));
                origins.extend(low.map(|_| Some(rounded.unwrap_or(t.clone()))));
            }
        }
        let wide = if origins.contains(&None) { None } else { origins.into_iter().flatten().next() };
        ROUNDED.with_borrow_mut(|r| match wide {
            Some(wide) => drop(r.insert(text, (now, wide))),
            None => drop(r.remove(&text)),
        });
    }
    Ok(())
}

// ---- values

/// Equal in dtype, shape and bits, all NaNs being one.
pub fn same(a: &Tensor, b: &Tensor) -> bool {
    let nan = |v: f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
    a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && match a.dtype().is_float() && a.dtype() != DType::F64 {
            true => a.to_f32_vec().into_iter().map(nan).eq(b.to_f32_vec().into_iter().map(nan)),
            false => a.bits_eq(b),
        }
}

fn narrow(t: &Tensor, to: DType) -> Tensor {
    t.cast(to, Narrowing::NearestEven).expect("a float")
}

/// Cells that differ between two scopes, among those that a program keeps.
fn differing(job: &Job, a: &Scope, b: &Scope) -> Vec<String> {
    let equal = |n: &str| match (a.get(n), b.get(n)) {
        (Some(x), Some(y)) => same(x, y),
        (None, None) => true,
        _ => false,
    };
    job.cells
        .iter()
        .filter(|c| c.persistable && !equal(&c.name))
        .map(|c| format!("{}: {:?} against {:?}", c.name, a.get(&c.name), b.get(&c.name)))
        .collect()
}

// ---- running

/// A run: the scope at main's entry, and after each step that ran.
pub struct Ran {
    pub entry: Option<Scope>,
    pub ends: Vec<Scope>,
    pub error: Option<String>,
}

fn interpreter<'p>(program: &'p Program, store: &Store, kernels: &Kernels) -> Interpreter<'p> {
    let mut options = Options::default();
    options.fuel = 20_000;
    Interpreter::new(program).with_kernels(kernels).with_options(options).with_files(store.clone())
}

/// Runs startup and a few steps.
pub fn run(program: &Program, store: &Store) -> Ran {
    let kernels = kernels();
    let mut interp = interpreter(program, store, &kernels);
    let mut scope = Scope::new();
    let mut ran = Ran { entry: None, ends: Vec::new(), error: None };
    if let Err(e) = interp.run(Section::Startup, &mut scope) {
        ran.error = Some(e.to_string());
        return ran;
    }
    ran.entry = Some(scope.clone());
    for _ in 0..STEPS {
        match interp.run(Section::Main, &mut scope) {
            Ok(_) => ran.ends.push(scope.clone()),
            Err(e) => {
                ran.error = Some(e.to_string());
                break;
            }
        }
    }
    ran
}

/// What kind of error ended a run.
fn stop(error: &Option<String>) -> &'static str {
    let text = error.as_deref().unwrap_or("");
    let kinds =
        ["has no value", "but `stored_dtypes` says", "it takes float32", "both loaded and differ", "slot", "shape"];
    kinds.into_iter().find(|k| text.contains(k)).unwrap_or("another error")
}

fn pairs(proof: &Coherence) -> Vec<Pair> {
    let pair = |v: &Verdict| match v.subject {
        Subject::Pair(p) => Some(p),
        _ => None,
    };
    proof.verdicts.iter().filter_map(pair).collect()
}

/// The program with an `observe` before each op of main that reads a cell of a pair, as the proof speaks
/// of it: not before loads, `amp_init`, `resync`, control ops, and a cast that makes one from the other.
fn observed(program: &Program, pairs: &[Pair]) -> Program {
    let kinds = Ops::standard().resolve(program);
    let mut out = program.clone();
    let observe = out.symbol("observe");
    let (p, m, pair_attr) = (out.symbol("P"), out.symbol("M"), out.symbol("pair"));
    let mut edit = Edit::new();
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            let effect = kinds.get(op.kind()).effect;
            if matches!(effect, Effect::Load | Effect::AmpInit | Effect::Resync | Effect::Cond | Effect::While) {
                continue;
            }
            for (i, pair) in pairs.iter().enumerate() {
                let reads = |n: Name| op.input_args().any(|a| a == n);
                let makes = |from: Name, to: Name| {
                    matches!(effect, Effect::Cast | Effect::Copy)
                        && op.input(sym::X) == [from]
                        && op.output(sym::OUT) == [to]
                };
                let mends = makes(pair.param, pair.master) || makes(pair.master, pair.param);
                if (reads(pair.param) || reads(pair.master)) && !mends {
                    let new = NewOp::new(observe)
                        .input(p, [pair.param])
                        .input(m, [pair.master])
                        .attr(pair_attr, i as i32)
                        .attr(sym::DTYPE, pair.low);
                    edit.insert(At::Before(op.id), new, "");
                }
            }
        }
    }
    edit.commit(&mut out, "observe");
    out
}

// ---- the laws

/// Proved in step means equal bits: at main's entry, after each step, and before each op that reads.
pub fn proved_is_equal(job: &Job) -> Said {
    proved_is_equal_in(job, &job.program())
}

/// The same of the rewritten program.
pub fn proved_is_equal_after_the_pipeline(job: &Job) -> Said {
    let mut p = job.program();
    rewrite(&mut p)?;
    proved_is_equal_in(job, &p)
}

fn proved_is_equal_in(job: &Job, program: &Program) -> Said {
    let proof = coherence(program);
    let pairs = pairs(&proof);
    let watched = observed(program, &pairs);
    SEEN.with_borrow_mut(Vec::clear);
    ROUNDED.with_borrow_mut(BTreeMap::clear);
    CONVERTED.with_borrow_mut(BTreeMap::clear);
    let mut converted = BTreeMap::new();
    let ran = {
        let kernels = kernels();
        let store = job.store();
        let mut interp = interpreter(&watched, &store, &kernels);
        let mut scope = Scope::new();
        let mut ran = Ran { entry: None, ends: Vec::new(), error: None };
        match interp.run(Section::Startup, &mut scope) {
            Err(e) => ran.error = Some(e.to_string()),
            Ok(_) => {
                ran.entry = Some(scope.clone());
                let rounded = ROUNDED.with_borrow(Clone::clone);
                converted = CONVERTED.with_borrow(Clone::clone);
                lossless(program, &proof, &scope, &rounded)?;
                for _ in 0..STEPS {
                    match interp.run(Section::Main, &mut scope) {
                        Ok(_) => ran.ends.push(scope.clone()),
                        Err(e) => {
                            ran.error = Some(e.to_string());
                            break;
                        }
                    }
                }
            }
        }
        ran
    };
    let Some(entry) = &ran.entry else { return Ok(tally([("startup stops", 1), (stop(&ran.error), 1)])) };
    let before_narrowing: Vec<Scope> = (0..4)
        .map(|k| {
            let mut wide = entry.clone();
            for (name, (value, from)) in &converted {
                if entry.get(name).is_some_and(|t| same(t, value)) {
                    wide.set(name, from[k.min(from.len() - 1)].clone());
                }
            }
            wide
        })
        .collect();
    let (mut proved, mut copies, mut singles) = (0, 0, 0);
    let mut pair_index = 0;
    for verdict in &proof.verdicts {
        match verdict.subject {
            Subject::Pair(pair) => {
                pair_index += 1;
                if !verdict.proved() {
                    continue;
                }
                proved += 1;
                for (when, scope) in
                    std::iter::once(("entry", entry)).chain(ran.ends.iter().map(|s| ("a step's end", s)))
                {
                    pair_agrees(program, &pair, scope).map_err(|e| format!("at {when}: {e}"))?;
                }
                let seen = SEEN.with_borrow(Clone::clone);
                if let Some((_, _, what)) = seen.iter().find(|s| s.0 == pair_index - 1 && !s.1) {
                    return Err(format!("an op of main reads {} out of step: {what}", program.name(pair.param)));
                }
            }
            Subject::Copy { cell, op, .. } if verdict.proved() => {
                copies += usize::from(copy_agrees(program, cell, op, entry, &before_narrowing)?);
            }
            Subject::Param(name) if verdict.proved() => {
                singles += 1;
                let declared = Cells::new(program).dtype(program, name);
                let holds = entry.get(program.name(name)).map(Tensor::dtype);
                if holds != declared {
                    return Err(format!("{} is declared {declared:?} and holds {holds:?}", program.name(name)));
                }
            }
            _ => {}
        }
    }
    Ok(tally([
        ("startup runs", 1),
        ("steps run", ran.ends.len()),
        ("pairs", pairs.len()),
        ("pairs proved", proved),
        ("copies proved", copies),
        ("singles proved", singles),
        ("reads seen", SEEN.with_borrow(Vec::len)),
    ]))
}

fn pair_agrees(program: &Program, pair: &Pair, scope: &Scope) -> Result<(), String> {
    let (p, m) = (program.name(pair.param), program.name(pair.master));
    let (Some(pv), Some(mv)) = (scope.get(p), scope.get(m)) else {
        return Err(format!("{p} or {m} has no value"));
    };
    if pv.dtype() != pair.low || mv.dtype() != DType::F32 {
        return Err(format!("{p} is {pv:?}, {m} is {mv:?}"));
    }
    match same(pv, &narrow(mv, pair.low)) {
        true => Ok(()),
        false => Err(format!("{p} is {pv:?}, {m} narrowed {:?}", narrow(mv, pair.low))),
    }
}

/// A proved master does not hold what was rounded from a float32 value.
fn lossless(
    program: &Program,
    proof: &Coherence,
    scope: &Scope,
    rounded: &BTreeMap<String, (Tensor, Tensor)>,
) -> Result<(), String> {
    for verdict in proof.verdicts.iter().filter(|v| v.proved()) {
        let Subject::Pair(pair) = verdict.subject else { continue };
        let name = program.name(pair.master);
        if let (Some(now), Some((value, wide))) = (scope.get(name), rounded.get(name))
            && same(now, value)
            && !same(now, wide)
            // What 16 bits hold has no more precision to lose than that.
            && ![DType::F16, DType::BF16].iter().any(|&l| same(&narrow(&narrow(wide, l), DType::F32), wide))
        {
            return Err(format!("{name} was rounded from {wide:?} to {now:?} and nothing says so"));
        }
    }
    Ok(())
}

/// Deriving the copy again gives what it holds: from what its sources hold, or from what they held before
/// they were narrowed.
fn copy_agrees(program: &Program, cell: Name, op: OpId, entry: &Scope, wide: &[Scope]) -> Result<bool, String> {
    let mut again = program.clone();
    let mut edit = Edit::new();
    let global = program.global_block(Section::Startup).expect("startup");
    program.ops(global).filter(|o| o.id != op).for_each(|o| edit.remove(o.id, ""));
    edit.commit(&mut again, "again");
    let name = program.name(cell);
    let mut wrong = None;
    for from in std::iter::once(entry).chain(wide) {
        let mut scope = from.clone();
        let Ok(_) = Interpreter::new(&again).run(Section::Startup, &mut scope) else { continue };
        match (entry.get(name), scope.get(name)) {
            (Some(was), Some(is)) if same(&narrow(was, DType::F32), &narrow(is, DType::F32)) => return Ok(true),
            (was, is) => wrong = Some(format!("copy {name} holds {was:?}; derived again {is:?}")),
        }
    }
    wrong.map_or(Ok(false), Err)
}

/// A pair that a last load leaves stale has a finding.
pub fn stale_is_found(job: &Job) -> Said {
    let mut job = job.clone();
    let pair = job.seed as usize % job.pairs.len();
    let (param, master) = (job.pairs[pair].param, job.pairs[pair].master);
    let cell = if job.seed >> 8 & 1 == 0 { param } else { master };
    let annotate = job.seed >> 9 & 1 == 0;
    let load = Step::Load { file: FILES as u8, outs: vec![(cell, cell)], annotate, pinned: false, as_fp16: false };
    job.startup.push(load);
    let program = job.program();
    let proof = coherence(&program);
    let name = &job.cells[param].name;
    let verdicts: Vec<_> = proof
        .verdicts
        .iter()
        .filter(|v| matches!(v.subject, Subject::Pair(p) if program.name(p.param) == name))
        .collect();
    match verdicts.iter().find(|v| v.proved()) {
        Some(_) => Err(format!("{name} is proved although {} was just loaded", job.cells[cell].name)),
        None => Ok(tally([("stale pairs", verdicts.len())])),
    }
}

fn rewrite(program: &mut Program) -> Result<bool, String> {
    let manager = PassManager::parse(PIPELINE).expect("a pipeline");
    let report = manager.run(program, &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
    report.map(|r| r.changed()).map_err(|e| format!("the pipeline refuses: {e}"))
}

/// After the pipeline the program verifies; and if startup gives every cell a first value, a second run changes
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
    if job.any(|s| matches!(s, Step::AmpInit { rewrite, .. } if !rewrite.is_empty())) {
        // `resync` clears these; only then does `load-order` see what they held back.
        rewrite(&mut p)?;
    }
    let once = text::print(&p);
    if rewrite(&mut p)? || text::print(&p) != once {
        return Err(format!("a second run changes the program from\n{once}\nto\n{}", text::print(&p)));
    }
    let proof = coherence(&p);
    let mut out = Tally::new();
    for verdict in &proof.verdicts {
        *out.entry("subjects").or_default() += 1;
        if verdict.proved() {
            *out.entry("proved").or_default() += 1;
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
    let set = |c: usize| job.startup.iter().any(|s| matches!(s, Step::Init { out, .. } if *out == c));
    (0..job.cells.len()).all(set)
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
        Finding::Lossy { .. } | Finding::Unproved { obligation: Obligation::Rounded(_), .. }
            if job.any(|s| matches!(s, Step::Load { as_fp16: true, .. })) =>
        {
            Some("narrowed by its load")
        }
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
fn held_back(job: &Job, pair: &super::Pair) -> bool {
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
    let mut rng = super::Rng::new(job.seed ^ 0x0DE5);
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

/// On straight lines, reaching definitions are the writes that a run sees.
pub fn reaching_definitions_are_seen(job: &Job) -> Said {
    let mut job = job.clone();
    job.startup.retain(|s| s.body().is_none());
    let program = job.program();
    let kinds = Ops::standard().resolve(&program);
    let effects = Effects::new(&program, &kinds);
    let defuse = DefUse::new(&program, &effects, Section::Startup);
    let global = program.global_block(Section::Startup).expect("startup");
    let ops = program.block(global).ops.clone();
    let names: Vec<Name> = program.names().iter().map(|(n, _)| n).collect();
    let mut watched = program.clone();
    let look = watched.symbol("look");
    let mut edit = Edit::new();
    for &op in &ops {
        edit.insert(At::Before(op), NewOp::new(look).input(sym::X, names.clone()), "");
    }
    edit.insert(At::End(global), NewOp::new(look).input(sym::X, names.clone()), "");
    edit.commit(&mut watched, "look");
    LOOKS.with_borrow_mut(Vec::clear);
    let ran = run(&watched, &job.store());
    let looks = LOOKS.with_borrow(Clone::clone);
    let here = |t: &Option<Tensor>| t.as_ref().map(|t| std::ptr::from_ref(t.data()));
    let (mut reads, mut writer) = (0, vec![None::<usize>; names.len()]);
    for (i, &op) in ops.iter().enumerate() {
        if i >= looks.len() {
            break;
        }
        for def in defuse.reads(op) {
            let def = defuse.def(def);
            let at = match def.site {
                DefSite::Entry => None,
                DefSite::Op(o) => Some(ops.iter().position(|&x| x == o).expect("an op of startup")),
                DefSite::LoopHead(_) => return Err("a loop head on a straight line".into()),
            };
            let column = names.iter().position(|&n| n == def.name).expect("a name");
            reads += 1;
            // A write that leaves the old value is a definition all the same.
            if writer[column] > at || at >= Some(i) {
                return Err(format!(
                    "{:?} reads {} as defined at {at:?}; the run saw a write at {:?}",
                    program.op(op),
                    program.name(def.name),
                    writer[column]
                ));
            }
            if let Some(at) = at {
                let mut named = false;
                effects.each(program.op(ops[at]), |n, a| {
                    named |= n == def.name && a != mastercast::analysis::effects::Access::Read;
                });
                if !named {
                    return Err(format!("{:?} does not write {}", program.op(ops[at]), program.name(def.name)));
                }
            }
        }
        let Some(after) = looks.get(i + 1) else { break };
        for (column, (old, new)) in looks[i].iter().zip(after).enumerate() {
            if here(old) != here(new) {
                writer[column] = Some(i);
            }
        }
    }
    Ok(tally([("reads", reads), ("startup runs", usize::from(ran.entry.is_some()))]))
}

/// The fault of an error, for a law that expects one.
#[allow(dead_code)]
pub fn fault(e: &InterpError) -> &Fault {
    e.fault()
}
