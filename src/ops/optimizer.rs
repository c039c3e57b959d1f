//! Which ops update parameters? Those with the slots Param and ParamOut, most with a master.
//!
//! Kinds with MasterParam slots: Paddle 2.6.2. An op that has a master writes
//! `MasterParamOut` in float32 and `ParamOut = narrow(MasterParamOut)`.

use super::schema::{AttrKind, Effect, Schema, Wants, any, many, may};
use crate::names::sym;

const MASTER: Schema = Schema {
    inputs: &[many(sym::PARAM), many(sym::GRAD), any(sym::MASTER_PARAM)],
    outputs: &[many(sym::PARAM_OUT), any(sym::MASTER_PARAM_OUT)],
    attrs: &[may(sym::MULTI_PRECISION, AttrKind::Bool)],
    effect: Effect::Optimizer(Wants::Master),
};
const PLAIN: Schema = Schema { attrs: &[], effect: Effect::Optimizer(Wants::NoMaster), ..MASTER };

/// The family.
pub(super) const SCHEMAS: &[(&str, Schema)] = &[
    ("sgd", MASTER),
    ("momentum", MASTER),
    ("merged_momentum", MASTER),
    ("lars_momentum", MASTER),
    ("adam", MASTER),
    ("merged_adam", MASTER),
    ("adamw", MASTER),
    ("lamb", MASTER),
    ("adagrad", MASTER),
    ("adadelta", MASTER),
    ("adamax", MASTER),
    ("rmsprop", MASTER),
    ("ftrl", PLAIN),
    ("decayed_adagrad", PLAIN),
    ("dpsgd", PLAIN),
    ("proximal_adagrad", PLAIN),
    ("proximal_gd", PLAIN),
];
