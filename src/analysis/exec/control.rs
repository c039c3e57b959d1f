//! What does a branch or a loop leave in each cell? A join; or what holds at its head in any iteration.

use super::{Exec, Form, Observer, State};
use crate::analysis::values::{Known, Value};
use crate::entity::EntityId;
use crate::ir::{OpId, OpRef};
use crate::names::Name;
use rustc_hash::FxHashSet;

/// What is assumed at the head of a loop.
struct LoopHead<'e> {
    op: OpId,
    writes: &'e [Name],
    /// the dtype of each written cell
    known: Vec<Known>,
    holding: Vec<(usize, Form)>,
}

impl LoopHead<'_> {
    fn assume_nothing(&mut self) {
        self.holding.clear();
        self.known.fill(Known::Unknown);
    }
}

/// Loops in one another of which a relation is proved. The body of each is run up to four times, so
/// that of deeper ones nothing is assumed.
const MAX_LOOPS: usize = 3;
/// Blocks in one another that are entered: as deep as a program that verifies.
const MAX_BLOCKS: usize = crate::verify::MAX_NESTING + 1;

impl<'a> Exec<'a> {
    /// Runs the sub-blocks one after the other, each on the state before it, and joins.
    pub(super) fn cond(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        if !self.enters(op) {
            return self.skip(op, observer);
        }
        let effects = self.effects;
        for sub in op.sub_blocks() {
            let inside = effects.block(sub);
            let before: Vec<_> = inside.writes.iter().map(|&n| (self.value(n), self.writers[n.index()])).collect();
            self.block(sub, observer);
            for (&name, &(old, old_writer)) in inside.writes.iter().zip(&before) {
                let new = self.value(name);
                self.state[name.index()] = State::of(self.values.join(op.id, new, old));
                if new == old {
                    self.writers[name.index()] = old_writer;
                }
                self.unread[name.index()] = None;
            }
        }
        self.other_outputs(op, observer);
    }

    pub(super) fn while_loop(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        if !self.enters(op) {
            return self.skip(op, observer);
        }
        let effects = self.effects;
        for sub in op.sub_blocks() {
            let inside = effects.block(sub);
            let mut touched: Vec<usize> = inside.writes.iter().flat_map(|&n| self.pairs.of(n)).collect();
            touched.sort_unstable();
            touched.dedup();
            let holding: Vec<(usize, Form)> =
                touched.into_iter().filter_map(|i| self.form(i).map(|f| (i, f))).collect();
            let mut head =
                LoopHead { op: op.id, writes: &inside.writes, known: Vec::with_capacity(inside.writes.len()), holding };
            for &name in head.writes {
                let v = self.value(name);
                head.known.push(self.values.known(v));
            }
            // Quiet sweeps drop the relations and dtypes that the body does not keep, until it keeps all.
            let told = std::mem::replace(&mut self.loud, false);
            self.loops += 1;
            let deep = self.loops > MAX_LOOPS;
            if deep {
                head.assume_nothing();
            }
            for last in [false, false, true].into_iter().filter(|_| !deep) {
                self.enter_loop(&head);
                self.block(sub, observer);
                if !self.drop_broken(&mut head) {
                    break;
                }
                if last {
                    head.assume_nothing();
                }
            }
            self.loud = told;
            self.enter_loop(&head);
            self.block(sub, observer);
            self.loops -= 1;
            // After the loop the state is that at its head, for some number of iterations.
            self.enter_loop(&head);
        }
        self.other_outputs(op, observer);
    }

    /// Whether the blocks of a control op are looked into.
    fn enters(&self, op: OpRef<'_>) -> bool {
        self.depth < MAX_BLOCKS && self.steps_left > 0 && op.sub_blocks().all(|b| !self.open[b.index()])
    }

    fn skip(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        if self.loud {
            observer.skipped(self, op);
        }
        self.unknown(op, observer);
    }

    /// Outputs that no sub-block writes: step scopes and the like.
    fn other_outputs(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        if op.output_args().next().is_none() {
            return;
        }
        let effects = self.effects;
        let written: FxHashSet<Name> = op.sub_blocks().flat_map(|b| &effects.block(b).writes).copied().collect();
        for (i, name) in op.output_args().enumerate() {
            if !written.contains(&name) && !self.cells.get(name).persistable {
                let known = self.declared(op, name);
                self.set_opaque(op, name, i as u32, known, observer);
            }
        }
    }

    /// The state at the head of a loop, in any iteration.
    fn enter_loop(&mut self, head: &LoopHead<'_>) {
        for (&name, &known) in head.writes.iter().zip(&head.known) {
            self.state[name.index()] = State::of(self.values.fresh(Value::Head(head.op, name), known));
            self.unread[name.index()] = None;
        }
        self.relate(&head.holding);
    }

    /// Drops what was assumed at the head and does not hold at the end of the body; whether anything was.
    fn drop_broken(&mut self, head: &mut LoopHead<'_>) -> bool {
        let pairs = head.holding.len();
        head.holding.retain(|&(i, f)| self.form(i) == Some(f));
        let mut dropped = head.holding.len() < pairs;
        for (&name, known) in head.writes.iter().zip(&mut head.known) {
            let v = self.value(name);
            if *known != Known::Unknown && self.values.known(v) != *known {
                (*known, dropped) = (Known::Unknown, true);
            }
        }
        dropped
    }
}
