//! Does the order of startup, load and amp_init matter? The seven orders of a real job, before and after.
//!
//! A real PaddlePaddle 2.6.2 startup/main pair (`tests/data/orders`, O2 with float32 masters) and checkpoints
//! that Paddle itself wrote. For each order that users write: what the proof says, which values one
//! weight and its master hold when main starts, and the same after the rewrite, with the passes that
//! mended it. Exits non-zero if any cell is not what the table of the documentation says.

use mastercast::analysis::{Coherence, Finding, Settled, coherence};
use mastercast::ckpt;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, F32, Program, Section};
use mastercast::paddle::proto::read_program;
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use mastercast::schedule::Schedule;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The weight whose cells are shown, and its master. Elements 0 and 1 are 1.2345678 and 1.2388.
const PARAM: &str = "fc_0.w_0";
const MASTER: &str = "fc_0.w_0_fp32_master_0";
const LOADED: [f32; 2] = [1.2345678, 1.2388];

/// An order that users write. `LOW` stands for float16 or bfloat16.
struct Order {
    name: &'static str,
    schedule: &'static str,
    /// the verdict before the rewrite
    verdict: &'static str,
    /// what the parameter is before: dtype, and whether the checkpoint's value reached it
    param: Before,
    master: Before,
    /// whether the checkpoint brought 32 bits
    wide: bool,
}

/// A cell before the rewrite.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Before {
    /// the loaded value in float32
    Wide,
    /// the loaded value, rounded to 16 bits
    Rounded,
    /// still the random start
    Random,
}

