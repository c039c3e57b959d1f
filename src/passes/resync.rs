//! Where must a pair be brought back in step, and in which direction?
//!
//! *Before*: any program. *After*: each pair whose state at main's entry, or after a write in main, was
//! not proved gets a `resync` op directly after the last load (or other write) that put it out of step;
//! each stale derived copy is derived again after its source; a 16-bit parameter without master that is
//! not narrowed gets an `amp_init`; `rewrite_master` of an `amp_init` is cleared for pairs whose master
//! another op writes, because it then holds at least what the rewrite would write. *Preserves*: every other
//! op and its order; no float32 value is replaced by a rounded one. *Cost*: one proof of the program, or a few
//! when more is done to pairs than to load, cast and narrow them.
//!
//! A resync narrows the parameter. Where an op between it and the user's own narrowing reads the parameter,
//! or a second master is made from it, the value alone is passed on (a cast, an assign).
//!
//! Direction (SEMANTICS §4): what was loaded since the pair was last made from one another: parameter
//! only, master only, or both. What an op of unknown kind may have written is left alone: a resync
//! there could round a good master.

use super::{Pass, PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::coherence::{Coherence, Finding, Obligation, Subject, Verdict, When, prove};
use crate::analysis::effects::{Access, Effects};
use crate::analysis::exec::ExecOptions;
use crate::analysis::facts::Facts;
use crate::analysis::order::positions;
use crate::analysis::pairs::{Pair, PairSource, Pairs};
use crate::entity::EntityId;
use crate::ir::{At, AttrValue, BlockId, DType, Edit, EditSummary, NewOp, OpId, OpRef, Program, Section};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};
use crate::passes::master_casts::cast;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

mod copies;
mod rest;
mod rewrites;

/// What to believe when parameter and master were both loaded and disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// stop
    Error,
    /// the master, with a warning
    #[default]
    Master,
    /// the parameter
    Param,
}

impl OnConflict {
    /// The word of the `on_conflict` attribute.
    pub const fn as_str(self) -> &'static str {
        match self {
            OnConflict::Error => "error",
            OnConflict::Master => "master",
            OnConflict::Param => "param",
        }
    }
}

/// The pass.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resync {
    /// policy for pairs of which both cells were loaded
    pub on_conflict: OnConflict,
}

/// What was written to a pair since its cells were last made from one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Param,
    Master,
    Both,
}

impl Direction {
    fn of(param: bool, master: bool) -> Direction {
        match (param, master) {
            (true, true) => Direction::Both,
            (false, true) => Direction::Master,
            _ => Direction::Param,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Direction::Param => "param",
            Direction::Master => "master",
            Direction::Both => "both",
        }
    }
}

impl Pass for Resync {
    fn name(&self) -> &'static str {
        "resync"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("plain options")
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let (mut summary, mut unusual) = (EditSummary::default(), false);
        for _ in 0..ROUNDS {
            let (round, more) = self.round(program, cx);
            let changed = round.changed();
            summary.merge(round);
            unusual |= more;
            if !unusual {
                break;
            }
            if !changed {
                let rest = self.rest(program, cx);
                let changed = rest.changed();
                summary.merge(rest);
                if !changed {
                    break;
                }
            }
        }
        Ok(summary)
    }
}

/// Rounds of one run at most, a proof or two each. One is enough unless startup's sub-blocks write pairs, or
/// more is done to pairs than to load, cast and narrow them: then what is mended, or derived again, can show what
/// else is to be mended.
const ROUNDS: usize = 16;

impl Resync {
    /// Mends what one proof shows. Says whether another may show more.
    fn round(&self, program: &mut Program, cx: &mut PassCx<'_>) -> (EditSummary, bool) {
        let facts = Facts::new(program, cx.ops, &cx.declared);
        let proof = prove(&facts, ExecOptions { ignore_rewrite: true, assume_entry: true });
        let Facts { effects, cells, pairs, .. } = &facts;
        let mut edit = Edit::new();
        rewrites::clear(&facts, &proof, &mut cx.diagnostics, &mut edit);
        let broken = broken_pairs(&proof);
        let mut plan =
            Plan { pass: *self, program, effects, pairs, cells, edit: &mut edit, endings: Vec::new(), unusual: false };
        if proof.verdicts.iter().any(|v| !v.proved()) {
            let pos = positions(program, Section::Startup);
            let anchors = plan.startup(&broken, &pos);
            plan.copies(&proof, &anchors, &pos);
            plan.main(&broken);
        }
        // A master that becomes float32 gives another dtype to what is computed from it.
        let wide = |v: &Verdict| {
            let Subject::Pair(p) = v.subject else { return false };
            v.findings.iter().any(|f| match f {
                Finding::WrongType { cell, .. } => *cell == p.master,
                Finding::Unproved { obligation: Obligation::StoredDtype(n) | Obligation::RunDtype(n), .. } => {
                    *n == p.master
                }
                _ => false,
            })
        };
        let more = plan.unusual || broken.iter().any(|b| b.later) || proof.verdicts.iter().any(wide);
        (edit.commit(program, self.name()), more)
    }

