//! Does a resumed run go on where it stopped? Real training programs, each order of load and `amp_init`.
//!
//! `cargo run --release --example resume_training [-- FILE.svg]`. For mlp, lenet and a small BERT, at O2 in float16
//! and bfloat16 (programs by PaddlePaddle 2.6.2, `tests/data/models.zst`): train 20 steps, save, and resume for 20
//! more through the orders A to G, as written and after the rewrite. As written, the first step that the optimizer
//! makes writes the masters back that startup initialised, and the loss jumps back to the start. After the rewrite
//! the run goes on: bit for bit as if it had not stopped, or, where the checkpoint kept 16 bits of each
//! weight (C, E), from those. Exits non-zero when it is not so. The curves go to the SVG file, if one is named.
//!
//! Every checkpoint holds the optimizer's other state (moments, loss scaling), so that a difference is the weights'.

#[path = "../tests/models/mod.rs"]
mod models;

use mastercast::analysis::coherence;
use mastercast::ckpt::plan::Which;
use mastercast::ckpt::{self, TensorData};
use mastercast::interp::{InterpError, Interpreter, Options, Scope, Tensor};
use mastercast::ir::{DType, Program, Section};
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use mastercast::schedule::Schedule;
use mastercast::state;
use models::archive::Archive;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

const MODELS: [&str; 3] = ["mlp", "lenet", "bert_mini_nodrop"];
const STEPS: usize = 20;

/// The orders of `load_ordering`: name, schedule, whether the checkpoint keeps float32 values, and whether the order
/// as written leaves the masters that startup made.
const ORDERS: [(&str, &str, bool, bool); 7] = [
    ("A", "startup, load(F32), amp_init, main", true, true),
    ("B", "startup, amp_init, load(F32), main", true, true),
    ("C", "startup, amp_init, load(LOW), main", false, true),
    ("D", "startup, load(F32), amp_init(rewrite_master), main", true, false),
    ("E", "startup, amp_init(rewrite_master), load(LOW), main", false, true),
    ("F", "startup, load(FULL), amp_init, main", true, false),
    ("G", "startup, load(FULL), amp_init(rewrite_master), main", true, false),
];

/// A training job.
struct Job {
    program: Program,
    feeds: Vec<(String, Tensor)>,
    loss: String,
    low: DType,
}

/// The loss of each step; or why it stopped.
type Curve = Result<Vec<f64>, InterpError>;

