//! How long is the whole way, file to file, beside decoding and encoding alone?
//!
//! Decode, verify, prove, `master-casts,load-order,resync`, encode, on 100,000 ops (41 MB), warm; the
//! first run of the process beside it, which pays for fresh pages. `files` runs with the allocator of the
//! command-line tool, `files_system` with the system's: the difference chose the tool's.

#[path = "mod.rs"]
mod shared;

use mastercast::analysis::coherence;
use mastercast::ir::Section;
use mastercast::paddle::proto::{Document, export, read_program};
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use shared::{synthesize, time};
use std::hint::black_box;
use std::time::Instant;

/// The bench.
pub fn run() {
    const RUNS: usize = 11;
    let ops = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(100_000);
    let bytes = synthesize(ops);
    let passes = PassManager::parse("master-casts,load-order,resync").expect("a pipeline");
    let whole = || {
        let mut p = read_program(None, Some(black_box(&bytes))).expect("a program");
        passes.run(&mut p, &mut PassCx::default(), ManagerOptions::default(), |_, _| {}).expect("it runs");
        black_box(coherence(&p));
        export(&p, Section::Main)
    };
    let start = Instant::now();
    let out = whole();
    let first = start.elapsed().as_secs_f64();
    assert!(out == bytes, "nothing is to be mended in this program");
    let alone = time(RUNS, || Document::decode(black_box(&bytes)).expect("a program").encode());
    let through =
        time(RUNS, || export(&read_program(None, Some(black_box(&bytes))).expect("a program"), Section::Main));
    let all = time(RUNS, whole);
    println!("{ops} ops, {:.1} MB", bytes.len() as f64 / 1e6);
    println!("decode + encode          {:7.1} ms", alone * 1e3);
    println!("into the IR and back     {:7.1} ms", through * 1e3);
    println!(
        "file to file             {:7.1} ms  {:.2} x decode + encode, {:.2} x into the IR and back",
        all * 1e3,
        all / alone,
        all / through
    );
    println!("                         {:7.2} M ops a second; first run {:.1} ms", ops as f64 / all / 1e6, first * 1e3);
}
