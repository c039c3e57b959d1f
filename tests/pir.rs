//! Do Paddle 3.x programs come out as they went in, and mean what the executor of 3.3.1 makes of them?

use mastercast::analysis::effects::{Access, Effects};
use mastercast::analysis::{coherence, diagnostics};
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{At, AttrValue, DType, Edit, Entity, Extra, NewOp, Program, Section};
use mastercast::names::sym;
use mastercast::ops::Ops;
use mastercast::paddle::pir;
use mastercast::passes::{ManagerOptions, PassCx, PassManager, Standalone, standalone};
use mastercast::verify::{Checks, verify};
use std::path::{Path, PathBuf};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pir")
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(data()).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(!files.is_empty());
    files
}

fn section(path: &Path) -> Section {
    match path.file_name().unwrap().to_str().unwrap().starts_with("startup") {
        true => Section::Startup,
        false => Section::Main,
    }
}

/// The text, the program, and what export writes when nothing is kept of the text.
fn read(path: &Path) -> (String, Program) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut program = Program::new();
    pir::import(&text, section(path), &mut program).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (text, program)
}

#[test]
fn real_files_come_out_as_they_went_in() {
    for path in files() {
        let (text, program) = read(&path);
        assert_eq!(pir::export(&program, section(&path)).unwrap(), text, "{}", path.display());
        let kept = program.extra(mastercast::ir::Entity::Section(section(&path))).unwrap();
        let pretty = text.starts_with("{\n");
        assert_eq!(kept.verbatim.is_some(), pretty, "{}: export writes this text from rows", path.display());
        let found = verify(&program, Checks::ALL);
        assert!(found.is_empty(), "{}: {:?}", path.display(), found.iter().next());
    }
}

fn job(model: &str) -> Program {
    let text = |section: &str| std::fs::read_to_string(data().join(format!("{section}.{model}.json"))).unwrap();
    pir::read_program(Some(&text("startup")), Some(&text("main"))).unwrap()
}

/// What export writes when nothing of the text is kept.
fn from_rows(program: &Program, section: Section) -> String {
    let mut program = program.clone();
    let entity = Entity::Section(section);
    let kept = program.extra(entity).unwrap().unknown.clone();
    program.set_extra(entity, Extra { unknown: kept, verbatim: None });
    pir::export(&program, section).unwrap()
}

#[test]
fn white_space_is_all_that_an_edit_loses() {
    let (readable, program) = read(&data().join("main.cond.readable.json"));
    let (plain, _) = read(&data().join("main.cond.fp32.json"));
    assert_ne!(readable, plain);
    assert_eq!(from_rows(&program, Section::Main), plain);
}

#[test]
fn text_json_and_compaction_keep_a_program() {
    for path in files() {
        let (text, program) = read(&path);
        let section = section(&path);
        let printed = mastercast::text::print(&program);
        let (parsed, found) = mastercast::text::parse(&printed, "t");
        assert!(found.is_empty(), "{}: {:?}", path.display(), found.iter().next());
        assert_eq!(mastercast::text::print(&parsed), printed);
        let json = Program::from_json(&program.to_json().to_string()).unwrap();
        for again in [parsed, json, program.compact()] {
            assert_eq!(pir::export(&again, section).unwrap(), text, "{}", path.display());
            assert_eq!(from_rows(&again, section), from_rows(&program, section));
            assert_eq!(pir::contradiction(&again, section), None, "{}", path.display());
        }
    }
}

#[test]
fn text_that_says_another_program_is_found() {
    let (_, program) = read(&data().join("main.cond.readable.json"));
    let lie = mastercast::text::print(&program).replace("pd_op.mean", "pd_op.max");
    let lie = lie.replace("relu(", "tanh(").replace("reduce_mean(", "reduce_sum(");
    let (parsed, found) = mastercast::text::parse(&lie, "t");
    assert!(found.is_empty());
    assert!(pir::contradiction(&parsed, Section::Main).is_some());
}

