//! Of which forward op is each gradient op the gradient?
//!
//! A gradient op names its forward op nowhere. It reads gradients of what that op writes, writes gradients of
//! what it reads, and gradient ops stand in the reverse order of their forward ops: so it is the last op, not
//! behind the one matched before, of which both hold. Kinds need not be looked at (the gradient of `scale` is a
//! `scale`).

use super::grads::Grads;
use super::split::Aside;
use crate::entity::EntityId;
use crate::ir::{BlockId, OpId, OpRef, Program, Role, Section};
use crate::names::{Name, sym};
use crate::verify::EMPTY_VAR;
use rustc_hash::{FxHashMap, FxHashSet};

/// What a backward op is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Match {
    /// the gradient of a forward op
    Gradient(OpId),
    /// adds up parts of one gradient
    Sum,
    /// something else
    Other,
}

/// Backward ops of one block, with no optimizer op between them, and the block that they go back through.
pub(super) struct Region {
    pub grads: BlockId,
    pub forward: BlockId,
    pub ops: Vec<OpId>,
    pub matched: Vec<Match>,
    /// for each op, the place in the forward block down to which gradients are complete before it
    pub level: Vec<i64>,
    /// what optimizer ops wrote since the region before
    pub written: Vec<Name>,
}

/// The regions of a block, in order.
pub(super) fn regions(program: &Program, work: &Program, aside: &Aside, grads: &Grads, block: BlockId) -> Vec<Region> {
    let mut runs: Vec<(Vec<OpId>, Vec<Name>)> = vec![Default::default()];
    for op in work.ops(block) {
        let role = op.role().unwrap_or(Role::FORWARD);
        if role.has(Role::OPTIMIZE) {
            if runs.last().is_some_and(|r| !r.0.is_empty()) {
                runs.push(Default::default());
            }
            runs.last_mut().expect("a run").1.extend(op.output_args());
        } else if aside.is_out(op.id) && !role.has(Role::LR_SCHED) {
            runs.last_mut().expect("a run").0.push(op.id);
        }
    }
    let data = work.block(block);
    let forward = data.forward.and_then(|i| work.block_at(Section::Main, i)).unwrap_or(block);
    let table = Writers::new(program, work, aside, forward);
    let regions = runs.into_iter().filter(|r| !r.0.is_empty());
    regions.map(|(ops, written)| Region { written, ..table.region(program, grads, block, ops) }).collect()
}

/// The forward ops of a block by what they write.
struct Writers {
    forward: BlockId,
    by_name: FxHashMap<Name, Vec<(i64, OpId)>>,
}

impl Writers {
    fn new(program: &Program, work: &Program, aside: &Aside, forward: BlockId) -> Writers {
        let mut by_name: FxHashMap<Name, Vec<(i64, OpId)>> = FxHashMap::default();
        for (i, &op) in work.block(forward).ops.iter().enumerate() {
            if op.index() < program.op_rows() && !aside.is_out(op) {
                for name in program.op(op).output_args() {
                    let list = by_name.entry(name).or_default();
                    if list.last() != Some(&(i as i64, op)) {
                        list.push((i as i64, op));
                    }
                }
            }
        }
        Writers { forward, by_name }
    }

    fn region(&self, program: &Program, grads: &Grads, block: BlockId, ops: Vec<OpId>) -> Region {
        let mut matched = Vec::with_capacity(ops.len());
        let mut places: Vec<Option<i64>> = Vec::with_capacity(ops.len());
        let mut used: FxHashSet<(OpId, Option<Name>)> = FxHashSet::default();
        let mut cursor = i64::MAX;
        for &op in &ops {
            let r = program.op(op);
            let found = if is_sum(grads, r) { None } else { self.find(program, grads, r, cursor, &mut used) };
            places.push(found.map(|(place, _)| place));
            matched.push(match found {
                Some((place, forward)) => {
                    cursor = place;
                    Match::Gradient(forward)
                }
                None if is_sum(grads, r) => Match::Sum,
                None => Match::Other,
            });
        }
        let mut next = -1;
        let mut level = vec![-1; ops.len()];
        for i in (0..ops.len()).rev() {
            next = places[i].unwrap_or(next);
            level[i] = next;
        }
        Region { grads: block, forward: self.forward, ops, matched, level, written: Vec::new() }
    }

    fn find(
        &self,
        program: &Program,
        grads: &Grads,
        op: OpRef<'_>,
        cursor: i64,
        used: &mut FxHashSet<(OpId, Option<Name>)>,
    ) -> Option<(i64, OpId)> {
        let read: Vec<Name> = op.input_args().filter_map(|n| grads.of(n)).collect();
        let written: Vec<Name> = op.output_args().filter_map(|n| grads.of(n)).collect();
        let list = self.by_name.get(read.first()?)?;
        let fits = |&&(_, f): &&(i64, OpId)| {
            let f = program.op(f);
            !used.contains(&(f.id, written.first().copied()))
                && all_among(&read, &mut f.output_args())
                && all_among(&written, &mut f.input_args())
        };
        // Gradient ops stand in reverse order, so that the one is near the end: a look at a few is enough.
        let end = list.partition_point(|&(place, _)| place <= cursor);
        let &(place, f) = list[..end].iter().rev().take(CANDIDATES).find(fits)?;
        used.insert((f, written.first().copied()));
        Some((place, f))
    }
}

/// Forward ops that write one name and are looked at, for one gradient op.
const CANDIDATES: usize = 64;
/// Names that are looked up one by one.
const FEW: usize = 8;

fn all_among(names: &[Name], args: &mut dyn Iterator<Item = Name>) -> bool {
    if names.len() <= FEW {
        let args: Vec<Name> = args.collect();
        return names.iter().all(|n| args.contains(n));
    }
    let args: FxHashSet<Name> = args.collect();
    names.iter().all(|n| args.contains(n))
}

fn is_sum(grads: &Grads, op: OpRef<'_>) -> bool {
    let &[out] = op.output(sym::OUT) else { return false };
    op.kind() == sym::SUM && grads.of(out).is_some() && op.input(sym::X).iter().all(|&n| grads.of(n) == grads.of(out))
}

/// Whether an argument stands for nothing.
pub(super) fn is_empty(program: &Program, name: Name) -> bool {
    matches!(program.name(name), EMPTY_VAR | "")
}
