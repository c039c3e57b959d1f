//! Does any kernel panic on arguments that do not fit? Every kernel on random tensors and attributes.
//!
//! Every op gets an argument in every slot that some kernel knows, often of one shape and dtype so that the first
//! checks pass; then what it says about known mistakes.

#[path = "common/run.rs"]
mod common;

use common::*;
use mastercast::interp::{Fault, Interpreter, Kernels, Options, Scope, Tensor};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.next() as usize % all.len()].clone()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

const SHAPES: &[&[usize]] = &[
    &[],
    &[0],
    &[1],
    &[2],
    &[3],
    &[8],
    &[1, 1],
    &[2, 3],
    &[3, 2],
    &[2, 3, 4],
    &[3, 2, 2],
    &[1, 2, 2],
    &[2, 0, 3],
    &[1, 3, 4, 4],
    &[2, 2, 3, 3],
    &[2, 1, 3, 3],
    &[4, 4, 1, 1],
    &[2, 2, 0, 3],
];
const DTYPES: &[DType] =
    &[DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::Bool, DType::U8];
const SLOTS: &[&str] = &[
    "X",
    "Y",
    "Input",
    "Filter",
    "W",
    "Ids",
    "Index",
    "Condition",
    "Label",
    "Logits",
    "Softmax",
    "Indices",
    "Scale",
    "Bias",
    "Mean",
    "Variance",
    "SavedMean",
    "SavedVariance",
    "MeanOut",
    "VarianceOut",
    "Mask",
    "XShape",
    "Out",
    "Output",
    "Out@GRAD",
    "Y@GRAD",
    "Output@GRAD",
    "Loss@GRAD",
    "State@GRAD",
    "Start",
    "End",
    "Step",
    "Param",
    "Grad",
    "Moment",
    "Moment1",
    "Moment2",
    "Beta1Pow",
    "Beta2Pow",
    "LearningRate",
    "MasterParam",
    "Velocity",
    "InfNorm",
    "MeanSquare",
    "MeanGrad",
    "AvgSquaredGrad",
    "AvgSquaredUpdate",
    "FoundInfinite",
    "PrevLossScaling",
    "InGoodSteps",
    "InBadSteps",
    "PreState",
    "WeightList",
];
/// Given only now and then: they come before attributes.
const RARE: &[&str] = &[
    "ShapeTensor",
    "Shape",
    "AxisTensor",
    "Axis",
    "K",
    "RepeatTimes",
    "AxesTensor",
    "SectionsTensorList",
    "Min",
    "Max",
    "ScaleTensor",
    "ValueTensor",
    "SkipUpdate",
    "SequenceLength",
    "depth_tensor",
    "MomentumTensor",
    "StopUpdate",
];
const OUTS: &[&str] = &[
    "Out",
    "Y",
    "Output",
    "X@GRAD",
    "Y@GRAD",
    "Input@GRAD",
    "Filter@GRAD",
    "W@GRAD",
    "Scale@GRAD",
    "Bias@GRAD",
    "Logits@GRAD",
    "PreState@GRAD",
    "WeightList@GRAD",
    "XShape",
    "Mask",
    "Loss",
    "Softmax",
    "Mean",
    "Variance",
    "SavedMean",
    "SavedVariance",
    "MeanOut",
    "VarianceOut",
    "Indices",
    "Accuracy",
    "Correct",
    "Total",
    "ParamOut",
    "MasterParamOut",
    "MomentOut",
    "Moment1Out",
    "Moment2Out",
    "Beta1PowOut",
    "Beta2PowOut",
    "VelocityOut",
    "InfNormOut",
    "MeanSquareOut",
    "MeanGradOut",
    "AvgSquaredGradOut",
    "AvgSquaredUpdateOut",
    "FoundInfinite",
    "LossScaling",
    "OutGoodSteps",
    "OutBadSteps",
    "State",
    "Reserve",
    "DropoutState",
    "FusedOutput",
];
/// Slots that may hold several arguments.
const MANY: &[&str] = &["X", "Out", "X@GRAD", "PreState", "WeightList", "State", "PreState@GRAD", "WeightList@GRAD"];
const WHOLE: &[&str] = &[
    "axis",
    "begin_norm_axis",
    "groups",
    "k",
    "depth",
    "num",
    "start_axis",
    "stop_axis",
    "padding_idx",
    "diagonal",
    "hidden_size",
    "num_layers",
    "seed",
    "x_num_col_dims",
    "y_num_col_dims",
    "ignore_index",
    "step",
];
const LISTS: &[&str] = &[
    "axes",
    "shape",
    "dim",
    "starts",
    "ends",
    "decrease_axis",
    "strides",
    "paddings",
    "dilations",
    "ksize",
    "sections",
    "repeat_times",
    "axis",
];
const FLAGS: &[&str] = &[
    "keep_dim",
    "keepdim",
    "reduce_all",
    "adaptive",
    "global_pooling",
    "ceil_mode",
    "exclusive",
    "flatten",
    "reverse",
    "is_test",
    "use_global_stats",
    "multi_precision",
    "is_bidirec",
    "trans_x",
    "trans_y",
    "transpose_X",
    "lower",
    "asvector",
    "soft_label",
    "allow_out_of_range",
    "largest",
    "copy_data",
    "centered",
    "with_decay",
    "approximate",
];
const REALS: &[&str] =
    &["epsilon", "porder", "min", "max", "dropout_prob", "momentum", "scale", "bias", "value", "max_norm", "alpha"];
