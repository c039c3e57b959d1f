//! What will a load do? Decided from manifests alone, before a byte of tensor data is read or a cell written.
//!
//! [`plan`] matches cells with keys ([`map_names`]), checks shapes and dtypes, and says for each cell where its
//! value comes from. The parameter of a pair takes float32, float16 or bfloat16, and its master follows:
//!
//! | the checkpoint brings | master | parameter |
//! |---|---|---|
//! | parameter, float32 | its value | narrowed |
//! | parameter, 16 bits | widened | its value, cast when the 16-bit kinds differ |
//! | master | its value | narrowed from the master |
//! | both | its value | narrowed from the master; a loaded parameter that differs is a conflict ([`OnConflict`]) |
//!
//! Strict unless told otherwise: what is missing, unexpected, ambiguous or does not fit is a [`Problem`], and a
//! plan with problems cannot be run.

use super::names::{Ambiguity, KeyRef, NameMap, Rules, Why, key_of, map_names};
use super::nearest::nearest;
use super::{Manifest, TensorEntry};
use crate::convert::Narrowing;
use crate::ir::DType;
use std::collections::BTreeSet;

/// What a cell is to a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// a parameter; of a pair when it has a master
    Param {
        /// index of its master among the cells
        master: Option<usize>,
    },
    /// the float32 master of the parameter at this index
    Master {
        /// index of its parameter among the cells
        param: usize,
    },
    /// an accumulator, a learning rate, loss-scaling state: any other persistable
    Other,
}

/// A cell that may be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// its name in the program
    pub name: String,
    /// what it is
    pub role: Role,
    /// the dtype it must have when main starts
    pub dtype: DType,
    /// another dtype that the program declares for it, which a checkpoint may bring as well
    pub also: Option<DType>,
    /// declared dimensions; -1 fits anything
    pub shape: Vec<i64>,
}

/// Which cells a state dict is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Which {
    /// parameters; masters follow them
    Params,
    /// masters, accumulators and whatever else persists
    Optimizer,
    /// both
    #[default]
    All,
}

impl Which {
    /// Whether a cell of this role belongs to it.
    pub fn has(self, role: Role) -> bool {
        match self {
            Which::All => true,
            Which::Params => matches!(role, Role::Param { .. }),
            Which::Optimizer => !matches!(role, Role::Param { .. }),
        }
    }
}

/// What to do when a checkpoint brings a parameter and its master, and they differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnConflict {
    /// refuse, before anything is written
    Error,
    /// the master counts, with a warning
    #[default]
    Master,
    /// the parameter counts: the master is made from it, with a warning
    Param,
}

/// What a load may do beyond what is exact.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// which cells
    pub which: Which,
    /// a cell that nothing is brought for keeps its value
    pub allow_missing: bool,
    /// a key that no cell takes is left alone
    pub allow_unexpected: bool,
    /// a master that is not there is an error, not made from its parameter
    pub require_masters: bool,
    /// entries are cast to the cell's dtype
    pub cast: bool,
    /// parameter and master both there, and different
    pub on_conflict: OnConflict,
    /// renames of keys
    pub rules: Rules,
    /// how float32 becomes 16 bits
    pub narrowing: Narrowing,
}

/// Where a cell's new value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// an entry, cast to the cell's dtype if it has another
    Entry(KeyRef),
    /// the parameter's entry, for a master
    FromParam(KeyRef),
    /// the master's entry, for a parameter; `check` is the parameter's own entry, to be compared
    FromMaster {
        /// the master's
        entry: KeyRef,
        /// the parameter's
        check: Option<KeyRef>,
    },
}

/// A cell that the load writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// index among the cells
    pub cell: usize,
    /// where from
    pub source: Source,
    /// why this key
    pub why: Why,
}

/// Why a plan cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Problem {
    /// no key for a cell
    Missing { name: String, nearest: Vec<String> },
    /// no cell for a key
    Unexpected { key: String, nearest: Vec<String> },
    /// several possibilities
    Ambiguous(Ambiguity),
    /// another shape
    Shape { name: String, key: String, wanted: Vec<i64>, found: Vec<u64> },
    /// another type, and no leave to cast
    DType { name: String, key: String, wanted: String, found: String },
    /// no master, and it was required
    NoMaster { name: String, param: String },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let near = |f: &mut std::fmt::Formatter<'_>, names: &[String], whence: &str| {
            if names.is_empty() { Ok(()) } else { write!(f, "; nearest {whence}: `{}`", names.join("`, `")) }
        };
        match self {
            Problem::Missing { name, nearest } => {
                write!(f, "`{name}` is not in the checkpoint")?;
                near(f, nearest, "there")
            }
            Problem::Unexpected { key, nearest } => {
                write!(f, "the program has no cell for the key `{key}`")?;
                near(f, nearest, "here")
            }
            Problem::Ambiguous(a) => write!(f, "`{}`: {}: `{}`", a.name, a.why, a.candidates.join("`, `")),
            Problem::Shape { name, key, wanted, found } => {
                write!(f, "`{name}` is {wanted:?} here, and `{key}` is {found:?}")
            }
            Problem::DType { name, key, wanted, found } => write!(f, "`{name}` takes {wanted}, and `{key}` is {found}"),
            Problem::NoMaster { name, param } => {
                write!(f, "the master `{name}` of `{param}` is not in the checkpoint, and masters are required")
            }
        }
    }
}

