//! Does a saved run go on as if it had not stopped? And is a load all or nothing?

use mastercast::ckpt::plan::{OnConflict, Policy, Which};
use mastercast::ckpt::{self, Checkpoint, DistFlavour, DistWriter, PickleOptions, TensorData};
use mastercast::convert::Narrowing;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, Section};
use mastercast::paddle::proto::read_program;
use mastercast::state::{Load, LoadError, checkpoint_of, set_state_dict, state_dict};
use mastercast::text;
use std::path::Path;

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

fn program(startup: &str, main: &str) -> Program {
    read_program(Some(&bytes(startup)), Some(&bytes(main))).unwrap()
}

fn feeds() -> Vec<(String, Tensor)> {
    let file = ckpt::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlp/feeds.safetensors")).unwrap();
    let read = |i: usize| {
        let e = &file.entries()[i];
        let shape: Vec<usize> = e.shape.iter().map(|&d| d as usize).collect();
        (e.name.clone(), Tensor::from_bytes(e.dtype, &shape, &file.read(i).unwrap()).unwrap())
    };
    (0..file.entries().len()).map(read).collect()
}

fn steps(program: &Program, scope: &mut Scope, count: usize) {
    let mut interpreter = Interpreter::new(program);
    for _ in 0..count {
        interpreter.run_with(Section::Main, scope, &feeds(), &[]).unwrap();
    }
}

#[track_caller]
fn assert_same(program: &Program, a: &Scope, b: &Scope) {
    let (a, b) = (state_dict(program, a, Which::All), state_dict(program, b, Which::All));
    assert_eq!(a.len(), b.len());
    for ((name, x), (other, y)) in a.iter().zip(&b) {
        assert!(name == other && x.bits_eq(y), "{name} differs");
    }
}

/// Every format that can be written, written from a state dict.
fn written(dir: &Path, state: &[(String, Tensor)]) -> Vec<std::path::PathBuf> {
    let tensors = || {
        state.iter().map(|(n, t)| {
            let shape: Vec<u64> = t.shape().iter().map(|&d| d as u64).collect();
            TensorData::new(n.clone(), t.dtype(), shape, t.to_bytes())
        })
    };
    let paths = ["s.safetensors", "s.pdparams", "dist", "streams"].map(|n| dir.join(n));
    ckpt::write_safetensors(&paths[0], tensors(), &Default::default()).unwrap();
    ckpt::write_pickle(&paths[1], tensors(), &PickleOptions::default()).unwrap();
    let mut w = DistWriter::create(&paths[2], DistFlavour::V3).unwrap();
    w.whole(tensors()).unwrap();
    w.finish().unwrap();
    let from = ckpt::open(&paths[0]).unwrap();
    let items: Vec<_> = from.entries().iter().enumerate().map(|(i, e)| (i, &e.name[..])).collect();
    ckpt::convert_to_streams(&*from, &items, &paths[3], &mut |_| ()).unwrap();
    paths.to_vec()
}

#[test]
fn a_run_of_ten_steps_goes_on_bit_for_bit() {
    for (startup, main) in [
        ("mlp/startup.train.O2.fp16.momentum.pb", "mlp/train.O2.fp16.momentum.pb"),
        ("mlp/startup.train.O2.bf16.momentum.pb", "mlp/train.O2.bf16.momentum.pb"),
        ("orders/startup.train.O2.fp16.pb", "mlp/train.O2.fp16.adamw.pb"),
        ("mlp/startup.train.fp32.pb", "mlp/train.fp32.adamw.pb"),
    ] {
        let program = program(startup, main);
        let mut scope = Scope::new();
        Interpreter::new(&program).run(Section::Startup, &mut scope).unwrap();
        // `amp_init`, which no file of these shows.
        for cell in mastercast::state::cells(&program) {
            let value = scope.get(&cell.name).unwrap().clone();
            scope.set(&cell.name, value.cast(cell.dtype, Narrowing::NearestEven).unwrap());
        }
        steps(&program, &mut scope, 10);
        let state = state_dict(&program, &scope, Which::All);
        let all = mastercast::state::cells(&program).len();
        assert_eq!(state.len(), all, "{main}: every cell has a value");
        let dir = tempfile::tempdir().unwrap();
        let paths = written(dir.path(), &state);
        steps(&program, &mut scope, 3);
        for path in paths {
            let ckpt = ckpt::open(&path).unwrap();
            let mut fresh = Scope::new();
            let load = Load::plan(&program, &[&*ckpt], Policy::default());
            let report = load.run(&mut fresh, 2, &|_| ()).unwrap();
            assert_eq!((report.loaded.len(), report.conflicts.len()), (all, 0));
            assert_eq!(state_dict(&program, &fresh, Which::All).len(), all);
            steps(&program, &mut fresh, 3);
            assert_same(&program, &scope, &fresh);
        }
        // In memory, in two parts.
        let mut fresh = Scope::new();
        let part = |which| state.iter().filter(|(n, _)| belongs(&program, n, which)).cloned().collect::<Vec<_>>();
        for which in [Which::Params, Which::Optimizer] {
            set_state_dict(&program, &mut fresh, &part(which), Policy { which, ..Policy::default() }).unwrap();
        }
        steps(&program, &mut fresh, 3);
        assert_same(&program, &scope, &fresh);
    }
}

