//! `mastercast amp`: a float32 program rewritten to mixed precision, with a report.

use super::input::{bytes, ending, job, text_file};
use super::rewrite::{OnConflict, Rewrite};
use super::{FINDINGS, Failure, Format, Outcome, Programs, Ui, print_out, render, write_file};
use clap::{Args, ValueEnum};
use mastercast::diag::{Diagnostics, Severity};
use mastercast::ir::{Program, Section};
use mastercast::ops::{AmpLists, Ops};
use mastercast::passes::precision::{Device, DeviceProfile, Effective, Level, LowType, Ready, Report, Rewritten, why};
use mastercast::passes::train_precision::scaling::LossScaling;
use mastercast::passes::{Precision, TrainPrecision};
use mastercast::verify::{Checks, verify};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LevelArg {
    /// nothing is changed
    #[value(name = "O0")]
    O0,
    /// ops of the white list in 16 bits, gray ones as their inputs
    #[value(name = "O1")]
    O1,
    /// all but what a list or a missing kernel forbids; parameters are narrowed
    #[value(name = "O2")]
    O2,
    /// ops of the white list alone
    #[value(name = "OD")]
    OD,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DtypeArg {
    Float16,
    Bfloat16,
}

/// What decides about precision; `amp` and `passes --lists` take it.
#[derive(Args)]
pub struct AmpOptions {
    /// How far the program goes to 16 bits, as in Paddle: O0, O1, O2 or OD
    #[arg(long, value_enum, default_value_t = LevelArg::O1, value_name = "LEVEL", hide_possible_values = true)]
    level: LevelArg,
    /// The 16-bit type: float16 or bfloat16
    #[arg(long, value_enum, default_value_t = DtypeArg::Float16, value_name = "TYPE", hide_possible_values = true)]
    dtype: DtypeArg,
    /// Ops in no list are float32 when an input is (Paddle's use_promote)
    #[arg(long)]
    promote: bool,
    /// Only ops inside Paddle's fp16_guard go to 16 bits
    #[arg(long)]
    guard: bool,
    /// Op kinds to compute in 16 bits, with commas between
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    white: Vec<String>,
    /// Op kinds to compute in float32
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    black: Vec<String>,
    /// Variables whose ops are computed in float32
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    black_vars: Vec<String>,
    /// Which kinds have kernels: gpu, cpu, or a profile of your own (TOML or JSON)
    #[arg(long, value_name = "gpu|cpu|FILE", default_value = "gpu")]
    device: String,
    /// Other op lists than Paddle's (TOML or JSON; `passes --lists` prints the form)
    #[arg(long, value_name = "FILE")]
    op_lists: Option<PathBuf>,
}

/// Reads a value from TOML or JSON, told by content.
fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = text_file(path)?;
    let fail = |e: &dyn std::fmt::Display| Failure::new(format!("{}: {e}", path.display()));
    if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|e| fail(&e))
    } else {
        toml::from_str(&text).map_err(|e| fail(&e))
    }
}

impl AmpOptions {
    /// The options of the pass.
    pub fn precision(&self) -> Result<Precision, Failure> {
        Ok(Precision {
            level: match self.level {
                LevelArg::O0 => Level::O0,
                LevelArg::O1 => Level::O1,
                LevelArg::O2 => Level::O2,
                LevelArg::OD => Level::OD,
            },
            dtype: match self.dtype {
                DtypeArg::Float16 => LowType::Float16,
                DtypeArg::Bfloat16 => LowType::BFloat16,
            },
            promote: self.promote,
            guard: self.guard,
            device: match self.device.as_str() {
                "gpu" => Device::Gpu,
                "cpu" => Device::Cpu,
                path => Device::Profile(Box::new(read::<DeviceProfile>(Path::new(path))?)),
            },
            white: self.white.clone(),
            black: self.black.clone(),
            black_vars: self.black_vars.clone(),
            lists: match &self.op_lists {
                Some(path) => Some(Box::new(read::<AmpLists>(path)?)),
                None => None,
            },
        })
    }

    /// The lists that the options come to.
    pub fn show(&self) -> Result<Value, Failure> {
        let options = self.precision()?;
        let lists = options.lists.as_deref().unwrap_or_else(|| AmpLists::paddle());
        let profile = options.device.profile();
        let effective = Effective::new(&options)?;
        Ok(json!({
            "level": options.level, "dtype": options.dtype,
            "device": {"name": profile.name, "source": profile.source, "kinds": profile.kinds.len()},
            "effective": effective,
            "lists": lists,
        }))
    }
}

