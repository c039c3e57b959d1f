//! Does a run compute what Paddle computed? Training steps of a real program, float32 and O2.

use mastercast::ckpt;
use mastercast::convert::Narrowing;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, Section};
use mastercast::paddle::proto::read_program;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const LOSS: &str = "mean_0.tmp_0";
const STEPS: usize = 3;
const PARAMS: [&str; 4] = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];

fn data(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let here = dir.join("mlp").join(name);
    if here.exists() { here } else { dir.join("orders").join(name) }
}

fn program(stem: &str) -> Program {
    // An AdamW startup program has the bytes of Adam's.
    let startup = data(&format!("startup.{}.pb", stem.trim_end_matches(".adamw")));
    let main = data(&format!("{stem}.pb"));
    read_program(Some(&std::fs::read(startup).unwrap()), Some(&std::fs::read(main).unwrap())).unwrap()
}

fn tensors(name: &str) -> BTreeMap<String, Tensor> {
    let file = ckpt::open(&data(name)).unwrap();
    let read = |(i, e): (usize, &ckpt::TensorEntry)| {
        let shape: Vec<usize> = e.shape.iter().map(|&d| d as usize).collect();
        (e.name.clone(), Tensor::from_bytes(e.dtype, &shape, &file.read(i).unwrap()).unwrap())
    };
    file.entries().iter().enumerate().map(read).collect()
}

fn feeds() -> Vec<(String, Tensor)> {
    tensors("feeds.safetensors").into_iter().collect()
}

fn master(param: &str) -> String {
    format!("{param}_fp32_master_0")
}

/// A scope after startup, with the initial values of the recorded run: what `amp_init` leaves when
/// parameters and masters were loaded before it. The loss scale is 1024: with the program's own 65536
/// the gradient of the loss is infinite in float16, and the first step is always skipped.
fn start(program: &Program, low: Option<DType>) -> Scope {
    let mut scope = Scope::new();
    Interpreter::new(program).run(Section::Startup, &mut scope).unwrap();
    for (name, value) in tensors("params.safetensors") {
        if scope.get(&name).is_some() {
            scope.set(&name, value);
        }
    }
    if let Some(low) = low {
        for param in PARAMS {
            let value = scope.get(param).unwrap().clone();
            scope.set(param, value.cast(low, Narrowing::NearestEven).unwrap());
            scope.set(&master(param), value);
        }
        scope.set("loss_scaling_0", scale(1024.0));
    }
    scope
}

fn scale(value: f32) -> Tensor {
    Tensor::new(&[1], vec![value]).unwrap()
}

fn number(t: &Tensor) -> f32 {
    assert_eq!(t.len(), 1);
    t.to_f32_vec()[0]
}

fn step(interp: &mut Interpreter<'_>, scope: &mut Scope, feeds: &[(String, Tensor)]) -> f32 {
    number(&interp.run_with(Section::Main, scope, feeds, &[LOSS]).unwrap().values[0])
}

fn losses_of(stem: &str) -> Vec<f32> {
    let all: BTreeMap<String, Vec<f32>> = serde_json::from_slice(&std::fs::read(data("losses.json")).unwrap()).unwrap();
    all[stem].clone()
}

#[test]
fn float32_steps_give_the_numbers_of_paddle() {
    for stem in ["train.fp32", "train.fp32.sgd", "train.fp32.momentum"] {
        let program = program(stem);
        let mut scope = start(&program, None);
        let mut interp = Interpreter::new(&program);
        for (i, want) in losses_of(stem).into_iter().enumerate() {
            let got = step(&mut interp, &mut scope, &feeds());
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{stem} step {i}: {got} for {want}");
        }
        let wanted = tensors(&format!("{stem}.final.safetensors"));
        assert!(PARAMS.iter().all(|p| wanted.contains_key(*p)));
        for (name, want) in wanted {
            let got = scope.get(&name).unwrap_or_else(|| panic!("{stem}: {name} has no value"));
            assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{stem} {name}");
            for (g, w) in got.to_f32_vec().into_iter().zip(want.to_f32_vec()) {
                assert!((g - w).abs() <= 1e-5, "{stem} {name}: {g} for {w}");
            }
        }
    }
}

