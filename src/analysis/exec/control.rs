//! What does a branch or a loop leave in each cell? A join; or what holds at its head in any iteration.

use super::{Exec, Form, Observer, State};
use crate::analysis::values::{Known, Value};
use crate::entity::EntityId;
use crate::ir::{DType, OpId, OpRef};
use crate::names::{Name, sym};
use rustc_hash::FxHashSet;

/// What is assumed at the head of a loop.
struct LoopHead<'e> {
    op: OpId,
    writes: &'e [Name],
    /// the dtype of each written cell
    known: Vec<Known>,
    holding: Vec<(usize, Form)>,
    /// what the parameters of the pairs that the body touches held before the loop
    params: Vec<(Name, State)>,
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
    /// Runs the sub-block and joins with the state before it.
    pub(super) fn cond(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        if !self.enters(op) {
            return self.skip(op, observer);
        }
        let effects = self.effects;
        for sub in op.sub_blocks() {
            let (inside, choice) = (effects.block(sub), self.choice(op.id));
            let before: Vec<_> = inside.writes.iter().map(|&n| (self.value(n), self.writers[n.index()])).collect();
            self.block(sub, observer);
            for (&name, &(old, old_writer)) in inside.writes.iter().zip(&before) {
                let new = self.value(name);
                self.state[name.index()] = State::of(self.values.join(choice, new, old));
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
            let holding: Vec<(usize, Form)> = touched.iter().filter_map(|&i| self.form(i).map(|f| (i, f))).collect();
            // A parameter that the body does not write still is narrow(the master at the head) while that holds.
            let pairs = self.pairs;
            let params = touched.iter().map(|&i| pairs.rows()[i].param);
            let params: Vec<_> = params.map(|n| (n, State::of(self.value(n)))).collect();
            let known = Vec::with_capacity(inside.writes.len());
            let mut head = LoopHead { op: op.id, writes: &inside.writes, known, holding, params };
            for &name in head.writes {
                let v = self.value(name);
                head.known.push(self.values.known(v));
            }
            let mut rounded = self.rounded(&touched);
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
            rounded.extend(self.rounded(&touched));
            // After the loop the state is that at its head, for some number of iterations.
            self.enter_loop(&head);
            self.note_rounded(&head, rounded);
        }
        self.other_outputs(op, observer);
    }

    /// Whether the block of a control op is looked into. Not a gradient block, which sees what its forward
    /// block left behind; nor one of several blocks.
    pub fn enters(&self, op: OpRef<'_>) -> bool {
        self.depth < MAX_BLOCKS
            && self.steps_left > 0
            && op.sub_blocks().count() <= 1
            && !op.kind_str().ends_with("_grad")
            && op.sub_blocks().all(|b| !self.open[b.index()])
    }

    /// The masters that were rounded, or may have been, and what is known of the dtype of the value that
    /// was.
    fn rounded(&mut self, touched: &[usize]) -> Vec<(usize, Known)> {
        let mut out = Vec::new();
        for &i in touched {
            let m = self.value(self.pairs.rows()[i].master);
            match self.values.rounded(m) {
                Some(false) => {}
                Some(true) => out.push((i, Known::Is(DType::F32))),
                None => out.push((i, Known::Unknown)),
            }
        }
        out
    }

    /// After a loop these masters may hold a rounded value; what they hold must say so.
    fn note_rounded(&mut self, head: &LoopHead<'_>, rounded: Vec<(usize, Known)>) {
        for (i, known) in rounded {
            let (pair, choice) = (self.pairs.rows()[i], self.choice(head.op));
            let mut low = self.values.fresh(Value::Head(head.op, pair.master), known);
            if known != Known::Unknown {
                low = self.values.cast(pair.low, low);
            }
            let (m, widened) = (self.value(pair.master), self.values.cast(DType::F32, low));
            let m = self.values.join(choice, widened, m);
            self.state[pair.master.index()] = State::of(m);
            if let Some(&held) = head.holding.iter().find(|h| h.0 == i) {
                self.relate(&[held]);
            }
        }
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
        for slot in op.outputs() {
            // A persistable that the op merely lists stays as it is.
            let scopes = matches!(slot.name, sym::SCOPE | sym::STEP_SCOPES);
            for (i, &name) in slot.args.iter().enumerate() {
                if !written.contains(&name) && (scopes || !self.cells.get(name).persistable) {
                    self.set_opaque(op, name, i as u32, Known::Unknown, observer);
                }
            }
        }
    }

    /// The state at the head of a loop, in any iteration.
    fn enter_loop(&mut self, head: &LoopHead<'_>) {
        // A later iteration finds what an earlier one saved.
        self.saves += u32::from(self.effects.may_save(self.program.op(head.op)));
        head.params.iter().for_each(|&(n, state)| self.state[n.index()] = state);
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
