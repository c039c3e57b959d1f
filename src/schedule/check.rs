//! Does a checkpoint fit the program? Entry by entry: names, shapes and dtypes, before anything is written.
//!
//! - shape: that of main's declaration; a -1 there fits anything;
//! - dtype: the parameter of a pair takes float32, float16 or bfloat16; its master float32; every other
//!   cell exactly a dtype that startup or main declares for it. (A 16-bit parameter without a master is
//!   float32 in startup and 16-bit in main; a checkpoint may bring either.)
//! - names: equal ones, those that the file itself gives to its keys, and masters under their dynamic or static
//!   name (`ckpt::names`). A checkpoint none of whose keys is a name of the program is an error.

use super::Only;
use super::combined::{set_sizes, shape_fits};
use super::report::{Lists, LoadReport};
use super::targets::{Part, Targets};
use crate::ckpt::names::{Rules, Why, map_names};
use crate::ckpt::nearest::{added_prefix, nearest};
use crate::ckpt::{Manifest, TensorEntry};
use crate::diag::{Code, Diagnostic, Diagnostics, Place, Places, Severity, shorten};
use crate::ir::{DType, Program};
use crate::names::{Name, SeededSet};
use rustc_hash::FxHashSet;

/// Most names that one finding lists; the report has all of them.
const LISTED: usize = 8;
/// Most prefixes that are tried on names of which none matched.
const PREFIXES: usize = 32;

/// One cell that a load writes.
pub(super) struct Load<'m> {
    pub cell: Name,
    pub entry: &'m TensorEntry,
}

/// Matches one checkpoint with the cells.
pub(super) struct Matcher<'a> {
    pub program: &'a Program,
    pub targets: &'a Targets,
    pub path: &'a str,
    pub only: Only,
    pub places: &'a Places<'a>,
    pub found: Diagnostics,
}

