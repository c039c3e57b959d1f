//! Which parameters need a master, and is each seeded from the float32 value?
//!
//! *Before*: any program. *After*: each optimizer op in main with `multi_precision = true` and 16-bit
//! parameters has a master for each in `MasterParam`/`MasterParamOut` (one that exists by Paddle's name is
//! adopted); each master is declared in both sections and written in startup; no master that startup
//! casts is seeded from a narrowed value while the float32 value was at hand. *Preserves*: every other
//! op and its order. *Cost*: one scan of startup and main; where startup narrows before it makes a master, one
//! symbolic sweep of startup.
//!
//! A new or moved cast says `in_dtype = f32`, which is true at its place (Paddle writes f16 there).

use super::{Pass, PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::exec::{Exec, ExecOptions, Observer, Writer, cast_to};
use crate::analysis::facts::Facts;
use crate::analysis::pairs::split_master_name;
use crate::analysis::values::{Known, Value, ValueId};
use crate::ir::{
    At, Attr, BlockId, DType, Edit, EditSummary, NewOp, OpId, OpRef, Program, Section, VarDef, VarFlag, VarId,
};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

/// The pass; it has no options.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MasterCasts {}

impl Pass for MasterCasts {
    fn name(&self) -> &'static str {
        "master-casts"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let mut summary = wire(program, cx, self.name());
        summary.merge(seed(program, cx, self.name()));
        Ok(summary)
    }
}

/// Gives optimizer ops the masters that they want.
fn wire(program: &mut Program, cx: &PassCx<'_>, pass: &str) -> EditSummary {
    let kinds = cx.ops.resolve(program);
    let mut wanting: Vec<(OpId, Vec<Name>)> = Vec::new();
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            let wants = kinds.get(op.kind()).effect == Effect::Optimizer(Wants::Master)
                && op.attr(sym::MULTI_PRECISION).and_then(|v| v.as_bool()) == Some(true)
                && op.input(sym::MASTER_PARAM).is_empty();
            if wants {
                wanting.push((op.id, op.input(sym::PARAM).to_vec()));
            }
        }
    }
    if wanting.is_empty() {
        return EditSummary::default();
    }
    let cells = Cells::new(program);
    wanting.retain(|(_, params)| params.iter().all(|&p| cells.dtype(program, p).is_some_and(DType::is_low)));
    if wanting.is_empty() {
        return EditSummary::default();
    }
    let mut masters = existing_masters(program, &cells);
    let mut edit = Edit::new();
    let mut done = FxHashSet::default();
    for (op, params) in wanting {
        let list: Vec<Name> =
            params.iter().map(|&p| *masters.entry(p).or_insert_with(|| new_master(program, p))).collect();
        let r = program.op(op);
        let put = |slots: Vec<(crate::names::Symbol, Vec<Name>)>, slot| {
            let mut slots: Vec<_> = slots.into_iter().filter(|(name, _)| *name != slot).collect();
            slots.push((slot, list.clone()));
            slots
        };
        let inputs = put(r.inputs().map(|s| (s.name, s.args.to_vec())).collect(), sym::MASTER_PARAM);
        let outputs = put(r.outputs().map(|s| (s.name, s.args.to_vec())).collect(), sym::MASTER_PARAM_OUT);
        edit.set_slots(op, inputs, outputs, "the optimizer updates a float32 master");
        for (&p, &m) in params.iter().zip(&list) {
            declare(program, &cells, &mut edit, &mut done, p, m);
        }
    }
    edit.commit(program, pass)
}

/// Declared float32 persistables that are named as masters, by parameter; the lowest counter wins.
fn existing_masters(program: &Program, cells: &Cells) -> FxHashMap<Name, Name> {
    let mut found: FxHashMap<Name, (u64, Name)> = FxHashMap::default();
    for (name, text) in program.names().iter() {
        let Some((param, n)) = split_master_name(text) else { continue };
        let Some(param) = program.names().lookup(param) else { continue };
        let (Some(a), Some(b)) = (cells.declaration(name), cells.declaration(param)) else { continue };
        let fits =
            cells.get(name).persistable && program.var(a).dtype == DType::F32 && program.shape(a) == program.shape(b);
        if fits && found.get(&param).is_none_or(|&(best, _)| n < best) {
            found.insert(param, (n, name));
        }
    }
    found.into_iter().map(|(p, (_, m))| (p, m)).collect()
}