/// Runs the standard passes and the lowering.
fn rewritten(program: &Program) -> Program {
    let mut program = program.clone();
    let manager = PassManager::parse("master-casts,load-order,resync,lower").unwrap();
    manager.run(&mut program, &mut PassCx::default(), ManagerOptions::default(), |_, _| {}).unwrap();
    program
}

fn codes(program: &Program) -> Vec<String> {
    let found = diagnostics(&coherence(program), program);
    let mut codes: Vec<String> = found.iter().map(|d| d.code.to_string()).collect();
    codes.dedup();
    codes
}

#[test]
fn real_startups_round_their_masters_and_rewritten_ones_do_not() {
    for model in ["mlp.bf16", "lenet.bf16", "bert_mini.bf16"] {
        let program = job(model);
        assert_eq!(codes(&program), ["lossy-master"], "{model}");
        let after = rewritten(&program);
        assert!(coherence(&after).proved(), "{model}: {:?}", codes(&after));
        // What is written says so, too.
        let text = |s| pir::export(&after, s).unwrap();
        let again = pir::read_program(Some(&text(Section::Startup)), Some(&text(Section::Main))).unwrap();
        assert!(coherence(&again).proved(), "{model}");
        assert_eq!(text(Section::Main), pir::export(&program, Section::Main).unwrap(), "main needs no change");
        assert_eq!(pir::export(&rewritten(&again), Section::Startup).unwrap(), text(Section::Startup), "{model}");
    }
}

/// The job with a load of some cells at the end of startup.
fn loaded(model: &str, cells: &[(&str, DType)]) -> Program {
    let mut program = job(model);
    let block = program.global_block(Section::Startup).unwrap();
    let mut edit = Edit::new();
    for (name, dtype) in cells {
        let cell = program.intern(name);
        let load = NewOp::new(sym::LOAD)
            .output(sym::OUT, [cell])
            .attr(sym::FILE_PATH, format!("params/{name}").as_str())
            .attr(sym::STORED_DTYPES, AttrValue::Ints([dtype.code()].into()));
        edit.insert(At::End(block), load, "the test loads");
    }
    edit.commit(&mut program, "test");
    program
}

#[test]
fn loads_in_startup_are_mended_and_written_as_the_executor_wants_them() {
    let (w, m) = ("linear_0.w_0", "linear_0.w_0_fp32_master_0");
    type Order<'a> = (&'a str, &'a [(&'a str, DType)], &'a [&'a str]);
    let orders: [Order<'_>; 4] = [
        ("P1", &[(w, DType::F32)], &["stale-master", "wrong-dtype"]),
        ("P2", &[(w, DType::BF16)], &["stale-master"]),
        ("P3", &[(w, DType::F32), (m, DType::F32)], &["wrong-dtype", "unproved"]),
        ("P4", &[(m, DType::F32)], &["stale-parameter"]),
    ];
    for (order, cells, findings) in orders {
        let program = loaded("mlp.bf16", cells);
        let found = codes(&program);
        for code in findings {
            assert!(found.iter().any(|f| f == code), "{order}: {code} is not among {found:?}");
        }
        let after = rewritten(&program);
        assert!(coherence(&after).proved(), "{order}: {:?}", codes(&after));
        let startup = pir::export(&after, Section::Startup).unwrap();
        assert_eq!(startup.matches("1.load_combine").count(), cells.len(), "{order}");
        // The executor takes one value for a name.
        for name in [w, m] {
            assert_eq!(
                startup.matches(&format!("{{\"#\":\"0.a_str\",\"D\":\"{name}\"}}")).count(),
                1,
                "{order} {name}"
            );
        }
        let main = pir::export(&after, Section::Main).unwrap();
        let again = pir::read_program(Some(&startup), Some(&main)).unwrap();
        assert!(coherence(&again).proved(), "{order}: {:?}", codes(&again));
        assert_eq!(pir::export(&again, Section::Startup).unwrap(), startup);
        let kinds = |p: &Program| {
            let block = p.global_block(Section::Startup).unwrap();
            p.ops(block).filter(|op| op.kind() == sym::LOAD).count()
        };
        assert_eq!(kinds(&again), cells.len(), "the pair of ops is read as one load");
    }
}

