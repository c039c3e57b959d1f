//! `mastercast check`: is every pair in step when main starts?

use super::input::{Checkpoints, apply, job};
use super::{FINDINGS, Failure, Format, Outcome, Programs, Ui, print_out, render};
use clap::Args;
use mastercast::analysis::{self, Coherence, Subject, coherence};
use mastercast::diag::{Diagnostics, render_json};
use mastercast::ir::Program;
use mastercast::verify::{Checks, verify};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `check`.
#[derive(Args)]
#[command(after_help = "Example: mastercast check --startup startup.pb --main main.pb \\\n    \
    --schedule \"startup, load(ckpt.safetensors), amp_init, main\"\n\n\
    Exit code: 0 in step, 1 findings, 2 could not run.")]
pub struct Check {
    #[command(flatten)]
    programs: Programs,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Check {
    pub fn run(self, ui: Ui) -> Outcome {
        let mut loaded = job(&self.programs)?;
        let mut found = std::mem::take(&mut loaded.diagnostics);
        let mut proof = None;
        if !found.has_errors() {
            let mut open = Checkpoints::default();
            found.extend(apply(&self.programs, &mut loaded.program, &mut open)?.diagnostics);
            found.extend(verify(&loaded.program, Checks::ALL));
            if !found.has_errors() {
                let settled = prove(&loaded.program, &mut open)?;
                found.extend(analysis::diagnostics(&settled, &loaded.program));
                proof = Some(settled);
            }
        }
        let good = !found.has_errors() && proof.as_ref().is_some_and(Coherence::proved);
        match self.format {
            Format::Json => {
                let verdicts = proof.as_ref().map(|p| verdicts(p, &loaded.program));
                let value = json!({"in_step": good, "verdicts": verdicts, "diagnostics": render_json(&found)});
                print_out(format!("{value:#}\n").as_bytes())?;
            }
            Format::Text => {
                let shown = if ui.quiet { only_errors(&found) } else { found };
                eprint!("{}", render::diagnostics(ui, &shown, loaded.source().as_ref()));
                let line = match &proof {
                    Some(p) => summary(p),
                    None => "not proved: the program does not verify".to_owned(),
                };
                print_out(format!("{line}\n").as_bytes())?;
            }
        }
        Ok(ExitCode::from(if good { 0 } else { FINDINGS }))
    }
}

fn only_errors(found: &Diagnostics) -> Diagnostics {
    let mut out = Diagnostics::new();
    for d in found.iter().filter(|d| d.severity == mastercast::diag::Severity::Error) {
        out.push(d.clone());
    }
    out
}

/// The proof, with what the checkpoints themselves can settle settled.
pub fn prove(program: &Program, open: &mut Checkpoints) -> Result<Coherence, Failure> {
    let mut proof = coherence(program);
    let mut failed = None;
    proof.discharge(|pair, obligation| match open.settle(pair, obligation) {
        Ok(settled) => settled,
        Err(e) => {
            failed.get_or_insert(e);
            None
        }
    });
    match failed {
        Some(e) => Err(e.into()),
        None => Ok(proof),
    }
}

/// One line on the outcome.
pub fn summary(proof: &Coherence) -> String {
    let (pairs, good) = proof.pair_counts();
    let others = proof.verdicts.iter().filter(|v| !matches!(v.subject, Subject::Pair(_)) && !v.proved()).count();
    let more = if others > 0 { format!("; {others} other cells are not as they must be") } else { String::new() };
    match (pairs, good) {
        (0, _) => format!("no parameter/master pair{more}"),
        (n, g) if n == g => format!("{n} of {n} pairs proved in step{more}"),
        (n, g) => format!("{g} of {n} pairs proved in step, {} not{more}", n - g),
    }
}

/// The verdicts as JSON.
pub fn verdicts(proof: &Coherence, program: &Program) -> Value {
    let rows = proof.verdicts.iter().map(|v| {
        let mut row = match v.subject {
            Subject::Pair(p) => {
                json!({"param": program.name(p.param), "master": program.name(p.master), "dtype": p.low.to_string()})
            }
            Subject::Copy { cell, source, .. } => json!({"copy": program.name(cell), "source": program.name(source)}),
            Subject::Param(n) => json!({"param": program.name(n)}),
        };
        row["proved"] = json!(v.proved());
        row
    });
    Value::Array(rows.collect())
}
