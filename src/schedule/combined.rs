//! Which tensors does a file without names hold? Those whose count and shapes fit, in order of name.
//!
//! `save_combine` writes tensors one after the other without a name. Paddle's `save_vars` and its callers
//! (`save_params`, `save_persistables`, `save_inference_model`, `.pdiparams`) sort the variables by name, so
//! the set of variables gives the order. A set is taken only when every shape fits.

use super::Only;
use super::targets::{Part, Targets};
use crate::ckpt::TensorEntry;
use crate::ir::Program;

/// Names for the tensors of a combined file, see [`combined_names`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CombinedNames {
    /// one a tensor, in file order
    pub names: Vec<String>,
    /// what they are: `parameters`, `masters`, `parameters and masters`, `persistables`
    pub what: &'static str,
}

/// Names for the tensors of a combined file that holds all parameters, all parameters and masters, or all
/// persistables of a program, in order of name; `None` when no set fits in count and shapes. A load of
/// masters alone (`only`) looks for the masters first.
///
/// Hand the names to [`crate::ckpt::open_combined`].
pub fn combined_names(program: &Program, entries: &[TensorEntry], only: Only) -> Option<CombinedNames> {
    let targets = Targets::of(program);
    sets(&targets, only).into_iter().find_map(|(what, want)| {
        let mut cells: Vec<_> = targets.names.iter().copied().filter(|&n| want(targets.part(n))).collect();
        cells.sort_unstable_by_key(|&n| program.name(n));
        let fits = cells.len() == entries.len()
            && cells.iter().zip(entries).all(|(&n, e)| shape_fits(program.shape(targets.decl(n)), &e.shape));
        fits.then(|| CombinedNames { names: cells.iter().map(|&n| program.name(n).to_owned()).collect(), what })
    })
}

/// How many cells each set has: what to compare the file's count with.
pub(super) fn set_sizes(targets: &Targets, only: Only) -> Vec<(&'static str, usize)> {
    let count = |want: Want| targets.names.iter().filter(|&&n| want(targets.part(n))).count();
    sets(targets, only).into_iter().map(|(what, want)| (what, count(want))).collect()
}

type Want = fn(Part) -> bool;

/// The sets, smallest first.
fn sets(targets: &Targets, only: Only) -> Vec<(&'static str, Want)> {
    let params: Want = |p| matches!(p, Part::Param { .. });
    let masters: Want = |p| p == Part::Master;
    let has_masters = targets.names.iter().any(|&n| targets.part(n) == Part::Master);
    let mut out = vec![if only == Only::Masters { ("masters", masters) } else { ("parameters", params) }];
    if has_masters {
        out.push(("parameters and masters", |p| p != Part::Other));
    }
    out.push(("persistables", |_| true));
    out
}

/// Whether a stored shape fits a declared one, in which -1 fits anything.
pub(super) fn shape_fits(declared: &[i64], stored: &[u64]) -> bool {
    let same = |d: &i64, e: &u64| *d == -1 || u64::try_from(*d) == Ok(*e);
    declared.len() == stored.len() && declared.iter().zip(stored).all(|(d, e)| same(d, e))
}
