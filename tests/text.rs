//! Does text hold everything a program holds, and does bad text give findings instead of panics?

mod common;
#[path = "common/snapshots.rs"]
mod snapshots;

use common::r#gen;
use mastercast::diag::{Code, Place};
use mastercast::ir::{AttrValue, DType, F32, Origin, ProgramBuilder, Section, VarFlag};
use mastercast::text::{parse, print, print_op, print_section, print_var};
use proptest::prelude::*;

/// Parses text that must be free of findings, and prints it.
fn reprint(text: &str) -> String {
    let (program, findings) = parse(text, "t");
    assert!(findings.is_empty(), "{}\n{text}", mastercast::diag::render_plain(&findings));
    print(&program)
}

/// Canonical text prints as it is.
fn check(body: &str) {
    let text = format!("program {{\n  main {{\n{body}\n  }}\n}}\n");
    assert_eq!(reprint(&text), text);
}

/// Findings of a text as `line:column-column message`.
fn findings(text: &str) -> Vec<String> {
    let (_, findings) = parse(text, "t");
    findings
        .iter()
        .map(|d| {
            assert_eq!(d.code, Code::SyntaxError);
            let Place::Text { range, file } = &d.place else { panic!("no place") };
            assert_eq!(&**file, "t");
            let before = &text[..range.start];
            let line = before.matches('\n').count() + 1;
            let column = before.len() - before.rfind('\n').map_or(0, |i| i + 1) + 1;
            format!("{line}:{column} {}", d.message)
        })
        .collect()
}

#[test]
fn the_sample_of_the_design_is_canonical() {
    let text = r#"program {
  startup {
    param linear_0.w_0 : f32[784, 10] persistable
    var linear_0.w_0_fp32_master_0 : f32[784, 10] persistable
    (Out: linear_0.w_0) = uniform_random() {min: -0.1f, max: 0.1f, shape: [784, 10]}
    (Out: linear_0.w_0_fp32_master_0) = cast(X: linear_0.w_0) {in_dtype: f32, out_dtype: f32}
    (Out: linear_0.w_0) = load() {file_path: "ckpt.safetensors"}
    (Out: linear_0.w_0) = amp_init(X: linear_0.w_0) {dtype: f16}
  }
  main {
  }
}
"#;
    assert_eq!(reprint(text), text);
}

#[test]
fn the_builder_and_plain_text_agree() {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Main);
    s.param("w", DType::F16, [2, 3]);
    s.persistable("m", DType::F32, [2, 3]);
    s.var("t", DType::Bool, []);
    s.op("save").arg("X", ["w", "m"]).attr("file_path", "a b").done();
    let built = b.finish();
    let text = print(&built);
    insta::assert_snapshot!(text, @r#"
    program {
      main {
        param w : f16[2, 3] persistable
        var m : f32[2, 3] persistable
        var t : bool[]
        save(X: w, m) {file_path: "a b"}
      }
    }
    "#);
    let (read, findings) = parse(&text, "t");
    assert!(findings.is_empty());
    assert_eq!(read.to_json(), built.to_json());
}

#[test]
fn all_declarations() {
    check("    param a : f32[] persistable\n    param b : bf16[-1, 3] ?persistable need_check_feed ?stop_gradient");
    check(
        r#"    var a : f32[2] !need_check_feed !is_parameter stop_gradient lod 3
    var b : f32[2] ?persistable ?stop_gradient ?lod
    var c : f32[2] persistable lod 0
    var "odd name" : dtype(77)[2] lod -1
    var d : step_scopes
    var e : step_scopes f64[1] lod 1
    var f : lod_tensor_array f16[-1]
    var g : selected_rows f32[10, 4] persistable
    var h : feed_minibatch persistable
    var i : kind(23)
    var j : raw unknown x"0aff" verbatim x""
    var k : reader verbatim x"00""#,
    );
}

#[test]
fn all_attributes() {
    check(
        r#"    op() {a: 5, b: 5L, c: 0.1f, d: 0.1, e: "s", f: true, g: -0.0f, h: 1e-45f, i: -0.0, j: 1e300}
    op() {a: [1, -2], b: longs[1, -2], c: [0.1f], d: [0.1], e: ["s", ""], f: [true, false]}
    op() {a: [], b: longs[], c: floats[], d: f64s[], e: strings[], f: bools[], g: blocks[], h: vars[], i: scalars[]}
    op() {a: block(1), b: blocks[1, -1], c: var(x), d: vars[x, "a b", ""]}
    op() {a: scalar(true), b: scalar(5L), c: scalar(nan64(0x7ff8000000000001)), d: scalar(complex(0.5, -inf64))}
    op() {a: scalars[false, -5L, 1.0, complex(1.0, inf64)], b: unknown(99, x"0800"), c: unknown(-1, x"")}
    op() {a: inf32, b: -inf32, c: inf64, d: -inf64, e: nan32(0x7fc00000), f: nan32(0xff800001), g: [-inf32, nan32(0x7fc00000)]}
    op() {dtype: f16, in_dtype: bf16, out_dtype: -1, other: 4, stored_dtypes: [f32, f16], dtype: 4L, dtype: [4]}
    op() {"an attr": 5 raw x"0801", dtype: f32 raw x""}"#,
    );
}

