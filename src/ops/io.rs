//! Which ops touch files or mend pairs? load, save, amp_init, resync, feed and fetch.
//!
//! `load` and `save` are Paddle's; `load` may have several outputs here, with the attributes `keys`
//! (one name in the checkpoint an output, default: the output's own name), `stored_dtypes` (what the
//! checkpoint holds, when its manifest was at hand) and `pinned` (may not be moved).
//!
//! `amp_init` narrows `X` in place to the dtype `dtype`; the parameters in the slot `MasterOf` have
//! their masters in `MasterParamOut` (same order) set to the widened narrowed value: Paddle's
//! `rewrite_master_weight`.
//!
//! `resync` brings `Param`/`MasterParam` in step, `direction` one of `param`, `master`, `both`,
//! `auto` (what was loaded), `on_conflict` one of `error`, `master`, `param`.

use super::schema::{AttrKind, Effect, Schema, any, many, may, need, one};
use crate::names::sym;

/// The family.
pub(super) const SCHEMAS: &[(&str, Schema)] = &[
    (
        "load",
        Schema {
            inputs: &[],
            outputs: &[many(sym::OUT)],
            attrs: &[
                need(sym::FILE_PATH, AttrKind::Str),
                may(sym::KEYS, AttrKind::Strs),
                may(sym::STORED_DTYPES, AttrKind::Ints),
                may(sym::PINNED, AttrKind::Bool),
            ],
            effect: Effect::Load,
        },
    ),
    (
        "load_combine",
        Schema {
            inputs: &[],
            outputs: &[many(sym::OUT)],
            attrs: &[need(sym::FILE_PATH, AttrKind::Str)],
            effect: Effect::Load,
        },
    ),
    (
        "save",
        Schema {
            inputs: &[many(sym::X)],
            outputs: &[],
            attrs: &[need(sym::FILE_PATH, AttrKind::Str)],
            effect: Effect::Save,
        },
    ),
    (
        "save_combine",
        Schema {
            inputs: &[many(sym::X)],
            outputs: &[],
            attrs: &[need(sym::FILE_PATH, AttrKind::Str)],
            effect: Effect::Save,
        },
    ),
    (
        "amp_init",
        Schema {
            inputs: &[many(sym::X), any(sym::MASTER_OF)],
            outputs: &[many(sym::OUT), any(sym::MASTER_PARAM_OUT)],
            attrs: &[need(sym::DTYPE, AttrKind::Int)],
            effect: Effect::AmpInit,
        },
    ),
    (
        "resync",
        Schema {
            inputs: &[one(sym::PARAM), one(sym::MASTER_PARAM)],
            outputs: &[one(sym::PARAM_OUT), one(sym::MASTER_PARAM_OUT)],
            attrs: &[
                need(sym::DTYPE, AttrKind::Int),
                need(sym::DIRECTION, AttrKind::Str),
                may(sym::ON_CONFLICT, AttrKind::Str),
            ],
            effect: Effect::Resync,
        },
    ),
    ("feed", Schema::plain(Effect::Opaque)),
    ("fetch", Schema::plain(Effect::Opaque)),
    ("fetch_v2", Schema::plain(Effect::Opaque)),
    ("print", Schema::plain(Effect::Opaque)),
];
