//! Does each invariant find its fault, at its place, and leave sound programs alone?

mod common;

use common::r#gen;
use mastercast::diag::{Code, Diagnostics, Severity, render_plain};
use mastercast::entity::EntityId;
use mastercast::ir::{Program, Section};
use mastercast::ops::{Effect, Ops, Schema};
use mastercast::text::parse;
use mastercast::verify::{Checks, DeclIndex, MAX_NESTING, verify, verify_with};
use proptest::prelude::*;

fn program(text: &str) -> Program {
    let (program, findings) = parse(text, "t");
    assert!(findings.is_empty(), "{}", render_plain(&findings));
    program
}

/// Findings of a text with `//~ severity[code]: part of the message` behind the line that each is about.
///
/// Every finding must be expected and every expectation met. A finding without a line stands on none.
fn check(text: &str) {
    let found = verify(&program(text), Checks::ALL);
    let mut expected: Vec<(usize, &str)> = Vec::new();
    let mut starts = Vec::new();
    let mut at = 0;
    for (i, line) in text.lines().enumerate() {
        starts.push(at);
        at += line.len() + 1;
        expected.extend(line.split("//~ ").skip(1).map(|e| (i, e.trim())));
    }
    for d in &found {
        let mastercast::diag::Place::Item { text: Some(range), .. } = &d.place else { panic!("{d:?} has no line") };
        let line = starts.partition_point(|&s| s <= range.start) - 1;
        let head = format!("{}[{}]: ", d.severity.as_str(), d.code);
        let hit = expected.iter().position(|(l, e)| {
            *l == line && e.strip_prefix(head.as_str()).is_some_and(|part| d.message.contains(part))
        });
        match hit {
            Some(i) => drop(expected.remove(i)),
            None => panic!("line {} has an unexpected finding\n{}", line + 1, render_plain(&found)),
        }
    }
    assert!(expected.is_empty(), "not found: {expected:?}\n{}", render_plain(&found));
}

fn lines(found: &Diagnostics) -> Vec<String> {
    found.iter().map(|d| format!("{}[{}]: {} @ {}", d.severity.as_str(), d.code, d.message, d.place)).collect()
}

/// A sound program with most things that the checks look at.
const SOUND: &str = r#"program {
  startup {
    param w : f32[4, 4] persistable
    var m : f32[4, 4] persistable
    (Out: w) = uniform_random() {shape: [4, 4]}
    (Out: m) = cast(X: w) {in_dtype: f32, out_dtype: f32}
    (Out: w, m) = load() {file_path: "p", keys: ["a", "b"], stored_dtypes: [f32, f32], pinned: true}
  }
  main {
    param w : f16[4, 4] persistable
    var m : f32[4, 4] persistable
    var x : f32[-1, 4] need_check_feed
    var h : f16[-1, 4]
    var c : bool[1]
    var g : f16[4, 4]
    (Out: h) = cast(X: x) {in_dtype: f32, out_dtype: f16}
    (Out: c) = less_than(X: h; Y: @EMPTY@, "")
    while(X: h; Condition: c) {sub_block: block(1)}
    conditional_block(Cond: c; Input: h) {sub_block: block(2)}
    while_grad(X: h) {sub_block: block(3)}
    (Out: g) = fill_constant()
    (ParamOut: w; MasterParamOut: m) = sgd(Param: w; Grad: g; MasterParam: m) {multi_precision: true}
    block 1 in 0 {
      var t : f16[4]
      (Out: t) = relu(X: h)
      (Out: h) = tanh(X: t)
    }
    block 2 in 0 {
    }
    block 3 in 0 forward 1 {
      var t@GRAD : f16[4]
      (X@GRAD: t@GRAD) = tanh_grad(Out: t)
    }
  }
}
"#;

#[test]
fn a_sound_program_has_no_findings() {
    check(SOUND);
}

