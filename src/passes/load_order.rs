//! Where in startup does a load belong? After the initialisers, before the master casts and `amp_init`.
//!
//! *Before*: any program. *After*: each movable load of startup's global block stands after all
//! initialisers of what it loads and before the ops that derive other cells from it (master casts,
//! copies, `amp_init`); when it also brings a master, that master's startup `fill_constant` and cast count
//! as initialisers. *Preserves*: the order of every dependent pair of ops except the two kinds that the
//! pass exists to turn round (load after derivation, load before initialiser). *Cost*: one scan of
//! startup, and the events of the loaded cells (bounded: of very many loads of one cell the last ones stay).
//!
//! A load is left where it is when it is `pinned`, in a sub-block, in main, or when an op between depends
//! on it: a reader (of the loaded cell, or of one derived from it), an op that computes the cell from its
//! loaded value, an unknown op, a control op, a save of its file, another load of the same cell. The `resync` pass mends after those.

use super::{Pass, PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::depgraph::file_use;
use crate::analysis::effects::{Access, Effects};
use crate::analysis::pairs::Pairs;
use crate::diag::{Code, Diagnostic, Places, brief};
use crate::entity::EntityId;
use crate::ir::{At, Edit, EditSummary, OpId, OpRef, Program, Section};
use crate::names::{Name, SeededMap, sym};
use crate::ops::Effect;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The pass; it has no options.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadOrder {}

/// A place in the new order: gap or op, then the order of queueing.
type Key = (u64, u8, usize);

const fn at_op(pos: usize) -> Key {
    (2 * pos as u64 + 1, 0, 0)
}

/// What an op is to a load that shares cells with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// writes what is loaded, not from what is loaded
    Initialiser,
    /// derives another cell from what is loaded, or narrows it: the load belongs before
    Target,
    /// anything else that depends on it
    Barrier,
}

