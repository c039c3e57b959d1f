//! Does `mastercast amp` do what its help says, and refuse bad input without writing anything?

mod ran;

use ran::{Ran, fed_in};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn run(args: &[&str]) -> Ran {
    fed_in(&data(), b"", args)
}

#[track_caller]
fn fails(args: &[&str], code: i32, says: &str) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let ran = run(&[&["amp", "--out", out.to_str().unwrap()], args].concat());
    assert_eq!(ran.code, code, "{}\n{}", ran.text(), ran.err);
    assert!(ran.err.contains(says), "no `{says}` in {}", ran.err);
    assert!(!out.exists(), "something was written");
}

const MLP: &str = "proto/mlp.fwd.fp32.raw.pb";

#[test]
fn a_forward_program_is_rewritten_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let ran = run(&["amp", "--main", MLP, "--level", "O2", "--dtype", "bfloat16", "--forward", "--out", out]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.text().starts_with("O2, bf16: ") && ran.text().contains("4 of 4 parameters narrowed"),
        "{}",
        ran.text()
    );
    let report: Value = serde_json::from_slice(&std::fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report["low"], serde_json::json!(["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]));
    let returned = report["returned"].as_array().unwrap();
    assert!(returned.contains(&"x".into()) && returned.is_sorted_by_key(|v| v.as_str().unwrap().to_owned()));
    assert_eq!(report["changed"], true);
    let shown = run(&["show", &format!("{out}/main.pb")]);
    assert!(shown.text().contains("param fc_0.w_0 : bf16[8, 16]"), "{}", shown.text());

    // The result is of mixed precision already: said, and no change.
    let main = format!("{out}/main.pb");
    let again = run(&["amp", "--main", &main, "--out", &format!("{out}/again")]);
    assert!(again.code == 0 && again.text().contains("already") && again.text().contains("nothing is rewritten"));
    assert_eq!(std::fs::read(&main).unwrap(), std::fs::read(format!("{out}/again/main.pb")).unwrap());
}

#[test]
fn a_variable_is_explained() {
    let ran = run(&["amp", "--main", MLP, "--why", "fc_0.b_0", "--level", "O1"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for text in
        ["kept: the level narrows no parameter", "made by an inserted cast", "gray", "`fc_0.tmp_0` comes from mul"]
    {
        assert!(ran.text().contains(text), "no `{text}` in {}", ran.text());
    }
    assert_eq!(run(&["amp", "--main", MLP, "--why", "nobody"]).code, 2);
}

#[test]
fn bad_options_and_programs_are_refused() {
    let with = |more: &[&'static str]| [&["--main", MLP], more].concat();
    fails(&with(&["--level", "O3"]), 2, "O3");
    fails(&with(&["--dtype", "float8"]), 2, "float8");
    fails(&with(&["--white", "mat_mul_v2"]), 2, "no op kind is named `mat_mul_v2`");
    fails(&with(&["--white", "softmax,mul", "--black", "mul"]), 2, "`mul` is on the white and on the black list");
    fails(&with(&["--black-vars", "fc_9.w_0"]), 2, "no variable `fc_9.w_0`");
    fails(&with(&["--device", "nowhere.toml"]), 2, "nowhere.toml");
    fails(&with(&["--device", "README.md"]), 2, "README.md");
    fails(&["--main", "proto/cond.train.O2.fp16.pb"], 2, "is a training program");
    fails(&[], 2, "no program is given");
}

#[test]
fn programs_of_text_can_be_wrong_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, body: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("program {{\n  main {{\n{body}\n  }}\n}}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let dangling = file("dangling", "var c : bool[1] persistable\nconditional_block(Cond: c) {sub_block: block(7)}");
    fails(&["--main", &dangling], 1, "dangling-block");
    let wide = file("wide", "var x : f64[2] persistable\nvar y : f64[2]\n(Out: y) = relu(X: x)");
    let out = dir.path().join("out");
    let ran = run(&["amp", "--main", &wide, "--level", "O2", "--out", out.to_str().unwrap()]);
    assert!(ran.code == 0 && ran.text().contains("float64 alone (2 variables)"), "{} {}", ran.text(), ran.err);
}

#[test]
fn lists_and_profiles_are_data() {
    let ran = run(&["passes", "--lists", "--level", "O2", "--dtype", "bfloat16", "--black", "relu"]);
    let lists: Value = serde_json::from_str(ran.text()).unwrap();
    let has = |list: &str, kind: &str| lists["effective"][list].as_array().unwrap().contains(&kind.into());
    assert!(has("black", "lookup_table_v2") && !has("black", "softmax") && has("black", "relu"));
    assert!(has("unsupported", "relu") && has("white", "matmul_v2") && !has("white", "resnet_unit"));
    assert!(lists["lists"]["source"].as_str().unwrap().contains("2.6.2"));

    // A device that knows mul alone keeps the rest in float32.
    let dir = tempfile::tempdir().unwrap();
    let toml = dir.path().join("npu.toml");
    let text = "name = \"npu\"\nsource = \"a test\"\nkinds = [\"mul\"]\nno_float16 = [\"elementwise_add\", \"relu\"]\nno_bfloat16 = []\n";
    std::fs::write(&toml, text).unwrap();
    let ran = run(&["amp", "--main", MLP, "--level", "O2", "--device", toml.to_str().unwrap(), "--why", "fc_0.tmp_1"]);
    assert!(ran.text().contains("no kernel of the type"), "{} {}", ran.text(), ran.err);
}

const STARTUP: &str = "mlp/startup.train.fp32.pb";
const TRAIN: &str = "mlp/train.fp32.pb";

#[test]
fn a_training_program_is_rewritten_and_proved() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let job = ["amp", "--training", "--startup", STARTUP, "--main", TRAIN];
    let rest = ["--level", "O2", "--dtype", "float16", "--master-grad", "--loss-scale", "1024", "--out", out];
    let ran = run(&[&job[..], &rest].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("after:  4 of 4 pairs proved in step"), "{}", ran.err);
    let report: Value = serde_json::from_slice(&std::fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report["low"], serde_json::json!(["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]));
    assert_eq!((&report["lowered"]["in_step"], &report["options"]["master_grad"]), (&true.into(), &true.into()));
    // What it wrote is in step by itself, and is left alone by a second call.
    let (startup, main) = (format!("{out}/startup.pb"), format!("{out}/main.pb"));
    let check = run(&["check", "--startup", &startup, "--main", &main]);
    assert_eq!(check.code, 0, "{}", check.err);
    let again = run(&[
        "amp",
        "--training",
        "--startup",
        &startup,
        "--main",
        &main,
        "--schedule",
        "startup, main",
        "--level",
        "O2",
        "--out",
        &format!("{out}/again"),
    ]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(std::fs::read(&main).unwrap(), std::fs::read(dir.path().join("again/main.pb")).unwrap());
}

#[test]
fn what_training_does_not_take_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("none");
    let out = out.to_str().unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["amp", "--training", "--main", MLP, "--out", out], "no gradient ops"),
        (&["amp", "--training", "--main", TRAIN, "--startup", STARTUP, "--loss-scale", "0", "--out", out], "above 0"),
        (&["amp", "--training", "--forward", "--main", TRAIN, "--out", out], "--forward"),
        (&["amp", "--main", TRAIN, "--master-grad", "--out", out], "--training"),
    ];
    for (args, text) in cases {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(text), "{args:?}: {}", ran.err);
        assert!(!std::path::Path::new(out).exists(), "{args:?}");
    }
}
