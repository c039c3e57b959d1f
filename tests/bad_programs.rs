//! Does a program that is wrong get a diagnostic or a typed error, and never a panic?
//!
//! Programs are handed to everything that takes one (verifier, proof, passes, lowering, the standalone
//! programs, interpreter) whether they verify or not. Then fixtures are mutated at random.

#[allow(dead_code, reason = "the tests of fixtures use all of it")]
mod fixture;

use fixture::memory::Memory;
use fixture::sound::unsound;
use mastercast::analysis::{self, coherence};
use mastercast::diag::Code;
use mastercast::interp::{Fault, InterpError, Interpreter, Options, Scope, Tensor};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section};
use mastercast::passes::{Lower, ManagerOptions, Pass, PassCx, PassError, PassManager, Standalone, standalone};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::HashSet;

const PIPELINE: &str = "master-casts,load-order,resync";

/// What everything says of a program.
struct Outcome {
    /// codes of the verifier and, when the structure is sound, of the proof
    codes: HashSet<Code>,
    rewritten: Result<Program, PassError>,
    ran: Result<(), InterpError>,
}

fn options() -> Options {
    let mut o = Options::default();
    (o.fuel, o.memory_limit) = (500, 1 << 20);
    o
}

fn run(program: &Program, files: &Memory, mut after: impl FnMut(&Scope, bool)) -> Result<(), InterpError> {
    let mut machine = Interpreter::new(program).with_options(options()).with_files(files.clone());
    let mut scope = Scope::new();
    machine.run(Section::Startup, &mut scope)?;
    after(&scope, true);
    for _ in 0..2 {
        machine.run(Section::Main, &mut scope)?;
        after(&scope, false);
    }
    Ok(())
}

