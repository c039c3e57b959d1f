//! Which ops move values without computing new ones? Copies, casts, shape changes, initialisers.

use super::schema::{AttrKind, Effect, Schema, need, one};
use crate::names::sym;

const COPY: Schema = Schema { inputs: &[one(sym::X)], outputs: &[one(sym::OUT)], attrs: &[], effect: Effect::Copy };
const INIT: Schema = Schema { inputs: &[], outputs: &[one(sym::OUT)], attrs: &[], effect: Effect::Init };
const PURE: Schema = Schema::plain(Effect::Pure);

/// The family.
pub(super) const SCHEMAS: &[(&str, Schema)] = &[
    ("assign", COPY),
    ("memcpy", COPY),
    ("memcpy_d2h", COPY),
    ("memcpy_h2d", COPY),
    (
        "cast",
        Schema {
            inputs: &[one(sym::X)],
            outputs: &[one(sym::OUT)],
            attrs: &[need(sym::OUT_DTYPE, AttrKind::Int)],
            effect: Effect::Cast,
        },
    ),
    ("fill_constant", INIT),
    ("uniform_random", INIT),
    ("gaussian_random", INIT),
    ("truncated_gaussian_random", INIT),
    ("randint", INIT),
    ("randperm", INIT),
    ("assign_value", INIT),
    ("range", Schema::plain(Effect::Opaque)),
    ("eye", INIT),
    // Function of inputs and attributes, no rounding: users derive fused or transposed copies with them.
    ("transpose", PURE),
    ("transpose2", PURE),
    ("reshape", PURE),
    ("reshape2", PURE),
    ("concat", PURE),
    ("split", PURE),
    ("slice", PURE),
    ("strided_slice", PURE),
    ("stack", PURE),
    ("unstack", PURE),
    ("squeeze2", PURE),
    ("unsqueeze2", PURE),
    ("flatten2", PURE),
    ("flatten_contiguous_range", PURE),
    ("tile", PURE),
    ("expand_v2", PURE),
    ("flip", PURE),
    ("roll", PURE),
    ("scale", PURE),
];