const ORDERS: &[Order] = &[
    Order {
        name: "A",
        schedule: "startup, load(params_f32), amp_init, main",
        verdict: "stale-master",
        param: Before::Rounded,
        master: Before::Random,
        wide: true,
    },
    Order {
        name: "B",
        schedule: "startup, amp_init, load(params_f32), main",
        verdict: "stale-master, wrong-dtype",
        param: Before::Wide,
        master: Before::Random,
        wide: true,
    },
    Order {
        name: "C",
        schedule: "startup, amp_init, load(params_LOW), main",
        verdict: "stale-master",
        param: Before::Rounded,
        master: Before::Random,
        wide: false,
    },
    Order {
        name: "D",
        schedule: "startup, load(params_f32), amp_init(rewrite_master), main",
        verdict: "lossy-master",
        param: Before::Rounded,
        master: Before::Rounded,
        wide: true,
    },
    Order {
        name: "E",
        schedule: "startup, amp_init(rewrite_master), load(params_LOW), main",
        verdict: "stale-master, lossy-master",
        param: Before::Rounded,
        master: Before::Random,
        wide: false,
    },
    Order {
        name: "F",
        schedule: "startup, load(params_and_masters_f32), amp_init, main",
        verdict: "in step",
        param: Before::Rounded,
        master: Before::Wide,
        wide: true,
    },
    Order {
        name: "G",
        schedule: "startup, load(params_and_masters_f32), amp_init(rewrite_master), main",
        verdict: "lossy-master",
        param: Before::Rounded,
        master: Before::Rounded,
        wide: true,
    },
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/orders");
    let mut wrong = Vec::new();
    for (low, file) in [(DType::F16, "fp16"), (DType::BF16, "bf16")] {
        println!("\n{PARAM} in {low}, checkpoint value {LOADED:?} (elements 0 and 1), random start within 0.5\n");
        println!(
            "{:2} {:26} {:24} {:22} {:8} {:24} {:22} mended by",
            "", "before", "parameter", "master", "after", "parameter", "master"
        );
        let startup = std::fs::read(data.join(format!("startup.train.O2.{file}.pb")))?;
        let main = std::fs::read(data.join(format!("train.O2.{file}.pb")))?;
        for order in ORDERS {
            let mut program = read_program(Some(&startup), Some(&main))?;
            schedule(order, low, &data)?
                .apply(&mut program, &mut |path| Ok(ckpt::Manifest::of(&*ckpt::open(Path::new(path))?)))?;
            let before = (prove(&program)?, cells(&program)?);
            let mended_by = rewrite(&mut program)?;
            let after = (prove(&program)?, cells(&program)?);
            let still = lr_zero_step(&program)?;
            let verdicts = (verdict(&before.0), verdict(&after.0));
            println!(
                "{:2} {:26} {:24} {:22} {:8} {:24} {:22} {mended_by}",
                order.name,
                verdicts.0,
                shown(&before.1.0),
                shown(&before.1.1),
                verdicts.1,
                shown(&after.1.0),
                shown(&after.1.1),
            );
            let mut check = |what: &str, holds: bool| {
                if !holds {
                    wrong.push(format!("{low} {}: {what}", order.name));
                }
            };
            check("verdict before", verdicts.0 == order.verdict);
            check("parameter before", holds(&before.1.0, order.param, low, order.wide));
            check("master before", holds(&before.1.1, order.master, low, order.wide));
            check("verdict after", verdicts.1 == "in step");
            check("parameter after", holds(&after.1.0, Before::Rounded, low, order.wide));
            let master = if order.wide { Before::Wide } else { Before::Rounded };
            check("master after", holds(&after.1.1, master, low, order.wide));
            check("dtypes after", after.1.0.dtype() == low && after.1.1.dtype() == DType::F32);
            check("a step with learning rate 0", still);
        }
    }
    if wrong.is_empty() {
        println!("\nEvery cell is what the table says.");
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nNot what the table says:");
    wrong.iter().for_each(|w| println!("  {w}"));
    Ok(ExitCode::FAILURE)
}

/// The order's schedule, with the checkpoint's directory.
fn schedule(order: &Order, low: DType, data: &Path) -> Result<Schedule, Box<dyn Error>> {
    let text = order.schedule.replace("LOW", &low.to_string());
    let (head, rest) = text.split_once("load(").expect("every order loads");
    let (name, tail) = rest.split_once(')').expect("closed");
    let path: PathBuf = data.join(name);
    Ok(Schedule::parse(&format!("{head}load(\"{}\"){tail}", path.display()))?)
}

/// The proof; where it hangs on whether two entries of the checkpoint agree, they are compared.
fn prove(program: &Program) -> Result<Coherence, Box<dyn Error>> {
    use mastercast::analysis::Obligation;
    let mut proof = coherence(program);
    let mut failed = None;
    proof.discharge(|pair, obligation| {
        let Obligation::EntriesAgree { file, param, master_file, master } = obligation else { return None };
        let compare = || -> Result<Option<Settled>, ckpt::CkptError> {
            let (a, b) = (ckpt::open(Path::new(&**file))?, ckpt::open(Path::new(&**master_file))?);
            let (Some(i), Some(k)) = (a.find(param), b.find(master)) else { return Ok(None) };
            let differ = ckpt::agree_narrowed((&*a, i), (&*b, k), pair.low)?;
            Ok(Some(differ.map_or(Settled::Holds, |d| Settled::Differs(F32::from(d)))))
        };
        compare().unwrap_or_else(|e| {
            failed = Some(e);
            None
        })
    });
    match failed {
        Some(e) => Err(e.into()),
        None => Ok(proof),
    }
}

/// The codes of the findings on the pair.
fn verdict(proof: &Coherence) -> String {
    let Some(v) =
        proof.verdicts.iter().find(|v| matches!(v.subject, mastercast::analysis::Subject::Pair(p) if p.low.is_low()))
    else {
        return "no pair".into();
    };
    let mut codes: Vec<&str> = v
        .findings
        .iter()
        .map(|f| match f {
            Finding::Stale { .. } => "stale-master",
            Finding::WrongType { .. } => "wrong-dtype",
            Finding::Lossy { .. } => "lossy-master",
            Finding::Conflict { .. } => "load-conflict",
            Finding::Unset => "unset-master",
            Finding::Unproved { .. } => "unproved",
        })
        .collect();
    codes.dedup();
    if codes.is_empty() { "in step".into() } else { codes.join(", ") }
}

/// Runs the passes; names those that changed something.
fn rewrite(program: &mut Program) -> Result<String, Box<dyn Error>> {
    let passes = PassManager::parse("master-casts,load-order,resync")?;
    let report = passes.run(program, &mut PassCx::default(), ManagerOptions::default(), |_, _| {})?;
    let names: Vec<_> = report.passes.iter().filter(|p| p.summary.changed()).map(|p| p.name).collect();
    Ok(names.join(", "))
}

/// Parameter and master when main starts.
fn cells(program: &Program) -> Result<(Tensor, Tensor), Box<dyn Error>> {
    let mut scope = Scope::new();
    Interpreter::new(program).run(Section::Startup, &mut scope)?;
    let get = |name: &str| scope.get(name).cloned().ok_or(format!("startup leaves no {name}"));
    Ok((get(PARAM)?, get(MASTER)?))
}

/// Whether a first step with learning rate 0 leaves parameter and master as they are, bit for bit.
fn lr_zero_step(program: &Program) -> Result<bool, Box<dyn Error>> {
    let mut scope = Scope::new();
    let mut interpreter = Interpreter::new(program);
    interpreter.run(Section::Startup, &mut scope)?;
    scope.set("learning_rate_0", Tensor::new(&[1], vec![0f32])?);
    let feed = |n: usize, width: usize| Tensor::new(&[n, width], vec![0.25f32; n * width]);
    let feeds = [("x".to_owned(), feed(4, 8)?), ("y".to_owned(), feed(4, 1)?)];
    let before = (scope.get(PARAM).cloned(), scope.get(MASTER).cloned());
    interpreter.run_with(Section::Main, &mut scope, &feeds, &[])?;
    let after = (scope.get(PARAM), scope.get(MASTER));
    Ok(match (before, after) {
        ((Some(p), Some(m)), (Some(q), Some(n))) => p.bits_eq(q) && m.bits_eq(n),
        _ => false,
    })
}

/// The loaded values as a cell of `dtype` holds them.
fn rounded(low: DType) -> [f32; 2] {
    LOADED.map(|v| match low {
        DType::F16 => half::f16::from_f32(v).to_f32(),
        _ => half::bf16::from_f32(v).to_f32(),
    })
}

fn holds(cell: &Tensor, what: Before, low: DType, wide: bool) -> bool {
    let v = cell.to_f32_vec();
    let starts = |want: [f32; 2]| v[..2] == want;
    match what {
        Before::Wide if wide => cell.dtype() == DType::F32 && starts(LOADED),
        Before::Wide => false,
        Before::Rounded => starts(rounded(low)),
        Before::Random => v.iter().all(|x| x.abs() <= 0.5),
    }
}

fn shown(cell: &Tensor) -> String {
    let v = cell.to_f32_vec();
    format!("{} {} {}", cell.dtype(), v[0], v[1])
}
