//! Is the proof sound against the interpreter, and does the rewrite keep what it must, on random jobs?
//!
//! Each test runs one law of `common/jobs/laws.rs` on many jobs. A failure prints the seed and the smallest
//! job found. `MASTERCAST_CASES` sets the number of jobs, `MASTERCAST_SEED` the first seed (default 1);
//! equal settings give equal jobs. With `MASTERCAST_SURVEY=1` a failure is told in one line and the run goes on.

#[path = "common/jobs/mod.rs"]
mod jobs;

use jobs::laws::{self, Said, Tally};
use jobs::{Job, Profile, shrink};
use mastercast::text;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Runs a law on many jobs; what it looked at.
fn hold(law: fn(&Job) -> Said, profile: Profile, cases: u64) -> Tally {
    let first = setting("MASTERCAST_SEED").unwrap_or(1);
    let cases = setting("MASTERCAST_CASES").unwrap_or(cases);
    let survey = setting("MASTERCAST_SURVEY").is_some();
    let mut total = Tally::new();
    let quiet = |job: &Job| catch_unwind(AssertUnwindSafe(|| law(job)));
    for seed in first..first + cases {
        let job = Job::random(seed, profile);
        match quiet(&job) {
            Ok(Ok(tally)) => tally.into_iter().for_each(|(k, n)| *total.entry(k).or_default() += n),
            said if survey => {
                let why = said.map_or("a panic".into(), |s| s.unwrap_err());
                eprintln!("{seed}: {}", why.lines().next().unwrap_or(""));
            }
            _ => {
                let (small, why) = shrink(&job, |j| match quiet(j) {
                    Ok(Ok(_)) => None,
                    Ok(Err(why)) => Some(why),
                    Err(panic) => Some(format!("panic: {:?}", panic.downcast_ref::<String>())),
                });
                panic!(
                    "seed {seed}, {} steps, shrunk to {}: {why}\nstartup {:#?}\nmain {:#?}\n{}",
                    job.size(),
                    small.size(),
                    small.startup,
                    small.main,
                    text::print(&small.program())
                );
            }
        }
    }
    if setting("MASTERCAST_CASES").is_some() {
        eprintln!("{cases} jobs from seed {first}: {total:?}");
    }
    total
}

/// Whether a law looked at enough; a few jobs alone may look at anything.
fn enough(tally: &Tally, holds: bool) {
    assert!(holds || setting("MASTERCAST_CASES").is_some_and(|n| n < 1000), "{tally:?}");
}

/// What was looked at, for a bound below which a law says nothing.
fn seen(tally: &Tally, what: &str) -> usize {
    tally.get(what).copied().unwrap_or(0)
}

#[test]
fn what_is_proved_is_equal_on_every_run() {
    hold(laws::proved_is_equal, Profile::Dense, 4000);
    let t = hold(laws::proved_is_equal, Profile::Wild, 4000);
    enough(&t, seen(&t, "startup runs") > 5 * seen(&t, "startup stops"));
    enough(&t, seen(&t, "pairs proved") * 8 > seen(&t, "pairs"));
    enough(&t, seen(&t, "copies proved") > 0 && seen(&t, "singles proved") > 0 && seen(&t, "reads seen") > 0);
}

#[test]
fn what_is_proved_after_the_pipeline_is_equal_on_every_run() {
    hold(laws::proved_is_equal_after_the_pipeline, Profile::Dense, 2000);
    let t = hold(laws::proved_is_equal_after_the_pipeline, Profile::Wild, 3000);
    enough(&t, seen(&t, "pairs proved") * 4 > 3 * seen(&t, "pairs"));
}

#[test]
fn what_is_stale_by_construction_is_never_proved() {
    let t = hold(laws::stale_is_found, Profile::Wild, 4000);
    enough(&t, seen(&t, "stale pairs") > 0);
}

#[test]
fn the_pipeline_mends_what_can_be_mended_and_runs_once() {
    let t = hold(laws::pipeline_mends, Profile::Plain, 2000);
    assert_eq!(seen(&t, "pairs proved"), seen(&t, "pairs"), "{t:?}");
    enough(&t, seen(&t, "settled late") * 200 <= seen(&t, "jobs"));
    let t = hold(laws::pipeline_mends, Profile::Wild, 3000);
    enough(&t, seen(&t, "pairs proved") * 10 > 8 * seen(&t, "pairs"));
    enough(&t, seen(&t, "settled late") * 20 <= seen(&t, "jobs"));
}

#[test]
fn loaded_values_survive_the_pipeline() {
    let t = hold(laws::loaded_values_survive, Profile::Plain, 3000);
    enough(&t, seen(&t, "parameter loaded") > 0 && seen(&t, "master or both loaded") > 0);
    enough(&t, seen(&t, "startup runs") > 5 * seen(&t, "startup stops"));
}

#[test]
fn load_order_keeps_the_order_of_dependent_ops() {
    let t = hold(laws::load_order_respects_dependences, Profile::Wild, 3000);
    enough(&t, seen(&t, "loads moved") > 0);
}

#[test]
fn every_order_that_the_dependences_allow_computes_the_same() {
    let t = hold(laws::dependences_are_enough, Profile::Wild, 3000);
    enough(&t, seen(&t, "orders") > 0);
}

#[test]
fn lowering_keeps_all_values() {
    let t = hold(laws::lowering_keeps_values, Profile::Wild, 2000);
    enough(&t, seen(&t, "steps") > 0);
}

#[test]
fn reaching_definitions_are_the_writes_that_a_run_sees() {
    let t = hold(laws::reaching_definitions_are_seen, Profile::Wild, 2000);
    enough(&t, seen(&t, "reads") > 0);
}
