//! Is a program well formed? Numbered invariants, checked in stages, with all findings collected.
//!
//! | | invariant | code | file |
//! |---|---|---|---|
//! | V1 | every id is in range, and rows know their place | `bad-handle` | `handles` |
//! | V2 | block parents form a tree, at most [`MAX_NESTING`] deep | `block-tree` | `blocks` |
//! | V3 | a sub-block exists, is a child of the op's block, and at most [`MAX_RUNS`] ops run it | `dangling-block` | `blocks` |
//! | V4 | a block declares a name once | `duplicate-declaration` | `decls` |
//! | V5 | an argument is declared in a visible block | `undeclared-variable` | `decls` |
//! | V6 | startup and main agree on the shape of a shared cell | `cell-mismatch` | `types` |
//! | V7 | slots have the number of arguments that the op needs | `slot-arity` | `slots` |
//! | V8 | attributes that the op needs are there, of the right kind | `attr-type` | `slots` |
//! | V9 | a dimension is at least -1 | `bad-shape` | `types` |
//! | V10 | a cast's attributes are the dtypes of its variables | `cast-attribute` | `types` |
//! | V11 | a temporary is written before it is read | `read-before-write` | `reads` |
//! | V12 | startup or main has an op | `empty-program` | here |
//! | V13 | a copy is not read after its source was overwritten | `stale-cast` | `casts` |
//! | V14 | a copy is read only where its cast has run | `undominated-cast` | `casts` |
//! | V15 | a control op lists the copies that its blocks read | `capture-list` | `casts` |
//! | V16 | an op that computes in one float type reads and writes that type | `mixed-dtype` | `casts` |
//!
//! V1 is stage 0: when it fails nothing else runs, because every other stage indexes freely. No other
//! finding keeps a stage from running, but V11 and V13 to V15 follow sub-blocks and want V2 and V3 to hold.
//!
//! Cost: linear in the program. Tables are dense by id; no string is hashed per op.

mod blocks;
mod casts;
mod decls;
mod handles;
mod reads;
mod slots;
mod types;

pub use blocks::MAX_RUNS;
pub use casts::{CastFinding, cast_uses, copied, mixed_dtypes};
pub use decls::{DeclIndex, EMPTY_VAR, MAX_NESTING};

use crate::diag::{Code, Diagnostic, Diagnostics, Place, Severity};
use crate::ir::{BlockId, OpId, Program, VarId};
use crate::ops::{Kinds, Ops};
use std::ops::BitOr;

/// Which invariants to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checks(u16);

impl Checks {
    /// V1
    pub const HANDLES: Checks = Checks(1 << 1);
    /// V2
    pub const BLOCK_TREE: Checks = Checks(1 << 2);
    /// V3
    pub const SUB_BLOCKS: Checks = Checks(1 << 3);
    /// V4
    pub const DUPLICATES: Checks = Checks(1 << 4);
    /// V5
    pub const DECLARED: Checks = Checks(1 << 5);
    /// V6
    pub const CELLS: Checks = Checks(1 << 6);
    /// V7
    pub const SLOTS: Checks = Checks(1 << 7);
    /// V8
    pub const ATTRS: Checks = Checks(1 << 8);
    /// V9
    pub const SHAPES: Checks = Checks(1 << 9);
    /// V10
    pub const CASTS: Checks = Checks(1 << 10);
    /// V11
    pub const READS: Checks = Checks(1 << 11);
    /// V12
    pub const EMPTY: Checks = Checks(1 << 12);
    /// V13 to V15
    pub const CAST_USES: Checks = Checks(1 << 13);
    /// V16
    pub const DTYPES: Checks = Checks(1 << 14);
    /// None.
    pub const NONE: Checks = Checks(0);
    /// V1 to V9: what passes keep and rely on.
    pub const STRUCTURE: Checks = Checks(0x3fe);
    /// All of them.
    pub const ALL: Checks = Checks(0x7ffe);

    /// Whether all of `other` are among these.
    pub const fn has(self, other: Checks) -> bool {
        self.0 & other.0 == other.0
    }

    /// These without `other`.
    #[must_use]
    pub const fn without(self, other: Checks) -> Checks {
        Checks(self.0 & !other.0)
    }

