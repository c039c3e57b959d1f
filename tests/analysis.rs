//! Do effects, def-use and the dependence graph say what the ops of a small program do?

use mastercast::analysis::defuse::{DefSite, DefUse};
use mastercast::analysis::depgraph::{Dep, DepGraph};
use mastercast::analysis::effects::{Access, Effects};
use mastercast::entity::EntityId;
use mastercast::ir::{OpId, Program, Section};
use mastercast::ops::{Effect, Ops};
use mastercast::text;
use std::collections::BTreeSet;

/// A program whose main has these blocks; the first is the global one.
fn main_of(blocks: &[&str]) -> Program {
    let mut text = String::from("program {\n  main {\n");
    for (i, block) in blocks.iter().enumerate() {
        let (open, close) = if i == 0 { (String::new(), "") } else { (format!("block {i} in 0 {{\n"), "}\n") };
        text.push_str(&open);
        text.push_str(block);
        text.push('\n');
        text.push_str(close);
    }
    text.push_str("  }\n}\n");
    let (program, found) = text::parse(&text, "test");
    assert!(!found.has_errors(), "{found:?}\n{text}");
    program
}

fn op(program: &Program, block: i32, index: usize) -> OpId {
    program.block(program.block_at(Section::Main, block).unwrap()).ops[index]
}

/// `block.index` of an op.
fn place(program: &Program, id: OpId) -> String {
    let block = program.block(program.op(id).block());
    format!("{}.{}", block.index, block.ops.iter().position(|&o| o == id).unwrap())
}

/// Each read as `op name<-site`.
fn reads(program: &Program, defuse: &DefUse, id: OpId) -> Vec<String> {
    let of = |d| {
        let def = defuse.def(d);
        let site = match def.site {
            DefSite::Entry => "entry".to_owned(),
            DefSite::Op(o) => place(program, o),
            DefSite::LoopHead(o) => format!("head {}", place(program, o)),
        };
        format!("{}<-{site}", program.name(def.name))
    };
    defuse.reads(id).map(of).collect()
}

