//! Is everything about linear, and bounded where a small file could stand for endless work?
//!
//! Each program is large enough that a step which looks at everything for everything would not end
//! within a person's patience, in a debug build too; nothing here measures time. Where work can be
//! counted (edits, findings, terms of the proof, bytes) it is.

use mastercast::analysis::exec::{Exec, ExecOptions, Silent};
use mastercast::analysis::facts::Facts;
use mastercast::analysis::{self, Coherence, Obligation, Subject, coherence};
use mastercast::diag::{Code, Diagnostics, Place, render_json, render_plain};
use mastercast::ir::{AttrValue, DType, EditNote, Program, ProgramBuilder, Section, SectionBuilder};
use mastercast::ops::Ops;
use mastercast::paddle::proto;
use mastercast::passes::{ManagerOptions, PassCx, PassManager, Report, Standalone, standalone};
use mastercast::text;
use mastercast::verify::{Checks, MAX_NESTING, verify};

/// Cells, ops or blocks of one program: squared, minutes where a step costs a line of text.
const N: usize = 4_000;

// ---- programs

fn master(w: &str) -> String {
    format!("{w}_fp32_master_0")
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("w{i}")).collect()
}

fn strs(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

/// Declares pairs in both sections, initialises and casts them in startup and updates them in main.
fn pairs(b: &mut ProgramBuilder, params: &[String]) {
    let mut s = b.section(Section::Startup);
    s.persistable("lr", DType::F32, [1]);
    s.op("fill_constant").out("Out", ["lr"]).attr("dtype", DType::F32).done();
    for w in params {
        s.param(w, DType::F32, [2]);
        s.persistable(&master(w), DType::F32, [2]);
        s.op("fill_constant").out("Out", [&**w]).attr("dtype", DType::F32).done();
    }
    for w in params {
        cast(&mut s, w, &master(w), DType::F32);
    }
    let mut s = b.section(Section::Main);
    s.persistable("lr", DType::F32, [1]);
    for w in params {
        s.param(w, DType::F16, [2]);
        s.persistable(&master(w), DType::F32, [2]);
        let g = format!("{w}.g");
        s.var(&g, DType::F16, [2]);
        s.op("tanh").arg("X", [&**w]).out("Out", [&*g]).done();
        s.op("sgd")
            .arg("Param", [&**w])
            .arg("Grad", [&*g])
            .arg("LearningRate", ["lr"])
            .arg("MasterParam", [&*master(w)])
            .out("ParamOut", [&**w])
            .out("MasterParamOut", [&*master(w)])
            .attr("multi_precision", true)
            .done();
    }
}

fn cast(s: &mut SectionBuilder<'_>, from: &str, to: &str, dtype: DType) {
    s.op("cast").arg("X", [from]).out("Out", [to]).attr("in_dtype", DType::F32).attr("out_dtype", dtype).done();
}

fn load<'s>(s: &mut SectionBuilder<'_>, cells: impl IntoIterator<Item = &'s str>, path: &str, pinned: bool) {
    s.op("load").out("Out", cells).attr("file_path", path).attr("pinned", pinned).done();
}

fn amp_init<'s>(s: &mut SectionBuilder<'_>, cells: impl IntoIterator<Item = &'s str> + Clone) {
    s.op("amp_init").arg("X", cells.clone()).out("Out", cells).attr("dtype", DType::F16).done();
}

fn both(b: &mut ProgramBuilder, name: &str, dtype: DType) {
    b.section(Section::Startup).persistable(name, dtype, [2]);
    b.section(Section::Main).persistable(name, dtype, [2]);
}

// ---- everything that is done with a program

struct Outcome {
    before: Coherence,
    told: Diagnostics,
    report: Report,
    passes: Diagnostics,
    after: Coherence,
}

impl Outcome {
    fn edits(&self) -> usize {
        self.report.passes.iter().map(|p| p.summary.notes.len()).sum()
    }

    fn reasons(&self) -> usize {
        let why = |n: &EditNote| match n {
            EditNote::Inserted(_, why)
            | EditNote::Moved(_, why)
            | EditNote::Removed(_, why)
            | EditNote::Changed(_, why)
            | EditNote::Declared(_, why) => why.len(),
        };
        self.report.passes.iter().flat_map(|p| &p.summary.notes).map(why).sum()
    }

    fn of(&self, code: Code) -> usize {
        self.told.iter().filter(|d| d.code == code).count()
    }
}

