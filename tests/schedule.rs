//! Does a schedule read, print and become the right ops, and does a checkpoint that does not fit say so?

use mastercast::ckpt::{self, Checkpoint, CkptError, Manifest, TensorEntry};
use mastercast::diag::{Code, Severity, render_plain};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section};
use mastercast::names::sym;
use mastercast::schedule::{Applied, ApplyError, Only, Schedule, ScheduleErrorKind, Step};
use proptest::prelude::*;
use std::borrow::Cow;
use std::path::Path;

// ---- text

/// Parses what cannot be a schedule: its kind, the marked text and the caret line.
fn error(text: &str) -> (ScheduleErrorKind, String) {
    let e = Schedule::parse(text).expect_err(text);
    assert!(!e.help.is_empty());
    let shown = e.to_string();
    assert!(shown.contains("  | ") && shown.contains('^') && shown.contains("= help: "), "{shown}");
    (e.kind.clone(), text[e.range].to_owned())
}

#[test]
fn every_step_reads_and_prints() {
    let text = r#" startup , load( a b/c.safetensors ) ,load("x, (y).pt" , only = masters),
        load(p,only=params), amp_init( rewrite_master ), amp_init(), amp_init,main "#;
    let s = Schedule::parse(text).unwrap();
    let load = |path: &str, only| Step::Load { path: path.into(), only };
    let steps = [
        Step::Startup,
        load("a b/c.safetensors", Only::All),
        load("x, (y).pt", Only::Masters),
        load("p", Only::Params),
        Step::AmpInit { rewrite_master: true },
        Step::AmpInit { rewrite_master: false },
        Step::AmpInit { rewrite_master: false },
        Step::Main,
    ];
    assert_eq!(s.steps(), steps);
    assert_eq!(s.paths().collect::<Vec<_>>(), ["a b/c.safetensors", "x, (y).pt", "p"]);
    assert_eq!(
        s.to_string(),
        r#"startup, load(a b/c.safetensors), load("x, (y).pt", only=masters), load(p, only=params), amp_init(rewrite_master), amp_init, amp_init, main"#
    );
    assert_eq!(Schedule::plain().to_string(), "startup, main");
    assert_eq!(Schedule::parse("load(early), startup").unwrap().steps().len(), 2);
    assert_eq!(Schedule::parse(r"startup, load(C:\dir\w)").unwrap().paths().next(), Some(r"C:\dir\w"));
}

