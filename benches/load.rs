//! How long does a load take, beside a plain read of the same file in the same run?
//!
//! A float32 checkpoint of 400 tensors, warm (2 GB; `cargo bench --bench load -- MEGABYTES` for another size), into
//! float16 parameters, and into parameters and float32 masters, with one and two threads, from each format; then
//! opening, one tensor of 400, metadata of 100,000 keys, and a plan of 100,000 tensors in 1,000 files.

#[path = "shared/mod.rs"]
mod shared;

use mastercast::ckpt::names::Rules;
use mastercast::ckpt::plan::{Cell, Policy, Role};
use mastercast::ckpt::rect::Rect;
use mastercast::ckpt::shards::{Want, plan_shards};
use mastercast::ckpt::{self, Checkpoint, DistFlavour, DistMetadata, DistShard, DistTensor, DistWriter, TensorData};
use mastercast::interp::Scope;
use mastercast::ir::DType;
use mastercast::state::Load;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

const RUNS: usize = 5;

fn names() -> impl Iterator<Item = String> {
    (0..400).map(|i| format!("layers.{i}.weight"))
}

/// Shapes: half of the tensors hold most of it.
fn shape(i: usize, megabytes: usize) -> Vec<u64> {
    let scale = |n: usize| ((n as f64 * (megabytes as f64 / 2000.0).sqrt()) as u64).max(1);
    match i {
        0..200 => vec![scale(1500), scale(1500)],
        200..300 => vec![scale(500), scale(1000)],
        _ => vec![1536],
    }
}

fn plain_read(path: &Path, threads: u64) {
    let len = std::fs::metadata(path).expect("it is there").len();
    std::thread::scope(|s| {
        for t in 0..threads {
            s.spawn(move || {
                use std::os::unix::fs::FileExt;
                let file = File::open(path).expect("it opens");
                let mut buffer = vec![0; 1 << 20];
                let (mut at, end) = (len * t / threads, len * (t + 1) / threads);
                while at < end {
                    let n = buffer.len().min((end - at) as usize);
                    file.read_exact_at(&mut buffer[..n], at).expect("it reads");
                    at += n as u64;
                }
                black_box(&buffer);
            });
        }
    });
}

/// Cells of float16 parameters, each with a master if asked for.
fn cells(ckpt: &dyn Checkpoint, masters: bool) -> Vec<Cell> {
    let mut out = Vec::new();
    for e in ckpt.entries() {
        let at = out.len();
        let shape: Vec<i64> = e.shape.iter().map(|&d| d as i64).collect();
        let master = masters.then_some(at + 1);
        let cell = |name: String, role, dtype| Cell { name, role, dtype, also: Some(DType::F32), shape: shape.clone() };
        out.push(cell(e.name.clone(), Role::Param { master }, DType::F16));
        if masters {
            out.push(cell(format!("{}_fp32_master_0", e.name), Role::Master { param: at }, DType::F32));
        }
    }
    out
}

fn load(path: &Path, masters: bool, threads: usize) -> Scope {
    let ckpt = ckpt::open(path).expect("it opens");
    let load = Load::plan_cells(cells(&*ckpt, masters), &[&*ckpt], Policy::default());
    let mut scope = Scope::new();
    load.run(&mut scope, threads, &|_| ()).expect("it loads");
    scope
}

