//! What does a branch or a loop leave in each cell? A join; or what holds at its head in any iteration.

use super::{Exec, Form, Observer, State};
use crate::analysis::values::{Known, Value};
use crate::entity::EntityId;
use crate::ir::{OpId, OpRef};
use crate::names::Name;

/// What is assumed at the head of a loop.
struct LoopHead<'e> {
    op: OpId,
    writes: &'e [Name],
    /// the dtype of each written cell
    known: Vec<Known>,
    holding: Vec<(usize, Form)>,
}

impl<'a> Exec<'a> {
    /// Runs the sub-blocks one after the other, each on the state before it, and joins.
    pub(super) fn cond(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        let effects = self.effects;
        for sub in op.sub_blocks() {
            let inside = effects.block(sub);
            if inside.unknown && self.open[sub.index()] {
                return self.unknown(op, observer);
            }
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
        // Outputs that no sub-block writes: step scopes and the like.
        for (i, name) in op.output_args().enumerate() {
            if !op.sub_blocks().any(|b| effects.block(b).writes.contains(&name)) && !self.cells.get(name).persistable {
                let known = self.declared(op, name);
                self.set_opaque(op, name, i as u32, known, observer);
            }
        }
    }

    pub(super) fn while_loop(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        let effects = self.effects;
        for sub in op.sub_blocks() {
            let inside = effects.block(sub);
            if self.open[sub.index()] {
                return self.unknown(op, observer);
            }
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
            for last in [false, false, true] {
                self.enter_loop(&head);
                self.block(sub, observer);
                if !self.drop_broken(&mut head) {
                    break;
                }
                if last {
                    head.holding.clear();
                    head.known.fill(Known::Unknown);
                }
            }
            self.loud = told;
            self.enter_loop(&head);
            self.block(sub, observer);
            // After the loop the state is that at its head, for some number of iterations.
            self.enter_loop(&head);
        }
        for (i, name) in op.output_args().enumerate() {
            if !op.sub_blocks().any(|b| effects.block(b).writes.contains(&name)) && !self.cells.get(name).persistable {
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
