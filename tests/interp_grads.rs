//! Are the gradients of layers derivatives? Finite differences in float64: convolution, pooling, norms, LSTM,
//! embedding, activations, and ops that move elements. (`interp_math.rs` has the elementwise ones.)

use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section};

/// An op with its arguments by slot: shapes of those that are differentiated, values of those that are not.
struct Case {
    kind: &'static str,
    inputs: Vec<(&'static str, Vec<&'static [usize]>)>,
    fixed: Vec<(&'static str, Tensor)>,
    /// the slot whose weighted sum is differentiated, and how many arguments it has
    out: (&'static str, usize),
    /// other outputs of the op
    more: &'static [&'static str],
    /// outputs that the gradient op reads
    reads: &'static [&'static str],
    attrs: Vec<(&'static str, AttrValue)>,
}

type Shapes = &'static [usize];

fn case(kind: &'static str, inputs: &[(&'static str, Shapes)], attrs: Vec<(&'static str, AttrValue)>) -> Case {
    Case {
        kind,
        inputs: inputs.iter().map(|&(slot, shape)| (slot, vec![shape])).collect(),
        fixed: Vec::new(),
        out: ("Out", 1),
        more: &[],
        reads: &["Out"],
        attrs,
    }
}

fn ints(v: &[i32]) -> AttrValue {
    AttrValue::Ints(v.into())
}

fn float(v: f32) -> AttrValue {
    v.into()
}

fn longs(v: &[i64]) -> Tensor {
    Tensor::new(&[v.len()], v.to_vec()).unwrap()
}

fn conv(kind: &'static str, x: Shapes, f: Shapes, groups: i32, strides: &[i32], pads: &[i32], dilation: i32) -> Case {
    let attrs = vec![
        ("groups", groups.into()),
        ("strides", ints(strides)),
        ("paddings", ints(pads)),
        ("dilations", ints(&[dilation, 1])),
    ];
    Case { out: ("Output", 1), reads: &[], ..case(kind, &[("Input", x), ("Filter", f)], attrs) }
}