/// Startup's values alone, which are this crate's own random ones, differ from the recorded ones.
#[test]
fn the_recorded_parameters_are_what_is_compared() {
    let program = program("train.fp32");
    let mut scope = Scope::new();
    Interpreter::new(&program).run(Section::Startup, &mut scope).unwrap();
    let mut interp = Interpreter::new(&program);
    let got = step(&mut interp, &mut scope, &feeds());
    assert!((got - losses_of("train.fp32")[0]).abs() > 1e-3);
}

fn each_o2(mut f: impl FnMut(&str, &str, DType)) {
    for (text, low) in [("fp16", DType::F16), ("bf16", DType::BF16)] {
        for optimizer in ["", ".sgd", ".momentum", ".adamw"] {
            f(&format!("train.O2.{text}{optimizer}"), optimizer, low);
        }
    }
}

fn assert_in_step(scope: &Scope, low: DType, what: &str) {
    for param in PARAMS {
        let (p, m) = (scope.get(param).unwrap(), scope.get(&master(param)).unwrap());
        assert_eq!((p.dtype(), m.dtype()), (low, DType::F32), "{what} {param}");
        assert!(p.bits_eq(&m.cast(low, Narrowing::NearestEven).unwrap()), "{what} {param}");
    }
}

#[test]
fn o2_steps_keep_pairs_in_step_and_follow_the_float32_curve() {
    each_o2(|stem, optimizer, low| {
        let float32 = program(&format!("train.fp32{optimizer}"));
        let mut reference = start(&float32, None);
        let mut exact = Interpreter::new(&float32);
        let o2 = program(stem);
        let mut scope = start(&o2, Some(low));
        let mut interp = Interpreter::new(&o2);
        let before: Vec<Tensor> = PARAMS.iter().map(|p| scope.get(&master(p)).unwrap().clone()).collect();
        for i in 0..STEPS {
            let want = step(&mut exact, &mut reference, &feeds());
            let got = step(&mut interp, &mut scope, &feeds());
            // Half a unit in the last place of a few operations: 11 bits, 8 bits.
            let close = if low == DType::F16 { 0.002 } else { 0.02 };
            assert!((got - want).abs() <= close * want, "{stem} step {i}: {got} for {want}");
            assert_in_step(&scope, low, &format!("{stem} after step {i}"));
        }
        for (param, old) in PARAMS.iter().zip(before) {
            assert!(!scope.get(&master(param)).unwrap().bits_eq(&old), "{stem}: {param} has not moved");
            let (m, r) = (scope.get(&master(param)).unwrap(), reference.get(param).unwrap());
            for (m, r) in m.to_f32_vec().into_iter().zip(r.to_f32_vec()) {
                assert!((m - r).abs() <= 2e-3, "{stem} {param}: {m} for {r}");
            }
        }
    });
}

/// A learning rate of 0 moves nothing, so a pair that is in step stays what it was, bit for bit.
#[test]
fn a_step_with_learning_rate_0_changes_no_pair() {
    each_o2(|stem, _, low| {
        let o2 = program(stem);
        let mut scope = start(&o2, Some(low));
        scope.set("learning_rate_0", Tensor::zeros(DType::F32, scope.get("learning_rate_0").unwrap().shape()).unwrap());
        let before = scope.clone();
        step(&mut Interpreter::new(&o2), &mut scope, &feeds());
        for param in PARAMS.iter().flat_map(|p| [(*p).to_owned(), master(p)]) {
            assert!(scope.get(&param).unwrap().bits_eq(before.get(&param).unwrap()), "{stem} {param}");
        }
    });
}

