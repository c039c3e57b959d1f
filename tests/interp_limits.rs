//! Do control flow, scopes and limits hold, and does each bad run end in its typed error?

#[path = "common/run.rs"]
mod common;

use common::*;
use half::{bf16, f16};
use mastercast::diag::Place;
use mastercast::interp::{Fault, Interpreter, Kernels, Options, Scope, Tensor, TensorError};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section, SectionBuilder};

// ---- control flow

fn less_than(s: &mut SectionBuilder<'_>) {
    s.op("less_than").arg("X", ["i"]).arg("Y", ["n"]).out("Out", ["go"]).done();
}

fn counting_loop(step: f32) -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Main);
    s.persistable("i", DType::I64, [1]);
    s.persistable("n", DType::I64, [1]);
    s.persistable("sum", DType::F32, [1]);
    s.var("go", DType::Bool, [1]);
    less_than(&mut s);
    let mut body = b.sub_block(Section::Main, 0);
    let block = body.index();
    body.var("local", DType::F32, [1]);
    body.op("scale").arg("X", ["sum"]).out("Out", ["local"]).attr("bias", 1.0f32).done();
    body.op("assign").arg("X", ["local"]).out("Out", ["sum"]).done();
    body.op("increment").arg("X", ["i"]).out("Out", ["i"]).attr("step", step).done();
    less_than(&mut body);
    let mut s = b.section(Section::Main);
    s.op("while")
        .arg("X", ["i", "n", "sum"])
        .arg("Condition", ["go"])
        .out("Out", ["i", "sum", "go"])
        .attr("sub_block", AttrValue::Block(block))
        .done();
    b.finish()
}

fn loop_scope(n: i64) -> Scope {
    let mut s = Scope::new();
    s.set("i", Tensor::new(&[1], vec![0i64]).unwrap());
    s.set("n", Tensor::new(&[1], vec![n]).unwrap());
    s.set("sum", f32s(&[0.0]));
    s
}

#[test]
fn a_loop_runs_its_body_over_local_variables() {
    for n in [0, 1, 5] {
        let mut s = loop_scope(n);
        run(&counting_loop(1.0), &mut s);
        assert_eq!(s.get("sum").unwrap().to_f32_vec(), [n as f32]);
        assert!(s.get("local").is_none() && s.get("go").is_none());
        assert_eq!(s.len(), 3);
    }
}

#[test]
fn an_endless_loop_runs_out_of_fuel() {
    let mut s = loop_scope(5);
    let e = fault_of(&counting_loop(0.0), &mut s, options(|o| o.fuel = 1000));
    assert!(matches!(e.fault(), Fault::Fuel { limit: 1000 }), "{e}");

    // A body without ops spends fuel too.
    let mut b = ProgramBuilder::new();
    let block = {
        b.section(Section::Main);
        b.sub_block(Section::Main, 0).index()
    };
    let mut m = b.section(Section::Main);
    m.op("while").arg("Condition", ["go"]).attr("sub_block", AttrValue::Block(block)).done();
    let p = b.finish();
    let mut s = Scope::new();
    s.set("go", Tensor::new(&[1], vec![true]).unwrap());
    let e = fault_of(&p, &mut s, options(|o| o.fuel = 1000));
    assert!(matches!(e.fault(), Fault::Fuel { .. }), "{e}");
    assert!(e.to_string().starts_with("main: blocks[0].ops[0]"), "{e}");
}

fn conditional(block: i32, parent: i32) -> Program {
    let mut b = ProgramBuilder::new();
    b.section(Section::Main);
    let mut sub = b.sub_block(Section::Main, parent);
    sub.op("assign").arg("X", ["x"]).out("Out", ["y"]).done();
    if block == 1 && parent == 1 {
        sub.op("conditional_block").arg("Cond", ["c"]).attr("sub_block", AttrValue::Block(1)).done();
    }
    let mut m = b.section(Section::Main);
    m.persistable("y", DType::F32, [1]);
    m.op("conditional_block")
        .arg("Cond", ["c"])
        .out("Out", ["y"])
        .attr("is_scalar_condition", true)
        .attr("sub_block", AttrValue::Block(block))
        .done();
    b.finish()
}

