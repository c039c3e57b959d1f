//! Does the command-line tool do what its help and the README say? Each sub-command is run as a user runs it:
//! exit codes 0, 1 and 2, what goes to which stream, files by content, bad input.

mod ran;

use mastercast::ckpt::{self, TensorData};
use mastercast::ir::DType;
use ran::{Ran, fed_in};
use serde_json::Value;
use std::path::{Path, PathBuf};

const STARTUP: &str = "startup.train.O2.fp16.sgd.pb";
const MAIN: &str = "train.O2.fp16.sgd.pb";
/// A schedule whose masters are stale, and one that is right.
const STALE: &str = "startup, load(params_f32.safetensors), amp_init, main";
const GOOD: &str = "startup, amp_init, main";
const PAIRS: usize = 4;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/orders")
}

/// Runs the tool where the test data are, with this standard input.
fn fed(stdin: &[u8], args: &[&str]) -> Ran {
    fed_in(&data(), stdin, args)
}

fn run(args: &[&str]) -> Ran {
    fed(b"", args)
}

/// A sub-command on the job of the test data.
fn job(command: &str, more: &[&str]) -> Ran {
    run(&[&[command, "--startup", STARTUP, "--main", MAIN], more].concat())
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(data().join(name)).unwrap()
}

fn temp() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    (dir, path)
}

fn batch(path: &str, names: &[(&str, u64)]) {
    let tensors = names.iter().map(|&(name, width)| {
        let values: Vec<u8> = (0..4 * width).flat_map(|i| (i as f32 * 0.125).to_le_bytes()).collect();
        TensorData::new(name, DType::F32, vec![4, width], values)
    });
    ckpt::write_safetensors(Path::new(path), tensors.collect::<Vec<_>>(), &Default::default()).unwrap();
}

// ---- check

#[test]
fn check_tells_findings_by_exit_code() {
    let stale = job("check", &["--schedule", STALE]).exits(1);
    assert_eq!(stale.text(), "0 of 4 pairs proved in step (4 stale-master)\n");
    stale.says(&[
        "error[stale-master]: when main starts, master `fc_0.b_0_fp32_master_0`",
        "`fc_0.b_0` was last written here: startup: blocks[0].ops[17]",
        "(inserted by `schedule`)",
        "… and 1 more `stale-master` (--all shows them)",
        "`mastercast explain stale-master` tells more",
    ]);
    let all = job("check", &["--all", "--schedule", STALE]).exits(1).silent_on(&["more `stale-master`"]);
    assert_eq!(all.err.matches("error[stale-master]").count(), PAIRS);
    let good = job("check", &["--schedule", GOOD]).exits(0);
    assert_eq!((good.text(), good.err.as_str()), ("4 of 4 pairs proved in step\n", ""));
    // Without a schedule nothing narrows.
    job("check", &[]).exits(1).says(&["error[wrong-dtype]", "run `amp_init` (name it in the schedule)"]);
}

#[test]
fn check_as_json_goes_to_standard_output_alone() {
    let ran = job("check", &["--format", "json", "--schedule", STALE]).exits(1);
    assert_eq!(ran.err, "");
    let json = ran.json();
    assert_eq!((json["in_step"].as_bool(), json["verdicts"].as_array().unwrap().len()), (Some(false), PAIRS));
    assert_eq!(json["verdicts"][0]["master"], "fc_0.b_0_fp32_master_0");
    assert_eq!(json["verdicts"][0]["codes"], serde_json::json!(["stale-master"]));
    assert_eq!(json["diagnostics"].as_array().unwrap().len(), PAIRS, "JSON is never shortened");
    let good = job("check", &["--format", "json", "--schedule", GOOD]).exits(0).json();
    assert_eq!((good["in_step"].as_bool(), good["diagnostics"].as_array().unwrap().len()), (Some(true), 0));
}

#[test]
fn quiet_leaves_out_warnings_but_not_errors() {
    let schedule = "load(params_f32), startup, amp_init, main";
    job("check", &["--schedule", schedule]).exits(0).says(&["warning[load-overwritten]"]);
    let quiet = job("check", &["-q", "--schedule", schedule]).exits(0);
    assert_eq!((quiet.err.as_str(), quiet.text()), ("", "4 of 4 pairs proved in step\n"));
    job("check", &["-q", "--schedule", STALE]).exits(1).says(&["error[stale-master]"]);
}

