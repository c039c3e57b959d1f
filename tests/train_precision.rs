//! Does the pass `train-precision` make of a float32 training program what Paddle makes when it decorates?

#[allow(dead_code, reason = "another test uses the rest")]
mod parity;
mod training;

use mastercast::analysis::coherence;
use mastercast::diag::Severity;
use mastercast::ir::Program;
use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::Level;
use mastercast::passes::{Pass, PassCx};
use mastercast::schedule::Schedule;
use mastercast::verify::{Checks, verify};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use training::cases::{Case, Files, cases, read_dir};
use training::compare::{differences, faults, sequence};

/// The rewritten program and Paddle's; checks what must hold of the rewritten one.
fn rewrite(case: &Case) -> Result<(Program, Program, Program), String> {
    let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
    let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
    let mut ours = source.clone();
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let done = case.options.run(&mut ours, &mut PassCx::default()).map_err(|e| text(&e))?;
    if done.changed() == (case.options.level == Level::O0) {
        return Err("changed at O0, or not elsewhere".to_owned());
    }
    let found = verify(&ours, Checks::ALL.without(Checks::READS));
    let errors: Vec<String> =
        found.iter().filter(|d| d.severity == Severity::Error).map(|d| d.message.clone()).collect();
    if !errors.is_empty() {
        return Err(format!("does not verify: {}", errors.join("; ")));
    }
    let again = case.options.run(&mut ours.clone(), &mut PassCx::default()).map_err(|e| text(&e))?;
    if again.changed() {
        return Err("a second run changes it".to_owned());
    }
    if case.startup.is_some() {
        let mut job = ours.clone();
        let schedule = Schedule::parse("startup, amp_init, main").unwrap();
        schedule.apply(&mut job, &mut |_| panic!("nothing is loaded")).map_err(|e| text(&e))?;
        let proof = coherence(&job);
        if !proof.proved() {
            return Err(format!("not in step: {:?}", proof.pair_counts()));
        }
    }
    Ok((source, ours, theirs))
}

/// One row of the table.
#[derive(Default)]
struct Row {
    files: usize,
    /// equal multisets of ops
    equal: usize,
    /// of these, in the same order
    ordered: usize,
    reasons: BTreeMap<&'static str, usize>,
}

/// Compares all cases, prints the table, and returns what is not explained.
fn table(models: BTreeMap<String, Files>) -> (usize, Vec<String>) {
    let only = std::env::var("MASTERCAST_ONLY").unwrap_or_default();
    let mut table: BTreeMap<String, Row> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for (model, files) in models {
        let row = table.entry(model.clone()).or_default();
        for case in cases(&files) {
            let id = format!("{model}/{}", case.file);
            if !id.contains(&only) {
                continue;
            }
            row.files += 1;
            let (source, ours, theirs) = match rewrite(&case) {
                Ok(all) => all,
                Err(e) => {
                    unexplained.push(format!("{id}: {e}"));
                    continue;
                }
            };
            let differing = differences(&ours, &theirs);
            if differing.is_empty() {
                row.equal += 1;
                row.ordered += usize::from(sequence(&ours) == sequence(&theirs));
                continue;
            }
            let mut reasons = faults(&source, &theirs);
            if case.options.level == Level::O0 {
                reasons = BTreeSet::from(["level O0 is off"]);
            }
            if !only.is_empty() {
                println!("{id} {reasons:?}\n    {}", differing.join("\n    "));
            }
            match reasons.first() {
                Some(reason) => *row.reasons.entry(reason).or_default() += 1,
                None => unexplained.push(format!("{id}: {} differ, first {}", differing.len(), differing[0])),
            }
        }
    }
    println!("{:<18} {:>5} {:>5} {:>8}  what is wrong with Paddle's program", "model", "files", "equal", "in order");
    for (model, Row { files, equal, ordered, reasons }) in &table {
        let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{n}: {r}")).collect();
        println!("{model:<18} {files:>5} {equal:>5} {ordered:>8}  {}", reasons.join("; "));
    }
    let sum = |f: fn(&Row) -> usize| table.values().map(f).sum::<usize>();
    println!("{:<18} {:>5} {:>5} {:>8}", "all", sum(|r| r.files), sum(|r| r.equal), sum(|r| r.ordered));
    (sum(|r| r.equal), unexplained)
}

#[test]
fn training_programs_are_what_paddle_makes() {
    let (equal, unexplained) = table(parity::cases::unpack(include_bytes!("data/amp/train.zst")));
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(equal >= 345 || std::env::var("MASTERCAST_ONLY").is_ok(), "{equal}");
}

/// The same of a corpus on disk.
#[test]
fn a_corpus_is_rewritten_as_paddle_decorates() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let (_, unexplained) = table(read_dir(Path::new(&dir)));
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}
