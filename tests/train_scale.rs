//! Is the rewrite of training programs about linear? Work is counted, and each program is so large that a step which
//! looks at everything for everything would not end within a person's patience.

use mastercast::ir::{DType, Program, ProgramBuilder, Section};
use mastercast::passes::precision::Level;
use mastercast::passes::{Pass, PassCx, TrainPrecision};

const N: usize = 4_000;

/// A chain of layers, each of a matmul and a softmax, with its gradient and plain gradient descent. `shared` layers use
/// one weight, of whose gradient each makes a part.
fn chain(layers: usize, shared: bool) -> Program {
    let mut b = ProgramBuilder::new();
    let weight = |i: usize| if shared { "w".to_owned() } else { format!("w{i}") };
    let weights = if shared { 1 } else { layers };
    let mut s = b.section(Section::Startup);
    s.persistable("lr", DType::F32, [1]);
    for i in 0..weights {
        s.param(&weight(i), DType::F32, [4, 4]);
        s.op("fill_constant").out("Out", [&*weight(i)]).attr("dtype", DType::F32).done();
    }
    let mut s = b.section(Section::Main);
    s.persistable("lr", DType::F32, [1]);
    let grad = |x: &str| format!("{x}@GRAD");
    let part = |i: usize| {
        if shared { format!("w@GRAD@RENAME@block0@{}", layers - 1 - i) } else { format!("w{i}@GRAD") }
    };
    for i in 0..weights {
        s.param(&weight(i), DType::F32, [4, 4]);
        s.var(&grad(&weight(i)), DType::F32, [4, 4]);
    }
    for i in 0..=layers {
        for x in [format!("x{i}"), format!("y{i}")] {
            s.var(&x, DType::F32, [2, 4]);
            s.var(&grad(&x), DType::F32, [2, 4]);
        }
        if shared && i < layers {
            s.var(&part(i), DType::F32, [4, 4]);
        }
    }
    s.var("loss", DType::F32, []);
    s.var("loss@GRAD", DType::F32, []);
    for i in 0..layers {
        let (x, y, next) = (format!("x{i}"), format!("y{i}"), format!("x{}", i + 1));
        s.op("matmul_v2").arg("X", [&*x]).arg("Y", [&*weight(i)]).out("Out", [&*y]).attr("op_role", 0).done();
        s.op("softmax").arg("X", [&*y]).out("Out", [&*next]).attr("op_role", 0).done();
    }
    let last = format!("x{layers}");
    s.op("reduce_mean").arg("X", [&*last]).out("Out", ["loss"]).attr("op_role", 256).done();
    s.op("fill_constant").out("Out", ["loss@GRAD"]).attr("dtype", DType::F32).attr("op_role", 257).done();
    s.op("reduce_mean_grad")
        .arg("Out@GRAD", ["loss@GRAD"])
        .arg("X", [&*last])
        .out("X@GRAD", [&*grad(&last)])
        .attr("op_role", 1)
        .done();
    for i in (0..layers).rev() {
        let (x, y, next) = (format!("x{i}"), format!("y{i}"), format!("x{}", i + 1));
        s.op("softmax_grad")
            .arg("Out", [&*next])
            .arg("Out@GRAD", [&*grad(&next)])
            .out("X@GRAD", [&*grad(&y)])
            .attr("op_role", 1)
            .done();
        s.op("matmul_v2_grad")
            .arg("Out@GRAD", [&*grad(&y)])
            .arg("X", [&*x])
            .arg("Y", [&*weight(i)])
            .out("X@GRAD", [&*grad(&x)])
            .out("Y@GRAD", [&*part(i)])
            .attr("op_role", 1)
            .done();
    }
    if shared {
        let parts: Vec<String> = (0..layers).rev().map(part).collect();
        s.op("sum").arg("X", parts.iter().map(String::as_str)).out("Out", ["w@GRAD"]).attr("op_role", 1).done();
    }
    for i in 0..weights {
        s.op("sgd")
            .arg("Grad", [&*grad(&weight(i))])
            .arg("LearningRate", ["lr"])
            .arg("Param", [&*weight(i)])
            .out("ParamOut", [&*weight(i)])
            .attr("multi_precision", false)
            .attr("op_role", 2)
            .done();
    }
    b.finish()
}

fn inserted(layers: usize, shared: bool, level: Level) -> usize {
    let mut program = chain(layers, shared);
    let options = TrainPrecision { level, ..TrainPrecision::default() };
    options.run(&mut program, &mut PassCx::default()).unwrap().inserted
}

#[test]
fn edits_grow_with_the_program() {
    for (shared, level) in [(false, Level::O1), (false, Level::O2), (true, Level::O1), (true, Level::O2)] {
        let (half, whole) = (inserted(N / 2, shared, level), inserted(N, shared, level));
        assert!(whole.abs_diff(2 * half) <= 16, "{shared} {level:?}: {half} and {whole}");
    }
}
