//! Do the ops that narrow, load, synchronise and update do what their documentation says?

#[path = "common/run.rs"]
mod common;

use common::*;
use mastercast::ckpt::{Checkpoint, CkptError};
use mastercast::convert::Narrowing;
use mastercast::interp::{
    Data, DiskFiles, Fault, Files, InterpError, Interpreter, MemoryCheckpoint, Options, RunStats, SaveFormat, Scope,
    Tensor,
};
use mastercast::ir::{AttrValue, DType, Program, Section};
use std::path::Path;
use std::sync::Arc;

const M: &str = "w_fp32_master_0";
const LOWS: [DType; 2] = [DType::F16, DType::BF16];

/// One checkpoint in memory, under any path.
struct Memory(MemoryCheckpoint);

impl Files for Memory {
    fn open(&self, _: &Path) -> Result<Arc<dyn Checkpoint>, CkptError> {
        Ok(Arc::new(self.0.clone()))
    }
    fn open_combined(&self, path: &Path, _: &[&str]) -> Result<Arc<dyn Checkpoint>, CkptError> {
        self.open(path)
    }
    fn write(&self, path: &Path, _: SaveFormat, _: &[(&str, Tensor)]) -> Result<(), CkptError> {
        Err(CkptError::Unsupported { path: path.into(), what: "read only".into() })
    }
}

fn load_from(program: &Program, scope: &mut Scope, tensors: &[(&str, Tensor)]) -> Result<RunStats, InterpError> {
    let ckpt = MemoryCheckpoint::new("ckpt", tensors.iter().cloned());
    Interpreter::new(program).with_files(Memory(ckpt)).run(Section::Main, scope)
}

// ---- narrowing

#[test]
fn cast_rounds_and_truncates_as_asked() {
    let cases = [
        (DType::F16, Narrowing::NearestEven, 1.239_257_8),
        (DType::F16, Narrowing::Truncate, 1.238_281_3),
        (DType::BF16, Narrowing::NearestEven, 1.242_187_5),
        (DType::BF16, Narrowing::Truncate, 1.234_375),
    ];
    for (dtype, narrowing, want) in cases {
        let p = main_of(|s| {
            s.persistable("y", dtype, [1]);
            s.op("cast").arg("X", ["x"]).out("Out", ["y"]).attr("out_dtype", dtype).done();
        });
        let mut scope = Scope::new();
        scope.set("x", f32s(&[1.2388]));
        run_with(&p, &mut scope, options(|o| o.narrowing = narrowing)).unwrap();
        let y = scope.get("y").unwrap();
        assert_eq!((y.dtype(), y.to_f32_vec()), (dtype, vec![want]), "{dtype} {narrowing:?}");
    }
}

/// Paddle 2.6.2 on a CPU: float16 by NumPy, to nearest even; bfloat16 by its cast, truncated.
#[test]
fn amp_init_truncates_bfloat16_only() {
    let cases = [
        (DType::F16, Narrowing::NearestEven, 1.239_257_8),
        (DType::F16, Narrowing::Truncate, 1.239_257_8),
        (DType::BF16, Narrowing::NearestEven, 1.242_187_5),
        (DType::BF16, Narrowing::Truncate, 1.234_375),
    ];
    for (dtype, narrowing, want) in cases {
        let p = main_of(|s| {
            s.op("amp_init").arg("X", ["w"]).out("Out", ["w"]).attr("dtype", dtype).done();
        });
        let mut scope = Scope::new();
        scope.set("w", f32s(&[1.2388]));
        scope.set(M, f32s(&[7.0]));
        run_with(&p, &mut scope, options(|o| o.narrowing = narrowing)).unwrap();
        assert_eq!(scope.get("w").unwrap().to_f32_vec(), [want], "{dtype} {narrowing:?}");
        assert_eq!(scope.get(M).unwrap().to_f32_vec(), [7.0]);
        // What is narrow already stays as it is.
        run_with(&p, &mut scope, options(|o| o.narrowing = narrowing)).unwrap();
        assert_eq!((scope.get("w").unwrap().dtype(), scope.get("w").unwrap().to_f32_vec()), (dtype, vec![want]));
    }
}

