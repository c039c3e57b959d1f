//! `mastercast run`: what does the job compute?

use super::input::{Checkpoints, apply, job};
use super::watch::{Progress, Watch, no_pairs, pair_check};
use super::{FINDINGS, Failure, Outcome, Programs, Ui, print_out, render};
use clap::{Args, ValueEnum};
use mastercast::ckpt::{self, TensorData};
use mastercast::interp::{Fault, InterpError, Interpreter, Narrowing, Options, Profile, RunStats, Scope, Tensor};
use mastercast::ir::{Program, Section, VarFlag};
use mastercast::verify::{Checks, verify};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    /// to nearest, ties to even
    Nearest,
    /// towards zero, as Paddle 2.6.2's CPU cast
    Truncate,
}

impl From<Rounding> for Narrowing {
    fn from(rounding: Rounding) -> Narrowing {
        match rounding {
            Rounding::Nearest => Narrowing::NearestEven,
            Rounding::Truncate => Narrowing::Truncate,
        }
    }
}

/// Arguments of `run`.
#[derive(Args)]
#[command(after_help = "Example: mastercast run --startup startup.pb --main main.pb --feed batch.safetensors \\\n    \
    --steps 3 --fetch mean_0.tmp_0 --scope-out after.safetensors")]
pub struct Run {
    #[command(flatten)]
    programs: Programs,
    /// Steps of main; with 0, `--fetch` prints what startup left
    #[arg(long, default_value_t = 1)]
    steps: u64,
    /// Tensors to feed, by variable name, the same at each step; any checkpoint format
    #[arg(long, value_name = "FILE")]
    feed: Option<PathBuf>,
    /// Variables to print after each step
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    fetch: Vec<String>,
    /// Cells to set before startup, by name
    #[arg(long, value_name = "FILE")]
    scope_in: Option<PathBuf>,
    /// Where to write the cells after the last step (safetensors)
    #[arg(long, value_name = "FILE")]
    scope_out: Option<PathBuf>,
    /// How casts narrow
    #[arg(long, value_enum, default_value_t = Rounding::Nearest)]
    narrowing: Rounding,
    /// Seed of the random initialisers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Ops that startup, or one step of main, may execute
    #[arg(long, default_value_t = 100_000_000)]
    fuel: u64,
    /// Bytes that variables may hold at once
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().memory_limit)]
    memory_limit: u64,
    /// Print what each op wrote: dtype, shape, least, largest, how many NaNs and infinities
    #[arg(long)]
    trace: bool,
    /// Compare every parameter of main with its narrowed master, before each op that reads one and after
    /// each step; stop at the first that differs (exit status 1)
    #[arg(long)]
    check_coherence: bool,
    /// Stop at the first op that writes a NaN (exit status 2); with dynamic loss scaling a first step that
    /// overflows is normal
    #[arg(long)]
    check_nan: bool,
    /// Print time and bytes by op kind, startup included
    #[arg(long)]
    profile: bool,
}