/// Text and ProgramDesc there and back, verified, proved, rewritten, told, standalone programs.
fn everything(program: &Program) -> Outcome {
    let printed = text::print(program);
    let (read, mistakes) = text::parse(&printed, "scale");
    assert!(mistakes.is_empty(), "{}", render_plain(&mistakes));
    let again = text::print(&read);
    assert!(again == printed, "the text changed");
    for section in Section::ALL {
        let bytes = proto::export(&read, section);
        let mut one = Program::new();
        proto::import(&bytes, section, &mut one).expect("what was exported");
        assert!(proto::export(&one, section) == bytes, "the file changed");
    }
    let found = verify(&read, Checks::ALL);
    assert!(!found.has_errors(), "{}", render_plain(&found));
    let before = coherence(&read);
    let told = analysis::diagnostics(&before, &read);
    render_json(&told);
    let mut rewritten = read.clone();
    let mut cx = PassCx::default();
    let passes = PassManager::parse("master-casts,load-order,resync").expect("a pipeline");
    let report = passes.run(&mut rewritten, &mut cx, ManagerOptions::default(), |_, _| {}).expect("a rewrite");
    let after = coherence(&rewritten);
    analysis::diagnostics(&after, &rewritten);
    for which in [Standalone::Resync, Standalone::Renarrow] {
        let alone = standalone(&rewritten, which, &cx).expect("a program");
        assert!(!verify(&alone, Checks::STRUCTURE).has_errors());
    }
    let lowered = PassManager::parse("lower").expect("a pipeline");
    // It may have no lowered form; then it is refused.
    let _ = lowered.run(&mut rewritten, &mut cx, ManagerOptions::default(), |_, _| {});
    Outcome { before, told, report, passes: cx.diagnostics, after }
}

// ---- loads, narrowings, stale pairs

#[test]
fn one_load_of_very_many_cells() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    load(&mut s, strs(&w), "ckpt", false);
    amp_init(&mut s, strs(&w).collect::<Vec<_>>());
    let o = everything(&b.finish());
    assert_eq!((o.before.pair_counts(), o.after.pair_counts()), ((N, 0), (N, N)));
    assert_eq!(o.edits(), 1, "the load moves, and that is all");
}

#[test]
fn very_many_loads_of_one_cell_each() {
    // More findings than are kept.
    const N: usize = Diagnostics::LIMIT * 6 / 10;
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    amp_init(&mut s, strs(&w).collect::<Vec<_>>());
    for w in &w {
        load(&mut s, [&**w], &format!("ckpt/{w}"), false);
    }
    let o = everything(&b.finish());
    assert_eq!((o.before.pair_counts(), o.after.pair_counts()), ((N, 0), (N, N)));
    assert_eq!(o.edits(), N, "each load moves once");
    assert!(o.reasons() < 400 * N, "a reason does not list every cell of the program");
    // Places of ops that a pass moved or made are as good as those of a file.
    assert!(o.told.len() >= N && o.told.dropped() > 0);
}

#[test]
fn very_many_loads_of_one_cell() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let mut s = b.section(Section::Startup);
    for i in 0..N {
        load(&mut s, ["w0"], &format!("ckpt.{i}"), false);
    }
    amp_init(&mut s, ["w0"]);
    let o = everything(&b.finish());
    assert_eq!(o.after.pair_counts(), (1, 1));
    assert!(o.passes.iter().any(|d| d.code == Code::PinnedLoad && d.message.contains("more stay")));
}

#[test]
fn very_many_narrowings_of_one_cell_each() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    load(&mut s, strs(&w), "ckpt", true);
    for w in &w {
        s.op("amp_init")
            .arg("X", [&**w])
            .arg("MasterOf", [&**w])
            .out("Out", [&**w])
            .out("MasterParamOut", [&*master(w)])
            .attr("dtype", DType::F16)
            .done();
    }
    let o = everything(&b.finish());
    assert_eq!(o.after.pair_counts(), (N, N));
    assert_eq!(o.edits(), 2 * N, "each rewrite is cleared, each pair gets a resync");
}

#[test]
fn very_many_stale_pairs() {
    // More findings than are kept.
    const N: usize = Diagnostics::LIMIT * 6 / 10;
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    for w in &w {
        s.op("fill_constant").out("Out", [&**w]).attr("dtype", DType::F32).done();
    }
    let o = everything(&b.finish());
    assert_eq!((o.before.pair_counts(), o.after.pair_counts()), ((N, 0), (N, N)));
    assert_eq!(o.told.len(), 2 * N, "stale and not narrowed");
    assert_eq!(o.told.iter().count(), Diagnostics::LIMIT);
}

