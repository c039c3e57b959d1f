//! Which masters does an `amp_init` rewrite, although they hold at least what it would write?

use crate::analysis::coherence::{Coherence, Finding, Subject, prove};
use crate::analysis::exec::ExecOptions;
use crate::analysis::facts::Facts;
use crate::analysis::pairs::Pair;
use crate::diag::{Code, Diagnostic, Diagnostics, Places, shorten};
use crate::ir::{Edit, OpId, Section};
use crate::names::{Name, sym};
use crate::ops::Effect;
use rustc_hash::FxHashMap;

/// Takes the pairs out of every `MasterOf`, except those whose master nothing else writes. `proof` is that
/// without the rewrites.
pub(super) fn clear(facts: &Facts<'_>, proof: &Coherence, diagnostics: &mut Diagnostics, edit: &mut Edit) {
    let Facts { program, effects, pairs, .. } = facts;
    let unset = |i: usize| proof.verdicts[i].findings.contains(&Finding::Unset);
    // Masters that a rewrite would round, by the op; only computed when there is a rewrite.
    let mut lossy: Option<FxHashMap<OpId, Vec<Pair>>> = None;
    let places = Places::new(program);
    for section in Section::ALL {
        for block in program.section_blocks(section) {
            for op in program.ops(block) {
                if effects.effect(op) != Effect::AmpInit || op.input(sym::MASTER_OF).is_empty() {
                    continue;
                }
                let (params, masters) = (op.input(sym::MASTER_OF), op.output(sym::MASTER_PARAM_OUT));
                let keeps = |p: Name, m: Name| !pairs.of(p).any(|i| pairs.rows()[i].master == m && !unset(i));
                let kept: Vec<(Name, Name)> =
                    params.iter().copied().zip(masters.iter().copied()).filter(|&(p, m)| keeps(p, m)).collect();
                if kept.len() == params.len() {
                    continue;
                }
                let lossy = lossy.get_or_insert_with(|| lossy_writers(facts));
                for pair in lossy.get(&op.id).into_iter().flatten() {
                    diagnostics.push(
                        Diagnostic::new(
                            Code::LossyMaster,
                            format!(
                                "`amp_init` would round master `{}` through {}; its rewrite was cleared",
                                shorten(program.name(pair.master)),
                                pair.low
                            ),
                            places.op(op.id),
                        )
                        .note("mended by `resync`"),
                    );
                }
                let with = |slots: Vec<(crate::names::Symbol, Vec<Name>)>, slot, list: Vec<Name>| -> Vec<_> {
                    slots
                        .into_iter()
                        .filter_map(|(n, a)| {
                            if n == slot { (!list.is_empty()).then(|| (n, list.clone())) } else { Some((n, a)) }
                        })
                        .collect()
                };
                let inputs = with(slots(op.inputs()), sym::MASTER_OF, kept.iter().map(|k| k.0).collect());
                let outputs = with(slots(op.outputs()), sym::MASTER_PARAM_OUT, kept.iter().map(|k| k.1).collect());
                edit.set_slots(
                    op.id,
                    inputs,
                    outputs,
                    "the masters already hold at least what the rewrite would write",
                );
            }
        }
    }
}

/// The pairs whose master is rounded at main's entry, by the op that wrote it.
fn lossy_writers(facts: &Facts<'_>) -> FxHashMap<OpId, Vec<Pair>> {
    let proof = prove(facts, ExecOptions::default());
    let mut out: FxHashMap<OpId, Vec<Pair>> = FxHashMap::default();
    for verdict in &proof.verdicts {
        let Subject::Pair(pair) = verdict.subject else { continue };
        for finding in &verdict.findings {
            if let Finding::Lossy { writer } = finding
                && let Some(op) = writer.op()
            {
                out.entry(op).or_default().push(pair);
            }
        }
    }
    out
}

fn slots<'p>(slots: impl Iterator<Item = crate::ir::Slot<'p>>) -> Vec<(crate::names::Symbol, Vec<Name>)> {
    slots.map(|s| (s.name, s.args.to_vec())).collect()
}
