//! What does a run keep, and what can be seen and given while it runs?

#[path = "common/run.rs"]
mod common;

use common::*;
use mastercast::analysis::{Subject, coherence};
use mastercast::interp::{Fault, Interpreter, Observer, Options, PairCheck, Profile, Scope, Seen, Tensor};
use mastercast::ir::{DType, Program, Section};

const N: usize = 1 << 18;

/// Twenty ops in a row, each with a result of one megabyte.
fn chain() -> Program {
    main_of(|s| {
        for i in 0..20 {
            s.op("scale")
                .arg("X", [&*format!("t{i}")])
                .out("Out", [&*format!("t{}", i + 1)])
                .attr("bias", 1.0f32)
                .done();
        }
    })
}

#[test]
fn temporaries_go_after_their_last_use() {
    let p = chain();
    let feeds = [("t0".to_owned(), Tensor::zeros(DType::F32, &[N]).unwrap())];
    let o = options(|o| o.memory_limit = 4 << 20);
    let mut scope = Scope::new();
    let run = |fetch: &[&str], scope: &mut Scope, o: Options| {
        Interpreter::new(&p).with_options(o).run_with(Section::Main, scope, &feeds, fetch)
    };
    let out = run(&["t20"], &mut scope, o.clone()).unwrap();
    assert_eq!(out.values[0].to_f32_vec()[N - 1], 20.0);
    assert_eq!(out.stats.peak_bytes, 2 << 20, "what an op reads, and what it writes");
    assert!(scope.is_empty());
    // What is fetched stays to the end, and so does what the caller had put there.
    let out = run(&["t1", "t20"], &mut scope, o.clone()).unwrap();
    assert_eq!((out.values[0].to_f32_vec()[0], out.stats.peak_bytes), (1.0, 3 << 20));
    scope.set("t5", f32s(&[7.0]));
    run(&[], &mut scope, o.clone()).unwrap();
    assert_eq!((scope.len(), scope.get("t5").unwrap().len()), (1, N));
    let all: Vec<String> = (1..=20).map(|i| format!("t{i}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let e = run(&all, &mut Scope::new(), o).unwrap_err();
    assert!(matches!(e.fault(), Fault::Memory { .. }), "{e}");
}

/// Counts ops and stops before the one with this number.
struct Stop(usize, usize);

impl Observer for Stop {
    fn before(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        self.0 += 1;
        match self.0 > self.1 {
            true => Err(Fault::Stopped { what: format!("before {:?}", at.op().kind_str()) }),
            false => Ok(()),
        }
    }
}

#[test]
fn an_observer_sees_every_op_and_may_stop_the_run() {
    let p = chain();
    let feeds = [("t0".to_owned(), Tensor::zeros(DType::F32, &[4]).unwrap())];
    let mut profile = Profile::default();
    Interpreter::new(&p).run_observed(Section::Main, &mut Scope::new(), &feeds, &[], &mut profile).unwrap();
    let cost = profile.kinds["scale"];
    assert_eq!((profile.kinds.len(), cost.ops, cost.bytes), (1, 20, 20 * 16));
    let mut stop = Stop(0, 5);
    let e = Interpreter::new(&p).run_observed(Section::Main, &mut Scope::new(), &feeds, &[], &mut stop).unwrap_err();
    assert_eq!(
        (stop.0, e.to_string()),
        (6, "main: blocks[0].ops[5]: (Out: t6) = scale(X: t5): before \"scale\"".to_owned())
    );
}

fn adam(s: &mut mastercast::ir::SectionBuilder<'_>) {
    for (name, dtype) in [("w", DType::F16), ("m", DType::F32), ("m1", DType::F32), ("m2", DType::F32)] {
        s.persistable(name, dtype, [2]);
    }
    for name in ["b1", "b2", "lr"] {
        s.persistable(name, DType::F32, [1]);
    }
    let slots = [("Moment1", "m1"), ("Moment2", "m2"), ("Beta1Pow", "b1"), ("Beta2Pow", "b2"), ("MasterParam", "m")];
    let mut op = s.op("adam").arg("Param", ["w"]).arg("Grad", ["g"]).arg("LearningRate", ["lr"]).out("ParamOut", ["w"]);
    for (slot, name) in slots {
        op = op.arg(slot, [name]).out(&format!("{slot}Out"), [name]);
    }
    op.attr("multi_precision", true).done();
}

fn adam_scope() -> Scope {
    let mut s = Scope::new();
    s.set("w", low(&[1.0, 2.0], DType::F16));
    for (name, v) in [("m", [1.0, 2.0]), ("m1", [0.5, 0.5]), ("m2", [0.25, 0.25])] {
        s.set(name, f32s(&v));
    }
    for (name, v) in [("b1", 0.9), ("b2", 0.999), ("lr", 0.1)] {
        s.set(name, f32s(&[v]));
    }
    s.set("g", low(&[1.0, -1.0], DType::F16));
    s
}

/// An optimizer updates in place only after all that can fail was looked at.
#[test]
fn an_update_that_fails_changes_nothing() {
    let p = main_of(adam);
    let good = adam_scope();
    let mut s = good.clone();
    Interpreter::new(&p).run(Section::Main, &mut s).unwrap();
    let master = s.get("m").unwrap();
    assert!(
        master.to_f32_vec()[0] < 1.0
            && master.cast(DType::F16, Default::default()).unwrap().bits_eq(s.get("w").unwrap())
    );
    // The scope that was cloned shares its data until one side writes.
    assert_eq!(
        (good.get("m").unwrap().to_f32_vec(), good.get("m1").unwrap().to_f32_vec()),
        (vec![1.0, 2.0], vec![0.5, 0.5])
    );
    for (name, bad) in
        [("m2", f32s(&[1.0])), ("b2", f32s(&[])), ("g", f32s(&[1.0, 2.0, 3.0])), ("m", low(&[1.0, 2.0], DType::F16))]
    {
        let mut s = adam_scope();
        s.set(name, bad);
        let before: Vec<(String, Tensor)> = s.iter().map(|(n, t)| (n.to_owned(), t.clone())).collect();
        fault_of(&p, &mut s, Options::default());
        for (n, t) in before {
            assert!(s.get(&n).unwrap().bits_eq(&t), "{n} after a bad {name}");
        }
    }
}

#[test]
fn pairs_are_compared_where_they_are_read() {
    let p = main_of(|s| {
        s.op("scale").arg("X", ["w"]).out("Out", ["g"]).done();
        adam(s);
    });
    let pairs = || {
        coherence(&p).verdicts.into_iter().filter_map(|v| match v.subject {
            Subject::Pair(pair) => Some(pair),
            _ => None,
        })
    };
    let mut check = PairCheck::new(pairs());
    let mut s = adam_scope();
    let mut interp = Interpreter::new(&p);
    for _ in 0..2 {
        interp.run_observed(Section::Main, &mut s, &[], &[], &mut check).unwrap();
        check.end(&p, &s).unwrap();
    }
    assert_eq!((check.pairs(), check.compared()), (1, 6));
    s.set("m", f32s(&[0.5, 0.5]));
    let e = interp.run_observed(Section::Main, &mut s, &[], &[], &mut PairCheck::new(pairs())).unwrap_err();
    assert!(matches!(e.fault(), Fault::OutOfStep { param, index: 0, want: 0.5, .. } if param == "w"), "{e}");
}

#[test]
fn random_draws_may_be_given() {
    let p = main_of(|s| {
        s.op("dropout")
            .arg("X", ["x"])
            .out("Out", ["y"])
            .out("Mask", ["mask"])
            .attr("dropout_prob", 0.5f32)
            .attr("dropout_implementation", "upscale_in_train")
            .done();
        s.op("uniform_random").out("Out", ["u"]).attr("shape", mastercast::ir::AttrValue::Longs([2].into())).done();
    });
    let mut interp = Interpreter::new(&p);
    assert!(interp.give_draw("mask", Tensor::new(&[4], vec![1u8, 0, 0, 1]).unwrap()));
    assert!(interp.give_draw("u", f32s(&[0.25, 0.75])));
    assert!(!interp.give_draw("nothing", f32s(&[])));
    let feeds = [("x".to_owned(), f32s(&[1.0, 2.0, 3.0, 4.0]))];
    let out = interp.run_with(Section::Main, &mut Scope::new(), &feeds, &["y", "u"]).unwrap();
    assert_eq!(out.values[0].to_f32_vec(), [2.0, 0.0, 0.0, 8.0]);
    assert_eq!(out.values[1].to_f32_vec(), [0.25, 0.75]);
    interp.give_draw("u", f32s(&[0.25]));
    let e = interp.run_with(Section::Main, &mut Scope::new(), &feeds, &["y"]).unwrap_err();
    assert!(matches!(e.fault(), Fault::Feed { name, .. } if name == "u"), "{e}");
}
