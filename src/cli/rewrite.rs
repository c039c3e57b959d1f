//! `mastercast rewrite`: the job with every pair in step, as programs that the framework runs.

use super::check::{only_errors, prove, summary, verdicts};
use super::input::{Checkpoints, apply, bytes, ending, job};
use super::{FINDINGS, Failure, Outcome, Programs, Ui, render, write_file};
use clap::{Args, ValueEnum};
use mastercast::analysis::{self, Coherence, Finding, Obligation, Subject, coherence};
use mastercast::ckpt;
use mastercast::diag::{Severity, render_json};
use mastercast::ir::{Attr, Edit, EditNote, EditSummary, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::{Effect, Ops};
use mastercast::passes::{
    Lower, ManagerOptions, Pass, PassCx, PassError, PassManager, Report, Standalone, TrainPrecision, standalone,
};
use mastercast::schedule::Applied;
use mastercast::text;
use mastercast::verify::{Checks, verify};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to believe when parameter and master were both loaded and disagree.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OnConflict {
    /// write nothing
    Error,
    /// the master
    Master,
    /// the parameter
    Param,
}

/// Where the help lists what only a pass's author needs.
const PASSES: &str = "To look into the passes";

/// Arguments of `rewrite`.
#[derive(Args)]
#[command(after_help = "Example: mastercast rewrite --startup startup.pb --main main.pb \\\n    \
    --schedule \"startup, load(ckpt.safetensors), amp_init, main\" --out fixed\n\n\
    Writes startup.pb, main.pb, resync.pb (to run after parameters were loaded from outside the\n\
    program), renarrow.pb (after masters were), report.json, and params/ when the checkpoint is not in\n\
    the framework's own format. Programs of Paddle 3.x are written as .json.\n\nExit code: 0 in step, 1 findings, 2 could not run.")]
pub struct Rewrite {
    #[command(flatten)]
    pub(super) programs: Programs,
    /// The passes; they are followed by the lowering
    #[arg(long, value_name = "PASSES", default_value = "master-casts,load-order,resync")]
    pub(super) pipeline: String,
    /// When the checkpoint's parameter is not its master narrowed
    #[arg(long, value_enum, default_value_t = OnConflict::Master)]
    pub(super) on_conflict: OnConflict,
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Refuse checkpoints that the framework cannot read as they are
    #[arg(long)]
    pub(super) no_convert: bool,
    /// Where the startup program will find the checkpoint's files, if not where this call puts them
    #[arg(long, value_name = "DIR")]
    pub(super) load_dir: Option<String>,
    /// Set by `amp --training`: main is a float32 training program, rewritten before the schedule is applied
    #[arg(skip)]
    pub(super) train: Option<TrainPrecision>,
    /// Run only the first N passes
    #[arg(long, value_name = "N", help_heading = PASSES)]
    pub(super) stop_after: Option<usize>,
    /// Print the program after each pass
    #[arg(long, help_heading = PASSES)]
    pub(super) print_after: bool,
    /// Do not verify between passes
    #[arg(long, help_heading = PASSES)]
    pub(super) no_verify: bool,
    /// Print how long each pass took
    #[arg(long, help_heading = PASSES)]
    pub(super) timings: bool,
}

/// A load path of the program, and where the target finds its files.
struct Source {
    path: String,
    dir: String,
    converted: Option<PathBuf>,
    /// cell name to key
    wanted: BTreeMap<String, String>,
}

impl Source {
    /// Where the target finds the files, and what must hold there.
    fn line(&self, told: bool) -> String {
        let n = self.wanted.len();
        let from = match &self.converted {
            Some(dir) => format!("converted {n} tensors of {} into {}; ", self.path, dir.display()),
            None => String::new(),
        };
        let relative = Path::new(&self.dir).is_relative() && !told;
        let hint = if relative { ", seen from where the training script runs (--load-dir DIR sets it)" } else { "" };
        format!("{from}startup loads {n} tensors from {}{hint}", self.dir)
    }
}

