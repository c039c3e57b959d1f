//! `mastercast check`: is every pair in step when main starts?

use super::input::{Checkpoints, apply, job};
use super::{FINDINGS, Failure, Format, Outcome, Programs, Ui, print_out, render};
use clap::Args;
use mastercast::analysis::cells::Cells;
use mastercast::analysis::{self, Coherence, Subject, Verdict, coherence};
use mastercast::diag::{Code, Diagnostics, Severity, render_json};
use mastercast::ir::{Program, Section};
use mastercast::names::sym;
use mastercast::ops::{Effect, Ops};
use mastercast::verify::{Checks, verify};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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
            found.extend(apply(ui, &self.programs, &mut loaded.program, &mut open)?.diagnostics);
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
                let worst = shown.iter().rev().max_by_key(|d| d.severity);
                if let Some(d) = worst.filter(|_| !ui.quiet) {
                    eprintln!("`mastercast explain {}` tells more\n", d.code);
                }
                let line = match &proof {
                    Some(p) => summary(p, &loaded.program),
                    None => "not proved: the program does not verify".to_owned(),
                };
                print_out(format!("{line}\n").as_bytes())?;
            }
        }
        Ok(ExitCode::from(if good { 0 } else { FINDINGS }))
    }
}

/// The errors among findings.
pub fn only_errors(found: &Diagnostics) -> Diagnostics {
    let mut out = Diagnostics::new();
    for d in found.iter().filter(|d| d.severity == Severity::Error) {
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

/// One line on the outcome: how many pairs are in step, and what the others have.
pub fn summary(proof: &Coherence, program: &Program) -> String {
    let (pairs, good) = proof.pair_counts();
    let others = proof.verdicts.iter().filter(|v| !matches!(v.subject, Subject::Pair(_)) && !v.proved()).count();
    let mut line = match pairs {
        0 => format!("no parameter/master pair: {}", why_none(program)),
        1 => format!("{good} of 1 pair proved in step"),
        n => format!("{good} of {n} pairs proved in step"),
    };
    if others > 0 {
        line.push_str(&format!(
            "; {others} other {} not as they must be",
            if others == 1 { "cell is" } else { "cells are" }
        ));
    }
    let mut counts: BTreeMap<Code, usize> = BTreeMap::new();
    for code in proof.verdicts.iter().flat_map(codes) {
        *counts.entry(code).or_default() += 1;
    }
    if !counts.is_empty() {
        let counts: Vec<_> = counts.iter().map(|(code, n)| format!("{n} {code}")).collect();
        line.push_str(&format!(" ({})", counts.join(", ")));
    }
    line
}

/// The codes of a verdict's findings, each once.
fn codes(verdict: &Verdict) -> BTreeSet<Code> {
    verdict.findings.iter().map(|f| f.code(&verdict.subject)).collect()
}

/// Why a program has no pair.
fn why_none(program: &Program) -> String {
    let (kinds, cells) = (Ops::standard().resolve(program), Cells::new(program));
    let (mut updates, mut low) = (0, 0);
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
        if !matches!(kinds.get(op.kind()).effect, Effect::Optimizer(_)) {
            continue;
        }
        for &param in op.input(sym::PARAM) {
            updates += 1;
            low += usize::from(cells.get(param).main.is_some_and(|v| program.var(v).dtype.is_low()));
        }
    }
    match (updates, low) {
        (0, _) => "main has no optimizer op".to_owned(),
        (n, 0) => format!("main trains {n} parameters, none of 16 bits"),
        (n, low) => format!("main trains {n} parameters, {low} of them in 16 bits without a master"),
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
        row["codes"] = codes(v).iter().map(|c| c.as_str()).collect();
        row
    });
    Value::Array(rows.collect())
}