fn pool(x: Shapes, kind: &str, size: &[i32], strides: &[i32], pads: &[i32], more: &[(&'static str, bool)]) -> Case {
    let mut attrs = vec![
        ("pooling_type", AttrValue::from(kind)),
        ("ksize", ints(size)),
        ("strides", ints(strides)),
        ("paddings", ints(pads)),
    ];
    attrs.extend(more.iter().map(|&(name, v)| (name, v.into())));
    case("pool2d", &[("X", x)], attrs)
}

fn layers() -> Vec<Case> {
    let mut all = vec![
        conv("conv2d", &[2, 3, 5, 6], &[4, 3, 3, 2], 1, &[1, 1], &[0, 0], 1),
        conv("conv2d", &[2, 4, 5, 6], &[4, 2, 3, 3], 2, &[2, 1], &[1, 2], 1),
        conv("conv2d", &[1, 2, 7, 5], &[3, 2, 3, 3], 1, &[1, 2], &[1, 0, 2, 1], 2),
        conv("conv2d", &[2, 3, 4, 4], &[5, 3, 1, 1], 1, &[1, 1], &[0, 0], 1),
        conv("conv2d", &[1, 1, 2, 2], &[1, 1, 3, 3], 1, &[3, 3], &[2, 2], 1),
        conv("depthwise_conv2d", &[2, 3, 5, 5], &[3, 1, 3, 3], 3, &[2, 2], &[1, 1], 1),
        conv("depthwise_conv2d", &[1, 2, 4, 4], &[4, 1, 3, 3], 2, &[1, 1], &[1, 1], 1),
        pool(&[2, 2, 5, 4], "max", &[2, 2], &[2, 2], &[0, 0], &[]),
        pool(&[1, 2, 5, 5], "max", &[3, 3], &[2, 2], &[1, 1], &[]),
        pool(&[1, 2, 5, 5], "avg", &[3, 2], &[2, 1], &[1, 1], &[("exclusive", true)]),
        pool(&[1, 2, 5, 5], "avg", &[3, 2], &[2, 1], &[1, 1], &[("exclusive", false)]),
        pool(&[1, 1, 6, 5], "avg", &[2, 2], &[2, 2], &[0, 0], &[("ceil_mode", true)]),
        pool(&[2, 2, 5, 7], "avg", &[3, 2], &[1, 1], &[0, 0], &[("adaptive", true)]),
        pool(&[2, 2, 5, 7], "max", &[1, 1], &[1, 1], &[0, 0], &[("global_pooling", true)]),
    ];
    let norm = |kind, x: Shapes, n: Shapes, more, attrs| Case {
        out: ("Y", 1),
        more,
        reads: more,
        ..case(kind, &[("X", x), ("Scale", n), ("Bias", n)], attrs)
    };
    let stats: &[&str] = &["Mean", "Variance"];
    let saved: &[&str] = &["SavedMean", "SavedVariance"];
    all.extend([
        norm("layer_norm", &[3, 2, 4], &[8], stats, vec![("begin_norm_axis", 1.into())]),
        norm("layer_norm", &[3, 2, 4], &[4], stats, vec![("begin_norm_axis", 2.into())]),
        norm("group_norm", &[2, 6, 2, 3], &[6], stats, vec![("groups", 3.into())]),
        norm("instance_norm", &[2, 3, 2, 4], &[3], saved, vec![]),
    ]);
    let three = |v: [f64; 3]| Tensor::new(&[3], v.to_vec()).unwrap();
    for (x, layout) in [(&[4, 3, 2, 2][..], "NCHW"), (&[5, 3], "NCHW"), (&[2, 2, 3, 3], "NHWC")] {
        let mut c = norm("batch_norm", x, &[3], saved, vec![("data_layout", layout.into())]);
        c.fixed = vec![("Mean", three([0.5, 1.0, 2.0])), ("Variance", three([1.0, 2.0, 0.5]))];
        all.push(c);
    }
    let (w, u, b): (Shapes, Shapes, Shapes) = (&[12, 2], &[12, 3], &[12]);
    let w2: Shapes = &[12, 6];
    for layers in [1, 2] {
        let (pairs, directions) = if layers == 1 { (1, 1) } else { (4, 2) };
        let mut weights = Vec::new();
        for p in 0..pairs {
            weights.extend([if p < directions { w } else { w2 }, u]);
        }
        weights.extend(vec![b; 2 * pairs]);
        let state: Shapes = if layers == 1 { &[1, 2, 3] } else { &[4, 2, 3] };
        let mut c = case("rnn", &[("Input", &[3, 2, 2])], vec![]);
        c.inputs.extend([("PreState", vec![state; 2]), ("WeightList", weights)]);
        c.attrs = vec![
            ("mode", "LSTM".into()),
            ("hidden_size", 3.into()),
            ("num_layers", layers.into()),
            ("is_bidirec", (directions == 2).into()),
        ];
        (c.more, c.reads) = (&["State*2", "Reserve", "DropoutState"], &["Out", "Reserve", "DropoutState"]);
        all.push(c);
    }
    all
}

fn movers() -> Vec<Case> {
    let x: Shapes = &[2, 3, 4];
    let shaped = |kind, inputs: &[(&'static str, Shapes)], attrs| Case {
        more: &["XShape"],
        reads: &["XShape"],
        ..case(kind, inputs, attrs)
    };
    let fixed = |c: Case, slot, t: Tensor| Case { fixed: vec![(slot, t)], ..c };
    let mut all = vec![
        shaped("reshape2", &[("X", x)], vec![("shape", ints(&[0, -1]))]),
        shaped("transpose2", &[("X", x)], vec![("axis", ints(&[2, 0, 1]))]),
        shaped("flatten_contiguous_range", &[("X", x)], vec![("start_axis", 1.into()), ("stop_axis", (-1).into())]),
        shaped("squeeze2", &[("X", &[2, 1, 3])], vec![("axes", ints(&[1]))]),
        shaped("unsqueeze2", &[("X", x)], vec![("axes", ints(&[0, -1]))]),
        case("tile", &[("X", &[2, 1, 3])], vec![("repeat_times", ints(&[2, 1, 2, 3]))]),
        case("gelu", &[("X", x)], vec![]),
        case("gelu", &[("X", x)], vec![("approximate", true.into())]),
        case("relu6", &[("X", x)], vec![]),
        case("rsqrt", &[("X", x)], vec![]),
        case("clip", &[("X", x)], vec![("min", float(0.8)), ("max", float(1.5))]),
        case("cumsum", &[("X", x)], vec![("axis", 1.into())]),
        case("cumsum", &[("X", x)], vec![("axis", (-1).into()), ("reverse", true.into()), ("exclusive", true.into())]),
        case("cumsum", &[("X", x)], vec![("flatten", true.into())]),
        case("reduce_max", &[("X", x)], vec![("dim", ints(&[1]))]),
        case("reduce_min", &[("X", x)], vec![("reduce_all", true.into())]),
        case("p_norm", &[("X", x)], vec![("axis", 1.into()), ("keepdim", true.into())]),
        case("p_norm", &[("X", x)], vec![("porder", float(3.0)), ("asvector", true.into())]),
        Case { more: &["Indices"], reads: &["Indices"], ..case("top_k_v2", &[("X", x)], vec![("k", 2.into())]) },
        fixed(
            case("lookup_table_v2", &[("W", &[5, 3])], vec![("padding_idx", 2i64.into())]),
            "Ids",
            longs(&[4, 2, 0, 4]),
        ),
        fixed(case("gather", &[("X", x)], vec![("axis", 1.into())]), "Index", longs(&[2, 0, 2])),
        fixed(
            case("where", &[("X", &[4]), ("Y", &[4])], vec![]),
            "Condition",
            Tensor::new(&[4], vec![true, false, false, true]).unwrap(),
        ),
    ];
    let mut slice = case(
        "slice",
        &[("Input", x)],
        vec![
            ("axes", ints(&[1, 2])),
            ("starts", ints(&[1, -3])),
            ("ends", ints(&[2, 99])),
            ("decrease_axis", ints(&[1])),
        ],
    );
    slice.reads = &[];
    all.push(slice);
    let joined = |kind, out, shapes: [Shapes; 2], axis: i32| Case {
        inputs: vec![("X", shapes.to_vec())],
        out: (out, 1),
        reads: &[],
        ..case(kind, &[], vec![("axis", axis.into())])
    };
    all.push(joined("concat", "Out", [&[2, 1, 3], &[2, 4, 3]], 1));
    all.push(joined("stack", "Y", [&[2, 3], &[2, 3]], 1));
    all
}

/// The names of a slot's arguments.
fn names(slot: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{slot}{i}")).collect()
}

fn program(c: &Case, grad: bool) -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Main);
    let mut op = s.op(c.kind);
    for (slot, shapes) in &c.inputs {
        op = op.arg(slot, names(slot, shapes.len()).iter().map(String::as_str));
    }
    for (slot, _) in &c.fixed {
        op = op.arg(slot, [*slot]);
    }
    op = op.out(c.out.0, names(c.out.0, c.out.1).iter().map(String::as_str));
    for slot in c.more {
        let (slot, n) = slot.split_once('*').map_or((*slot, 1), |(s, n)| (s, n.parse().unwrap()));
        op = op.out(slot, names(slot, n).iter().map(String::as_str));
    }
    c.attrs.iter().fold(op, |op, (name, v)| op.attr(name, v.clone())).done();
    if grad {
        let mut op = s.op(&format!("{}_grad", c.kind));
        for (slot, shapes) in &c.inputs {
            op = op.arg(slot, names(slot, shapes.len()).iter().map(String::as_str));
        }
        for (slot, _) in &c.fixed {
            op = op.arg(slot, [*slot]);
        }
        for slot in c.reads {
            op = op.arg(slot, [&*format!("{slot}0")]);
        }
        let out = format!("{}@GRAD", c.out.0);
        op = op.arg(&out, names(&out, c.out.1).iter().map(String::as_str));
        for (slot, shapes) in &c.inputs {
            let slot = format!("{slot}@GRAD");
            op = op.out(&slot, names(&slot, shapes.len()).iter().map(String::as_str));
        }
        c.attrs.iter().fold(op, |op, (name, v)| op.attr(name, v.clone())).done();
    }
    b.finish()
}

/// Values between 0.5 and 2, no two alike.
fn values(n: usize, salt: usize) -> Vec<f64> {
    (0..n).map(|i| 0.5 + 1.5 * ((i * 37 + salt * 101 + 13) % 997) as f64 / 997.0).collect()
}

fn check(c: &Case, salt: usize) {
    let what = format!("{} {:?} {:?}", c.kind, c.inputs, c.attrs);
    let shapes: Vec<(String, Shapes)> =
        c.inputs.iter().flat_map(|(slot, s)| names(slot, s.len()).into_iter().zip(s.iter().copied())).collect();
    let start: Vec<Vec<f64>> = shapes
        .iter()
        .enumerate()
        .map(|(i, (_, s))| {
            values(s.iter().product(), salt * 5 + i)
                .into_iter()
                .map(|v| if c.kind == "rnn" { v - 1.2 } else { v })
                .collect()
        })
        .collect();
    let feeds = |inputs: &[Vec<f64>]| -> Vec<(String, Tensor)> {
        let own = shapes.iter().zip(inputs).map(|((n, s), v)| (n.clone(), Tensor::new(s, v.clone()).unwrap()));
        own.chain(c.fixed.iter().map(|(slot, t)| ((*slot).to_owned(), t.clone()))).collect()
    };
    let (forward, both) = (program(c, false), program(c, true));
    let out = format!("{}0", c.out.0);
    let mut interp = Interpreter::new(&forward);
    let mut eval = |inputs: &[Vec<f64>]| {
        let run = interp.run_with(Section::Main, &mut Scope::new(), &feeds(inputs), &[&out]);
        run.unwrap_or_else(|e| panic!("{what}: {e}")).values.remove(0)
    };
    let result = eval(&start);
    assert_eq!(result.dtype(), DType::F64, "{what}");
    let weights = values(result.len(), 500 + salt);
    let mut all = feeds(&start);
    all.push((format!("{}@GRAD0", c.out.0), Tensor::new(result.shape(), weights.clone()).unwrap()));
    let fetch: Vec<String> = c.inputs.iter().flat_map(|(slot, s)| names(&format!("{slot}@GRAD"), s.len())).collect();
    let fetched: Vec<&str> = fetch.iter().map(String::as_str).collect();
    let grads = Interpreter::new(&both).run_with(Section::Main, &mut Scope::new(), &all, &fetched);
    let grads = grads.unwrap_or_else(|e| panic!("{what}: {e}")).values;
    let h = 1e-6;
    for (i, grad) in grads.iter().enumerate() {
        assert_eq!(grad.shape(), shapes[i].1, "{what} {}", fetch[i]);
        for (k, got) in grad.to_f64_vec().into_iter().enumerate() {
            let mut at = |d: f64| {
                let mut moved = start.clone();
                moved[i][k] += d;
                eval(&moved).to_f64_vec().iter().zip(&weights).map(|(o, w)| o * w).sum::<f64>()
            };
            let want = (at(h) - at(-h)) / (2.0 * h);
            assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{what} {}[{k}]: {got} for {want}", fetch[i]);
        }
    }
}

#[test]
fn gradients_of_layers_are_derivatives() {
    layers().iter().enumerate().for_each(|(salt, c)| check(c, salt));
}

#[test]
fn gradients_of_ops_that_move_elements_are_derivatives() {
    movers().iter().enumerate().for_each(|(salt, c)| check(c, salt));
}
