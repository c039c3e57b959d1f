//! Which ProgramDesc kind has the meaning of a PIR kind, and in which slots do its operands and results go?
//!
//! One table. An op whose kind stands here has the ProgramDesc kind in the IR, so that schema, analyses,
//! passes and kernels know it without a second entry; export writes the PIR kind back. Only kinds whose
//! slots and attributes mean the same are listed. Operand and result orders: the files of Paddle 3.3.1 and
//! its `pd_op` signatures.

use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    /// kind in the file
    pub pir: &'static str,
    /// kind in the IR
    pub kind: &'static str,
    /// slot of each operand
    pub inputs: &'static [&'static str],
    /// slot of each result
    pub outputs: &'static [&'static str],
    /// attributes that are named otherwise: in the file, in the IR
    pub renames: &'static [(&'static str, &'static str)],
    /// results that are the storage of an operand: result, operand
    pub in_place: &'static [(usize, usize)],
    /// attributes that a new op has in the file, by their names in the IR
    pub fresh: Option<&'static [&'static str]>,
}

const fn row(
    pir: &'static str,
    kind: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
) -> Row {
    Row { pir, kind, inputs, outputs, renames: &[], in_place: &[], fresh: None }
}

const X: &[&str] = &["X"];
const XY: &[&str] = &["X", "Y"];
const OUT: &[&str] = &["Out"];
const XY_OUT_GRAD: &[&str] = &["X", "Y", "Out@GRAD"];
const XY_GRAD: &[&str] = &["X@GRAD", "Y@GRAD"];
const OUT_OUT_GRAD: &[&str] = &["Out", "Out@GRAD"];
const X_GRAD: &[&str] = &["X@GRAD"];
const TRANS: &[(&str, &str)] = &[("transpose_x", "trans_x"), ("transpose_y", "trans_y")];
const ADAM_IN: &[&str] = &[
    "Param",
    "Grad",
    "LearningRate",
    "Moment1",
    "Moment2",
    "Moment2Max",
    "Beta1Pow",
    "Beta2Pow",
    "MasterParam",
    "SkipUpdate",
    "Beta1Tensor",
    "Beta2Tensor",
    "EpsilonTensor",
];
const ADAM_OUT: &[&str] =
    &["ParamOut", "Moment1Out", "Moment2Out", "Moment2MaxOut", "Beta1PowOut", "Beta2PowOut", "MasterParamOut"];
const ADAM_IN_PLACE: &[(usize, usize)] = &[(0, 0), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)];

static ROWS: &[Row] = &[
    Row { renames: &[("dtype", "out_dtype")], fresh: Some(&["out_dtype"]), ..row("pd_op.cast", "cast", X, OUT) },
    Row { fresh: Some(&[]), ..row("pd_op.assign", "assign", X, OUT) },
    row("pd_op.full", "fill_constant", &[], OUT),
    row("pd_op.uniform", "uniform_random", &["ShapeTensor", "Min", "Max"], OUT),
    row("pd_op.gaussian", "gaussian_random", &["ShapeTensor"], OUT),
    Row { renames: TRANS, ..row("pd_op.matmul", "matmul_v2", XY, OUT) },
    Row { renames: TRANS, ..row("pd_op.matmul_grad", "matmul_v2_grad", XY_OUT_GRAD, XY_GRAD) },
    row("pd_op.add", "elementwise_add", XY, OUT),
    row("pd_op.add_grad", "elementwise_add_grad", XY_OUT_GRAD, XY_GRAD),
    row("pd_op.mean", "reduce_mean", &["X", "Axis"], OUT),
    row("pd_op.mean_grad", "reduce_mean_grad", &["X", "Out@GRAD", "Axis"], X_GRAD),
    row("pd_op.subtract", "elementwise_sub", XY, OUT),
    row("pd_op.multiply", "elementwise_mul", XY, OUT),
    row("pd_op.divide", "elementwise_div", XY, OUT),
    row("pd_op.less_than", "less_than", XY, OUT),
    row("pd_op.less_equal", "less_equal", XY, OUT),
    row("pd_op.greater_than", "greater_than", XY, OUT),
    row("pd_op.scale", "scale", &["X", "ScaleTensor"], OUT),
    row("pd_op.exp", "exp", X, OUT),
    row("pd_op.relu", "relu", X, OUT),
    row("pd_op.relu_grad", "relu_grad", OUT_OUT_GRAD, X_GRAD),
    row("pd_op.tanh", "tanh", X, OUT),
    row("pd_op.tanh_grad", "tanh_grad", OUT_OUT_GRAD, X_GRAD),
    row("pd_op.sigmoid", "sigmoid", X, OUT),
    row("pd_op.sigmoid_grad", "sigmoid_grad", OUT_OUT_GRAD, X_GRAD),
    row("pd_op.cross_entropy_with_softmax", "softmax_with_cross_entropy", &["Logits", "Label"], &["Softmax", "Loss"]),
    row(
        "pd_op.cross_entropy_with_softmax_grad",
        "softmax_with_cross_entropy_grad",
        &["Label", "Softmax", "Loss@GRAD"],
        &["Logits@GRAD"],
    ),
    Row {
        in_place: &[(0, 0), (1, 3)],
        ..row("pd_op.sgd_", "sgd", &["Param", "LearningRate", "Grad", "MasterParam"], &["ParamOut", "MasterParamOut"])
    },
    Row {
        in_place: &[(0, 0), (1, 2), (2, 4)],
        ..row(
            "pd_op.momentum_",
            "momentum",
            &["Param", "Grad", "Velocity", "LearningRate", "MasterParam"],
            &["ParamOut", "VelocityOut", "MasterParamOut"],
        )
    },
    Row { in_place: ADAM_IN_PLACE, ..row("pd_op.adam_", "adam", ADAM_IN, ADAM_OUT) },
    Row { in_place: ADAM_IN_PLACE, ..row("pd_op.adamw_", "adamw", ADAM_IN, ADAM_OUT) },
];