impl Run {
    pub fn run(self, ui: Ui) -> Outcome {
        let mut loaded = job(&self.programs)?;
        let mut found = std::mem::take(&mut loaded.diagnostics);
        if !found.has_errors() {
            let mut open = Checkpoints::default();
            found.extend(apply(ui, &self.programs, &mut loaded.program, &mut open)?.diagnostics);
            found.extend(verify(&loaded.program, Checks::STRUCTURE));
        }
        if found.has_errors() || !ui.quiet {
            eprint!("{}", render::diagnostics(ui, &found, loaded.source().as_ref()));
        }
        if found.has_errors() {
            return Ok(ExitCode::from(FINDINGS));
        }
        let program = &loaded.program;
        let mut options = Options::default();
        options.narrowing = self.narrowing.into();
        (options.seed, options.fuel, options.memory_limit) = (self.seed, self.fuel, self.memory_limit);
        let mut watch = Watch { trace: self.trace, nan: self.check_nan, ..Watch::default() };
        watch.profile = self.profile.then(Profile::default);
        watch.pairs = self.check_coherence.then(|| pair_check(program));
        if watch.pairs.as_ref().is_some_and(|p| p.pairs() == 0) {
            eprintln!("{}: {}", render::paint(ui, "33;1", "warning"), no_pairs(program));
        }
        let mut scope = Scope::new();
        for (name, tensor) in self.scope_in.as_deref().map(tensors).transpose()?.unwrap_or_default() {
            scope.set(&name, tensor);
        }
        let feeds = self.feed.as_deref().map(tensors).transpose()?.unwrap_or_default();
        let mut interpreter = Interpreter::new(program).with_options(options);
        let started = match watch.any() {
            true => interpreter.run_observed(Section::Startup, &mut scope, &[], &[], &mut watch)?.stats,
            false => interpreter.run(Section::Startup, &mut scope)?,
        };
        tell(ui, &started);
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        let (mut ops, mut peak) = (0, started.peak_bytes);
        let mut progress = Progress::new(ui);
        for step in 1..=self.steps {
            watch.step = step;
            let out = match watch.any() {
                true => interpreter.run_observed(Section::Main, &mut scope, &feeds, &fetch, &mut watch),
                false => interpreter.run_with(Section::Main, &mut scope, &feeds, &fetch),
            };
            let out = out.and_then(|out| watch.end(program, &scope).map(|()| out).map_err(InterpError::from));
            let out = match out {
                Err(e) if matches!(e.fault(), Fault::OutOfStep { .. }) => {
                    eprintln!("{}: step {step}: {e}", render::paint(ui, "31;1", "error"));
                    return Ok(ExitCode::from(FINDINGS));
                }
                out => out.map_err(|e| explained(e, program, &feeds))?,
            };
            tell(ui, &out.stats);
            ops += out.stats.ops;
            peak = peak.max(out.stats.peak_bytes);
            progress.step(step, self.steps);
            for (name, value) in self.fetch.iter().zip(&out.values) {
                print_out(format!("step {step} {name} {}\n", shown(value)).as_bytes())?;
            }
        }
        progress.done();
        if let Some(report) = watch.report() {
            print_out(report.as_bytes())?;
        }
        if self.steps == 0 {
            for name in &self.fetch {
                let value =
                    scope.get(name).ok_or_else(|| Failure::new(format!("`{name}` has no value after startup")))?;
                print_out(format!("startup {name} {}\n", shown(value)).as_bytes())?;
            }
        }
        let written = self.scope_out.as_deref().map(|path| write_scope(path, &scope)).transpose()?;
        if !ui.quiet {
            let s = if self.steps == 1 { "" } else { "s" };
            eprintln!("ran startup ({} ops) and {} step{s} of main ({ops} ops)", started.ops, self.steps);
            eprintln!("variables held at most {:.1} MB", peak as f64 / 1e6);
            if let Some(pairs) = watch.pairs.as_ref().filter(|p| p.pairs() > 0) {
                eprintln!("{} pairs in step, compared {} times", pairs.pairs(), pairs.compared());
            }
            if let (Some(n), Some(path)) = (written, &self.scope_out) {
                eprintln!("wrote {n} cells to {}", path.display());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A fault of a run, with what to feed when that is the reason.
fn explained(e: InterpError, program: &Program, feeds: &[(String, Tensor)]) -> Failure {
    let missing = match e.fault() {
        Fault::MissingValue { name, .. } => name.clone(),
        _ => return e.into(),
    };
    let Some(block) = program.global_block(Section::Main) else { return e.into() };
    let vars = program.block(block).vars.iter().map(|&v| program.var(v));
    let open: Vec<String> = vars
        .filter(|v| v.flags.is(VarFlag::NeedCheckFeed))
        .map(|v| program.name(v.name))
        .filter(|name| feeds.iter().all(|(fed, _)| fed != name))
        .map(|name| format!("`{name}`"))
        .collect();
    let failure = Failure::from(e);
    match open.contains(&format!("`{missing}`")) {
        true => failure.help(format!("main must be fed {}: --feed FILE, with tensors of these names", open.join(", "))),
        false => failure,
    }
}

fn tell(ui: Ui, stats: &RunStats) {
    for w in stats.warnings.iter().filter(|_| !ui.quiet) {
        eprintln!("{}: {} ({})", render::paint(ui, "33;1", "warning"), w.message, w.place);
    }
}

/// Dtype, shape and the first values.
fn shown(t: &Tensor) -> String {
    let values = t.to_f64_vec();
    let head: Vec<String> = values.iter().take(8).map(|v| v.to_string()).collect();
    let more = if values.len() > 8 { ", …" } else { "" };
    format!("{}{:?} [{}{more}]", t.dtype(), t.shape(), head.join(", "))
}

/// All tensors of a checkpoint file.
fn tensors(path: &Path) -> Result<Vec<(String, Tensor)>, Failure> {
    let ckpt = ckpt::open(path)?;
    let mut out = Vec::new();
    for (i, e) in ckpt.entries().iter().enumerate() {
        let shape = e.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>()?;
        let tensor = Tensor::from_bytes(e.dtype, &shape, &ckpt.read(i)?)
            .map_err(|err| Failure::new(format!("{}: `{}`: {err}", path.display(), e.name)))?;
        out.push((e.name.clone(), tensor));
    }
    Ok(out)
}

/// Writes the cells; how many.
fn write_scope(path: &Path, scope: &Scope) -> Result<usize, Failure> {
    let rows: Vec<TensorData<'_>> = scope
        .iter()
        .map(|(name, t)| {
            let shape: Vec<u64> = t.shape().iter().map(|&d| d as u64).collect();
            TensorData::new(name.to_owned(), t.dtype(), shape, t.to_bytes())
        })
        .collect();
    let n = rows.len();
    ckpt::write_safetensors(path, rows, &Default::default())?;
    Ok(n)
}