#[test]
fn colour_is_asked_for() {
    let ran = |args: &[&str]| job("check", &[args, &["--schedule", STALE]].concat()).err.contains('\x1b');
    assert!(ran(&["--color", "always"]));
    assert!(!ran(&["--color", "never"]) && !ran(&[]), "standard error is no terminal here");
    job("check", &["--color", "sometimes"]).exits(2);
}

#[test]
fn what_cannot_be_checked_is_exit_code_2() {
    let bad: &[(&[&str], &[&str])] = &[
        (&["check"], &["no program is given", "--startup FILE"]),
        (&["check", "--startup", "absent.pb"], &["absent.pb: "]),
        (&["check", "--startup", "params_f32"], &["is a directory, not a program"]),
        (&["check", "--main", "params_f32.safetensors"], &["not a program", "known forms: ProgramDesc"]),
        (&["check", "--startup", MAIN, "--main", STARTUP], &["main has none", "the wrong way round?"]),
        (&["check", "--startup", "-", "--main", "-"], &["one of the two"]),
        (&["check", "--format", "xml"], &["invalid value 'xml'"]),
        (&["chek"], &["unrecognized subcommand", "check"]),
    ];
    for (args, texts) in bad {
        run(args).exits(2).says(texts);
    }
    let schedules: &[(&str, &[&str])] = &[
        ("", &["the schedule has no step"]),
        ("startup, lod(x), main", &["there is no step `lod`", "^^^"]),
        ("startup, load(params_f32) main", &["steps are separated by commas"]),
        ("startup, load(absent), main", &["load: absent: "]),
        (&format!("startup, load({MAIN}), main"), &["not a checkpoint of a known format"]),
    ];
    for (schedule, texts) in schedules {
        job("check", &["--schedule", schedule]).exits(2).says(texts);
    }
}

#[test]
fn a_pickle_that_names_a_function_is_refused_with_what_to_do() {
    let (_dir, path) = temp();
    let pickle = format!("{path}/x.pdparams");
    std::fs::write(&pickle, b"\x80\x02cos\nsystem\n\x8c\x04true\x85R.").unwrap();
    let schedule = format!("startup, load({pickle}), amp_init, main");
    job("check", &["--schedule", &schedule]).exits(2).says(&["names `os.system`", "safetensors.numpy.save_file"]);
}

#[test]
fn programs_are_told_by_content() {
    let (_dir, path) = temp();
    let (text, json) = (format!("{path}/job.pb"), format!("{path}/job.txt"));
    job("show", &["--as", "text", "-o", &text]).exits(0);
    job("show", &["--as", "json", "-o", &json]).exits(0);
    for file in [&text, &json] {
        // A file that holds both programs is given once, as either.
        run(&["check", "--startup", file, "--schedule", GOOD]).exits(0);
        run(&["check", "--main", file, "--schedule", GOOD]).exits(0);
        run(&["check", "--startup", file, "--main", MAIN, "--schedule", GOOD]).exits(0);
    }
    for (option, name) in [("--startup", STARTUP), ("--main", MAIN)] {
        let other = if name == MAIN { ["--startup", STARTUP] } else { ["--main", MAIN] };
        fed(&read(name), &["check", option, "-", other[0], other[1], "--schedule", GOOD]).exits(0);
    }
    let broken = fed(b"program {\n  main {\n    var x : f33[2]\n  }\n}\n", &["check", "--main", "-"]).exits(1);
    broken.says(&["error[", "var x : f33[2]", "^"]);
    // Findings point into the text, and name what the schedule put there.
    run(&["check", "--main", &text, "--schedule", STALE]).exits(1).says(&[
        "job.pb:",
        "`fc_0.b_0_fp32_master_0` was last written here",
        "`fc_0.b_0` was last written here: startup: blocks[0].ops[17]",
        "`mastercast explain stale-master`",
    ]);
}

