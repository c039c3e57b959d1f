//! Does the precision pass do what Paddle does, wherever that is sound?
//!
//! Every forward rewrite of a corpus is done again and compared: casts, their places, order and attributes, the
//! arguments and attributes of every op, every declaration, and the returned set.

mod parity;

use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::{Decisions, Level, decide};
use mastercast::passes::{Pass, PassCx, Precision};
use mastercast::verify::{Checks, verify};
use parity::cases::{Case, cases, read_dir, unpack};
use parity::compare::{Difference, compare};
use parity::explain::{explain, faults};
use std::collections::BTreeMap;
use std::path::Path;

/// What a run over cases found.
#[derive(Default)]
struct Table {
    files: usize,
    equal: usize,
    ops: usize,
    differing: usize,
    by_reason: BTreeMap<String, usize>,
    /// faults of Paddle's programs: kind, model, number
    faults: BTreeMap<(&'static str, String), usize>,
    returned_equal: usize,
    /// files in which Paddle declares a parameter low that it does not return
    low_not_returned: usize,
    open: Vec<String>,
}

fn decided(case: &Case, options: &Precision) -> (Program, Decisions) {
    let program = read_program(None, Some(&case.source)).unwrap();
    let (_, kinds) = options.prepare(&program).unwrap_or_else(|e| panic!("{} {}: {e}", case.model, case.file));
    let decisions = decide(&program, options, kinds);
    (program, decisions)
}

fn returned(program: &Program, decisions: &Decisions) -> Vec<String> {
    let mut names: Vec<String> =
        program.names().iter().filter(|&(n, _)| decisions.is_returned(n)).map(|(_, t)| t.to_owned()).collect();
    names.sort();
    names
}

fn rewritten(case: &Case, options: &Precision) -> Program {
    let mut program = read_program(None, Some(&case.source)).unwrap();
    options.run(&mut program, &mut PassCx::default()).unwrap();
    program
}

fn run(case: &Case, table: &mut Table) {
    let theirs = read_program(None, Some(&case.result)).unwrap();
    let ours = rewritten(case, &case.options);
    let source = read_program(None, Some(&case.source)).unwrap();
    let place = format!("{} {}", case.model, case.file);
    table.files += 1;
    table.ops += source.section_blocks(Section::Main).map(|b| source.ops(b).len()).sum::<usize>();

    // Ours is at least as sound as the source.
    let (before, after) = (verify(&source, Checks::ALL), verify(&ours, Checks::ALL));
    if after.len() > before.len() {
        table.open.push(format!("{place}: our result does not verify: {after:?}"));
    }
    let found = faults(&source, &theirs, &case.options);
    for (&kind, n) in &found.count {
        *table.faults.entry((kind, case.model.clone())).or_default() += n;
    }
    let differences = compare(&ours, &theirs);
    let ops = |d: &[Difference]| d.iter().filter(|d| d.at.is_some()).count();
    table.equal += usize::from(differences.is_empty());
    table.differing += ops(&differences);

    // The declared set is Paddle's; the returned one is a set apart.
    let (program, decisions) = decided(case, &case.options);
    let declared_low = |p: &Program| {
        let vars = p.section_blocks(Section::Main).flat_map(|b| p.block(b).vars.clone());
        let mut names: Vec<String> = vars
            .filter(|&v| p.var(v).is_parameter() && p.var(v).dtype == case.options.dtype.dtype())
            .map(|v| p.name(p.var(v).name).to_owned())
            .collect();
        names.sort();
        names
    };
    let mut low: Vec<String> = decisions.params.low().map(|n| program.name(n).to_owned()).collect();
    low.sort();
    // A set may differ in variables alone in which Paddle's program is at fault.
    let unsound = |a: &[String], b: &[String]| {
        let only = |a: &[String], b: &[String]| a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>();
        [only(a, b), only(b, a)].concat().iter().all(|n| found.by_name.contains_key(n))
    };
    if !unsound(&low, &declared_low(&theirs)) {
        table.open.push(format!("{place}: low {low:?}, Paddle {:?}", declared_low(&theirs)));
    }
    assert_eq!(low, declared_low(&ours), "{place}");
    table.low_not_returned += usize::from(low.iter().any(|n| case.returned.binary_search(n).is_err()));
    let same_set = returned(&program, &decisions) == case.returned;
    table.returned_equal += usize::from(same_set);

    let has_lists = !(case.options.white.is_empty() && case.options.black.is_empty());
    if case.options.level == Level::OD && has_lists && (!differences.is_empty() || !same_set) {
        // Proof that the lists were dropped: without them, ours is Paddle's program.
        let plain = Precision { white: vec![], black: vec![], black_vars: vec![], ..case.options.clone() };
        let ours = rewritten(case, &plain);
        let (program, decisions) = decided(case, &plain);
        let (rest, open) = explain(&ours, &theirs, &found, &compare(&ours, &theirs));
        if open.is_empty() && returned(&program, &decisions) == case.returned {
            let rest: usize = rest.values().sum();
            *table.by_reason.entry("user-list-dropped".into()).or_default() += ops(&differences).max(rest);
        } else {
            table.open.extend(open.iter().map(|d| format!("{place}, without lists {:?}: {}", d.at, d.what)));
        }
        return;
    }
    if !unsound(&returned(&program, &decisions), &case.returned) {
        table.open.push(format!("{place}: another returned set"));
    }
    let (_, open) = explain(&ours, &theirs, &found, &differences);
    let op_differences: Vec<Difference> = differences.iter().filter(|d| d.at.is_some()).cloned().collect();
    for (why, n) in explain(&ours, &theirs, &found, &op_differences).0 {
        *table.by_reason.entry(why).or_default() += n;
    }
    table.open.extend(open.iter().map(|d| format!("{place} {:?}: {}", d.at, d.what)));
}

fn show(table: &Table) {
    println!("files {}, equal {}, returned sets equal {}", table.files, table.equal, table.returned_equal);
    println!("ops {}, differing {}", table.ops, table.differing);
    for (why, n) in &table.by_reason {
        println!("  {n:5} {why}");
    }
    println!("Paddle's faults by kind and model:");
    for ((kind, model), n) in &table.faults {
        println!("  {kind:18} {model:16} {n}");
    }
    println!("files whose returned set lacks a parameter declared low: {}", table.low_not_returned);
    println!("not explained: {}", table.open.len());
}

fn all(models: BTreeMap<String, parity::cases::Files>) -> Table {
    let mut table = Table::default();
    for (model, found) in models {
        for case in cases(&model, &found) {
            run(&case, &mut table);
        }
    }
    show(&table);
    assert!(table.files > 0 && table.open.is_empty(), "{}", table.open.join("\n"));
    table
}

/// Set MASTERCAST_CORPUS to a directory that holds a folder a model.
#[test]
fn a_corpus_is_rewritten_as_paddle_does() {
    match std::env::var_os("MASTERCAST_CORPUS") {
        Some(dir) => drop(all(read_dir(Path::new(&dir)))),
        None => eprintln!("skipped: MASTERCAST_CORPUS is not set"),
    }
}

#[test]
fn the_packed_corpus_is_rewritten_as_paddle_does() {
    let table = all(unpack(include_bytes!("data/amp/forward.zst")));
    assert_eq!((table.files, table.equal, table.returned_equal), (433, 393, 419));
    // Every kind of difference is there, so that the checks are run.
    for kind in ["capture-list", "mixed-dtype", "undominated-cast", "user-cast-changed"] {
        assert!(table.faults.keys().any(|(k, _)| *k == kind), "no {kind}");
    }
}
