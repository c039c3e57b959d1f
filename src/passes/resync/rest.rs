//! What is still out of step once loads and writes are mended, and where is it mended?
//!
//! The plan of a round goes by the ops that write a pair. Branches, loops and ops that work on a master can
//! leave what no such place mends; then a `resync` goes to the end of startup, before the op of main that
//! would read, or to the end of a step. The cell that the proof calls newer decides.

use super::Direction;
use crate::analysis::coherence::{Coherence, Finding, Obligation, Subject, When};
use crate::analysis::pairs::{Pair, Pairs};
use crate::ir::{At, Program, Section};

/// Where a pair is to be mended, one place at main's entry and one in main. What an op of unknown kind may
/// have written is left alone.
pub(super) fn places(program: &Program, pairs: &Pairs, proof: &Coherence) -> Vec<(At, Pair, Direction)> {
    let mut out = Vec::new();
    for verdict in &proof.verdicts {
        let Subject::Pair(pair) = verdict.subject else { continue };
        // What is mended at one place may mend the others: the next proof tells.
        let (mut entry, mut later) = (false, false);
        for (when, direction) in verdict.findings.iter().filter_map(|f| mendable(&pair, f)) {
            // Of two masters, each with an optimizer of its own, one is always behind: to make it from the
            // parameter at every step would round it.
            if when != When::Entry && pairs.of(pair.param).nth(1).is_some() {
                continue;
            }
            let seen = if when == When::Entry { &mut entry } else { &mut later };
            let place = match when {
                When::Entry => program.global_block(Section::Startup).map(At::End),
                When::Before(op) => Some(At::Before(op)),
                When::StepEnd => program.global_block(Section::Main).map(At::End),
            };
            if let Some(place) = place.filter(|_| !std::mem::replace(seen, true)) {
                out.push((place, pair, direction));
            }
        }
    }
    out
}

/// When a finding holds, and which cell decides; nothing for what a `resync` cannot mend.
fn mendable(pair: &Pair, finding: &Finding) -> Option<(When, Direction)> {
    match finding {
        Finding::Stale { when, new, .. } => {
            Some((*when, if *new == pair.param { Direction::Param } else { Direction::Master }))
        }
        Finding::WrongType { .. } => Some((When::Entry, Direction::Master)),
        Finding::Unproved { when, obligation } => match obligation {
            Obligation::UnknownOp(_) | Obligation::Rounded(_) | Obligation::NeverWritten(_) => None,
            Obligation::EntriesAgree { .. } => Some((*when, Direction::Both)),
            _ => Some((*when, Direction::Master)),
        },
        Finding::Lossy { .. } | Finding::Unset | Finding::Conflict { .. } => None,
    }
}
