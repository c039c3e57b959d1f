//! `ckpt plan` and `ckpt load`: what would a load into a program do, and what are its cells afterwards?

use super::super::input::job;
use super::super::run::Rounding;
use super::super::{FINDINGS, Failure, Format, Outcome, Programs, Ui, print_out, render};
use super::{Bar, is_json, open, print_json, size};
use clap::{Args, ValueEnum};
use mastercast::ckpt::names::{Rules, Why};
use mastercast::ckpt::plan::{OnConflict, Policy, Problem, Which};
use mastercast::ckpt::{self, Checkpoint, TensorData};
use mastercast::interp::Scope;
use mastercast::ir::Program;
use mastercast::state::{Load, LoadError, LoadReport, state_dict};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WhichArg {
    Params,
    Optimizer,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Masters {
    /// a master that is not there is made from its parameter
    Derive,
    /// it is an error
    Error,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DTypes {
    /// a type that the program does not declare is an error
    Exact,
    /// it is cast, and reported
    Cast,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Conflict {
    Error,
    Master,
    Param,
}

/// What both commands take.
#[derive(Args)]
struct Common {
    #[command(flatten)]
    programs: Programs,
    /// Checkpoints of any format, taken together: say a .pdparams and its .pdopt
    #[arg(required = true)]
    checkpoints: Vec<PathBuf>,
    /// Which cells to load
    #[arg(long, value_enum, default_value_t = WhichArg::All)]
    which: WhichArg,
    /// Cells that the checkpoint does not bring keep their values
    #[arg(long)]
    allow_missing: bool,
    /// Keys that the program has no cell for are left alone
    #[arg(long)]
    allow_unexpected: bool,
    /// What to do about a master that is not there
    #[arg(long, value_enum, default_value_t = Masters::Derive)]
    masters: Masters,
    /// What to do about another type than the program's
    #[arg(long, value_enum, default_value_t = DTypes::Exact)]
    dtypes: DTypes,
    /// Who is right when a parameter is not its narrowed master
    #[arg(long, value_enum, default_value_t = Conflict::Master)]
    on_conflict: Conflict,
    /// How float32 becomes 16 bits
    #[arg(long, value_enum, default_value_t = Rounding::Nearest)]
    narrowing: Rounding,
    /// A rule that renames keys: `FROM = TO`, `prefix FROM = TO`, `regex FROM = TO`; repeatable, the first that
    /// fits counts
    #[arg(long, value_name = "RULE")]
    map: Vec<String>,
    /// A file of such rules, one a line, after those of --map
    #[arg(long, value_name = "FILE")]
    map_file: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Common {
    fn policy(&self) -> Result<Policy, Failure> {
        let mut rules = self.map.join("\n");
        if let Some(path) = &self.map_file {
            let fail = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
            if std::fs::metadata(path).map_err(fail)?.len() > ckpt::names::MAX_RULES as u64 {
                return Err(Failure::new(format!("{}: too long for a file of rules", path.display())));
            }
            rules = format!("{rules}\n{}", std::fs::read_to_string(path).map_err(fail)?);
        }
        Ok(Policy {
            which: match self.which {
                WhichArg::Params => Which::Params,
                WhichArg::Optimizer => Which::Optimizer,
                WhichArg::All => Which::All,
            },
            allow_missing: self.allow_missing,
            allow_unexpected: self.allow_unexpected,
            require_masters: self.masters == Masters::Error,
            cast: self.dtypes == DTypes::Cast,
            on_conflict: match self.on_conflict {
                Conflict::Error => OnConflict::Error,
                Conflict::Master => OnConflict::Master,
                Conflict::Param => OnConflict::Param,
            },
            rules: Rules::parse(&rules)?,
            narrowing: self.narrowing.into(),
        })
    }

    /// The program, without findings about its text.
    fn program(&self, ui: Ui) -> Result<Result<Program, ExitCode>, Failure> {
        if self.programs.schedule.is_some() {
            return Err(Failure::new("a load of its own has no --schedule").help("`mastercast check` takes one"));
        }
        let loaded = job(&self.programs)?;
        if loaded.diagnostics.has_errors() {
            eprint!("{}", render::diagnostics(ui, &loaded.diagnostics, loaded.source().as_ref()));
            return Ok(Err(ExitCode::from(FINDINGS)));
        }
        Ok(Ok(loaded.program))
    }

    fn checkpoints(&self) -> Result<Vec<Box<dyn Checkpoint>>, Failure> {
        self.checkpoints.iter().map(|p| open(p)).collect()
    }

    fn print(&self, ui: Ui, report: &LoadReport) -> Outcome {
        if is_json(self.format) {
            return print_json(&serde_json::to_value(report)?);
        }
        print_out(shown(ui, report).as_bytes())
    }
}

/// A report for people: problems first, then what is not plain.
fn shown(ui: Ui, report: &LoadReport) -> String {
    const LISTED: usize = 20;
    let mut text = String::new();
    let mut list = |title: &str, rows: Vec<String>| {
        if rows.is_empty() {
            return;
        }
        text += &format!("{title} ({})\n", rows.len());
        let most = if ui.all { rows.len() } else { LISTED };
        rows.iter().take(most).for_each(|r| text += &format!("  {r}\n"));
        if rows.len() > most {
            text += &format!("  and {} more (--all)\n", rows.len() - most);
        }
    };
    list("problems", report.problems.iter().map(|p| p.to_string()).collect());
    let mapped = report.loaded.iter().filter(|l| l.why != Why::Equal && l.derived_from.is_none());
    list("under another name", mapped.map(|l| format!("{} <- {}: {}", l.name, l.key, l.why)).collect());
    let derived = report.loaded.iter().filter_map(|l| {
        let from = l.derived_from?;
        let lossy = if l.from_16_bits { ", which is 16-bit: float32 precision is lost" } else { "" };
        Some(format!("{} from the {from}'s entry `{}`{lossy}", l.name, l.key))
    });
    list("made from the pair's other half", derived.collect());
    let cast = report.loaded.iter().filter_map(|l| l.cast.as_ref().map(|(a, b)| format!("{}: {a} -> {b}", l.name)));
    list("cast", cast.collect());
    list(
        "parameter and master differ",
        report.conflicts.iter().map(|c| format!("{} and {}: by at most {}", c.param, c.master, c.largest)).collect(),
    );
    list("rounded anew: the checkpoint rounds its masters otherwise", report.rounded_otherwise.clone());
    list("keeps its value", report.kept.clone());
    list("left alone", report.left.clone());
    let (n, s) = (report.loaded.len(), if report.loaded.len() == 1 { "" } else { "s" });
    text += &format!("{n} cell{s} from {}\n", size(report.bytes));
    if report.problems.iter().any(|p| matches!(p, Problem::Missing { .. })) {
        text += "help: --allow-missing lets such cells keep their values; --which params loads parameters alone, and their masters follow\n";
    }
    if report.problems.iter().any(|p| matches!(p, Problem::Unexpected { .. })) {
        text += "help: --allow-unexpected leaves such keys alone; --map renames keys\n";
    }
    text
}

/// Arguments of `plan`.
#[derive(Args)]
#[command(after_help = "Reads manifests only. Exit code: 0 it would load, 1 it would not, 2 could not run.\n\n\
    Example: mastercast ckpt plan --startup startup.pb --main main.pb model.pdparams model.pdopt")]
pub struct PlanCmd {
    #[command(flatten)]
    common: Common,
}

impl PlanCmd {
    pub fn run(self, ui: Ui) -> Outcome {
        let program = match self.common.program(ui)? {
            Ok(program) => program,
            Err(code) => return Ok(code),
        };
        let (open, policy) = (self.common.checkpoints()?, self.common.policy()?);
        let sources: Vec<&dyn Checkpoint> = open.iter().map(|c| &**c).collect();
        let load = Load::plan(&program, &sources, policy);
        self.common.print(ui, &load.report())?;
        Ok(if load.decided().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
    }
}

/// Arguments of `load`.
#[derive(Args)]
#[command(after_help = "Nothing is written when the checkpoint does not fit. Exit code: 0 loaded, 1 it does not fit, \
    2 could not run.")]
pub struct LoadCmd {
    #[command(flatten)]
    common: Common,
    /// Where to write the cells (safetensors)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Threads that read and convert
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

impl LoadCmd {
    pub fn run(self, ui: Ui) -> Outcome {
        let program = match self.common.program(ui)? {
            Ok(program) => program,
            Err(code) => return Ok(code),
        };
        let (open, policy) = (self.common.checkpoints()?, self.common.policy()?);
        let sources: Vec<&dyn Checkpoint> = open.iter().map(|c| &**c).collect();
        let load = Load::plan(&program, &sources, policy);
        let bar = Bar::new(ui, "loading", load.decided().bytes);
        let mut scope = Scope::new();
        let outcome = load.run(&mut scope, self.threads, &|n| bar.add(n));
        drop(bar);
        let report = match outcome {
            Ok(report) => report,
            Err(LoadError::Problems(report)) => {
                self.common.print(ui, &report)?;
                return Ok(ExitCode::from(FINDINGS));
            }
            Err(e @ LoadError::Conflict(_)) => {
                return Err(Failure::from(e).help("--on-conflict master or param says which one counts"));
            }
            Err(e) => return Err(e.into()),
        };
        let cells = state_dict(&program, &scope, Which::All);
        let rows = cells.iter().map(|(name, t)| {
            let shape: Vec<u64> = t.shape().iter().map(|&d| d as u64).collect();
            TensorData::new(&name[..], t.dtype(), shape, t.to_bytes())
        });
        ckpt::write_safetensors(&self.out, rows, &Default::default())?;
        self.common.print(ui, &report)
    }
}