#[test]
fn a_branch_runs_when_its_condition_holds() {
    for holds in [false, true] {
        let mut s = Scope::new();
        s.set("x", f32s(&[3.0]));
        s.set("c", Tensor::new(&[1], vec![holds]).unwrap());
        run(&conditional(1, 0), &mut s);
        assert_eq!(s.get("y").is_some(), holds);
    }
}

#[test]
fn sub_blocks_that_are_not_there_or_run_themselves_are_errors() {
    let start = || {
        let mut s = Scope::new();
        s.set("x", f32s(&[3.0]));
        s.set("c", Tensor::new(&[1], vec![true]).unwrap());
        s
    };
    let e = fault_of(&conditional(7, 0), &mut start(), Options::default());
    assert!(matches!(e.fault(), Fault::NoBlock { index: 7 }), "{e}");
    let e = fault_of(&conditional(1, 1), &mut start(), Options::default());
    assert!(matches!(e.fault(), Fault::Depth { .. }), "{e}");
}

// ---- limits and bad programs

#[test]
fn an_unknown_op_is_an_error_with_its_place() {
    let p = main_of(|s| {
        s.op("assign").arg("X", ["x"]).out("Out", ["y"]).done();
        s.op("frobnicate").arg("X", ["y"]).out("Out", ["z"]).done();
    });
    let mut s = Scope::new();
    s.set("x", f32s(&[1.0]));
    let e = fault_of(&p, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::UnknownOp { kind } if kind == "frobnicate"), "{e}");
    assert!(matches!(e.place(), Place::Item { section: Section::Main, block: 0, .. }));
    assert_eq!(e.to_string(), "main: blocks[0].ops[1]: (Out: z) = frobnicate(X: y): no kernel for op `frobnicate`");
    assert_eq!(s.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["x"], "temporaries are dropped after a failure too");

    // Until the caller brings a kernel.
    let mut kernels = Kernels::standard().clone();
    kernels.register("frobnicate", |cx| {
        let x = cx.input("X")?;
        cx.set("Out", x)
    });
    let mut i = Interpreter::new(&p).with_kernels(&kernels);
    assert_eq!(i.run_with(Section::Main, &mut s, &[], &["z"]).unwrap().values[0].to_f32_vec(), [1.0]);
}

#[test]
fn a_variable_without_value_is_an_error() {
    let p = main_of(|s| {
        s.op("relu").arg("X", ["nothing"]).out("Out", ["y"]).done();
    });
    let e = fault_of(&p, &mut Scope::new(), Options::default());
    assert!(matches!(e.fault(), Fault::MissingValue { slot, name } if slot == "X" && name == "nothing"), "{e}");
    let p = main_of(|s| {
        s.op("relu").out("Out", ["y"]).done();
    });
    let e = fault_of(&p, &mut Scope::new(), Options::default());
    assert!(matches!(e.fault(), Fault::MissingSlot { slot } if slot == "X"), "{e}");
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let add = main_of(|s| {
        s.op("elementwise_add").arg("X", ["x"]).arg("Y", ["y"]).out("Out", ["z"]).done();
    });
    let mut s = Scope::new();
    s.set("x", f32s(&[1.0, 2.0]));
    s.set("y", low(&[1.0, 2.0], DType::F16));
    let e = fault_of(&add, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::DType { slot, dtype: DType::F16, .. } if slot == "Y"), "{e}");
    s.set("y", f32s(&[1.0, 2.0, 3.0]));
    let e = fault_of(&add, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::Shape { slot, shape, .. } if slot == "Y" && shape == &[3]), "{e}");
    let mul = main_of(|s| {
        s.op("matmul_v2").arg("X", ["x"]).arg("Y", ["y"]).out("Out", ["z"]).done();
    });
    let e = fault_of(&mul, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::Shape { .. }), "{e}");
    let div = main_of(|s| {
        s.op("elementwise_div").arg("X", ["x"]).arg("Y", ["x"]).out("Out", ["z"]).done();
    });
    s.set("x", Tensor::new(&[1], vec![0i32]).unwrap());
    let e = fault_of(&div, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::Arithmetic { .. }), "{e}");
}

