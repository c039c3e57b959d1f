//! What did a schedule do to the program? Names, bytes and ops, load by load.

use crate::diag::Diagnostics;
use crate::ir::OpId;

/// Names that a load concerns, each list in the order of the program's declarations or of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lists {
    /// cells that the load writes
    pub loaded: Vec<String>,
    /// keys that are read for a cell of another name: key, cell, why
    pub mapped: Vec<(String, String, String)>,
    /// parameters (with `only=masters`: masters) that the checkpoint does not bring
    pub missing: Vec<String>,
    /// keys that the program has no cell for
    pub unexpected: Vec<String>,
    /// keys that fit a cell but were left out by `only`
    pub left_out: Vec<String>,
}

/// What one load does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadReport {
    /// the path, as the schedule has it
    pub path: String,
    /// the op; `None` when the program was left as it was
    pub op: Option<OpId>,
    /// the names
    pub names: Lists,
    /// bytes that the loaded entries hold
    pub bytes: u64,
}

/// What applying a schedule did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// one row a load, in the order of the schedule
    pub loads: Vec<LoadReport>,
    /// the `amp_init` ops, in the order of the schedule
    pub amp_inits: Vec<OpId>,
    /// parameters that an `amp_init` narrows
    pub narrowed: Vec<String>,
    /// findings about the checkpoints; with an error among them the program was left as it was
    pub diagnostics: Diagnostics,
}