/// Hands a program to everything. Panics when something does, or when a pass breaks a promise.
fn everything(program: &Program, files: &Memory) -> Outcome {
    let found = verify(program, Checks::ALL);
    let valid = !verify(program, Checks::STRUCTURE).has_errors();
    // The proof and the interpreter are total: they do not ask whether the program verifies.
    let proof = coherence(program);
    let told = analysis::diagnostics(&proof, program);
    let ran = run(program, files, |scope, entry| {
        let wrong = if valid { unsound(program, &proof, scope, entry) } else { Vec::new() };
        assert!(wrong.is_empty(), "{wrong:?}\n{}", text::print(program));
    });
    let manager = PassManager::parse(PIPELINE).unwrap();
    let mut after = program.clone();
    let rewritten = manager.run(&mut after, &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
    if let Ok(report) = &rewritten {
        assert!(valid);
        let again = manager.run(&mut after.clone(), &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
        let again = again.unwrap();
        let shown = || format!("{}\n{}\n{report:?}\n{again:?}", text::print(program), text::print(&after));
        assert!(!again.changed(), "a second run changes something\n{}", shown());
        let proof = coherence(&after);
        let _ = analysis::diagnostics(&proof, &after);
        let _ = run(&after, files, |scope, entry| {
            let wrong = unsound(&after, &proof, scope, entry);
            assert!(wrong.is_empty(), "{wrong:?}\n{}", shown());
        });
        for which in [Standalone::Resync, Standalone::Renarrow] {
            if let Ok(p) = standalone(&after, which, &PassCx::default()) {
                let errors = verify(&p, Checks::STRUCTURE);
                assert!(!errors.has_errors(), "{which:?}: {errors:?}\n{}", text::print(&p));
            }
        }
        let mut low = after.clone();
        if Lower::default().run(&mut low, &mut PassCx::default()).is_ok() {
            assert!(!verify(&low, Checks::STRUCTURE).has_errors(), "{}\n{}", shown(), text::print(&low));
            let proof = coherence(&low);
            let _ = run(&low, files, |scope, entry| {
                let wrong = unsound(&low, &proof, scope, entry);
                assert!(wrong.is_empty(), "lowered: {wrong:?}\n{}\n{}", shown(), text::print(&low));
            });
        }
    } else {
        // Passes look at programs that do not verify when the caller says so.
        let unchecked = ManagerOptions { verify_each: false, ..ManagerOptions::default() };
        let _ = manager.run(&mut program.clone(), &mut PassCx::default(), unchecked, |_, _| {});
        let _ = Lower::default().run(&mut program.clone(), &mut PassCx::default());
        let _ = standalone(program, Standalone::Resync, &PassCx::default());
    }
    let mut codes: HashSet<Code> = found.iter().map(|d| d.code).collect();
    codes.extend(told.iter().map(|d| d.code));
    Outcome { codes, rewritten: rewritten.map(|_| after), ran }
}

fn parse(text: &str) -> Program {
    let (program, findings) = text::parse(text, "t");
    assert!(findings.is_empty(), "{findings:?}");
    program
}

fn of(text: &str) -> Outcome {
    everything(&parse(text), &Memory::default())
}

fn fault(outcome: &Outcome) -> &Fault {
    outcome.ran.as_ref().expect_err("the run should fail").fault()
}

#[test]
fn a_dangling_variable() {
    let o = of("main {\n  var y : f32[2]\n  (Out: y) = relu(X: ghost)\n}\n");
    assert!(o.codes.contains(&Code::UndeclaredVariable));
    assert!(matches!(o.rewritten, Err(PassError::Invalid { when: "before", .. })));
    assert!(matches!(fault(&o), Fault::MissingValue { name, .. } if name == "ghost"));
}

#[test]
fn sub_blocks_in_a_circle() {
    let o = of("main {
  var c : bool[1] persistable
  (Out: c) = fill_constant() {shape: [1L], dtype: bool, value: 1.0f}
  conditional_block(Cond: c) {sub_block: block(1), is_scalar_condition: true}
  block 1 in 2 {
    conditional_block(Cond: c) {sub_block: block(2), is_scalar_condition: true}
  }
  block 2 in 1 {
    conditional_block(Cond: c) {sub_block: block(1), is_scalar_condition: true}
  }
}\n");
    assert!(o.codes.contains(&Code::BlockTree));
    assert!(o.rewritten.is_err());
    assert!(matches!(fault(&o), Fault::Depth { .. }));
}

#[test]
fn a_block_that_runs_itself() {
    let o = of("main {
  var c : bool[1] persistable
  param w : f16[2] persistable
  var m : f32[2] persistable
  (Out: c) = fill_constant() {shape: [1L], dtype: bool, value: 1.0f}
  conditional_block(Cond: c) {sub_block: block(1), is_scalar_condition: true}
  block 1 in 0 {
    conditional_block(Cond: c) {sub_block: block(1), is_scalar_condition: true}
    (ParamOut: w; MasterParamOut: m) = sgd(Param: w; Grad: w; MasterParam: m) {multi_precision: true}
  }
}\n");
    assert!(o.codes.contains(&Code::DanglingBlock));
    assert!(matches!(fault(&o), Fault::Depth { .. }));
}

#[test]
fn a_loop_without_end() {
    let o = of("main {
  var c : bool[1] persistable
  (Out: c) = fill_constant() {shape: [1L], dtype: bool, value: 1.0f}
  while(Condition: c) {sub_block: block(1)}
  block 1 in 0 {
  }
}\n");
    assert!(o.rewritten.is_ok());
    assert!(matches!(fault(&o), Fault::Fuel { limit: 500 }));
}

#[test]
fn a_master_of_another_shape() {
    let o = of("main {
  param w : f16[2] persistable
  var w_fp32_master_0 : f32[3] persistable
  var g : f16[2] persistable
  (ParamOut: w; MasterParamOut: w_fp32_master_0) = sgd(Param: w; Grad: g; MasterParam: w_fp32_master_0) {multi_precision: true}
}\n");
    assert!(o.codes.contains(&Code::BadPair));
    assert!(o.rewritten.is_ok());
}

#[test]
fn a_load_of_a_key_that_is_not_there() {
    let files = Memory::default();
    files.put("ckpt", "weight", Tensor::new(&[2], vec![1.0f32, 2.0]).unwrap());
    let load = |attrs: &str| {
        let text = format!(
            "startup {{\n  param w : f32[2] persistable\n  (Out: w) = load() {{file_path: \"ckpt\"{attrs}}}\n}}\n"
        );
        everything(&parse(&text), &files)
    };
    let o = load(", keys: [\"weigth\"]");
    assert!(matches!(fault(&o), Fault::MissingKey { key, near, .. } if key == "weigth" && near == &["weight"]));
    assert!(load(", keys: [\"weight\"]").ran.is_ok());
    // A list of keys, or of dtypes, that does not fit the outputs.
    assert!(matches!(fault(&load(", keys: [\"weight\", \"b\"]")), Fault::BadAttr { .. }));
    assert!(matches!(fault(&load(", keys: [\"weight\"], stored_dtypes: [f16]")), Fault::LoadDType { .. }));
    assert!(load(", keys: [\"weight\"], stored_dtypes: []").ran.is_ok());
    assert!(load(", keys: [\"weight\"], stored_dtypes: [5000000000L]").ran.is_err());
}

#[test]
fn nothing_at_all() {
    for text in ["", "program {\n}\n", "startup {\n}\n", "main blockless {\n}\nstartup blockless {\n}\n"] {
        let o = of(text);
        assert_eq!(o.codes, HashSet::from([Code::EmptyProgram]), "{text}");
        assert!(o.rewritten.is_ok() && o.ran.is_ok());
    }
}

#[test]
fn one_section_alone() {
    let startup = "startup {
  param w : f32[2] persistable
  var w_fp32_master_0 : f32[2] persistable
  (Out: w) = fill_constant() {shape: [2L], dtype: f32, value: 0.5f}
  (Out: w_fp32_master_0) = cast(X: w) {in_dtype: f32, out_dtype: f32}
  (Out: w) = amp_init(X: w) {dtype: f16}
}\n";
    let o = of(startup);
    assert!(o.codes.is_empty() && o.rewritten.is_ok() && o.ran.is_ok(), "{:?}", o.codes);
    let main = "main {
  param w : f16[2] persistable
  var w_fp32_master_0 : f32[2] persistable
  var g : f16[2]
  (Out: g) = tanh(X: w)
  (ParamOut: w) = sgd(Param: w; Grad: g) {multi_precision: true}
}\n";
    let o = of(main);
    assert!(matches!(fault(&o), Fault::MissingValue { name, .. } if name == "w"));
    // Wired to the master that is declared; no startup program is made up.
    let after = o.rewritten.unwrap();
    assert!(after.is_empty(Section::Startup));
    assert!(text::print(&after).contains("MasterParam: w_fp32_master_0"));
}