    /// Mends what the proof still finds, at the places where it does.
    fn rest(&self, program: &mut Program, cx: &PassCx<'_>) -> EditSummary {
        let facts = Facts::new(program, cx.ops, &cx.declared);
        let proof = prove(&facts, ExecOptions { ignore_rewrite: true, assume_entry: true });
        let mut edit = Edit::new();
        for (place, pair, direction) in rest::places(program, &facts.pairs, &proof) {
            edit.insert(place, self.resync_op(&pair, direction), "out of step here");
        }
        edit.commit(program, self.name())
    }

    fn resync_op(&self, pair: &Pair, direction: Direction) -> NewOp {
        NewOp::new(sym::RESYNC)
            .input(sym::PARAM, [pair.param])
            .input(sym::MASTER_PARAM, [pair.master])
            .output(sym::PARAM_OUT, [pair.param])
            .output(sym::MASTER_PARAM_OUT, [pair.master])
            .attr(sym::DTYPE, pair.low)
            .attr(sym::DIRECTION, direction.as_str())
            .attr(sym::ON_CONFLICT, self.on_conflict.as_str())
    }
}

/// What is to be mended of a pair.
#[derive(Clone, Copy, Default)]
struct Broken {
    /// at main's entry
    entry: bool,
    /// in main
    later: bool,
    /// in main, a dtype
    later_dtype: bool,
}

fn broken_pairs(proof: &Coherence) -> Vec<Broken> {
    let pairs = proof.verdicts.iter().filter(|v| matches!(v.subject, Subject::Pair(_)));
    pairs
        .map(|v| {
            let Broken { mut entry, mut later, mut later_dtype } = Broken::default();
            for f in &v.findings {
                match f {
                    Finding::Stale { when: When::Entry, .. } | Finding::WrongType { .. } => entry = true,
                    Finding::Unproved { when: When::Entry, obligation } => {
                        entry |= matches!(obligation, Obligation::EntriesAgree { .. } | Obligation::Branches)
                            || matches!(obligation, Obligation::StoredDtype(_) | Obligation::RunDtype(_))
                            // The parameter alone has no value: it is made from the master.
                            || matches!((obligation, v.subject), (Obligation::NeverWritten(n), Subject::Pair(p)) if *n == p.param);
                    }
                    Finding::Stale { .. } => later = true,
                    Finding::Unproved { obligation, .. } => {
                        later |= !matches!(obligation, Obligation::UnknownOp(_));
                        later_dtype |= matches!(obligation, Obligation::RunDtype(_) | Obligation::StoredDtype(_));
                    }
                    Finding::Conflict { .. } => entry = true,
                    Finding::Lossy { .. } | Finding::Unset => {}
                }
            }
            Broken { entry, later, later_dtype }
        })
        .collect()
}

/// What an op does to a pair.
#[derive(Clone, Copy, Debug)]
struct Event {
    op: OpId,
    block: BlockId,
    what: What,
    param: bool,
    master: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Load,
    /// gives a cell its first value; a load before it may be the newer source of the pair
    Init,
    /// narrows the parameter to its dtype in main, changes no value
    Narrow,
    /// narrows it to another
    Misnarrow,
    /// makes one from the other
    Sync,
    /// brings both in step: nothing is to be mended before it in its block
    Resynced,
    Write,
    /// an unknown op, or an optimizer that updates both, or that has another master
    Other,
}

/// Ops of startup's global block that read a parameter.
struct Readers<'a> {
    ops: &'a [OpId],
    pos: &'a [u32],
}

impl Readers<'_> {
    /// The last one after `from` and before `to`.
    fn last_between(&self, from: OpId, to: Option<OpId>) -> Option<OpId> {
        let at = |op: OpId| self.pos[op.index()];
        let until = to.map_or(u32::MAX, at);
        self.ops.iter().copied().rfind(|&op| at(op) > at(from) && at(op) < until)
    }
}

