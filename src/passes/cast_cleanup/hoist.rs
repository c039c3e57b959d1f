//! Which casts in a loop have an operand that the loop does not write? They run once, before it.

use super::{Copies, made_copy};
use crate::analysis::effects::Effects;
use crate::entity::EntityId;
use crate::ir::{At, BlockId, Edit, EditSummary, NewOp, OpId, Program, Section, VarDef, VarId};
use crate::names::{Name, SeededMap, sym};
use crate::ops::{Effect, Kinds};
use crate::passes::precision::captures;
use crate::verify::MAX_NESTING;
use rustc_hash::{FxHashMap, FxHashSet};

/// A cast that moves, and where to.
struct Move {
    cast: OpId,
    copy: VarId,
    block: BlockId,
    before: OpId,
}

pub(super) fn run(program: &mut Program, kinds: &Kinds<'_>, pass: &str) -> EditSummary {
    if program.section(Section::Main).blocks.len() < 2 {
        return EditSummary::default();
    }
    let (moves, lists, copies) = {
        let effects = Effects::new(program, kinds);
        let copies = Copies::new(program);
        (find(program, &effects, &copies), captures::read(program, &effects), copies)
    };
    if moves.is_empty() {
        return EditSummary::default();
    }
    // One cast before a loop serves all its blocks.
    let mut made: SeededMap<(OpId, VarId, i32), Name> = SeededMap::default();
    let mut renamed: FxHashMap<VarId, Name> = FxHashMap::default();
    let mut instead: FxHashMap<Name, VarId> = FxHashMap::default();
    let mut edit = Edit::new();
    for m in &moves {
        let op = program.op(m.cast);
        let Some((x, _)) = made_copy(program, &copies.decls, op) else { continue };
        let copy = *program.var(m.copy);
        let name = match made.get(&(m.before, x, copy.dtype.code())) {
            Some(&name) => name,
            None => {
                let def = program.var_def(m.copy);
                let new = NewOp::copy_of(program, m.cast);
                let suffix = if copy.dtype.is_low() { ".cast_fp16" } else { ".cast_fp32" };
                let base = format!("{}{suffix}", program.name(program.var(x).name));
                let name = program.fresh_name(&base);
                let new = NewOp { outputs: vec![(sym::OUT, vec![name])], ..new };
                edit.declare(m.block, VarDef { name, ..def }, copy.origin, "a cast before its loop");
                edit.insert(At::Before(m.before), new, "the loop does not write its operand");
                made.insert((m.before, x, copy.dtype.code()), name);
                name
            }
        };
        instead.insert(name, x);
        renamed.insert(m.copy, name);
        edit.remove(m.cast, "it runs before the loop");
    }
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            for (at, name) in op.input_args().enumerate() {
                let var = copies.decls.find(block, name);
                if let Some(&to) = var.and_then(|v| renamed.get(&v)) {
                    edit.set_arg(op.id, at as u32, to, "the cast before the loop");
                }
            }
        }
    }
    let mut summary = edit.commit(program, pass);
    summary.merge(captures::update(program, &instead, &lists, pass));
    summary
}

/// The op that runs each sub-block, when there is exactly one.
fn owners(program: &Program) -> FxHashMap<BlockId, Option<OpId>> {
    let mut owners: FxHashMap<BlockId, Option<OpId>> = FxHashMap::default();
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)).filter(|op| op.has_sub_blocks()) {
        for sub in op.sub_blocks() {
            owners.entry(sub).and_modify(|o| *o = None).or_insert(Some(op.id));
        }
    }
    owners
}

fn find(program: &Program, effects: &Effects<'_>, copies: &Copies) -> Vec<Move> {
    let owners = owners(program);
    let mut writes: FxHashMap<BlockId, FxHashSet<Name>> = FxHashMap::default();
    // Copies that a block outside the walk reads, such as that of a gradient op, stay.
    let mut reads = vec![0u32; program.var_rows()];
    let mut out = Vec::new();
    for block in program.section_blocks(Section::Main) {
        if program.block(block).forward.is_some_and(|f| f >= 0) {
            continue;
        }
        for op in program.ops(block) {
            for name in op.input_args() {
                if let Some(v) = copies.decls.find(block, name) {
                    reads[v.index()] += 1;
                }
            }
        }
    }
    for block in program.section_blocks(Section::Main).filter(|&b| program.block(b).index != 0) {
        for op in program.ops(block) {
            let made = made_copy(program, &copies.decls, op);
            let Some((x, copy)) = made.filter(|(_, c)| copies.casts.contains_key(c)) else { continue };
            if reads[copy.index()] != copies.reads[copy.index()] {
                continue;
            }
            let name = program.var(x).name;
            let (mut at, mut to) = (block, None);
            for _ in 0..MAX_NESTING {
                let Some(&Some(owner)) = owners.get(&at) else { break };
                let loop_op = program.op(owner);
                let outside = program.var(x).block != at;
                let own = writes.entry(at).or_insert_with(|| effects.block(at).writes.iter().copied().collect());
                if effects.effect(loop_op) != Effect::While || !outside || own.contains(&name) {
                    break;
                }
                to = Some((loop_op.block(), owner));
                at = loop_op.block();
            }
            if let Some((block, before)) = to {
                out.push(Move { cast: op.id, copy, block, before });
            }
        }
    }
    out
}