fn new_master(program: &mut Program, param: Name) -> Name {
    let base = program.name(param).to_owned();
    for n in 0u64.. {
        let text = format!("{base}_fp32_master_{n}");
        if program.names().lookup(&text).is_none() {
            return program.intern(&text);
        }
    }
    unreachable!("2^64 masters")
}

/// Declares a master wherever its parameter is declared and it is not.
fn declare(
    program: &mut Program,
    cells: &Cells,
    edit: &mut Edit,
    done: &mut FxHashSet<Name>,
    param: Name,
    master: Name,
) {
    let (of_param, of_master) = (cells.get(param), cells.get(master));
    let Some(source) = of_param.main.or(of_param.startup) else { return };
    // Several ops, or parameters, may have one master.
    if !done.insert(master) {
        return;
    }
    let shape = program.shape(source).to_vec();
    let mut put = |section: Section, have: Option<VarId>, anchor: Option<VarId>| {
        if have.is_some() || (section == Section::Startup && program.is_empty(section)) {
            return;
        }
        let block: BlockId = program.ensure_global_block(section);
        let origin = program.var(anchor.unwrap_or(source)).origin;
        let def = VarDef::tensor(master, DType::F32, shape.clone())
            .with(VarFlag::Persistable, true)
            .with(VarFlag::StopGradient, true);
        edit.declare(block, def, origin, "the master of a 16-bit parameter");
    };
    put(Section::Startup, of_master.startup, of_param.startup);
    put(Section::Main, of_master.main, of_param.main);
}

/// A list of ops in [`Watch::written`], by its last entry counted from 1; 0 is the empty list.
type Writes = u32;

/// What startup does to the parameter and master of each pair.
#[derive(Clone, Default)]
struct Seed {
    /// op of the global block that narrowed the parameter in place from float32
    narrowed_at: Option<OpId>,
    /// the first op that did so since the parameter was initialised
    first_narrowing: Option<OpId>,
    /// a cell that held the float32 value when the parameter was made from it, and by which op
    wide_source: Option<(Name, OpId)>,
    /// last op of the global block that wrote the parameter
    param_writer: Option<OpId>,
    /// ops that wrote the master since the parameter was narrowed
    writes: Writes,
    /// whether something reads the master since then, or writes it from elsewhere, so that nothing may move
    blocked: bool,
    /// the last cast that made the master from the parameter
    cast: Option<MasterCast>,
}

/// What held when a master was cast from its parameter.
#[derive(Clone)]
struct MasterCast {
    op: OpId,
    narrowed_at: Option<OpId>,
    wide_source: Option<(Name, OpId)>,
    /// whether the wide source still held its value
    source_holds: bool,
    /// ops that wrote the master since the narrowing, the cast last: they go before it together
    writes: Writes,
    blocked: bool,
}

/// Whether a value may be float32: what is loaded without a manifest is treated like it.
fn maybe_wide(known: Known) -> bool {
    matches!(known, Known::Is(DType::F32) | Known::UpToF32)
}

struct Watch {
    global: BlockId,
    seeds: Vec<Seed>,
    /// by pair: the float32 value of the parameter before the op at hand
    wide_before: Vec<Option<ValueId>>,
    /// pairs that have one
    touched: Vec<usize>,
    /// ops, each with the list that it prolongs
    written: Vec<(OpId, Writes)>,
}

impl Watch {
    /// The ops of a list, in program order.
    fn ops(&self, mut list: Writes) -> Vec<OpId> {
        let mut out = Vec::new();
        while let Some(&(op, before)) = (list as usize).checked_sub(1).and_then(|i| self.written.get(i)) {
            out.push(op);
            list = before;
        }
        out.reverse();
        out
    }
}

