//! Does the old checkpoint stay whole when a writer is killed, or the disk is full, at any point?
//!
//! A limit on the size of files ends a writer at an exact byte: by a signal, as a kill does, or, with the signal
//! ignored, by an error, as a full disk does. SIGKILL after some time hits what lies between.
#![cfg(unix)]

use mastercast::ckpt::{self, DistFlavour, DistWriter, TensorData};
use mastercast::ir::DType;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const EXE: &str = env!("CARGO_BIN_EXE_mastercast");

/// Some tensors whose every element is `value`.
fn tensors(value: f32, count: usize, len: usize) -> Vec<TensorData<'static>> {
    let names = (0..count).map(|i| format!("w{i}"));
    let data: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), len).flatten().collect();
    names.map(|n| TensorData::new(n, DType::F32, vec![len as u64], data.clone())).collect()
}

/// The value that every element of a checkpoint has.
fn value(path: &Path) -> f32 {
    let ckpt = ckpt::open(path).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(ckpt.entries().len(), 5, "{}", path.display());
    let mut first: Option<f32> = None;
    for i in 0..5 {
        let data = ckpt.read(i).unwrap();
        for chunk in data.as_chunks::<4>().0 {
            let x = f32::from_le_bytes(*chunk);
            assert_eq!(*first.get_or_insert(x), x, "{} is a mixture", path.display());
        }
    }
    first.unwrap()
}

/// The old checkpoint in each format, its target name and how it is asked for.
fn targets(dir: &Path, len: usize) -> Vec<(PathBuf, Vec<&'static str>)> {
    let old = || tensors(1.0, 5, len);
    let paths = ["t.safetensors", "t.pdparams", "t.dist"].map(|n| dir.join(n));
    ckpt::write_safetensors(&paths[0], old(), &Default::default()).unwrap();
    ckpt::write_pickle(&paths[1], old(), &Default::default()).unwrap();
    let mut w = DistWriter::create(&paths[2], DistFlavour::V3).unwrap();
    w.whole(old()).unwrap();
    w.finish().unwrap();
    let dist = vec!["--to-format", "dist3", "--ranks", "2"];
    paths.into_iter().zip([Vec::new(), Vec::new(), dist]).collect()
}

fn convert(limit: &str, from: &Path, to: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{limit}; exec \"$0\" ckpt convert --quiet \"$@\"");
    command.args(["-c", &script, EXE]).arg(from).arg(to).args(args).stderr(Stdio::piped());
    command
}

#[test]
fn a_writer_that_ends_at_any_byte_leaves_the_old_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let len = 3000; // 60 kB in all
    let from = dir.path().join("new.safetensors");
    ckpt::write_safetensors(&from, tensors(2.0, 5, len), &Default::default()).unwrap();
    let (mut killed, mut full) = (0, 0);
    for (to, args) in targets(dir.path(), len) {
        // Two ranks write half of it each.
        let size = if to.is_dir() { 58 } else { 117 };
        for blocks in [0, 1, 2, 3, 10, 23, 24, 25, 47, 48, 57, size - 1, size] {
            // In blocks of 512 bytes. By a signal, which nothing can catch in time …
            let out = convert(&format!("ulimit -c 0; ulimit -f {blocks}"), &from, &to, &args).output().unwrap();
            if !out.status.success() {
                killed += 1;
                assert_eq!(value(&to), 1.0, "{} after {blocks} blocks", to.display());
            } else {
                panic!("{} was written in {blocks} blocks", to.display());
            }
            // … and as an error, after which nothing is left beside it.
            let before = listing(dir.path());
            let limit = format!("trap '' XFSZ; ulimit -f {blocks}");
            let out = convert(&limit, &from, &to, &args).output().unwrap();
            assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
            assert!(String::from_utf8_lossy(&out.stderr).contains("File too large"));
            assert_eq!(value(&to), 1.0);
            if !to.is_dir() {
                assert_eq!(listing(dir.path()), before, "something is left behind");
            }
            full += 1;
        }
        // Without a limit it is written, whatever was left behind before.
        assert!(convert("true", &from, &to, &args).status().unwrap().success());
        assert_eq!(value(&to), 2.0);
    }
    assert_eq!((killed, full), (39, 39));
}

fn listing(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn a_writer_that_is_killed_leaves_one_of_two_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let len = 400_000; // 8 MB in all
    let news = [2.0, 3.0].map(|v| {
        let from = dir.path().join(format!("new{v}.safetensors"));
        ckpt::write_safetensors(&from, tensors(v, 5, len), &Default::default()).unwrap();
        (v, from)
    });
    for (to, args) in targets(dir.path(), len) {
        let mut last = 1.0;
        for round in 0..16u64 {
            let (new, from) = &news[round as usize % 2];
            let mut child = convert("true", from, &to, &args).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(700 * round * round));
            // It may be done by now.
            child.kill().ok();
            child.wait().unwrap();
            let now = value(&to);
            assert!(now == last || now == *new, "{}: neither {last} nor {new} but {now}", to.display());
            last = now;
        }
    }
}