#[test]
fn v2_parents_form_a_tree() {
    let found = |blocks: &str| lines(&verify(&program(&format!("main {{\nop()\n{blocks}\n}}")), Checks::BLOCK_TREE));
    assert_eq!(
        found("block 1 in 0 {\n}\nblock 2 in 1 {\n}\nblock 3 in 4 {\n}\nblock 4 in 0 {\n}"),
        Vec::<String>::new()
    );
    insta::assert_snapshot!(found("block 1 in 2 {\n}\nblock 2 in 1 {\n}\nblock 3 in 1 {\n}").join("\n"),
        @"error[block-tree]: following parents from block 1 runs in a circle @ main: blocks[1]");
    insta::assert_snapshot!(found("block 1 in 1 {\n}\nblock 2 in 7 {\n}\nblock 3 in -1 {\n}\nblock 4 in 0 forward 9 {\n}").join("\n"), @r"
    error[block-tree]: following parents from block 1 runs in a circle @ main: blocks[1]
    error[block-tree]: block 2 names block 7 as its parent, which does not exist @ main: blocks[2]
    error[block-tree]: block 3 names block -1 as its parent, which does not exist @ main: blocks[3]
    error[block-tree]: block 4 names block 9 as its forward block, which does not exist @ main: blocks[4]
    ");
    let p = program("main in 0 {\nop()\n}");
    assert_eq!(
        lines(&verify(&p, Checks::BLOCK_TREE)),
        ["error[block-tree]: the global block names block 0 as its parent @ main: blocks[0]"]
    );
    let deep: String = (1..=MAX_NESTING + 5).map(|i| format!("block {i} in {} {{\n}}\n", i - 1)).collect();
    assert_eq!(
        found(&deep),
        [format!(
            "error[block-tree]: block {MAX_NESTING} is nested more than {MAX_NESTING} deep @ main: blocks[{MAX_NESTING}]"
        )]
    );
}

#[test]
fn v3_sub_blocks_exist_and_are_children() {
    check(
        r#"main {
  var c : bool[1] persistable
  conditional_block(Cond: c) {sub_block: block(1)}
  conditional_block(Cond: c) {sub_block: block(7)} //~ error[dangling-block]: sub-block 7, which does not exist
  conditional_block(Cond: c) {sub_block: block(-1)} //~ error[dangling-block]: sub-block -1, which
  conditional_block(Cond: c) {sub_block: block(0)} //~ error[dangling-block]: the global block
  conditional_block(Cond: c) {sub_block: block(2)} //~ error[dangling-block]: whose parent is block 1, not block 0
  other() {optimize_blocks: blocks[1, 8]} //~ error[dangling-block]: sub-block 8
  block 1 in 0 {
    conditional_block(Cond: c) {sub_block: block(2)}
    conditional_block(Cond: c) {sub_block: block(1)} //~ error[dangling-block]: whose parent is block 0, not block 1
  }
  block 2 in 1 {
  }
}"#,
    );
}

#[test]
fn v4_names_are_declared_once() {
    check(
        r#"main {
  var a : f32[]
  var b : f32[]
  var a : f16[] //~ error[duplicate-declaration]: `a`
  (Out: b) = fill_constant()
  block 1 in 0 {
    var a : f32[]
    var "odd\nname" : f32[]
    var "odd\nname" : f32[] //~ error[duplicate-declaration]: `odd\nname`
  }
}"#,
    );
    let found = verify(&program("main {\nvar a : f32[]\nvar b : f32[]\nvar a : f32[]\nop()\n}"), Checks::DUPLICATES);
    let label = &found.iter().next().unwrap().labels[0];
    assert_eq!(format!("{}: {}", label.message, label.place), "declared here first: main: blocks[0].vars[0]: a");
}

#[test]
fn v5_names_are_declared_where_they_are_visible() {
    check(
        r#"main {
  var a : f32[] persistable
  (Out: b) = relu(X: c) //~ error[undeclared-variable]: reads `c`, //~ error[undeclared-variable]: writes `b`,
  (Out: b) = relu(X: c)
  (Out: a) = op(X: d, e; Y: f, g, a) //~ error[undeclared-variable]: reads `d`, `e`, `f` and 1 more
  (Out: @EMPTY@, "") = op(X: @EMPTY@, "")
  op() {v: var(h), w: vars[a, @EMPTY@]} //~ error[undeclared-variable]: reads `h`
  (X@GRAD: i) = relu_grad(X: a) //~ warning[undeclared-variable]: writes `i`
  (Out: a) = op(X: inner) //~ error[undeclared-variable]: reads `inner`
  block 1 in 0 {
    var t : f32[] persistable
    (Out: t) = op(X: a)
  }
  block 2 in 1 {
    (Out: a) = op(X: t)
  }
  block 3 in 0 {
    (Out: a) = op(X: t) //~ error[undeclared-variable]: reads `t`
  }
  block 4 in 0 forward 1 {
    (Out: a) = op(X: t)
    (Out: a) = op(X: nowhere) //~ warning[undeclared-variable]: reads `nowhere`
  }
  block 5 in 0 forward -1 {
    (Out: a) = op(X: nowhere2) //~ error[undeclared-variable]: reads `nowhere2`
  }
}"#,
    );
}

