//! `mastercast show`: one program in another form.

use super::input::{Checkpoints, apply, is_pir, job, load};
use super::{FINDINGS, Failure, Outcome, Programs, Ui, print_out, render, write_file};
use clap::{Args, ValueEnum};
use mastercast::analysis::depgraph::DepGraph;
use mastercast::analysis::effects::Effects;
use mastercast::ir::{Program, Section};
use mastercast::ops::Ops;
use mastercast::paddle::{pir, proto};
use mastercast::text;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum As {
    /// the text format
    Text,
    /// JSON
    Json,
    /// the dependence graph, in Graphviz's language
    Dot,
    /// ProgramDesc
    Proto,
    /// PIR, of a program that is PIR
    Pir,
}

/// Arguments of `show`.
#[derive(Args)]
#[command(after_help = "Examples: mastercast show main.pb --brief\n          \
    mastercast show --startup startup.pb --main main.pb --schedule \"startup, amp_init, main\" -o job.txt\n\n\
    With a schedule, its steps are shown as the ops that stand for them. A file that holds both programs can be\n\
    given to every command as --startup or --main.")]
pub struct Show {
    /// One program; `-` reads standard input
    #[arg(required_unless_present_any = ["startup", "main"], conflicts_with_all = ["startup", "main", "schedule"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    programs: Programs,
    /// The form
    #[arg(long = "as", value_enum, default_value_t = As::Text)]
    form: As,
    /// In text: leave out the attributes that the framework writes on every op
    #[arg(long)]
    brief: bool,
    /// Where to write; standard output when absent
    #[arg(short, long)]
    output: Option<PathBuf>,
}

impl Show {
    pub fn run(self, ui: Ui) -> Outcome {
        let mut loaded = match &self.file {
            Some(file) => load(file, Section::Main)?,
            None => job(&self.programs)?,
        };
        if !loaded.diagnostics.has_errors() {
            let applied = apply(ui, &self.programs, &mut loaded.program, &mut Checkpoints::default())?;
            loaded.diagnostics.extend(applied.diagnostics);
        }
        eprint!("{}", render::diagnostics(ui, &loaded.diagnostics, loaded.source().as_ref()));
        if loaded.diagnostics.has_errors() {
            return Ok(ExitCode::from(FINDINGS));
        }
        let program = &loaded.program;
        let bytes = match self.form {
            As::Text if self.brief => text::print_brief(program).into_bytes(),
            As::Text => text::print(program).into_bytes(),
            As::Json => {
                // Row by row: a tree of values takes sixty times its text.
                let mut bytes = serde_json::to_vec_pretty(program)?;
                bytes.push(b'\n');
                bytes
            }
            As::Dot => dot(program).into_bytes(),
            As::Proto if is_pir(program) => return Err(no_conversion("PIR", "pir")),
            As::Proto => proto::export(program, only_section(program)),
            As::Pir if !is_pir(program) => return Err(no_conversion("ProgramDesc", "proto")),
            As::Pir => pir::export(program, only_section(program))?.into_bytes(),
        };
        match self.output {
            Some(path) => write_file(&path, &bytes).map(|()| ExitCode::SUCCESS),
            None => print_out(&bytes),
        }
    }
}

fn no_conversion(is: &str, form: &str) -> Failure {
    let message = format!("the program is {is}; there is no conversion between ProgramDesc and PIR");
    Failure::new(message).help(format!("--as {form}"))
}

/// The section to show where only one can be: main, unless there is none.
fn only_section(program: &Program) -> Section {
    match program.section(Section::Main).blocks.is_empty() {
        true => Section::Startup,
        false => Section::Main,
    }
}

fn dot(program: &Program) -> String {
    let kinds = Ops::standard().resolve(program);
    let effects = Effects::new(program, &kinds);
    let global = program.global_block(only_section(program));
    global.map_or_else(|| "digraph {\n}\n".to_owned(), |b| DepGraph::new(program, &effects, b).dot(program))
}
