//! Do all small models train as in Paddle, in float32, and as in float32 in mixed precision?
//!
//! Programs and recorded runs come packed (`tests/data/models.zst`).

mod models;

use mastercast::convert::Narrowing;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, Section};
use models::archive::{Archive, initial};
use models::{Recording, Run, Tensors};
use std::collections::BTreeMap;

/// Parameters of main, with the dtypes declared there.
fn parameters(program: &Program) -> Vec<(&str, DType)> {
    let block = program.global_block(Section::Main).unwrap();
    let vars = program.block(block).vars.iter().map(|&v| program.var(v));
    vars.filter(|v| v.is_parameter()).map(|v| (program.name(v.name), v.dtype)).collect()
}

/// The initial values of all parameters, in float32.
fn start(program: &Program) -> Tensors {
    let mut scope = Scope::new();
    Interpreter::new(program).run(Section::Startup, &mut scope).unwrap();
    let value = |(name, _)| (String::from(name), initial(name, scope.get(name).unwrap()));
    parameters(program).into_iter().map(value).collect()
}

#[test]
fn every_model_trains_as_in_paddle() {
    let archive = Archive::open();
    let mut failed = Vec::new();
    let mut runs = 0;
    for (model, stems) in archive.stems() {
        for stem in stems {
            let Some(mut recording) = archive.recording(model, stem) else { continue };
            let run = archive.run(model, stem);
            recording.init = start(&run.program);
            runs += 1;
            match run.compare(&recording) {
                Ok(row) => {
                    println!("{model:18} {stem:24} {row}");
                    if !row.good() {
                        failed.push(format!("{model} {stem}: {row}"));
                    }
                }
                Err(e) => failed.push(format!("{model} {stem}: {e}")),
            }
        }
    }
    assert!(runs >= 40, "{runs} runs");
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Parameters and their masters, by the slots of the ops that update both (Paddle's own RMSProp leaves
/// `multi_precision` false, and so its masters as they are).
fn pairs(program: &Program) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
        let args = |wanted: &str| -> Vec<String> {
            let slot = op.outputs().find(|s| program.sym(s.name) == wanted);
            slot.map_or(Vec::new(), |s| s.args.iter().map(|&n| program.name(n).to_owned()).collect())
        };
        let both =
            op.attrs().iter().any(|a| program.sym(a.name) == "multi_precision" && a.value.as_bool() == Some(true));
        if !both {
            continue;
        }
        out.extend(args("ParamOut").into_iter().zip(args("MasterParamOut")));
    }
    out
}

/// How far a loss in 16 bits may be from that in float32, relative.
fn bound(low: DType) -> f64 {
    if low == DType::F16 { 2e-3 } else { 2e-2 }
}

/// Paddle cannot run these on a CPU; what is known is the float32 run, and that pairs stay in step.
#[test]
fn mixed_precision_stays_near_float32_and_in_step() {
    let archive = Archive::open();
    let mut failed = Vec::new();
    let mut runs = 0;
    for (model, stems) in archive.stems() {
        for (stem, low) in stems.iter().flat_map(|s| [(*s, "fp16"), (*s, "bf16")]) {
            let Some(rest) = stem.strip_prefix(&format!("train.O2.{low}")) else { continue };
            let plain = rest.replace(".noscale", "").replace(".static", "").replace(".mw", "");
            let Some(recording) = archive.recording(model, &format!("train.fp32{plain}")) else { continue };
            let low = if low == "fp16" { DType::F16 } else { DType::BF16 };
            runs += 1;
            match low_run(&archive.run(model, stem), &recording, low) {
                Ok(far) => {
                    println!("{model:18} {stem:28} {far:.1e}");
                    if far.is_nan() || far > bound(low) {
                        failed.push(format!("{model} {stem}: {far:.1e}"));
                    }
                }
                Err(e) => failed.push(format!("{model} {stem}: {e}")),
            }
        }
    }
    assert!(runs >= 40, "{runs} runs");
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The largest relative difference of a loss from float32.
fn low_run(run: &Run, recording: &Recording, low: DType) -> Result<f64, String> {
    let program = &run.program;
    let (mut scope, pairs) = (Scope::new(), pairs(program));
    let mut interp = Interpreter::new(program);
    interp.run(Section::Startup, &mut scope).map_err(|e| format!("startup: {e}"))?;
    let values = start(program);
    for (name, dtype) in parameters(program) {
        let value = &values[name];
        scope.set(name, value.cast(dtype, Narrowing::NearestEven).unwrap());
        if let Some(master) = pairs.get(name) {
            scope.set(master, value.clone());
        }
    }
    if low == DType::F16 && scope.get("loss_scaling_0").is_some() {
        // The program's own 65536 overflows the gradient of the loss, which skips the first step.
        scope.set("loss_scaling_0", Tensor::new(&[1], vec![1024.0f32]).unwrap());
    }
    let feeds: Vec<_> = recording.feeds.clone().into_iter().collect();
    let fetch: Vec<&str> = run.fetch.iter().map(String::as_str).collect();
    let mut worst = 0.0f64;
    for (step, wants) in recording.losses.iter().enumerate() {
        for (name, value) in recording.draws.get(step).into_iter().flatten() {
            interp.give_draw(name, value.clone());
        }
        let out = interp.run_with(Section::Main, &mut scope, &feeds, &fetch).map_err(|e| e.to_string())?;
        for (got, want) in out.values.iter().zip(wants) {
            let far = (got.to_f64_vec()[0] - want).abs() / want.abs();
            worst = if far > worst || far.is_nan() { far } else { worst };
        }
        for (param, master) in &pairs {
            let (p, m) = (scope.get(param).unwrap(), scope.get(master).unwrap());
            if !m.cast(p.dtype(), Narrowing::NearestEven).unwrap().bits_eq(p) {
                return Err(format!("step {step}: {param} is {p:?}, {master} {m:?}"));
            }
        }
    }
    Ok(worst)
}