impl Pass for LoadOrder {
    fn name(&self) -> &'static str {
        "load-order"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let Some(global) = program.global_block(Section::Startup) else { return Ok(EditSummary::default()) };
        let kinds = cx.ops.resolve(program);
        let loads: Vec<(usize, OpId)> = program
            .ops(global)
            .enumerate()
            .filter(|(_, op)| kinds.get(op.kind()).effect == Effect::Load)
            .map(|(i, op)| (i, op.id))
            .collect();
        if loads.is_empty() {
            return Ok(EditSummary::default());
        }
        let effects = Effects::new(program, &kinds);
        let cells = Cells::new(program);
        let events = Events::new(program, &effects, &cells, global, &loads);
        let ops = &program.block(global).ops;
        let places = Places::new(program);
        let pairs = std::cell::OnceCell::new();
        let casts_master = |op: OpRef<'_>| {
            let (&[p], &[m]) = (op.input(sym::X), op.output(sym::OUT)) else { return false };
            let pairs = pairs.get_or_init(|| Pairs::new(program, &kinds, &cells, &cx.declared));
            pairs.of(m).any(|i| pairs.rows()[i].param == p && pairs.rows()[i].master == m)
        };
        let room = LOOKS * (events.touches.len() + loads.len()) + 65_536;

        // Loads that stand before the initialiser of what they load, and that initialiser. Last load first:
        // of two loads of one cell the second goes behind the initialiser, and so may the first.
        let mut late: FxHashMap<usize, usize> = FxHashMap::default();
        let mut budget = room;
        let mut marks = Marks::new(program.names().len());
        for &(pos, load) in loads.iter().rev() {
            let r = program.op(load);
            // `behind`: the initialiser of a later load of the same cell; this one may not pass that load.
            let (mut init, mut behind) = (None, usize::MAX);
            if !spend(&mut budget, events.count(r)) || pinned(r) {
                continue;
            }
            marks.mark(r.output_args());
            for (other, writes) in events.of(r, |other| other > pos) {
                let op = program.op(ops[other]);
                match events.role(&effects, op, writes) {
                    // An op that makes one loaded cell from another works on what was loaded; but for the cast of a
                    // master, which is how a master is initialised.
                    Role::Initialiser if op.input_args().any(|n| marks.has(n)) && !casts_master(op) => break,
                    Role::Initialiser if other > behind => break,
                    Role::Initialiser => init = Some(other),
                    // Narrows what the initialiser overwrites.
                    Role::Target if effects.effect(op) == Effect::AmpInit => {}
                    Role::Barrier if late.contains_key(&other) => behind = behind.min(late[&other]),
                    Role::Target | Role::Barrier => break,
                }
            }
            if let Some(init) = init.filter(|&init| !events.needs(r, pos, init)) {
                late.insert(pos, init);
            }
        }

        let mut edit = Edit::new();
        let mut moved: FxHashMap<OpId, Key> = FxHashMap::default();
        let (mut budget, mut left_alone) = (room, Vec::new());
        for (seq, &(pos, load)) in loads.iter().enumerate() {
            let r = program.op(load);
            if pinned(r) {
                continue;
            }
            if let Some(&init) = late.get(&pos) {
                // The loaded value never survives here; bring the load behind the last initialiser.
                let why = format!("after the initialiser of what it loads ({})", brief(program, ops[init]));
                edit.relocate(load, At::After(ops[init]), why);
                moved.insert(load, (2 * init as u64 + 2, 0, seq));
                continue;
            }
            marks.mark(r.output_args());
            let mut lower: Key = (0, 0, 0);
            let mut lower_op: Option<(usize, Role)> = None;
            let mut targets: Vec<usize> = Vec::new();
            if !spend(&mut budget, events.count(r)) {
                left_alone.push(load);
                continue;
            }
            // Position, and whether the op writes what is loaded.
            let todo = events.of(r, |other| other != pos);
            // What the ops between derive from the loaded cells: it changes when the load goes before them,
            // so an op that reads it holds the load back like one that reads the cells themselves.
            let mut derived: FxHashSet<Name> = FxHashSet::default();
            // An op that reads the loaded value, perhaps float32, before it is narrowed: no narrowing may come
            // between the two.
            let mut after = todo.iter().filter(|t| t.0 > pos).map(|&(i, _)| program.op(ops[i]));
            let first = after.find(|op| !matches!(effects.effect(*op), Effect::Load | Effect::Init));
            let read_wide = first.is_some_and(|op| effects.effect(op) != Effect::AmpInit);
            let mut affordable = true;
            let mut todo = Todo { of_load: todo.into_iter().peekable(), of_derived: BTreeSet::new() };
            while let Some((other, writes)) = todo.pop_first() {
                let op = program.op(ops[other]);
                let role = match events.role(&effects, op, writes) {
                    Role::Target if read_wide && effects.effect(op) == Effect::AmpInit => Role::Barrier,
                    role => role,
                };
                if role == Role::Target && other < pos {
                    let made = events.derives(effects.effect(op), op, other, r, &marks);
                    affordable &= spend(&mut budget, made.len());
                    for n in made {
                        if !affordable || marks.has(n) || !derived.insert(n) {
                            continue;
                        }
                        let between = events.between(n, other, pos);
                        affordable &= spend(&mut budget, between.len());
                        if affordable {
                            for touch in between.iter().filter(|t| t.reads) {
                                todo.of_derived.insert(touch.pos as usize);
                            }
                        }
                    }
                    if !affordable {
                        break;
                    }
                }
                if other > pos {
                    // It stands before an initialiser and cannot be brought behind it; then it stays.
                    if role == Role::Initialiser {
                        targets.clear();
                        break;
                    }
                    continue;
                }
                let key = moved.get(&ops[other]).copied().unwrap_or(at_op(other));
                match role {
                    Role::Target => targets.push(other),
                    Role::Initialiser | Role::Barrier if key > lower => (lower, lower_op) = (key, Some((other, role))),
                    Role::Initialiser | Role::Barrier => {}
                }
            }
            if !affordable {
                left_alone.push(load);
                continue;
            }
            if targets.is_empty() {
                continue;
            }
            let narrows = |t: usize| effects.effect(program.op(ops[t])) == Effect::AmpInit;
            let low = |t: usize| {
                program.op(ops[t]).output_args().all(|n| cells.dtype(program, n).is_some_and(crate::ir::DType::is_low))
            };
            // A narrowing must not come between the load and what is derived in float32 from it; and what is
            // derived narrow must stay behind its narrowing.
            if let Some(wide) = targets.iter().rposition(|&t| !narrows(t) && !low(t))
                && let Some(&amp) = targets[..wide].iter().rfind(|&&t| narrows(t))
                && at_op(amp) > lower
            {
                (lower, lower_op) = (at_op(amp), Some((amp, Role::Barrier)));
            }
            let first_narrowing = targets.iter().position(|&t| narrows(t)).unwrap_or(targets.len());
            let fits = |&(i, &t): &(usize, &usize)| at_op(t) > lower && (i <= first_narrowing || narrows(t) || !low(t));
            // What stands before the last initialiser derives from a value that is gone.
            if let Some((_, &target)) = targets.iter().enumerate().find(fits) {
                let why = format!("before {}", brief(program, ops[target]));
                edit.relocate(load, At::Before(ops[target]), why);
                moved.insert(load, (2 * target as u64, 1, seq));
            } else if let Some((other, Role::Barrier)) = lower_op {
                cx.diagnostics.push(
                    Diagnostic::new(
                        Code::PinnedLoad,
                        "this load cannot be moved before the ops that derive from what it loads",
                        places.op(load),
                    )
                    .label(places.op(ops[other]), "depends on it")
                    .help("`resync` brings the pair in step after the load"),
                );
            }
        }
        if let Some(&first) = left_alone.first() {
            let message = format!("this load and {} more stay: too many ops share their cells", left_alone.len() - 1);
            cx.diagnostics.push(
                Diagnostic::new(Code::PinnedLoad, message, places.op(first))
                    .help("`resync` brings the pairs in step after the loads"),
            );
        }
        Ok(edit.commit(program, self.name()))
    }
}