#[test]
fn a_job_without_pairs_says_why() {
    let (_dir, path) = temp();
    let text = run(&["show", MAIN]).exits(0).text().to_owned();
    let unpaired: String = text.lines().filter(|l| !l.contains("sgd(")).fold(String::new(), |s, l| s + l + "\n");
    let file = format!("{path}/main.txt");
    std::fs::write(&file, unpaired).unwrap();
    let ran = run(&["check", "--main", &file]).exits(0);
    assert_eq!(ran.text(), "no parameter/master pair: main has no optimizer op\n");
    let low = text.replace("MasterParamOut: ", "Gone: ").replace("MasterParam: ", "Gone: ");
    std::fs::write(&file, low).unwrap();
    let ran = run(&["check", "--main", &file]);
    assert_eq!(
        ran.text(),
        "no parameter/master pair: main trains 4 parameters, 4 of them in 16 bits without a master\n"
    );
}

// ---- files without names

#[test]
fn combined_files_are_named_when_they_fit() {
    let cases = [
        ("params_f32.pdiparams", "", "its 4 tensors are taken as the parameters, in order of name", 1),
        ("params_f16_masters_f32.pdiparams", "", "its 8 tensors are taken as the parameters and masters", 0),
        ("masters_f32.pdiparams", ", only=masters", "its 4 tensors are taken as the masters", 1),
    ];
    for (file, only, told, code) in cases {
        let schedule = format!("startup, load({file}{only}), main");
        job("check", &["--schedule", &schedule]).exits(code).says(&[told]);
        job("check", &["-q", "--schedule", &schedule]).exits(code).silent_on(&[told]);
    }
    // The same pairs as with names, the same bits in the end.
    let (_dir, path) = temp();
    for (dir, file) in [("a", "params_f32.pdiparams"), ("b", "params_f32.safetensors")] {
        let out = format!("{path}/{dir}");
        let schedule = format!("startup, load({file}), amp_init, main");
        job("rewrite", &["--schedule", &schedule, "--out", &out]).exits(0);
    }
    for name in ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"] {
        let of = |dir| std::fs::read(format!("{path}/{dir}/params/{name}")).unwrap();
        assert!(of("a") == of("b"), "{name}");
    }
    // Two tensors fit no set of variables.
    let odd = format!("{path}/odd.pdiparams");
    let tensor = |name: &'static str| TensorData::new(name, DType::F32, vec![1u64], vec![0u8; 4]);
    ckpt::write_combined(Path::new(&odd), [tensor("a"), tensor("b")]).unwrap();
    let schedule = format!("startup, load({odd}), amp_init, main");
    job("check", &["--schedule", &schedule]).exits(1).says(&[
        "holds 2 tensors without names",
        "in order of name the program has 4 parameters, 8 parameters and masters, 12 persistables",
    ]);
}

// ---- rewrite

#[test]
fn rewrite_writes_a_job_that_is_in_step() {
    let (_dir, path) = temp();
    let out = format!("{path}/fixed");
    let ran = job("rewrite", &["--schedule", STALE, "--out", &out]).exits(0);
    assert!(ran.out.is_empty());
    ran.says(&[
        "before: 0 of 4 pairs proved in step (4 stale-master)",
        "load-order: 1 op moved",
        "after:  4 of 4 pairs proved in step",
        "converted 4 tensors of params_f32.safetensors",
        "wrote startup.pb, main.pb, resync.pb, renarrow.pb and report.json",
    ])
    .silent_on(&["error[", "seen from where"]);
    let mut files: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    assert_eq!(files, ["main.pb", "params", "renarrow.pb", "report.json", "resync.pb", "startup.pb"]);
    let at = |name: &str| format!("{out}/{name}");
    run(&["check", "--startup", &at("startup.pb"), "--main", &at("main.pb")]).exits(0);
    run(&["diff", MAIN, &at("main.pb")]).exits(0);
    for name in ["resync.pb", "renarrow.pb"] {
        assert!(run(&["show", &at(name)]).exits(0).text().contains("cast("), "{name}");
    }
    let report: Value = serde_json::from_slice(&std::fs::read(at("report.json")).unwrap()).unwrap();
    assert_eq!((&report["before"]["in_step"], &report["after"]["in_step"]), (&false.into(), &true.into()));
    assert_eq!(report["schedule"], STALE);
    assert_eq!(report["loads"][0]["loaded"].as_array().unwrap().len(), PAIRS);
    assert_eq!(report["passes"][1]["moved"], 1);
    // Again, over what is there: the same bytes.
    let first = std::fs::read(at("startup.pb")).unwrap();
    let again = job("rewrite", &["-q", "--schedule", STALE, "--out", &out]).exits(0);
    assert!(again.out.is_empty() && again.err.is_empty());
    assert!(std::fs::read(at("startup.pb")).unwrap() == first);
}

