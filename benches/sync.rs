//! Are `resync` and `amp_init` as fast as memory? The interpreter on one pair of 256 MB, against a copy.
//!
//! `cargo bench --bench sync`. Bytes counted: read + written. Medians; ratios in one run.

mod shared;

use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, ProgramBuilder, Section};
use shared::median;
use std::hint::black_box;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const N: usize = 64 << 20;

fn program(low: DType, what: &str) -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Startup);
    s.param("w", low, [N as i64]);
    s.persistable("m", DType::F32, [N as i64]);
    match what {
        "amp_init" => s.op("amp_init").arg("X", ["w"]).out("Out", ["w"]).attr("dtype", low).done(),
        direction => s
            .op("resync")
            .arg("Param", ["w"])
            .arg("MasterParam", ["m"])
            .out("ParamOut", ["w"])
            .out("MasterParamOut", ["m"])
            .attr("dtype", low)
            .attr("direction", direction)
            .done(),
    };
    b.finish()
}

fn main() {
    let wide = Tensor::new(&[N], (0..N).map(|i| i as f32 * 1e-6).collect::<Vec<f32>>()).expect("a tensor");
    let src = vec![1u8; 4 * N];
    let mut dst = vec![0u8; 4 * N];
    let copy = median(
        (0..7)
            .map(|_| {
                let t = Instant::now();
                dst.copy_from_slice(black_box(&src));
                t.elapsed().as_secs_f64()
            })
            .collect(),
    );
    let copy_rate = 8.0 * N as f64 / copy / 1e9;
    println!("copy {copy_rate:.1} GB/s");
    drop((src, dst));
    for low in [DType::F16, DType::BF16] {
        // bytes read + written an element: narrow 4 + 2; widen 2 + 4, and the parameter stays
        for (what, start, bytes) in
            [("amp_init", wide.clone(), 6.0), ("master", wide.clone(), 6.0), ("param", wide.clone(), 6.0)]
        {
            let program = program(low, what);
            let mut interpreter = Interpreter::new(&program);
            let mut times = Vec::new();
            let mut scope = Scope::new();
            for _ in 0..7 {
                // The cells own their memory, as after a load.
                scope.set("w", deep(&start));
                scope.set("m", deep(&wide));
                let t = Instant::now();
                interpreter.run(Section::Startup, &mut scope).expect("runs");
                times.push(t.elapsed().as_secs_f64());
            }
            let rate = bytes * N as f64 / median(times) / 1e9;
            println!("{low} {what:9} {rate:.1} GB/s, {:.2} of a copy", rate / copy_rate);
        }
    }
}

fn deep(t: &Tensor) -> Tensor {
    Tensor::from_bytes(t.dtype(), t.shape(), &t.to_bytes()).expect("the same tensor")
}
