//! Does the command-line tool take programs of Paddle 3.x, told by content, and write such programs?

use mastercast::ckpt::{self, TensorData};
use mastercast::ir::DType;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Runs the tool among the PIR files; its standard error.
fn run(code: i32, args: &[&str]) -> (Output, String) {
    let tool = env!("CARGO_BIN_EXE_mastercast");
    let out = Command::new(tool).args(args).current_dir(data().join("pir")).output().expect("the tool runs");
    let err = String::from_utf8(out.stderr.clone()).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}\n{}{err}", String::from_utf8_lossy(&out.stdout));
    (out, err)
}

const JOB: [&str; 4] = ["--startup", "startup.mlp.bf16.json", "--main", "main.mlp.bf16.json"];

fn job<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command], &JOB[..], more].concat()
}

#[test]
fn a_job_with_a_load_is_checked_rewritten_run_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let shapes: [(&str, &[u64]); 4] =
        [("linear_0.b_0", &[6]), ("linear_0.w_0", &[8, 6]), ("linear_1.b_0", &[3]), ("linear_1.w_0", &[6, 3])];
    let tensors = shapes.iter().map(|(name, shape)| {
        let n = shape.iter().product::<u64>();
        let bytes: Vec<u8> = (0..n).flat_map(|_| 1.2388f32.to_le_bytes()).collect();
        TensorData::new(*name, DType::F32, shape.to_vec(), bytes)
    });
    let checkpoint = at("w.safetensors");
    ckpt::write_safetensors(Path::new(&checkpoint), tensors.collect::<Vec<_>>(), &Default::default()).unwrap();
    let schedule = format!("startup, load({checkpoint}), main");

    let (out, _) = run(1, &job("check", &["--schedule", &schedule]));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("0 of 4 pairs proved in step (4 stale-master"), "{text}");
    let fixed = at("fixed");
    let (_, err) = run(0, &job("rewrite", &["--schedule", &schedule, "--out", &fixed]));
    assert!(err.contains("wrote startup.json, main.json, resync.json, renarrow.json and report.json"), "{err}");
    let file = |name: &str| format!("{fixed}/{name}");
    run(0, &["check", "--startup", &file("startup.json"), "--main", &file("main.json")]);
    run(0, &["diff", "main.mlp.bf16.json", &file("main.json")]);
    run(1, &["diff", "startup.mlp.bf16.json", &file("startup.json")]);
    let cells = at("cells.safetensors");
    let (startup, main) = (file("startup.json"), file("main.json"));
    run(0, &["run", "--startup", &startup, "--main", &main, "--steps", "0", "--scope-out", &cells]);
    let open = ckpt::open(Path::new(&cells)).unwrap();
    for (name, want) in
        [("linear_0.w_0_fp32_master_0", 1.2388f32.to_le_bytes().to_vec()), ("linear_0.w_0", vec![0x9f, 0x3f])]
    {
        let bytes = open.read(open.find(name).unwrap()).unwrap();
        assert_eq!(bytes[..want.len()], want, "{name}");
    }
}

#[test]
fn a_program_is_shown_in_its_own_form_alone() {
    let file = data().join("pir/main.cond.fp32.json");
    let (out, _) = run(0, &["show", "main.cond.fp32.json", "--as", "pir"]);
    assert_eq!(out.stdout, std::fs::read(file).unwrap());
    let (_, err) = run(2, &["show", "main.cond.fp32.json", "--as", "proto"]);
    assert!(err.contains("there is no conversion between ProgramDesc and PIR"), "{err}");
    let (_, err) = run(2, &["show", "../orders/train.O2.fp16.sgd.pb", "--as", "pir"]);
    assert!(err.contains("--as proto"), "{err}");
    let (out, _) = run(0, &["show", "main.cond.readable.json"]);
    assert!(String::from_utf8(out.stdout).unwrap().contains("pd_op.if"));
}

#[test]
fn programs_of_two_formats_are_no_job() {
    let args = ["check", "--startup", "startup.mlp.bf16.json", "--main", "../orders/train.O2.fp16.sgd.pb"];
    let (_, err) = run(2, &args);
    assert!(err.contains("one program is PIR (Paddle 3.x) and the other is not"), "{err}");
    let swapped = ["check", "--startup", "main.mlp.bf16.json", "--main", "startup.mlp.bf16.json"];
    let (_, err) = run(2, &swapped);
    assert!(err.contains("the wrong way round"), "{err}");
}

#[test]
fn bad_files_say_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.json");
    let text = std::fs::read_to_string(data().join("pir/main.mlp.bf16.json")).unwrap();
    std::fs::write(&path, text.replacen("{\"%\":2,", "{\"%\":1,", 1)).unwrap();
    let (_, err) = run(2, &["show", path.to_str().unwrap()]);
    assert!(err.contains("program.regions[0].blocks[0].ops[1]: value id 1 is defined twice"), "{err}");
}
