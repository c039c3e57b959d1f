//! How do the cells of a program become a state dict, and a checkpoint become the cells' values?
//!
//! [`cells`] lists what a program keeps between runs; [`Load::plan`] decides from manifests alone, and
//! [`Load::run`] writes into a scope: all of it, or nothing. [`state_dict`] and [`set_state_dict`] are the same
//! for tensors that are at hand, so that a run can be saved and go on elsewhere bit for bit.

mod dict;
mod load;
mod read;

pub use dict::{checkpoint_of, set_state_dict, state_dict};
pub use load::{Conflict, Load, LoadError, LoadReport, Loaded};
pub use read::{Progress, read_tensor};

use crate::ckpt::plan::{Cell, Role};
use crate::ir::{DType, Program};
use crate::names::Name;
use crate::schedule::targets::{Part, Targets};
use rustc_hash::FxHashMap;

/// The persistable tensors of a program as cells of a load, in the order of its declarations: parameters,
/// masters, accumulators, loss-scaling state.
pub fn cells(program: &Program) -> Vec<Cell> {
    let targets = Targets::of(program);
    let index: FxHashMap<Name, usize> = targets.names.iter().enumerate().map(|(i, &n)| (n, i)).collect();
    let params: Vec<Name> =
        targets.names.iter().copied().filter(|&n| matches!(targets.part(n), Part::Param { .. })).collect();
    // The pair of the optimizer, where a parameter has several masters.
    let pairs = targets.masters(&params);
    let master_of: FxHashMap<Name, usize> = pairs.iter().map(|&(p, m)| (p, index[&m])).collect();
    let param_of: FxHashMap<Name, usize> = pairs.iter().map(|&(p, m)| (m, index[&p])).collect();
    let cell = |&name: &Name| {
        let role = match targets.part(name) {
            Part::Param { .. } => Role::Param { master: master_of.get(&name).copied() },
            // A second master of one parameter stands for itself.
            Part::Master => param_of.get(&name).map_or(Role::Other, |&param| Role::Master { param }),
            Part::Other => Role::Other,
        };
        let decl = targets.decl(name);
        let dtype = program.var(decl).dtype;
        let also: Option<DType> = targets.declared(program, name).find(|&d| d != dtype);
        Cell { name: program.name(name).to_owned(), role, dtype, also, shape: program.shape(decl).to_vec() }
    };
    targets.names.iter().map(cell).collect()
}