#[test]
fn all_ops_and_blocks() {
    check(
        r#"    version 2006002
    op_versions x"0a00"
    unknown x"01"
    verbatim x"02"
    block_unknown x"03"
    block_verbatim x"04"
    var a : f32[]
    op()
    (Out:) = op(X:; Y: a, a, ""; Z: @EMPTY@)
    (Out: a; Out: a) = "odd kind"(X: a) target
    (Out: a) = op(X: a) {k: 1} !target unknown x"05" verbatim x"06"
    var(X: a)
    version(X: a)
    block()
    unknown()
    (program: startup) = main(block: var)
    block 1 in 0 {
      var b : f32[]
      (Out: b) = op(X: a)
      version(X: a)
    }
    block 2 in 1 forward 1 {
      block_unknown x"07"
    }
    block 3 in -1 {
    }"#,
    );
    let text = "program {\n  startup blockless {\n    version 7\n  }\n  main in 3 forward -1 {\n  }\n}\n";
    assert_eq!(reprint(text), text);
    assert_eq!(reprint(""), "program {\n}\n");
}

#[test]
fn loose_text_is_read() {
    let loose = "\u{feff}// run: x\nmain{ var a:f32[ ]//~ error[x]: y\r\n\n  ( Out : a )=op (X:a,a;Y : ){b:[1L,2],c:ints[f32]} }";
    assert_eq!(
        reprint(loose),
        "program {\n  main {\n    var a : f32[]\n    (Out: a) = op(X: a, a; Y:) {b: longs[1, 2], c: [5]}\n  }\n}\n"
    );
    assert_eq!(
        reprint("program { startup { op() } \n main { } }"),
        "program {\n  startup {\n    op()\n  }\n  main {\n  }\n}\n"
    );
}

#[test]
fn values_have_their_exact_kind() {
    let (p, findings) = parse("main {\n op() {a: f16, b: 1.5f, c: [], d: longs[]}\n}", "t");
    assert!(findings.is_empty());
    let block = p.global_block(Section::Main).unwrap();
    let values: Vec<_> = p.ops(block).next().unwrap().attrs().iter().map(|a| a.value.clone()).collect();
    assert_eq!(
        values,
        [
            AttrValue::Int(4),
            AttrValue::Float(F32::from(1.5)),
            AttrValue::Ints(Box::default()),
            AttrValue::Longs(Box::default())
        ]
    );
}

#[test]
fn rows_know_their_bytes() {
    let text = "main {\n  var a : f32[] // c\n  (Out: a) = op() {b: 1}  \n}\n";
    let (p, _) = parse(text, "t");
    let block = p.global_block(Section::Main).unwrap();
    let of = |origin| match p.origin(origin) {
        Origin::Text { start, end } => &text[start as usize..end as usize],
        other => panic!("{other:?}"),
    };
    assert_eq!(of(p.var(p.block(block).vars[0]).origin), "var a : f32[]");
    let op = p.ops(block).next().unwrap();
    assert_eq!(of(op.origin()), "(Out: a) = op() {b: 1}");
    assert_eq!(print_op(&p, op.id), "(Out: a) = op() {b: 1}");
    assert_eq!(print_var(&p, p.block(block).vars[0]), "var a : f32[]");
    let section = print_section(&p, Section::Main);
    assert_eq!(section, "main {\n  var a : f32[]\n  (Out: a) = op() {b: 1}\n}\n");
    let (again, findings) = parse(&section, "t");
    assert!(findings.is_empty());
    assert_eq!(again.to_json(), p.to_json());
}