const DTYPED: &[&str] = &["dtype", "out_dtype"];
const WORDS: &[(&str, &[&str])] = &[
    ("pooling_type", &["max", "avg", "x"]),
    ("padding_algorithm", &["EXPLICIT", "SAME", "VALID", "x"]),
    ("dropout_implementation", &["upscale_in_train", "downgrade_in_infer", "x"]),
    ("data_layout", &["NCHW", "NHWC", "x"]),
    ("mode", &["LSTM", "LSTM", "GRU"]),
];

fn tensor(r: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|_| r.of(&[0.0, 1.0, -1.0, 2.5, 0.5, 3.0, f64::NAN, f64::INFINITY])).collect();
    Tensor::new(shape, v).unwrap().cast(dtype, Default::default()).unwrap()
}

/// One op of this kind, and a scope for it.
fn random(kind: &str, r: &mut Random) -> (Program, Scope) {
    let (mut b, mut scope) = (ProgramBuilder::new(), Scope::new());
    let (usual, of) = (r.of(SHAPES), r.of(DTYPES));
    let mut s = b.section(Section::Main);
    let mut op = s.op(kind);
    let rare: Vec<&str> = RARE.iter().copied().filter(|_| r.chance(4)).collect();
    for slot in SLOTS.iter().copied().chain(rare) {
        let n = if MANY.contains(&slot) { r.of(&[1, 1, 2, 4]) } else { 1 };
        let names: Vec<String> = (0..n).map(|i| format!("{slot}{i}")).collect();
        for name in &names {
            let shape = if r.chance(75) { usual } else { r.of(SHAPES) };
            let dtype = if r.chance(80) { of } else { r.of(DTYPES) };
            scope.set(name, tensor(r, shape, dtype));
        }
        op = op.arg(slot, names.iter().map(String::as_str));
    }
    for &slot in OUTS {
        let n = if MANY.contains(&slot) { r.of(&[1, 1, 2, 4]) } else { 1 };
        // An optimizer writes what it reads.
        let own = |i: usize| match slot.strip_suffix("Out") {
            Some(base) if SLOTS.contains(&base) => format!("{base}{i}"),
            _ => format!("out {slot}{i}"),
        };
        let names: Vec<String> = (0..n).map(own).collect();
        op = op.out(slot, names.iter().map(String::as_str));
    }
    for &name in WHOLE {
        if r.chance(60) {
            op = op.attr(name, r.of(&[0, 1, 2, 3, -1, -2, 4, 100, i32::MAX, i32::MIN]));
        }
    }
    for &name in LISTS.iter().filter(|n| **n != "axis" || kind.starts_with("transpose")) {
        if r.chance(70) {
            let n = r.of(&[0, 1, 2, 2, 3, 4]);
            let item = |r: &mut Random| r.of(&[0, 1, 1, 2, 2, 3, -1, -2, 7, i32::MAX, i32::MIN]);
            op = op.attr(name, AttrValue::Ints((0..n).map(|_| item(r)).collect()));
        }
    }
    for &name in FLAGS {
        if r.chance(60) {
            op = op.attr(name, r.chance(50));
        }
    }
    for &name in REALS {
        if r.chance(50) {
            op = op.attr(name, r.of(&[0.0f32, 1.0, -1.0, 2.0, 0.5, 1e-5, f32::NAN, f32::INFINITY]));
        }
    }
    for &name in DTYPED {
        if r.chance(40) {
            op = op.attr(name, r.of(DTYPES));
        }
    }
    for (name, words) in WORDS {
        if r.chance(70) {
            op = op.attr(name, r.of(words));
        }
    }
    op.done();
    (b.finish(), scope)
}

