//! Does `mastercast ckpt` do what its help says? Each sub-command as a user runs it: exit codes, text and JSON.

mod ran;

use mastercast::ckpt::{self, Checkpoint, TensorData};
use mastercast::ir::DType;
use ran::{Ran, fed_in};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn path(name: &str) -> String {
    data(name).display().to_string()
}

fn ckpt_cmd(args: &[&str]) -> Ran {
    fed_in(Path::new(env!("CARGO_MANIFEST_DIR")), b"", &[&["ckpt"], args].concat())
}

const PDPARAMS: &str = "ckpt/optimizer/Adam.master.float16.pdparams";
const PDOPT: &str = "ckpt/optimizer/Adam.master.float16.protocol4.pdopt";

#[test]
fn ls_and_show_tell_what_is_there() {
    let (a, b) = (path(PDPARAMS), path(PDOPT));
    ckpt_cmd(&["ls", &a, &b]).exits(0).prints(&[
        "pickle, 4 tensors",
        "0.weight",
        "(linear_0.w_0)",
        "f16[8, 16]",
        "master_weights.linear_0.w_0",
        "LR_Scheduler.last_lr = 0.0078125",
    ]);
    let all = ckpt_cmd(&["ls", &a, &b, "--format", "json"]).exits(0).json();
    assert_eq!(all[0]["tensors"][0]["alias"], "linear_0.w_0");
    assert_eq!(all[1]["values"][0]["value"], 1);
    ckpt_cmd(&["ls", &path("ckpt/dist_v2/twice")]).exits(0).prints(&["distributed", "not read: 0.metadata"]);
    ckpt_cmd(&["show", &a, "0.weight"]).exits(0).prints(&["0.weight  f16[8, 16]", "min ", "…]"]);
    let one = ckpt_cmd(&["show", &b, "linear_0.w_0_fp32_master_0_beta1_pow_acc_0", "--format", "json"]).exits(0).json();
    assert_eq!((one[0]["dtype"].as_str(), one[0]["nan"].as_u64()), (Some("f32"), Some(0)));
    ckpt_cmd(&["show", &a, "nothing"]).exits(2).says(&["has no tensor `nothing`"]);
    ckpt_cmd(&["ls", &path("ckpt/README.md")]).exits(2).says(&["not a checkpoint of a known format"]);
}

#[test]
fn converted_to_every_format_nothing_differs() {
    let dir = tempfile::tempdir().unwrap();
    let from = path(PDOPT);
    for (name, format) in [
        ("x.safetensors", None),
        ("x.pdparams", None),
        ("x.pdopt", None),
        ("streams", Some("streams")),
        ("dist26", Some("dist26")),
        ("dist3", Some("dist3")),
    ] {
        let to = dir.path().join(name).display().to_string();
        let mut args = vec!["convert", &from, &to];
        args.extend(format.map(|f| ["--to-format", f]).into_iter().flatten());
        if name.starts_with("dist") {
            args.extend(["--ranks", "3"]);
        }
        ckpt_cmd(&args).exits(0).says(&["wrote 20 tensors"]);
        ckpt_cmd(&["diff", &from, &to]).exits(0).prints(&["20 tensors equal, 0 not"]);
        ckpt_cmd(&["verify", &path(PDPARAMS), &to])
            .exits(0)
            .prints(&["4 pairs, every parameter is its narrowed master", "4 of them truncated, not rounded"]);
    }
    let plain = ckpt::open(&dir.path().join("x.pdopt")).unwrap();
    assert_eq!(plain.plain().len(), 2, "the schedule of the learning rate is kept");
    let v3 = |name: &str| path(&format!("ckpt/optimizer_v3/Adam.master.bfloat16.{name}"));
    let verified = ckpt_cmd(&["verify", &v3("pdparams"), &v3("protocol4.pdopt"), "--format", "json"]).exits(0).json();
    assert_eq!((verified["pairs"].as_u64(), verified["truncated"].as_u64()), (Some(4), Some(0)), "3.3.1 rounds");
    // Ranks have their rows.
    let metadata = ckpt::DistDir::open(&dir.path().join("dist3"), ckpt::Access::Map).unwrap().metadata().clone();
    assert_eq!(metadata.files, ["0_0.distcp", "1_0.distcp", "2_0.distcp"]);
    let shards: Vec<u64> =
        metadata.find("master_weights.linear_0.w_0").unwrap().shards.iter().map(|s| s.rect.shape[0]).collect();
    assert_eq!(shards, [3, 3, 2]);
    ckpt_cmd(&["convert", &from, "x.unknown"]).exits(2).says(&["does not tell the format", "--to-format"]);
}

