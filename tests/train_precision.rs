//! Does the pass `train-precision` make of a float32 training program what Paddle makes when it decorates?

mod training;

use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::Level;
use mastercast::passes::{Pass, PassCx};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use training::cases::{Case, cases, read_dir};
use training::compare::{differences, faults, sequence};

/// Where the rewrite differs from Paddle's, and what is wrong with Paddle's program.
fn compare(case: &Case) -> (Vec<String>, BTreeSet<&'static str>) {
    let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
    let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
    let mut ours = source.clone();
    match case.options.run(&mut ours, &mut PassCx::default()) {
        Err(e) => (vec![e.to_string()], BTreeSet::new()),
        Ok(_) => {
            if std::env::var("MASTERCAST_SHOW").is_ok() {
                println!("{}", mastercast::text::print(&ours));
            }
            let mut reasons = faults(&source, &theirs);
            if case.options.level == Level::O0 {
                reasons.insert("level O0 is off");
            }
            let (a, b) = (sequence(&ours), sequence(&theirs));
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                if let Some(j) = a.iter().zip(b).position(|(a, b)| a != b)
                    && differences(&ours, &theirs).is_empty()
                {
                    println!("{} block {i} op {j}: {} / {}", case.file, a[j], b[j]);
                }
            }
            (differences(&ours, &theirs), reasons)
        }
    }
}

#[test]
fn a_corpus_is_rewritten_as_paddle_decorates() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let only = std::env::var("MASTERCAST_ONLY").unwrap_or_default();
    let mut table: BTreeMap<String, (usize, usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for (model, found) in read_dir(Path::new(&dir)) {
        let row = table.entry(model.clone()).or_default();
        for case in cases(&found) {
            let id = format!("{model}/{}", case.file);
            if !id.contains(&only) {
                continue;
            }
            row.0 += 1;
            let (differing, reasons) = compare(&case);
            if differing.is_empty() {
                row.1 += 1;
                continue;
            }
            if !only.is_empty() {
                println!("{id} {reasons:?}");
                differing.iter().for_each(|line| println!("    {line}"));
            }
            match reasons.first() {
                Some(reason) => *row.2.entry(reason).or_default() += 1,
                None => unexplained.push(format!("{id}: {} differ, first {}", differing.len(), differing[0])),
            }
        }
    }
    println!("{:<20} {:>5} {:>5}  what is wrong with Paddle's program", "model", "files", "equal");
    for (model, (files, equal, reasons)) in &table {
        let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{r}: {n}")).collect();
        println!("{model:<20} {files:>5} {equal:>5}  {}", reasons.join("; "));
    }
    let sum = |f: fn(&(usize, usize, BTreeMap<&str, usize>)) -> usize| table.values().map(f).sum::<usize>();
    println!("{:<20} {:>5} {:>5}", "all", sum(|r| r.0), sum(|r| r.1));
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}