/// What a load will do.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// in the order of the cells
    pub rows: Vec<Row>,
    /// why it cannot be run; empty when it can
    pub problems: Vec<Problem>,
    /// cells that keep their values, by leave of the policy
    pub kept: Vec<usize>,
    /// keys that are left alone: for cells that were not asked for, or by leave of the policy
    pub left: Vec<KeyRef>,
    /// bytes that will be read
    pub bytes: u64,
}

impl Plan {
    /// Whether it can be run.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Most names for which the nearest are looked up; each costs a pass over the others.
const HINTS: usize = 16;

/// Plans a load of `cells` from checkpoints that are taken together. Names of cells are all different.
pub fn plan(cells: &[Cell], manifests: &[&Manifest], policy: &Policy) -> Plan {
    let names: Vec<&str> = cells.iter().map(|c| &c.name[..]).collect();
    let map = map_names(&names, manifests, &policy.rules);
    let unclear = map.ambiguous.iter().flat_map(|a| std::iter::once(&a.name).chain(&a.candidates));
    let unclear = unclear.map(|s| &s[..]).collect();
    let mut this = Planner { cells, manifests, policy, map: &map, unclear, missing: 0, plan: Plan::default() };
    for a in &map.ambiguous {
        this.plan.problems.push(Problem::Ambiguous(a.clone()));
    }
    for i in 0..cells.len() {
        this.cell(i);
    }
    this.unexpected(&names);
    let mut read: Vec<KeyRef> = this.plan.rows.iter().flat_map(|r| r.source.keys()).collect();
    read.sort_unstable();
    read.dedup();
    this.plan.bytes = read.iter().map(|&k| this.entry(k).bytes).fold(0, u64::saturating_add);
    this.plan
}

impl Source {
    /// The entries that are read.
    pub fn keys(&self) -> impl Iterator<Item = KeyRef> + use<> {
        let (first, second) = match self {
            Source::Entry(k) | Source::FromParam(k) => (*k, None),
            Source::FromMaster { entry, check } => (*entry, *check),
        };
        std::iter::once(first).chain(second)
    }
}

struct Planner<'a> {
    cells: &'a [Cell],
    manifests: &'a [&'a Manifest],
    policy: &'a Policy,
    map: &'a NameMap,
    /// names and keys that an ambiguity speaks of: they are neither missing nor unexpected
    unclear: BTreeSet<&'a str>,
    missing: usize,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn entry(&self, key: KeyRef) -> &'a TensorEntry {
        &self.manifests[key.file].entries()[key.entry]
    }

    fn key(&self, key: KeyRef) -> &'a str {
        let manifest = self.manifests[key.file];
        key_of(manifest, manifest.entries(), self.entry(key))
    }

    fn cell(&mut self, i: usize) {
        let own = self.map.keys[i].clone();
        let wanted = self.policy.which.has(self.cells[i].role);
        match self.cells[i].role {
            Role::Param { master: Some(m) } => self.paired_param(i, m, own, wanted),
            Role::Master { param } => self.master(i, param, own, wanted),
            _ => self.plain(i, own, wanted),
        }
    }

    /// A cell that stands for itself.
    fn plain(&mut self, i: usize, own: Option<(KeyRef, Why)>, wanted: bool) {
        match own {
            Some((key, _)) if !wanted => self.plan.left.push(key),
            Some((key, why)) => {
                let fits = self.fits(i, key, false);
                self.plan.rows.extend(fits.then_some(Row { cell: i, source: Source::Entry(key), why }));
            }
            None if wanted => self.missing(i),
            None => {}
        }
    }

    /// A parameter that has a master: the master's entry goes before its own.
    fn paired_param(&mut self, i: usize, m: usize, own: Option<(KeyRef, Why)>, wanted: bool) {
        let master = self.map.keys[m].clone().filter(|_| self.policy.which.has(self.cells[m].role));
        let own_key = own.as_ref().map(|(k, _)| *k);
        if let Some(key) = own_key.filter(|_| !wanted) {
            self.plan.left.push(key);
        }
        let own = own.filter(|(key, _)| wanted && self.fits(i, *key, true));
        match (master, own) {
            // Also for a parameter that was not asked for: a master alone would leave it stale.
            (Some((entry, why)), own) if self.shape_fits(i, entry) => {
                let check = own.map(|(key, _)| key);
                self.plan.rows.push(Row { cell: i, source: Source::FromMaster { entry, check }, why });
            }
            (None, Some((key, why))) => self.plan.rows.push(Row { cell: i, source: Source::Entry(key), why }),
            (None, None) if wanted && own_key.is_none() => self.missing(i),
            _ => {}
        }
    }

    fn master(&mut self, i: usize, param: usize, own: Option<(KeyRef, Why)>, wanted: bool) {
        let from = self.map.keys[param].clone();
        let from = from.filter(|(key, _)| self.policy.which.has(self.cells[param].role) && self.quiet_fit(param, *key));
        match (own, from) {
            (Some((key, why)), _) if wanted => {
                let fits = self.fits(i, key, false);
                self.plan.rows.extend(fits.then_some(Row { cell: i, source: Source::Entry(key), why }));
            }
            (own, Some((key, why))) => {
                if let Some((key, _)) = own {
                    self.plan.left.push(key);
                }
                if self.policy.require_masters {
                    let (name, param) = (self.cells[i].name.clone(), self.cells[param].name.clone());
                    self.plan.problems.push(Problem::NoMaster { name, param });
                } else {
                    // Also when masters were not asked for: a parameter alone would leave its master stale.
                    self.plan.rows.push(Row { cell: i, source: Source::FromParam(key), why });
                }
            }
            (Some((key, _)), None) => self.plan.left.push(key),
            (None, None) if self.policy.require_masters && wanted => {
                let (name, param) = (self.cells[i].name.clone(), self.cells[param].name.clone());
                self.plan.problems.push(Problem::NoMaster { name, param });
            }
            // Its parameter is missing, too, and says so; with `optimizer` alone it is the one to ask for.
            (None, None) if wanted && self.policy.which == Which::Optimizer => self.missing(i),
            (None, None) => self.plan.kept.push(i),
        }
    }

    fn missing(&mut self, i: usize) {
        let name = &self.cells[i].name;
        if self.unclear.contains(&name[..]) {
            return;
        }
        if self.policy.allow_missing {
            self.plan.kept.push(i);
            return;
        }
        self.missing += 1;
        let near = if self.missing <= HINTS {
            let keys = self.map.unused.iter().map(|&k| self.key(k));
            nearest(name, keys, 3).into_iter().map(str::to_owned).collect()
        } else {
            Vec::new()
        };
        self.plan.problems.push(Problem::Missing { name: name.clone(), nearest: near });
    }

    /// Whether an entry may go into a cell; if not, a problem.
    fn fits(&mut self, i: usize, key: KeyRef, paired: bool) -> bool {
        if !self.shape_fits(i, key) {
            return false;
        }
        if self.dtype_fits(i, key, paired) {
            return true;
        }
        let (cell, entry) = (&self.cells[i], self.entry(key));
        let wanted = match cell.role {
            Role::Param { master: Some(_) } => "f32, f16 or bf16 (it has a master)".to_owned(),
            _ => cell.dtype.to_string(),
        };
        let (name, key) = (cell.name.clone(), self.key(key).to_owned());
        self.plan.problems.push(Problem::DType { name, key, wanted, found: entry.dtype.to_string() });
        false
    }

    fn dtype_fits(&self, i: usize, key: KeyRef, paired: bool) -> bool {
        let (cell, found) = (&self.cells[i], self.entry(key).dtype);
        let exact = found == cell.dtype || cell.also == Some(found);
        let pair = paired && (found.is_low() || found == DType::F32);
        let castable = self.policy.cast && !matches!(found, DType::C64 | DType::C128 | DType::Other(_));
        exact || pair || castable
    }

    /// The same without a word: the cell itself tells.
    fn quiet_fit(&self, i: usize, key: KeyRef) -> bool {
        shape_fits(&self.cells[i].shape, &self.entry(key).shape) && self.dtype_fits(i, key, true)
    }

    fn shape_fits(&mut self, i: usize, key: KeyRef) -> bool {
        let (cell, entry) = (&self.cells[i], self.entry(key));
        if shape_fits(&cell.shape, &entry.shape) {
            return true;
        }
        let (name, key) = (cell.name.clone(), self.key(key).to_owned());
        let problem = Problem::Shape { name, key, wanted: cell.shape.clone(), found: entry.shape.clone() };
        // A parameter and its master may ask twice in a row.
        if self.plan.problems.last() != Some(&problem) {
            self.plan.problems.push(problem);
        }
        false
    }

    fn unexpected(&mut self, names: &[&str]) {
        let mut hints = 0;
        for &key in &self.map.unused {
            let text = self.key(key);
            if self.unclear.contains(text) {
                continue;
            }
            if self.policy.allow_unexpected {
                self.plan.left.push(key);
                continue;
            }
            let near = if hints < HINTS {
                let open = names.iter().zip(&self.map.keys).filter(|(_, k)| k.is_none()).map(|(n, _)| *n);
                nearest(text, open, 3).into_iter().map(str::to_owned).collect()
            } else {
                Vec::new()
            };
            hints += 1;
            self.plan.problems.push(Problem::Unexpected { key: text.to_owned(), nearest: near });
        }
        self.plan.left.sort_unstable();
    }
}

/// Whether a stored shape fits a declared one, in which -1 fits anything.
pub(crate) fn shape_fits(declared: &[i64], stored: &[u64]) -> bool {
    let same = |(d, e): (&i64, &u64)| *d == -1 || u64::try_from(*d) == Ok(*e);
    declared.len() == stored.len() && declared.iter().zip(stored).all(same)
}
