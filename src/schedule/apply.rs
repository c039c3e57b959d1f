//! How does a schedule become ops? `load` and `amp_init` in the startup program, after a check against each manifest.
//!
//! Nothing is written when a checkpoint does not fit: the check (`check.rs`) comes first, and a finding of
//! severity error leaves the program as it was.

use super::check::{Load, Matcher};
use super::report::Applied;
use super::targets::{Part, Targets};
use super::{Schedule, Step};
use crate::ckpt::{CkptError, Manifest};
use crate::diag::{Diagnostics, Places};
use crate::ir::{At, AttrValue, BlockId, DType, Edit, EditNote, NewOp, Program, Section};
use crate::names::{Name, SeededMap, sym};
use rustc_hash::FxHashSet;

/// Why a schedule could not be applied. The program is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// a checkpoint's manifest could not be read
    #[error("load({path}): {source}")]
    Manifest {
        /// the path, as the schedule has it
        path: String,
        /// why
        source: CkptError,
    },
}

/// The op that a step becomes, in the order of the schedule.
enum Planned {
    Load(usize),
    AmpInit,
}

impl Schedule {
    /// Writes the schedule's loads and `amp_init`s into the startup program, as the work of `schedule`.
    ///
    /// `manifests` gives what the checkpoint at a path of the schedule holds ([`crate::ckpt::open`] and
    /// [`Manifest::of`], usually); it is asked once a path, in order, before anything is written. Applying a second time writes the ops a second time.
    ///
    /// # Errors
    /// [`ApplyError`] when a manifest cannot be read. A checkpoint that does not fit is no error of this
    /// call but a finding in [`Applied::diagnostics`].
    pub fn apply(
        &self,
        program: &mut Program,
        manifests: &mut dyn FnMut(&str) -> Result<Manifest, CkptError>,
    ) -> Result<Applied, ApplyError> {
        let mut by_path: SeededMap<&str, Manifest> = SeededMap::default();
        for path in self.paths() {
            if !by_path.contains_key(path) {
                let manifest =
                    manifests(path).map_err(|source| ApplyError::Manifest { path: path.to_owned(), source })?;
                by_path.insert(path, manifest);
            }
        }
        let targets = Targets::of(program);
        let places = Places::new(program);
        let mut applied = Applied::default();
        let mut plans = Vec::new();
        for step in &self.steps {
            if let Step::Load { path, only } = step {
                let found = Diagnostics::new();
                let mut matcher = Matcher { program, targets: &targets, path, only: *only, places: &places, found };
                let (plan, report) = matcher.run(&by_path[path.as_str()]);
                applied.diagnostics.extend(matcher.found);
                applied.loads.push(report);
                plans.push(plan);
            }
        }
        if !applied.diagnostics.has_errors() {
            self.write(program, &targets, &plans, &mut applied);
        }
        Ok(applied)
    }

    fn write(&self, program: &mut Program, targets: &Targets, plans: &[Vec<Load<'_>>], applied: &mut Applied) {
        let block = program.ensure_global_block(Section::Startup);
        let mut edit = Edit::new();
        let mut brought = FxHashSet::default();
        let mut planned = Vec::new();
        let (mut at, mut load) = (At::Start(block), 0);
        declare(program, &mut edit, block, targets, plans.iter().flatten().map(|l| l.cell));
        for step in &self.steps {
            match step {
                Step::Startup => at = At::End(block),
                Step::Main => {}
                Step::Load { path, .. } => {
                    let plan = &plans[load];
                    if !plan.is_empty() {
                        brought.extend(plan.iter().map(|l| l.cell));
                        edit.insert(at, load_op(path, plan), format!("the schedule loads {path}"));
                        planned.push(Planned::Load(load));
                    }
                    load += 1;
                }
                Step::AmpInit { rewrite_master } => {
                    for (dtype, params) in narrow_groups(program, targets, &brought) {
                        let op = amp_init(targets, dtype, &params, *rewrite_master);
                        edit.insert(at, op, format!("the schedule narrows to {dtype}"));
                        planned.push(Planned::AmpInit);
                        applied.narrowed.extend(params.iter().map(|&p| program.name(p).to_owned()));
                    }
                }
            }
        }
        let summary = edit.commit(program, "schedule");
        let ops = summary.notes.iter().filter_map(|n| match n {
            EditNote::Inserted(op, _) => Some(*op),
            _ => None,
        });
        for (what, op) in planned.into_iter().zip(ops) {
            match what {
                Planned::Load(i) => applied.loads[i].op = Some(op),
                Planned::AmpInit => applied.amp_inits.push(op),
            }
        }
    }
}

/// Declares in startup what only main declares; a name twice is declared once.
fn declare(program: &Program, edit: &mut Edit, block: BlockId, targets: &Targets, names: impl Iterator<Item = Name>) {
    let mut done = FxHashSet::default();
    for name in names {
        if targets.startup(name).is_none() && done.insert(name) {
            let from = targets.decl(name);
            let anchor = program.var(from).origin;
            edit.declare(block, program.var_def(from), anchor, "startup loads what main declares");
        }
    }
}

fn load_op(path: &str, plan: &[Load<'_>]) -> NewOp {
    NewOp::new(sym::LOAD)
        .output(sym::OUT, plan.iter().map(|l| l.cell).collect::<Vec<_>>())
        .attr(sym::FILE_PATH, path)
        .attr(sym::KEYS, AttrValue::strs(plan.iter().map(|l| l.entry.name.as_str())))
        .attr(sym::STORED_DTYPES, AttrValue::Ints(plan.iter().map(|l| l.entry.dtype.code()).collect()))
}

/// Parameters that main declares 16-bit and startup otherwise, or that a load `brought`, by their type in
/// main. (Paddle's `amp_init` takes them whatever they hold; narrowing one that is narrow changes nothing.)
fn narrow_groups(program: &Program, targets: &Targets, brought: &FxHashSet<Name>) -> Vec<(DType, Vec<Name>)> {
    let mut groups: Vec<(DType, Vec<Name>)> = Vec::new();
    for &name in &targets.names {
        let Some(dtype) = targets.main_dtype(program, name).filter(|d| d.is_low()) else { continue };
        if !matches!(targets.part(name), Part::Param { .. }) {
            continue;
        }
        let wider = targets.startup(name).is_some_and(|v| program.var(v).dtype != dtype);
        if !wider && !brought.contains(&name) {
            continue;
        }
        match groups.iter_mut().find(|(d, _)| *d == dtype) {
            Some((_, params)) => params.push(name),
            None => groups.push((dtype, vec![name])),
        }
    }
    groups
}

fn amp_init(targets: &Targets, dtype: DType, params: &[Name], rewrite_master: bool) -> NewOp {
    let op = NewOp::new(sym::AMP_INIT).input(sym::X, params);
    let pairs = if rewrite_master { targets.masters(params) } else { Vec::new() };
    if pairs.is_empty() {
        return op.output(sym::OUT, params).attr(sym::DTYPE, dtype);
    }
    let (of, masters): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    op.input(sym::MASTER_OF, of).output(sym::OUT, params).output(sym::MASTER_PARAM_OUT, masters).attr(sym::DTYPE, dtype)
}
