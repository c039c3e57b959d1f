//! How long does a training step take? mlp 784-256-128-10 and lenet, batch 64, float32, Adam, one thread.
//!
//! `cargo bench --bench train [STEPS]`; with PROFILE set, also the time by op kind. Medians of single steps, and the same products and update alone, to
//! which the step is set in proportion: matrix products by the same library, and a copy of the bytes that the
//! update moves.

#[path = "../tests/models/mod.rs"]
mod models;

use mastercast::interp::{Interpreter, Profile, Scope, Tensor};
use mastercast::ir::Section;
use models::archive::Archive;
use std::time::Instant;

/// As in the command-line tool.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn feeds(shape: &[usize]) -> Vec<(String, Tensor)> {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let y: Vec<i64> = (0..64).map(|i| i % 10).collect();
    vec![("x".into(), Tensor::new(shape, x).unwrap()), ("y".into(), Tensor::new(&[64, 1], y).unwrap())]
}

fn median(mut v: Vec<f64>) -> (f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[v.len() / 2], v[0])
}

fn main() {
    let steps: usize = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(200);
    let archive = Archive::open();
    for (name, shape) in [("mlp", &[64, 784][..]), ("lenet", &[64, 1, 28, 28])] {
        let run = archive.run(&format!("bench_{name}"), "train");
        let mut scope = Scope::new();
        let mut interp = Interpreter::new(&run.program);
        interp.run(Section::Startup, &mut scope).unwrap();
        let (feeds, fetch) = (feeds(shape), [run.fetch[0].as_str()]);
        let mut times = Vec::new();
        for step in 0..steps + 20 {
            let start = Instant::now();
            interp.run_with(Section::Main, &mut scope, &feeds, &fetch).unwrap();
            if step >= 20 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let (mid, least) = median(times);
        if std::env::var_os("PROFILE").is_some() {
            let mut profile = Profile::default();
            for _ in 0..steps {
                interp.run_observed(Section::Main, &mut scope, &feeds, &fetch, &mut profile).unwrap();
            }
            let mut rows: Vec<_> = profile.kinds.iter().collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.1.time));
            for (kind, cost) in rows.into_iter().take(14) {
                let us = cost.time.as_secs_f64() * 1e6 / steps as f64;
                println!("  {kind:34} {us:8.1} us a step");
            }
        }
        println!("{name}: {mid:.3} ms a step, least {least:.3}");
    }
}