impl Rewrite {
    pub fn run(self, ui: Ui) -> Outcome {
        let mut loaded = job(&self.programs)?;
        let mut found = std::mem::take(&mut loaded.diagnostics);
        let mut open = Checkpoints::default();
        let mut applied = Applied::default();
        let mut amp = None;
        if let Some(train) = self.train.as_ref().filter(|_| !found.has_errors()) {
            found.extend(verify(&loaded.program, Checks::STRUCTURE));
            if !found.has_errors() {
                // A pair needs masters and `amp_init`, which the schedule places, needs 16-bit declarations.
                amp = Some(train.rewrite(&mut loaded.program, &mut PassCx::default())?);
            }
        }
        if !found.has_errors() {
            applied = apply(ui, &self.programs, &mut loaded.program, &mut open)?;
            found.extend(std::mem::take(&mut applied.diagnostics));
            found.extend(verify(&loaded.program, Checks::STRUCTURE));
        }
        if found.has_errors() {
            eprint!("{}", render::diagnostics(ui, &found, loaded.source().as_ref()));
            return Ok(ExitCode::from(FINDINGS));
        }
        let before = prove(&loaded.program, &mut open)?;
        let told = analysis::diagnostics(&before, &loaded.program);
        if conflicts(&before) > 0 && self.on_conflict == OnConflict::Error {
            eprint!("{}", render::diagnostics(ui, &told, loaded.source().as_ref()));
            return Ok(ExitCode::from(FINDINGS));
        }
        let mut program = loaded.program.clone();
        let mut cx = PassCx::default();
        let report = self.passes(ui, &mut program, &mut cx)?;
        if self.on_conflict == OnConflict::Param {
            decide(&mut program, &coherence(&loaded.program), &before);
        }
        let after = prove(&program, &mut open)?;
        let sources = self.sources(&program, &mut open)?;
        let ending = ending(&program);
        let standalones = [
            ("resync", standalone(&program, Standalone::Resync, &cx)?),
            ("renarrow", standalone(&program, Standalone::Renarrow, &cx)?),
        ];
        let lower = Lower { load_dirs: sources.iter().map(|s| (s.path.clone(), s.dir.clone())).collect() };
        let mut lowered = program.clone();
        lower.run(&mut lowered, &mut cx)?;
        let lowered_proof = prove(&lowered, &mut open)?;

        std::fs::create_dir_all(&self.out).map_err(|e| Failure::new(format!("{}: {e}", self.out.display())))?;
        for source in &sources {
            self.convert(ui, source, &mut open)?;
        }
        let mut files =
            vec![("startup", bytes(&lowered, Section::Startup)?), ("main", bytes(&lowered, Section::Main)?)];
        for (name, program) in &standalones {
            files.push((name, bytes(program, Section::Main)?));
        }
        for (name, bytes) in &files {
            self.write(&format!("{name}.{ending}"), bytes)?;
        }
        let mut value = json!({
            "pipeline": self.pipeline,
            "schedule": self.programs.schedule,
            "loads": applied.loads.iter().map(|l| json!({
                "path": l.path, "loaded": l.names.loaded, "missing": l.names.missing,
                "unexpected": l.names.unexpected, "left_out": l.names.left_out, "mapped": l.names.mapped, "bytes": l.bytes,
            })).collect::<Vec<_>>(),
            "passes": passes_json(&report, &program),
            "told_by_passes": render_json(&cx.diagnostics),
            "before": {"in_step": before.proved(), "verdicts": verdicts(&before, &loaded.program), "diagnostics": render_json(&told)},
            "after": {"in_step": after.proved(), "verdicts": verdicts(&after, &program),
                      "diagnostics": render_json(&analysis::diagnostics(&after, &program))},
            "lowered": {"in_step": lowered_proof.proved()},
            "files": sources.iter().map(|s| json!({"path": s.path, "load_dir": s.dir, "converted": s.converted.is_some()})).collect::<Vec<_>>(),
        });
        if let (Some(train), Some(done)) = (&self.train, &amp) {
            let report = done.report.clone().unwrap_or_default();
            let entries = [
                ("options", json!(train)),
                ("changed", json!(done.report.is_some())),
                ("told", json!(done.told)),
                ("summary", json!(report.summary)),
                ("returned", json!(report.returned)),
                ("low", json!(report.low)),
                ("report", json!(report)),
            ];
            entries.into_iter().for_each(|(key, v)| value[key] = v);
        }
        self.write("report.json", format!("{value:#}\n").as_bytes())?;
        if let Some(done) = &amp {
            let summary = done.report.as_ref().map(|r| r.summary.clone());
            let line = summary.or_else(|| done.told.clone()).unwrap_or_default();
            super::print_out(format!("{line}\n").as_bytes())?;
        }
        let good = after.proved() && lowered_proof.proved();
        let left = analysis::diagnostics(&lowered_proof, &lowered);
        if ui.quiet {
            eprint!("{}", render::diagnostics(ui, &only_errors(&left), None));
            return Ok(ExitCode::from(if good { 0 } else { FINDINGS }));
        }
        // Without `--all` the line of counts must do for what is mended; report.json has it all.
        let (noted, mended) = (std::mem::take(&mut cx.diagnostics), Severity::Error);
        for d in noted.iter().filter(|d| ui.all || d.severity != mended) {
            found.push(d.clone());
        }
        if ui.all {
            found.extend(told);
        }
        eprint!("{}", render::diagnostics(ui, &found, loaded.source().as_ref()));
        eprintln!("before: {}", summary(&before, &loaded.program));
        for p in report.passes.iter().filter(|p| p.summary.changed()) {
            eprintln!("  {}: {}", p.name, edits(&p.summary));
        }
        let settled = conflicts(&before).saturating_sub(conflicts(&after));
        if settled > 0 {
            let believed = if self.on_conflict == OnConflict::Param { "parameter" } else { "master" };
            eprintln!("  resync: {settled} loaded pairs disagree; the {believed} is believed (--on-conflict)");
        }
        eprintln!("after:  {}", summary(&lowered_proof, &lowered));
        eprint!("{}", render::diagnostics(ui, &left, None));
        for source in &sources {
            eprintln!("{}", source.line(self.load_dir.is_some()));
        }
        let names: Vec<String> = files.iter().map(|(name, _)| format!("{name}.{ending}")).collect();
        eprintln!("wrote {} and report.json to {}", names.join(", "), self.out.display());
        Ok(ExitCode::from(if good { 0 } else { FINDINGS }))
    }

