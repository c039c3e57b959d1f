//! What do the standalone programs leave in the cells? Run over a scope, after a load from outside.

use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{DType, Program, ProgramBuilder, Section};
use mastercast::passes::{PassCx, Standalone, standalone};
use mastercast::text;

const V: f32 = 1.2345678;
const NARROW: f32 = 1.234375;

/// Startup that fills `w`, makes masters and copies of it by `derive`, and narrows it; main that declares all.
fn job(cells: &[(&str, DType)], derive: &[(&str, &str, &str)], masters: &[&str]) -> Program {
    let mut b = ProgramBuilder::new();
    for section in Section::ALL {
        let mut s = b.section(section);
        let startup = section == Section::Startup;
        s.param("w", if startup { DType::F32 } else { DType::F16 }, [1]);
        for &(name, dtype) in cells {
            s.persistable(name, dtype, [1]);
        }
    }
    let mut s = b.section(Section::Startup);
    s.op("fill_constant").out("Out", ["w"]).attr("value", 0.5f32).attr("dtype", DType::F32).done();
    for &(kind, from, to) in derive {
        let op = s.op(kind).arg("X", [from]).out("Out", [to]);
        let low = cells.iter().any(|&(n, d)| n == to && d.is_low());
        match kind {
            "cast" => op.attr("out_dtype", if low { DType::F16 } else { DType::F32 }).done(),
            _ => op.done(),
        };
    }
    s.op("amp_init").arg("X", ["w"]).out("Out", ["w"]).attr("dtype", DType::F16).done();
    let mut m = b.section(Section::Main);
    for &master in masters {
        m.op("sgd")
            .arg("Param", ["w"])
            .arg("MasterParam", [master])
            .out("ParamOut", ["w"])
            .out("MasterParamOut", [master])
            .attr("multi_precision", true)
            .done();
    }
    b.finish()
}

/// Sets the cells, runs the program, and gives the cells wanted.
fn run(program: &Program, set: &[(&str, f32)], get: &[&str]) -> Vec<(DType, f32)> {
    let mut scope = Scope::new();
    for &(name, value) in set {
        scope.set(name, Tensor::new(&[1], vec![value]).unwrap());
    }
    Interpreter::new(program)
        .run(Section::Main, &mut scope)
        .unwrap_or_else(|e| panic!("{e}\n{}", text::print(program)));
    get.iter()
        .map(|n| {
            let t = scope.get(n).unwrap_or_else(|| panic!("no {n}"));
            (t.dtype(), t.to_f32_vec()[0])
        })
        .collect()
}

fn make(program: &Program, which: Standalone) -> Program {
    standalone(program, which, &PassCx::default()).expect("a program")
}

#[test]
fn every_master_takes_the_value_that_was_loaded() {
    let masters = ["w_fp32_master_0", "w_fp32_master_1"];
    let program =
        job(&masters.map(|m| (m, DType::F32)), &[("cast", "w", masters[0]), ("cast", "w", masters[1])], &masters);
    let got = run(
        &make(&program, Standalone::Resync),
        &[("w", V), (masters[0], 0.0), (masters[1], 0.0)],
        &["w", masters[0], masters[1]],
    );
    assert_eq!(got, [(DType::F16, NARROW), (DType::F32, V), (DType::F32, V)]);
}

#[test]
fn a_parameter_is_narrowed_from_its_first_master() {
    let masters = ["w_fp32_master_0", "w_fp32_master_1"];
    let program =
        job(&masters.map(|m| (m, DType::F32)), &[("cast", "w", masters[0]), ("cast", "w", masters[1])], &masters);
    let got = run(
        &make(&program, Standalone::Renarrow),
        &[("w", 9.0), (masters[0], V), (masters[1], 5.0)],
        &["w", masters[1]],
    );
    assert_eq!(got, [(DType::F16, NARROW), (DType::F32, 5.0)]);
}

#[test]
fn a_wide_copy_of_a_parameter_without_master_keeps_the_float32_value() {
    let program = job(&[("copy", DType::F32)], &[("cast", "w", "copy")], &[]);
    let got = run(&make(&program, Standalone::Resync), &[("w", V), ("copy", 0.0)], &["w", "copy"]);
    assert_eq!(got, [(DType::F16, NARROW), (DType::F32, V)]);
}