/// A stale master undoes a loaded parameter at the first step, even with learning rate 0.
#[test]
fn a_stale_master_shows_at_the_first_step() {
    let o2 = program("train.O2.fp16");
    let mut scope = start(&o2, Some(DType::F16));
    scope.set("learning_rate_0", Tensor::new(&[1], vec![0f32]).unwrap());
    let loaded = Tensor::new(&[1], vec![half::f16::from_f32(3.0)]).unwrap();
    scope.set_loaded("fc_1.b_0", loaded.clone());
    step(&mut Interpreter::new(&o2), &mut scope, &feeds());
    assert!(!scope.get("fc_1.b_0").unwrap().bits_eq(&loaded));
}

/// Gradients of 65536 × the loss's: infinite in float16.
#[test]
fn an_overflow_is_skipped_and_halves_the_scale() {
    for optimizer in ["", ".adamw"] {
        let o2 = program(&format!("train.O2.fp16{optimizer}"));
        let mut scope = start(&o2, Some(DType::F16));
        let mut interp = Interpreter::new(&o2);
        step(&mut interp, &mut scope, &feeds());
        assert_eq!(scope.get("num_good_steps_0").unwrap().to_i64_vec(), [1]);
        scope.set("loss_scaling_0", scale(65536.0));
        let before = scope.clone();
        step(&mut interp, &mut scope, &feeds());
        assert_eq!(number(scope.get("loss_scaling_0").unwrap()), 32768.0);
        assert_eq!(scope.get("num_good_steps_0").unwrap().to_i64_vec(), [0]);
        let state = |n: &str| !n.starts_with("loss_scaling") && !n.starts_with("num_");
        assert!(before.iter().filter(|(n, _)| state(n)).count() > 20);
        for (name, old) in before.iter().filter(|(n, _)| state(n)) {
            assert!(scope.get(name).unwrap().bits_eq(old), "{optimizer}: {name} changed in a skipped step");
        }
        // And the next step is a good one again.
        step(&mut interp, &mut scope, &feeds());
        assert_eq!(scope.get("num_good_steps_0").unwrap().to_i64_vec(), [1]);
        assert!(!scope.get("fc_0.w_0").unwrap().bits_eq(before.get("fc_0.w_0").unwrap()));
    }
}

/// SGD and Momentum have no `SkipUpdate`: gradients are zeroed, so momentum still moves.
#[test]
fn an_overflow_without_skip_update_zeroes_the_gradients() {
    for (optimizer, moves) in [("sgd", false), ("momentum", true)] {
        let o2 = program(&format!("train.O2.fp16.{optimizer}"));
        let mut scope = start(&o2, Some(DType::F16));
        let mut interp = Interpreter::new(&o2);
        step(&mut interp, &mut scope, &feeds());
        scope.set("loss_scaling_0", scale(65536.0));
        let before = scope.clone();
        step(&mut interp, &mut scope, &feeds());
        assert_eq!(number(scope.get("loss_scaling_0").unwrap()), 32768.0);
        let name = master("fc_0.w_0");
        assert_eq!(!scope.get(&name).unwrap().bits_eq(before.get(&name).unwrap()), moves, "{optimizer}");
        assert_in_step(&scope, DType::F16, optimizer);
    }
}

/// The bits of one step, so that a change of rounding or order anywhere is seen.
#[test]
fn equal_runs_give_equal_bits() {
    each_o2(|stem, _, low| {
        let o2 = program(stem);
        let run = || {
            let mut scope = start(&o2, Some(low));
            step(&mut Interpreter::new(&o2), &mut scope, &feeds());
            scope
        };
        let (a, b) = (run(), run());
        assert_eq!(a.len(), b.len());
        for (name, t) in a.iter() {
            assert!(t.bits_eq(b.get(name).unwrap()), "{stem} {name}");
        }
    });
}

#[test]
fn temporaries_and_feeds_are_dropped_after_a_run() {
    let program = program("train.fp32");
    let mut scope = start(&program, None);
    let before: Vec<String> = scope.iter().map(|(n, _)| n.to_owned()).collect();
    step(&mut Interpreter::new(&program), &mut scope, &feeds());
    let after: Vec<String> = scope.iter().map(|(n, _)| n.to_owned()).collect();
    assert_eq!(before, after);
    assert!(after.windows(2).all(|w| w[0] < w[1]), "sorted by name");
}