#[test]
fn amp_init_rewrites_the_masters_that_it_is_given() {
    let p = main_of(|s| {
        s.op("amp_init")
            .arg("X", ["v", "w"])
            .arg("MasterOf", ["w"])
            .out("Out", ["v", "w"])
            .out("MasterParamOut", [M])
            .attr("dtype", DType::F16)
            .done();
    });
    let mut scope = Scope::new();
    scope.set("v", f32s(&[2.0]));
    scope.set("w", f32s(&[1.2388]));
    scope.set(M, f32s(&[7.0]));
    run(&p, &mut scope);
    let m = scope.get(M).unwrap();
    assert_eq!((m.dtype(), m.to_f32_vec()), (DType::F32, vec![1.239_257_8]));
    assert_eq!(scope.get("v").unwrap().dtype(), DType::F16);
}

#[test]
fn casts_between_all_types() {
    let x = Tensor::new(&[4], vec![-1.5f32, 0.0, 2.75, f32::NAN]).unwrap();
    let to = |d| x.cast(d, Narrowing::NearestEven).unwrap();
    assert_eq!(to(DType::I32).data(), &Data::I32(vec![-1, 0, 2, 0]));
    assert_eq!(to(DType::U8).data(), &Data::U8(vec![255, 0, 2, 0]));
    assert_eq!(to(DType::Bool).data(), &Data::Bool(vec![true, false, true, true]));
    assert_eq!(to(DType::F64).to_f64_vec()[..3], [-1.5, 0.0, 2.75]);
    assert!(x.cast(DType::C64, Narrowing::NearestEven).is_err());
    for dtype in [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64, DType::F16, DType::BF16] {
        let t = to(dtype);
        let back = Tensor::from_bytes(dtype, t.shape(), &t.to_bytes()).unwrap();
        assert!(back.bits_eq(&t), "{dtype}");
    }
}

// ---- load and save

fn load_program(dtype: DType, keys: Option<&[&str]>, outs: &[&str]) -> Program {
    main_of(|s| {
        for out in outs {
            s.persistable(out, dtype, [2]);
        }
        let op = s.op("load").out("Out", outs.iter().copied()).attr("file_path", "f");
        let op = match keys {
            Some(keys) => op.attr("keys", AttrValue::strs(keys.iter().copied())),
            None => op,
        };
        op.done();
    })
}

#[test]
fn a_loaded_cell_takes_the_stored_type_and_value() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // The program says float16 throughout: order B.
        let p = load_program(DType::F16, None, &["w"]);
        let mut scope = Scope::new();
        load_from(&p, &mut scope, &[("w", low(&[1.0, 2.0], dtype))]).unwrap();
        assert!(scope.get("w").unwrap().bits_eq(&low(&[1.0, 2.0], dtype)));
    }
}

#[test]
fn load_reads_by_key_and_names_the_nearest_when_one_is_missing() {
    let stored = [("a.w", f32s(&[1.0, 2.0])), ("a.b", f32s(&[3.0, 4.0]))];
    let mut scope = Scope::new();
    load_from(&load_program(DType::F32, Some(&["a.b", "a.w"]), &["x", "y"]), &mut scope, &stored).unwrap();
    assert_eq!(scope.get("x").unwrap().to_f32_vec(), [3.0, 4.0]);
    assert_eq!(scope.get("y").unwrap().to_f32_vec(), [1.0, 2.0]);

    let mut scope = Scope::new();
    let e = load_from(&load_program(DType::F32, Some(&["a.w", "a.c"]), &["x", "y"]), &mut scope, &stored).unwrap_err();
    match e.fault() {
        Fault::MissingKey { key, near, .. } => {
            assert_eq!((key.as_str(), &near[..]), ("a.c", &["a.b".into(), "a.w".into()][..]))
        }
        other => panic!("{other}"),
    }
    assert!(e.to_string().contains("main: blocks[0].ops[0]"), "{e}");
    assert!(scope.is_empty(), "nothing was written");
}