#[test]
fn mistakes_have_a_place() {
    use ScheduleErrorKind::*;
    let cases: &[(&str, ScheduleErrorKind, &str)] = &[
        ("", Empty, ""),
        ("  ", Empty, "  "),
        ("startup, lod(x)", UnknownStep("lod".into()), "lod"),
        ("startup, load", MissingPath, "load"),
        ("startup, load()", MissingPath, ")"),
        (r#"startup, load("")"#, MissingPath, r#""""#),
        ("startup, load(x", Unclosed('('), "("),
        (r#"startup, load("x), main"#, Unclosed('"'), "\""),
        (r#"startup, load(a"b), main"#, Unexpected("\"".into()), "\""),
        ("startup, load(x, only=none)", UnknownOption("only=none".into()), "none"),
        ("startup, load(x, strict)", UnknownOption("strict".into()), "strict"),
        ("startup, load(x, only=params, only=masters)", RepeatedOption("only".into()), "only"),
        ("startup, load(x, only)", Unexpected(")".into()), ")"),
        ("startup, amp_init(rewrite)", UnknownOption("rewrite".into()), "rewrite"),
        ("startup, amp_init(rewrite_master", Unclosed('('), "("),
        ("startup load(x)", Unexpected("l".into()), "l"),
        ("startup,, main", Unexpected(",".into()), ","),
        ("startup, ", Unexpected("end of text".into()), ""),
        ("load(x), main", NoStartup, "main"),
        ("load(x)", NoStartup, "load(x)"),
        ("startup, load(x), startup", SecondStartup, "startup"),
        ("amp_init, startup", AmpInitFirst, "amp_init"),
        ("startup, main, load(x)", AfterMain("load".into()), "load(x)"),
        ("startup, main, main", AfterMain("main".into()), "main"),
        ("größe", UnknownStep("größe".into()), "größe"),
    ];
    for (text, kind, marked) in cases {
        assert_eq!(error(text), (kind.clone(), (*marked).to_owned()), "{text}");
    }
}

#[test]
fn an_error_shows_a_caret_under_its_place() {
    let e = Schedule::parse("startup, lod(ü), main").unwrap_err();
    let expected = "in the schedule: there is no step `lod`\n  | startup, lod(ü), main\n  |          ^^^\n  = help: the \
                    steps are `startup`, `load(PATH)`, `amp_init`, `amp_init(rewrite_master)` and `main`";
    assert_eq!(e.to_string(), expected);
}

#[test]
fn limits_hold() {
    let long = format!("startup, load({})", "x".repeat(Schedule::MAX_TEXT));
    assert_eq!(Schedule::parse(&long).unwrap_err().kind, ScheduleErrorKind::TooLong);
    let most = format!("startup{}", ", amp_init".repeat(Schedule::MAX_STEPS - 1));
    assert_eq!(Schedule::parse(&most).unwrap().steps().len(), Schedule::MAX_STEPS);
    assert_eq!(Schedule::parse(&(most + ", main")).unwrap_err().kind, ScheduleErrorKind::TooLong);
}

fn steps() -> impl Strategy<Value = Vec<String>> {
    let path = prop_oneof![
        r#"[a-z,()=" \\./ü]{1,12}"#.prop_map(|s| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""))),
        "[a-z./]{1,8}".prop_map(String::from)
    ];
    let step = prop_oneof![
        path.prop_map(|p| format!("load({p})")),
        Just("load(w, only=masters)".to_owned()),
        Just("amp_init".to_owned()),
        Just("amp_init(rewrite_master)".to_owned()),
    ];
    proptest::collection::vec(step, 0..6)
}

proptest! {
    #[test]
    fn printing_round_trips(steps in steps()) {
        let text = format!("startup, {}main", steps.iter().map(|s| format!("{s}, ")).collect::<String>());
        let s = Schedule::parse(&text).unwrap();
        prop_assert_eq!(&Schedule::parse(&s.to_string()).unwrap(), &s);
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_place(text in r#"(startup|main|load|amp_init|only|[ ,()="\\ü\n]){0,12}"#) {
        if let Err(e) = Schedule::parse(&text) {
            prop_assert!(text.get(e.range.clone()).is_some());
            prop_assert!(e.to_string().contains('^'));
        }
    }
}

// ---- ops

/// Two 16-bit parameters, one of them with a master, and a float32 one; SGD on the pair.
fn program() -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Startup);
    s.param("w", DType::F32, [2, 3]);
    s.param("v", DType::F32, [3]);
    s.param("scale", DType::F32, [3]);
    s.persistable("w_fp32_master_3", DType::F32, [2, 3]);
    s.op("uniform_random").out("Out", ["w"]).done();
    s.op("cast").arg("X", ["w"]).out("Out", ["w_fp32_master_3"]).attr("out_dtype", DType::F32).done();
    let mut m = b.section(Section::Main);
    m.param("w", DType::F16, [2, 3]);
    m.param("v", DType::BF16, [3]);
    m.param("scale", DType::F32, [3]);
    m.persistable("w_fp32_master_3", DType::F32, [2, 3]);
    m.persistable("late", DType::I64, [1]);
    m.var("w@GRAD", DType::F16, [2, 3]);
    m.op("sgd")
        .arg("Param", ["w"])
        .arg("Grad", ["w@GRAD"])
        .arg("MasterParam", ["w_fp32_master_3"])
        .out("ParamOut", ["w"])
        .out("MasterParamOut", ["w_fp32_master_3"])
        .done();
    b.finish()
}

fn entry(name: &str, dtype: DType, shape: &[u64]) -> TensorEntry {
    let bytes = shape.iter().product::<u64>() * dtype.size().unwrap() as u64;
    TensorEntry { name: name.into(), dtype, shape: shape.to_vec(), bytes }
}

/// A checkpoint that has a manifest and no data.
struct Entries(Vec<TensorEntry>);

impl Checkpoint for Entries {
    fn path(&self) -> &Path {
        Path::new("ckpt")
    }
    fn format(&self) -> &'static str {
        "none"
    }
    fn entries(&self) -> &[TensorEntry] {
        &self.0
    }
    fn read(&self, _: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        unreachable!("a manifest is read without its data")
    }
}

fn manifest(entries: &[TensorEntry]) -> Manifest {
    Manifest::of(&Entries(entries.to_vec()))
}

fn apply(schedule: &str, entries: &[TensorEntry]) -> (Program, Applied) {
    let mut p = program();
    let a = Schedule::parse(schedule).unwrap().apply(&mut p, &mut |_| Ok(manifest(entries))).unwrap();
    (p, a)
}

/// Startup's ops, printed.
fn ops(p: &Program) -> Vec<String> {
    p.ops(p.global_block(Section::Startup).unwrap()).map(|o| format!("{o:?}")).collect()
}

const INIT: [&str; 2] = ["(Out: w) = uniform_random()", "(Out: w_fp32_master_3) = cast(X: w)"];

#[test]
fn a_load_and_amp_init_stand_where_the_schedule_has_them() {
    let entries = [entry("w", DType::F32, &[2, 3]), entry("v", DType::BF16, &[3])];
    let (p, a) = apply("load(early), startup, load(dir/w), amp_init, main", &entries);
    assert_eq!(
        ops(&p),
        [
            "(Out: w, v) = load()",
            INIT[0],
            INIT[1],
            "(Out: w, v) = load()",
            "(Out: w) = amp_init(X: w)",
            "(Out: v) = amp_init(X: v)"
        ]
    );
    let load = p.op(a.loads[1].op.unwrap());
    assert_eq!(load.attr(sym::FILE_PATH), Some(&AttrValue::str("dir/w")));
    assert_eq!(load.attr(sym::KEYS), Some(&AttrValue::strs(["w", "v"])));
    assert_eq!(load.attr(sym::STORED_DTYPES), Some(&AttrValue::Ints([5, 22].into())));
    let dtypes: Vec<_> = a.amp_inits.iter().map(|&op| p.op(op).attr(sym::DTYPE).cloned()).collect();
    assert_eq!(dtypes, [Some(AttrValue::Int(4)), Some(AttrValue::Int(22))]);
    assert_eq!(a.narrowed, ["w", "v"]);
    assert_eq!(a.loads[1].names.missing, ["scale"]);
    assert_eq!(a.loads[1].bytes, 30);
    assert!(!a.diagnostics.has_errors());
    assert!(format!("{}", mastercast::diag::Place::op(&p, load.id)).contains("(inserted by `schedule`)"));
}

#[test]
fn rewrite_master_lists_the_pairs_of_what_it_narrows() {
    let (p, _) = apply("startup, amp_init(rewrite_master), main", &[]);
    assert_eq!(
        ops(&p)[2..],
        ["(Out: w; MasterParamOut: w_fp32_master_3) = amp_init(X: w; MasterOf: w)", "(Out: v) = amp_init(X: v)"]
    );
}

/// A master under its dynamic name, and with another counter, is this program's master.
#[test]
fn masters_are_found_under_their_dynamic_names() {
    for (key, why) in
        [("master_weights.w", "a master under its dynamic name"), ("w_fp32_master_0", "a master with another counter")]
    {
        let both = [entry("w", DType::F16, &[2, 3]), entry(key, DType::F32, &[2, 3])];
        let (p, a) = apply("startup, load(x), amp_init, main", &both);
        assert_eq!(ops(&p)[2], "(Out: w, w_fp32_master_3) = load()");
        assert_eq!(p.op(a.loads[0].op.unwrap()).attr(sym::KEYS), Some(&AttrValue::strs(["w", key])));
        assert_eq!(a.loads[0].names.mapped, [(key.to_owned(), "w_fp32_master_3".to_owned(), why.to_owned())]);
        assert_eq!(a.loads[0].names.unexpected, [""; 0]);
    }
    let twice = [entry("w_fp32_master_0", DType::F32, &[2, 3]), entry("w_fp32_master_1", DType::F32, &[2, 3])];
    let (_, a) = apply("startup, load(x), main", &twice);
    assert!(a.diagnostics.has_errors());
    assert!(render_plain(&a.diagnostics).contains("several keys of the checkpoint could be meant"));
}

#[test]
fn only_chooses_parameters_or_masters() {
    let both = [entry("w", DType::F16, &[2, 3]), entry("w_fp32_master_3", DType::F32, &[2, 3])];
    let (p, a) = apply("startup, load(x, only=masters)", &both);
    assert_eq!(ops(&p)[2], "(Out: w_fp32_master_3) = load()");
    assert_eq!(a.loads[0].names.left_out, ["w"]);
    assert!(a.diagnostics.is_empty(), "{}", render_plain(&a.diagnostics));
    let (p, a) = apply("startup, load(x, only=params)", &both);
    assert_eq!(ops(&p)[2], "(Out: w) = load()");
    assert_eq!(a.loads[0].names.missing, ["v", "scale"]);
    let (_, a) = apply("startup, load(x, only=masters)", &both[..1]);
    let d = a.diagnostics.iter().next().unwrap();
    assert_eq!((d.code, d.severity), (Code::MissingKey, Severity::Error));
    assert!(d.help.as_deref().unwrap().contains("leave `only` out"));
}

#[test]
fn what_startup_does_not_declare_is_declared_from_main_once() {
    let entries = [entry("late", DType::I64, &[1])];
    let (p, _) = apply("startup, load(a), load(a), main", &entries);
    let block = p.global_block(Section::Startup).unwrap();
    let late: Vec<_> = p.block(block).vars.iter().map(|&v| p.var_def(v)).filter(|d| p.name(d.name) == "late").collect();
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].dtype, &late[0].shape[..]), (DType::I64, &[1][..]));
}

