//! Under which names, and in which dtype, do optimizers keep their state?

use super::typed::Typer;
use crate::ir::{Attr, DType, Edit, EditSummary, OpId, Program, Section};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};
use crate::passes::PassCx;
use rustc_hash::{FxHashMap, FxHashSet};

/// Initialisers in startup of what was narrowed.
pub(super) fn narrow_initialisers(t: &mut Typer<'_>, narrowed: &FxHashSet<Name>) {
    if narrowed.is_empty() {
        return;
    }
    let ops: Vec<OpId> = {
        let ops = t.work.section_blocks(Section::Startup).flat_map(|b| t.work.ops(b));
        let says = |op: &crate::ir::OpRef<'_>| {
            op.attr(sym::DTYPE).and_then(|v| v.as_int()) == Some(i64::from(DType::F32.code()))
        };
        ops.filter(|op| op.output_args().any(|n| narrowed.contains(&n)) && says(op)).map(|op| op.id).collect()
    };
    for op in ops {
        t.edit.set_attr(op, Attr::new(sym::DTYPE, t.low), "initialises an accumulator of 16 bits");
    }
}

/// The accumulators of an optimizer op.
fn state(program: &Program, op: OpId) -> Vec<Name> {
    let other = [sym::PARAM, sym::GRAD, sym::LEARNING_RATE, sym::MASTER_PARAM, sym::SKIP_UPDATE];
    let r = program.op(op);
    r.inputs().filter(|s| !other.contains(&s.name)).flat_map(|s| s.args.iter().copied()).collect()
}

/// Keeps accumulators under the names of masters, in both programs.
pub(super) fn rekey(work: &mut Program, cx: &PassCx<'_>, pass: &str) -> EditSummary {
    let kinds = cx.ops.resolve(work);
    let mut wanted: Vec<(Name, String)> = Vec::new();
    let mut seen: FxHashSet<Name> = FxHashSet::default();
    for op in work.section_blocks(Section::Main).flat_map(|b| work.ops(b)) {
        if !matches!(kinds.get(op.kind()).effect, Effect::Optimizer(Wants::Master)) {
            continue;
        }
        for (&param, &master) in op.input(sym::PARAM).iter().zip(op.input(sym::MASTER_PARAM)) {
            let (p, m) = (work.name(param), work.name(master));
            for name in state(work, op.id) {
                let text = work.name(name);
                let rest = text.strip_prefix(p).filter(|r| r.starts_with('_') && !text.starts_with(m));
                if let Some(rest) = rest
                    && seen.insert(name)
                {
                    wanted.push((name, format!("{m}{rest}")));
                }
            }
        }
    }
    let mut to: FxHashMap<Name, Name> = FxHashMap::default();
    for (name, text) in wanted {
        if work.names().lookup(&text).is_none() {
            let new = work.intern(&text);
            to.insert(name, new);
        }
    }
    let mut edit = Edit::new();
    if to.is_empty() {
        return EditSummary::default();
    }
    for block in work.block_ids() {
        for &var in &work.block(block).vars {
            if let Some(&new) = to.get(&work.var(var).name) {
                edit.rename(var, new, "kept under the master's name");
            }
        }
        for op in work.ops(block).filter(|op| op.input_args().chain(op.output_args()).any(|n| to.contains_key(&n))) {
            let list = |s: crate::ir::Slot<'_>| {
                (s.name, s.args.iter().map(|n| to.get(n).copied().unwrap_or(*n)).collect::<Vec<Name>>())
            };
            let (inputs, outputs) = (op.inputs().map(list).collect(), op.outputs().map(list).collect());
            edit.set_slots(op.id, inputs, outputs, "its state is kept under the master's name");
        }
    }
    edit.commit(work, pass)
}