    fn pipeline(&self) -> String {
        let policy = match self.on_conflict {
            OnConflict::Param => "param",
            // With `error` the entries were compared and agree.
            OnConflict::Master | OnConflict::Error => "master",
        };
        // `resync` without options takes the policy of the command line.
        let parts = self.pipeline.split(',').map(|p| match p.trim() {
            "resync" => format!("resync{{on_conflict={policy}}}"),
            other => other.to_owned(),
        });
        parts.collect::<Vec<_>>().join(",")
    }

    fn passes(&self, ui: Ui, program: &mut Program, cx: &mut PassCx<'_>) -> Result<Report, Failure> {
        let manager = PassManager::parse(&self.pipeline())
            .map_err(|e| Failure::new(e.to_string()).help("`mastercast passes` lists the passes"))?;
        let options = ManagerOptions { verify_each: !self.no_verify, stop_after: self.stop_after };
        let report = manager.run(program, cx, options, |name, program| {
            if self.print_after {
                eprintln!("// after {name}\n{}", text::print(program));
            }
        });
        let report = report.map_err(|e| match e {
            PassError::Invalid { ref diagnostics, .. } => {
                let shown = render::diagnostics(ui, diagnostics, None);
                Failure::new(format!("{e}\n{shown}"))
            }
            other => other.into(),
        })?;
        if self.timings {
            for p in &report.passes {
                eprintln!("{:14} {:9.3} ms", p.name, p.time.as_secs_f64() * 1e3);
            }
        }
        Ok(report)
    }

    /// The checkpoints that the program loads, and what must be done so that the target can.
    fn sources(&self, program: &Program, open: &mut Checkpoints) -> Result<Vec<Source>, Failure> {
        let kinds = Ops::standard().resolve(program);
        let mut wanted: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for section in Section::ALL {
            for op in program.section_blocks(section).flat_map(|b| program.ops(b)) {
                if kinds.get(op.kind()).effect != Effect::Load || op.kind() != sym::LOAD {
                    continue;
                }
                let keys = op.attr(sym::KEYS).and_then(|v| v.as_strs());
                // A plain op of the target's own, which reads its file as it is.
                let Some(keys) = keys else { continue };
                let path = op.attr(sym::FILE_PATH).and_then(|v| v.as_str()).unwrap_or("");
                let cells = wanted.entry(path.to_owned()).or_default();
                for (name, key) in op.output_args().zip(keys) {
                    cells.insert(program.name(name).to_owned(), key.to_string());
                }
            }
        }
        let several = wanted.len() > 1;
        let mut out = Vec::new();
        for (k, (path, wanted)) in wanted.into_iter().enumerate() {
            let ckpt = open.get(&path)?;
            let ready = ckpt.format() == "tensor-stream-dir" && wanted.iter().all(|(cell, key)| cell == key);
            let below = |base: &str| if several { format!("{base}/{k}") } else { base.to_owned() };
            if ready {
                let dir = self.load_dir.as_deref().map_or_else(|| path.clone(), below);
                out.push(Source { path, dir, converted: None, wanted });
                continue;
            }
            if self.no_convert {
                return Err(Failure::new(format!(
                    "{path} is {}; the framework's `load` reads one tensor stream file a variable",
                    ckpt.format()
                ))
                .help("leave out --no-convert, or save the checkpoint with the framework's `save` op"));
            }
            let place = if several { self.out.join("params").join(k.to_string()) } else { self.out.join("params") };
            let dir = self.load_dir.as_deref().map_or_else(|| place.display().to_string(), below);
            out.push(Source { path, dir, converted: Some(place), wanted });
        }
        Ok(out)
    }