#[test]
fn a_load_that_does_not_fit_writes_nothing() {
    let p = load_program(DType::F32, None, &["x", "y"]);
    let mut scope = Scope::new();
    let e = load_from(&p, &mut scope, &[("x", f32s(&[1.0, 2.0])), ("y", f32s(&[1.0, 2.0, 3.0, 4.0]))]).unwrap_err();
    assert!(matches!(e.fault(), Fault::LoadShape { name, stored, .. } if name == "y" && stored == &[4]), "{e}");
    assert!(scope.is_empty());

    let e = load_from(
        &load_program(DType::BF16, None, &["x"]),
        &mut scope,
        &[("x", Tensor::new(&[2], vec![1f64, 2.0]).unwrap())],
    )
    .unwrap_err();
    assert!(matches!(e.fault(), Fault::LoadDType { stored: DType::F64, .. }), "{e}");

    let p = main_of(|s| {
        let promised = AttrValue::Ints([DType::F16.code()].into());
        s.op("load").out("Out", ["x"]).attr("file_path", "f").attr("stored_dtypes", promised).done();
    });
    let e = load_from(&p, &mut scope, &[("x", f32s(&[1.0]))]).unwrap_err();
    assert!(matches!(e.fault(), Fault::LoadDType { stored: DType::F32, .. }), "{e}");
    assert!(scope.is_empty());
}

#[test]
fn save_and_load_go_round_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::F64] {
        let write = main_of(|s| {
            s.op("save").arg("X", ["x"]).attr("file_path", "one").done();
            s.op("save_combine").arg("X", ["y", "x"]).attr("file_path", "two").done();
        });
        let values = f32s(&[1.0, -2.0, 1.2388]).cast(dtype, Narrowing::NearestEven).unwrap();
        let mut scope = Scope::new();
        scope.set("x", values.clone());
        scope.set("y", Tensor::scalar(7i64));
        let base = || options(|o| o.base_dir = dir.path().to_owned());
        run_with(&write, &mut scope, base()).unwrap();

        let read = main_of(|s| {
            for name in ["a", "b", "c"] {
                s.persistable(name, DType::F32, [-1]);
            }
            s.op("load").out("Out", ["a"]).attr("file_path", "one").done();
            s.op("load_combine").out("Out", ["b", "c"]).attr("file_path", "two").done();
        });
        let mut scope = Scope::new();
        run_with(&read, &mut scope, base()).unwrap();
        assert!(scope.get("a").unwrap().bits_eq(&values), "{dtype}");
        assert!(scope.get("b").unwrap().bits_eq(&Tensor::scalar(7i64)));
        assert!(scope.get("c").unwrap().bits_eq(&values));
    }
    let missing = main_of(|s| {
        s.op("load").out("Out", ["a"]).attr("file_path", "nowhere").done();
    });
    let e = fault_of(&missing, &mut Scope::new(), options(|o| o.base_dir = dir.path().to_owned()));
    assert!(matches!(e.fault(), Fault::Ckpt(CkptError::Io { .. })), "{e}");
    assert!(DiskFiles.open(&dir.path().join("one")).unwrap().entries().len() == 1);
}

// ---- resync

fn resync(dtype: DType, direction: &str, on_conflict: Option<&str>) -> Program {
    main_of(|s| {
        let op = s
            .op("resync")
            .arg("Param", ["w"])
            .arg("MasterParam", [M])
            .out("ParamOut", ["w"])
            .out("MasterParamOut", [M])
            .attr("dtype", dtype)
            .attr("direction", direction);
        match on_conflict {
            Some(policy) => op.attr("on_conflict", policy),
            None => op,
        }
        .done();
    })
}

fn pair(param: Tensor, master: Tensor) -> Scope {
    let mut scope = Scope::new();
    scope.set("w", param);
    scope.set(M, master);
    scope
}

fn assert_pair(scope: &Scope, param: &Tensor, master: &[f32], what: &str) {
    let (p, m) = (scope.get("w").unwrap(), scope.get(M).unwrap());
    assert!(p.bits_eq(param), "{what}: parameter {p:?} for {param:?}");
    assert!(m.bits_eq(&f32s(master)), "{what}: master {m:?} for {master:?}");
}

