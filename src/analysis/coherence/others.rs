//! Are derived copies, and 16-bit parameters without a master, as they must be when main starts?

use super::{Finding, LEAVES, Subject, Verdict, When, typed};
use crate::analysis::exec::{Exec, Operands, Writer, cast_to};
use crate::analysis::values::{Value, ValueId};
use crate::ir::{OpRef, Section};
use crate::names::{Name, Symbol};
use crate::ops::Effect;
use rustc_hash::FxHashSet;

/// Persistables whose last write in startup is a pure function of other persistables.
pub(super) fn derived(exec: &mut Exec<'_>, out: &mut Vec<Verdict>) {
    let program = exec.program;
    let Some(global) = program.global_block(Section::Startup) else { return };
    for op in program.ops(global) {
        let effect = exec.effects.effect(op);
        if !matches!(effect, Effect::Copy | Effect::Cast | Effect::Pure) {
            continue;
        }
        let inputs: Vec<Name> = op.input_args().collect();
        let Some(&source) = inputs.first() else { continue };
        // An op that overwrites what it reads leaves nothing to compare with.
        let sources: FxHashSet<Name> = inputs.iter().copied().collect();
        let in_place = op.output_args().any(|n| sources.contains(&n));
        if in_place || !inputs.iter().copied().chain(op.attr_vars()).all(|n| exec.cells.get(n).persistable) {
            continue;
        }
        let newest = inputs.iter().copied().find(|&n| exec.writer(n) != Writer::Nobody).unwrap_or(source);
        let mut made: Option<[Derivation; 2]> = None;
        let outputs = op.outputs().flat_map(|s| s.args.iter().enumerate().map(move |(i, &cell)| (s.name, i, cell)));
        for (slot, i, cell) in outputs {
            if exec.writer(cell) != Writer::Op(op.id) || !exec.cells.get(cell).persistable {
                continue;
            }
            let is_pair = exec.pairs.of(cell).any(|k| {
                let p = exec.pairs.rows()[k];
                inputs == [p.param] && p.master == cell || inputs == [p.master] && p.param == cell
            });
            if is_pair {
                continue;
            }
            let made = made.get_or_insert_with(|| {
                let args = exec.arguments(op);
                // A copy that was made before its source was narrowed in place holds what the source held then.
                let wide = args.iter().map(|&v| match exec.values.get(v) {
                    Value::Cast(d, inner) if d.is_low() => inner,
                    _ => v,
                });
                let wide: Vec<ValueId> = wide.collect();
                [Derivation::of(exec, op, &args), Derivation::of(exec, op, &wide)]
            });
            let now = exec.value(cell);
            let holds = made.iter().any(|args| again(exec, op, (slot, i), args) == Some(now));
            // A source that has since been made from the copy is the derived one.
            if !holds && sources.iter().any(|&n| made_from(exec, n, now)) {
                continue;
            }
            let mut findings = Vec::new();
            if !holds {
                findings.push(Finding::Stale {
                    when: When::Entry,
                    old: cell,
                    new: newest,
                    old_writer: exec.writer(cell),
                    new_writer: exec.writer(newest),
                });
            }
            out.push(Verdict { subject: Subject::Copy { cell, source, op: op.id }, findings });
        }
    }
}

fn made_from(exec: &mut Exec<'_>, name: Name, part: ValueId) -> bool {
    let v = exec.value(name);
    exec.values.made_from(v, part, LEAVES)
}

/// Arguments that a copy may have been derived from; there is at least one.
struct Derivation {
    first: ValueId,
    all: Operands,
}

impl Derivation {
    fn of(exec: &mut Exec<'_>, op: OpRef<'_>, args: &[ValueId]) -> Derivation {
        Derivation { first: args[0], all: exec.operands(op, args) }
    }
}

/// What an output of a derivation would be on these arguments.
fn again(exec: &mut Exec<'_>, op: OpRef<'_>, output: (Symbol, usize), args: &Derivation) -> Option<ValueId> {
    match exec.effects.effect(op) {
        Effect::Copy => Some(args.first),
        Effect::Cast => cast_to(op).map(|to| exec.values.cast(to, args.first)),
        _ => Some(exec.pure(op, output, &args.all)),
    }
}

/// 16-bit parameters without a master: only the run-time dtype is claimed.
pub(super) fn singles(exec: &mut Exec<'_>, out: &mut Vec<Verdict>) {
    let program = exec.program;
    let Some(global) = program.global_block(Section::Main) else { return };
    for &var in &program.block(global).vars {
        let v = program.var(var);
        if !v.dtype.is_low() || !v.persistable() || exec.pairs.has(v.name) || exec.writer(v.name) == Writer::Nobody {
            continue;
        }
        let mut findings = Vec::new();
        let value = exec.value(v.name);
        typed(exec, v.name, value, v.dtype, &mut findings);
        out.push(Verdict { subject: Subject::Param(v.name), findings });
    }
}