#[test]
fn memory_is_bounded_before_it_is_taken() {
    let fill = |shape: &[i64]| {
        main_of(|s| {
            s.op("fill_constant").out("Out", ["x"]).attr("shape", longs(shape)).attr("dtype", DType::F32).done();
        })
    };
    for shape in [&[1 << 40][..], &[1 << 30, 1 << 30, 1 << 30], &[i64::MAX, i64::MAX]] {
        let e = fault_of(&fill(shape), &mut Scope::new(), Options::default());
        assert!(matches!(e.fault(), Fault::Memory { .. } | Fault::Tensor(_)), "{e}");
    }
    let small = || options(|o| o.memory_limit = 400);
    run_with(&fill(&[100]), &mut Scope::new(), small()).unwrap();
    let e = fault_of(&fill(&[101]), &mut Scope::new(), small());
    assert!(matches!(e.fault(), Fault::Memory { wanted: 404, used: 0, limit: 400 }), "{e}");
    let e = fault_of(&fill(&[-1]), &mut Scope::new(), small());
    assert!(matches!(e.fault(), Fault::BadAttr { .. }), "{e}");
    // An outer product, a stretch, a chain of doublings.
    let grow = main_of(|s| {
        s.op("elementwise_add").arg("X", ["a"]).arg("Y", ["b"]).out("Out", ["c"]).done();
    });
    let mut s = Scope::new();
    s.set("a", f32s(&[0.0; 20]).reshape(&[20, 1]).unwrap());
    s.set("b", f32s(&[0.0; 20]).reshape(&[1, 20]).unwrap());
    let e = fault_of(&grow, &mut s, options(|o| o.memory_limit = 1000));
    assert!(matches!(e.fault(), Fault::Memory { .. }), "{e}");
    let double = main_of(|s| {
        for _ in 0..64 {
            s.op("concat").arg("X", ["a", "a"]).out("Out", ["a"]).attr("axis", 0).done();
        }
    });
    let mut s = Scope::new();
    s.set("a", f32s(&[0.0; 2]));
    let e = fault_of(&double, &mut s, options(|o| o.memory_limit = 1 << 16));
    assert!(matches!(e.fault(), Fault::Memory { .. }), "{e}");
}

#[test]
fn feeds_are_checked_and_fetches_must_exist() {
    let p = main_of(|s| {
        s.var("x", DType::F32, [-1, 2]);
        s.op("relu").arg("X", ["x"]).out("Out", ["y"]).done();
        s.op("fetch").arg("X", ["y"]).out("Out", ["fetch"]).done();
    });
    let feed = |name: &str, t: Tensor, fetch: &str| {
        Interpreter::new(&p).run_with(Section::Main, &mut Scope::new(), &[(name.into(), t)], &[fetch])
    };
    let good = f32s(&[-1.0, 2.0]).reshape(&[1, 2]).unwrap();
    let out = feed("x", good.clone(), "y").unwrap();
    assert_eq!(out.values[0].to_f32_vec(), [0.0, 2.0]);
    assert_eq!(out.stats.fetched, [("y".to_owned(), out.values[0].clone())]);
    let bad = [("x", f32s(&[1.0, 2.0])), ("x", low(&[1.0], DType::F16)), ("no", good.clone())];
    for (name, t) in bad {
        let e = feed(name, t, "y").unwrap_err();
        assert!(matches!(e.fault(), Fault::Feed { .. }) && *e.place() == Place::Nowhere, "{e}");
    }
    let e = feed("x", good, "z").unwrap_err();
    assert!(matches!(e.fault(), Fault::Fetch { name } if name == "z"), "{e}");
}

