//! What must a control op list among its inputs once its blocks read copies?
//!
//! `while` and `conditional_block` list what their blocks read from outside; a gradient of what is not listed is
//! lost. After casts were inserted a list names each copy that the blocks read, in the place of its variable
//! when they read that no more, and keeps whatever else the user's program listed. Inner ops come first, because an
//! inner list is read by the outer block.

use crate::analysis::effects::Effects;
use crate::entity::EntityId;
use crate::ir::{BlockId, Edit, EditSummary, OpId, OpRef, Program, Section, VarId};
use crate::names::{Name, Symbol, sym};
use crate::ops::Effect;
use crate::verify::MAX_NESTING;
use rustc_hash::{FxHashMap, FxHashSet};

/// What the blocks of a control op touch outside themselves, before the rewrite.
pub(in crate::passes) struct Touched {
    reads: FxHashSet<Name>,
    writes: FxHashSet<Name>,
}

/// By control op of main.
pub(in crate::passes) type Lists = FxHashMap<OpId, Touched>;

/// Reads what control ops capture, before anything is changed.
pub(in crate::passes) fn read(program: &Program, effects: &Effects<'_>) -> Lists {
    let mut all = Lists::default();
    if program.section(Section::Main).blocks.len() < 2 {
        return all;
    }
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
        if op.has_sub_blocks() && matches!(effects.effect(op), Effect::Cond | Effect::While) {
            let subs = || op.sub_blocks().map(|b| effects.block(b));
            let reads = subs().flat_map(|e| e.reads.iter().copied()).collect();
            let writes = subs().flat_map(|e| e.writes.iter().copied()).collect();
            all.insert(op.id, Touched { reads, writes });
        }
    }
    all
}

/// The slot in which a control op lists what its blocks read.
fn capture_slot(op: OpRef<'_>) -> Symbol {
    if op.kind() == sym::WHILE || op.input(sym::INPUT).is_empty() && !op.input(sym::X).is_empty() {
        sym::X
    } else {
        sym::INPUT
    }
}

/// Brings the lists up to date. `of` has the variables that may join a list, each with one whose place it takes.
pub(in crate::passes) fn update(
    program: &mut Program,
    of: &FxHashMap<Name, VarId>,
    lists: &Lists,
    pass: &str,
) -> EditSummary {
    let mut edit = Edit::new();
    if !lists.is_empty() {
        let mut order: Vec<(usize, BlockId)> = Vec::new();
        for block in program.section_blocks(Section::Main) {
            let chain = std::iter::successors(Some(block), |&b| program.parent(b));
            order.push((chain.take(MAX_NESTING).count(), block));
        }
        order.sort_by_key(|&(depth, block)| (std::cmp::Reverse(depth), block));
        let mut reads: Vec<Vec<Name>> = vec![Vec::new(); program.block_rows()];
        for (_, block) in order {
            let found = block_reads(program, block, of, lists, &reads, &mut edit);
            reads[block.index()] = found;
        }
    }
    edit.commit(program, pass)
}

/// What a block reads from outside, each name once, in order; queues the lists of its control ops.
fn block_reads(
    program: &Program,
    block: BlockId,
    of: &FxHashMap<Name, VarId>,
    lists: &Lists,
    reads: &[Vec<Name>],
    edit: &mut Edit,
) -> Vec<Name> {
    let own: FxHashSet<Name> = program
        .block(block)
        .vars
        .iter()
        .map(|&v| program.var(v))
        .filter(|v| !v.persistable())
        .map(|v| v.name)
        .collect();
    let (mut seen, mut out) = (FxHashSet::default(), Vec::new());
    let mut push = |name: Name| {
        if !own.contains(&name) && seen.insert(name) {
            out.push(name);
        }
    };
    for op in program.ops(block) {
        op.attr_vars().for_each(&mut push);
        op.sub_blocks().flat_map(|sub| reads[sub.index()].iter().copied()).for_each(&mut push);
        let Some(touched) = lists.get(&op.id) else {
            op.input_args().for_each(&mut push);
            continue;
        };
        let slot = capture_slot(op);
        let new = list(program, op, slot, touched, of, reads);
        op.inputs().filter(|s| s.name != slot).flat_map(|s| s.args.iter().copied()).for_each(&mut push);
        new.iter().copied().for_each(&mut push);
        if new != op.input(slot) {
            let mut inputs: Vec<(Symbol, Vec<Name>)> = op.inputs().map(|s| (s.name, s.args.to_vec())).collect();
            match inputs.iter_mut().find(|(s, _)| *s == slot) {
                Some((_, args)) => *args = new,
                None => inputs.push((slot, new)),
            }
            let outputs = op.outputs().map(|s| (s.name, s.args.to_vec())).collect();
            edit.set_slots(op.id, inputs, outputs, "lists what its blocks read");
        }
    }
    out
}

/// The list that a control op should have.
fn list(
    program: &Program,
    op: OpRef<'_>,
    slot: Symbol,
    touched: &Touched,
    of: &FxHashMap<Name, VarId>,
    reads: &[Vec<Name>],
) -> Vec<Name> {
    let old = op.input(slot);
    let listed: FxHashSet<Name> = old.iter().copied().collect();
    let mut now: FxHashSet<Name> = FxHashSet::default();
    let mut added: Vec<Name> = Vec::new();
    // The copy that takes the place of a variable.
    let mut instead: FxHashMap<Name, Name> = FxHashMap::default();
    for &name in op.sub_blocks().flat_map(|sub| &reads[sub.index()]) {
        if now.insert(name)
            && let Some(&var) = of.get(&name)
            && !listed.contains(&name)
        {
            added.push(name);
            instead.entry(program.var(var).name).or_insert(name);
        }
    }
    let mut new: Vec<Name> = Vec::with_capacity(old.len() + added.len());
    let mut placed: FxHashSet<Name> = FxHashSet::default();
    for &name in old {
        // One name may have taken the place of several.
        if of.contains_key(&name) && !placed.insert(name) {
            continue;
        }
        if now.contains(&name) || touched.writes.contains(&name) || !touched.reads.contains(&name) {
            new.push(name);
        } else if let Some(&copy) = instead.get(&name)
            && placed.insert(copy)
        {
            new.push(copy);
        }
    }
    new.extend(added.into_iter().filter(|n| !placed.contains(n)));
    new
}