impl<'a> Matcher<'a> {
    /// What the load writes, and what is said of it.
    pub fn run<'m>(&mut self, manifest: &'m Manifest) -> (Vec<Load<'m>>, LoadReport) {
        let (mut plan, mut names, mut seen) = (Vec::new(), Lists::default(), FxHashSet::default());
        let entries = manifest.entries();
        let wanted: Vec<&str> = self.targets.names.iter().map(|&n| self.program.name(n)).collect();
        let named = match entries {
            [one] if one.name.is_empty() => Some(manifest.with_only_name(key_of(self.path, entries, one))),
            _ => None,
        };
        let map = map_names(&wanted, &[named.as_ref().unwrap_or(manifest)], &Rules::default());
        let mut cell_of: Vec<Option<(Name, &Why)>> = vec![None; entries.len()];
        for (&cell, key) in self.targets.names.iter().zip(&map.keys) {
            if let Some((key, why)) = key {
                cell_of[key.entry] = Some((cell, why));
            }
        }
        for (entry, cell) in entries.iter().zip(cell_of) {
            let key = key_of(self.path, entries, entry);
            let Some((cell, why)) = cell else {
                names.unexpected.push(key.to_owned());
                continue;
            };
            seen.insert(cell);
            if !self.wants(cell) {
                names.left_out.push(key.to_owned());
            } else if self.fits(cell, entry) {
                let name = self.program.name(cell);
                names.loaded.push(name.to_owned());
                if *why != Why::Equal {
                    names.mapped.push((key.to_owned(), name.to_owned(), why.to_string()));
                }
                plan.push(Load { cell, entry });
            }
        }
        for a in &map.ambiguous {
            let message = format!("`{}`: {}", shorten(&a.name), a.why);
            let mut d = Diagnostic::new(Code::MissingKey, message, Place::Nowhere);
            for name in a.candidates.iter().take(LISTED) {
                d = d.note(format!("`{}`", shorten(name)));
            }
            self.found.push(d.help("rename the keys of the checkpoint, so that one is left"));
        }
        for &cell in &self.targets.names {
            let due = match self.targets.part(cell) {
                Part::Param { .. } => self.only != Only::Masters,
                Part::Master => self.only == Only::Masters,
                Part::Other => false,
            };
            if due && !seen.contains(&cell) {
                names.missing.push(self.program.name(cell).to_owned());
            }
        }
        // An entry that does not fit has its own finding.
        if plan.is_empty() && !self.found.has_errors() {
            self.nothing_matched(entries, &names);
        } else {
            self.report_names(&names);
        }
        let bytes = plan.iter().map(|l| l.entry.bytes).fold(0, u64::saturating_add);
        (plan, LoadReport { path: self.path.to_owned(), op: None, names, bytes })
    }

    fn wants(&self, cell: Name) -> bool {
        match (self.only, self.targets.part(cell)) {
            (Only::All, _) | (Only::Params, Part::Param { .. }) | (Only::Masters, Part::Master) => true,
            (Only::Params | Only::Masters, _) => false,
        }
    }

    /// Whether an entry may be loaded into a cell; if not, says why.
    fn fits(&mut self, cell: Name, entry: &TensorEntry) -> bool {
        let (program, decl) = (self.program, self.targets.decl(cell));
        let (name, path) = (shorten(program.name(cell)), shorten(self.path));
        let shape = program.shape(decl);
        if !shape_fits(shape, &entry.shape) {
            let shape = format!("{shape:?}");
            let message = format!("`{name}` is {} here and {:?} in {path}", shorten(&shape), entry.shape);
            let help = "load the checkpoint of a model of this size, or leave the entry out of it";
            self.found.push(Diagnostic::new(Code::LoadShape, message, self.places.var(decl)).help(help));
            return false;
        }
        let part = self.targets.part(cell);
        let dtype = entry.dtype;
        let fits = match part {
            Part::Param { paired: true } => dtype.is_low() || dtype == DType::F32,
            Part::Master => dtype == DType::F32,
            Part::Param { paired: false } | Part::Other => self.targets.declared(program, cell).any(|d| d == dtype),
        };
        if !fits {
            let (what, help) = match part {
                Part::Param { paired: true } => {
                    ("a parameter with a master, which is loaded from f32, f16 or bf16".to_owned(), "convert the entry")
                }
                Part::Master => (
                    "a master, which is loaded from f32".to_owned(),
                    "leave the entry out: the master is then made from its parameter",
                ),
                Part::Param { paired: false } | Part::Other => {
                    (program.var(decl).dtype.to_string(), "convert the entry to the dtype that the program declares")
                }
            };
            let message = format!("`{name}` is {what}, and {path} holds {dtype}");
            self.found.push(Diagnostic::new(Code::LoadDtype, message, self.places.var(decl)).help(help));
        }
        fits
    }

    /// Missing and unexpected names side by side, nearest names beside each.
    fn report_names(&mut self, names: &Lists) {
        if !names.unexpected.is_empty() {
            let message =
                format!("{} has {} that the program has no cell for", self.path, keys(names.unexpected.len()));
            let missing = || names.missing.iter().map(String::as_str);
            let d = Diagnostic::new(Code::UnexpectedKey, message, Place::Nowhere);
            self.found.push(listed(d, &names.unexpected, missing, "missing here"));
        }
        if !names.missing.is_empty() {
            let kind = if self.only == Only::Masters { "master" } else { "parameter" };
            let s = if names.missing.len() == 1 { "" } else { "s" };
            let message = format!("{} does not bring {} {kind}{s}", self.path, names.missing.len());
            let unexpected = || names.unexpected.iter().map(String::as_str);
            let mut d = Diagnostic::new(Code::MissingKey, message, Place::Nowhere);
            // A partial checkpoint is legal: what it does not bring keeps its initial value.
            d.severity = Severity::Note;
            self.found.push(listed(d, &names.missing, unexpected, "unexpected there"));
        }
    }

    /// No key is a name of the program: training would start from random values without a word.
    fn nothing_matched(&mut self, manifest: &[TensorEntry], names: &Lists) {
        let (path, program) = (self.path, self.program);
        let kind = match self.only {
            Only::All => "persistable",
            Only::Params => "parameter",
            Only::Masters => "master",
        };
        if !manifest.is_empty() && manifest.iter().all(|e| e.name.is_empty()) && manifest.len() > 1 {
            let message = format!("{path} holds {} tensors without names", manifest.len());
            let sizes = set_sizes(self.targets, self.only);
            let sizes: Vec<_> = sizes.into_iter().map(|(what, n)| format!("{n} {what}")).collect();
            let help = "a combined file (`save_combine`, `.pdiparams`) keeps no names: load a directory of one file a \
                        variable, or safetensors";
            let d = Diagnostic::new(Code::MissingKey, message, Place::Nowhere);
            self.found.push(d.note(format!("in order of name the program has {}", sizes.join(", "))).help(help));
            return;
        }
        let message = match manifest {
            [one] => format!("`{}` in {path} is not the name of a {kind} of the program", key_of(path, manifest, one)),
            _ => format!("none of {} in {path} is the name of a {kind} of the program", keys(manifest.len())),
        };
        let mut d = Diagnostic::new(Code::MissingKey, message, Place::Nowhere);
        let known: Vec<&str> = manifest.iter().map(|e| key_of(path, manifest, e)).collect();
        d = listed(d, &names.missing, || known.iter().copied(), "in the checkpoint");
        let help = match (shared_prefix(&names.missing, &known), names.left_out.is_empty()) {
            (_, false) => format!("leave `only` out: {} would be loaded then", keys(names.left_out.len())),
            (Some((prefix, n, true)), _) => {
                format!("{} have `{prefix}` before the program's name: rename them without it", keys(n))
            }
            (Some((prefix, n, false)), _) => {
                format!("{} lack `{prefix}` before them, which the program's names have: rename them with it", keys(n))
            }
            (None, _) if manifest.is_empty() => "the checkpoint holds no tensor: check the path".to_owned(),
            (None, _) if self.targets.names.is_empty() => format!("the program declares no {kind}: check its file"),
            (None, _) => {
                let some = self.targets.names.iter().take(LISTED).map(|&n| format!("`{}`", shorten(program.name(n))));
                format!("rename the keys to the program's names, such as {}", some.collect::<Vec<_>>().join(", "))
            }
        };
        self.found.push(d.help(help));
    }
}