#[test]
fn v6_cells_have_one_shape() {
    check(
        r#"program {
  startup {
    param a : f32[2, 3] persistable
    param b : f32[2, 3] persistable
    param c : f32[2, 3] persistable
    param d : f32[2, 3] persistable
    var e : f32[2]
    var f : raw persistable
    var g : f32[2] persistable
    (Out: a) = fill_constant()
  }
  main {
    param a : f16[2, 3] persistable
    param b : f16[3, 2] persistable //~ warning[cell-mismatch]: main declares `b` as [3, 2], startup as [2, 3]
    param c : f16[-1, 3] persistable
    param d : f16[2, 3, 1] persistable //~ warning[cell-mismatch]: [2, 3, 1]
    var e : f32[3]
    var f : raw persistable
    var g : raw persistable //~ warning[cell-mismatch]: different kinds
  }
}"#,
    );
}

#[test]
fn v7_slots_have_their_arguments() {
    check(
        r#"main {
  param a : f32[] persistable
  (Out: a) = cast(X: a, a) {out_dtype: f32} //~ error[slot-arity]: has 2 arguments in input slot `X`, which takes exactly one
  (Out: a) = cast(X:) {out_dtype: f32} //~ error[slot-arity]: has 0 arguments in input slot `X`
  cast(X: a) {out_dtype: f32} //~ error[slot-arity]: has 0 arguments in output slot `Out`
  (Out: a) = cast(X: a; X: a) {out_dtype: f32} //~ error[slot-arity]: has input slot `X` twice
  (Out: a; Out: a) = mystery() //~ error[slot-arity]: has output slot `Out` twice
  (Out: a) = cast(X: a; Extra: a) {out_dtype: f32}
  (ParamOut: a) = sgd(Param: a) //~ error[slot-arity]: has 0 arguments in input slot `Grad`, which takes at least one
  (X: a) = mystery(X: a)
}"#,
    );
}

#[test]
fn v8_attributes_have_their_kind() {
    check(
        r#"main {
  param a : f32[] persistable
  (Out: a) = cast(X: a) //~ error[attr-type]: has no attribute `out_dtype`, which it needs
  (Out: a) = cast(X: a) {out_dtype: 5L}
  (Out: a) = cast(X: a) {out_dtype: "f32"} //~ error[attr-type]: has a string in attribute `out_dtype`, where an integer belongs
  (Out: a) = load() {file_path: 3} //~ error[attr-type]: has an integer in attribute `file_path`, where a string belongs
  (Out: a) = load() {file_path: "p", keys: [], pinned: 1} //~ error[attr-type]: where a list of strings //~ error[attr-type]: where a boolean
  (Out: a) = load() {file_path: unknown(77, x"00")} //~ error[attr-type]: a value of an unknown kind
  while() {sub_block: 1} //~ error[attr-type]: where a sub-block belongs
  (Out: a) = load() {file_path: "p", file_path: "q"} //~ error[attr-type]: has attribute `file_path` twice
  mystery() {a: 1, a: 2.0} //~ error[attr-type]: has attribute `a` twice
  mystery() {a: 1, a: 1}
}"#,
    );
}

#[test]
fn v9_dimensions_are_minus_one_or_more() {
    check(
        r#"main {
  param a : f32[-2, 3] persistable //~ error[bad-shape]: `a` has the dimension -2
  var b : f32[4, -32] //~ warning[bad-shape]: `b` has the dimension -32
  var c : f32[-1, 0]
  (Out: b) = fill_constant()
}"#,
    );
}

