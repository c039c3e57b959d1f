//! Is every temporary written before it is read?
//!
//! - V11 `read-before-write` (warning): in the order of a section, an op reads a temporary only after
//!   an op wrote it. Fed variables (`need_check_feed`) and persistables have values from outside; tensor
//!   arrays and what is no tensor may be read empty.
//!
//! Sub-blocks see what their ancestors wrote. A conditional's block runs after the ops before it,
//! and what it writes may be read after it. A loop's body may read what any op of the body writes. The
//! blocks of other control ops, gradient blocks among them, are not looked into, because the framework puts
//! values in them: all that they declare or write counts as written. Each block is walked at most
//! twice, so that the whole is linear.

use super::{Cx, OpAt, is_gradient, op_place};
use crate::diag::{Code, Diagnostic, Severity, shorten};
use crate::entity::EntityId;
use crate::ir::{BlockId, OpRef, Program, Section, VarFlag, VarId, VarKind};
use crate::names::{Name, sym};
use crate::ops::Effect;

struct Walk {
    /// by declaration: whether something may have written it
    written: Vec<bool>,
    /// by block: whether it was checked
    checked: Vec<bool>,
    /// by block: whether all that it writes is in `written`
    swept: Vec<bool>,
    /// by symbol: a gradient kind
    gradient: Vec<bool>,
}

/// A block being walked, and the op of the parent that runs it.
struct Frame {
    block: BlockId,
    next: usize,
    /// the op that goes on once its sub-blocks are walked
    pending: Vec<BlockId>,
}

/// Checks V11; blocks must form a tree.
pub(super) fn check(cx: &mut Cx<'_>) {
    let p = cx.program;
    let mut walk = Walk {
        written: vec![false; p.var_rows()],
        checked: vec![false; p.block_rows()],
        swept: vec![false; p.block_rows()],
        gradient: p.symbols().iter().map(|(_, text)| text.ends_with("_grad")).collect(),
    };
    for section in Section::ALL {
        if let Some(block) = p.global_block(section) {
            walk_section(cx, &mut walk, block);
        }
    }
}

fn walk_section(cx: &mut Cx<'_>, walk: &mut Walk, global: BlockId) {
    let p = cx.program;
    let mut stack = vec![Frame { block: global, next: 0, pending: Vec::new() }];
    while let Some(frame) = stack.last_mut() {
        let block = frame.block;
        if let Some(sub) = frame.pending.pop() {
            if !std::mem::replace(&mut walk.checked[sub.index()], true) {
                stack.push(Frame { block: sub, next: 0, pending: Vec::new() });
            }
            continue;
        }
        // The sub-blocks of the op before are done; only now are its own outputs written.
        if frame.next > 0 {
            mark_outputs(cx, walk, block, p.op(p.block(block).ops[frame.next - 1]));
        }
        let Some(&id) = p.block(block).ops.get(frame.next) else {
            stack.pop();
            continue;
        };
        let at = OpAt { id, index: frame.next };
        frame.next += 1;
        let op = p.op(id);
        if !op.has_sub_blocks() {
            for name in op.input_args() {
                check_read(cx, walk, block, at, name);
            }
            continue;
        }
        // What such an op lists beside its condition is what its blocks capture; they show the reads.
        for &name in op.input(sym::COND).iter().chain(op.input(sym::CONDITION)) {
            check_read(cx, walk, block, at, name);
        }
        let effect = cx.kinds.get(op.kind()).effect;
        let known = matches!(effect, Effect::Cond | Effect::While) && !walk.gradient[op.kind().index()];
        let mut pending = Vec::new();
        for sub in op.sub_blocks() {
            let looked_into = known && !is_gradient(p, sub);
            if !looked_into || effect == Effect::While {
                sweep(cx, walk, sub, !looked_into);
            }
            if looked_into {
                pending.push(sub);
            }
        }
        pending.reverse();
        frame.pending = pending;
    }
}

fn mark_outputs(cx: &Cx<'_>, walk: &mut Walk, block: BlockId, op: OpRef<'_>) {
    for name in op.output_args() {
        mark(cx, walk, block, name);
    }
    if cx.kinds.get(op.kind()).effect == Effect::Unknown {
        // It may write whatever it names.
        for name in op.input_args() {
            mark(cx, walk, block, name);
        }
    }
}

fn mark(cx: &Cx<'_>, walk: &mut Walk, block: BlockId, name: Name) {
    if let Some(var) = cx.decls.find(block, name) {
        walk.written[var.index()] = true;
    }
}

/// Marks all that a block and the blocks in it write, and what they declare when `declared`.
fn sweep(cx: &Cx<'_>, walk: &mut Walk, block: BlockId, declared: bool) {
    let p = cx.program;
    let mut todo = vec![block];
    while let Some(block) = todo.pop() {
        if std::mem::replace(&mut walk.swept[block.index()], true) {
            continue;
        }
        if declared {
            for &var in &p.block(block).vars {
                walk.written[var.index()] = true;
            }
        }
        for op in p.ops(block) {
            mark_outputs(cx, walk, block, op);
            todo.extend(op.sub_blocks());
        }
    }
}

fn check_read(cx: &mut Cx<'_>, walk: &mut Walk, block: BlockId, at: OpAt, name: Name) {
    let Some(var) = cx.decls.find(block, name) else { return };
    if walk.written[var.index()] || !is_temporary(cx.program, var) {
        return;
    }
    // Said once a variable.
    walk.written[var.index()] = true;
    cx.push(Code::ReadBeforeWrite, Severity::Warning, |p| {
        let message = format!("reads `{}`, which nothing has written yet", shorten(p.name(name)));
        Diagnostic::new(Code::ReadBeforeWrite, message, op_place(p, at))
            .help("feed it (need_check_feed), make it persistable, or write it before")
    });
}

fn is_temporary(p: &Program, var: VarId) -> bool {
    let v = p.var(var);
    matches!(v.kind, VarKind::LOD_TENSOR | VarKind::SELECTED_ROWS)
        && !v.persistable()
        && !v.flags.is(VarFlag::NeedCheckFeed)
}