#[test]
fn a_file_of_one_tensor_without_name_is_named_by_its_path() {
    let (p, a) = apply("startup, load(some/dir/w), main", &[entry("", DType::F32, &[2, 3])]);
    assert_eq!(ops(&p)[2], "(Out: w) = load()");
    assert_eq!(p.op(a.loads[0].op.unwrap()).attr(sym::KEYS), Some(&AttrValue::strs([""])));
}

// ---- what does not fit

/// Applies a load of one entry: the first finding, and that the program is untouched.
fn refused(e: TensorEntry) -> (Code, String) {
    let (p, a) = apply("startup, load(ckpt), amp_init, main", &[e]);
    assert!(a.diagnostics.has_errors());
    assert_eq!(ops(&p), INIT, "the program is left as it was");
    assert!(a.loads[0].op.is_none() && a.amp_inits.is_empty() && a.narrowed.is_empty());
    let d = a.diagnostics.iter().find(|d| d.severity == Severity::Error).unwrap();
    assert!(d.help.is_some());
    (d.code, d.message.clone())
}

#[test]
fn shapes_and_dtypes_that_do_not_fit_are_findings() {
    assert_eq!(
        refused(entry("w", DType::F32, &[3, 2])),
        (Code::LoadShape, "`w` is [2, 3] here and [3, 2] in ckpt".into())
    );
    assert_eq!(refused(entry("v", DType::F32, &[4])).0, Code::LoadShape);
    assert_eq!(refused(entry("w", DType::F32, &[6])).0, Code::LoadShape);
    let (code, message) = refused(entry("w_fp32_master_3", DType::F16, &[2, 3]));
    assert_eq!((code, message.contains("a master")), (Code::LoadDtype, true));
    assert_eq!(refused(entry("w", DType::F64, &[2, 3])).0, Code::LoadDtype);
    assert_eq!(refused(entry("scale", DType::BF16, &[3])).0, Code::LoadDtype);
    // Without a master the parameter is no pair: exactly f32 (startup) or bf16 (main).
    assert_eq!(refused(entry("v", DType::F16, &[3])).0, Code::LoadDtype);
    for (name, dtype) in [("w", DType::BF16), ("w", DType::F16), ("w", DType::F32)] {
        let (_, a) = apply("startup, load(x)", &[entry(name, dtype, &[2, 3])]);
        assert!(!a.diagnostics.has_errors());
    }
    for dtype in [DType::BF16, DType::F32] {
        assert!(!apply("startup, load(x)", &[entry("v", dtype, &[3])]).1.diagnostics.has_errors());
    }
}