#[test]
fn ops_without_what_they_need() {
    let kinds = ["load", "load_combine", "save", "amp_init", "resync", "cast", "assign", "sgd", "adam", "while"];
    let kinds =
        kinds.iter().chain(&["conditional_block", "fill_constant", "transpose", "merged_adam", "feed", "fetch"]);
    let slots =
        ["", "X: w", "X: w, w, m", "Param: w", "Param: w; MasterParam: m", "Param: w, w; MasterParam: m, w", "X:"];
    let outs = ["", "Out: w", "Out: w, w, m", "ParamOut: w; MasterParamOut: m", "Out: w; MasterParamOut: m, m", "Out:"];
    let attrs = [
        "",
        "multi_precision: true",
        "dtype: f16, out_dtype: f16, file_path: \"p\", sub_block: block(0)",
        "dtype: 99, out_dtype: -7, direction: \"sideways\", file_path: \"\"",
        "dtype: \"f16\", out_dtype: 5L, direction: 3, file_path: 4, keys: [1], stored_dtypes: [\"a\"], sub_block: block(9)",
        "dtype: f16, direction: \"both\", on_conflict: \"flip a coin\"",
        "dtype: f16, direction: \"auto\"",
    ];
    for kind in kinds {
        for s in slots {
            for o in outs {
                for a in attrs {
                    for op_in in ["startup", "main"] {
                        let op = format!("    ({o}) = {kind}({s}) {{{a}}}\n").replace("() = ", "");
                        let (startup, main) = if op_in == "startup" { (&*op, "") } else { ("", &*op) };
                        let decls =
                            |low: &str| format!("    param w : {low}[2] persistable\n    var m : f32[2] persistable\n");
                        of(&format!(
                            "program {{\n  startup {{\n{}{startup}  }}\n  main {{\n{}{main}  }}\n}}\n",
                            decls("f32"),
                            decls("f16")
                        ));
                    }
                }
            }
        }
    }
}

#[test]
fn one_cell_written_twice_by_one_op() {
    let o = of("startup {
  param w : f16[2] persistable
  var w_fp32_master_0 : f32[2] persistable
  (Out: w) = fill_constant() {shape: [2L], dtype: f32, value: 0.5f}
  (Out: w_fp32_master_0) = cast(X: w) {in_dtype: f32, out_dtype: f32}
  (Out: w, w) = amp_init(X: w, w) {dtype: f16}
}
main {
  param w : f16[2] persistable
  var w_fp32_master_0 : f32[2] persistable
  var g : f16[2]
  (Out: g) = tanh(X: w)
  (ParamOut: w, w; MasterParamOut: w_fp32_master_0, w_fp32_master_0) = merged_adam(Param: w, w; Grad: g, g; MasterParam: w_fp32_master_0, w_fp32_master_0) {multi_precision: true}
}\n");
    assert!(o.rewritten.is_ok());
    assert!(o.ran.is_err());
}

