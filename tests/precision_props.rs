//! Do random programs compute the same after a rewrite to mixed precision, and after a cleanup of its casts?
//!
//! Values are small integers and every op is exact on them in 16 bits, so that results are equal bit for bit: a stale
//! cast, an undominated one, or a wrong capture shows. The interpreter takes no op of mixed types, and what a cell
//! holds must be of its declared type.

use mastercast::diag::Diagnostics;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{Program, Section};
use mastercast::passes::precision::{Level, LowType};
use mastercast::passes::{CastCleanup, Pass, PassCx, Precision};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Write;

/// Cells that steps read and write.
const CELLS: usize = 5;
const LIMIT: i32 = 8;

#[derive(Clone, Debug)]
enum Step {
    Unary(&'static str, usize, usize),
    Binary(&'static str, usize, usize, usize),
    /// to another float type and back
    Cast(&'static str, usize, usize),
    If(usize, Vec<Step>),
    Loop(u8, Vec<Step>),
}

fn step() -> BoxedStrategy<Step> {
    let cell = 0..CELLS;
    let leaf = prop_oneof![
        3 => (select(vec!["relu", "abs", "assign"]), cell.clone(), cell.clone()).prop_map(|(k, a, o)| Step::Unary(k, a, o)),
        5 => (
            select(vec!["matmul_v2", "elementwise_add", "elementwise_sub", "elementwise_max", "elementwise_mul"]),
            cell.clone(), cell.clone(), cell.clone()
        ).prop_map(|(k, a, b, o)| Step::Binary(k, a, b, o)),
        1 => (select(vec!["f16", "bf16", "f64"]), cell.clone(), cell.clone()).prop_map(|(d, a, o)| Step::Cast(d, a, o)),
    ];
    leaf.prop_recursive(2, 16, 5, move |inner| {
        prop_oneof![
            (0..CELLS, vec(inner.clone(), 1..5)).prop_map(|(c, body)| Step::If(c, body)),
            (0..3u8, vec(inner, 1..5)).prop_map(|(n, body)| Step::Loop(n, body)),
        ]
    })
    .boxed()
}

#[derive(Default)]
struct Writer {
    blocks: Vec<(usize, String)>,
    decls: String,
    n: usize,
}

impl Writer {
    fn fresh(&mut self, prefix: &str) -> String {
        self.n += 1;
        format!("{prefix}{}", self.n)
    }

    fn steps(&mut self, steps: &[Step], block: usize) -> String {
        let mut out = String::new();
        let all: Vec<String> = (0..CELLS).map(|i| format!("t{i}")).collect();
        let all = all.join(", ");
        for step in steps {
            match step {
                Step::Unary(kind, a, o) => writeln!(out, "(Out: t{o}) = {kind}(X: t{a})").unwrap(),
                Step::Binary(kind, a, b, o) => {
                    writeln!(out, "(Out: t{o}) = {kind}(X: t{a}; Y: t{b})").unwrap();
                    if *kind != "elementwise_max" {
                        writeln!(out, "(Out: t{o}) = elementwise_min(X: t{o}; Y: high)").unwrap();
                        writeln!(out, "(Out: t{o}) = elementwise_max(X: t{o}; Y: lowest)").unwrap();
                    }
                }
                Step::Cast(dtype, a, o) => {
                    let name = self.fresh("u");
                    writeln!(self.decls, "var {name} : {dtype}[1, 1]").unwrap();
                    writeln!(out, "(Out: {name}) = cast(X: t{a}) {{in_dtype: f32, out_dtype: {dtype}}}").unwrap();
                    writeln!(out, "(Out: t{o}) = cast(X: {name}) {{in_dtype: {dtype}, out_dtype: f32}}").unwrap();
                }
                Step::If(c, body) => {
                    let (cond, scope) = (self.fresh("c"), self.fresh("s"));
                    writeln!(self.decls, "var {cond} : bool[1, 1]\nvar {scope} : step_scopes").unwrap();
                    let sub = self.block(body, block, "");
                    writeln!(out, "(Out: {cond}) = greater_than(X: t{c}; Y: zero)").unwrap();
                    writeln!(out, "(Out: {all}; Scope: {scope}) = conditional_block(Cond: {cond}; Input: {all}, high, lowest) {{sub_block: block({sub})}}").unwrap();
                }
                Step::Loop(n, body) => {
                    let (cond, scope, i, end) = (self.fresh("c"), self.fresh("s"), self.fresh("i"), self.fresh("n"));
                    writeln!(
                        self.decls,
                        "var {cond} : bool[1]\nvar {scope} : step_scopes\nvar {i} : i64[1]\nvar {end} : i64[1]"
                    )
                    .unwrap();
                    let tail = format!(
                        "(Out: {i}) = increment(X: {i}) {{step: 1.0f}}\n(Out: {cond}) = less_than(X: {i}; Y: {end})\n"
                    );
                    let sub = self.block(body, block, &tail);
                    writeln!(out, "(Out: {i}) = fill_constant() {{dtype: i64, shape: [1L], value: 0.0f}}").unwrap();
                    writeln!(out, "(Out: {end}) = fill_constant() {{dtype: i64, shape: [1L], value: {n}.0f}}").unwrap();
                    writeln!(out, "(Out: {cond}) = less_than(X: {i}; Y: {end})").unwrap();
                    writeln!(out, "(Out: {all}, {i}, {cond}; StepScopes: {scope}) = while(Condition: {cond}; X: {i}, {end}, {all}, high, lowest) {{sub_block: block({sub}), is_test: true}}").unwrap();
                }
            }
        }
        out
    }

    fn block(&mut self, body: &[Step], parent: usize, tail: &str) -> usize {
        let index = self.blocks.len() + 1;
        self.blocks.push((parent, String::new()));
        let text = self.steps(body, index);
        self.blocks[index - 1].1 = text + tail;
        index
    }
}

fn write(steps: &[Step]) -> Program {
    let mut w = Writer::default();
    let main = w.steps(steps, 0);
    let mut text = String::from("program {\nmain {\n");
    for i in 0..CELLS {
        // The last is a parameter.
        let kind = if i + 1 == CELLS { "param" } else { "var" };
        writeln!(text, "{kind} t{i} : f32[1, 1] persistable").unwrap();
    }
    text.push_str(
        "var high : f32[1, 1] persistable\nvar lowest : f32[1, 1] persistable\nvar zero : f32[1, 1] persistable\n",
    );
    text.push_str(&w.decls);
    text.push_str(&main);
    for (i, (parent, body)) in w.blocks.iter().enumerate() {
        writeln!(text, "block {} in {parent} {{\n{body}}}", i + 1).unwrap();
    }
    text.push_str("}\n}\n");
    let (program, found) = text::parse(&text, "random");
    assert!(!found.has_errors(), "{text}\n{found:?}");
    program
}

/// Declared types of the cells, and what they hold at the end of a step.
fn run(program: &Program, values: &[i32]) -> Vec<(String, Tensor)> {
    let mut scope = Scope::new();
    let declared = |name: &str| {
        let n = program.names().lookup(name).unwrap();
        let block = program.global_block(Section::Main).unwrap();
        let var = program.block(block).vars.iter().map(|&v| program.var(v)).find(|v| v.name == n).unwrap();
        var.dtype
    };
    let mut set = |name: &str, v: i32| {
        let wide = Tensor::new(&[1, 1], vec![v as f32]).unwrap();
        scope.set(name, wide.cast(declared(name), Default::default()).unwrap());
    };
    for (i, &v) in values.iter().enumerate() {
        set(&format!("t{i}"), v);
    }
    set("high", LIMIT);
    set("lowest", -LIMIT);
    set("zero", 0);
    let mut interp = Interpreter::new(program);
    interp.run(Section::Main, &mut scope).unwrap_or_else(|e| panic!("{}\n{e}", text::print(program)));
    (0..CELLS)
        .map(|i| {
            let name = format!("t{i}");
            let value = scope.get(&name).unwrap().clone();
            assert_eq!(value.dtype(), declared(&name), "{name}\n{}", text::print(program));
            (name, value)
        })
        .collect()
}

fn options() -> impl Strategy<Value = Precision> {
    let kinds = || {
        prop_oneof![
            2 => Just(vec![]),
            1 => Just(vec!["elementwise_sub", "assign"]),
            1 => Just(vec!["elementwise_add", "abs"]),
            1 => Just(vec!["while", "elementwise_max"]),
            1 => Just(vec!["conditional_block"]),
        ]
    };
    (select(vec![Level::O1, Level::O2, Level::OD]), any::<bool>(), any::<bool>(), kinds(), kinds()).prop_map(
        |(level, bf16, promote, white, black)| {
            let strings = |v: Vec<&str>| v.into_iter().map(str::to_owned).collect::<Vec<_>>();
            let white = if white == black { Vec::new() } else { strings(white) };
            Precision {
                level,
                dtype: if bf16 { LowType::BFloat16 } else { LowType::Float16 },
                promote,
                white,
                black: strings(black),
                ..Precision::default()
            }
        },
    )
}

/// Findings about casts and types that the source does not have.
fn findings(program: &Program) -> Diagnostics {
    verify(program, Checks::ALL)
}

fn apply(pass: &dyn Pass, program: &mut Program) {
    pass.run(program, &mut PassCx::default()).unwrap();
    let before = text::print(program);
    pass.run(program, &mut PassCx::default()).unwrap();
    assert_eq!(text::print(program), before, "a second run of {} changes something", pass.name());
}

fn same(a: &[(String, Tensor)], b: &[(String, Tensor)], program: &Program) {
    for ((name, x), (_, y)) in a.iter().zip(b) {
        assert_eq!(x.to_f32_vec(), y.to_f32_vec(), "{name}\n{}", text::print(program));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_rewritten_program_computes_what_it_computed(
        steps in vec(step(), 1..14),
        values in vec(-LIMIT..=LIMIT, CELLS),
        options in options(),
    ) {
        let source = write(&steps);
        let wanted = run(&source, &values);
        let mut program = source.clone();
        apply(&options, &mut program);
        let (before, after) = (findings(&source), findings(&program));
        prop_assert!(after.len() <= before.len(), "{options:?}\n{after:?}\n{}", text::print(&program));
        let got = run(&program, &values);
        same(&wanted, &got, &program);

        let mut clean = program.clone();
        apply(&CastCleanup::default(), &mut clean);
        let after = findings(&clean);
        prop_assert!(after.len() <= before.len(), "cleanup: {after:?}\n{}", text::print(&clean));
        let again = run(&clean, &values);
        same(&got, &again, &clean);
        let casts = |p: &Program| {
            let ops = p.section_blocks(Section::Main).flat_map(|b| p.ops(b)).filter(|o| o.kind_str() == "cast");
            ops.count()
        };
        prop_assert!(casts(&clean) <= casts(&program));
    }
}