#[test]
fn v10_casts_say_what_is_declared() {
    check(
        r#"main {
  param a : f32[] persistable
  param b : f16[] persistable
  (Out: b) = cast(X: a) {in_dtype: f32, out_dtype: f16}
  (Out: b) = cast(X: a) {in_dtype: -1, out_dtype: f16}
  (Out: b) = cast(X: a) {in_dtype: f16, out_dtype: bf16} //~ warning[cast-attribute]: `in_dtype` says f16, but `a` is declared f32 //~ warning[cast-attribute]: `out_dtype` says bf16
  (Out: b) = cast(X: a) {out_dtype: 77} //~ warning[cast-attribute]: `out_dtype` says dtype(77)
}"#,
    );
}

#[test]
fn v11_temporaries_are_written_before_they_are_read() {
    check(
        r#"main {
  var fed : f32[] need_check_feed
  var c : bool[1] persistable
  var a : f32[]
  var b : f32[]
  var d : f32[]
  var e : f32[]
  var late : f32[]
  var scopes : step_scopes
  var array : lod_tensor_array f32[]
  (Out: a) = relu(X: fed)
  (Out: b) = relu(X: late) //~ warning[read-before-write]: reads `late`
  (Out: late) = relu(X: late)
  (Out: a) = mystery(X: scopes, array)
  (Out: d) = relu(X: d) //~ warning[read-before-write]: reads `d`
  conditional_block(Cond: c; Input: e) {sub_block: block(1)}
  (Out: a) = relu(X: e)
  while(Condition: c; X: e) {sub_block: block(2)}
  conditional_block_grad(Cond: c) {sub_block: block(4)}
  block 1 in 0 {
    var t : f32[]
    (Out: t) = relu(X: a)
    (Out: e) = relu(X: t)
  }
  block 2 in 0 {
    var carried : f32[]
    var never : f32[]
    (Out: a) = relu(X: carried)
    (Out: a) = relu(X: never) //~ warning[read-before-write]: reads `never`
    conditional_block(Cond: c) {sub_block: block(3)}
  }
  block 3 in 2 {
    (Out: carried) = relu(X: a)
  }
  block 4 in 0 forward 1 {
    var t@GRAD : f32[]
    (X@GRAD: t@GRAD) = relu_grad(Out@GRAD: t@GRAD)
  }
}"#,
    );
    // An op of an unknown kind may write whatever it names, also in its sub-block.
    check(
        r#"main {
  var a : f32[]
  var b : f32[]
  mystery(X: a) {sub_block: block(1)}
  (Out: b) = relu(X: a)
  block 1 in 0 {
    var t : f32[]
    (Out: b) = relu(X: t)
  }
}"#,
    );
}

#[test]
fn v12_an_empty_program_is_said_to_be_empty() {
    for text in ["", "startup {\n}\nmain {\n}", "main blockless {\n version 1\n}"] {
        assert_eq!(
            lines(&verify(&program(text), Checks::ALL)),
            ["warning[empty-program]: neither startup nor main has an op @ "]
        );
    }
}

#[test]
fn only_what_is_asked_for_is_checked() {
    let p = program("main {\nvar a : f32[-5]\n(Out: a) = cast(X: b)\n}");
    let codes = |checks| verify(&p, checks).iter().map(|d| d.code).collect::<Vec<_>>();
    assert_eq!(codes(Checks::NONE), []);
    assert_eq!(codes(Checks::SHAPES), [Code::BadShape]);
    assert_eq!(codes(Checks::DECLARED | Checks::ATTRS), [Code::UndeclaredVariable, Code::AttrType]);
    assert_eq!(codes(Checks::STRUCTURE.without(Checks::SHAPES)), [Code::UndeclaredVariable, Code::AttrType]);
    assert!(Checks::ALL.has(Checks::STRUCTURE) && !Checks::STRUCTURE.has(Checks::CASTS));
}

#[test]
fn the_op_table_is_the_callers() {
    let p = program("main {\nparam a : f32[] persistable\n(Out: a) = cast(X: a, a)\n}");
    let mut ops = Ops::standard().clone();
    ops.register("cast", Schema::plain(Effect::Opaque));
    assert!(verify(&p, Checks::ALL).has_errors());
    assert!(verify_with(&p, &ops, Checks::ALL).is_empty());
}

