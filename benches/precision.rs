//! How long does the rewrite to mixed precision take, beside reading and writing the file, and beside Paddle?
//!
//! `cargo bench --bench precision [OPS…]`: layers of mul, add, relu, layer_norm (`tests/data/proto/fc_norm.pb`, one
//! layer of a real program repeated), O1 and O2 in float16. Medians of wall time, ratios in one run, and the exponent
//! of growth from the first size. `PEER_PYTHON=python` (with paddlepaddle 2.6.2) runs `cast_model_to_fp16` on
//! the same layers, at the first size, between two rounds of ours (`benches/peers/amp.py`; minutes at 10,000 ops).

mod shared;

use mastercast::ir::{Program, Section};
use mastercast::ops::Ops;
use mastercast::paddle::proto::{Document, export, import};
use mastercast::passes::Precision;
use mastercast::passes::precision::Level;
use shared::synthesize;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// As in the command-line tool.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn median(runs: usize, mut f: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..runs).map(|_| f()).collect();
    all.sort_by(f64::total_cmp);
    all[runs / 2]
}

fn timed<T>(f: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_secs_f64()
}

fn read(bytes: &[u8]) -> Program {
    let mut program = Program::new();
    import(bytes, Section::Main, &mut program).expect("a program");
    program
}

fn options(level: Level) -> Precision {
    Precision { level, ..Precision::default() }
}

/// Seconds of a rewrite in process, without reading, writing and cloning.
fn rewrite(program: &Program, level: Level, runs: usize) -> f64 {
    median(runs, || {
        let mut p = program.clone();
        timed(|| options(level).rewrite(&mut p, Ops::standard()).expect("a rewrite"))
    })
}

fn peer(python: &str, ops: usize, level: &str) -> Option<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/amp.py");
    let out = Command::new(python).arg(script).arg(ops.to_string()).arg(level).output().ok()?;
    let line = String::from_utf8_lossy(&out.stdout).lines().last().map(str::to_owned)?;
    let value: serde_json::Value = serde_json::from_str(&line).ok()?;
    value["rewrite_s"].as_f64()
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 100_000, 1_000_000] } else { sizes };
    println!(
        "{:>9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>11} {:>12}",
        "ops", "O1 ms", "O2 ms", "import", "export", "codec", "file O1", "file/codec", "ops/s file"
    );
    let mut first: Option<(usize, f64)> = None;
    for &size in &sizes {
        let bytes = synthesize(size);
        let runs = if size > 500_000 { 3 } else { 9 };
        let program = read(&bytes);
        let count: usize = program.section_blocks(Section::Main).map(|b| program.block(b).ops.len()).sum();
        let (o1, o2) = (rewrite(&program, Level::O1, runs), rewrite(&program, Level::O2, runs));
        let imported = median(runs, || timed(|| read(&bytes)));
        let exported = median(runs, || timed(|| export(&program, Section::Main)));
        // Decode and encode alone, as the codec does them.
        let codec = median(runs, || timed(|| Document::decode(&bytes).expect("a document").encode()));
        let file = median(runs, || {
            timed(|| {
                let mut p = read(&bytes);
                options(Level::O1).rewrite(&mut p, Ops::standard()).expect("a rewrite");
                export(&p, Section::Main)
            })
        });
        let ms = |s: f64| s * 1e3;
        println!(
            "{count:>9} {:>8.2} {:>8.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>11.2} {:>12.0}",
            ms(o1),
            ms(o2),
            ms(imported),
            ms(exported),
            ms(codec),
            ms(file),
            file / codec,
            count as f64 / file
        );
        println!("  file / (import + export) {:.2}", file / (imported + exported));
        if let Some((n, t)) = first {
            println!("  exponent from {n}: {:.2}", (o1 / t).ln() / (count as f64 / n as f64).ln());
        } else if let Ok(python) = std::env::var("PEER_PYTHON") {
            for (level, ours) in [("O1", o1), ("O2", o2)] {
                let Some(theirs) = peer(&python, size, level) else {
                    println!("  peer: could not run");
                    continue;
                };
                let again = rewrite(&program, if level == "O1" { Level::O1 } else { Level::O2 }, runs);
                let ours = (ours + again) / 2.0;
                println!("  peer {level}: {theirs:.2} s, ours {:.2} ms, {:.0} times faster", ms(ours), theirs / ours);
            }
        }
        first = first.or(Some((count, o1)));
    }
}
