//! What can the command line do? One file a sub-command; only this folder prints.
//!
//! Exit codes: 0 done (for `check`: in step), 1 findings about the user's program, 2 could not be done.

mod amp;
mod check;
mod ckpt;
mod diff;
mod explain;
mod input;
mod render;
mod rewrite;
mod run;
mod show;
mod watch;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Where the help lists what every sub-command takes.
const EVERYWHERE: &str = "Options of every command";

/// Proves and repairs parameter/master-weight coherence in mixed-precision training programs.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Exit code: 0 done (in step, equal), 1 findings, 2 could not run.\n\n\
    Start with `mastercast check --help`."
)]
struct Cli {
    /// Print results and errors only: no progress, no warnings
    #[arg(long, short, global = true, help_heading = EVERYWHERE)]
    quiet: bool,
    /// Print every finding, not the first three of a kind
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    all: bool,
    /// When to colour; `auto` looks at the terminal and at NO_COLOR
    #[arg(long, global = true, help_heading = EVERYWHERE, hide_possible_values = true, value_name = "auto|always|never", value_enum, default_value_t = Color::Auto)]
    color: Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The programs of a training job.
#[derive(Args)]
struct Programs {
    /// Startup program: ProgramDesc, PIR, text or JSON, told by content; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    startup: Option<PathBuf>,
    /// Main program; a text or JSON file that holds both sections may be given once
    #[arg(long, value_name = "FILE")]
    main: Option<PathBuf>,
    /// What the training script runs, in its order: `startup`, `load(PATH)`, `load(PATH,
    /// only=params)` or `only=masters`, `amp_init` or `amp_init(rewrite_master)`, `main`. Without it:
    /// "startup, main"
    #[arg(long, value_name = "STEPS")]
    schedule: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Verify a job and prove each parameter/master pair in step
    Check(check::Check),
    /// Rewrite a job so that every pair is in step
    Rewrite(rewrite::Rewrite),
    /// Rewrite a float32 program to mixed precision
    Amp(amp::Amp),
    /// Run a job in the interpreter
    Run(run::Run),
    /// Print a program in another form
    Show(show::Show),
    /// Show how two programs differ
    Diff(diff::Diff),
    /// Look at, compare, convert and load checkpoints
    Ckpt(ckpt::Ckpt),
    /// Explain a diagnostic code
    Explain(explain::Explain),
    /// List the passes
    Passes(explain::Passes),
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// How this call prints.
#[derive(Clone, Copy)]
struct Ui {
    quiet: bool,
    color: bool,
    all: bool,
}

/// Why a sub-command could not do its work: one line, and what may help.
struct Failure {
    message: String,
    help: Option<String>,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(e: E) -> Self {
        let mut message = e.to_string();
        let mut source = e.source();
        while let Some(s) = source {
            let text = s.to_string();
            // Many errors already say what their source says.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = s.source();
        }
        Failure::new(message)
    }
}

type Outcome = Result<ExitCode, Failure>;

const FINDINGS: u8 = 1;
const FAILED: u8 = 2;

/// Reads the arguments and runs a sub-command.
pub fn main() -> ExitCode {
    use std::io::IsTerminal;
    let cli = Cli::parse();
    let color = match cli.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    };
    let ui = Ui { quiet: cli.quiet, color, all: cli.all };
    let outcome = match cli.command {
        Command::Check(c) => c.run(ui),
        Command::Rewrite(c) => c.run(ui),
        Command::Amp(c) => c.run(ui),
        Command::Run(c) => c.run(ui),
        Command::Show(c) => c.run(ui),
        Command::Diff(c) => c.run(ui),
        Command::Ckpt(c) => c.run(ui),
        Command::Explain(c) => c.run(),
        Command::Passes(c) => c.run(),
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mastercast", &mut out);
            print_out(&out)
        }
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("{}: {}", render::paint(ui, "31;1", "error"), failure.message);
        if let Some(help) = failure.help {
            eprintln!("{}: {help}", render::paint(ui, "36;1", "help"));
        }
        ExitCode::from(FAILED)
    })
}

/// Writes to standard output; a reader that has gone away is no failure.
fn print_out(bytes: &[u8]) -> Outcome {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(Failure::new(format!("standard output: {e}"))),
    }
}

/// Whether a path leads to what a rename would replace instead of writing to it: a pipe, a device, or
/// one of this process's open files (`/dev/stdout`, `/dev/fd/63`).
fn is_special(path: &std::path::Path) -> bool {
    let open_file = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir))
        && std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
    open_file || std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// Writes a file beside and renames it, or to standard output for `-`. A pipe or device is written as it is.
fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    use std::io::Write;
    if path.as_os_str() == "-" {
        return print_out(bytes).map(drop);
    }
    let fail = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    if is_special(path) {
        let mut file = std::fs::OpenOptions::new().write(true).open(path).map_err(fail)?;
        return file.write_all(bytes).and_then(|()| file.flush()).map_err(fail);
    }
    let dir = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => std::path::Path::new("."),
    };
    let mut file = tempfile::Builder::new().prefix(".mastercast.").tempfile_in(dir).map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(fail)?;
    }
    file.as_file().sync_all().map_err(fail)?;
    file.persist(path).map_err(|e| fail(e.error))?;
    Ok(())
}