#[test]
fn rewrite_says_where_the_files_must_be() {
    let (_dir, path) = temp();
    let ready = "startup, load(params_f32), amp_init, main";
    job("rewrite", &["--schedule", ready, "--no-convert", "--out", &path])
        .exits(0)
        .says(&["startup loads 4 tensors from params_f32, seen from where the training script runs"]);
    job("rewrite", &["--schedule", ready, "--load-dir", "/mnt/ckpt", "--out", &path])
        .exits(0)
        .says(&["startup loads 4 tensors from /mnt/ckpt\n"]);
    let text = run(&["show", &format!("{path}/startup.pb")]).text().to_owned();
    assert!(text.contains("file_path: \"/mnt/ckpt/fc_0.w_0\""), "{text}");
    job("rewrite", &["--schedule", STALE, "--no-convert", "--out", &path])
        .exits(2)
        .says(&["params_f32.safetensors is safetensors", "leave out --no-convert"]);
}

#[test]
fn a_file_that_is_only_where_the_program_runs_leaves_its_pairs_unproved() {
    let (_dir, path) = temp();
    let program = r#"program {
  startup {
    param w : f32[2] persistable
    var w_fp32_master_0 : f32[2] persistable
    (Out: w) = fill_constant() {dtype: f32, shape: [2L], value: 0.5f}
    (Out: w_fp32_master_0) = cast(X: w) {in_dtype: f32, out_dtype: f32}
    (Out: w) = load() {file_path: "absent/w"}
    (Out: w_fp32_master_0) = load() {file_path: "absent/w_fp32_master_0"}
    (Out: w) = amp_init(X: w) {dtype: f16}
  }
  main {
    param w : f16[2] persistable
    var w_fp32_master_0 : f32[2] persistable
  }
}
"#;
    fed(program.as_bytes(), &["check", "--startup", "-"])
        .exits(1)
        .says(&["absent/w_fp32_master_0 agree when narrowed?"]);
    fed(program.as_bytes(), &["rewrite", "--startup", "-", "--out", &path])
        .exits(0)
        .says(&["after:  1 of 1 pair proved"]);
}

#[test]
fn a_conflict_is_settled_as_asked() {
    let (_dir, path) = temp();
    let schedule = "startup, load(conflict), amp_init, main";
    let refused = format!("{path}/refused");
    let ran = job("rewrite", &["--schedule", schedule, "--on-conflict", "error", "--out", &refused]).exits(1);
    ran.says(&["error[load-conflict]", "`rewrite --on-conflict master` or `--on-conflict param`"]);
    assert!(!Path::new(&refused).exists(), "nothing is written");
    let mut programs = Vec::new();
    for believed in ["master", "param"] {
        let out = format!("{path}/{believed}");
        let told = if believed == "param" { "the parameter is believed" } else { "the master is believed" };
        job("rewrite", &["--schedule", schedule, "--on-conflict", believed, "--out", &out]).exits(0).says(&[
            "before: 0 of 4 pairs proved in step (4 load-conflict)",
            "4 loaded pairs disagree",
            told,
        ]);
        programs.push(std::fs::read(format!("{out}/startup.pb")).unwrap());
    }
    assert!(programs[0] != programs[1]);
}

