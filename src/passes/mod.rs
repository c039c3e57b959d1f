//! How is a program rewritten? By passes: each queues edits against a frozen program and commits once.
//!
//! Every pass is idempotent (a second run changes nothing) and linear in the program, and leaves a
//! program that verifies if it got one. The header of each pass says *Before*, *After*, *Preserves*,
//! *Cost*.

mod cast_cleanup;
mod load_order;
mod lower;
mod manager;
mod master_casts;
pub mod precision;
mod resync;
mod standalone;
pub mod train_precision;

pub use cast_cleanup::CastCleanup;
pub use load_order::LoadOrder;
pub use lower::Lower;
pub use manager::{ManagerOptions, PassManager, PassReport, PipelineError, Report};
pub use master_casts::MasterCasts;
pub use precision::Precision;
pub use resync::{OnConflict, Resync};
pub use standalone::{Standalone, standalone};
pub use train_precision::TrainPrecision;

use crate::diag::Diagnostics;
use crate::ir::{EditSummary, Program};
use crate::names::Name;
use crate::ops::Ops;

/// Why a pass could not do its work. The program has then the same ops as before the pass, except where
/// [`PassError::Invalid`] says that the pass itself broke it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// the program does not verify
    #[error("the program does not verify {when} `{pass}`: {count} errors")]
    Invalid {
        /// the pass
        pass: String,
        /// `before` or `after`
        when: &'static str,
        /// number of errors
        count: usize,
        /// the findings
        diagnostics: Diagnostics,
    },
    /// the options do not fit, or the program is not one that the pass takes
    #[error("`{pass}`: {why}")]
    Refused {
        /// the pass
        pass: &'static str,
        /// the reason
        why: String,
    },
    /// an op has no form in the target framework
    #[error("`{pass}`: {what} ({place})")]
    NoForm {
        /// the pass
        pass: &'static str,
        /// what is missing
        what: String,
        /// the op
        place: String,
    },
}

/// What a pass works with besides the program.
pub struct PassCx<'c> {
    /// the op table
    pub ops: &'c Ops,
    /// pairs that the caller knows of
    pub declared: Vec<(Name, Name)>,
    /// what passes have to say about the user's program
    pub diagnostics: Diagnostics,
}

impl Default for PassCx<'_> {
    fn default() -> Self {
        PassCx { ops: Ops::standard(), declared: Vec::new(), diagnostics: Diagnostics::new() }
    }
}

/// A rewrite of a program.
pub trait Pass: Send + Sync {
    /// The name in pipelines.
    fn name(&self) -> &'static str;
    /// Rewrites the program and says what changed.
    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError>;
    /// The options as JSON, as a pipeline shows them.
    fn options(&self) -> serde_json::Value;
}

/// A pass in the table.
pub struct PassEntry {
    /// the name in pipelines
    pub name: &'static str,
    /// one line about it
    pub summary: &'static str,
    /// makes it from its options (a JSON object; missing keys take their defaults)
    pub make: fn(serde_json::Value) -> Result<Box<dyn Pass>, serde_json::Error>,
}

fn make<P: Pass + serde::de::DeserializeOwned + 'static>(
    options: serde_json::Value,
) -> Result<Box<dyn Pass>, serde_json::Error> {
    Ok(Box::new(serde_json::from_value::<P>(options)?))
}

/// All passes, in the order in which they are usually run.
pub static PASSES: &[PassEntry] = &[
    PassEntry {
        name: "precision",
        summary: "rewrites a float32 forward program to mixed precision (O1, O2, OD), as Paddle 2.6.2 does where that is sound",
        make: make::<Precision>,
    },
    PassEntry {
        name: "train-precision",
        summary: "rewrites a finished float32 training program to mixed precision: forward, backward, loss scaling, optimizer",
        make: make::<TrainPrecision>,
    },
    PassEntry {
        name: "master-casts",
        summary: "gives each 16-bit parameter of an optimizer that wants one a float32 master, seeded from the float32 value",
        make: make::<MasterCasts>,
    },
    PassEntry {
        name: "load-order",
        summary: "moves loads in startup after the initialisers and before the master casts and amp_init",
        make: make::<LoadOrder>,
    },
    PassEntry {
        name: "resync",
        summary: "brings pairs and derived copies back in step after a load that could not be moved",
        make: make::<Resync>,
    },
    PassEntry {
        name: "cast-cleanup",
        summary: "removes and merges casts that a rewrite to mixed precision made, and moves them out of loops",
        make: make::<CastCleanup>,
    },
    PassEntry {
        name: "lower",
        summary: "turns load, amp_init and resync into the target framework's own ops",
        make: make::<Lower>,
    },
];