#[test]
fn one_mistake_gives_one_finding() {
    let text = r#"program {
  startup {
    var a f32[2]
    var b : f32[2
    var c : f99[2]
    var d : f32[2] shiny
    (Out: a) cast(X: a)
    (Out: a) = cast(X a)
    (Out: a) = cast(X: a) {in_dtype f32}
    (Out: a) = cast(X: a) {in_dtype: f32
    (Out: a) = cast(X: a) extra
    cast(X: é)
    cast(X: "open)
    op() {a: 3000000000}
    op() {a: [1, 2.5]}
    op() {a: [3000000000]}
    op() {a: nan32(0x0)}
    op() {a: x"0"}
    op() {a: maybe}
    op() !
    op_versions 5
    version 1.5
    good()
    blok 1 in 0 {
      inside()
      inner {
        deep() {a: {
        }
      }
      more()
    }
    block 2 in 0 {
      lost()
    }
    block 1 0 {
      lost()
    }
    also_good()
  }
  startup {
    lost()
  }
  elsewhere {
  }
  main blockless {
    lost()
    block 1 in 0 {
    }
  }
  }
}
"#;
    let _snapshots = snapshots::bind();
    insta::assert_snapshot!(findings(text).join("\n"));
    let (p, _) = parse(text, "t");
    insta::assert_snapshot!(print(&p), @r#"
    program {
      startup {
        good()
        also_good()
      }
    }
    "#);
}

#[test]
fn odd_ends() {
    assert_eq!(findings("}"), ["1:1 this `}` closes nothing"]);
    assert_eq!(findings("program {\n main {\n"), ["3:1 a `}` is missing at the end of the text"]);
    assert_eq!(findings("program {\n} }"), ["2:3 this `}` closes nothing"]);
    assert_eq!(findings("main { op(").len(), 2);
    assert_eq!(findings("\0"), ["1:1 this character has no meaning here; odd names are written in quotes"]);
    assert_eq!(findings("main {\n} x"), ["2:3 expected the end of the line, found `x`"]);
    assert_eq!(
        findings("blok {\n a {\n }\n }\n}"),
        ["1:1 expected `startup {` or `main {`, found `blok`", "5:1 this `}` closes nothing"]
    );
}

#[test]
fn many_slots_are_refused_and_many_mistakes_are_counted() {
    let slots = "a:;".repeat(65_535) + "a:";
    assert_eq!(findings(&format!("main {{\nop({slots})\n}}")).len(), 1);
    let slots = "a:;".repeat(65_534) + "a:";
    assert_eq!(findings(&format!("main {{\nop({slots})\n}}")), Vec::<String>::new());
    let (_, found) = parse(&"?\n".repeat(20_000), "t");
    assert_eq!((found.len(), found.iter().count()), (20_000, 10_000));
}

#[test]
fn flags_are_three_valued() {
    let (p, _) = parse("main {\n var a : f32[] ?persistable\n param b : f32[]\n}", "t");
    let block = p.global_block(Section::Main).unwrap();
    let flags: Vec<_> = p.block(block).vars.iter().map(|&v| p.var(v).flags).collect();
    assert_eq!(flags[0].get(VarFlag::Persistable), None);
    assert_eq!(flags[1].get(VarFlag::Persistable), Some(false));
    assert_eq!(flags[1].get(VarFlag::IsParameter), Some(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn text_holds_the_whole_program(p in r#gen::program()) {
        let text = print(&p);
        let (read, findings) = parse(&text, "t");
        prop_assert!(findings.is_empty(), "{}\n{text}", mastercast::diag::render_plain(&findings));
        prop_assert_eq!(read.to_json(), p.to_json());
        prop_assert_eq!(print(&read), text);
    }

    #[test]
    fn changed_text_never_panics_and_reads_to_something_printable(
        p in r#gen::program(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4u8), 1..6),
    ) {
        const BITS: [&str; 12] = ["{", "}", "(", "\"", "x\"", "\n", ":", "[", "\\", "é", "-", "main {\n"];
        let mut text: Vec<char> = print(&p).chars().collect();
        for (at, len, how) in cuts {
            if text.is_empty() { break; }
            let (from, n) = (at.index(text.len()), len.index(8));
            let to = (from + n).min(text.len());
            match how {
                0 => { text.drain(from..to); }
                1 => { let again: Vec<_> = text[from..to].to_vec(); text.splice(from..from, again); }
                2 => text.truncate(from),
                _ => { text.splice(from..from, BITS[len.index(BITS.len())].chars()); }
            }
        }
        let text: String = text.into_iter().collect();
        let (read, _) = parse(&text, "t");
        let printed = print(&read);
        prop_assert_eq!(reprint(&printed), printed);
    }

    #[test]
    fn any_text_at_all_is_read(text in "(program|main|startup|var|param|block|in|\\{|\\}|\\(|\\)|[a-z:;,= \n\"\\[\\]0-9.!?x-]|\\PC){0,80}") {
        let (read, _) = parse(&text, "t");
        let printed = print(&read);
        prop_assert_eq!(reprint(&printed), printed);
    }
}
