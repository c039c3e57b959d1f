//! Does the pass `train-precision` make of a float32 training program what Paddle makes when it decorates?

#[allow(dead_code, reason = "another test uses the rest")]
mod parity;
mod training;

use mastercast::analysis::coherence;
use mastercast::diag::Severity;
use mastercast::ir::{DType, Edit, Program, Role, Section};
use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::Level;
use mastercast::passes::train_precision::scaling::ScalingCells;
use mastercast::passes::{Pass, PassCx, TrainPrecision};
use mastercast::schedule::Schedule;
use mastercast::verify::{Checks, DeclIndex, verify};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use training::cases::{Case, Files, cases, read_dir};
use training::compare::{attributes, differences, faults, sequence, signature};

/// The rewritten program and Paddle's; checks what must hold of the rewritten one.
fn rewrite(case: &Case) -> Result<(Program, Program, Program), String> {
    let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
    let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
    let mut ours = source.clone();
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let done = case.options.run(&mut ours, &mut PassCx::default()).map_err(|e| text(&e))?;
    if done.changed() == (case.options.level == Level::O0) {
        return Err("changed at O0, or not elsewhere".to_owned());
    }
    let found = verify(&ours, Checks::ALL.without(Checks::READS));
    let errors: Vec<String> =
        found.iter().filter(|d| d.severity == Severity::Error).map(|d| d.message.clone()).collect();
    if !errors.is_empty() {
        return Err(format!("does not verify: {}", errors.join("; ")));
    }
    let again = case.options.run(&mut ours.clone(), &mut PassCx::default()).map_err(|e| text(&e))?;
    if again.changed() {
        return Err("a second run changes it".to_owned());
    }
    if case.startup.is_some() {
        let mut job = ours.clone();
        let schedule = Schedule::parse("startup, amp_init, main").unwrap();
        schedule.apply(&mut job, &mut |_| panic!("nothing is loaded")).map_err(|e| text(&e))?;
        let proof = coherence(&job);
        if !proof.proved() {
            return Err(format!("not in step: {:?}", proof.pair_counts()));
        }
    }
    Ok((source, ours, theirs))
}

/// One row of the table.
#[derive(Default)]
struct Row {
    files: usize,
    /// equal multisets of ops
    equal: usize,
    /// of these, in the same order
    ordered: usize,
    reasons: BTreeMap<&'static str, usize>,
}

/// Compares all cases, prints the table, and returns what is not explained.
fn table(models: BTreeMap<String, Files>) -> (usize, Vec<String>) {
    let only = std::env::var("MASTERCAST_ONLY").unwrap_or_default();
    let mut table: BTreeMap<String, Row> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for (model, files) in models {
        let row = table.entry(model.clone()).or_default();
        for case in cases(&files) {
            let id = format!("{model}/{}", case.file);
            if !id.contains(&only) {
                continue;
            }
            row.files += 1;
            let (source, ours, theirs) = match rewrite(&case) {
                Ok(all) => all,
                Err(e) => {
                    unexplained.push(format!("{id}: {e}"));
                    continue;
                }
            };
            let differing = differences(&ours, &theirs);
            if differing.is_empty() {
                row.equal += 1;
                if sequence(&ours) == sequence(&theirs) {
                    row.ordered += 1;
                    let odd = attributes(&ours, &theirs);
                    // Startup tells the order of parameters.
                    if let Some(first) = odd.first().filter(|_| case.startup.is_some()) {
                        unexplained.push(format!("{id}: {} attributes, first {first}", odd.len()));
                    }
                }
                continue;
            }
            let mut reasons = faults(&source, &theirs);
            if case.options.level == Level::O0 {
                reasons = BTreeSet::from(["level O0 is off"]);
            }
            if !only.is_empty() {
                println!("{id} {reasons:?}\n    {}", differing.join("\n    "));
            }
            match reasons.first() {
                Some(reason) => *row.reasons.entry(reason).or_default() += 1,
                None => unexplained.push(format!("{id}: {} differ, first {}", differing.len(), differing[0])),
            }
        }
    }
    println!("{:<18} {:>5} {:>5} {:>8}  what is wrong with Paddle's program", "model", "files", "equal", "in order");
    for (model, Row { files, equal, ordered, reasons }) in &table {
        let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{n}: {r}")).collect();
        println!("{model:<18} {files:>5} {equal:>5} {ordered:>8}  {}", reasons.join("; "));
    }
    let sum = |f: fn(&Row) -> usize| table.values().map(f).sum::<usize>();
    println!("{:<18} {:>5} {:>5} {:>8}", "all", sum(|r| r.files), sum(|r| r.equal), sum(|r| r.ordered));
    (sum(|r| r.equal), unexplained)
}