#[test]
fn rewrite_with_passes_left_out_tells_what_is_left() {
    let (_dir, path) = temp();
    let schedule = "startup, load(params_f32), main";
    let ran = job("rewrite", &["--schedule", schedule, "--pipeline", "load-order", "--out", &path]).exits(1);
    ran.says(&["after:  0 of 4 pairs proved in step (4 wrong-dtype)", "error[wrong-dtype]"]);
    job("rewrite", &["-q", "--schedule", schedule, "--stop-after", "1", "--out", &path])
        .exits(1)
        .says(&["error[stale-master]"]);
    job("rewrite", &["--schedule", schedule, "--print-after", "--timings", "--out", &path]).exits(0).says(&[
        "// after master-casts",
        "// after resync",
        "program {",
        " ms\n",
    ]);
    job("rewrite", &["--all", "--schedule", schedule, "--out", &path]).exits(0).says(&["error[stale-master]"]);
    for (pipeline, text) in [("nopass", "no pass is named `nopass`"), ("resync{on_conflict=foo}", "foo")] {
        job("rewrite", &["--pipeline", pipeline, "--out", &path]).exits(2).says(&[text, "`mastercast passes`"]);
    }
    job("rewrite", &["--schedule", schedule]).exits(2).says(&["--out <DIR>"]);
}

// ---- run

#[test]
fn run_feeds_fetches_and_keeps_the_cells() {
    let (_dir, path) = temp();
    let (feed, after) = (format!("{path}/batch.safetensors"), format!("{path}/after.safetensors"));
    batch(&feed, &[("x", 8), ("y", 1)]);
    let ran = job(
        "run",
        &["--schedule", GOOD, "--feed", &feed, "--steps", "2", "--fetch", "tmp_3,fc_0.w_0", "--scope-out", &after],
    )
    .exits(0);
    let lines: Vec<&str> = ran.text().lines().collect();
    assert_eq!(lines.len(), 4, "two variables after each of two steps");
    assert!(lines[0].starts_with("step 1 tmp_3 f32[] [") && lines[3].starts_with("step 2 fc_0.w_0 f16[8, 16] ["));
    ran.says(&["2 steps of main", "wrote 12 cells to "]);
    let cells = ckpt::open(Path::new(&after)).unwrap();
    let dtype = |name: &str| cells.entries()[cells.find(name).unwrap()].dtype;
    assert_eq!((dtype("fc_0.w_0"), dtype("fc_0.w_0_fp32_master_0")), (DType::F16, DType::F32));
    // Cells go in as they came out.
    let more = ["--schedule", "startup, main", "--scope-in", &after, "--steps", "0", "--fetch", "fc_0.w_0"];
    let start = job("run", &more).exits(0);
    assert!(start.text().starts_with("startup fc_0.w_0 f32[8, 16] ["), "startup runs after: {}", start.text());
    let quiet = job("run", &["-q", "--schedule", GOOD, "--feed", &feed]).exits(0);
    assert!(quiet.out.is_empty() && quiet.err.is_empty());
}

#[test]
fn run_watches_ops_pairs_and_costs() {
    let (_dir, path) = temp();
    let feed = format!("{path}/batch.safetensors");
    batch(&feed, &[("x", 8), ("y", 1)]);
    let ran = job("run", &["--schedule", GOOD, "--feed", &feed, "--trace", "--profile"]).exits(0);
    let lines: Vec<&str> = ran.text().lines().collect();
    let traced = |start: &str, kind: &str| {
        lines.iter().any(|l| l.starts_with(start) && l.contains(&format!(" {kind} ")) && l.contains(" nan 0 inf 0"))
    };
    assert!(traced("step 0 startup: blocks[0].ops[", "fill_constant"), "{}", ran.text());
    assert!(traced("step 1 main: blocks[0].ops[", "mul"), "{}", ran.text());
    assert!(lines.iter().any(|l| l.ends_with("  sgd")), "{}", ran.text());
    ran.says(&["variables held at most "]);
    // The program's loss scale of 65536 overflows float16 in the first step, which is then skipped.
    let nan = job("run", &["--schedule", GOOD, "--feed", &feed, "--check-nan"]).exits(2);
    nan.says(&["mul_grad(", "`fc_1.w_0@GRAD` (f16[16, 1]) holds a NaN; inputs were f16[4, 1], f16[4, 16], f16[16, 1]"]);
    // In step through both steps; out of it when nothing brings the loaded values to the masters.
    let two = ["--feed", &feed, "--steps", "2", "--check-coherence"];
    job("run", &[&["--schedule", GOOD][..], &two].concat()).exits(0).says(&["4 pairs in step, compared "]);
    let bad = job("run", &[&["--schedule", STALE][..], &two].concat()).exits(1);
    bad.says(&["step 1: main: blocks[0].ops[0]", "is not the narrowed", "when main starts"]);
    job("run", &["--schedule", GOOD, "--feed", &feed, "--memory-limit", "100"]).exits(2).says(&["memory limit"]);
}

