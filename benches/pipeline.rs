//! How does the main job grow? The proof and the pipeline on synthetic training programs, against one clone.
//!
//! `cargo bench --bench pipeline [OPS…]`. A layer is a real shape of training program: initialisers and
//! master casts in startup, forward, backward and Adam with masters in main. One load overwrites every
//! parameter after the casts, and `amp_init` narrows them: the stale order. Medians; ratios in one run.
//! `beside/clone`: the passes less one proof (which `resync` makes), in clones of the program. `peak/own`: the
//! process's peak memory, the program itself and the bench's copy included, by the program's own.

use mastercast::analysis::coherence;
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section};
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use std::time::{Duration, Instant};

/// As in the command-line tool.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A job with about `ops` ops, startup and main together.
fn job(ops: usize) -> Program {
    let layers = ops / 16;
    let mut b = ProgramBuilder::new();
    let names: Vec<[String; 8]> = (0..layers)
        .map(|i| {
            let w = format!("fc_{i}.w_0");
            let m = format!("{w}_fp32_master_0");
            [
                w.clone(),
                m.clone(),
                format!("{m}_moment1_0"),
                format!("{m}_moment2_0"),
                format!("fc_{i}.tmp_0"),
                format!("fc_{i}.tmp_1"),
                format!("fc_{i}.tmp_0@GRAD"),
                format!("{w}@GRAD"),
            ]
        })
        .collect();
    let mut s = b.section(Section::Startup);
    for [w, m, m1, m2, ..] in &names {
        s.param(w, DType::F32, [64, 64]);
        for cell in [m, m1, m2] {
            s.persistable(cell, DType::F32, [64, 64]);
        }
    }
    let f32 = DType::F32;
    for [w, ..] in &names {
        s.op("uniform_random").out("Out", [&**w]).attr("dtype", f32).attr("min", -0.1f32).attr("max", 0.1f32).done();
    }
    for [w, m, m1, m2, ..] in &names {
        s.op("fill_constant").out("Out", [&**m]).attr("dtype", f32).attr("value", 0f32).done();
        s.op("cast").arg("X", [&**w]).out("Out", [&**m]).attr("in_dtype", f32).attr("out_dtype", f32).done();
        for a in [m1, m2] {
            s.op("fill_constant").out("Out", [&**a]).attr("dtype", f32).attr("value", 0f32).done();
        }
    }
    let params: Vec<&str> = names.iter().map(|n| &*n[0]).collect();
    s.op("load")
        .out("Out", params.iter().copied())
        .attr("file_path", "ckpt.safetensors")
        .attr("stored_dtypes", AttrValue::Ints(vec![f32.code(); params.len()].into()))
        .done();
    s.op("amp_init")
        .arg("X", params.iter().copied())
        .out("Out", params.iter().copied())
        .attr("dtype", DType::F16)
        .done();

    let mut s = b.section(Section::Main);
    s.var("x", DType::F16, [-1, 64]);
    s.persistable("learning_rate_0", f32, [1]);
    for [w, m, m1, m2, t0, t1, g0, gw] in &names {
        s.param(w, DType::F16, [64, 64]);
        for cell in [m, m1, m2] {
            s.persistable(cell, f32, [64, 64]);
        }
        for t in [t0, t1, g0, gw] {
            s.var(t, DType::F16, [-1, 64]);
        }
    }
    let mut x = "x";
    for [w, _, _, _, t0, t1, ..] in &names {
        s.op("matmul_v2").arg("X", [x]).arg("Y", [&**w]).out("Out", [&**t0]).attr("op_role", 0).done();
        s.op("relu").arg("X", [&**t0]).out("Out", [&**t1]).attr("op_role", 0).done();
        x = t1;
    }
    for [w, _, _, _, t0, _, g0, gw] in names.iter().rev() {
        for _ in 0..4 {
            s.op("relu_grad").arg("Out", [&**t0]).out("X@GRAD", [&**g0]).attr("op_role", 1).done();
        }
        s.op("matmul_v2_grad")
            .arg("Out@GRAD", [&**g0])
            .arg("Y", [&**w])
            .out("Y@GRAD", [&**gw])
            .attr("op_role", 1)
            .done();
        s.op("scale").arg("X", [&**gw]).out("Out", [&**gw]).attr("op_role", 2).done();
    }
    for [w, m, m1, m2, _, _, _, gw] in &names {
        s.op("adam")
            .arg("Param", [&**w])
            .arg("Grad", [&**gw])
            .arg("LearningRate", ["learning_rate_0"])
            .arg("Moment1", [&**m1])
            .arg("Moment2", [&**m2])
            .arg("MasterParam", [&**m])
            .out("ParamOut", [&**w])
            .out("Moment1Out", [&**m1])
            .out("Moment2Out", [&**m2])
            .out("MasterParamOut", [&**m])
            .attr("multi_precision", true)
            .attr("op_role", 2)
            .attr("op_role_var", AttrValue::strs([&**w, &**gw]))
            .done();
    }
    b.finish()
}

fn median(runs: usize, mut f: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..runs).map(|_| f()).collect();
    all.sort_unstable();
    all[runs / 2]
}

fn timed<T>(f: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let out = f();
    (start.elapsed(), out)
}

/// Peak resident bytes of this process so far.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 100_000, 1_000_000] } else { sizes };
    let manager = PassManager::parse("master-casts,load-order,resync").expect("a pipeline");
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "ops", "clone ms", "proof", "verified", "m-casts", "l-order", "resync", "beside/clone", "peak/own"
    );
    let mut first: Option<(usize, f64, f64)> = None;
    for ops in sizes {
        let own = peak();
        let program = job(ops);
        let count: usize = program.block_ids().map(|b| program.block(b).ops.len()).sum();
        let own = (peak().max(own) - own).max(program.pool_bytes() as u64);
        let runs = if ops > 500_000 { 3 } else { 7 };
        let clone = median(runs, || timed(|| program.clone()).0);
        let proof = median(runs, || timed(|| coherence(&program)).0);
        let mut times = [Duration::ZERO; 3];
        let mut whole = Vec::new();
        for _ in 0..runs {
            let mut p = program.clone();
            let options = ManagerOptions { verify_each: false, stop_after: None };
            let (t, report) = timed(|| manager.run(&mut p, &mut PassCx::default(), options, |_, _| {}).expect("runs"));
            whole.push((t, [report.passes[0].time, report.passes[1].time, report.passes[2].time]));
            assert!(coherence(&p).proved());
        }
        whole.sort_unstable();
        times.copy_from_slice(&whole[runs / 2].1);
        let verified = median(1, || {
            let mut p = program.clone();
            timed(|| manager.run(&mut p, &mut PassCx::default(), ManagerOptions::default(), |_, _| {}).expect("runs")).0
        });
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let passes = times.iter().sum::<Duration>();
        println!(
            "{count:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>12.2} {:>8.2}",
            ms(clone),
            ms(proof),
            ms(verified),
            ms(times[0]),
            ms(times[1]),
            ms(times[2]),
            (ms(passes) - ms(proof)) / ms(clone),
            peak() as f64 / own as f64,
        );
        if let Some((n, p, q)) = first {
            let grow = |a: f64, b: f64| (b / a).ln() / (count as f64 / n as f64).ln();
            println!("  growth from {n}: proof {:.2}, passes {:.2}", grow(p, ms(proof)), grow(q, ms(passes)));
        }
        first = first.or(Some((count, ms(proof), ms(passes))));
    }
}
