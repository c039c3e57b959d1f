//! Do rewritten training programs compute what Paddle's decorated ones compute? Three steps, bit for bit.
//!
//! Both run in this crate's interpreter from the same values. Where Paddle's program is unsound (see
//! `train_precision.rs`), the losses of ours must stay near the float32 run.

mod models;
#[allow(dead_code, reason = "another test uses the rest")]
mod parity;
#[allow(dead_code, reason = "another test uses the rest")]
mod training;

use mastercast::convert::Narrowing;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, Role, Section, VarFlag};
use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::{Level, LowType};
use mastercast::passes::{Pass, PassCx, TrainPrecision};
use models::Tensors;
use models::archive::{Archive, initial};
use std::collections::{BTreeMap, BTreeSet};
use training::cases::{Case, cases};
use training::compare::differences;

const STEPS: usize = 3;

fn parameters(program: &Program) -> Vec<(String, DType)> {
    let block = program.global_block(Section::Main).unwrap();
    let vars = program.block(block).vars.iter().map(|&v| program.var(v));
    vars.filter(|v| v.is_parameter()).map(|v| (program.name(v.name).to_owned(), v.dtype)).collect()
}

/// Parameters and their masters.
fn masters(program: &Program) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let slot = |text: &str| program.symbols().lookup(text);
    let (Some(p), Some(m)) = (slot("Param"), slot("MasterParam")) else { return out };
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
        for (a, b) in op.input(p).iter().zip(op.input(m)) {
            out.insert(program.name(*a).to_owned(), program.name(*b).to_owned());
        }
    }
    out
}

/// Losses by step, and the parameters and masters at the end.
struct Trained {
    losses: Vec<Vec<Tensor>>,
    cells: Tensors,
}

fn train(program: &Program, feeds: &Tensors, fetch: &[String]) -> Result<Trained, String> {
    let mut scope = Scope::new();
    let mut interp = Interpreter::new(program);
    interp.run(Section::Startup, &mut scope).map_err(|e| format!("startup: {e}"))?;
    let masters = masters(program);
    for (name, dtype) in parameters(program) {
        let Some(base) = scope.get(&name) else { continue };
        let value = initial(&name, base);
        if let Some(master) = masters.get(&name) {
            scope.set(master, value.clone());
        }
        scope.set(&name, value.cast(dtype, Narrowing::NearestEven).unwrap());
    }
    if scope.get("loss_scaling_0").is_some() {
        // 65536 overflows the gradient of the loss, which skips the first steps.
        scope.set("loss_scaling_0", Tensor::new(&[1], vec![1024.0f32]).unwrap());
    }
    let feeds: Vec<_> = feeds.clone().into_iter().collect();
    let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let out = interp.run_with(Section::Main, &mut scope, &feeds, &fetch);
        losses.push(out.map_err(|e| format!("step {step}: {e}"))?.values);
    }
    let names = parameters(program).into_iter().map(|p| p.0).chain(masters.into_values());
    let cells = names.filter_map(|n| Some((n.clone(), scope.get(&n)?.clone()))).collect();
    Ok(Trained { losses, cells })
}

/// The first thing that is not bit for bit the same.
fn first_difference(a: &Trained, b: &Trained) -> Option<String> {
    for (step, (a, b)) in a.losses.iter().zip(&b.losses).enumerate() {
        if a.iter().zip(b).any(|(a, b)| !a.bits_eq(b)) {
            return Some(format!("loss of step {step}: {a:?} / {b:?}"));
        }
    }
    let other = |(name, t): &(&String, &Tensor)| b.cells.get(*name).is_none_or(|u| !t.bits_eq(u));
    if a.cells.len() != b.cells.len() {
        return Some(format!("{} cells / {}", a.cells.len(), b.cells.len()));
    }
    a.cells.iter().find(other).map(|(name, t)| format!("{name}: {t:?} / {:?}", b.cells.get(name)))
}

/// The largest relative distance of a loss.
fn far(a: &Trained, b: &Trained) -> f64 {
    let one = |(a, b): (&Tensor, &Tensor)| (a.to_f64_vec()[0] - b.to_f64_vec()[0]).abs() / b.to_f64_vec()[0].abs();
    let all = a.losses.iter().zip(&b.losses).flat_map(|(a, b)| a.iter().zip(b).map(one));
    all.fold(0.0, |m, v| if v > m || v.is_nan() { v } else { m })
}

/// Whether an optimizer has masters and does not use them: Paddle's RMSProp leaves `multi_precision` false.
fn idle_masters(program: &Program) -> bool {
    let names = program.symbols();
    let (Some(m), Some(flag)) = (names.lookup("MasterParam"), names.lookup("multi_precision")) else { return false };
    let mut ops = program.section_blocks(Section::Main).flat_map(|b| program.ops(b));
    ops.any(|op| !op.input(m).is_empty() && op.attr(flag).and_then(|v| v.as_bool()) != Some(true))
}

enum Outcome {
    Equal,
    Near(f64),
    NotRun(String),
}