#[test]
fn resync_follows_its_direction() {
    for dtype in LOWS {
        let other = if dtype == DType::F16 { DType::BF16 } else { DType::F16 };
        let v = 1.2388f32;
        let narrow = low(&[v], dtype);

        let mut s = pair(f32s(&[v]), f32s(&[9.0]));
        run(&resync(dtype, "param", None), &mut s);
        assert_pair(&s, &narrow, &[v], "float32 parameter");

        let mut s = pair(narrow.clone(), f32s(&[9.0]));
        run(&resync(dtype, "param", None), &mut s);
        assert_pair(&s, &narrow, &narrow.to_f32_vec(), "16-bit parameter");

        let foreign = low(&[v], other);
        let mut s = pair(foreign.clone(), f32s(&[9.0]));
        run(&resync(dtype, "param", None), &mut s);
        assert_pair(&s, &low(&foreign.to_f32_vec(), dtype), &foreign.to_f32_vec(), "other 16-bit kind");

        let mut s = pair(low(&[9.0], dtype), f32s(&[v]));
        run(&resync(dtype, "master", None), &mut s);
        assert_pair(&s, &narrow, &[v], "master");

        let mut s = pair(f32s(&[v]), f32s(&[v]));
        let stats = run(&resync(dtype, "both", Some("error")), &mut s);
        assert_pair(&s, &narrow, &[v], "both, in agreement");
        assert!(stats.warnings.is_empty());
    }
}

#[test]
fn a_conflict_goes_by_its_policy() {
    for dtype in LOWS {
        let clash = || pair(low(&[1.0, 3.5], dtype), f32s(&[1.0, 1.2388]));
        let largest = 3.5 - low(&[1.2388], dtype).to_f32_vec()[0];

        let mut s = clash();
        let e = fault_of(&resync(dtype, "both", Some("error")), &mut s, Options::default());
        match e.fault() {
            Fault::Conflict { param, master, largest: seen } => {
                assert_eq!((param.as_str(), master.as_str(), *seen), ("w", M, largest));
            }
            other => panic!("{other}"),
        }
        assert_pair(&s, &low(&[1.0, 3.5], dtype), &[1.0, 1.2388], "error");

        for policy in [None, Some("master")] {
            let mut s = clash();
            let stats = run(&resync(dtype, "both", policy), &mut s);
            assert_pair(&s, &low(&[1.0, 1.2388], dtype), &[1.0, 1.2388], "master");
            assert_eq!(stats.warnings.len(), 1);
            assert!(stats.warnings[0].message.contains(&format!("{largest:e}")), "{:?}", stats.warnings);
        }

        let mut s = clash();
        let stats = run(&resync(dtype, "both", Some("param")), &mut s);
        assert_pair(&s, &low(&[1.0, 3.5], dtype), &[1.0, 3.5], "param");
        assert!(stats.warnings.is_empty());
    }
}

#[test]
fn resync_auto_goes_by_what_was_loaded_last() {
    let auto = resync(DType::F16, "auto", Some("error"));
    let mut s = pair(low(&[1.0], DType::F16), f32s(&[2.0]));
    run(&auto, &mut s);
    assert_pair(&s, &low(&[1.0], DType::F16), &[2.0], "neither was loaded");

    s.set_loaded("w", f32s(&[1.2388]));
    run(&auto, &mut s);
    assert_pair(&s, &low(&[1.2388], DType::F16), &[1.2388], "parameter");

    s.set_loaded(M, f32s(&[3.0]));
    run(&auto, &mut s);
    assert_pair(&s, &low(&[3.0], DType::F16), &[3.0], "master alone since the last resync");

    s.set_loaded("w", f32s(&[5.0]));
    s.set_loaded(M, f32s(&[6.0]));
    let e = fault_of(&auto, &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::Conflict { largest: 1.0, .. }), "{e}");

    // A load op counts, an op that computes does not.
    let p = main_of(|b| {
        b.persistable("w", DType::F16, [1]);
        b.persistable(M, DType::F32, [1]);
        b.op("load").out("Out", ["w"]).attr("file_path", "f").done();
        b.op("scale").arg("X", [M]).out("Out", [M]).attr("scale", 2.0f32).done();
        b.op("resync")
            .arg("Param", ["w"])
            .arg("MasterParam", [M])
            .out("ParamOut", ["w"])
            .out("MasterParamOut", [M])
            .attr("dtype", DType::F16)
            .attr("direction", "auto")
            .done();
    });
    let mut s = pair(low(&[1.0], DType::F16), f32s(&[2.0]));
    load_from(&p, &mut s, &[("w", f32s(&[1.2388]))]).unwrap();
    assert_pair(&s, &low(&[1.2388], DType::F16), &[1.2388], "load op");
}