#[test]
fn very_many_conflicts_in_two_files() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    let masters: Vec<String> = w.iter().map(|w| master(w)).collect();
    load(&mut s, strs(&w), "params", false);
    load(&mut s, strs(&masters), "masters", false);
    amp_init(&mut s, strs(&w).collect::<Vec<_>>());
    let program = b.finish();
    let o = everything(&program);
    let agree = |o: &Obligation| matches!(o, Obligation::EntriesAgree { file, master_file, .. } if &**file == "params" && &**master_file == "masters");
    let asked = o.before.verdicts.iter().flat_map(|v| &v.findings);
    let asked = asked.filter(|f| matches!(f, analysis::Finding::Unproved { obligation, .. } if agree(obligation)));
    assert_eq!(asked.count(), N);
}

// ---- derived copies

#[test]
fn a_long_chain_of_copies() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let mut last = "w0".to_owned();
    for i in 0..N {
        let next = format!("c{i}");
        both(&mut b, &next, DType::F32);
        b.section(Section::Startup).op("assign").arg("X", [&*last]).out("Out", [&*next]).done();
        last = next;
    }
    load(&mut b.section(Section::Startup), ["w0"], "ckpt", true);
    let o = everything(&b.finish());
    assert_eq!(o.of(Code::StaleCopy), 1, "only the first copy's source is newer than the copy");
    assert!(o.after.proved());
}

#[test]
fn a_long_chain_of_roundings() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let mut last = "w0".to_owned();
    for i in 0..N {
        let next = format!("c{i}");
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        both(&mut b, &next, dtype);
        cast(&mut b.section(Section::Startup), &last, &next, dtype);
        last = next;
    }
    // Pairs at its end: what they descend from is a long way off.
    let many = (1..N / 10).map(|i| format!("w{i}")).collect::<Vec<_>>();
    let mut two = ProgramBuilder::new();
    std::mem::swap(&mut two, &mut b);
    let mut b = two;
    let mut s = b.section(Section::Startup);
    for w in &many {
        s.param(w, DType::F32, [2]);
        s.persistable(&master(w), DType::F32, [2]);
        s.op("assign").arg("X", [&*last]).out("Out", [&**w]).done();
        s.op("fill_constant").out("Out", [&*master(w)]).attr("dtype", DType::F32).done();
    }
    let mut s = b.section(Section::Main);
    for w in &many {
        s.param(w, DType::F16, [2]);
        s.persistable(&master(w), DType::F32, [2]);
        s.op("sgd")
            .arg("Param", [&**w])
            .arg("Grad", ["w0.g"])
            .arg("LearningRate", ["lr"])
            .arg("MasterParam", [&*master(w)])
            .out("ParamOut", [&**w])
            .out("MasterParamOut", [&*master(w)])
            .attr("multi_precision", true)
            .done();
    }
    let o = everything(&b.finish());
    assert_eq!(o.before.pair_counts().0, N / 10);
}

#[test]
fn a_function_of_very_many_cells_with_very_many_results() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let (from, to): (Vec<_>, Vec<_>) = (0..N).map(|i| (format!("a{i}"), format!("b{i}"))).unzip();
    for n in from.iter().chain(&to) {
        both(&mut b, n, DType::F32);
    }
    let mut s = b.section(Section::Startup);
    for n in &from {
        s.op("fill_constant").out("Out", [&**n]).attr("dtype", DType::F32).done();
    }
    s.op("split").arg("X", strs(&from)).out("Out", strs(&to)).attr("axis", 0).done();
    load(&mut s, ["a0"], "ckpt", true);
    let program = b.finish();
    let ops = Ops::standard();
    let facts = Facts::new(&program, ops, &[]);
    let mut exec = Exec::new(&facts, ExecOptions::default());
    exec.run(Section::Startup, &mut Silent);
    assert!(exec.values.len() < 4 * N, "{} terms", exec.values.len());
    let o = everything(&program);
    let copies = o.before.verdicts.iter().filter(|v| matches!(v.subject, Subject::Copy { .. }) && !v.proved());
    assert_eq!(copies.count(), N);
    assert!(o.after.proved());
    assert!(o.edits() <= 4, "one op made them all; it is repeated once, not once a result: {} edits", o.edits());
}