fn run(case: &Case, feeds: &Tensors, fetch: &[String]) -> Result<Outcome, String> {
    let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
    let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
    let mut ours = source.clone();
    case.options.run(&mut ours, &mut PassCx::default()).map_err(|e| e.to_string())?;
    let paddle = train(&theirs, feeds, fetch);
    let mine = match (train(&ours, feeds, fetch), &paddle) {
        (Ok(mine), _) => mine,
        // Neither runs: the forward part casts what only one branch writes.
        (Err(a), Err(b)) => return Ok(Outcome::NotRun(format!("{a}; Paddle's: {b}"))),
        (Err(a), Ok(_)) => return Err(a),
    };
    let same = differences(&ours, &theirs).is_empty() && !idle_masters(&theirs);
    match paddle {
        Ok(paddle) if same => match first_difference(&mine, &paddle) {
            None => Ok(Outcome::Equal),
            Some(what) => Err(what),
        },
        Err(e) if same => Ok(Outcome::NotRun(e)),
        _ => Ok(Outcome::Near(far(&mine, &train(&source, feeds, fetch)?))),
    }
}

#[test]
fn three_steps_are_the_same_bits() {
    let archive = Archive::open();
    let stems = archive.stems();
    let only = std::env::var("MASTERCAST_ONLY").unwrap_or_default();
    let mut failed = Vec::new();
    let mut all = 0;
    for (model, files) in parity::cases::unpack(include_bytes!("data/amp/train.zst")) {
        let Some(stem) = stems.get(model.as_str()).and_then(|s| s.first()) else {
            println!("{model:<18} no feeds");
            continue;
        };
        let (feeds, fetch) = (archive.feeds(&model), archive.run(&model, stem).fetch);
        let (mut equal, mut near, mut worst, mut skipped) = (0, 0, 0.0f64, BTreeSet::new());
        for case in cases(&files) {
            let id = format!("{model}/{}", case.file);
            if case.options.level == Level::O0 || !id.contains(&only) {
                continue;
            }
            match run(&case, &feeds, &fetch) {
                Ok(Outcome::Equal) => equal += 1,
                Ok(Outcome::Near(v)) => {
                    near += 1;
                    worst = if v > worst || v.is_nan() { v } else { worst };
                    if v.is_nan() || v > 0.03 {
                        failed.push(format!("{id}: {v} from float32"));
                    }
                }
                Ok(Outcome::NotRun(e)) => drop(skipped.insert(e)),
                Err(e) => failed.push(format!("{id}: {e}")),
            }
        }
        println!(
            "{model:<18} equal {equal:>3}   Paddle's unsound {near:>3}, ours from float32 {worst:.0e}   {skipped:?}"
        );
        all += equal;
    }
    println!("{all} programs compute the same bits");
    assert!(all >= 340 || !only.is_empty(), "{all}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Something to feed a variable: floats in [-1, 1), small integers.
fn feed(name: &str, dtype: DType, shape: &[i64]) -> Tensor {
    let shape: Vec<usize> = shape.iter().map(|&d| usize::try_from(d).unwrap_or(4)).collect();
    let n: usize = shape.iter().product();
    let at = |i: usize| (i * 7919 + name.len() * 104_729) % 1000;
    match dtype {
        DType::I64 => Tensor::new(&shape, (0..n).map(|i| at(i) as i64 % 3).collect::<Vec<i64>>()).unwrap(),
        DType::F32 => Tensor::new(&shape, (0..n).map(|i| at(i) as f32 / 500.0 - 1.0).collect::<Vec<f32>>()).unwrap(),
        other => panic!("{name}: {other}"),
    }
}

/// Programs that Paddle does not decorate, or not soundly: losses near those of float32.
#[test]
fn odd_training_programs_stay_near_float32() {
    let mut failed = Vec::new();
    let mut runs = 0;
    for (model, files) in parity::cases::unpack(include_bytes!("data/amp/extra.zst")) {
        let source = read_program(Some(&files["startup.pb"]), Some(&files["main.pb"])).unwrap();
        let global = source.global_block(Section::Main).unwrap();
        let vars = source.block(global).vars.iter().map(|&v| (v, source.var(v)));
        let fed = vars.filter(|(_, v)| v.flags.is(VarFlag::NeedCheckFeed));
        let feeds: Tensors = fed
            .map(|(id, v)| (source.name(v.name).to_owned(), feed(source.name(v.name), v.dtype, source.shape(id))))
            .collect();
        let fetch: Vec<String> = source
            .ops(global)
            .filter(|op| op.role() == Some(Role(257)))
            .map(|op| source.name(op.output_args().next().unwrap()).trim_end_matches("@GRAD").to_owned())
            .collect();
        let wide = match train(&source, &feeds, &fetch) {
            Ok(wide) => wide,
            Err(e) => {
                println!("{model}: float32 is not run: {e}");
                continue;
            }
        };
        for (level, dtype) in
            [(Level::O1, LowType::Float16), (Level::O2, LowType::Float16), (Level::O2, LowType::BFloat16)]
        {
            for master_grad in [false, true] {
                let options = TrainPrecision { level, dtype, master_grad, ..TrainPrecision::default() };
                let mut ours = source.clone();
                options.run(&mut ours, &mut PassCx::default()).unwrap_or_else(|e| panic!("{model} {level:?}: {e}"));
                runs += 1;
                match train(&ours, &feeds, &fetch) {
                    Ok(mine) => {
                        let v = far(&mine, &wide);
                        println!("{model:<10} {level:?} {dtype:?} {master_grad}: {v:.0e}");
                        if v.is_nan() || v > 0.03 {
                            failed.push(format!("{model} {level:?} {dtype:?} {master_grad}: {v} from float32"));
                        }
                    }
                    Err(e) => failed.push(format!("{model} {level:?} {dtype:?} {master_grad}: {e}")),
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(runs >= 24, "{runs}");
}
