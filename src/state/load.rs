//! How is a plan carried out? Everything is read first, then written: on an error the scope is as it was.

use super::read::{Progress, read_tensor};
use crate::ckpt::names::{KeyRef, Why};
use crate::ckpt::plan::{Cell, OnConflict, Plan, Policy, Problem, Source, plan};
use crate::ckpt::{Checkpoint, CkptError, Manifest, agree_narrowed_as};
use crate::convert::Narrowing;
use crate::interp::{Scope, Tensor};
use crate::ir::{DType, Program};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Checkpoints that are loaded together into the cells of a program: say a `.pdparams` and its `.pdopt`.
pub struct Load<'c> {
    cells: Vec<Cell>,
    sources: Vec<&'c dyn Checkpoint>,
    manifests: Vec<Manifest>,
    policy: Policy,
    plan: Plan,
}

/// Why a load was not done. The scope is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// the checkpoint does not fit the program
    #[error("the checkpoint does not fit: {}{}", .0.problems.first().map(|p| p.to_string()).unwrap_or_default(), more(.0))]
    Problems(Box<LoadReport>),
    /// a parameter and its master differ in the checkpoint, and the policy says that this is an error
    #[error("`{}` and its master `{}` differ in the checkpoint, by at most {}", .0.param, .0.master, .0.largest)]
    Conflict(Conflict),
    /// a tensor could not be read
    #[error(transparent)]
    Read(#[from] CkptError),
}

fn more(report: &LoadReport) -> String {
    match report.problems.len() {
        0 | 1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    }
}

/// A parameter that is not its narrowed master, both in the checkpoint.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Conflict {
    /// the parameter's cell
    pub param: String,
    /// the master's cell
    pub master: String,
    /// the largest absolute difference; NaN when a NaN differs
    pub largest: f32,
}

/// A cell that a load writes, or has written.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Loaded {
    /// the cell
    pub name: String,
    /// the key
    pub key: String,
    /// its checkpoint, by number
    pub file: usize,
    /// why this key
    pub why: Why,
    /// the entry is that of the pair's other half: `parameter` or `master`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derived_from: Option<&'static str>,
    /// the stored type and the cell's, when they differ
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cast: Option<(String, String)>,
    /// a master that was made from 16 bits: float32 precision is not in the checkpoint
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_16_bits: bool,
}

/// What a load does, or did.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct LoadReport {
    /// paths of the checkpoints, by number
    pub checkpoints: Vec<String>,
    /// cells that are written, in the order of the program
    pub loaded: Vec<Loaded>,
    /// cells that keep their values although they were asked for
    pub kept: Vec<String>,
    /// keys that are left alone
    pub left: Vec<String>,
    /// parameters that differ from their masters; known only once the data was read
    pub conflicts: Vec<Conflict>,
    /// parameters that are their master rounded in another way (Paddle 2.6.2 truncates on a CPU); they are rounded
    /// anew; known only once the data was read
    pub rounded_otherwise: Vec<String>,
    /// why the load cannot be done
    pub problems: Vec<Problem>,
    /// bytes that are read
    pub bytes: u64,
}