/// Takes from a budget; false when it does not hold as much, and then it is empty.
fn spend(budget: &mut usize, cost: usize) -> bool {
    let left = budget.checked_sub(cost);
    *budget = left.unwrap_or(0);
    left.is_some()
}

fn pinned(load: OpRef<'_>) -> bool {
    load.attr(sym::PINNED).and_then(|v| v.as_bool()) == Some(true)
}

/// Ops looked at for each op that touches a loaded cell, before loads are left where they are. Beyond it
/// are only programs that load one cell thousands of times.
const LOOKS: usize = 64;

/// The cells that the load at hand brings.
struct Marks {
    by_name: Vec<u32>,
    at_hand: u32,
}

impl Marks {
    fn new(names: usize) -> Self {
        Marks { by_name: vec![0; names], at_hand: 0 }
    }

    /// The next load is at hand.
    fn mark(&mut self, names: impl Iterator<Item = Name>) {
        self.at_hand += 1;
        names.for_each(|n| self.by_name[n.index()] = self.at_hand);
    }

    fn has(&self, name: Name) -> bool {
        self.by_name[name.index()] == self.at_hand
    }
}

/// Ops still to be looked at for a load: positions, and whether each writes what is loaded.
struct Todo {
    /// ops that share a cell or a file with the load, ascending
    of_load: std::iter::Peekable<std::vec::IntoIter<(usize, bool)>>,
    /// ops that read what is derived from it
    of_derived: BTreeSet<usize>,
}

impl Todo {
    fn pop_first(&mut self) -> Option<(usize, bool)> {
        let derived = self.of_derived.first().copied();
        match self.of_load.peek() {
            Some(&(pos, _)) if derived.is_none_or(|d| pos <= d) => {
                if derived == Some(pos) {
                    self.of_derived.pop_first();
                }
                self.of_load.next()
            }
            _ => self.of_derived.pop_first().map(|pos| (pos, false)),
        }
    }
}

/// An op that touches a cell.
#[derive(Clone, Copy, Default)]
struct Touch {
    pos: u32,
    reads: bool,
    writes: bool,
}

/// Which ops of startup's global block touch the cells, or the files, of its loads. Rows by cell.
struct Events<'p> {
    starts: Vec<u32>,
    /// positions ascend within a row
    touches: Vec<Touch>,
    cells: &'p Cells,
    /// by parameter: where an `amp_init` rewrites its master
    rewrites: FxHashMap<Name, Vec<(u32, Name)>>,
    by_file: SeededMap<&'p str, Vec<u32>>,
}

