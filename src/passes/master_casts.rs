//! Which parameters need a master, and is each seeded from the float32 value?
//!
//! *Before*: any program. *After*: each optimizer op in main with `multi_precision = true` and 16-bit
//! parameters has a master for each in `MasterParam`/`MasterParamOut` (one that exists by Paddle's name is
//! adopted); each master is declared in both sections and written in startup; no master that startup
//! casts is seeded from a narrowed value while the float32 value was at hand. *Preserves*: every other
//! op and its order. *Cost*: one symbolic sweep of startup and one scan of main.
//!
//! A new or moved cast says `in_dtype = f32`, which is true at its place (Paddle writes f16 there).

use super::{Pass, PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::effects::Access;
use crate::analysis::exec::{Exec, ExecOptions, Observer, Writer};
use crate::analysis::facts::Facts;
use crate::analysis::pairs::split_master_name;
use crate::analysis::values::{Known, Value, ValueId};
use crate::ir::{
    At, Attr, BlockId, DType, Edit, EditSummary, NewOp, OpId, OpRef, Program, Section, VarDef, VarFlag, VarId,
};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};
use rustc_hash::FxHashMap;
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
            declare(program, &cells, &mut edit, p, m);
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
fn declare(program: &mut Program, cells: &Cells, edit: &mut Edit, param: Name, master: Name) {
    let (of_param, of_master) = (cells.get(param), cells.get(master));
    let Some(source) = of_param.main.or(of_param.startup) else { return };
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

/// What startup does to the parameter and master of each pair.
#[derive(Clone, Default)]
struct Seed {
    /// op of the global block that narrowed the parameter in place from float32
    narrowed_at: Option<OpId>,
    /// a cell that held the float32 value when the parameter was made from it, and by which op
    wide_source: Option<(Name, OpId)>,
    /// last op of the global block that wrote the parameter
    param_writer: Option<OpId>,
    /// the cast that made the master from the parameter
    cast: Option<OpId>,
    /// whether the wide source still held its value at that cast
    source_holds: bool,
    /// what is done to the master between the narrowing and the cast
    between: Between,
}

/// What stands between the narrowing of a parameter and the cast that makes its master, and touches the
/// master: the cast cannot pass it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Between {
    #[default]
    Nothing,
    /// one initialiser, which goes along with the cast
    Fill(OpId),
    Other,
}

struct Watch {
    global: BlockId,
    seeds: Vec<Seed>,
    /// by pair: the float32 value of the parameter before the op at hand
    wide_before: Vec<Option<ValueId>>,
    /// pairs that have one
    touched: Vec<usize>,
}

impl Watch {
    /// Notes what an op does to the masters that are not cast yet.
    fn between(&mut self, exec: &Exec<'_>, op: OpRef<'_>) {
        // What an `amp_init` rewrites does not count: see `ExecOptions::ignore_rewrite`.
        if op.block() != self.global || exec.effects.effect(op) == Effect::AmpInit {
            return;
        }
        let fills = exec.effects.effect(op) == Effect::Init && op.output_args().count() == 1;
        exec.effects.each(op, |name, access| {
            for i in exec.pairs.of(name) {
                let (pair, seed) = (exec.pairs.rows()[i], &mut self.seeds[i]);
                let casts = op.kind() == sym::CAST && op.input(sym::X) == [pair.param];
                if name == pair.master && seed.cast.is_none() && !casts {
                    let alone = seed.between == Between::Nothing && fills && access == Access::Write;
                    seed.between = if alone { Between::Fill(op.id) } else { Between::Other };
                }
            }
        });
    }
}

