//! Do loops and branches, forward and backward, compute what Paddle computed?

use mastercast::ckpt;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::Section;
use mastercast::paddle::proto::read_program;
use serde_json::Value;
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/control", name].iter().collect()
}

fn tensors(name: &str) -> Vec<(String, Tensor)> {
    let file = ckpt::open(&data(name)).unwrap();
    let read = |(i, e): (usize, &ckpt::TensorEntry)| {
        let shape: Vec<usize> = e.shape.iter().map(|&d| d as usize).collect();
        (e.name.clone(), Tensor::from_bytes(e.dtype, &shape, &file.read(i).unwrap()).unwrap())
    };
    file.entries().iter().enumerate().map(read).collect()
}

fn check(stem: &str) {
    let bytes = |name: String| std::fs::read(data(&name)).unwrap();
    let startup = bytes(format!("startup.{stem}.train.fp32.pb"));
    let program = read_program(Some(&startup), Some(&bytes(format!("{stem}.train.fp32.pb")))).unwrap();
    let known: Value = serde_json::from_slice(&bytes("losses.json".into())).unwrap();
    let loss = known[stem]["name"].as_str().unwrap();
    let mut scope = Scope::new();
    let mut interp = Interpreter::new(&program);
    interp.run(Section::Startup, &mut scope).unwrap();
    for (name, value) in tensors(&format!("{stem}.params.safetensors")) {
        scope.set(&name, value);
    }
    let cells = scope.len();
    let feeds = tensors(&format!("{stem}.feeds.safetensors"));
    let wanted = known[stem]["losses"].as_array().unwrap();
    assert_eq!(wanted.len(), 3);
    for (i, want) in wanted.iter().enumerate() {
        let got = interp.run_with(Section::Main, &mut scope, &feeds, &[loss]).unwrap().values[0].to_f32_vec()[0];
        let want = want.as_f64().unwrap() as f32;
        assert!((got - want).abs() <= 1e-6 * want, "{stem} step {i}: {got} for {want}");
    }
    assert_eq!(scope.len(), cells, "step scopes are dropped with the run");
    let wanted = tensors(&format!("{stem}.final.safetensors"));
    assert!(wanted.len() > 10);
    for (name, want) in wanted {
        let got = scope.get(&name).unwrap_or_else(|| panic!("{stem}: {name} has no value"));
        assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{stem} {name}");
        for (g, w) in got.to_f32_vec().into_iter().zip(want.to_f32_vec()) {
            assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{stem} {name}: {g} for {w}");
        }
    }
}

#[test]
fn branches_and_their_gradients() {
    check("cond");
}

#[test]
fn a_loop_and_its_gradient() {
    check("while_loop");
}