#[test]
fn a_fused_copy_with_very_many_readers_and_loads() {
    let w = names(N / 2);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    both(&mut b, "fused", DType::F32);
    let mut s = b.section(Section::Startup);
    s.op("concat").arg("X", strs(&w)).out("Out", ["fused"]).attr("axis", 0).done();
    for i in 0..w.len() {
        let r = format!("r{i}");
        s.var(&r, DType::F32, [2]);
        s.op("relu").arg("X", ["fused"]).out("Out", [&*r]).done();
    }
    for w in &w {
        load(&mut s, [&**w], &format!("ckpt/{w}"), false);
    }
    let o = everything(&b.finish());
    assert_eq!(o.after.pair_counts(), (w.len(), w.len()));
}

// ---- pairs

#[test]
fn a_master_of_very_many_parameters() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    both(&mut b, "lr", DType::F32);
    both(&mut b, "m", DType::F32);
    let mut s = b.section(Section::Startup);
    for cell in ["lr", "m"] {
        s.op("fill_constant").out("Out", [cell]).attr("dtype", DType::F32).done();
    }
    for w in &w {
        s.param(w, DType::F32, [2]);
        s.op("assign").arg("X", ["m"]).out("Out", [&**w]).done();
    }
    let mut s = b.section(Section::Main);
    s.var("g", DType::F16, [2]);
    for w in &w {
        s.param(w, DType::F16, [2]);
    }
    s.op("tanh").arg("X", ["w0"]).out("Out", ["g"]).done();
    for w in &w {
        s.op("sgd")
            .arg("Param", [&**w])
            .arg("Grad", ["g"])
            .arg("LearningRate", ["lr"])
            .arg("MasterParam", ["m"])
            .out("ParamOut", [&**w])
            .out("MasterParamOut", ["m"])
            .attr("multi_precision", true)
            .done();
    }
    let o = everything(&b.finish());
    assert_eq!(o.before.pair_counts().0, analysis::pairs::MAX_PAIRS_OF_A_CELL);
    let others = o.before.remarks.iter().filter(|r| matches!(r, analysis::Remark::BadPair(_))).count();
    assert_eq!(others, N - analysis::pairs::MAX_PAIRS_OF_A_CELL, "the others are told, not forgotten");
}

#[test]
fn very_many_parameters_that_want_a_master_twice() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    both(&mut b, "lr", DType::F32);
    let mut s = b.section(Section::Startup);
    s.op("fill_constant").out("Out", ["lr"]).attr("dtype", DType::F32).done();
    for w in &w {
        s.param(w, DType::F32, [2]);
        s.op("fill_constant").out("Out", [&**w]).attr("dtype", DType::F32).done();
    }
    amp_init(&mut s, strs(&w).collect::<Vec<_>>());
    let mut s = b.section(Section::Main);
    s.var("g", DType::F16, [2]);
    for w in &w {
        s.param(w, DType::F16, [2]);
    }
    s.op("tanh").arg("X", ["w0"]).out("Out", ["g"]).done();
    for w in w.iter().chain(&w) {
        s.op("sgd")
            .arg("Param", [&**w])
            .arg("Grad", ["g"])
            .arg("LearningRate", ["lr"])
            .out("ParamOut", [&**w])
            .attr("multi_precision", true)
            .done();
    }
    let o = everything(&b.finish());
    // Two ops a parameter are wired, one master is declared in each section and seeded.
    assert_eq!(o.edits(), 5 * N);
    assert_eq!(o.after.pair_counts(), (N, N));
}

// ---- blocks

fn condition(b: &mut ProgramBuilder, section: Section) {
    b.section(Section::Startup).persistable("go", DType::Bool, [1]);
    b.section(Section::Startup).op("fill_constant").out("Out", ["go"]).attr("dtype", DType::Bool).done();
    if section == Section::Main {
        b.section(Section::Main).persistable("go", DType::Bool, [1]);
    }
}

fn control(s: &mut SectionBuilder<'_>, kind: &str, block: i32) {
    let slot = if kind == "while" { "Condition" } else { "Cond" };
    s.op(kind).arg(slot, ["go"]).out("Out", ["w0"]).attr("sub_block", AttrValue::Block(block)).done();
}

#[test]
fn very_many_conditional_blocks() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    condition(&mut b, Section::Startup);
    for (i, w) in w.iter().enumerate() {
        let mut inside = b.sub_block(Section::Startup, 0);
        assert_eq!(inside.index(), i as i32 + 1);
        match i % 2 {
            0 => load(&mut inside, [&**w], "ckpt", false),
            // One cell is narrowed in very many blocks: each needs a temporary of its own.
            _ => amp_init(&mut inside, ["w0"]),
        }
        control(&mut b.section(Section::Startup), "conditional_block", i as i32 + 1);
    }
    let o = everything(&b.finish());
    assert_eq!(o.after.pair_counts().0, N);
}

