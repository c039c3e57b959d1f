//! Is what is proved so on every run? And is what is stale ever proved?

use super::run::{CANDIDATES, CONVERTED, ROUNDED, Ran, SEEN, interpreter, kernels, narrow, same, stop};
use super::{STEPS, Said, rewrite, tally};
use crate::jobs::{FILES, Job, Step};
use mastercast::analysis::cells::Cells;
use mastercast::analysis::{Coherence, Pair, Subject, Verdict, coherence};
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{At, DType, Edit, NewOp, OpId, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::{Effect, Ops};
use std::collections::BTreeMap;

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
    let before_narrowing: Vec<Scope> = (0..CANDIDATES)
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
            // What a load narrows itself was wide in the file alone.
            Subject::Copy { cell, op, .. }
                if verdict.proved() && !job.any(|s| matches!(s, Step::Load { as_fp16: true, .. })) =>
            {
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
