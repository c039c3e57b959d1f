//! Which ops run sub-blocks?

use super::schema::{AttrKind, Effect, Schema, need};
use crate::names::sym;

const COND: Schema =
    Schema { inputs: &[], outputs: &[], attrs: &[need(sym::SUB_BLOCK, AttrKind::Block)], effect: Effect::Cond };
const WHILE: Schema =
    Schema { inputs: &[], outputs: &[], attrs: &[need(sym::SUB_BLOCK, AttrKind::Block)], effect: Effect::While };

/// The family.
pub(super) const SCHEMAS: &[(&str, Schema)] = &[
    ("conditional_block", COND),
    ("conditional_block_infer", COND),
    ("conditional_block_grad", COND),
    ("while", WHILE),
    ("while_grad", WHILE),
    // Paddle 3.x (PIR).
    ("pd_op.if", Schema::plain(Effect::Regions)),
    ("pd_op.while", Schema::plain(Effect::Regions)),
];