#[test]
fn deep_nesting_and_long_chains_need_no_stack() {
    // 300 blocks, one in another, and 20 000 casts of a cast.
    let mut text = String::from("main {\n  var c : bool[1] persistable\n  var w : f32[1] persistable\n");
    text.push_str("  conditional_block(Cond: c) {sub_block: block(1)}\n");
    for i in 1..300 {
        text.push_str(&format!("  block {i} in {} {{\n", i - 1));
        if i < 299 {
            text.push_str(&format!("    conditional_block(Cond: c) {{sub_block: block({})}}\n", i + 1));
        }
        text.push_str("  }\n");
    }
    text.push_str("}\n");
    assert!(of(&text).codes.contains(&Code::BlockTree));

    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Startup);
    s.param("w", DType::F32, [2]);
    s.op("fill_constant")
        .out("Out", ["w"])
        .attr("dtype", DType::F32)
        .attr("shape", AttrValue::Longs([2].into()))
        .done();
    for i in 0..20_000 {
        let (from, low) =
            (if i == 0 { "w".to_owned() } else { format!("c{}", i - 1) }, [DType::F16, DType::BF16][i % 2]);
        let to = format!("c{i}");
        s.persistable(&to, low, [2]);
        s.op("cast").arg("X", [&*from]).out("Out", [&*to]).attr("out_dtype", low).done();
    }
    let o = everything(&b.finish(), &Memory::default());
    assert!(o.rewritten.is_ok() && o.codes.is_empty(), "{:?}", o.codes);
}

// ---- mutations

#[derive(Clone, Copy, Debug)]
struct Mutation {
    kind: u8,
    a: usize,
    b: usize,
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let one = (0u8..7, any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let one = one.prop_map(|(kind, a, b)| Mutation { kind, a: a.index(1 << 20), b: b.index(1 << 20) });
    proptest::collection::vec(one, 1..7)
}

/// Words, numbers, strings and single signs.
fn tokens(line: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || "_.@-\"".contains(c);
        let len = if word(c) { rest.find(|c| !word(c)).unwrap_or(rest.len()) } else { c.len_utf8() };
        out.push(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

fn mutate(text: &str, list: &[Mutation]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for m in list {
        let (i, j) = (m.a % lines.len(), m.b % lines.len());
        let words =
            |line: &str| tokens(line).iter().filter(|t| t.len() > 1).map(|t| (*t).to_owned()).collect::<Vec<_>>();
        match m.kind {
            0 => drop(lines.remove(i)),
            1 => lines.insert(j, lines[i].clone()),
            2 => lines.swap(i, j),
            kind => {
                let mut parts: Vec<String> = tokens(&lines[i]).iter().map(|t| (*t).to_owned()).collect();
                let at = m.b % parts.len().max(1);
                let donors = words(&lines[j]);
                let spots: Vec<usize> = (0..parts.len()).filter(|&k| parts[k].len() > 1).collect();
                match (kind, spots.is_empty() || donors.is_empty()) {
                    (3, _) if !parts.is_empty() => drop(parts.remove(at)),
                    (4, _) if !parts.is_empty() => parts.insert(at, parts[at].clone()),
                    // One word for another of the same text: the result often parses.
                    (_, false) => {
                        let spot = spots[m.b / 7 % spots.len()];
                        parts[spot] = donors[m.a / 7 % donors.len()].clone();
                    }
                    _ => {}
                }
                lines[i] = parts.concat();
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn mutated_fixtures_never_panic_and_what_is_proved_holds() {
    let fixtures = fixture::all();
    let bodies: Vec<String> = fixtures
        .iter()
        .map(|f| {
            let (program, _) = text::parse(&f.text, "t");
            text::print(&program)
        })
        .collect();
    let counts = std::cell::Cell::new((0, 0, 0));
    // The same cases at each run; `PROPTEST_CASES=N` looks for N new ones.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let config = ProptestConfig {
        cases: cases.unwrap_or(1500),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    let mut runner = match cases {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let strategy = (0..fixtures.len(), mutations());
    let result = runner.run(&strategy, |(i, list)| {
        let text = mutate(&bodies[i], &list);
        let (program, findings) = text::parse(&text, "t");
        // Text that is broken gives a program too: what could be read.
        let o = everything(&program, &fixtures[i].files);
        let (parsed, valid, proved) = counts.get();
        counts.set((
            parsed + usize::from(findings.is_empty()),
            valid + usize::from(o.rewritten.is_ok()),
            proved + usize::from(o.rewritten.is_ok_and(|p| coherence(&p).proved())),
        ));
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    // The mutations are not so wild that nothing is left to test.
    let (parsed, valid, proved) = counts.get();
    assert!(parsed > 300 && valid > 300 && proved > 100, "{parsed} parsed, {valid} valid, {proved} proved");
}