    const fn any(self, other: Checks) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Checks {
    type Output = Checks;
    fn bitor(self, other: Checks) -> Checks {
        Checks(self.0 | other.0)
    }
}

/// Checks a program against the op table of this crate.
pub fn verify(program: &Program, checks: Checks) -> Diagnostics {
    verify_with(program, Ops::standard(), checks)
}

/// Checks a program against an op table.
///
/// V1 is always checked, because the other stages index without care.
pub fn verify_with(program: &Program, ops: &Ops, checks: Checks) -> Diagnostics {
    let out = handles::check(program);
    if !out.is_empty() {
        return out;
    }
    let kinds = ops.resolve(program);
    let mut cx = Cx { program, kinds, decls: DeclIndex::new(program), out };
    if checks.has(Checks::BLOCK_TREE) {
        blocks::check_tree(&mut cx);
    }
    if checks.has(Checks::SUB_BLOCKS) {
        blocks::check_sub_blocks(&mut cx);
    }
    if checks.has(Checks::DUPLICATES) {
        decls::check_duplicates(&mut cx);
    }
    if checks.has(Checks::DECLARED) {
        decls::check_declared(&mut cx);
    }
    if checks.any(Checks::SLOTS | Checks::ATTRS) {
        slots::check(&mut cx, checks);
    }
    if checks.has(Checks::CELLS) {
        types::check_cells(&mut cx);
    }
    if checks.has(Checks::SHAPES) {
        types::check_shapes(&mut cx);
    }
    if checks.has(Checks::CASTS) {
        types::check_casts(&mut cx);
    }
    if checks.has(Checks::EMPTY) && all_blocks(program).all(|b| program.block(b).ops.is_empty()) {
        cx.out.push(Diagnostic::new(Code::EmptyProgram, "neither startup nor main has an op", Place::Nowhere));
    }
    let sound = checks.any(Checks::READS | Checks::CAST_USES | Checks::DTYPES) && blocks::is_sound(program);
    if checks.has(Checks::READS) && sound {
        reads::check(&mut cx);
    }
    if checks.any(Checks::CAST_USES | Checks::DTYPES) && sound {
        casts::check(&mut cx, checks);
    }
    cx.out
}

/// What the stages share.
struct Cx<'p> {
    program: &'p Program,
    kinds: Kinds<'p>,
    decls: DeclIndex,
    out: Diagnostics,
}

/// An op with its index in its block.
#[derive(Clone, Copy)]
struct OpAt {
    id: OpId,
    index: usize,
}

/// A declaration with its index in its block.
#[derive(Clone, Copy)]
struct VarAt {
    id: VarId,
    index: usize,
}

impl<'p> Cx<'p> {
    /// Adds a finding; beyond the limit it is only counted, and costs nothing to make.
    fn push(&mut self, code: Code, severity: Severity, make: impl FnOnce(&'p Program) -> Diagnostic) {
        let mut d = if self.out.len() < Diagnostics::LIMIT {
            make(self.program)
        } else {
            Diagnostic::new(code, String::new(), Place::Nowhere)
        };
        d.severity = severity;
        self.out.push(d);
    }

    /// A finding about an op, of the code's own severity.
    fn op(&mut self, code: Code, at: OpAt, message: impl FnOnce(&'p Program) -> String) {
        self.push(code, code.severity(), |p| Diagnostic::new(code, message(p), op_place(p, at)));
    }

    /// A finding about a block, of the code's own severity.
    fn block(&mut self, code: Code, block: BlockId, message: impl FnOnce(&'p Program) -> String) {
        self.push(code, code.severity(), |p| Diagnostic::new(code, message(p), Place::block(p, block)));
    }
}

fn op_place(p: &Program, at: OpAt) -> Place {
    Place::op_at(p, at.id, at.index as u32)
}

fn var_place(p: &Program, at: VarAt) -> Place {
    Place::var_at(p, at.id, at.index as u32)
}

/// All blocks of both sections.
fn all_blocks(p: &Program) -> impl Iterator<Item = BlockId> + '_ {
    crate::ir::Section::ALL.into_iter().flat_map(|s| p.section_blocks(s))
}

/// Whether a block is the gradient of another, so that the framework puts values in it.
fn is_gradient(p: &Program, block: BlockId) -> bool {
    p.block(block).forward.is_some_and(|f| f != -1)
}

/// The ops of a block with their indices.
fn ops_at(p: &Program, block: BlockId) -> impl Iterator<Item = OpAt> + '_ {
    p.block(block).ops.iter().enumerate().map(|(index, &id)| OpAt { id, index })
}

/// The declarations of a block with their indices.
fn vars_at(p: &Program, block: BlockId) -> impl Iterator<Item = VarAt> + '_ {
    p.block(block).vars.iter().enumerate().map(|(index, &id)| VarAt { id, index })
}