fn f32s(name: &'static str, values: &[f32]) -> TensorData<'static> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    TensorData::new(name, DType::F32, vec![values.len() as u64], bytes)
}

#[test]
fn diff_tells_names_shapes_and_the_largest_difference() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, tensors: Vec<TensorData<'_>>| {
        let to = dir.path().join(name);
        ckpt::write_safetensors(&to, tensors, &Default::default()).unwrap();
        to.display().to_string()
    };
    let next = f32::from_bits(1.0f32.to_bits() + 3);
    let a = write("a", vec![f32s("w", &[1.0, 2.0]), f32s("z", &[0.0]), f32s("gone", &[1.0]), f32s("s", &[1.0])]);
    let b = write("b", vec![f32s("w", &[next, 2.0]), f32s("z", &[-0.0]), f32s("new", &[1.0]), f32s("s", &[1.0, 2.0])]);
    ckpt_cmd(&["diff", &a, &b]).exits(1).prints(&[
        "- gone  f32[1]",
        "+ new  f32[1]",
        "~ s  f32[1] -> f32[2]",
        "~ w  1 element, at most 3.5762786865234375e-7 or 3 ulp apart",
        "~ z  1 element, at most 0e0 or 0 ulp apart",
    ]);
    let rows = ckpt_cmd(&["diff", &a, &b, "--format", "json"]).exits(1).json();
    assert_eq!(rows["differ"].as_array().unwrap().len(), 5);
    ckpt_cmd(&["diff", &a, &a]).exits(0).prints(&["4 tensors equal"]);
}

#[test]
fn verify_finds_a_parameter_that_is_not_its_master() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("x.safetensors");
    let low = TensorData::new("w", DType::F16, vec![1], half::f16::from_f32(1.0).to_le_bytes().to_vec());
    ckpt::write_safetensors(&to, [low, f32s("opt.w", &[1.0]), f32s("master_weights.w", &[1.5])], &Default::default())
        .unwrap();
    let to = to.display().to_string();
    ckpt_cmd(&["verify", &to]).exits(1).prints(&["`w` is not narrow(`master_weights.w`)", "at most 0.5"]);
    let json = ckpt_cmd(&["verify", &to, "--format", "json"]).exits(1).json();
    assert_eq!(json["differ"][0]["largest_difference"], 0.5);
}