/// The row of a PIR kind.
pub(super) fn of_pir(kind: &str) -> Option<&'static Row> {
    static MAP: OnceLock<FxHashMap<&str, &Row>> = OnceLock::new();
    MAP.get_or_init(|| ROWS.iter().map(|r| (r.pir, r)).collect()).get(kind).copied()
}

/// The row of a kind in the IR.
pub(super) fn of_ir(kind: &str) -> Option<&'static Row> {
    static MAP: OnceLock<FxHashMap<&str, &Row>> = OnceLock::new();
    MAP.get_or_init(|| ROWS.iter().map(|r| (r.kind, r)).collect()).get(kind).copied()
}

/// A dialect's number in the file, and its name in the IR.
const DIALECTS: [(&str, &str); 3] = [("0.", "builtin."), ("1.", "pd_op."), ("2.", "cf.")];

/// `1.cast` as `pd_op.cast`; a dialect that has no name here stays a number.
pub(super) fn long(kind: &str) -> String {
    for (short, name) in DIALECTS {
        if let Some(rest) = kind.strip_prefix(short) {
            return format!("{name}{rest}");
        }
    }
    kind.to_owned()
}

/// The reverse of [`long`].
pub(super) fn short(kind: &str) -> String {
    for (short, name) in DIALECTS {
        if let Some(rest) = kind.strip_prefix(name) {
            return format!("{short}{rest}");
        }
    }
    kind.to_owned()
}

/// Kinds that name a value and compute nothing: they have no slots in the IR.
pub(super) const PARAMETER: &str = "builtin.parameter";
pub(super) const SET_PARAMETER: &str = "builtin.set_parameter";
pub(super) const SHADOW_OUTPUT: &str = "builtin.shadow_output";
pub(super) const DATA: &str = "pd_op.data";

/// The attribute that names the cell, for those kinds.
pub(super) fn names_cell(kind: &str) -> Option<&'static str> {
    match kind {
        PARAMETER | SET_PARAMETER => Some("parameter_name"),
        SHADOW_OUTPUT => Some("output_name"),
        DATA => Some("name"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_one_to_one_and_in_range() {
        for r in ROWS {
            assert!(std::ptr::eq(of_pir(r.pir).unwrap(), r) && std::ptr::eq(of_ir(r.kind).unwrap(), r));
            assert!(r.in_place.iter().all(|&(o, i)| o < r.outputs.len() && i < r.inputs.len()));
            assert_eq!(r.pir.ends_with('_'), !r.in_place.is_empty(), "{}", r.pir);
            assert_eq!(long(&short(r.pir)), r.pir);
        }
    }
}