/// Where the help lists what goes with `--training`.
const TRAINING: &str = "With --training";

/// What `--training` takes besides.
#[derive(Args)]
struct TrainArgs {
    /// Optimizers update 16-bit parameters directly (Paddle's master_weight=False)
    #[arg(long, requires = "training", help_heading = TRAINING)]
    no_master_weight: bool,
    /// Gradients of 16-bit parameters are cast to float32 first (Paddle's master_grad=True)
    #[arg(long, requires = "training", help_heading = TRAINING)]
    master_grad: bool,
    /// The loss scale at the start: 65536, or 32768 with --legacy-scaling
    #[arg(long, value_name = "SCALE", requires = "training", help_heading = TRAINING)]
    loss_scale: Option<f32>,
    /// The scale is not adapted; with --loss-scale 1 there is none
    #[arg(long, requires = "training", help_heading = TRAINING)]
    static_scale: bool,
    /// The numbers of Paddle's older decorate(use_pure_fp16=...)
    #[arg(long, requires = "training", help_heading = TRAINING)]
    legacy_scaling: bool,
}

impl TrainArgs {
    fn options(&self, precision: Precision) -> Result<TrainPrecision, Failure> {
        let mut loss_scaling = if self.legacy_scaling { LossScaling::legacy() } else { LossScaling::default() };
        if self.static_scale {
            loss_scaling.dynamic = Some(false);
        }
        if let Some(scale) = self.loss_scale {
            if !(scale.is_finite() && scale > 0.0) {
                return Err(Failure::new(format!("--loss-scale {scale}: a finite number above 0 is needed")));
            }
            loss_scaling.init = scale;
        }
        let (master_weight, master_grad) = (!self.no_master_weight, self.master_grad);
        Ok(TrainPrecision { master_weight, master_grad, loss_scaling, ..precision.into() })
    }
}

