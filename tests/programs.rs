//! Does every fixture give the findings it states, a sound rewrite, and the values it states?
//!
//! One `check` for all files of `tests/programs` (their language: `fixture`): parse, verify, prove,
//! rewrite, verify and prove again, rewrite again (no change), print and parse (equal), lower, run before
//! and after. The diff, the report and the verdict after are snapshots in `snapshots/programs`.

mod fixture;

use fixture::memory::Memory;
use fixture::sound::{subject, unsound};
use fixture::{Discharge, Fixture, Interp, Phase, Run};
use mastercast::analysis::{self, Coherence, ExecOptions, Settled, Subject, coherence_with};
use mastercast::diag::{Code, Diagnostic, Severity};
use mastercast::interp::{Interpreter, Options, Scope, Tensor};
use mastercast::ir::{EditNote, Program, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::{Effect, Ops};
use mastercast::passes::{Lower, ManagerOptions, Pass, PassCx, PassError, PassManager, Report};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn every_fixture_is_as_it_says() {
    let fixtures = fixture::all();
    assert!(!fixtures.is_empty(), "no fixture has this name");
    let mut failed = Vec::new();
    for f in &fixtures {
        match catch_unwind(AssertUnwindSafe(|| check(f))) {
            Ok(wrong) if wrong.is_empty() => {}
            Ok(wrong) => failed.push(format!("{}:\n  {}", f.name, wrong.join("\n  "))),
            Err(_) => failed.push(format!("{}: a panic or a snapshot, see above", f.name)),
        }
    }
    assert!(failed.is_empty(), "{}\n{} of {} fixtures fail", failed.join("\n"), failed.len(), fixtures.len());
}

/// The one check: what is wrong with a fixture.
fn check(f: &Fixture) -> Vec<String> {
    let mut wrong = Vec::new();
    let (program, mut found) = text::parse(&f.text, &f.name);
    let readable = !found.has_errors();
    if readable {
        found.extend(verify(&program, Checks::ALL));
    }
    let valid = readable && !verify(&program, Checks::STRUCTURE).has_errors();
    let proof = valid.then(|| prove(f, &program));
    let told = proof.as_ref().map(|p| analysis::diagnostics(p, &program)).unwrap_or_default();
    wrong.extend(f.compare(Phase::Before, &found.iter().chain(&told).collect::<Vec<_>>()));

    let mut shown = String::new();
    if let Some(pipeline) = &f.pipeline {
        let manager = PassManager::parse(pipeline).unwrap();
        if valid {
            shown = rewrite(f, &program, &manager, &mut wrong);
        } else if readable {
            let refused = run_passes(&manager, &mut program.clone(), &mut cx(f, &program));
            assert!(matches!(refused, Err(PassError::Invalid { .. })), "{}: {refused:?}", f.name);
        }
    }
    if let (Some(interp), Some(proof)) = (f.interp, &proof) {
        let run = execute(f, &program, proof, interp, false, &mut wrong);
        wrong.extend(compare_run("before", &f.before, &run));
    }
    if f.pipeline.is_some() && valid {
        let mut settings = insta::Settings::clone_current();
        let (dir, stem) = f.name.rsplit_once('/').unwrap_or(("", &f.name));
        settings.set_snapshot_path(format!("../snapshots/programs/{dir}"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(stem, shown));
    }
    wrong
}

fn cx<'c>(f: &Fixture, program: &Program) -> PassCx<'c> {
    PassCx { declared: declared(f, program), ..PassCx::default() }
}

fn declared(f: &Fixture, program: &Program) -> Vec<(Name, Name)> {
    let name = |n: &str| program.names().lookup(n).unwrap_or_else(|| panic!("{}: no `{n}`", f.name));
    f.declared.iter().map(|(p, m)| (name(p), name(m))).collect()
}

fn prove(f: &Fixture, program: &Program) -> Coherence {
    let mut proof = raw_proof(f, program);
    if let Some(answer) = f.discharge {
        proof.discharge(|_, _| {
            Some(match answer {
                Discharge::Agree => Settled::Holds,
                Discharge::Differ(x) => Settled::Differs(x.into()),
            })
        });
    }
    proof
}

/// The proof without what a checkpoint could settle.
fn raw_proof(f: &Fixture, program: &Program) -> Coherence {
    coherence_with(program, Ops::standard(), &declared(f, program), ExecOptions::default())
}

fn run_passes(manager: &PassManager, program: &mut Program, cx: &mut PassCx<'_>) -> Result<Report, PassError> {
    manager.run(program, cx, ManagerOptions::default(), |_, _| {})
}

/// Rewrites and checks the result. Returns what the snapshot shows.
fn rewrite(f: &Fixture, program: &Program, manager: &PassManager, wrong: &mut Vec<String>) -> String {
    let mut after = program.clone();
    let mut said = cx(f, program);
    let report = run_passes(manager, &mut after, &mut said).unwrap_or_else(|e| panic!("{}: {e}", f.name));
    wrong.extend(f.compare(Phase::Pass, &said.diagnostics.iter().collect::<Vec<_>>()));
    // The passes may not make a program worse than the user's own, in any invariant.
    let count = |p: &Program| verify(p, Checks::ALL).len();
    if count(&after) > count(program) {
        wrong.push(format!("the result does not verify: {:?}", verify(&after, Checks::ALL)));
    }
    let proof = prove(f, &after);
    let told = analysis::diagnostics(&proof, &after);
    wrong.extend(f.compare(Phase::After, &told.iter().collect::<Vec<_>>()));

    let mut again = after.clone();
    let second = run_passes(manager, &mut again, &mut cx(f, &after)).unwrap();
    if second.changed() || text::print(&again) != text::print(&after) {
        wrong.push(format!("a second run changes something:\n{}", notes(&second, &again)));
    }
    let printed = text::print(&after);
    let (read, findings) = text::parse(&printed, "printed");
    assert!(findings.is_empty(), "{}: {findings:?}", f.name);
    if read.to_json() != after.to_json() || text::print(&read) != printed {
        wrong.push("the printed result does not parse to itself".into());
    }
    let lowered = lower(f, &after, &proof, wrong);
    if let Some(interp) = f.interp {
        let run = execute(f, &after, &raw_proof(f, &after), interp, true, wrong);
        wrong.extend(compare_run("after", &f.after, &run));
        if let (Some((low, files)), None) = (&lowered, &run.error) {
            let mut f = fixture::Fixture { files: files.clone(), ..fixture_of(f) };
            f.interp = Some(interp);
            let other = execute(&f, low, &raw_proof(&f, low), interp, true, wrong);
            let cells = run.startup.iter().chain(&run.step).zip(other.startup.iter().chain(&other.step));
            for ((name, a), (other_name, b)) in cells {
                if name != other_name || !a.bits_eq(b) {
                    let (a, b) = (fixture::show(a), fixture::show(b));
                    wrong.push(format!("lowered, {other_name} is {b}, not {name} {a}"));
                }
            }
            wrong.extend(other.error.map(|e| format!("lowered: {e}")));
        }
    }

    let before = text::print(program);
    let diff = similar::TextDiff::from_lines(&before, &printed);
    let mut out = diff.unified_diff().context_radius(2).header("before", "after").to_string();
    if out.is_empty() {
        out.push_str("no change\n");
    }
    let _ = write!(out, "\n{}", notes(&report, &after));
    for d in &said.diagnostics {
        let _ = writeln!(out, "{}[{}]: {}", d.severity.as_str(), d.code, d.message);
    }
    out.push('\n');
    for v in &proof.verdicts {
        let _ = writeln!(out, "{}: {}", subject(v, &after), if v.proved() { "proved" } else { "not proved" });
    }
    out
}

fn fixture_of(f: &Fixture) -> Fixture {
    Fixture::read(f.name.clone(), f.text.clone())
}

fn notes(report: &Report, p: &Program) -> String {
    let mut out = String::new();
    for pass in &report.passes {
        let _ = writeln!(out, "{}:{}", pass.name, if pass.summary.changed() { "" } else { " no change" });
        for note in &pass.summary.notes {
            let line = match note {
                EditNote::Inserted(op, why) => format!("inserted {:?}: {why}", p.op(*op)),
                EditNote::Moved(op, why) => format!("moved {:?}: {why}", p.op(*op)),
                EditNote::Removed(op, why) => format!("removed {:?}: {why}", p.op(*op)),
                EditNote::Changed(op, why) => format!("changed {:?}: {why}", p.op(*op)),
                EditNote::Declared(var, why) => format!("declared {}: {why}", p.name(p.var(*var).name)),
            };
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

/// The lowered program and the files it reads; `None` when it has no lowered form.
fn lower(f: &Fixture, after: &Program, proof: &Coherence, wrong: &mut Vec<String>) -> Option<(Program, Memory)> {
    let files = f.files.clone();
    let mut pass = Lower::default();
    let kinds = Ops::standard().resolve(after);
    for op in Section::ALL.into_iter().flat_map(|s| after.section_blocks(s)).flat_map(|b| after.ops(b)) {
        let keys = op.attr(sym::KEYS).and_then(|v| v.as_strs());
        let outs: Vec<&str> = op.output_args().map(|n| after.name(n)).collect();
        if kinds.get(op.kind()).effect != Effect::Load || op.kind() != sym::LOAD || (keys.is_none() && outs.len() == 1)
        {
            continue;
        }
        // One file a variable, as the command line converts them.
        let path = op.attr(sym::FILE_PATH).and_then(|v| v.as_str()).unwrap_or("");
        let dir = format!("lowered/{path}");
        for (i, out) in outs.into_iter().enumerate() {
            let key = keys.and_then(|k| k.get(i)).map_or(out, |k| k);
            if let Some(t) = f.files.get(path, key) {
                files.put(&format!("{dir}/{out}"), out, t);
            }
        }
        pass.load_dirs.insert(path.to_owned(), dir);
    }
    let mut low = after.clone();
    match (pass.run(&mut low, &mut cx(f, after)), &f.no_lowered_form) {
        (Ok(_), None) => {}
        (Err(PassError::NoForm { what, .. }), Some(text)) if what.contains(text) => return None,
        (result, want) => {
            wrong.push(format!("lowering gives {result:?}, expected {want:?}"));
            return None;
        }
    }
    if verify(&low, Checks::STRUCTURE).len() > verify(after, Checks::STRUCTURE).len() {
        wrong.push(format!("the lowered program does not verify: {:?}", verify(&low, Checks::STRUCTURE)));
    }
    let again = pass.run(&mut low.clone(), &mut cx(f, after)).unwrap();
    if again.changed() {
        wrong.push(format!("lowering again changes something: {again:?}"));
    }
    if proof.proved() && !prove(f, &low).proved() {
        let told = analysis::diagnostics(&prove(f, &low), &low);
        let told: Vec<_> = told.iter().map(|d| format!("{}: {} ({:?})", d.code, d.message, d.notes)).collect();
        wrong.push(format!("the lowered program is not proved: {told:#?}\n{}", text::print(&low)));
    }
    Some((low, files))
}

/// Runs startup, then main as often as asked, and checks at each point that what is proved holds.
fn execute(
    f: &Fixture,
    program: &Program,
    proof: &Coherence,
    interp: Interp,
    rewritten: bool,
    wrong: &mut Vec<String>,
) -> Run {
    let mut run = Run::default();
    let mut options = Options::default();
    (options.fuel, options.memory_limit) = (10_000, 1 << 20);
    let mut machine = Interpreter::new(program).with_options(options).with_files(f.files.clone());
    let mut scope = Scope::new();
    let which = if rewritten { "after" } else { "before" };
    let cells = |scope: &Scope| -> Vec<(String, Tensor)> {
        scope.iter().filter(|(n, _)| !n.ends_with(".wide")).map(|(n, t)| (n.to_owned(), t.clone())).collect()
    };
    match machine.run(Section::Startup, &mut scope) {
        Ok(stats) => run.warnings.extend(stats.warnings.into_iter().map(|w| w.message)),
        Err(e) => {
            run.error = Some(e.to_string());
            return run;
        }
    }
    run.startup = cells(&scope);
    wrong.extend(unsound(program, proof, &scope, true).into_iter().map(|e| format!("{which}, at main's entry: {e}")));
    let steps = match interp {
        Interp::Startup => 0,
        Interp::Step => 1,
        Interp::Train => 3,
    };
    for step in 0..steps {
        match machine.run(Section::Main, &mut scope) {
            Ok(stats) => run.warnings.extend(stats.warnings.into_iter().map(|w| w.message)),
            Err(e) => {
                run.error = Some(e.to_string());
                return run;
            }
        }
        if step == 0 {
            run.step = cells(&scope);
        }
        wrong.extend(unsound(program, proof, &scope, false).into_iter().map(|e| format!("{which}, after a step: {e}")));
    }
    if interp == Interp::Step && rewritten {
        for v in &proof.verdicts {
            let Subject::Pair(pair) = v.subject else { continue };
            for name in [pair.param, pair.master] {
                let name = program.name(name);
                let of = |list: &[(String, Tensor)]| list.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
                let (a, b) = (of(&run.startup), of(&run.step));
                if let (Some(a), Some(b)) = (a, b)
                    && !a.bits_eq(&b)
                {
                    wrong.push(format!(
                        "a step at rate 0 changes {name}: {} to {}",
                        fixture::show(&a),
                        fixture::show(&b)
                    ));
                }
            }
        }
    }
    run
}

fn compare_run(which: &str, want: &Run, run: &Run) -> Vec<String> {
    let mut out = Vec::new();
    match (&want.error, &run.error) {
        (None, None) => {}
        (Some(want), Some(got)) if got.contains(want) => {}
        (want, got) => out.push(format!("{which}: the run ends with {got:?}, expected {want:?}")),
    }
    let mut warnings = run.warnings.clone();
    for w in &want.warnings {
        match warnings.iter().position(|got| got.contains(w)) {
            Some(i) => drop(warnings.remove(i)),
            None => out.push(format!("{which}: no warning `{w}`")),
        }
    }
    out.extend(warnings.into_iter().map(|w| format!("{which}: unexpected warning `{w}`")));
    for (step, want, got) in [("", &want.startup, &run.startup), ("-step", &want.step, &run.step)] {
        for (name, value) in want {
            match got.iter().find(|(n, _)| n == name) {
                Some((_, t)) if t.bits_eq(value) => {}
                Some((_, t)) => out.push(format!(
                    "{which}{step} {name}: is {}, expected {}",
                    fixture::show(t),
                    fixture::show(value)
                )),
                None => out.push(format!("{which}{step} {name}: no such cell")),
            }
        }
    }
    out
}

/// The harness itself: what is not stated is a failure.
#[test]
fn a_fixture_fails_on_a_missing_and_on_an_unexpected_finding() {
    let text = "main {\n  op() //~ error[slot-arity]: never\n}\n";
    let f = Fixture::read("x".into(), text.into());
    let d = Diagnostic::new(Code::EmptyProgram, "neither", mastercast::diag::Place::Nowhere);
    let wrong = f.compare(Phase::Before, &[&d]);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("unexpected") && wrong[1].starts_with("missing"), "{wrong:?}");
    assert_eq!(d.severity, Severity::Warning);
}
