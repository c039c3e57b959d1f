//! Is each gradient kernel the derivative of its op? Finite differences, in float64 where the op has it.

use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{AttrValue, DType, OpBuild, Program, ProgramBuilder, Section};

type Attrs = &'static [(&'static str, A)];

#[derive(Clone, Copy)]
enum A {
    Int(i32),
    Ints(&'static [i32]),
    Bool(bool),
}

fn with_attrs<'b>(op: OpBuild<'b>, attrs: Attrs) -> OpBuild<'b> {
    attrs.iter().fold(op, |op, &(name, value)| match value {
        A::Int(v) => op.attr(name, v),
        A::Ints(v) => op.attr(name, AttrValue::Ints(v.into())),
        A::Bool(v) => op.attr(name, v),
    })
}

struct Case {
    kind: &'static str,
    /// input slots with shapes
    inputs: &'static [(&'static str, &'static [usize])],
    /// slot of the result and what the gradient op reads besides the inputs
    out: &'static str,
    reads_out: &'static [&'static str],
    attrs: Attrs,
    dtype: DType,
}

const fn case(kind: &'static str, inputs: &'static [(&'static str, &'static [usize])], attrs: Attrs) -> Case {
    Case { kind, inputs, out: "Out", reads_out: &["Out"], attrs, dtype: DType::F64 }
}

const XY: &[(&str, &[usize])] = &[("X", &[2, 3, 4]), ("Y", &[2, 3, 4])];
const ROW: &[(&str, &[usize])] = &[("X", &[2, 3, 4]), ("Y", &[4])];
const MID: &[(&str, &[usize])] = &[("X", &[2, 3, 4]), ("Y", &[3])];
const BOTH: &[(&str, &[usize])] = &[("X", &[2, 1, 4]), ("Y", &[3, 1])];
const SCALAR: &[(&str, &[usize])] = &[("X", &[2, 3]), ("Y", &[])];
const ONE: &[(&str, &[usize])] = &[("X", &[2, 3, 4])];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in ["add", "sub", "mul", "div", "pow", "max", "min"] {
        let kind: &'static str = format!("elementwise_{kind}").leak();
        all.extend([
            case(kind, XY, &[]),
            case(kind, ROW, &[("axis", A::Int(-1))]),
            case(kind, MID, &[("axis", A::Int(1))]),
            case(kind, BOTH, &[("axis", A::Int(-1))]),
            case(kind, SCALAR, &[]),
        ]);
    }
    for kind in ["relu", "tanh", "sigmoid", "exp", "log", "sqrt", "square", "abs", "mean"] {
        all.push(case(kind, ONE, &[]));
    }
    for kind in ["reduce_sum", "reduce_mean"] {
        all.extend([
            case(kind, ONE, &[("reduce_all", A::Bool(true))]),
            case(kind, ONE, &[("dim", A::Ints(&[1]))]),
            case(kind, ONE, &[("dim", A::Ints(&[-1, 0])), ("keep_dim", A::Bool(true))]),
        ]);
    }
    all.extend([
        case("mul", &[("X", &[2, 3, 4]), ("Y", &[4, 5])], &[("x_num_col_dims", A::Int(2))]),
        case("mul", &[("X", &[2, 3, 4]), ("Y", &[12, 5])], &[]),
        case("matmul_v2", &[("X", &[3, 4]), ("Y", &[4, 5])], &[]),
        case("matmul_v2", &[("X", &[4, 3]), ("Y", &[5, 4])], &[("trans_x", A::Bool(true)), ("trans_y", A::Bool(true))]),
        case("matmul_v2", &[("X", &[2, 1, 3, 4]), ("Y", &[3, 4, 2])], &[]),
        case("matmul_v2", &[("X", &[2, 3, 4]), ("Y", &[5, 4])], &[("trans_y", A::Bool(true))]),
        case("matmul_v2", &[("X", &[4]), ("Y", &[2, 4, 3])], &[]),
        case("matmul_v2", &[("X", &[2, 3, 4]), ("Y", &[4])], &[]),
        case("matmul", &[("X", &[3, 4]), ("Y", &[5, 4])], &[("transpose_Y", A::Bool(true))]),
    ]);
    all.push(Case { dtype: DType::F32, ..case("softmax", ONE, &[("axis", A::Int(1))]) });
    all.push(Case {
        out: "Loss",
        reads_out: &["Softmax"],
        dtype: DType::F32,
        ..case("softmax_with_cross_entropy", &[("Logits", &[3, 5])], &[])
    });
    all
}

/// The op, and its gradient op.
fn program(c: &Case) -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Main);
    let labelled = c.kind == "softmax_with_cross_entropy";
    let mut op = s.op(c.kind);
    for &(slot, _) in c.inputs {
        op = op.arg(slot, [slot]);
    }
    if labelled {
        op = op.arg("Label", ["Label"]).out("Softmax", ["Softmax"]);
    }
    with_attrs(op.out(c.out, [c.out]), c.attrs).done();
    let mut op = s.op(&format!("{}_grad", c.kind));
    for &(slot, _) in c.inputs {
        op = op.arg(slot, [slot]);
    }
    for slot in c.reads_out {
        op = op.arg(slot, [*slot]);
    }
    if labelled {
        op = op.arg("Label", ["Label"]);
    }
    let grad = format!("{}@GRAD", c.out);
    op = op.arg(&grad, [&*grad]);
    for &(slot, _) in c.inputs {
        let grad = format!("{slot}@GRAD");
        op = op.out(&grad, [&*grad]);
    }
    with_attrs(op, c.attrs).done();
    b.finish()
}