#[test]
fn an_unknown_dimension_fits_any_size() {
    let mut b = ProgramBuilder::new();
    b.section(Section::Startup).param("w", DType::F32, [-1, 3]);
    let mut p = b.finish();
    let schedule = Schedule::parse("startup, load(x)").unwrap();
    let a = schedule.apply(&mut p, &mut |_| Ok(manifest(&[entry("w", DType::F32, &[7, 3])]))).unwrap();
    assert!(a.loads[0].op.is_some());
}

#[test]
fn no_key_that_matches_is_an_error_that_names_the_prefix() {
    let keys = [entry("model.w", DType::F32, &[2, 3]), entry("model.v", DType::F32, &[3])];
    let (p, a) = apply("startup, load(ckpt), main", &keys);
    assert_eq!(ops(&p), INIT);
    insta::assert_snapshot!(render_plain(&a.diagnostics), @r"
    error[missing-key]: none of 2 keys in ckpt is the name of a persistable of the program
       = note: `w`; nearest in the checkpoint: `model.w`
       = note: `v`; nearest in the checkpoint: `model.v`
       = note: `scale`
       = help: 2 keys have `model.` before the program's name: rename them without it
    ");
    // The other way round: the program has the prefix (Paddle issue 73749).
    let mut b = ProgramBuilder::new();
    b.section(Section::Startup).param("model.w", DType::F32, [2]);
    let mut p = b.finish();
    let schedule = Schedule::parse("startup, load(ckpt)").unwrap();
    let a = schedule.apply(&mut p, &mut |_| Ok(manifest(&[entry("w", DType::F32, &[2])]))).unwrap();
    let d = a.diagnostics.iter().next().unwrap();
    assert_eq!((d.code, d.severity), (Code::MissingKey, Severity::Error));
    assert!(d.help.as_deref().unwrap().contains("lack `model.`"), "{d:?}");
    let (_, a) = apply("startup, load(empty)", &[]);
    assert!(a.diagnostics.iter().next().unwrap().help.as_deref().unwrap().contains("holds no tensor"));
}

#[test]
fn missing_and_unexpected_stand_side_by_side() {
    let keys = [entry("w", DType::F32, &[2, 3]), entry("scale_1", DType::F32, &[3]), entry("x", DType::F32, &[1])];
    let (_, a) = apply("startup, load(ckpt), main", &keys);
    assert_eq!(a.loads[0].names.unexpected, ["scale_1", "x"]);
    insta::assert_snapshot!(render_plain(&a.diagnostics), @r"
    warning[unexpected-key]: ckpt has 2 keys that the program has no cell for
       = note: `scale_1`; nearest missing here: `scale`
       = note: `x`
    note[missing-key]: ckpt does not bring 2 parameters
       = note: `v`
       = note: `scale`; nearest unexpected there: `scale_1`
    ");
}

#[test]
fn a_manifest_that_cannot_be_read_leaves_the_program_alone_and_is_asked_once() {
    let mut p = program();
    let mut asked = Vec::new();
    let schedule = Schedule::parse("startup, load(a), load(b), load(a)").unwrap();
    let error = schedule.apply(&mut p, &mut |path| {
        asked.push(path.to_owned());
        match path {
            "a" => Ok(manifest(&[entry("w", DType::F32, &[2, 3])])),
            _ => Err(CkptError::Unsupported { path: path.into(), what: "no".into() }),
        }
    });
    let Err(ApplyError::Manifest { path, .. }) = error else { panic!() };
    assert_eq!(path, "b");
    assert_eq!(asked, ["a", "b"]);
    assert_eq!(ops(&p), INIT);
}

// ---- real files

/// The seven orders of the README's table; LOW is the 16-bit type.
const ORDERS: [(char, &str); 7] = [
    ('A', "startup, load(params_f32), amp_init, main"),
    ('B', "startup, amp_init, load(params_f32), main"),
    ('C', "startup, amp_init, load(params_LOW), main"),
    ('D', "startup, load(params_f32), amp_init(rewrite_master), main"),
    ('E', "startup, amp_init(rewrite_master), load(params_LOW), main"),
    ('F', "startup, load(params_and_masters_f32), amp_init, main"),
    ('G', "startup, load(params_and_masters_f32), amp_init(rewrite_master), main"),
];

#[test]
fn real_programs_and_checkpoints_of_paddle_go_through_every_order() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/orders");
    let read = |file: String| std::fs::read(data.join(file)).unwrap();
    for (low, short) in [("fp16", "f16"), ("bf16", "bf16")] {
        for optimizer in ["", ".sgd"] {
            for (order, text) in ORDERS {
                let startup = read(format!("startup.train.O2.{low}{optimizer}.pb"));
                let main = read(format!("train.O2.{low}{optimizer}.pb"));
                let schedule = Schedule::parse(&text.replace("LOW", short)).unwrap();
                for suffix in ["", ".safetensors"] {
                    let mut p = mastercast::paddle::proto::read_program(Some(&startup), Some(&main)).unwrap();
                    let before = ops(&p).len();
                    let a = schedule
                        .apply(&mut p, &mut |path| {
                            let ckpt = ckpt::open(&data.join(format!("{path}{suffix}")))?;
                            Ok(Manifest::of(&*ckpt))
                        })
                        .unwrap();
                    assert!(a.diagnostics.is_empty(), "{low} {order}: {}", render_plain(&a.diagnostics));
                    assert_eq!(ops(&p).len(), before + 2, "{low} {order}: one load, one amp_init");
                    assert_eq!(a.loads[0].names.loaded.len(), if "FG".contains(order) { 8 } else { 4 });
                    assert_eq!(a.narrowed.len(), 4);
                    let amp_init = p.op(a.amp_inits[0]);
                    let masters = amp_init.output(sym::MASTER_PARAM_OUT).len();
                    assert_eq!(masters, if "DEG".contains(order) { 4 } else { 0 });
                    let wanted = DType::parse(short).unwrap().code();
                    assert_eq!(amp_init.attr(sym::DTYPE), Some(&AttrValue::Int(wanted)));
                }
            }
        }
    }
}

#[test]
fn a_combined_file_without_names_says_so() {
    let unnamed = [entry("", DType::F32, &[2, 3]), entry("", DType::F32, &[3])];
    let (p, a) = apply("startup, load(x.pdiparams)", &unnamed);
    assert_eq!(ops(&p), INIT);
    let d = a.diagnostics.iter().next().unwrap();
    assert_eq!((d.code, d.message.as_str()), (Code::MissingKey, "x.pdiparams holds 2 tensors without names"));
}

#[test]
fn real_checkpoints_that_are_partial_are_legal() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/orders");
    let startup = std::fs::read(data.join("startup.train.O2.fp16.sgd.pb")).unwrap();
    let main = std::fs::read(data.join("train.O2.fp16.sgd.pb")).unwrap();
    let mut p = mastercast::paddle::proto::read_program(Some(&startup), Some(&main)).unwrap();
    let schedule = Schedule::parse("startup, load(partial/fc_0.w_0), amp_init, main").unwrap();
    let a = schedule.apply(&mut p, &mut |path| Ok(Manifest::of(&*ckpt::open(&data.join(path))?))).unwrap();
    assert_eq!(a.loads[0].names.loaded, ["fc_0.w_0"]);
    assert_eq!(a.loads[0].names.missing, ["fc_0.b_0", "fc_1.b_0", "fc_1.w_0"]);
    assert!(!a.diagnostics.has_errors());
}