fn with_defuse(program: &Program, f: impl FnOnce(&Effects<'_>, &DefUse)) {
    let kinds = Ops::standard().resolve(program);
    let effects = Effects::new(program, &kinds);
    let defuse = DefUse::new(program, &effects, Section::Main);
    f(&effects, &defuse);
}

const STRAIGHT: &str = "
    (Out: a) = relu(X: x)
    (Out: b) = elementwise_add(X: a; Y: a)
    (Out: a) = relu(X: b)
    (Out: c) = elementwise_add(X: a; Y: x)";

#[test]
fn a_read_sees_the_last_write_before_it() {
    let p = main_of(&[STRAIGHT]);
    with_defuse(&p, |_, defuse| {
        let all: Vec<_> = (0..4).map(|i| reads(&p, defuse, op(&p, 0, i))).collect();
        assert_eq!(all[0], ["x<-entry"]);
        assert_eq!(all[1], ["a<-0.0", "a<-0.0"]);
        assert_eq!(all[2], ["b<-0.1"]);
        assert_eq!(all[3], ["a<-0.2", "x<-entry"]);
        // Both ways round, and nothing else.
        for (id, _) in defuse.defs() {
            let users: Vec<_> = defuse.users(id).to_vec();
            for &user in &users {
                assert!(defuse.reads(user).any(|d| d == id));
            }
        }
        let uses: usize = defuse.defs().map(|(id, _)| defuse.users(id).len()).sum();
        assert_eq!(uses, 6);
        assert_eq!(defuse.reaching(op(&p, 0, 3), p.names().lookup("a").unwrap()), defuse.reads(op(&p, 0, 3)).next());
    });
}

#[test]
fn an_op_that_updates_in_place_reads_the_old_value() {
    let p = main_of(&["(Out: a) = relu(X: a)\n(Out: a) = relu(X: a)"]);
    with_defuse(&p, |_, defuse| {
        assert_eq!(reads(&p, defuse, op(&p, 0, 0)), ["a<-entry"]);
        assert_eq!(reads(&p, defuse, op(&p, 0, 1)), ["a<-0.0"]);
    });
}

#[test]
fn a_branch_is_one_definition_of_what_it_may_write() {
    let p = main_of(&[
        "(Out: a) = relu(X: x)
         (Out: a; Scope: s) = conditional_block(Cond: c; Input: x) {sub_block: block(1)}
         (Out: b) = relu(X: a)",
        "(Out: a) = relu(X: a)
         (Out: a) = relu(X: a)",
    ]);
    with_defuse(&p, |_, defuse| {
        assert_eq!(reads(&p, defuse, op(&p, 1, 0)), ["a<-0.0"], "the branch starts from what was there");
        assert_eq!(reads(&p, defuse, op(&p, 1, 1)), ["a<-1.0"]);
        assert_eq!(reads(&p, defuse, op(&p, 0, 2)), ["a<-0.1"], "after it: either side");
        let at_op = reads(&p, defuse, op(&p, 0, 1));
        assert!(at_op.contains(&"a<-0.0".to_owned()) && at_op.contains(&"c<-entry".to_owned()), "{at_op:?}");
    });
}

#[test]
fn a_loop_body_reads_what_either_side_left() {
    let p = main_of(&[
        "(Out: i) = relu(X: x)
         (Out: i; StepScopes: s) = while(Condition: c; X: i, x) {sub_block: block(1)}
         (Out: b) = relu(X: i)",
        "(Out: j) = elementwise_add(X: i; Y: x)
         (Out: i) = relu(X: j)
         (Out: k) = relu(X: i)",
    ]);
    with_defuse(&p, |_, defuse| {
        assert_eq!(reads(&p, defuse, op(&p, 1, 0)), ["i<-head 0.1", "x<-entry"], "x is not written in the loop");
        assert_eq!(reads(&p, defuse, op(&p, 1, 2)), ["i<-1.1"]);
        assert_eq!(reads(&p, defuse, op(&p, 0, 2)), ["i<-0.1"]);
    });
}

#[test]
fn what_a_block_declares_is_its_own() {
    let p = main_of(&[
        "(Out: a) = relu(X: x)
         (Scope: s) = conditional_block(Cond: c) {sub_block: block(1)}
         (Out: b) = relu(X: a)",
        "var a : f32[1]
         (Out: d) = relu(X: a)
         (Out: a) = relu(X: x)
         (Out: e) = relu(X: a)",
    ]);
    with_defuse(&p, |effects, defuse| {
        assert_eq!(reads(&p, defuse, op(&p, 1, 0)), ["a<-entry"], "another cell than the parent's");
        assert_eq!(reads(&p, defuse, op(&p, 1, 2)), ["a<-1.1"]);
        assert_eq!(reads(&p, defuse, op(&p, 0, 2)), ["a<-0.0"]);
        let inside = effects.block(p.block_at(Section::Main, 1).unwrap());
        let names = |list: &[mastercast::names::Name]| list.iter().map(|&n| p.name(n)).collect::<Vec<_>>().join(" ");
        assert_eq!((names(&inside.reads).as_str(), names(&inside.writes).as_str()), ("x", "d e"));
        assert!(!inside.unknown);
    });
}

#[test]
fn a_known_op_that_runs_a_block_is_unknown() {
    let p = main_of(&["(Out: a) = relu(X: x) {sub_block: block(1)}\n(Out: b) = relu(X: a)", "(Out: z) = relu(X: y)"]);
    with_defuse(&p, |effects, _| assert_eq!(effects.effect(p.op(op(&p, 0, 0))), Effect::Unknown));
}

#[test]
fn an_unknown_op_may_read_and_write_all_it_names() {
    let p = main_of(&[
        "(Out: a) = no_such_op(X: x) {sub_block: block(1)}
         (Out: b) = elementwise_add(X: x; Y: y)",
        "(Out: z) = relu(X: y)",
    ]);
    with_defuse(&p, |effects, defuse| {
        let mut touched = BTreeSet::new();
        effects.each(p.op(op(&p, 0, 0)), |n, access| {
            touched.insert((p.name(n), access == Access::Read));
            assert_ne!(access, Access::Write, "nothing is sure of an unknown op");
        });
        let both = |n| [(n, false), (n, true)];
        let mut wanted: BTreeSet<_> = ["a", "x", "y"].into_iter().flat_map(both).collect();
        wanted.insert(("z", false));
        assert_eq!(touched, wanted);
        assert_eq!(reads(&p, defuse, op(&p, 0, 1)), ["x<-0.0", "y<-0.0"]);
    });
}

#[test]
fn a_block_inside_itself_ends_the_walk() {
    let p = main_of(&[
        "(Scope: s) = conditional_block(Cond: c) {sub_block: block(1)}",
        "(Out: a) = relu(X: x)
         (Scope: s) = conditional_block(Cond: c) {sub_block: block(1)}",
    ]);
    with_defuse(&p, |effects, defuse| {
        assert!(effects.block(p.block_at(Section::Main, 1).unwrap()).unknown);
        assert_eq!(reads(&p, defuse, op(&p, 1, 0)), ["x<-entry"]);
    });
}

// ---- the dependence graph

/// Edges of main's global block, `earlier>later` with the reason.
fn edges(p: &Program) -> BTreeSet<String> {
    let kinds = Ops::standard().resolve(p);
    let graph = DepGraph::new(p, &Effects::new(p, &kinds), p.global_block(Section::Main).unwrap());
    let index = |n: petgraph::graph::NodeIndex| n.index();
    let text = |e| {
        let (a, b) = graph.graph.edge_endpoints(e).unwrap();
        let why = match graph.graph[e] {
            Dep::Raw(n) => format!("raw {}", p.name(n)),
            Dep::War(n) => format!("war {}", p.name(n)),
            Dep::Waw(n) => format!("waw {}", p.name(n)),
            Dep::File => "file".to_owned(),
        };
        format!("{}>{} {why}", index(a), index(b))
    };
    graph.graph.edge_indices().map(text).collect()
}

fn set(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[test]
fn edges_are_the_hazards_of_cells() {
    assert_eq!(edges(&main_of(&[STRAIGHT])), set(&["0>1 raw a", "1>2 raw b", "1>2 war a", "0>2 waw a", "2>3 raw a"]));
    assert_eq!(edges(&main_of(&["(Out: a) = relu(X: x)\n(Out: b) = relu(X: x)"])), set(&[]), "two readers are free");
}

#[test]
fn loads_and_saves_of_one_file_keep_their_order() {
    let p = main_of(&[r#"
        (Out: a) = load() {file_path: "f"}
        (Out: b) = load() {file_path: "f"}
        save(X: x) {file_path: "f"}
        (Out: c) = load() {file_path: "g"}
        (Out: d) = load() {file_path: "f"}
        save(X: x) {file_path: "f"}"#]);
    assert_eq!(edges(&p), set(&["0>2 file", "1>2 file", "2>4 file", "2>5 file", "4>5 file"]));
}

#[test]
fn a_control_op_depends_by_what_its_block_touches() {
    let p = main_of(&[
        "(Out: a) = relu(X: x)
         (Scope: s) = conditional_block(Cond: c) {sub_block: block(1)}
         (Out: b) = relu(X: y)
         (Out: d) = relu(X: a)",
        "(Out: y) = relu(X: a)",
    ]);
    assert_eq!(edges(&p), set(&["0>1 raw a", "1>2 raw y", "0>3 raw a"]));
}

#[test]
fn an_unknown_op_is_a_barrier_for_what_it_names() {
    let p = main_of(&["
        (Out: a) = relu(X: x)
        (Out: b) = no_such_op(X: a)
        (Out: c) = relu(X: a)
        (Out: d) = relu(X: x)"]);
    assert_eq!(edges(&p), set(&["0>1 raw a", "0>1 waw a", "1>2 raw a"]));
}

#[test]
fn an_order_respects_the_graph_or_does_not() {
    let p = main_of(&[STRAIGHT]);
    let kinds = Ops::standard().resolve(&p);
    let graph = DepGraph::new(&p, &Effects::new(&p, &kinds), p.global_block(Section::Main).unwrap());
    let ops: Vec<OpId> = (0..4).map(|i| op(&p, 0, i)).collect();
    assert!(graph.respects(&ops));
    assert!(!graph.respects(&[ops[0], ops[2], ops[1], ops[3]]), "b is read before it is written");
    assert!(!graph.respects(&ops[..3]), "one is missing");
    assert!(!graph.respects(&[ops[0], ops[1], ops[2], ops[2]]), "one stands twice");
    let before: Vec<_> = graph.before(ops[2]).into_iter().map(|(o, _)| o.index()).collect();
    assert_eq!(before, [ops[0], ops[1], ops[1]].map(|o| o.index()));
    assert_eq!(graph.after(ops[2]).into_iter().map(|(o, _)| o).collect::<Vec<_>>(), [ops[3]]);
    let dot = graph.dot(&p);
    assert!(dot.starts_with("digraph {") && dot.contains("3: elementwise_add"), "{dot}");
}

#[test]
fn the_graph_is_linear_in_the_arguments() {
    // Every op reads one cell and writes another that all write: the worst case for a graph of all pairs.
    let n = 2000;
    let body: String = (0..n).map(|i| format!("(Out: a) = elementwise_add(X: x; Y: b{i})\n")).collect();
    let p = main_of(&[&body]);
    assert_eq!(edges(&p).len(), n - 1);
}