/// Arguments of `amp`.
#[derive(Args)]
#[command(after_help = "Example: mastercast amp --main main.pb --startup startup.pb --level O2 \\\n    \
    --dtype bfloat16 --forward --out half\n         \
    mastercast amp --main train.pb --startup startup.pb --level O2 --training --out half\n\n\
    Writes main.pb, startup.pb when there is one, and report.json, with the sorted lists `returned` (what\n\
    Paddle's rewrite returns) and `low` (what amp_init must narrow). The lists and rules are Paddle 2.6.2's.\n\n\
    Exit code: 0 done (--training: in step), 1 findings about the program, 2 could not run.")]
pub struct Amp {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    options: AmpOptions,
    /// Rewrite a forward program and do nothing else
    #[arg(long)]
    forward: bool,
    /// Rewrite a finished float32 training program: forward, backward, loss scaling, optimizer; then masters, loads
    /// and `amp_init` as the schedule has them (without one: "startup, amp_init, main"), and prove the result
    #[arg(long, conflicts_with = "forward")]
    training: bool,
    #[command(flatten)]
    train: TrainArgs,
    /// The directory to write
    #[arg(long, value_name = "DIR", required_unless_present = "why")]
    out: Option<PathBuf>,
    /// Say why a variable has its dtype: the chain of rules
    #[arg(long, value_name = "VAR")]
    why: Option<String>,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Amp {
    pub fn run(self, ui: Ui) -> Outcome {
        let options = self.options.precision()?;
        if self.training {
            return self.training(ui, options);
        }
        let mut loaded = job(&self.programs)?;
        let mut found = std::mem::take(&mut loaded.diagnostics);
        if self.programs.schedule.is_some() {
            return Err(Failure::new("--schedule has no meaning for a forward program"));
        }
        if !found.has_errors() {
            found.extend(verify(&loaded.program, Checks::STRUCTURE));
        }
        if found.has_errors() {
            eprint!("{}", render::diagnostics(ui, &found, loaded.source().as_ref()));
            return Ok(ExitCode::from(FINDINGS));
        }
        let mut program = loaded.program;
        if program.is_empty(Section::Main) {
            return Err(Failure::new("there is no main program").help("--main FILE"));
        }
        let (ready, done) = options.rewrite(&mut program, Ops::standard())?;
        let report = done.as_ref().map(|d| Report::new(&program, &options, d));
        let left = verify(&program, Checks::ALL.without(Checks::READS));
        if left.has_errors() {
            // A fault of ours: a rewrite of a program that verifies must verify.
            eprint!("{}", render::diagnostics(ui, &left, None));
            return Err(Failure::new("the result does not verify; nothing is written"));
        }
        if let Some(name) = &self.why {
            return self.explain(&program, &ready, done.as_ref(), name);
        }
        if let Some(out) = &self.out {
            std::fs::create_dir_all(out).map_err(|e| Failure::new(format!("{}: {e}", out.display())))?;
            if !program.is_empty(Section::Startup) {
                write_file(&out.join(format!("startup.{}", ending(&program))), &bytes(&program, Section::Startup)?)?;
            }
            write_file(&out.join(format!("main.{}", ending(&program))), &bytes(&program, Section::Main)?)?;
            let value = self.json(&program, &options, &ready, report.as_ref());
            write_file(&out.join("report.json"), format!("{value:#}\n").as_bytes())?;
        }
        match self.format {
            Format::Json => {
                let value = self.json(&program, &options, &ready, report.as_ref());
                print_out(format!("{value:#}\n").as_bytes())
            }
            Format::Text => {
                if !ui.quiet {
                    eprint!("{}", render::diagnostics(ui, &warnings(left), None));
                    if let Some(report) = &report {
                        eprint!("{}", text(report));
                    }
                }
                let line = report.map(|r| r.summary).or_else(|| ready.told(&program)).unwrap_or_default();
                print_out(format!("{line}\n").as_bytes())
            }
        }
    }

    /// The whole pipeline of a training program, as `rewrite` runs it.
    fn training(self, ui: Ui, options: Precision) -> Outcome {
        if self.why.is_some() {
            return Err(Failure::new("--why explains a forward program").help("give --forward and the forward program"));
        }
        let Some(out) = self.out else { return Err(Failure::new("--out is missing")) };
        let train = self.train.options(options)?;
        let mut programs = self.programs;
        if programs.schedule.is_none() && programs.startup.is_some() {
            programs.schedule = Some("startup, amp_init, main".to_owned());
        }
        let rewrite = Rewrite {
            programs,
            pipeline: "cast-cleanup,master-casts,load-order,resync".to_owned(),
            on_conflict: OnConflict::Master,
            out,
            no_convert: false,
            load_dir: None,
            train: Some(train),
            stop_after: None,
            print_after: false,
            no_verify: false,
            timings: false,
        };
        rewrite.run(ui)
    }

    fn json(&self, program: &Program, options: &Precision, ready: &Ready, report: Option<&Report>) -> Value {
        let empty = Report::default();
        let report = report.unwrap_or(&empty);
        json!({
            "options": options,
            "changed": *ready == Ready::Yes,
            "told": ready.told(program),
            "summary": report.summary,
            "returned": report.returned,
            "low": report.low,
            "report": report,
        })
    }

    fn explain(&self, program: &Program, ready: &Ready, done: Option<&Rewritten>, name: &str) -> Outcome {
        let Some(done) = done else {
            return print_out(format!("{}\n", ready.told(program).unwrap_or_default()).as_bytes());
        };
        let lines = program.names().lookup(name).and_then(|n| why(program, done, n));
        match lines {
            Some(lines) => print_out(format!("{}\n", lines.join("\n")).as_bytes()),
            None => Err(Failure::new(format!("main has no variable `{name}`"))),
        }
    }
}

fn warnings(found: Diagnostics) -> Diagnostics {
    let mut out = Diagnostics::new();
    for d in found.iter().filter(|d| d.severity != Severity::Note) {
        out.push(d.clone());
    }
    out
}

/// The report for a person.
fn text(report: &Report) -> String {
    let mut out = String::new();
    for (choice, reasons) in &report.by_reason {
        for (reason, n) in reasons {
            out.push_str(&format!("{n:7} {choice:8} {reason}\n"));
        }
    }
    out.push_str(&format!(
        "{:7} casts to 16 bits, {} to float32 ({:.2} for each op that computes floats)\n",
        report.casts_to_low, report.casts_to_float32, report.casts_per_op
    ));
    for kept in report.kept.iter().take(SHOWN) {
        out.push_str(&format!("        kept {}: {}\n", kept.name, kept.why));
    }
    if report.kept.len() > SHOWN {
        out.push_str(&format!(
            "        and {} more parameters kept (report.json lists them)\n",
            report.kept.len() - SHOWN
        ));
    }
    out
}

/// Kept parameters that the text shows.
const SHOWN: usize = 8;