/// A program with a pair for each of two parameters of the real state dict.
fn program(dir: &Path) -> String {
    let mut vars = String::new();
    let mut ops = String::new();
    for (name, shape, grad) in [("linear_0.w_0", "8, 16", "g0"), ("linear_0.b_0", "16", "g1")] {
        vars += &format!(
            "    param {name} : f16[{shape}] persistable\n    var {name}_fp32_master_0 : f32[{shape}] persistable\n    var {grad} : f16[{shape}]\n"
        );
        ops += &format!(
            "    (Out: {grad}) = tanh(X: {name})\n    (ParamOut: {name}; MasterParamOut: {name}_fp32_master_0) = sgd(Param: {name}; Grad: {grad}; LearningRate: lr; MasterParam: {name}_fp32_master_0) {{multi_precision: true}}\n"
        );
    }
    let text = format!(
        "program {{\n  startup {{\n    var lr : f32[1] persistable\n    (Out: lr) = fill_constant() {{dtype: f32, shape: [1L], value: 0.0f}}\n  }}\n  main {{\n{vars}    var lr : f32[1] persistable\n{ops}  }}\n}}\n"
    );
    let path = dir.join("job.mc");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn plan_and_load_put_real_state_dicts_into_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let job = program(dir.path());
    let (a, b) = (path(PDPARAMS), path(PDOPT));
    // Strict: the second layer and the accumulators have no cell, the learning rate no key.
    ckpt_cmd(&["plan", "--main", &job, &a, &b]).exits(1).prints(&[
        "problems",
        "`lr` is not in the checkpoint",
        "the program has no cell for the key `2.weight`",
    ]);
    let lenient = ["--allow-missing", "--allow-unexpected"];
    let report =
        ckpt_cmd(&[&["plan", "--main", &job, &a, &b, "--format", "json"][..], &lenient].concat()).exits(0).json();
    assert_eq!(report["loaded"].as_array().unwrap().len(), 4);
    assert_eq!((&report["kept"][0], report["problems"].as_array().unwrap().len()), (&Value::from("lr"), 0));
    let out = dir.path().join("cells.safetensors");
    let to = out.display().to_string();
    ckpt_cmd(&[&["load", "--main", &job, &a, &b, "--out", &to][..], &lenient].concat()).exits(0).prints(&[
        "linear_0.w_0_fp32_master_0 <- master_weights.linear_0.w_0: the file gives it this name",
        "linear_0.w_0 from the master's entry",
        "rounded anew: the checkpoint rounds its masters otherwise (2)",
    ]);
    // Paddle 2.6.2 on a CPU truncates.
    let truncate = ["--narrowing", "truncate", "--quiet"];
    ckpt_cmd(&[&["load", "--main", &job, &a, &b, "--out", &to][..], &lenient, &truncate].concat()).exits(0);
    let (cells, from) = (ckpt::open(&out).unwrap(), ckpt::open(&data(PDOPT)).unwrap());
    let read = |c: &dyn Checkpoint, n: &str| c.read(c.find(n).unwrap()).unwrap().into_owned();
    assert_eq!(read(&*cells, "linear_0.w_0_fp32_master_0"), read(&*from, "master_weights.linear_0.w_0"));
    let params = ckpt::open(&data(PDPARAMS)).unwrap();
    assert_eq!(read(&*cells, "linear_0.w_0"), read(&*params, "0.weight"), "narrowed to what Paddle has");
    // Nothing is written when it does not fit.
    std::fs::remove_file(&out).unwrap();
    ckpt_cmd(&["load", "--main", &job, &a, &b, "--out", &to]).exits(1);
    assert!(!out.exists());
    // Parameters alone, with a rule; masters are made from them, and that is said.
    ckpt_cmd(&[
        "plan",
        "--main",
        &job,
        &a,
        "--which",
        "params",
        "--allow-unexpected",
        "--map",
        "0.weight = linear_0.w_0",
    ])
    .exits(0)
    .prints(&["rule `0.weight = linear_0.w_0`", "which is 16-bit: float32 precision is lost"]);
    ckpt_cmd(&["plan", "--main", &job, &a, "--which", "params", "--allow-unexpected", "--masters", "error"])
        .exits(1)
        .prints(&["masters are required"]);
    ckpt_cmd(&["plan", "--main", &job, &a, "--map", "bad"]).exits(2).says(&["rule 1"]);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (path(PDPARAMS), dir.path().join("out").display().to_string());
    for ranks in ["0", "4000000000"] {
        ckpt_cmd(&["convert", &from, &to, "--to-format", "dist3", "--ranks", ranks]).exits(2).says(&["--ranks"]);
    }
    // A directory of streams with such a file would be taken for a distributed checkpoint.
    let rule = "0.weight = 0.metadata";
    ckpt_cmd(&["convert", &from, &to, "--to-format", "streams", "--map", rule]).exits(2).says(&["`0.metadata`"]);
    for to_name in ["$2", "${2}", "a$$$2"] {
        let rule = format!("regex (.*) = {to_name}");
        ckpt_cmd(&["convert", &from, &to, "--to-format", "safetensors", "--map", &rule])
            .exits(2)
            .says(&["`$2` in", "has 1 groups"]);
    }
    assert!(!Path::new(&to).exists(), "nothing is written");
    ckpt_cmd(&["convert", &from, &to, "--to-format", "safetensors", "--map", "regex (.*)t = $$$1"]).exits(0);
}

#[test]
fn a_tensor_is_shown_under_the_other_name_of_its_file() {
    let [by_key, by_alias] =
        ["0.weight", "linear_0.w_0"].map(|name| ckpt_cmd(&["show", &path(PDPARAMS), name]).exits(0));
    assert_eq!(by_key.text(), by_alias.text().replace("linear_0.w_0", "0.weight"));
}