#[test]
fn run_says_what_is_missing() {
    let (_dir, path) = temp();
    let feed = format!("{path}/batch.safetensors");
    job("run", &["--schedule", GOOD]).exits(2).says(&["`x`", "main must be fed `x`, `y`: --feed FILE"]);
    batch(&feed, &[("x", 8)]);
    job("run", &["--schedule", GOOD, "--feed", &feed]).exits(2).says(&["main must be fed `y`: --feed FILE"]);
    batch(&feed, &[("x", 8), ("y", 1)]);
    job("run", &["--schedule", GOOD, "--feed", &feed, "--fetch", "nosuch"]).exits(2).says(&["fetch `nosuch`"]);
    job("run", &["--schedule", GOOD, "--steps", "0", "--fetch", "nosuch"]).exits(2).says(&["`nosuch` has no value"]);
    job("run", &["--schedule", GOOD, "--feed", &feed, "--fuel", "5"]).exits(2);
    job("run", &["--schedule", GOOD, "--feed", "absent"]).exits(2).says(&["absent: "]);
}

// ---- show and diff

#[test]
fn show_has_every_form() {
    let proto = run(&["show", MAIN, "--as", "proto"]).exits(0);
    assert!(proto.out == read(MAIN), "byte for byte");
    let text = run(&["show", MAIN]).exits(0);
    assert!(fed(&text.out, &["show", "-", "--as", "proto"]).exits(0).out == read(MAIN), "text holds everything");
    let json = run(&["show", MAIN, "--as", "json"]).exits(0);
    assert_eq!(json.json()["format"], "mastercast-program");
    assert!(fed(&json.out, &["show", "-", "--as", "proto"]).exits(0).out == read(MAIN), "JSON holds everything");
    let dot = run(&["show", MAIN, "--as", "dot"]).exits(0);
    assert!(dot.text().starts_with("digraph {") && dot.text().contains("sgd"));
    for args in [&["show"][..], &["show", "absent"], &["show", MAIN, "--as", "png"], &["show", MAIN, "--main", MAIN]] {
        run(args).exits(2);
    }
}

#[test]
fn brief_text_is_a_program_without_the_noise() {
    let brief = run(&["show", MAIN, "--brief"]).exits(0);
    let full = run(&["show", MAIN]).exits(0);
    for noise in ["op_versions", "op_role", "use_mkldnn"] {
        assert!(full.text().contains(noise) && !brief.text().contains(noise), "{noise}");
    }
    let lines = |ran: &Ran| ran.text().lines().filter(|l| !l.contains("op_versions")).count();
    assert_eq!(lines(&brief), lines(&full));
    assert!(fed(&brief.out, &["show", "-"]).exits(0).out == brief.out);
}

#[test]
fn show_prints_the_schedule_as_ops() {
    let ran = job("show", &["--brief", "--schedule", STALE]).exits(0);
    let at = |text: &str| ran.text().find(text).unwrap_or_else(|| panic!("no `{text}` in\n{}", ran.text()));
    assert!(at("startup {") < at("load() {file_path: \"params_f32.safetensors\""));
    assert!(at("load() {") < at("= amp_init(X: fc_0.b_0") && at("= amp_init(") < at("  main {"));
}