#[test]
fn resync_refuses_what_is_no_pair() {
    let mut s = pair(Tensor::new(&[1], vec![1i64]).unwrap(), f32s(&[1.0]));
    let e = fault_of(&resync(DType::F16, "param", None), &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::DType { slot, dtype: DType::I64, .. } if slot == "Param"), "{e}");
    let mut s = pair(f32s(&[1.0, 2.0]), f32s(&[1.0]));
    let e = fault_of(&resync(DType::F16, "both", None), &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::Shape { .. }), "{e}");
    for (direction, policy) in [("sideways", None), ("both", Some("maybe"))] {
        let mut s = pair(f32s(&[1.0]), f32s(&[1.0]));
        let e = fault_of(&resync(DType::F16, direction, policy), &mut s, Options::default());
        assert!(matches!(e.fault(), Fault::BadAttr { .. }), "{e}");
    }
    let e = fault_of(&resync(DType::F32, "param", None), &mut pair(f32s(&[1.0]), f32s(&[1.0])), Options::default());
    assert!(matches!(e.fault(), Fault::BadAttr { name, .. } if name == "dtype"), "{e}");
}

// ---- optimizers

fn sgd(multi: bool) -> Program {
    main_of(|s| {
        let op = s.op("sgd").arg("Param", ["w"]).arg("Grad", ["g"]).arg("LearningRate", ["lr"]);
        let op = if multi { op.arg("MasterParam", [M]) } else { op };
        let op = op.out("ParamOut", ["w"]);
        let op = if multi { op.out("MasterParamOut", [M]) } else { op };
        op.attr("multi_precision", multi).done();
    })
}

/// Steps too small for 16 bits add up in the master and are lost without one.
#[test]
fn a_master_keeps_what_16_bits_lose() {
    for dtype in LOWS {
        let start = || {
            let mut s = pair(low(&[1.0], dtype), f32s(&[1.0]));
            s.set("g", low(&[1.0], dtype));
            s.set("lr", f32s(&[1.0 / 4096.0]));
            s
        };
        let (mut with, mut without) = (start(), start());
        for _ in 0..64 {
            run(&sgd(true), &mut with);
            run(&sgd(false), &mut without);
        }
        let moved = 1.0 - 64.0 / 4096.0;
        assert_pair(&with, &low(&[moved], dtype), &[moved], "with a master");
        // Below 1 the 16-bit values are 2^-11 and 2^-8 apart: the first step is lost or half lost.
        assert_ne!(without.get("w").unwrap().to_f32_vec(), [moved], "{dtype}");
        assert_eq!(without.get(M).unwrap().to_f32_vec(), [1.0]);
    }
    let mut s = Scope::new();
    s.set("w", low(&[1.0], DType::F16));
    s.set("g", low(&[1.0], DType::F16));
    s.set("lr", f32s(&[1.0]));
    let e = fault_of(&sgd(true), &mut s, Options::default());
    assert!(matches!(e.fault(), Fault::MissingValue { name, .. } if name == M), "{e}");
}