fn belongs(program: &Program, name: &str, which: Which) -> bool {
    mastercast::state::cells(program).iter().any(|c| c.name == name && which.has(c.role))
}

/// One pair and an accumulator.
fn small() -> Program {
    let (program, found) = text::parse(
        r#"program {
  startup {
    param w : f32[2] persistable
    var w_fp32_master_0 : f32[2] persistable
    var v : f32[2] persistable
    var lr : f32[1] persistable
    (Out: lr) = fill_constant() {dtype: f32, shape: [1L], value: 0.0f}
  }
  main {
    param w : f16[2] persistable
    var w_fp32_master_0 : f32[2] persistable
    var v : f32[2] persistable
    var g : f16[2]
    var lr : f32[1] persistable
    (Out: g) = tanh(X: w)
    (ParamOut: w; VelocityOut: v; MasterParamOut: w_fp32_master_0) = momentum(Param: w; Grad: g; Velocity: v; LearningRate: lr; MasterParam: w_fp32_master_0) {multi_precision: true, mu: 0.9f}
  }
}"#,
        "small",
    );
    assert!(!found.has_errors(), "{found:?}");
    program
}

fn f32s(values: &[f32]) -> Tensor {
    Tensor::new(&[values.len()], values.to_vec()).unwrap()
}

fn low(values: &[f32], dtype: DType) -> Tensor {
    f32s(values).cast(dtype, Narrowing::NearestEven).unwrap()
}

fn get(scope: &Scope, name: &str) -> Vec<f32> {
    scope.get(name).unwrap().to_f32_vec()
}

#[test]
fn parameter_and_master_follow_the_table() {
    let program = small();
    let (value, f16, bf16) = ([1.2345678, -3.0], [1.234375, -3.0], [1.234375, -3.0]);
    let params = Policy { which: Which::Params, ..Policy::default() };
    for (state, policy, param, master) in [
        (vec![("w", f32s(&value))], &params, f16, value),
        (vec![("w", low(&value, DType::F16))], &params, f16, f16),
        (vec![("w", low(&value, DType::BF16))], &params, bf16, bf16),
        (
            vec![("master_weights.w", f32s(&value))],
            &Policy { which: Which::Optimizer, allow_missing: true, ..Policy::default() },
            f16,
            value,
        ),
        (
            vec![("w", low(&value, DType::F16)), ("w_fp32_master_0", f32s(&value))],
            &Policy { allow_missing: true, ..Policy::default() },
            f16,
            value,
        ),
    ] {
        let mut scope = Scope::new();
        scope.set("w", low(&[9.0, 9.0], DType::F16));
        scope.set("w_fp32_master_0", f32s(&[9.0, 9.0]));
        let state: Vec<_> = state.into_iter().map(|(n, t)| (n.to_owned(), t)).collect();
        let report = set_state_dict(&program, &mut scope, &state, policy.clone()).unwrap();
        assert_eq!(scope.get("w").unwrap().dtype(), DType::F16);
        assert_eq!((get(&scope, "w"), get(&scope, "w_fp32_master_0")), (param.to_vec(), master.to_vec()));
        assert_eq!(report.conflicts, []);
        // TensorAuto/OpenTau#185: what is made from 16 bits is said.
        let rebuilt = report.loaded.iter().any(|l| l.from_16_bits);
        assert_eq!(rebuilt, state.len() == 1 && state[0].1.dtype() != DType::F32, "{report:?}");
        // A step with learning rate 0 changes neither.
        scope.set("lr", f32s(&[0.0]));
        scope.set("v", f32s(&[0.0, 0.0]));
        Interpreter::new(&program).run(Section::Main, &mut scope).unwrap();
        assert_eq!((get(&scope, "w"), get(&scope, "w_fp32_master_0")), (param.to_vec(), master.to_vec()));
    }
}