    fn convert(&self, ui: Ui, source: &Source, open: &mut Checkpoints) -> Result<(), Failure> {
        let Some(dir) = &source.converted else { return Ok(()) };
        let ckpt = open.get(&source.path)?;
        let items: Vec<(usize, &str)> =
            source.wanted.iter().filter_map(|(cell, key)| ckpt.find(key).map(|i| (i, cell.as_str()))).collect();
        if let Some(parent) = dir.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Failure::new(format!("{}: {e}", parent.display())))?;
        }
        let total: u64 = items.iter().map(|&(i, _)| ckpt.entries()[i].bytes).fold(1, u64::saturating_add);
        let live = !ui.quiet && std::io::stderr().is_terminal();
        let (mut done, mut shown) = (0u64, None);
        let outcome = ckpt::convert_to_streams(ckpt, &items, dir, &mut |bytes| {
            done = done.saturating_add(bytes);
            let percent = (done as f64 / total as f64 * 100.0) as u64;
            if live && shown != Some(percent) {
                shown = Some(percent);
                eprint!("\rconverting {}: {} %", source.path, percent);
            }
        });
        if shown.is_some() {
            eprint!("\r\x1b[K");
        }
        outcome?;
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        write_file(&Path::new(&self.out).join(name), bytes)
    }
}

/// Pairs whose two checkpoint entries disagree.
fn conflicts(proof: &Coherence) -> usize {
    let conflict = |f: &Finding| matches!(f, Finding::Conflict { .. });
    proof.verdicts.iter().filter(|v| v.findings.iter().any(conflict)).count()
}

/// Gives each `resync` of a pair whose entries were compared its direction: the parameter where they
/// disagree; where they agree the master stays, which holds more. `open` is the proof before the entries were
/// looked at, `settled` the one after.
fn decide(program: &mut Program, open: &Coherence, settled: &Coherence) {
    let compared = |f: &Finding| matches!(f, Finding::Unproved { obligation: Obligation::EntriesAgree { .. }, .. });
    let mut directions: BTreeMap<Name, &str> = BTreeMap::new();
    for (a, b) in open.verdicts.iter().zip(&settled.verdicts) {
        if let Subject::Pair(pair) = a.subject
            && a.findings.iter().any(compared)
            && !b.findings.iter().any(compared)
        {
            let disagree = b.findings.iter().any(|f| matches!(f, Finding::Conflict { .. }));
            directions.insert(pair.master, if disagree { "param" } else { "master" });
        }
    }
    let mut edit = Edit::new();
    for op in Section::ALL.into_iter().flat_map(|s| program.section_blocks(s)).flat_map(|b| program.ops(b)) {
        let both = op.attr(sym::DIRECTION).and_then(|v| v.as_str()) == Some("both");
        let master = op.input(sym::MASTER_PARAM).first();
        if op.kind() == sym::RESYNC
            && both
            && let Some(&direction) = master.and_then(|m| directions.get(m))
        {
            edit.set_attr(op.id, Attr::new(sym::DIRECTION, direction), "the loaded entries were compared");
        }
    }
    edit.commit(program, "rewrite");
}

/// What a pass did, as counts.
fn edits(s: &EditSummary) -> String {
    let counts = [
        (s.inserted, "op", "inserted"),
        (s.moved, "op", "moved"),
        (s.removed, "op", "removed"),
        (s.changed_ops, "op", "changed"),
        (s.declared, "variable", "declared"),
    ];
    let some = counts.iter().filter(|(n, ..)| *n > 0);
    let told: Vec<_> =
        some.map(|(n, what, done)| format!("{n} {what}{} {done}", if *n == 1 { "" } else { "s" })).collect();
    told.join(", ")
}

fn passes_json(report: &Report, program: &Program) -> Value {
    let note = |n: &EditNote| match n {
        EditNote::Inserted(op, why) => json!({"inserted": format!("{:?}", program.op(*op)), "why": why}),
        EditNote::Moved(op, why) => json!({"moved": format!("{:?}", program.op(*op)), "why": why}),
        EditNote::Removed(op, why) => json!({"removed": format!("{:?}", program.op(*op)), "why": why}),
        EditNote::Changed(op, why) => json!({"changed": format!("{:?}", program.op(*op)), "why": why}),
        EditNote::Declared(var, why) => json!({"declared": program.name(program.var(*var).name), "why": why}),
    };
    let rows = report.passes.iter().map(|p| {
        json!({
            "pass": p.name,
            "inserted": p.summary.inserted, "moved": p.summary.moved, "removed": p.summary.removed,
            "changed_ops": p.summary.changed_ops, "declared": p.summary.declared,
            "edits": p.summary.notes.iter().map(note).collect::<Vec<_>>(),
        })
    });
    Value::Array(rows.collect())
}