#[test]
fn tensors_share_data_until_one_is_written() {
    let a = f32s(&[1.0, 2.0]);
    let mut s = Scope::new();
    s.set("a", a.clone());
    let copy = s.clone();
    s.set("a", f32s(&[3.0]));
    assert!(copy.get("a").unwrap().bits_eq(&a));
    assert_eq!((s.bytes(), copy.bytes()), (4, 8));
    assert!(s.remove("a").is_some() && s.is_empty() && s.bytes() == 0);
    assert!(Tensor::new(&[3], vec![1f32]).is_err());
    assert!(Tensor::from_bytes(DType::F32, &[1], &[0; 3]).is_err());
    assert!(Tensor::from_bytes(DType::C64, &[1], &[0; 8]).is_err());
    assert!(Tensor::new(&[1], vec![f16::NAN]).unwrap().bits_eq(&Tensor::new(&[1], vec![f16::NAN]).unwrap()));
    assert!(!Tensor::new(&[1], vec![bf16::ZERO]).unwrap().bits_eq(&Tensor::new(&[1], vec![-bf16::ZERO]).unwrap()));
}

#[test]
fn random_values_depend_on_seed_and_name_and_not_on_place() {
    let p = |first: &str, second: &str| {
        main_of(|s| {
            for name in [first, second] {
                s.persistable(name, DType::F32, [64]);
                let op = s.op("uniform_random").out("Out", [name]).attr("shape", longs(&[64]));
                op.attr("min", -0.5f32).attr("max", 0.5f32).attr("dtype", DType::F32).done();
            }
        })
    };
    let values = |p: &Program, seed| {
        let mut s = Scope::new();
        run_with(p, &mut s, options(|o| o.seed = seed)).unwrap();
        ["a", "b"].map(|n| s.get(n).unwrap().to_f32_vec())
    };
    let [a, b] = values(&p("a", "b"), 1);
    assert_eq!([a.clone(), b.clone()], values(&p("b", "a"), 1));
    assert_ne!(a, b);
    assert_ne!(a, values(&p("a", "b"), 2)[0]);
    assert!(a.iter().all(|v| (-0.5..0.5).contains(v)) && a.iter().any(|v| *v < -0.25) && a.iter().any(|v| *v > 0.25));
}

#[test]
fn a_dimension_of_zero_hides_no_overflow() {
    let scope = || Scope::new();
    // The whole has no elements, its parts more than fit in any number.
    for shape in [&[0, 1 << 40, 1 << 40][..], &[1 << 40, 1 << 40, 0]] {
        let p = main_of(|s| {
            s.op("fill_constant").out("Out", ["x"]).attr("shape", longs(shape)).attr("dtype", DType::F32).done();
        });
        let e = fault_of(&p, &mut scope(), Options::default());
        assert!(matches!(e.fault(), Fault::Tensor(TensorError::TooLarge { .. })), "{e}");
    }
    let outer = main_of(|s| {
        s.op("fill_constant").out("Out", ["x"]).attr("shape", longs(&[1 << 40, 0])).attr("dtype", DType::F32).done();
        s.op("fill_constant").out("Out", ["y"]).attr("shape", longs(&[0, 1 << 40])).attr("dtype", DType::F32).done();
        s.op("fill_constant").out("Out", ["g"]).attr("shape", longs(&[0])).attr("dtype", DType::F32).done();
        s.op("matmul_v2_grad").arg("X", ["x"]).arg("Y", ["y"]).arg("Out@GRAD", ["g"]).out("X@GRAD", ["dx"]).done();
    });
    let e = fault_of(&outer, &mut scope(), Options::default());
    assert!(matches!(e.fault(), Fault::Tensor(TensorError::TooLarge { .. })), "{e}");
    let deep = main_of(|s| {
        s.op("fill_constant").out("Out", ["x"]).attr("shape", longs(&[1; 65])).attr("dtype", DType::F32).done();
    });
    let e = fault_of(&deep, &mut scope(), Options::default());
    assert!(matches!(e.fault(), Fault::Tensor(TensorError::Rank { rank: 65 })), "{e}");
}