/// Values in (0.5, 2), no two alike, so that logarithms, powers and maxima are smooth where they are looked at.
fn values(n: usize, salt: usize) -> Vec<f64> {
    (0..n).map(|i| 0.5 + 1.5 * ((i * 37 + salt * 101 + 13) % 997) as f64 / 997.0).collect()
}

fn tensor(shape: &[usize], v: Vec<f64>, dtype: DType) -> Tensor {
    Tensor::new(shape, v).unwrap().cast(dtype, Default::default()).unwrap()
}

#[test]
fn gradients_are_derivatives() {
    let cases = cases();
    assert!(cases.len() > 50);
    for (salt, c) in cases.iter().enumerate() {
        let what = format!("{} {:?}", c.kind, c.inputs);
        let p = program(c);
        let inputs: Vec<Vec<f64>> =
            c.inputs.iter().enumerate().map(|(i, (_, shape))| values(shape.iter().product(), salt * 2 + i)).collect();
        let label = ("Label".to_owned(), Tensor::new(&[3, 1], vec![1i64, -100, 4]).unwrap());
        let feeds = |inputs: &[Vec<f64>]| {
            let mut feeds: Vec<(String, Tensor)> = c
                .inputs
                .iter()
                .zip(inputs)
                .map(|(&(slot, shape), v)| (slot.to_owned(), tensor(shape, v.clone(), c.dtype)))
                .collect();
            if c.kind == "softmax_with_cross_entropy" {
                feeds.push(label.clone());
            }
            feeds
        };
        // The forward op alone gives the shape that the gradient must have.
        let mut forward = ProgramBuilder::new();
        let mut s = forward.section(Section::Main);
        let mut op = s.op(c.kind);
        for &(slot, _) in c.inputs {
            op = op.arg(slot, [slot]);
        }
        if c.kind == "softmax_with_cross_entropy" {
            op = op.arg("Label", ["Label"]).out("Softmax", ["Softmax"]);
        }
        with_attrs(op.out(c.out, [c.out]), c.attrs).done();
        let forward = forward.finish();
        let eval = |inputs: &[Vec<f64>]| {
            let run = Interpreter::new(&forward).run_with(Section::Main, &mut Scope::new(), &feeds(inputs), &[c.out]);
            run.unwrap_or_else(|e| panic!("{what}: {e}")).values.remove(0)
        };
        let out = eval(&inputs);
        let weights = values(out.len(), 500 + salt);
        let mut all = feeds(&inputs);
        all.push((format!("{}@GRAD", c.out), tensor(out.shape(), weights.clone(), c.dtype)));
        let names: Vec<String> = c.inputs.iter().map(|(slot, _)| format!("{slot}@GRAD")).collect();
        let fetch: Vec<&str> = names.iter().map(String::as_str).collect();
        let grads = Interpreter::new(&p).run_with(Section::Main, &mut Scope::new(), &all, &fetch);
        let grads = grads.unwrap_or_else(|e| panic!("{what}: {e}")).values;
        let (h, close) = if c.dtype == DType::F64 { (1e-6, 1e-6) } else { (1e-2, 2e-3) };
        let loss =
            |inputs: &[Vec<f64>]| -> f64 { eval(inputs).to_f64_vec().iter().zip(&weights).map(|(o, w)| o * w).sum() };
        for (i, grad) in grads.iter().enumerate() {
            assert_eq!(grad.shape(), c.inputs[i].1, "{what}");
            for (k, got) in grad.to_f64_vec().into_iter().enumerate() {
                let at = |d: f64| {
                    let mut moved = inputs.clone();
                    moved[i][k] += d;
                    loss(&moved)
                };
                let want = (at(h) - at(-h)) / (2.0 * h);
                assert!(
                    (got - want).abs() <= close * want.abs().max(1.0),
                    "{what} {} [{k}]: {got} for {want}",
                    fetch[i]
                );
            }
        }
    }
}

/// 16-bit results are those of float32, rounded once.
#[test]
fn sixteen_bits_are_rounded_once() {
    for low in [DType::F16, DType::BF16] {
        for (kind, shapes) in [("matmul_v2", [&[5usize, 64][..], &[64, 3]]), ("elementwise_div", [&[7, 9], &[9]])] {
            let mut b = ProgramBuilder::new();
            b.section(Section::Main).op(kind).arg("X", ["X"]).arg("Y", ["Y"]).out("Out", ["Out"]).done();
            let p = b.finish();
            let input = |i: usize| tensor(shapes[i], values(shapes[i].iter().product(), i), low);
            let run = |dtype: DType| {
                let feeds: Vec<_> = ["X", "Y"]
                    .iter()
                    .enumerate()
                    .map(|(i, n)| ((*n).to_owned(), input(i).cast(dtype, Default::default()).unwrap()))
                    .collect();
                Interpreter::new(&p)
                    .run_with(Section::Main, &mut Scope::new(), &feeds, &["Out"])
                    .unwrap()
                    .values
                    .remove(0)
            };
            let (got, exact) = (run(low), run(DType::F32));
            assert!(got.bits_eq(&exact.cast(low, Default::default()).unwrap()), "{kind} {low}");
        }
    }
}