impl Observer for Watch {
    fn before(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        for i in self.touched.drain(..) {
            self.wide_before[i] = None;
        }
        let effects = exec.effects;
        let in_blocks = op.sub_blocks().flat_map(|b| &effects.block(b).reads).copied();
        for name in op.input_args().chain(in_blocks) {
            for i in exec.pairs.of(name).filter(|&i| exec.pairs.rows()[i].master == name) {
                self.seeds[i].blocked = true;
            }
        }
        for name in op.output_args() {
            for i in exec.pairs.of(name) {
                let pair = exec.pairs.rows()[i];
                if name == pair.param {
                    let v = exec.value(name);
                    if maybe_wide(exec.values.known(v)) {
                        self.wide_before[i] = Some(v);
                        self.touched.push(i);
                    }
                    continue;
                }
                let from_param = op.kind() == sym::CAST && op.input(sym::X) == [pair.param];
                let seed = &mut self.seeds[i];
                seed.blocked |= op.block() != self.global || op.outputs().flat_map(|s| s.args).count() != 1;
                seed.blocked |= !from_param && exec.effects.effect(op) != Effect::Init;
                self.written.push((op.id, seed.writes));
                seed.writes = self.written.len() as u32;
                if from_param {
                    let (p, source) = (exec.value(pair.param), seed.wide_source);
                    let holds = |(t, _): (Name, OpId)| {
                        let t = exec.value(t);
                        matches!(exec.values.get(p), Value::Cast(_, v) if v == t)
                    };
                    seed.cast = Some(MasterCast {
                        op: op.id,
                        narrowed_at: seed.narrowed_at,
                        wide_source: source,
                        source_holds: source.is_some_and(holds),
                        writes: seed.writes,
                        blocked: seed.blocked,
                    });
                }
            }
        }
    }

    fn after(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        if op.block() != self.global {
            return;
        }
        for name in op.output_args() {
            for i in exec.pairs.of(name) {
                let pair = exec.pairs.rows()[i];
                if name != pair.param {
                    continue;
                }
                let seed = &mut self.seeds[i];
                seed.param_writer = Some(op.id);
                let v = exec.value(name);
                let from = match exec.values.get(v) {
                    Value::Cast(d, from) if d.is_low() => Some(from),
                    _ => None,
                };
                let in_place = from.is_some() && self.wide_before[i] == from;
                let loaded = exec.effects.effect(op) == Effect::Load;
                if in_place {
                    (seed.writes, seed.blocked) = (0, false);
                    seed.narrowed_at = Some(op.id);
                    seed.first_narrowing.get_or_insert(op.id);
                } else if maybe_wide(exec.values.known(v)) {
                    // A fresh float32 value: what was narrowed before is gone.
                    (seed.narrowed_at, seed.wide_source) = (None, None);
                    // A load may still be moved before the narrowing, and before a cast that stands there.
                    seed.first_narrowing = seed.first_narrowing.filter(|_| loaded);
                } else if let (Effect::Cast, &[t], Some(from)) = (exec.effects.effect(op), op.input(sym::X), from) {
                    let held = exec.value(t) == from && exec.values.known(from) == Known::Is(DType::F32);
                    seed.wide_source = held.then_some((t, op.id));
                    (seed.writes, seed.blocked) = (0, false);
                }
            }
        }
    }
}

/// Whether one look at startup tells that nothing is left to do: each master is declared and written, and
/// nothing that may narrow a value stands before the last write of a master. Most programs are so.
fn seeded(facts: &Facts<'_>, global: BlockId) -> bool {
    let Facts { program, effects, cells, pairs, .. } = facts;
    let mut open = pairs.rows().len();
    let mut written = vec![false; open];
    let mut may_narrow = false;
    for op in program.ops(global) {
        match effects.effect(op) {
            Effect::Init | Effect::Copy | Effect::Pure | Effect::Opaque | Effect::Save => {}
            Effect::Load if op.attr(sym::LOAD_AS_FP16).is_none() => {}
            Effect::Cast if cast_to(op).is_some_and(|d| !d.is_low()) => {}
            _ => {
                may_narrow = true;
                continue;
            }
        }
        for i in op.output_args().flat_map(|n| pairs.of(n).filter(move |&i| pairs.rows()[i].master == n)) {
            if may_narrow {
                return false;
            }
            open -= usize::from(!std::mem::replace(&mut written[i], true));
        }
    }
    let declared = |n| cells.get(n).startup.is_some() && cells.get(n).main.is_some();
    open == 0 && pairs.rows().iter().all(|p| declared(p.master))
}

