//! How fast is the ProgramDesc codec, beside a copy of the bytes and beside Python's upb protobuf?
//!
//! `cargo bench --bench proto [-- N_OPS]` measures 100,000 ops (41 MB) made from `tests/data/proto/fc_norm.pb`:
//! one layer of a real program repeated with names of its own. Medians of wall time; every result is
//! compared with the input. `PEER_PYTHON=python` (with a `framework_pb2` to import, see
//! `benches/peers/proto.py`) runs the peer on the same file between two rounds of ours and prints the ratios.

mod shared;

use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::{Document, export, import, read_program};
use shared::{peak, synthesize, time};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;

const RUNS: usize = 15;

struct Speeds {
    copy: f64,
    decode: f64,
    encode: f64,
    import: f64,
    export: f64,
}

fn ours(bytes: &[u8]) -> Speeds {
    let mb = bytes.len() as f64 / 1e6;
    let doc = Document::decode(bytes).expect("a program");
    assert!(doc.encode() == bytes);
    let program = read_program(None, Some(bytes)).expect("a program");
    assert!(export(&program, Section::Main) == bytes);
    Speeds {
        copy: mb / time(RUNS, || black_box(bytes).to_vec()),
        decode: mb / time(RUNS, || Document::decode(black_box(bytes)).expect("a program")),
        encode: mb / time(RUNS, || doc.encode()),
        import: mb
            / time(RUNS, || {
                let mut p = Program::new();
                import(black_box(bytes), Section::Main, &mut p).expect("a program");
                p
            }),
        export: mb / time(RUNS, || export(&program, Section::Main)),
    }
}

/// Decode and encode MB/s of the peer.
fn peer(python: &str, file: &Path) -> Option<(String, f64, f64)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/proto.py");
    let out = Command::new(python).arg(script).arg(file).arg(RUNS.to_string()).output().ok()?;
    if !out.status.success() {
        eprintln!("peer: {}", String::from_utf8_lossy(&out.stderr));
        return None;
    }
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    assert_eq!(v["bytes_equal"], true, "the peer writes other bytes: {v}");
    Some((v["lib"].as_str()?.to_string(), v["decode_mbps"].as_f64()?, v["encode_mbps"].as_f64()?))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [step, file] = &args[..] {
        // A process of its own for each peak: the file read, then what the step makes.
        let bytes = std::fs::read(file).expect("the file");
        match step.as_str() {
            "peak-read" => drop(black_box(bytes)),
            "peak-decode" => drop(black_box(Document::decode(&bytes).map(|d| d.block_count()))),
            "peak-import" => drop(black_box(read_program(None, Some(&bytes)))),
            "peak-both" => {
                let p = read_program(None, Some(&bytes)).expect("a program");
                drop(black_box(export(&p, Section::Main)));
            }
            other => panic!("no step {other}"),
        }
        return println!("{}", peak().unwrap_or(0));
    }
    let ops = args.first().map_or(100_000, |a| a.parse().expect("a number of ops"));
    let bytes = synthesize(ops);
    println!("{ops} ops, {:.1} MB", bytes.len() as f64 / 1e6);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proto-bench.pb");
    std::fs::write(&file, &bytes).expect("a place for the file");

    let before = ours(&bytes);
    let theirs = std::env::var("PEER_PYTHON").ok().and_then(|p| peer(&p, &file));
    let after = ours(&bytes);
    let (peer_decode, peer_encode) = theirs.as_ref().map_or((None, None), |t| (Some(t.1), Some(t.2)));
    let row = |what: &str, a: f64, b: f64, peer: Option<f64>| {
        let speed = (a + b) / 2.0;
        let copy = (before.copy + after.copy) / 2.0;
        let ratio = peer.map_or(String::new(), |p| format!("  {:5.2} x peer", speed / p));
        println!("{what:10} {a:6.0} {b:6.0} MB/s  {:5.2} of copy{ratio}", speed / copy);
    };
    row("copy", before.copy, after.copy, None);
    row("decode", before.decode, after.decode, peer_decode);
    row("encode", before.encode, after.encode, peer_encode);
    row("import", before.import, after.import, peer_decode);
    row("export", before.export, after.export, peer_encode);
    match theirs {
        Some((lib, decode, encode)) => println!("peer {lib}: decode {decode:.0}, encode {encode:.0} MB/s"),
        None => println!("peer: not run (PEER_PYTHON)"),
    }
    let this = std::env::current_exe().expect("this program");
    for step in ["peak-read", "peak-decode", "peak-import", "peak-both"] {
        let out = Command::new(&this).arg(step).arg(&file).output().expect("this program again");
        let peak: usize = String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number");
        println!("{step:12} {:4.0} MB, {:.2} of the file", peak as f64 / 1e6, peak as f64 / bytes.len() as f64);
    }
}