/// The least of some runs: a shared machine only ever adds.
fn best(mut f: impl FnMut()) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// The least time of some loads, each in a process of its own, as a job's load is: what an allocator has kept from
/// the load before does not count. The time is that of the load, without the process.
fn cold(path: &Path, masters: bool, threads: usize) -> (f64, f64) {
    let exe = std::env::current_exe().expect("it runs");
    let once = || {
        let mut child = std::process::Command::new(&exe);
        child.args(["--one", if masters { "masters" } else { "low" }, &threads.to_string()]).arg(path);
        let out = String::from_utf8(child.output().expect("it runs").stdout).expect("numbers");
        let mut numbers = out.split_whitespace().map(|n| n.parse::<f64>().expect("a number"));
        (numbers.next().expect("seconds"), numbers.next().expect("megabytes"))
    };
    (0..RUNS).map(|_| once()).min_by(|a, b| a.0.total_cmp(&b.0)).expect("some runs")
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--one") {
        let (masters, threads) = (args[at + 1] == "masters", args[at + 2].parse().expect("a number"));
        let start = Instant::now();
        let scope = load(Path::new(&args[at + 3]), masters, threads);
        println!("{} {}", start.elapsed().as_secs_f64(), peak_mb() - scope.bytes() as f64 / 1048576.0);
        return;
    }
    let megabytes = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(2000);
    let dir = tempfile::tempdir().expect("a directory");
    let paths = ["m.safetensors", "m.pdparams", "dist"].map(|n| dir.path().join(n));
    {
        // One buffer of noise serves every tensor.
        let most = shape(0, megabytes).iter().product::<u64>() as usize;
        let mut x = 1u32;
        let noise: Vec<u8> = (0..most.max(1536))
            .flat_map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((x >> 8) as f32 / 16_777_216.0 - 0.5).to_le_bytes()
            })
            .collect();
        let tensors = || {
            names().enumerate().map(|(i, n)| {
                let shape = shape(i, megabytes);
                let len = shape.iter().product::<u64>() as usize * 4;
                TensorData::new(n, DType::F32, shape, &noise[..len])
            })
        };
        ckpt::write_safetensors(&paths[0], tensors(), &Default::default()).expect("it is written");
        ckpt::write_pickle(&paths[1], tensors(), &Default::default()).expect("it is written");
        let mut w = DistWriter::create(&paths[2], DistFlavour::V3).expect("it is made");
        w.whole(tensors()).expect("it is written");
        w.finish().expect("it is written");
    }
    let bytes = std::fs::metadata(&paths[0]).expect("it is there").len();
    println!("{} MB, 400 tensors, float32, warm; best of {RUNS}", bytes / 1_000_000);
    for threads in [1, 2] {
        let plain = best(|| plain_read(&paths[0], threads as u64));
        println!("{threads} thread(s): plain read {plain:.3} s, {:.1} GB/s", bytes as f64 / plain / 1e9);
        for path in &paths {
            let format = path.file_name().unwrap_or_default().to_string_lossy();
            for (what, masters) in [("into f16", false), ("with masters", true)] {
                let (wall, extra) = cold(path, masters, threads);
                let ratio = wall / plain;
                println!(
                    "  {format:14} {what:12} {wall:.3} s = {ratio:.2} x plain; peak {extra:.0} MB above the target"
                );
            }
        }
    }
    let whole = best(|| drop(black_box(load(&paths[0], false, 1))));
    for path in &paths {
        let opening = best(|| drop(black_box(ckpt::open(path).expect("it opens"))));
        let one = best(|| {
            let ckpt = ckpt::open(path).expect("it opens");
            let i = ckpt.find("layers.7.weight").expect("it is there");
            let mut sum = 0u64;
            ckpt.read(i).expect("it reads").iter().step_by(4096).for_each(|&b| sum += u64::from(b));
            black_box(sum);
        });
        let format = path.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "{format:16} open {:.3} ms; open and one of 400 tensors {:.3} ms = 1/{:.0} of the whole",
            opening * 1e3,
            one * 1e3,
            whole / one
        );
    }

    // Metadata of 100,000 keys.
    let many = dir.path().join("many");
    let mut w = DistWriter::create(&many, DistFlavour::V3).expect("it is made");
    w.whole((0..100_000).map(|i| TensorData::new(format!("model.layers.{i}.weight"), DType::U8, vec![1], vec![0u8])))
        .expect("it is written");
    let metadata = w.finish().expect("it is written");
    let mut plain = Vec::new();
    File::open(&metadata).and_then(|mut f| f.read_to_end(&mut plain)).expect("it reads");
    let reading = best(|| drop(black_box(DistMetadata::open(&metadata).expect("it opens"))));
    println!(
        "metadata of 100,000 keys, {:.1} MB: {:.1} ms (paddle.load of 3.3.1: 870 ms of processor time)",
        plain.len() as f64 / 1e6,
        reading * 1e3
    );
    if let Ok(keep) = std::env::var("KEEP_METADATA") {
        std::fs::copy(&metadata, keep).expect("it is copied");
    }

    // A plan of 100,000 tensors of 10 shards each, in 1,000 files, for 8 ranks that want a slice of each.
    let files: Vec<String> = (0..1000).map(|r| format!("{r}_0.distcp")).collect();
    let tensors = (0..100_000).map(|i: usize| {
        let shard = |k: usize| DistShard {
            rect: Rect { offset: vec![k as u64 * 8, 0], shape: vec![8, 64] },
            flat: None,
            file: (i * 7 + k * 100) % 1000,
        };
        DistTensor {
            key: format!("layers.{i}.weight"),
            dtype: Some(DType::F32),
            shape: vec![80, 64],
            shards: (0..10).map(shard).collect(),
        }
    });
    let metadata = DistMetadata { id: 0, tensors: tensors.collect(), files: files.clone() };
    let wants: Vec<Want> = metadata
        .tensors
        .iter()
        .enumerate()
        .map(|(i, t)| Want {
            rank: i % 8,
            name: t.key.clone(),
            rect: Some(Rect { offset: vec![4, 0], shape: vec![70, 64] }),
        })
        .collect();
    let visible = vec![files; 8];
    for n in [25_000, 50_000, 100_000] {
        let start = Instant::now();
        let plan = plan_shards(&metadata, &wants[..n], &visible, &Rules::default());
        let took = start.elapsed().as_secs_f64();
        assert!(plan.is_ok());
        println!(
            "plan of {n} of 100,000 tensors x 10 shards in 1,000 files: {took:.2} s, {} pieces",
            plan.pieces.len()
        );
    }
}