impl Observer for Watch {
    fn before(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        for i in self.touched.drain(..) {
            self.wide_before[i] = None;
        }
        self.between(exec, op);
        for name in op.output_args() {
            for i in exec.pairs.of(name) {
                let pair = exec.pairs.rows()[i];
                if name == pair.param {
                    let v = exec.value(name);
                    if exec.values.known(v) == Known::Is(DType::F32) {
                        self.wide_before[i] = Some(v);
                        self.touched.push(i);
                    }
                } else if op.kind() == sym::CAST && op.input(sym::X) == [pair.param] {
                    let source = self.seeds[i].wide_source;
                    self.seeds[i].cast = Some(op.id);
                    let p = exec.value(pair.param);
                    self.seeds[i].source_holds = source.is_some_and(|(t, _)| {
                        let t = exec.value(t);
                        matches!(exec.values.get(p), Value::Cast(_, v) if v == t)
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
                if in_place {
                    (seed.narrowed_at, seed.cast, seed.between) = (Some(op.id), None, Between::Nothing);
                } else if exec.values.known(v) == Known::Is(DType::F32) {
                    // A fresh float32 value: what was narrowed before is gone.
                    (seed.narrowed_at, seed.wide_source) = (None, None);
                } else if let (Effect::Cast, &[t], Some(from)) = (exec.effects.effect(op), op.input(sym::X), from) {
                    let held = exec.value(t) == from && exec.values.known(from) == Known::Is(DType::F32);
                    seed.wide_source = held.then_some((t, op.id));
                    (seed.cast, seed.between) = (None, Between::Nothing);
                }
            }
        }
    }
}

/// Makes startup write each master, from the float32 value where there is one.
fn seed(program: &mut Program, cx: &PassCx<'_>, pass: &str) -> EditSummary {
    let Some(global) = program.global_block(Section::Startup) else { return EditSummary::default() };
    if program.block(global).ops.is_empty() {
        return EditSummary::default();
    }
    let facts = Facts::new(program, cx.ops, &cx.declared);
    let Facts { cells, pairs, .. } = &facts;
    let mut exec = Exec::new(&facts, ExecOptions { ignore_rewrite: true });
    let n = pairs.rows().len();
    let mut watch = Watch { global, seeds: vec![Seed::default(); n], wide_before: vec![None; n], touched: Vec::new() };
    exec.run(Section::Startup, &mut watch);

    let mut edit = Edit::new();
    let mut undeclared = Vec::new();
    for (i, (pair, seed)) in pairs.rows().iter().zip(&watch.seeds).enumerate() {
        if cells.get(pair.master).startup.is_none() || cells.get(pair.master).main.is_none() {
            undeclared.push(i);
        }
        let Some(param_writer) = seed.param_writer else { continue };
        let place = match seed.narrowed_at {
            Some(narrowing) => At::Before(narrowing),
            None => At::After(param_writer),
        };
        if exec.writer(pair.master) == Writer::Nobody {
            let (source, place) = match seed.wide_source {
                Some((t, by)) => (t, At::After(by)),
                None => (pair.param, place),
            };
            let v = exec.value(pair.param);
            let in_dtype = match (seed.narrowed_at, seed.wide_source) {
                (None, None) => exec.values.known(v).exact().unwrap_or(DType::F32),
                _ => DType::F32,
            };
            edit.insert(place, cast(source, pair.master, in_dtype, DType::F32), "seeds the master");
            continue;
        }
        let m = exec.value(pair.master);
        let Value::Cast(DType::F32, low) = exec.values.get(m) else { continue };
        let Value::Cast(_, v) = exec.values.get(low) else { continue };
        let Some(cast_op) = seed.cast.filter(|_| exec.values.known(v) == Known::Is(DType::F32)) else { continue };
        if program.op(cast_op).block() != global {
            continue;
        }
        let goes_to = match (seed.narrowed_at, seed.wide_source) {
            (Some(narrowing), _) => Some(At::Before(narrowing)),
            (None, Some((_, by))) if !seed.source_holds => Some(At::After(by)),
            _ => None,
        };
        match (goes_to, seed.between) {
            (Some(_), Between::Other) => continue,
            (Some(place), Between::Fill(fill)) => {
                edit.relocate(fill, place, "initialises the master before it is seeded");
            }
            _ => {}
        }
        if seed.narrowed_at.or(seed.wide_source.map(|w| w.1)).is_some()
            && program.op(cast_op).attr(sym::IN_DTYPE).is_some_and(|v| v.as_int() != Some(DType::F32.code().into()))
        {
            edit.set_attr(cast_op, Attr::new(sym::IN_DTYPE, DType::F32), "the operand's dtype at its new place");
        }
        if let Some(narrowing) = seed.narrowed_at {
            edit.relocate(cast_op, At::Before(narrowing), "seeds the master before the parameter is narrowed");
        } else if let Some((t, by)) = seed.wide_source {
            edit.replace_input(cast_op, pair.param, t, "seeds the master from the float32 value");
            if !seed.source_holds {
                edit.relocate(cast_op, At::After(by), "seeds the master while the float32 value is there");
            }
        }
    }
    let undeclared: Vec<_> = undeclared.into_iter().map(|i| pairs.rows()[i]).collect();
    drop(exec);
    for pair in undeclared {
        declare(program, cells, &mut edit, pair.param, pair.master);
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