#[test]
fn no_kernel_panics_on_arguments_that_do_not_fit() {
    let kernels = Kernels::standard();
    let outside = ["load", "save", "load_combine", "save_combine", "while", "while_grad"];
    let (mut ran, mut refused, mut never) = (0, 0, Vec::new());
    for kind in kernels.kinds().into_iter().filter(|k| !outside.contains(k) && !k.starts_with("conditional")) {
        let mut good = 0;
        for seed in 0..60u64 {
            let (program, mut scope) = random(kind, &mut Random(seed.wrapping_mul(0x5DEE_CE66)));
            let mut o = Options::default();
            o.memory_limit = 1 << 24;
            match Interpreter::new(&program).with_options(o).run(Section::Main, &mut scope) {
                Ok(_) => good += 1,
                Err(_) => refused += 1,
            }
        }
        ran += good;
        if good == 0 {
            never.push(kind);
        }
    }
    println!("{ran} ran, {refused} were refused; never: {never:?}");
    assert!(ran > 1000 && refused > 1000, "{ran} ran, {refused} were refused");
}

/// What an op says when it is given this.
fn said(kind: &str, inputs: &[(&str, Tensor)], outs: &[&str], attrs: &[(&str, AttrValue)]) -> String {
    let p = main_of(|s| {
        let mut op = s.op(kind);
        for (slot, _) in inputs {
            op = op.arg(slot, [*slot]);
        }
        for slot in outs {
            op = op.out(slot, [*slot]);
        }
        attrs.iter().fold(op, |op, (name, v)| op.attr(name, v.clone())).done();
    });
    let mut scope = Scope::new();
    inputs.iter().for_each(|(slot, t)| scope.set(slot, t.clone()));
    let e = fault_of(&p, &mut scope, Options::default());
    assert!(!matches!(e.fault(), Fault::UnknownOp { .. } | Fault::MissingSlot { .. }), "{e}");
    e.to_string()
}

#[test]
fn mistakes_are_named_with_op_slot_shape_and_dtype() {
    let f = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
    let i = |v: &[i64]| Tensor::new(&[v.len()], v.to_vec()).unwrap();
    let says = |text: String, words: &[&str]| {
        for w in words {
            assert!(text.contains(w), "`{text}` does not say `{w}`");
        }
    };
    says(
        said("lookup_table_v2", &[("W", f(&[3, 2])), ("Ids", i(&[0, 3]))], &["Out"], &[]),
        &["lookup_table_v2", "`Ids`", "index 3 is not below 3"],
    );
    says(
        said("gather", &[("X", f(&[3, 2])), ("Index", i(&[-1]))], &["Out"], &[]),
        &["gather", "`Index`", "index -1 is not below 3"],
    );
    says(
        said("conv2d", &[("Input", f(&[1, 3, 4, 4])), ("Filter", f(&[2, 2, 3, 3]))], &["Output"], &[]),
        &["conv2d", "`Filter`", "[2, 2, 3, 3]", "[1, 3, 4, 4]"],
    );
    says(
        said("conv2d", &[("Input", f(&[1, 2, 2, 2])), ("Filter", f(&[2, 2, 3, 3]))], &["Output"], &[]),
        &["`Input`", "[1, 2, 2, 2]", "smaller than a window of [3, 3]"],
    );
    let half = Tensor::zeros(DType::F16, &[2, 2, 3, 3]).unwrap();
    says(
        said("conv2d", &[("Input", f(&[1, 2, 4, 4])), ("Filter", half)], &["Output"], &[]),
        &["`Filter`", "dtype f16", "f32"],
    );
    says(said("mean", &[("X", f(&[0]))], &["Out"], &[]), &["mean", "`X`", "[0]", "no elements"]);
    says(
        said("reduce_mean", &[("X", f(&[2, 0]))], &["Out"], &[("dim", AttrValue::Ints([1].into()))]),
        &["reduce_mean", "[2, 0]", "no elements"],
    );
    says(
        said("layer_norm", &[("X", f(&[2, 3])), ("Scale", f(&[2])), ("Bias", f(&[3]))], &["Y"], &[]),
        &["`Scale`", "[2]", "3 floats"],
    );
    says(
        said("concat_grad", &[("X", f(&[2, 3])), ("Out@GRAD", f(&[2, 4]))], &["X@GRAD"], &[("axis", 1.into())]),
        &["`Out@GRAD`", "[2, 4]"],
    );
    says(
        said(
            "slice",
            &[("Input", f(&[2, 2]))],
            &["Out"],
            &[
                ("axes", AttrValue::Ints([0, 0].into())),
                ("starts", AttrValue::Ints([1, 1].into())),
                ("ends", AttrValue::Ints([2, 2].into())),
            ],
        ),
        &["slice", "axis 0 twice"],
    );
}