/// Makes startup write each master, from the float32 value where there is one.
fn seed(program: &mut Program, cx: &PassCx<'_>, pass: &str) -> EditSummary {
    let Some(global) = program.global_block(Section::Startup) else { return EditSummary::default() };
    if program.block(global).ops.is_empty() {
        return EditSummary::default();
    }
    let facts = Facts::new(program, cx.ops, &cx.declared);
    if seeded(&facts, global) {
        return EditSummary::default();
    }
    let Facts { cells, pairs, .. } = &facts;
    let mut exec = Exec::new(&facts, ExecOptions { ignore_rewrite: true, ..ExecOptions::default() });
    let n = pairs.rows().len();
    let (seeds, wide_before) = (vec![Seed::default(); n], vec![None; n]);
    let mut watch = Watch { global, seeds, wide_before, touched: Vec::new(), written: Vec::new() };
    exec.run(Section::Startup, &mut watch);

    let mut edit = Edit::new();
    let mut undeclared = Vec::new();
    for (i, (pair, seed)) in pairs.rows().iter().zip(&watch.seeds).enumerate() {
        if cells.get(pair.master).startup.is_none() || cells.get(pair.master).main.is_none() {
            undeclared.push(i);
        }
        let Some(param_writer) = seed.param_writer else { continue };
        if exec.writer(pair.master) == Writer::Nobody {
            let v = exec.value(pair.param);
            let (source, place, in_dtype) = match (seed.wide_source, seed.first_narrowing) {
                (Some((t, by)), _) => (t, At::After(by), DType::F32),
                (None, Some(narrowing)) => (pair.param, At::Before(narrowing), DType::F32),
                (None, None) => {
                    let known = exec.values.known(v).exact();
                    (pair.param, At::After(param_writer), known.unwrap_or(DType::F32))
                }
            };
            edit.insert(place, cast(source, pair.master, in_dtype, DType::F32), "seeds the master");
            continue;
        }
        let m = exec.value(pair.master);
        let Value::Cast(DType::F32, low) = exec.values.get(m) else { continue };
        let Value::Cast(_, v) = exec.values.get(low) else { continue };
        let Some(made) = seed.cast.as_ref().filter(|_| maybe_wide(exec.values.known(v))) else { continue };
        let (place, why) = match (made.narrowed_at, made.wide_source) {
            (Some(narrowing), _) => (At::Before(narrowing), "seeds the master before the parameter is narrowed"),
            (None, Some((_, by))) => (At::After(by), "seeds the master while the float32 value is there"),
            (None, None) => continue,
        };
        let moves = made.narrowed_at.is_some() || !made.source_holds;
        if program.op(made.op).block() != global || (moves && made.blocked) {
            continue;
        }
        let casts = if moves { watch.ops(made.writes) } else { vec![made.op] };
        for &op in &casts {
            let says = program.op(op).attr(sym::IN_DTYPE).and_then(|v| v.as_int());
            if says.is_some_and(|code| code != i64::from(DType::F32.code())) {
                edit.set_attr(op, Attr::new(sym::IN_DTYPE, DType::F32), "the operand's dtype at its new place");
            }
        }
        if let (None, Some((t, _))) = (made.narrowed_at, made.wide_source) {
            edit.replace_input(made.op, pair.param, t, "seeds the master from the float32 value");
        }
        if moves {
            casts.into_iter().for_each(|op| edit.relocate(op, place, why));
        }
    }
    let undeclared: Vec<_> = undeclared.into_iter().map(|i| pairs.rows()[i]).collect();
    drop(exec);
    let mut done = FxHashSet::default();
    for pair in undeclared {
        declare(program, cells, &mut edit, &mut done, pair.param, pair.master);
    }
    edit.commit(program, pass)
}

/// A cast op with true attributes.
pub(super) fn cast(from: Name, to: Name, in_dtype: DType, out_dtype: DType) -> NewOp {
    NewOp::new(sym::CAST)
        .input(sym::X, [from])
        .output(sym::OUT, [to])
        .attr(sym::IN_DTYPE, in_dtype)
        .attr(sym::OUT_DTYPE, out_dtype)
        .attr(sym::OP_ROLE, 0)
}