#[test]
fn diff_is_quiet_on_equal_programs() {
    let same = run(&["diff", MAIN, MAIN]).exits(0);
    assert!(same.out.is_empty() && same.err.is_empty());
    let text = run(&["show", MAIN]).out;
    assert!(fed(&text, &["diff", "-", MAIN]).exits(0).out.is_empty(), "two forms of one program");
    let ran = run(&["diff", MAIN, "train.O2.bf16.sgd.pb", "-U", "0"]).exits(1);
    assert!(
        ran.text().contains("-    param fc_0.b_0 : f16[16]") && ran.text().contains("+    param fc_0.b_0 : bf16[16]")
    );
    assert!(ran.text().lines().all(|l| !l.starts_with(' ')), "no context");
    assert!(!run(&["diff", MAIN, "train.O2.bf16.sgd.pb"]).text().contains("op_versions"));
    run(&["diff", "-", "-"]).exits(2).says(&["one of the two"]);
    run(&["diff", MAIN, "absent"]).exits(2);
}

// ---- the rest

#[test]
fn codes_and_passes_are_explained() {
    let list = run(&["explain"]).exits(0);
    assert!(list.text().contains("stale-master           error    The master descends from another value"));
    for line in list.text().lines() {
        let code = line.split_whitespace().next().unwrap();
        let one = run(&["explain", code]).exits(0);
        assert!(one.text().contains(&format!("[{code}]")) && one.text().lines().count() > 2, "{code}");
    }
    run(&["explain", "stale"]).exits(2).says(&["no finding has the code `stale`", "stale-master, stale-parameter"]);
    let passes = run(&["passes"]).exits(0);
    for name in ["master-casts", "load-order", "resync", "lower"] {
        assert!(passes.text().lines().any(|l| l.starts_with(name)), "{name}");
    }
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = run(&["completions", shell]).exits(0);
        assert!(ran.text().contains("rewrite") && ran.text().contains("on-conflict"), "{shell}");
    }
    run(&["completions", "tcsh"]).exits(2);
}

#[test]
fn help_names_the_exit_codes() {
    let help = run(&["--help"]).exits(0);
    for command in ["check", "rewrite", "amp", "run", "show", "diff", "explain", "passes", "completions"] {
        assert!(help.text().contains(&format!("  {command} ")), "{command}");
        run(&[command, "--help"]).exits(0);
    }
    assert!(help.text().contains("Exit code: 0 done"));
    assert!(run(&["--version"]).exits(0).text().starts_with("mastercast "));
    run(&[]).exits(2);
}

// ---- paths that are no files

#[cfg(unix)]
#[test]
fn devices_pipes_and_links_are_told_from_files() {
    run(&["show", "/dev/zero"]).exits(2).says(&["is a device"]);
    run(&["check", "--startup", "/dev/zero", "--main", MAIN]).exits(2).says(&["is a device"]);
    let (_dir, dir) = temp();
    // What is written to a pipe arrives there; no file takes its place.
    let pipe = format!("{dir}/pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()));
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    run(&["show", MAIN, "--as", "proto", "-o", &pipe]).exits(0);
    assert_eq!(reader.join().unwrap(), read(MAIN));
    use std::os::unix::fs::FileTypeExt;
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let schedule = format!("startup, load({pipe}), amp_init, main");
    job("check", &["--schedule", &schedule]).exits(2).says(&["is not a regular file"]);
    job("run", &["--steps", "0", "--scope-out", &pipe]).exits(2).says(&["is not a regular file"]);
    // A name of this process's own output is no file to be replaced.
    let shown = run(&["show", MAIN, "--as", "proto", "-o", "/dev/stdout"]).exits(0);
    assert_eq!(shown.out, read(MAIN));
}

#[test]
fn odd_numbers_and_marks_are_read() {
    run(&["diff", STARTUP, MAIN, "-U", "18446744073709551615"]).exits(1);
    job("run", &["--fuel", "0"]).exits(2).says(&["out of fuel"]);
    let marked = [b"\xef\xbb\xbf".as_slice(), &run(&["show", MAIN]).out].concat();
    assert_eq!(fed(&marked, &["show", "-"]).exits(0).out, run(&["show", MAIN]).out);
}

#[test]
fn a_text_that_keeps_another_program_beside_its_own_is_refused() {
    // To read, the op is a relu; what would be written is a tanh.
    let text = b"program {\n  main {\n    relu() verbatim x\"1a0474616e68\"\n  }\n}\n";
    fed(text, &["show", "-", "--as", "proto"]).exits(2).says(&["main: blocks[0].ops[0]", "something else"]);
}
