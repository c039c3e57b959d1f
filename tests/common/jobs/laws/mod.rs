//! What must hold of every job? Each law runs a job, or its rewrite, in the interpreter and compares.
//!
//! A law gives `Err` with what is wrong, or a [`Tally`] of what it looked at, so that a test can refuse
//! laws that hold because nothing was looked at. One file, because the laws share their runs.

mod defs;
mod passes;
mod proof;
mod run;

pub use defs::reaching_definitions_are_seen;
pub use passes::{
    dependences_are_enough, load_order_respects_dependences, loaded_values_survive, lowering_keeps_values,
    pipeline_mends,
};
pub use proof::{proved_is_equal, proved_is_equal_after_the_pipeline, stale_is_found};

use mastercast::ir::Program;
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
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

/// Runs the pipeline; whether it changed anything.
fn rewrite(program: &mut Program) -> Result<bool, String> {
    let manager = PassManager::parse(PIPELINE).expect("a pipeline");
    let report = manager.run(program, &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
    report.map(|r| r.changed()).map_err(|e| format!("the pipeline refuses: {e}"))
}