/// `depth` blocks in one another, the innermost a load; each runs the next `times` times.
fn nest(depth: usize, kind: &str, times: usize, section: Section) -> Program {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    condition(&mut b, section);
    for _ in 0..times {
        control(&mut b.section(section), kind, 1);
    }
    for i in 1..=depth as i32 {
        let mut inside = b.sub_block(section, i - 1);
        for _ in 0..times {
            match i as usize == depth {
                true => load(&mut inside, ["w0"], "ckpt", false),
                false => control(&mut inside, kind, i + 1),
            }
        }
    }
    b.finish()
}

#[test]
fn blocks_nested_as_deep_as_can_be() {
    for section in Section::ALL {
        for kind in ["conditional_block", "while"] {
            let o = everything(&nest(MAX_NESTING - 1, kind, 1, section));
            assert!(!o.before.proved(), "{kind}");
        }
    }
}

#[test]
fn a_block_that_two_ops_run_and_that_holds_such_blocks() {
    // 2^100 runs, if each were followed.
    let program = nest(100, "conditional_block", 2, Section::Startup);
    assert!(!coherence(&program).proved());
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    condition(&mut b, Section::Startup);
    load(&mut b.sub_block(Section::Startup, 0), ["w0"], "ckpt", false);
    for _ in 0..N {
        control(&mut b.section(Section::Startup), "conditional_block", 1);
    }
    let found = verify(&b.finish(), Checks::ALL);
    assert_eq!(found.iter().filter(|d| d.code == Code::DanglingBlock).count(), 1, "{}", render_plain(&found));
}

#[test]
fn blocks_nested_deeper_than_can_be_are_refused_and_overflow_nothing() {
    for kind in ["conditional_block", "while"] {
        let program = nest(20 * N, kind, 1, Section::Main);
        let found = verify(&program, Checks::ALL);
        assert!(found.iter().any(|d| d.code == Code::BlockTree));
        // A caller who does not verify is told nothing wrong either.
        assert!(!coherence(&program).proved());
        let printed = text::print(&program);
        assert!(text::print(&text::parse(&printed, "deep").0) == printed);
        let bytes = proto::export(&program, Section::Main);
        assert!(proto::export(&proto::read_program(None, Some(&bytes)).unwrap(), Section::Main) == bytes);
    }
}

// ---- rows

#[test]
fn an_op_with_very_many_arguments_slots_and_attributes() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let mut s = b.section(Section::Startup);
    s.op("mystery").arg("X", std::iter::repeat_n("w0", 100 * N)).done();
    let mut op = s.op("mystery");
    for i in 0..usize::from(u16::MAX) {
        op = op.arg(&format!("S{i}"), ["w0"]);
    }
    op.done();
    let mut op = s.op("mystery");
    for i in 0..10 * N {
        op = op.attr(&format!("a{i}"), i as i32);
    }
    op.done();
    let o = everything(&b.finish());
    assert!(!o.before.proved(), "an unknown op may have written the parameter");
}

#[test]
fn very_many_findings_of_the_verifier() {
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &names(1));
    let mut s = b.section(Section::Startup);
    for _ in 0..10 * N {
        s.var("x", DType::F32, [-7]);
    }
    for i in 0..10 * N {
        s.op("cast").arg("X", [&*format!("y{i}")]).arg("X", ["x"]).done();
    }
    let found = verify(&b.finish(), Checks::ALL);
    assert_eq!(found.iter().count(), Diagnostics::LIMIT);
    assert!(found.len() > 40 * N && found.iter().all(|d| d.place != Place::Nowhere));
}

#[test]
fn very_many_edited_ops_with_kept_bytes() {
    let w = names(N);
    let mut b = ProgramBuilder::new();
    pairs(&mut b, &w);
    let mut s = b.section(Section::Startup);
    for w in &w {
        amp_init(&mut s, [&**w]);
    }
    // Fields that this crate does not know: each op keeps them until it is gone.
    let printed = text::print(&b.finish()).replace("{dtype: f16}", "{dtype: f16} unknown x\"f83f01\"");
    let (mut program, mistakes) = text::parse(&printed, "kept");
    assert!(mistakes.is_empty() && program.extras().count() == N);
    let mut cx = PassCx::default();
    let passes = PassManager::parse("lower").unwrap();
    let report = passes.run(&mut program, &mut cx, ManagerOptions::default(), |_, _| {}).unwrap();
    assert_eq!(report.passes[0].summary.removed, N);
    assert!(coherence(&program).proved());
}
