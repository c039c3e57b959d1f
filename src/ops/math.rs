//! Which arithmetic kinds have checked slots? The rest of Paddle's kinds is known by name alone.

use super::schema::{Effect, Schema, one};
use crate::names::sym;

const BINARY: Schema =
    Schema { inputs: &[one(sym::X), one(sym::Y)], outputs: &[one(sym::OUT)], attrs: &[], effect: Effect::Opaque };
const UNARY: Schema = Schema { inputs: &[one(sym::X)], outputs: &[one(sym::OUT)], attrs: &[], effect: Effect::Opaque };

/// The family.
pub(super) const SCHEMAS: &[(&str, Schema)] = &[
    ("mul", BINARY),
    ("matmul", BINARY),
    ("matmul_v2", BINARY),
    ("elementwise_add", BINARY),
    ("elementwise_sub", BINARY),
    ("elementwise_mul", BINARY),
    ("elementwise_div", BINARY),
    ("elementwise_pow", BINARY),
    ("relu", UNARY),
    ("tanh", UNARY),
    ("sigmoid", UNARY),
    ("reduce_mean", UNARY),
    ("reduce_sum", UNARY),
    ("reduce_any", UNARY),
];