#[test]
fn every_verifier_code_explains_itself() {
    for &code in Code::ALL {
        assert!(code.explanation().len() > 80, "{code}");
        assert_eq!(Code::parse(code.as_str()), Some(code));
    }
}

#[test]
fn declarations_are_found_from_inside() {
    let mut p = program(SOUND);
    let index = DeclIndex::new(&p);
    let name = |text| p.names().lookup(text).unwrap();
    let [main, body, _, gradient] = [0, 1, 2, 3].map(|i| p.block_at(Section::Main, i).unwrap());
    let find = |block, text| index.find(block, name(text)).map(|v| p.block(p.var(v).block).index);
    assert_eq!(find(main, "h"), Some(0));
    assert_eq!(find(main, "t"), None);
    assert_eq!(find(body, "t"), Some(1));
    assert_eq!(find(body, "h"), Some(0));
    assert_eq!(find(gradient, "t"), Some(1));
    assert_eq!(index.declared_in(gradient, name("t")), None);
    assert!(index.declared_in(body, name("t")).is_some());
    let startup = index.global(Section::Startup, name("w")).unwrap();
    assert_eq!(p.block(p.var(startup).block).section, Section::Startup);
    assert_eq!(index.global(Section::Startup, name("h")), None);
    // A name or block made later is not known, which is no panic.
    let later = p.intern("later");
    let block = p.push_block(Section::Main, 0, None);
    assert_eq!((index.find(main, later), index.find(block, later)), (None, None));
}

#[test]
fn absurd_programs_take_linear_work() {
    // A chain of blocks far too deep, each using a name that none declares.
    let mut text = String::from("main {\n");
    for i in 1..5000 {
        text += &format!(
            "block {i} in {} {{\n(Out: y{i}) = relu(X: x)\nwhile() {{sub_block: block({})}}\n}}\n",
            i - 1,
            i + 1
        );
    }
    let found = verify(&program(&(text + "}")), Checks::ALL);
    assert!(found.iter().any(|d| d.code == Code::BlockTree));
    // One sub-block that every op runs.
    let mut text = String::from("main {\nvar c : bool[1] persistable\nvar a : f32[]\n");
    text += &"conditional_block(Cond: c) {sub_block: block(1)}\n".repeat(20_000);
    text += "block 1 in 0 {\n";
    text += &"(Out: a) = relu(X: a)\n".repeat(20_000);
    let found = verify(&program(&(text + "}\n}")), Checks::ALL);
    assert_eq!(
        lines(&found),
        [
            "error[dangling-block]: names sub-block 1, which more than 16 ops run @ main: blocks[0].ops[16]: conditional_block(Cond: c)",
            "warning[read-before-write]: reads `a`, which nothing has written yet @ main: blocks[1].ops[0]: (Out: a) = relu(X: a)"
        ]
    );
    // More findings than are kept, about one op that is long.
    let args = (0..100_000).map(|i| format!("v{i}")).collect::<Vec<_>>().join(", ");
    let slots = (0..30_000).map(|_| "S:").collect::<Vec<_>>().join("; ");
    let found = verify(&program(&format!("main {{\nop(X: {args}; {slots})\n}}")), Checks::ALL);
    assert_eq!(found.len(), 1 + 29_999);
    assert!(found.iter().all(|d| d.place.to_string().len() < 1000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_program_is_verified_without_panic(p in r#gen::program()) {
        let found = verify(&p, Checks::ALL);
        // Programs that readers and the builder make have sound handles.
        prop_assert!(found.iter().all(|d| d.code != Code::BadHandle));
        let index = DeclIndex::new(&p);
        for b in p.section_blocks(Section::Main) {
            for (name, _) in p.names().iter() {
                if let Some(v) = index.declared_in(b, name) {
                    prop_assert_eq!(index.find(b, name), Some(v));
                    prop_assert_eq!(p.var(v).name.index(), name.index());
                }
            }
        }
        // Errors are what makes a program unusable; they are never of the codes that only warn.
        for d in &found {
            if d.severity == Severity::Error {
                prop_assert_eq!(d.code.severity(), Severity::Error);
            }
        }
    }
}