/// A loop whose body is `body`, which never ends.
fn endless(body: impl FnOnce(&mut SectionBuilder<'_>)) -> Program {
    let mut b = ProgramBuilder::new();
    b.section(Section::Main);
    let mut sub = b.sub_block(Section::Main, 0);
    body(&mut sub);
    let block = sub.index();
    let mut m = b.section(Section::Main);
    m.op("while")
        .arg("Condition", ["go"])
        .out("StepScopes", ["scopes"])
        .attr("sub_block", AttrValue::Block(block))
        .done();
    // Some op reads the scopes, so that each iteration leaves its own.
    m.op("while_grad").arg("StepScopes", ["scopes"]).attr("sub_block", AttrValue::Block(block)).done();
    b.finish()
}

#[test]
fn what_a_loop_leaves_behind_counts_as_memory() {
    let go = || {
        let mut s = Scope::new();
        s.set("go", Tensor::new(&[1], vec![true]).unwrap());
        s.set("x", f32s(&[1.0; 100]));
        s
    };
    let small = || options(|o| o.memory_limit = 1 << 20);
    // Scopes without a single variable.
    let e = fault_of(&endless(|_| {}), &mut go(), small());
    assert!(matches!(e.fault(), Fault::Memory { .. }), "{e}");
    // Values that were fetched, each of its own.
    let fetching = endless(|s| {
        s.op("scale").arg("X", ["x"]).out("Out", ["x"]).attr("bias", 1.0f32).done();
        s.op("fetch").arg("X", ["x"]).out("Out", ["fetched"]).done();
    });
    let e = fault_of(&fetching, &mut go(), small());
    assert!(matches!(e.fault(), Fault::Memory { .. }), "{e}");
}

#[test]
fn of_very_many_warnings_the_first_are_kept() {
    let p = main_of(|s| {
        s.persistable("w", DType::F16, [1]);
        s.persistable("m", DType::F32, [1]);
        for _ in 0..3000 {
            s.op("assign").arg("X", ["other"]).out("Out", ["w"]).done();
            s.op("resync")
                .arg("Param", ["w"])
                .arg("MasterParam", ["m"])
                .out("ParamOut", ["w"])
                .out("MasterParamOut", ["m"])
                .attr("dtype", DType::F16)
                .attr("direction", "both")
                .done();
        }
    });
    let mut s = Scope::new();
    s.set("other", low(&[2.0], DType::F16));
    s.set("m", f32s(&[1.0]));
    let stats = run(&p, &mut s);
    assert_eq!(stats.warnings.len(), 1001);
    assert!(stats.warnings[1000].message.contains("later ones"));
}

#[test]
fn a_file_that_a_save_replaces_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let path = path.to_str().unwrap();
    let p = main_of(|s| {
        for (from, to) in [("a", "x1"), ("b", "x2")] {
            s.op("save").arg("X", [from]).attr("file_path", path).done();
            s.op("load").out("Out", [to]).attr("file_path", path).done();
        }
        s.persistable("x1", DType::F32, [1]);
        s.persistable("x2", DType::F32, [1]);
    });
    let mut s = Scope::new();
    s.set("a", f32s(&[1.0]));
    s.set("b", f32s(&[2.0]));
    run(&p, &mut s);
    assert_eq!((s.get("x1").unwrap().to_f32_vec(), s.get("x2").unwrap().to_f32_vec()), (vec![1.0], vec![2.0]));
}