#[test]
fn momentum_has_nesterov_and_decay() {
    let step = |nesterov: bool, decay: f32| {
        let p = main_of(|s| {
            s.op("momentum")
                .arg("Param", ["w"])
                .arg("Grad", ["g"])
                .arg("Velocity", ["v"])
                .arg("LearningRate", ["lr"])
                .out("ParamOut", ["w"])
                .out("VelocityOut", ["v"])
                .attr("mu", 0.5f32)
                .attr("use_nesterov", nesterov)
                .attr("regularization_method", if decay == 0.0 { "" } else { "l2_decay" })
                .attr("regularization_coeff", decay)
                .attr("rescale_grad", 2.0f32)
                .done();
        });
        let mut s = Scope::new();
        for (name, v) in [("w", 8.0), ("g", 1.0), ("v", 4.0), ("lr", 0.25)] {
            s.set(name, f32s(&[v]));
        }
        run(&p, &mut s);
        (s.get("w").unwrap().to_f32_vec()[0], s.get("v").unwrap().to_f32_vec()[0])
    };
    assert_eq!(step(false, 0.0), (8.0 - 0.25 * 4.0, 4.0));
    assert_eq!(step(true, 0.0), (8.0 - 0.25 * (2.0 + 4.0 * 0.5), 4.0));
    assert_eq!(step(false, 0.5), (8.0 - 0.25 * 8.0, 8.0));
}

#[test]
fn the_loss_scale_grows_shrinks_and_stays() {
    let p = |stop: bool| {
        main_of(|s| {
            s.op("update_loss_scaling")
                .arg("X", ["g"])
                .arg("FoundInfinite", ["found"])
                .arg("PrevLossScaling", ["scale"])
                .arg("InGoodSteps", ["good"])
                .arg("InBadSteps", ["bad"])
                .out("Out", ["g"])
                .out("LossScaling", ["scale"])
                .out("OutGoodSteps", ["good"])
                .out("OutBadSteps", ["bad"])
                .attr("incr_every_n_steps", 2)
                .attr("decr_every_n_nan_or_inf", 2)
                .attr("incr_ratio", 4.0f32)
                .attr("decr_ratio", 0.25f32)
                .attr("stop_update", stop)
                .done();
        })
    };
    let mut s = Scope::new();
    s.set("scale", f32s(&[8.0]));
    s.set("good", Tensor::new(&[1], vec![0i32]).unwrap());
    s.set("bad", Tensor::new(&[1], vec![0i32]).unwrap());
    let mut seen = Vec::new();
    for (found, stop) in [
        (false, false),
        (false, false),
        (true, false),
        (false, false),
        (true, false),
        (true, false),
        (true, false),
        (true, false),
        (true, true),
    ] {
        s.set("g", f32s(&[f32::INFINITY, 1.0]));
        s.set("found", Tensor::new(&[1], vec![found]).unwrap());
        run(&p(stop), &mut s);
        assert_eq!(s.get("g").unwrap().to_f32_vec(), if found { [0.0, 0.0] } else { [f32::INFINITY, 1.0] });
        let int = |n: &str| s.get(n).unwrap().to_i64_vec()[0];
        seen.push((s.get("scale").unwrap().to_f32_vec()[0], int("good"), int("bad")));
    }
    let want = [
        (8.0, 1, 0),
        (32.0, 0, 0),
        (32.0, 0, 1),
        (32.0, 1, 0),
        (32.0, 0, 1),
        (8.0, 0, 0),
        (8.0, 0, 1),
        (2.0, 0, 0),
        (2.0, 0, 0),
    ];
    assert_eq!(seen, want);
    s.set("scale", f32s(&[2.0]));
    s.set("found", Tensor::new(&[1], vec![true]).unwrap());
    for _ in 0..4 {
        run(&p(false), &mut s);
    }
    assert_eq!(s.get("scale").unwrap().to_f32_vec(), [1.0], "never below 1");
}

#[test]
fn unscaling_finds_infinities_after_the_division() {
    let p = main_of(|s| {
        s.persistable("found", DType::Bool, [1]);
        s.op("check_finite_and_unscale")
            .arg("X", ["a", "b"])
            .arg("Scale", ["scale"])
            .out("Out", ["a", "b"])
            .out("FoundInfinite", ["found"])
            .done();
    });
    for (bad, found) in [(4.0, false), (f32::INFINITY, true), (f32::NAN, true)] {
        let mut s = Scope::new();
        s.set("a", low(&[8.0], DType::F16));
        s.set("b", low(&[bad], DType::F16));
        s.set("scale", f32s(&[4.0]));
        run(&p, &mut s);
        assert_eq!(s.get("found").unwrap().to_bool_vec(), [found]);
        assert!(s.get("a").unwrap().bits_eq(&low(&[2.0], DType::F16)));
    }
}