#[test]
fn standalone_programs_name_cells_that_they_read_at_the_end() {
    let program = job("mlp.bf16");
    for (which, named_at_end) in [(Standalone::Resync, 4), (Standalone::Renarrow, 1)] {
        let out = standalone(&program, which, &PassCx::default()).unwrap();
        let text = pir::export(&out, Section::Main).unwrap();
        let mut again = Program::new();
        pir::import(&text, Section::Main, &mut again).unwrap();
        assert_eq!(pir::export(&again, Section::Main).unwrap(), text);
        let block = again.global_block(Section::Main).unwrap();
        let kinds: Vec<&str> = again.ops(block).map(|op| op.kind_str()).collect();
        let last_value = kinds.iter().rposition(|k| !k.starts_with("builtin.")).unwrap();
        assert_eq!(kinds[last_value + 1..], vec!["builtin.set_parameter"; named_at_end], "{kinds:?}");
        // Read and written: once each, or written alone.
        let times = |name: &str| text.matches(&format!("\"{name}\"")).count();
        assert_eq!(times("linear_0.w_0"), if which == Standalone::Resync { 2 } else { 1 });
        assert_eq!(times("linear_0.w_0_fp32_master_0"), 1);
    }
}

/// The mean that a branch or a loop of the tests ends in, for a linear layer that changes nothing.
fn mean_of(file: &str, x: f32) -> f32 {
    let (_, program) = read(&data().join(file));
    let mut scope = Scope::new();
    let identity: Vec<f32> = (0..64).map(|i| f32::from(u8::from(i % 9 == 0))).collect();
    let cells =
        [("linear_0.w_0", Tensor::new(&[8, 8], identity)), ("linear_0.b_0", Tensor::new(&[8], vec![0.0f32; 8]))];
    for (name, tensor) in cells {
        scope.set(name, tensor.unwrap());
    }
    let feed = vec![("x".to_owned(), Tensor::new(&[4, 8], vec![x; 32]).unwrap())];
    let block = program.global_block(Section::Main).unwrap();
    let last = program.ops(block).next_back().unwrap().output_args().next().unwrap();
    let mut interpreter = Interpreter::new(&program);
    let out = interpreter.run_with(Section::Main, &mut scope, &feed, &[program.name(last)]).unwrap();
    out.values[0].to_f32_vec()[0]
}

#[test]
fn regions_run() {
    // Three rounds of relu; a branch that doubles what is negative.
    assert_eq!(mean_of("main.while_loop.fp32.json", 0.5), 0.5);
    assert_eq!(mean_of("main.while_loop.fp32.json", -0.5), 0.0);
    assert_eq!(mean_of("main.cond.fp32.json", 0.5), 0.5);
    assert_eq!(mean_of("main.cond.fp32.json", -0.5), -1.0);
}

#[test]
fn regions_write_their_results_alone() {
    let (_, program) = read(&data().join("main.while_loop.fp32.json"));
    let kinds = Ops::standard().resolve(&program);
    let effects = Effects::new(&program, &kinds);
    let block = program.global_block(Section::Main).unwrap();
    let op = program.ops(block).find(|op| op.kind_str() == "pd_op.while").unwrap();
    let (mut read, mut written) = (Vec::new(), Vec::new());
    effects.each(op, |name, access| match access {
        Access::Read => read.push(program.name(name)),
        Access::Write => written.push(name),
        Access::MayWrite => panic!("{} may be written", program.name(name)),
    });
    assert!(read.contains(&"linear_0.w_0"), "{read:?}");
    assert!(op.output_args().eq(written));
}

/// A startup program of these ops, each as in a file.
fn startup(ops: &[String]) -> Result<Program, pir::PirError> {
    let text = format!(
        "{{\"base_code\":{{\"magic\":\"pir\",\"trainable\":false,\"version\":4}},\"program\":{{\"regions\":[{{\"#\":\"region_0\",\
         \"blocks\":[{{\"#\":\"block_0\",\"args\":[],\"ops\":[{}]}}]}}]}}}}",
        ops.join(",")
    );
    let mut program = Program::new();
    pir::import(&text, Section::Startup, &mut program)?;
    Ok(program)
}