/// A pair that an op touches, and which of its cells it writes.
#[derive(Clone, Copy, Debug)]
struct Touch {
    pair: usize,
    param: bool,
    master: bool,
    reads_param: bool,
}

struct Plan<'a> {
    pass: Resync,
    program: &'a Program,
    effects: &'a Effects<'a>,
    pairs: &'a Pairs,
    cells: &'a Cells,
    edit: &'a mut Edit,
    /// parameters to be narrowed from their masters, and after which op
    endings: Vec<(Pair, OpId)>,
    /// whether another proof may show more
    unusual: bool,
}

impl Plan<'_> {
    /// The pairs among `wanted` that an op touches, and which of their cells it writes. One look at
    /// each argument: a load or an `amp_init` may name every parameter of the program.
    fn touched(&self, op: OpRef<'_>, wanted: impl Fn(usize) -> bool) -> Vec<Touch> {
        let mut out: Vec<Touch> = Vec::new();
        self.effects.each(op, |name, access| {
            let writes = access != Access::Read;
            for pair in self.pairs.of(name).filter(|&i| wanted(i)) {
                let row = &self.pairs.rows()[pair];
                let (param, master) = (name == row.param, name == row.master);
                out.push(Touch {
                    pair,
                    param: writes && param,
                    master: writes && master,
                    reads_param: !writes && param,
                });
            }
        });
        out.sort_by_key(|t| t.pair);
        out.dedup_by(|later, first| {
            let same = later.pair == first.pair;
            if same {
                first.param |= later.param;
                first.master |= later.master;
                first.reads_param |= later.reads_param;
            }
            same
        });
        out
    }

    /// What an op does to a pair, `None` when it does not write it.
    fn event(&self, op: OpRef<'_>, touch: Touch) -> Option<Event> {
        let Touch { pair, param, master, .. } = touch;
        let pair = &self.pairs.rows()[pair];
        let effect = self.effects.effect(op);
        // What sub-blocks write is seen when they are scanned on their own.
        if (!param && !master) || matches!(effect, Effect::Cond | Effect::While) {
            return None;
        }
        let what = match effect {
            Effect::Load => What::Load,
            Effect::AmpInit => match op.attr(sym::DTYPE).and_then(AttrValue::as_int) {
                Some(code) if code == i64::from(pair.low.code()) => What::Narrow,
                _ => What::Misnarrow,
            },
            // Decided at run time: when nothing was loaded it does nothing.
            Effect::Resync if op.attr(sym::DIRECTION).and_then(AttrValue::as_str) == Some("auto") => return None,
            Effect::Resync => What::Resynced,
            Effect::Unknown => What::Other,
            Effect::Optimizer(Wants::Master) if param && master => What::Other,
            // Two optimizers, each with a master of its own: to make one from the parameter would round it.
            Effect::Optimizer(Wants::Master)
                if matches!(pair.source, PairSource::Optimizer(_)) && !op.output(sym::MASTER_PARAM_OUT).is_empty() =>
            {
                What::Other
            }
            Effect::Copy | Effect::Cast => match (op.input(sym::X), param, master) {
                (&[x], false, true) if x == pair.param => What::Sync,
                (&[x], true, false) if x == pair.master => What::Sync,
                _ => What::Write,
            },
            Effect::Init => What::Init,
            _ => What::Write,
        };
        Some(Event { op: op.id, block: op.block(), what, param, master })
    }

    fn insert(&mut self, pair: &Pair, anchor: OpId, direction: Direction) {
        let why = match direction {
            Direction::Param => "the parameter is newer than its master",
            Direction::Master => "the master is newer than its parameter",
            Direction::Both => "parameter and master were both loaded",
        };
        self.edit.insert(At::After(anchor), self.pass.resync_op(pair, direction), why);
    }

    /// Mends pairs at main's entry. Returns the op after which each mended pair is in step.
    fn startup(&mut self, broken: &[Broken], pos: &[u32]) -> FxHashMap<Name, OpId> {
        let mut events: Vec<Vec<Event>> = vec![Vec::new(); broken.len()];
        // Ops of the global block that read the parameter, in order.
        let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); broken.len()];
        let global = self.program.global_block(Section::Startup);
        let mut runs = vec![0u32; self.program.block_rows()];
        for op in self.program.section_blocks(Section::Startup).flat_map(|b| self.program.ops(b)) {
            op.sub_blocks().for_each(|b| runs[b.index()] += 1);
        }
        let mut blocks: Vec<BlockId> = self.program.section_blocks(Section::Startup).collect();
        blocks.sort_unstable();
        for block in blocks {
            for op in self.program.ops(block) {
                for touch in self.touched(op, |i| broken[i].entry) {
                    events[touch.pair].extend(self.event(op, touch));
                    if touch.reads_param && self.effects.effect(op) != Effect::AmpInit && Some(block) == global {
                        readers[touch.pair].push(op.id);
                    }
                }
            }
        }
        let mut anchors = FxHashMap::default();
        for (i, mut list) in events.into_iter().enumerate().filter(|(i, _)| broken[*i].entry) {
            // A block that several ops run has no one place in the order.
            if list.iter().any(|e| runs[e.block.index()] > 1) {
                continue;
            }
            self.unusual |= list.iter().any(|e| self.program.block(e.block).index != 0);
            let usual = |e: &Event| matches!(e.what, What::Load | What::Init | What::Narrow | What::Sync);
            self.unusual |= !list.iter().all(usual);
            list.sort_by_key(|e| pos[e.op.index()]);
            let pair = self.pairs.rows()[i];
            if let Some(anchor) = self.mend_startup(&pair, &list, &Readers { ops: &readers[i], pos }) {
                anchors.insert(pair.param, anchor);
                anchors.insert(pair.master, anchor);
            }
        }
        // Only when every master has its value is a parameter that several share narrowed.
        for (pair, end) in std::mem::take(&mut self.endings) {
            self.insert(&pair, end, Direction::Master);
        }
        anchors
    }

    fn mend_startup(&mut self, pair: &Pair, events: &[Event], readers: &Readers<'_>) -> Option<OpId> {
        let mut rest: &[Event] = events;
        let (mut first, mut renarrowed) = (None, false);
        // The first op of the global block that narrows the parameter after what is to be mended.
        let mut narrowing = None;
        loop {
            while let [head @ .., Event { what: What::Narrow | What::Misnarrow, op, block, .. }] = rest {
                if rest.last().is_some_and(|e| e.what == What::Narrow) && self.program.block(*block).index == 0 {
                    narrowing = Some(*op);
                }
                // The parameter is narrowed again, from the master that was put right before.
                if rest.last().is_some_and(|e| e.what == What::Misnarrow) && first.is_none() {
                    self.insert(pair, *op, Direction::Master);
                    (first, renarrowed) = (Some(*op), true);
                }
                rest = head;
            }
            let Some(&last) = rest.last() else { return first };
            if last.what == What::Sync && renarrowed {
                return first;
            }
            let (mut param, mut master) = (false, false);
            match last.what {
                What::Resynced if self.program.block(last.block).index != 0 => {
                    while let [head @ .., e] = rest
                        && e.block == last.block
                    {
                        rest = head;
                    }
                    continue;
                }
                What::Load | What::Init => {
                    let all = rest;
                    let (mut gone_param, mut gone_master) = (false, false);
                    // All loads since the pair was last made from one another, in this block. A write whose
                    // value a later load replaces made nothing: a master that is cast from the parameter
                    // and then loaded is one that was loaded. What initialises the other cell after a load
                    // is no newer source.
                    while let [head @ .., e] = rest
                        && e.block == last.block
                    {
                        let (has_param, has_master) = (param || gone_param, master || gone_master);
                        let dead = (has_param || !e.param) && (has_master || !e.master);
                        match e.what {
                            What::Load => {
                                param |= e.param && !gone_param;
                                master |= e.master && !gone_master;
                            }
                            What::Init => {
                                gone_param |= e.param && !param;
                                gone_master |= e.master && !master;
                            }
                            What::Narrow | What::Misnarrow => {}
                            What::Sync | What::Write if dead => {}
                            _ => break,
                        }
                        rest = head;
                    }
                    if !param && !master {
                        (param, master, rest) = (last.param, last.master, &all[..all.len() - 1]);
                    }
                }
                // In step but not narrowed.
                What::Sync => (master, rest) = (true, &rest[..rest.len() - 1]),
                What::Write => (param, master, rest) = (last.param, last.master, &rest[..rest.len() - 1]),
                What::Other | What::Resynced | What::Narrow | What::Misnarrow => return first,
            }
            self.mend_after(pair, &last, Direction::of(param, master), narrowing, readers);
            first.get_or_insert(last.op);
            // A mend in a sub-block holds on that branch alone.
            if self.program.block(last.block).index == 0 {
                return first;
            }
        }
    }

    /// Brings a pair in step after `last`, in this direction.
    ///
    /// A resync narrows the parameter. Where an op that stands between it and the user's own narrowing
    /// reads the parameter, or another master is made from it, the value alone is passed on, and
    /// the parameter is narrowed after the last reader.
    fn mend_after(
        &mut self,
        pair: &Pair,
        last: &Event,
        direction: Direction,
        narrowing: Option<OpId>,
        readers: &Readers<'_>,
    ) {
        let reader = readers.last_between(last.op, narrowing);
        let end = reader.unwrap_or(last.op);
        let shared = self.pairs.of(pair.param).nth(1).is_some();
        let in_global = self.program.block(last.block).index == 0;
        let pass_on = match direction {
            _ if last.what == What::Sync => return self.endings.push((*pair, end)),
            Direction::Param if in_global && (reader.is_some() || shared) => {
                let in_dtype = self.cells.get(pair.param).startup.map_or(DType::F32, |v| self.program.var(v).dtype);
                cast(pair.param, pair.master, in_dtype, DType::F32)
            }
            Direction::Master if in_global && reader.is_some() => NewOp::new(sym::ASSIGN)
                .input(sym::X, [pair.master])
                .output(sym::OUT, [pair.param])
                .attr(sym::OP_ROLE, 0),
            _ => return self.insert(pair, last.op, direction),
        };
        self.edit.insert(
            At::After(last.op),
            pass_on,
            "passes the value on; the parameter is read before it is narrowed",
        );
        // A resync also makes a master float32; after the narrowing it changes nothing else.
        match narrowing {
            None => self.endings.push((*pair, end)),
            Some(op) if direction == Direction::Master && !self.loads_f32(last.op, pair.master) => {
                self.endings.push((*pair, op));
            }
            Some(_) => {}
        }
    }

    /// Whether an op is a load that is known to bring float32 for a cell.
    fn loads_f32(&self, op: OpId, name: Name) -> bool {
        let op = self.program.op(op);
        let place = op.output_args().position(|n| n == name);
        let stored = op.attr(sym::STORED_DTYPES).and_then(AttrValue::to_ints);
        let code = place.zip(stored).and_then(|(i, codes)| codes.get(i).copied());
        self.effects.effect(op) == Effect::Load && code == Some(i64::from(DType::F32.code()))
    }

    /// Mends pairs after the writes of main that break them.
    fn main(&mut self, broken: &[Broken]) {
        if !broken.iter().any(|b| b.later) {
            return;
        }
        for block in self.program.section_blocks(Section::Main) {
            // What was written to each broken pair since it was last in step, and by which op.
            let mut pending: indexmap::IndexMap<usize, (bool, bool, OpId)> = indexmap::IndexMap::new();
            for op in self.program.ops(block) {
                for touch in self.touched(op, |i| broken[i].later) {
                    let i = touch.pair;
                    match self.event(op, touch) {
                        Some(Event { what: What::Load, param, master, op, .. }) => {
                            let p = pending.entry(i).or_insert((false, false, op));
                            *p = (p.0 | param, p.1 | master, op);
                        }
                        Some(Event { what: What::Write | What::Init, param, master, op, .. }) => {
                            self.flush(&mut pending, i);
                            pending.insert(i, (param, master, op));
                        }
                        Some(Event { what: What::Misnarrow, op, .. }) => {
                            self.flush(&mut pending, i);
                            pending.insert(i, (false, true, op));
                        }
                        Some(Event { what: What::Sync, op, .. }) if broken[i].later_dtype => {
                            pending.insert(i, (false, true, op));
                        }
                        Some(Event { what: What::Sync | What::Resynced, .. }) => drop(pending.shift_remove(&i)),
                        Some(Event { what: What::Narrow, .. }) => {}
                        Some(Event { what: What::Other, .. }) | None => self.flush(&mut pending, i),
                    }
                }
            }
            for i in pending.keys().copied().collect::<Vec<_>>() {
                self.flush(&mut pending, i);
            }
        }
    }

    fn flush(&mut self, pending: &mut indexmap::IndexMap<usize, (bool, bool, OpId)>, i: usize) {
        if let Some((param, master, op)) = pending.shift_remove(&i) {
            let pair = self.pairs.rows()[i];
            self.insert(&pair, op, Direction::of(param, master));
        }
    }
}
