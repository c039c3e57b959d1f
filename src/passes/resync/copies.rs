//! Which copies, and which parameters without a master, are made again, and where?

use super::Plan;
use crate::analysis::coherence::{Coherence, Finding, Obligation, Subject};
use crate::analysis::effects::Access;
use crate::entity::EntityId;
use crate::ir::{At, Attr, AttrValue, BlockId, DType, NewOp, OpId, Section};
use crate::names::{Name, sym};
use crate::ops::Effect;
use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};

/// Ops of startup's global block that write a cell.
#[derive(Clone, Copy)]
struct LastWriter {
    /// the last that reads or writes it
    touch: OpId,
    last: OpId,
    /// the last that is no `amp_init`
    before_narrowing: OpId,
}

const DERIVED_AGAIN: &str = "its source is newer: derived again";

impl Plan<'_> {
    /// Derives stale copies again, sources first.
    ///
    /// A copy that main declares float32 holds more than a narrowed source has: it is derived from the
    /// master, or, where the source has none, before the narrowing.
    pub(super) fn copies(&mut self, proof: &Coherence, mends: &FxHashMap<Name, OpId>, pos: &[u32]) {
        let copies = proof.verdicts.iter().filter_map(|v| match v.subject {
            Subject::Copy { cell, op, .. } => Some((v.proved(), cell, op)),
            _ => None,
        });
        let derived: Vec<(bool, Name, OpId)> = copies.collect();
        let mut masters = FxHashMap::default();
        for v in &proof.verdicts {
            if let Subject::Pair(p) = v.subject
                && (v.proved() || mends.contains_key(&p.master))
            {
                masters.entry(p.param).or_insert(p.master);
            }
        }
        // The copies that one op makes stand together.
        let derived = || derived.chunk_by(|a, b| a.2 == b.2);
        let sources = derived().flat_map(|made| self.program.op(made[0].2).input_args());
        let last_writers = self.last_writers(sources.chain(masters.values().copied()));
        let top = self.top_level_ops();
        let (mut anchors, mut later, mut after) = (mends.clone(), Vec::new(), FxHashSet::default());
        let narrowings = self.narrowings(proof);
        for made in derived() {
            let op = made[0].2;
            let r = self.program.op(op);
            let mended = r.input_args().any(|n| anchors.contains_key(&n));
            let Some(&(_, cell, _)) = made.iter().find(|&&(proved, ..)| mended || !proved) else { continue };
            // A cell of a pair that is mended now is what that pair is mended from.
            if made.iter().any(|(_, cell, _)| mends.contains_key(cell)) {
                continue;
            }
            // To derive again would overwrite an output that something else has written since.
            if r.output_args().filter(|&n| self.cells.get(n).persistable).count() > made.len() {
                continue;
            }
            let low = |n: Name| self.cells.dtype(self.program, n).is_some_and(DType::is_low);
            let wide = !low(cell) && r.input_args().any(low);
            let mut new = NewOp::copy_of(self.program, op);
            if wide {
                new.inputs.iter_mut().flat_map(|(_, args)| args).for_each(|n| *n = *masters.get(n).unwrap_or(n));
            }
            let sources: Vec<Name> = new.inputs.iter().flat_map(|(_, args)| args.iter().copied()).collect();
            let writers = sources.iter().flat_map(|n| {
                let last = last_writers.get(n).map(|w| if wide && low(*n) { w.before_narrowing } else { w.last });
                [anchors.get(n).copied(), last, narrowings.get(n).copied().filter(|_| !wide)]
            });
            let in_global = writers.flatten().map(|o| top[self.program.op(o).block().index()].unwrap_or(o));
            let Some(anchor) = in_global.max_by_key(|o| pos[o.index()]) else { continue };
            // A copy that stands after its source's mend is derived there already.
            if pos[anchor.index()] < pos[op.index()] {
                continue;
            }
            // What is still to be narrowed there is copied before, unless it is itself derived again after.
            let narrow_source = sources.iter().any(|&n| low(n));
            let before = wide && narrow_source && !sources.iter().any(|n| after.contains(n));
            if wide && (before || !narrow_source) {
                for attr in new.attrs.iter_mut().filter(|a| a.name == sym::IN_DTYPE) {
                    *attr = Attr::new(sym::IN_DTYPE, DType::F32);
                }
            }
            match before {
                true => self.edit.insert(At::After(anchor), new, DERIVED_AGAIN),
                false => {
                    after.extend(made.iter().map(|&(_, cell, _)| cell));
                    later.push((anchor, new));
                }
            }
            self.unusual |= made.iter().any(|&(_, cell, _)| self.pairs.has(cell));
            anchors.extend(made.iter().map(|&(_, cell, _)| (cell, anchor)));
        }
        let again: FxHashSet<Name> =
            later.iter().flat_map(|(_, new)| new.outputs.iter().flat_map(|(_, args)| args.iter().copied())).collect();
        for (&name, &op) in narrowings.iter().filter(|(n, _)| !again.contains(n)) {
            if let Some(declared) = self.cells.dtype(self.program, name) {
                self.narrow(name, declared, op);
            }
        }
        for (anchor, new) in later {
            let outs: Vec<Name> = new.outputs.iter().flat_map(|(_, args)| args.iter().copied()).collect();
            self.edit.insert(At::After(anchor), new, DERIVED_AGAIN);
            for name in outs.into_iter().filter(|n| narrowings.contains_key(n)) {
                if let Some(declared) = self.cells.dtype(self.program, name) {
                    self.narrow(name, declared, anchor);
                }
            }
        }
    }

    /// The op of startup's global block that last writes each of these cells.
    fn last_writers(&self, names: impl Iterator<Item = Name>) -> FxHashMap<Name, LastWriter> {
        let wanted: FxHashSet<Name> = names.collect();
        let mut last: FxHashMap<Name, LastWriter> = FxHashMap::default();
        if let Some(global) = self.program.global_block(Section::Startup).filter(|_| !wanted.is_empty()) {
            for op in self.program.ops(global) {
                self.effects.each(op, |n, access| {
                    if let (Access::Read, Some(w)) = (access, last.get_mut(&n)) {
                        w.touch = op.id;
                    } else if access != Access::Read && wanted.contains(&n) {
                        let one = LastWriter { touch: op.id, last: op.id, before_narrowing: op.id };
                        let w = last.entry(n).or_insert(one);
                        (w.touch, w.last) = (op.id, op.id);
                        if self.effects.effect(op) != Effect::AmpInit {
                            w.before_narrowing = op.id;
                        }
                    }
                });
            }
        }
        last
    }

    /// By block: the op of startup's global block that runs it; none for the global block itself.
    fn top_level_ops(&self) -> Vec<Option<OpId>> {
        let mut top = vec![None; self.program.block_rows()];
        let Some(global) = self.program.global_block(Section::Startup) else { return top };
        for op in self.program.ops(global).filter(|o| o.has_sub_blocks()) {
            let mut stack: Vec<BlockId> = op.sub_blocks().collect();
            while let Some(b) = stack.pop() {
                if b != global && top[b.index()].is_none() {
                    top[b.index()] = Some(op.id);
                    self.program.ops(b).for_each(|o| stack.extend(o.sub_blocks()));
                }
            }
        }
        top
    }

    /// 16-bit parameters without master that are, or may be, wide at main's entry, and after which op each is
    /// narrowed: what startup still does with it finds what it found before. What an op of unknown kind wrote is
    /// left alone.
    fn narrowings(&self, proof: &Coherence) -> IndexMap<Name, OpId> {
        let unknown = |f: &Finding| matches!(f, Finding::Unproved { obligation: Obligation::UnknownOp(_), .. });
        let open = proof.verdicts.iter().filter(|v| !v.findings.iter().all(unknown));
        let open: Vec<Name> = open
            .filter_map(|v| match v.subject {
                Subject::Param(name) => Some(name),
                _ => None,
            })
            .collect();
        let writers = self.last_writers(open.iter().copied());
        open.into_iter().filter_map(|name| Some((name, writers.get(&name)?.touch))).collect()
    }

    fn narrow(&mut self, name: Name, to: DType, after: OpId) {
        let op = NewOp::new(sym::AMP_INIT)
            .input(sym::X, [name])
            .output(sym::OUT, [name])
            .attr(sym::DTYPE, AttrValue::from(to));
        self.edit.insert(At::After(after), op, "main declares it narrow");
    }
}