#[test]
fn a_parameter_that_differs_from_its_master_is_a_conflict() {
    let program = small();
    let state = [("w".to_owned(), low(&[1.0, 2.0], DType::F16)), ("w_fp32_master_0".to_owned(), f32s(&[1.0, 2.5]))];
    let run = |on_conflict| {
        let mut scope = Scope::new();
        let policy = Policy { on_conflict, allow_missing: true, ..Policy::default() };
        let outcome = set_state_dict(&program, &mut scope, &state, policy);
        (outcome, scope)
    };
    let (outcome, scope) = run(OnConflict::Error);
    assert!(matches!(outcome, Err(LoadError::Conflict(ref c)) if c.largest == 0.5 && c.param == "w"));
    assert!(scope.is_empty(), "nothing was written");
    let (outcome, scope) = run(OnConflict::Master);
    assert_eq!(outcome.unwrap().conflicts[0].master, "w_fp32_master_0");
    assert_eq!((get(&scope, "w"), get(&scope, "w_fp32_master_0")), (vec![1.0, 2.5], vec![1.0, 2.5]));
    let (outcome, scope) = run(OnConflict::Param);
    assert_eq!(outcome.unwrap().conflicts.len(), 1);
    assert_eq!((get(&scope, "w"), get(&scope, "w_fp32_master_0")), (vec![1.0, 2.0], vec![1.0, 2.0]));
}

/// A checkpoint whose second tensor cannot be read.
struct Torn(mastercast::interp::MemoryCheckpoint);

impl Checkpoint for Torn {
    fn path(&self) -> &Path {
        Path::new("torn")
    }
    fn format(&self) -> &'static str {
        "torn"
    }
    fn entries(&self) -> &[ckpt::TensorEntry] {
        self.0.entries()
    }
    fn read(&self, index: usize) -> Result<std::borrow::Cow<'_, [u8]>, ckpt::CkptError> {
        let gone = || std::io::Error::other("the disk is gone");
        if index == 1 { Err(ckpt::CkptError::Io { path: "torn".into(), source: gone() }) } else { self.0.read(index) }
    }
}

#[test]
fn a_load_is_all_or_nothing() {
    let program = small();
    let mut scope = Scope::new();
    scope.set("w", low(&[9.0, 9.0], DType::F16));
    let before = format!("{scope:?}");
    // Problems: a wrong shape beside what would fit.
    let state =
        [("w".to_owned(), f32s(&[1.0, 2.0])), ("v".to_owned(), f32s(&[1.0; 3])), ("lr".to_owned(), f32s(&[0.1]))];
    let error = set_state_dict(&program, &mut scope, &state, Policy::default()).unwrap_err();
    assert!(error.to_string().contains("`v` is [2] here, and `v` is [3]"), "{error}");
    assert_eq!(format!("{scope:?}"), before);
    // A read that fails in the middle.
    let state =
        [("w".to_owned(), f32s(&[1.0, 2.0])), ("v".to_owned(), f32s(&[1.0; 2])), ("lr".to_owned(), f32s(&[0.1]))];
    let torn = Torn(checkpoint_of("torn", &state));
    for threads in [1, 3] {
        let load = Load::plan(&program, &[&torn], Policy::default());
        assert!(load.decided().is_ok());
        let error = load.run(&mut scope, threads, &|_| ()).unwrap_err();
        assert!(error.to_string().contains("the disk is gone"), "{error}");
        assert_eq!(format!("{scope:?}"), before);
    }
}