/// The curves of one job.
struct Curves {
    title: String,
    first: Vec<f64>,
    uninterrupted: Vec<f64>,
    as_written: Vec<Vec<f64>>,
    rewritten: Vec<Vec<f64>>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let archive = Archive::open();
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    for model in MODELS {
        for (low, stem) in [(DType::F16, "train.O2.fp16"), (DType::BF16, "train.O2.bf16")] {
            let run = archive.run(model, stem);
            let feeds = archive.feeds(model).into_iter().collect();
            let job = Job { program: run.program, feeds, loss: run.fetch[0].clone(), low };
            all.push(resume(&format!("{model}, {low}"), &job, &mut wrong)?);
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        draw(Path::new(&path), &all)?;
        println!("\nwrote {path}");
    }
    if wrong.is_empty() {
        println!("\nEvery resumed run goes on as it should.");
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nNot as it should be:");
    wrong.iter().for_each(|w| println!("  {w}"));
    Ok(ExitCode::FAILURE)
}

/// Trains, saves, and resumes in every order.
fn resume(title: &str, job: &Job, wrong: &mut Vec<String>) -> Result<Curves, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let files = ["F32", "LOW", "FULL"].map(|f| (f, dir.path().join(format!("{f}.safetensors"))));
    let path = |text: &str| {
        files.iter().fold(text.to_owned(), |t, (f, p)| t.replace(&format!("({f})"), &format!("(\"{}\")", p.display())))
    };
    let start = scheduled(job, "startup, amp_init, main")?;
    let mut scope = Scope::new();
    startup(&start, 0, &mut scope)?;
    let first = steps(job, &start, &mut scope)?;
    save(job, &scope, &files.each_ref().map(|(_, p)| &**p))?;
    let uninterrupted = steps(job, &start, &mut scope)?;
    let end = state::state_dict(&job.program, &scope, Which::All);
    let mut out =
        Curves { title: title.to_owned(), first, uninterrupted, as_written: Vec::new(), rewritten: Vec::new() };
    println!(
        "\n{title}: loss {:.4} at the start, {:.4} when saved, {:.4} after {STEPS} more steps uninterrupted\n",
        out.first[0],
        out.uninterrupted[0],
        out.uninterrupted[STEPS - 1]
    );
    println!("   {:52} {:>20} {:>12}", "", "as written", "rewritten");
    for (name, text, wide, stale) in ORDERS {
        let written = scheduled(job, &path(text))?;
        let mut rewritten = written.clone();
        PassManager::parse("master-casts,load-order,resync")?.run(
            &mut rewritten,
            &mut PassCx::default(),
            ManagerOptions::default(),
            |_, _| {},
        )?;
        let before = resumed(job, &written).0;
        let (after, cells) = resumed(job, &rewritten);
        let mut check = |what: &str, holds: bool| {
            if !holds {
                wrong.push(format!("{title} {name}: {what}"));
            }
        };
        let after = after?;
        let same = cells.len() == end.len() && cells.iter().zip(&end).all(|((n, a), (m, b))| n == m && a.bits_eq(b));
        let told = match &before {
            Ok(curve) => format!("{:.4}", curve[STEPS - 1]),
            Err(_) => "stops: wrong dtype".to_owned(),
        };
        println!("{name}  {text:52} {told:>20} {:>12.4}{}", after[STEPS - 1], if same { "  bit for bit" } else { "" });
        // The first loss is that of the loaded parameter; then the optimizer has written its masters back.
        let start = out.first[0].min(out.first[1]);
        let jumped = |c: &[f64]| c[1] - out.uninterrupted[1] > 0.5 * (start - out.uninterrupted[1]);
        if stale {
            check("as written it jumps back, or stops", before.as_ref().map_or(true, |c| jumped(c)));
        }
        check(
            "the rewritten order is proved",
            coherence(&rewritten).verdicts.iter().all(|v| {
                v.proved() || v.findings.iter().all(|f| matches!(f, mastercast::analysis::Finding::Unproved { .. }))
            }),
        );
        check("the first loss is the uninterrupted one", after[0] == out.uninterrupted[0]);
        if wide {
            check("it goes on bit for bit", same && after == out.uninterrupted);
        } else {
            check("it goes on from 16 bits", !jumped(&after));
        }
        out.as_written.extend(before.ok());
        out.rewritten.push(after);
    }
    Ok(out)
}

/// The job's program with a schedule written into it.
fn scheduled(job: &Job, schedule: &str) -> Result<Program, Box<dyn Error>> {
    let mut program = job.program.clone();
    let applied = Schedule::parse(schedule)?
        .apply(&mut program, &mut |path| Ok(ckpt::Manifest::of(&*ckpt::open(Path::new(path))?)))?;
    assert!(!applied.diagnostics.has_errors(), "{:?}", applied.diagnostics);
    Ok(program)
}

fn startup(program: &Program, seed: u64, scope: &mut Scope) -> Result<(), InterpError> {
    let mut options = Options::default();
    options.seed = seed;
    Interpreter::new(program).with_options(options).run(Section::Startup, scope).map(drop)
}

/// A fresh process: startup with another seed, its loads, and main.
fn resumed(job: &Job, program: &Program) -> (Curve, Vec<(String, Tensor)>) {
    let mut scope = Scope::new();
    let curve = startup(program, 1, &mut scope).and_then(|()| steps(job, program, &mut scope));
    (curve, state::state_dict(&job.program, &scope, Which::All))
}

fn steps(job: &Job, program: &Program, scope: &mut Scope) -> Curve {
    let mut interpreter = Interpreter::new(program);
    let step = |_| {
        let out = interpreter.run_with(Section::Main, scope, &job.feeds, &[&job.loss])?;
        Ok(out.values[0].to_f64_vec()[0])
    };
    (0..STEPS).map(step).collect()
}

/// Writes the checkpoints: float32 weights under the parameters' names; 16-bit ones; float32 ones and the masters.
fn save(job: &Job, scope: &Scope, [wide, narrow, full]: &[&Path; 3]) -> Result<(), Box<dyn Error>> {
    let state: BTreeMap<String, Tensor> = state::state_dict(&job.program, scope, Which::All).into_iter().collect();
    let master = |name: &str| state.get(&format!("{name}_fp32_master_0"));
    let is_master = |name: &str| name.strip_suffix("_fp32_master_0").is_some_and(|p| state.contains_key(p));
    let write = |path: &Path, masters: bool, float32: bool| {
        let tensors = state.iter().filter(|(n, _)| masters || !is_master(n)).map(|(name, value)| {
            let value = master(name).filter(|_| float32).unwrap_or(value);
            let shape: Vec<u64> = value.shape().iter().map(|&d| d as u64).collect();
            TensorData::new(name.clone(), value.dtype(), shape, value.to_bytes())
        });
        ckpt::write_safetensors(path, tensors, &BTreeMap::new())
    };
    assert!(state.values().any(|t| t.dtype() == job.low), "the parameters are narrow");
    write(wide, false, true)?;
    write(narrow, false, false)?;
    write(full, true, true)?;
    Ok(())
}

/// The curves, a panel for each job.
fn draw(path: &Path, all: &[Curves]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (1080, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled("Training loss: 20 steps, a stop, 20 more in the orders A to G", ("sans-serif", 20))?;
    for (i, (panel, c)) in root.split_evenly((2, 3)).iter().zip(order_of_panels(all)).enumerate() {
        let top =
            c.first.iter().chain(&c.uninterrupted).chain(c.as_written.iter().flatten()).fold(0f64, |a, &b| a.max(b));
        let mut chart = ChartBuilder::on(panel)
            .caption(&c.title, ("sans-serif", 15))
            .margin(6)
            .x_label_area_size(22)
            .y_label_area_size(38)
            .build_cartesian_2d(0f64..(2 * STEPS - 1) as f64, 0f64..top * 1.05)?;
        let step = |x: &f64| format!("{x:.0}");
        chart.configure_mesh().light_line_style(WHITE).x_labels(5).y_labels(5).x_label_formatter(&step).draw()?;
        let points = |from: usize, curve: &[f64]| -> Vec<(f64, f64)> {
            curve.iter().enumerate().map(|(i, &l)| ((from + i) as f64, l)).collect()
        };
        let red = RGBColor(200, 60, 40);
        for (i, curve) in c.as_written.iter().enumerate() {
            let line = chart.draw_series(LineSeries::new(points(STEPS, curve), red.mix(0.7)))?;
            if i == 0 {
                line.label("as written").legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], red));
            }
        }
        let green = RGBColor(20, 130, 70);
        for (i, curve) in c.rewritten.iter().enumerate() {
            let line = chart.draw_series(LineSeries::new(points(STEPS, curve), green.stroke_width(2)))?;
            if i == 0 {
                line.label("rewritten")
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], green.stroke_width(2)));
            }
        }
        chart
            .draw_series(LineSeries::new(points(0, &c.first), BLACK.stroke_width(2)))?
            .label("first run")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 14, y)], BLACK.stroke_width(2)));
        if i == 0 {
            let legend = SeriesLabelPosition::LowerLeft;
            chart.configure_series_labels().position(legend).border_style(BLACK.mix(0.3)).draw()?;
        }
    }
    root.present()?;
    Ok(())
}

/// float16 above, bfloat16 below.
fn order_of_panels(all: &[Curves]) -> impl Iterator<Item = &Curves> {
    all.iter().step_by(2).chain(all.iter().skip(1).step_by(2))
}