#[test]
fn training_programs_are_what_paddle_makes() {
    let (equal, unexplained) = table(parity::cases::unpack(include_bytes!("data/amp/train.zst")));
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(equal >= 345 || std::env::var("MASTERCAST_ONLY").is_ok(), "{equal}");
}

/// The same of a corpus on disk.
#[test]
fn a_corpus_is_rewritten_as_paddle_decorates() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let (_, unexplained) = table(read_dir(Path::new(&dir)));
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}

/// The ops of main's global block, each as a signature, without those that a filter leaves out.
fn ops_of(program: &Program, keep: impl Fn(Role) -> bool) -> Vec<String> {
    let decls = DeclIndex::new(program);
    let global = program.global_block(Section::Main).unwrap();
    let ops = program.ops(global).filter(|op| keep(op.role().unwrap_or(Role::FORWARD)));
    ops.map(|op| signature(program, &decls, global, op)).collect()
}

/// Removes the ops of main from the first that has one of these roles.
fn cut(program: &mut Program, roles: Role) {
    let blocks: Vec<_> = program.section_blocks(Section::Main).collect();
    let mut edit = Edit::new();
    for block in blocks {
        let mut behind = false;
        for op in program.ops(block) {
            behind |= op.role().is_some_and(|r| r.0 & roles.0 != 0);
            if behind {
                edit.remove(op.id, "cut");
            }
        }
    }
    edit.commit(program, "test");
}