#[test]
fn a_chain_is_derived_from_its_source_on() {
    // Declared and derived so that neither names nor rows give the order.
    let cells = [("a", DType::F32), ("b", DType::F32), ("w_fp32_master_0", DType::F32)];
    let derive = [("cast", "w", "w_fp32_master_0"), ("assign", "w_fp32_master_0", "b"), ("assign", "b", "a")];
    let program = job(&cells, &derive, &["w_fp32_master_0"]);
    let set = [("w", V), ("w_fp32_master_0", 0.0), ("a", 0.0), ("b", 0.0)];
    let got = run(&make(&program, Standalone::Resync), &set, &["w", "w_fp32_master_0", "b", "a"]);
    assert_eq!(got, [(DType::F16, NARROW), (DType::F32, V), (DType::F32, V), (DType::F32, V)]);

    // The same after the rows of the chain were made in the other order.
    let mut program = program;
    let block = program.global_block(Section::Startup).unwrap();
    let ops = program.block(block).ops.clone();
    let mut edit = mastercast::ir::Edit::new();
    let again = mastercast::ir::NewOp::copy_of(&program, ops[2]);
    edit.insert(mastercast::ir::At::Before(ops[3]), again, "a younger row before an older one");
    edit.remove(ops[2], "replaced");
    edit.commit(&mut program, "test");
    let got = run(&make(&program, Standalone::Resync), &set, &["b", "a"]);
    assert_eq!(got, [(DType::F32, V), (DType::F32, V)]);
}

#[test]
fn a_temporary_does_not_take_a_name_of_the_program() {
    let cells = [("w_fp32_master_0", DType::F32), ("w.wide", DType::F32)];
    let derive = [("cast", "w", "w_fp32_master_0"), ("assign", "w_fp32_master_0", "w.wide")];
    let program = job(&cells, &derive, &["w_fp32_master_0"]);
    let set = [("w", V), ("w_fp32_master_0", 0.0), ("w.wide", 0.0)];
    let made = make(&program, Standalone::Resync);
    let got = run(&made, &set, &["w", "w.wide"]);
    assert_eq!(got, [(DType::F16, NARROW), (DType::F32, V)]);
    let cell = made.global_block(Section::Main).map(|b| &made.block(b).vars).unwrap().iter().map(|&v| made.var(v));
    assert!(cell.clone().any(|v| made.name(v.name) == "w.wide" && v.persistable()), "{}", text::print(&made));
    let mut names: Vec<_> =
        made.block(made.global_block(Section::Main).unwrap()).vars.iter().map(|&v| made.var(v).name).collect();
    names.sort_unstable();
    let n = names.len();
    names.dedup();
    assert_eq!(names.len(), n, "a name is declared twice\n{}", text::print(&made));
}

#[test]
fn a_second_run_rounds_the_master_as_its_page_says() {
    let program = job(&[("w_fp32_master_0", DType::F32)], &[("cast", "w", "w_fp32_master_0")], &["w_fp32_master_0"]);
    let made = make(&program, Standalone::Resync);
    let mut scope = Scope::new();
    scope.set("w", Tensor::new(&[1], vec![V]).unwrap());
    let mut interpreter = Interpreter::new(&made);
    let mut master = || {
        interpreter.run(Section::Main, &mut scope).unwrap();
        scope.get("w_fp32_master_0").unwrap().to_f32_vec()[0]
    };
    assert_eq!((master(), master()), (V, NARROW));
}

#[test]
fn a_cell_whose_name_a_temporary_would_take_keeps_its_own() {
    let mut b = ProgramBuilder::new();
    for section in Section::ALL {
        let mut s = b.section(section);
        for w in ["w", "w.wide"] {
            s.param(w, if section == Section::Startup { DType::F32 } else { DType::F16 }, [1]);
            s.persistable(&format!("{w}_fp32_master_0"), DType::F32, [1]);
        }
    }
    let mut m = b.section(Section::Main);
    for w in ["w", "w.wide"] {
        let master = format!("{w}_fp32_master_0");
        m.op("sgd")
            .arg("Param", [w])
            .arg("MasterParam", [&*master])
            .out("ParamOut", [w])
            .out("MasterParamOut", [&*master])
            .attr("multi_precision", true)
            .done();
    }
    let program = standalone(&b.finish(), Standalone::Resync, &PassCx::default()).unwrap();
    let cells = [("w", 2.0), ("w.wide", 3.0), ("w_fp32_master_0", 0.0), ("w.wide_fp32_master_0", 0.0)];
    let got = run(&program, &cells, &["w", "w.wide", "w_fp32_master_0", "w.wide_fp32_master_0"]);
    assert_eq!(got, [(DType::F16, 2.0), (DType::F16, 3.0), (DType::F32, 2.0), (DType::F32, 3.0)]);
}

#[test]
fn an_op_that_makes_several_copies_is_repeated_once() {
    let mut b = ProgramBuilder::new();
    for section in Section::ALL {
        let mut s = b.section(section);
        for name in ["w", "a", "b"] {
            s.persistable(name, DType::F32, [2]);
        }
    }
    let mut s = b.section(Section::Startup);
    s.op("fill_constant").out("Out", ["w"]).attr("dtype", DType::F32).done();
    s.op("split").arg("X", ["w"]).out("Out", ["a", "b"]).attr("num", 2).done();
    let program = standalone(&b.finish(), Standalone::Resync, &PassCx::default()).unwrap();
    assert_eq!(text::print(&program).matches("split(").count(), 1);
}