fn op(kind: &str, operands: &[i64], results: &[i64], name: Option<(&str, &str)>) -> String {
    let list = |items: Vec<String>| items.join(",");
    let attrs = name.map_or(String::new(), |(attr, cell)| {
        format!("{{\"AT\":{{\"#\":\"0.a_str\",\"D\":\"{cell}\"}},\"N\":\"{attr}\"}}")
    });
    let ty = "{\"#\":\"0.t_dtensor\",\"D\":[{\"#\":\"0.t_f32\"},[2],\"NCHW\",[],0]}";
    format!(
        "{{\"#\":\"{kind}\",\"A\":[{attrs}],\"I\":[{}],\"O\":[{}]}}",
        list(operands.iter().map(|i| format!("{{\"%\":{i}}}")).collect()),
        list(results.iter().map(|i| format!("{{\"%\":{i},\"TT\":{ty}}}")).collect())
    )
}

fn set(value: i64, cell: &str) -> String {
    op("0.set_parameter", &[value], &[], Some(("parameter_name", cell)))
}

fn lines(program: &Program) -> Vec<String> {
    let block = program.global_block(Section::Startup).unwrap();
    program.ops(block).map(|op| format!("{op:?}")).collect()
}

#[test]
fn a_named_value_is_the_cell_from_its_definition_on() {
    let program = startup(&[
        op("1.relu", &[], &[1], None),
        op("1.tanh", &[1], &[2], None),
        set(1, "w"),
        op("0.shadow_output", &[2], &[], Some(("output_name", "m"))),
    ])
    .unwrap();
    assert_eq!(
        lines(&program),
        ["(Out: w) = relu()", "(Out: m) = tanh(X: w)", "() = builtin.set_parameter()", "() = builtin.shadow_output()"]
    );
}

/// 3.3.1 moves the variable to the second name; the first cell is gone.
#[test]
fn a_second_name_takes_the_first_away() {
    let program = startup(&[op("1.relu", &[], &[1], None), set(1, "w"), set(1, "m")]).unwrap();
    let lines = lines(&program);
    assert_eq!(lines[2], "(Out: m) = rename:builtin.set_parameter(X: w)");
    let schema = Ops::standard().resolve(&program);
    let block = program.global_block(Section::Startup).unwrap();
    let last = program.ops(block).next_back().unwrap();
    assert_eq!(schema.get(last.kind()).effect, mastercast::ops::Effect::Unknown);
}

#[test]
fn results_of_ops_in_place_are_their_operands() {
    let data = |id, cell: &str| op("1.data", &[], &[id], Some(("name", cell)));
    let program = startup(&[
        data(1, "w"),
        data(2, "lr"),
        data(3, "g"),
        data(4, "m"),
        op("1.sgd_", &[1, 2, 3, 4], &[5, 6], None),
        op("1.relu", &[5], &[7], None),
        op("1.foo_", &[7], &[8], None),
    ])
    .unwrap();
    let lines = lines(&program);
    assert_eq!(lines[4], "(ParamOut: w; MasterParamOut: m) = sgd(Param: w; LearningRate: lr; Grad: g; MasterParam: m)");
    assert_eq!(lines[5], "(Out: %s7) = relu(X: w)");
    // One that the table does not know may write all that it names.
    assert_eq!(lines[6], "(O0: %s8) = pd_op.foo_(I0: %s7)");
    assert_eq!(mastercast::ops::Schema::of_name("pd_op.foo_").effect, mastercast::ops::Effect::Unknown);
    assert_eq!(mastercast::ops::Schema::of_name("pd_op.foo").effect, mastercast::ops::Effect::Opaque);
}

#[test]
fn an_unknown_op_in_place_reaches_through_a_list() {
    let data = |id, cell: &str| op("1.data", &[], &[id], Some(("name", cell)));
    let program =
        startup(&[data(1, "w"), data(2, "v"), op("0.combine", &[1, 2], &[3], None), op("1.foo_", &[3], &[4], None)])
            .unwrap();
    assert_eq!(lines(&program)[3], "(O0: %s4; Elements: w, v) = pd_op.foo_(I0: %s3)");
}