impl<'p> Events<'p> {
    fn new(
        program: &'p Program,
        effects: &Effects<'_>,
        cells: &'p Cells,
        global: crate::ir::BlockId,
        loads: &[(usize, OpId)],
    ) -> Self {
        let n = program.names().len();
        let mut wanted = vec![false; n];
        for &(_, load) in loads {
            program.op(load).output_args().for_each(|n| wanted[n.index()] = true);
        }
        let mut by_file: SeededMap<&'p str, Vec<u32>> = SeededMap::default();
        let mut rewrites: FxHashMap<Name, Vec<(u32, Name)>> = FxHashMap::default();
        // In program order: cell, position, whether it is read. The last row of a cell, for merging.
        let mut rows: Vec<(Name, Touch)> = Vec::new();
        let mut last = vec![u32::MAX; n];
        for (pos, op) in program.ops(global).enumerate() {
            let effect = effects.effect(op);
            // What is derived from a loaded cell, and from that: a load that passes it changes it.
            if matches!(effect, Effect::Copy | Effect::Cast | Effect::Pure)
                && op.input_args().any(|n| wanted[n.index()])
            {
                op.output_args().for_each(|n| wanted[n.index()] = true);
            }
            if effect == Effect::AmpInit {
                for (&p, &m) in op.input(sym::MASTER_OF).iter().zip(op.output(sym::MASTER_PARAM_OUT)) {
                    if wanted[p.index()] {
                        wanted[m.index()] = true;
                        rewrites.entry(p).or_default().push((pos as u32, m));
                    }
                }
            }
            effects.each(op, |name, access| {
                if !wanted[name.index()] {
                    return;
                }
                let reads = access == Access::Read;
                let row = &mut last[name.index()];
                match rows.get_mut(*row as usize) {
                    Some((_, t)) if t.pos == pos as u32 => (t.reads, t.writes) = (t.reads | reads, t.writes | !reads),
                    _ => {
                        *row = rows.len() as u32;
                        rows.push((name, Touch { pos: pos as u32, reads, writes: !reads }));
                    }
                }
            });
            if let Some((path, true)) = file_use(op, effect) {
                by_file.entry(path).or_default().push(pos as u32);
            }
        }
        // Counting sort by cell.
        let mut starts = vec![0u32; n + 1];
        rows.iter().for_each(|r| starts[r.0.index() + 1] += 1);
        for i in 0..n {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut touches = vec![Touch::default(); rows.len()];
        for (name, touch) in rows {
            touches[next[name.index()] as usize] = touch;
            next[name.index()] += 1;
        }
        Events { starts, touches, cells, rewrites, by_file }
    }

    fn row(&self, name: Name) -> &[Touch] {
        &self.touches[self.starts[name.index()] as usize..self.starts[name.index() + 1] as usize]
    }

    /// Positions of the saves of a load's file.
    fn saves(&self, load: OpRef<'_>) -> &[u32] {
        let path = load.attr(sym::FILE_PATH).and_then(|v| v.as_str());
        path.and_then(|p| self.by_file.get(p)).map_or(&[], |saves| saves)
    }

    /// How much there is to look at for a load.
    fn count(&self, load: OpRef<'_>) -> usize {
        load.output_args().map(|n| 1 + self.row(n).len()).sum::<usize>() + self.saves(load).len()
    }

    /// Whether an op after a load, `last` at most, reads a loaded cell that only this load gives a value.
    fn needs(&self, load: OpRef<'_>, pos: usize, last: usize) -> bool {
        load.output_args().any(|n| {
            let row = self.row(n);
            let at = row.partition_point(|t| (t.pos as usize) < pos);
            // What reads it before the load has found a value; what writes it has given one.
            let unset = row[..at].is_empty();
            let next = row[at..].iter().find(|t| t.pos as usize > pos);
            unset && next.is_some_and(|t| t.reads && t.pos as usize <= last)
        })
    }

    /// The wanted positions of ops that share a cell or a file with a load, ascending, and whether each writes
    /// what is loaded.
    fn of(&self, load: OpRef<'_>, want: impl Fn(usize) -> bool) -> Vec<(usize, bool)> {
        let cells = load.output_args().flat_map(|n| self.row(n)).map(|t| (t.pos as usize, t.writes));
        let saves = self.saves(load).iter().map(|&p| (p as usize, false));
        let mut all: Vec<(usize, bool)> = cells.chain(saves).filter(|&(p, _)| want(p)).collect();
        all.sort_unstable();
        all.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            kept.1 |= same && later.1;
            same
        });
        all
    }

    /// What an op is to a load; `writes` is whether it writes what is loaded.
    fn role(&self, effects: &Effects<'_>, op: OpRef<'_>, writes: bool) -> Role {
        match effects.effect(op) {
            Effect::AmpInit => Role::Target,
            Effect::Load | Effect::Save | Effect::Resync | Effect::Unknown | Effect::Cond | Effect::While => {
                Role::Barrier
            }
            _ if op.has_sub_blocks() => Role::Barrier,
            _ if writes => Role::Initialiser,
            Effect::Copy | Effect::Cast | Effect::Pure if op.output_args().all(|n| self.cells.get(n).persistable) => {
                Role::Target
            }
            _ => Role::Barrier,
        }
    }

    /// The cells that a target, at `pos`, makes from what is loaded; those have `marks`.
    fn derives(&self, effect: Effect, op: OpRef<'_>, pos: usize, load: OpRef<'_>, marks: &Marks) -> Vec<Name> {
        match effect {
            // It narrows each cell from itself, and makes masters from their parameters.
            Effect::AmpInit => {
                let (params, masters) = (op.input(sym::MASTER_OF), op.output(sym::MASTER_PARAM_OUT));
                // One op may list all parameters, and there may be one load for each: take the shorter way.
                if params.len() <= load.output_args().count() {
                    return params.iter().zip(masters).filter(|(p, _)| marks.has(**p)).map(|(_, &m)| m).collect();
                }
                let rewrites = load.output_args().filter_map(|n| self.rewrites.get(&n)).flatten();
                rewrites.filter(|r| r.0 as usize == pos).map(|r| r.1).collect()
            }
            _ => op.output_args().collect(),
        }
    }

    /// The ops after `from` and before `to` that touch a cell.
    fn between(&self, name: Name, from: usize, to: usize) -> &[Touch] {
        let list = self.row(name);
        let start = list.partition_point(|t| t.pos as usize <= from);
        let end = list.partition_point(|t| (t.pos as usize) < to);
        &list[start..end.max(start)]
    }
}