impl<'c> Load<'c> {
    /// Plans a load of checkpoints, taken together, into the cells of a program. Reads no tensor data.
    pub fn plan(program: &Program, sources: &[&'c dyn Checkpoint], policy: Policy) -> Load<'c> {
        Load::plan_cells(super::cells(program), sources, policy)
    }

    /// The same for cells from elsewhere.
    pub fn plan_cells(cells: Vec<Cell>, sources: &[&'c dyn Checkpoint], policy: Policy) -> Load<'c> {
        let manifests: Vec<Manifest> = sources.iter().map(|&c| Manifest::of(c)).collect();
        let plan = plan(&cells, &manifests.iter().collect::<Vec<_>>(), &policy);
        Load { cells, sources: sources.to_vec(), manifests, policy, plan }
    }

    /// The plan.
    pub fn decided(&self) -> &Plan {
        &self.plan
    }

    /// The report before anything is read.
    pub fn report(&self) -> LoadReport {
        let key = |k: &KeyRef| self.manifests[k.file].entries()[k.entry].name.clone();
        let row = |r: &crate::ckpt::plan::Row| {
            let cell = &self.cells[r.cell];
            let (at, derived_from) = match &r.source {
                Source::Entry(k) => (*k, None),
                Source::FromParam(k) => (*k, Some("parameter")),
                Source::FromMaster { entry, .. } => (*entry, Some("master")),
            };
            let stored = self.manifests[at.file].entries()[at.entry].dtype;
            let cast = (stored != cell.dtype).then(|| (stored.to_string(), cell.dtype.to_string()));
            let from_16_bits = derived_from == Some("parameter") && stored.is_low();
            let (name, why) = (cell.name.clone(), r.why.clone());
            Loaded { name, key: key(&at), file: at.file, why, derived_from, cast, from_16_bits }
        };
        LoadReport {
            checkpoints: self.manifests.iter().map(|m| m.path().display().to_string()).collect(),
            loaded: self.plan.rows.iter().map(row).collect(),
            kept: self.plan.kept.iter().map(|&i| self.cells[i].name.clone()).collect(),
            left: self.plan.left.iter().map(key).collect(),
            conflicts: Vec::new(),
            rounded_otherwise: Vec::new(),
            problems: self.plan.problems.clone(),
            bytes: self.plan.bytes,
        }
    }

    /// Reads everything with `threads` threads, then writes it into the scope.
    ///
    /// # Errors
    /// [`LoadError`]; the scope is then as it was.
    pub fn run(&self, scope: &mut Scope, threads: usize, progress: Progress<'_>) -> Result<LoadReport, LoadError> {
        let mut report = self.report();
        if !self.plan.is_ok() {
            return Err(LoadError::Problems(Box::new(report)));
        }
        let mut values = self.read_all(threads, progress)?;
        let by_cell: BTreeMap<usize, usize> = self.plan.rows.iter().enumerate().map(|(k, r)| (r.cell, k)).collect();
        let narrowing = self.policy.narrowing;
        let other = match narrowing {
            Narrowing::NearestEven => Narrowing::Truncate,
            Narrowing::Truncate => Narrowing::NearestEven,
        };
        for (k, row) in self.plan.rows.iter().enumerate() {
            let Source::FromMaster { entry, check: Some(check) } = &row.source else { continue };
            let (a, b) = ((self.sources[check.file], check.entry), (self.sources[entry.file], entry.entry));
            let low = self.cells[row.cell].dtype;
            let Some(largest) = agree_narrowed_as(a, b, low, narrowing)? else { continue };
            if agree_narrowed_as(a, b, low, other)?.is_none() {
                report.rounded_otherwise.push(self.cells[row.cell].name.clone());
                continue;
            }
            let master = self.plan.rows.iter().find(|r| r.source == Source::Entry(*entry)).map(|r| r.cell);
            let name = |i: usize| self.cells[i].name.clone();
            let conflict = Conflict { param: name(row.cell), master: master.map(name).unwrap_or_default(), largest };
            match (self.policy.on_conflict, master) {
                (OnConflict::Error, _) => return Err(LoadError::Conflict(conflict)),
                (OnConflict::Param, Some(m)) => {
                    values[k] = read_tensor(a.0, a.1, low, narrowing, &|_| ())?;
                    values[by_cell[&m]] = read_tensor(a.0, a.1, DType::F32, narrowing, &|_| ())?;
                }
                _ => {}
            }
            report.conflicts.push(conflict);
        }
        for (row, value) in self.plan.rows.iter().zip(values) {
            scope.set(&self.cells[row.cell].name, value);
        }
        Ok(report)
    }

    /// The new value of each row. An entry that a pair shares is read once.
    fn read_all(&self, threads: usize, progress: Progress<'_>) -> Result<Vec<Tensor>, LoadError> {
        let rows = &self.plan.rows;
        // Rows of one entry are one job.
        let mut jobs: Vec<(KeyRef, Vec<usize>)> = Vec::new();
        let mut job_of: BTreeMap<KeyRef, usize> = BTreeMap::new();
        for (k, row) in rows.iter().enumerate() {
            let key = row.source.keys().next().expect("a source has a first entry");
            let job = *job_of.entry(key).or_insert_with(|| {
                jobs.push((key, Vec::new()));
                jobs.len() - 1
            });
            jobs[job].1.push(k);
        }
        let next = AtomicUsize::new(0);
        let values: Mutex<Vec<Option<Tensor>>> = Mutex::new(vec![None; rows.len()]);
        let failed: Mutex<Option<(usize, CkptError)>> = Mutex::new(None);
        let work = || {
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                let Some((key, rows)) = jobs.get(job) else { return };
                match self.read_job(*key, rows, progress) {
                    Ok(read) => {
                        let mut values = values.lock().expect("no thread panics with it");
                        read.into_iter().for_each(|(k, t)| values[k] = Some(t));
                    }
                    Err(e) => {
                        // The first of the plan, so that the error does not depend on the threads.
                        let mut failed = failed.lock().expect("no thread panics with it");
                        if failed.as_ref().is_none_or(|(first, _)| job < *first) {
                            *failed = Some((job, e));
                        }
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|s| {
            for _ in 1..threads.clamp(1, 64) {
                s.spawn(work);
            }
            work();
        });
        if let Some((_, e)) = failed.into_inner().expect("no thread panics with it") {
            return Err(e.into());
        }
        let values = values.into_inner().expect("no thread panics with it");
        Ok(values.into_iter().map(|v| v.expect("every row has a job")).collect())
    }

    fn read_job(&self, key: KeyRef, rows: &[usize], progress: Progress<'_>) -> Result<Vec<(usize, Tensor)>, CkptError> {
        let ckpt = self.sources[key.file];
        let dtype = |k: usize| self.cells[self.plan.rows[k].cell].dtype;
        // The widest first: a pair's parameter is narrowed from the master that was just read.
        let mut rows = rows.to_vec();
        rows.sort_by_key(|&k| (std::cmp::Reverse(dtype(k).size()), k));
        let stored = ckpt.entries()[key.entry].dtype;
        let mut out: Vec<(usize, Tensor)> = Vec::new();
        for k in rows {
            let wide = out.iter().find(|(_, t)| t.dtype() == DType::F32).map(|(_, t)| t);
            let value = match wide {
                Some(wide) if stored == DType::F32 && dtype(k) != DType::F32 => wide
                    .cast(dtype(k), self.policy.narrowing)
                    .map_err(|e| CkptError::unsupported(ckpt.path(), e.to_string()))?,
                _ => read_tensor(ckpt, key.entry, dtype(k), self.policy.narrowing, progress)?,
            };
            out.push((k, value));
        }
        Ok(out)
    }
}