/// Without differentiation: the forward part up to the scaled loss, and what stands between gradients and their use.
#[test]
fn the_pieces_of_decorate_are_those_of_paddle() {
    let mut checked = 0;
    for (model, files) in parity::cases::unpack(include_bytes!("data/amp/train.zst")) {
        for case in cases(&files) {
            // Where Paddle's program is sound, and the casts of gradients do not stand between.
            if !["mlp", "lenet", "shared_param", "grad_clip"].contains(&&*model) || case.options.level != Level::O2 {
                continue;
            }
            let id = format!("{model}/{}", case.file);
            let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
            let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
            let fill = |p: &Program| {
                let global = p.global_block(Section::Main).unwrap();
                let fill = p.ops(global).find(|op| op.role() == Some(Role(257))).unwrap();
                p.name(fill.output_args().next().unwrap()).trim_end_matches("@GRAD").to_owned()
            };

            let mut forward = source.clone();
            cut(&mut forward, Role(Role::BACKWARD.0 | Role::OPTIMIZE.0));
            let cx = PassCx::default();
            let done = case.options.decorate(&mut forward, &fill(&source), &cx).unwrap_or_else(|e| panic!("{id}: {e}"));
            let mut want = theirs.clone();
            cut(&mut want, Role(Role::BACKWARD.0 | Role::OPTIMIZE.0));
            assert_eq!(ops_of(&forward, |_| true), ops_of(&want, |_| true), "{id}");
            assert!(
                forward.var(DeclIndex::new(&forward).global(Section::Main, done.loss).unwrap()).dtype == DType::F32
            );

            // Paddle's program up to its gradients, and the rest again.
            let mut again = theirs.clone();
            let global = again.global_block(Section::Main).unwrap();
            let last = again.ops(global).rfind(|op| op.role().is_some_and(|r| r.has(Role::BACKWARD))).unwrap().id;
            let behind: Vec<_> =
                again.block(global).ops.iter().skip_while(|&&op| op != last).skip(1).copied().collect();
            let mut edit = Edit::new();
            behind.iter().for_each(|&op| edit.remove(op, "cut"));
            edit.commit(&mut again, "test");
            let check = ["check_finite_and_unscale"];
            let mut params_grads = Vec::new();
            for op in behind.iter().map(|&op| theirs.op(op)).filter(|op| check.contains(&op.kind_str())) {
                let x = theirs.symbols().lookup("X").unwrap();
                params_grads.extend(op.input(x).iter().map(|&g| {
                    let text = theirs.name(g).trim_end_matches("_fp32_master_0");
                    let name = |t: &str| theirs.names().lookup(t).unwrap();
                    (name(text.trim_end_matches("@GRAD")), name(text))
                }));
            }
            if params_grads.is_empty() {
                assert!(done.cells.is_none(), "{id}");
                continue;
            }
            let name = |t: &str| theirs.names().lookup(t);
            let scale = name("loss_scaling_0").unwrap();
            let cells = ScalingCells { scale, steps: name("num_good_steps_0").zip(name("num_bad_steps_0")) };
            let before = again.ops(global).len();
            let applied = case.options.apply_gradients(&mut again, Some(cells), &params_grads, &cx).unwrap();
            assert_eq!(applied.params_grads.len(), params_grads.len());
            let made: Vec<String> = {
                let decls = DeclIndex::new(&again);
                again.ops(global).skip(before).map(|op| signature(&again, &decls, global, op)).collect()
            };
            let decls = DeclIndex::new(&theirs);
            let kinds = ["cast", "check_finite_and_unscale", "concat", "reduce_any", "update_loss_scaling", "memcpy"];
            let mut want: Vec<String> = behind
                .iter()
                .map(|&op| theirs.op(op))
                .take_while(|op| kinds.contains(&op.kind_str()))
                .map(|op| signature(&theirs, &decls, global, op))
                .collect();
            if want.last().is_none_or(|w| !w.contains("memcpy")) {
                // Only Adam and AdamW look in host memory.
                want.push(made.last().unwrap().clone());
            }
            assert_eq!(made, want, "{id}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn what_cannot_be_trained_is_refused_and_left_as_it_was() {
    let files = parity::cases::unpack(include_bytes!("data/amp/train.zst"));
    let case = cases(&files["mlp"]).into_iter().find(|c| c.options.level == Level::O2).unwrap();
    let source = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
    let refused = |program: &Program, options: &TrainPrecision, text: &str| {
        let mut copy = program.clone();
        let e = options.run(&mut copy, &mut PassCx::default()).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
        assert_eq!(mastercast::text::print(&copy), mastercast::text::print(program));
    };
    let mut forward = source.clone();
    cut(&mut forward, Role(Role::BACKWARD.0 | Role::OPTIMIZE.0));
    refused(&forward, &case.options, "no gradient ops");
    let overlap = TrainPrecision { white: vec!["relu".into()], black: vec!["relu".into()], ..case.options.clone() };
    refused(&source, &overlap, "relu");
    let unknown = TrainPrecision { black_vars: vec!["nobody".into()], ..case.options.clone() };
    refused(&source, &unknown, "nobody");
    // An optimizer that uses a gradient of another name.
    let mut odd = source.clone();
    let (g, other) = (odd.names().lookup("fc_0.w_0@GRAD").unwrap(), odd.intern("mine"));
    let mut edit = Edit::new();
    for op in odd.section_blocks(Section::Main).flat_map(|b| odd.ops(b)) {
        edit.replace_input(op.id, g, other, "renamed");
        edit.replace_output(op.id, g, other, "renamed");
    }
    edit.commit(&mut odd, "test");
    refused(&odd, &case.options, "fc_0.w_0");
    let e = case.options.decorate(&mut forward, "nobody", &PassCx::default()).unwrap_err().to_string();
    assert!(e.contains("nobody"), "{e}");
}