fn keys(n: usize) -> String {
    if n == 1 { "1 key".to_owned() } else { format!("{n} keys") }
}

/// The key that names an entry: its own, or the file's name when the file holds one tensor without name.
fn key_of<'m>(path: &'m str, manifest: &[TensorEntry], entry: &'m TensorEntry) -> &'m str {
    if manifest.len() == 1 && entry.name.is_empty() {
        return path.rsplit(['/', '\\']).next().unwrap_or(path);
    }
    &entry.name
}

/// A note for each of the first names, with what is nearest to it, and one that counts the rest.
fn listed<'k, I: Iterator<Item = &'k str>>(
    mut d: Diagnostic,
    names: &[String],
    known: impl Fn() -> I,
    whence: &str,
) -> Diagnostic {
    for name in names.iter().take(LISTED) {
        let near = nearest(name, known(), 3);
        let name = shorten(name);
        d = d.note(if near.is_empty() {
            format!("`{name}`")
        } else {
            let near: Vec<_> = near.iter().map(|n| format!("`{}`", shorten(n))).collect();
            format!("`{name}`; nearest {whence}: {}", near.join(", "))
        });
    }
    if names.len() > LISTED {
        d = d.note(format!("and {} more", names.len() - LISTED));
    }
    d
}

/// The prefix that most keys have beyond the program's names (`true`), or lack (`false`), and how many do.
fn shared_prefix<'n>(wanted: &'n [String], keys: &[&'n str]) -> Option<(&'n str, usize, bool)> {
    let set: SeededSet<&str> = keys.iter().copied().collect();
    let mut best: Option<(&str, usize, bool)> = None;
    let mut tried: Vec<(&str, bool)> = Vec::new();
    for name in wanted.iter().take(LISTED) {
        for &key in keys {
            for (prefix, added) in [(added_prefix(key, name), true), (added_prefix(name, key), false)] {
                let Some(prefix) = prefix else { continue };
                if tried.len() == PREFIXES || tried.contains(&(prefix, added)) {
                    continue;
                }
                tried.push((prefix, added));
                let fits = |w: &&String| match added {
                    true => set.contains(format!("{prefix}{w}").as_str()),
                    false => w.strip_prefix(prefix).is_some_and(|rest| set.contains(rest)),
                };
                let n = wanted.iter().filter(fits).count();
                if best.is_none_or(|(_, most, _)| n > most) {
                    best = Some((prefix, n, added));
                }
            }
        }
    }
    best
}
