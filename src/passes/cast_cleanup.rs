//! Which casts that a rewrite to mixed precision made can go, or run less often?
//!
//! *Before*: any program. *After*: no such cast makes a value that a visible variable already holds (an equal cast
//! of the same definition, the operand of a widening that is narrowed again, a cast to the type that is there); none
//! is without a reader; in a loop none has an operand that the loop does not write. *Preserves*: every value that is
//! read, bit for bit (but for signalling NaNs, which a widening makes quiet); every cast of the user's; every
//! persistable's producer; what is fetched. Declarations stay, also those that nothing uses any more.
//! *Cost*: a few linear walks, as often as something changes.
//!
//! The pass takes casts whose result is named as Paddle and the pass `precision` name it (`x.cast_fp16` of `x`), is
//! written by that cast alone and read only where the walk sees it: a copy that a gradient block reads stays.

mod hoist;
mod values;

use super::precision::captures;
use super::{Pass, PassCx, PassError};
use crate::analysis::effects::Effects;
use crate::entity::EntityId;
use crate::ir::{Edit, EditSummary, OpId, OpRef, Program, Section, VarId};
use crate::names::{Name, sym};
use crate::ops::Kinds;
use crate::verify::{DeclIndex, copied};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The pass; it has no options.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CastCleanup {}

impl Pass for CastCleanup {
    fn name(&self) -> &'static str {
        "cast-cleanup"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let mut summary = EditSummary::default();
        // A cast before a loop may equal another one, and what takes a copy's place may be loop-invariant.
        for _ in 0..MOST_ROUNDS {
            let kinds = cx.ops.resolve(program);
            let mut round = hoist::run(program, &kinds, self.name());
            round.merge(merge(program, &kinds, self.name()));
            if !round.changed() {
                break;
            }
            summary.merge(round);
        }
        Ok(summary)
    }
}

/// Rounds until nothing changes: one, and one for each link of a chain of casts that leads out of a loop.
const MOST_ROUNDS: usize = 32;

/// Removes what makes a value that is at hand, and what nothing reads.
fn merge(program: &mut Program, kinds: &Kinds<'_>, pass: &str) -> EditSummary {
    let copies = Copies::new(program);
    let mut summary = EditSummary::default();
    if copies.casts.is_empty() {
        return summary;
    }
    let (found, lists) = {
        let effects = Effects::new(program, kinds);
        (values::find(program, &effects, &copies), captures::read(program, &effects))
    };
    let mut edit = Edit::new();
    // By holder: a copy whose place it takes in the lists of control ops.
    let mut instead: FxHashMap<Name, VarId> = FxHashMap::default();
    let mut gone = vec![false; program.var_rows()];
    for r in &found {
        gone[r.copy.index()] = true;
        let holder = program.var(r.holder).name;
        for &(op, at) in &r.reads {
            edit.set_arg(op, at, holder, "reads what holds the value already");
        }
        instead.entry(holder).or_insert(r.copy);
    }
    dead(program, &copies, &found, &mut gone, &mut edit);
    summary.merge(edit.commit(program, pass));
    if summary.changed() {
        summary.merge(captures::update(program, &instead, &lists, pass));
    }
    summary
}

/// A copy whose reads may be served by another variable.
struct Replace {
    copy: VarId,
    holder: VarId,
    /// op, place among its arguments
    reads: Vec<(OpId, u32)>,
}

/// The copies that the pass may touch.
struct Copies {
    decls: DeclIndex,
    /// by declaration: the cast that makes the copy
    casts: FxHashMap<VarId, OpId>,
    /// by declaration: how often ops of main read the copy
    reads: Vec<u32>,
}

impl Copies {
    fn new(program: &Program) -> Copies {
        let decls = DeclIndex::new(program);
        let mut casts: FxHashMap<VarId, OpId> = FxHashMap::default();
        let mut reads = vec![0u32; program.var_rows()];
        let mut writes = vec![0u32; program.var_rows()];
        let mut barred = vec![false; program.var_rows()];
        for block in program.section_blocks(Section::Main) {
            for op in program.ops(block) {
                for name in op.input_args() {
                    if let Some(v) = decls.find(block, name) {
                        reads[v.index()] += 1;
                        barred[v.index()] |= op.kind() == sym::FETCH;
                    }
                }
                for name in op.output_args() {
                    if let Some(v) = decls.find(block, name) {
                        writes[v.index()] += 1;
                    }
                }
                for name in op.attr_vars() {
                    if let Some(v) = decls.find(block, name) {
                        barred[v.index()] = true;
                    }
                }
                if let Some((_, var)) = made_copy(program, &decls, op) {
                    casts.insert(var, op.id);
                }
            }
        }
        casts.retain(|&v, _| writes[v.index()] == 1 && !barred[v.index()] && !program.var(v).persistable());
        Copies { decls, casts, reads }
    }
}

/// The operand and the copy of a cast that a rewrite made.
fn made_copy(program: &Program, decls: &DeclIndex, op: OpRef<'_>) -> Option<(VarId, VarId)> {
    if op.kind() != sym::CAST {
        return None;
    }
    let (&[x], &[out]) = (op.input(sym::X), op.output(sym::OUT)) else { return None };
    if copied(program.name(out)) != Some(program.name(x)) {
        return None;
    }
    let (x, out) = (decls.find(op.block(), x)?, decls.find(op.block(), out)?);
    (program.var(out).block == op.block()).then_some((x, out))
}

/// Removes casts whose copies nothing reads any more, and those that were read by such casts alone.
fn dead(program: &Program, copies: &Copies, found: &[Replace], gone: &mut [bool], edit: &mut Edit) {
    let mut left = copies.reads.clone();
    for r in found {
        left[r.copy.index()] = 0;
        left[r.holder.index()] += r.reads.len() as u32;
    }
    let mut todo: Vec<VarId> = copies.casts.keys().copied().filter(|v| left[v.index()] == 0).collect();
    todo.sort_unstable();
    let mut at = 0;
    while let Some(&var) = todo.get(at) {
        at += 1;
        let op = program.op(copies.casts[&var]);
        let why = if gone[var.index()] { "its value is at hand" } else { "nothing reads it" };
        edit.remove(op.id, why);
        let Some(x) = op.input(sym::X).first().and_then(|&x| copies.decls.find(op.block(), x)) else { continue };
        left[x.index()] = left[x.index()].saturating_sub(1);
        if left[x.index()] == 0 && copies.casts.contains_key(&x) {
            todo.push(x);
        }
    }
}
