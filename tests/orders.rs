//! Are the orders of SEMANTICS §3 proved wrong before the rewrite and right after it?

use mastercast::analysis::{Finding, coherence};
use mastercast::ir::{DType, Program, ProgramBuilder, Section, SectionBuilder};
use mastercast::passes::{ManagerOptions, PassCx, PassManager};

const W: &str = "w";
const M: &str = "w_fp32_master_0";

fn load(s: &mut SectionBuilder<'_>, cells: &[(&str, DType)]) {
    let stored: Vec<i32> = cells.iter().map(|c| c.1.code()).collect();
    s.op("load")
        .out("Out", cells.iter().map(|c| c.0))
        .attr("file_path", "ckpt.safetensors")
        .attr("stored_dtypes", mastercast::ir::AttrValue::Ints(stored.into()))
        .done();
}

fn amp_init(s: &mut SectionBuilder<'_>, low: DType, rewrite: bool) {
    let mut op = s.op("amp_init").arg("X", [W]);
    if rewrite {
        op = op.arg("MasterOf", [W]);
    }
    let mut op = op.out("Out", [W]);
    if rewrite {
        op = op.out("MasterParamOut", [M]);
    }
    op.attr("dtype", low).done();
}

fn order(which: char, low: DType) -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Startup);
    s.param(W, DType::F32, [4]);
    s.persistable(M, DType::F32, [4]);
    s.op("uniform_random").out("Out", [W]).attr("dtype", DType::F32).done();
    s.op("fill_constant").out("Out", [M]).attr("dtype", DType::F32).done();
    s.op("cast").arg("X", [W]).out("Out", [M]).attr("in_dtype", low).attr("out_dtype", DType::F32).done();
    let f32 = DType::F32;
    match which {
        'A' => (load(&mut s, &[(W, f32)]), amp_init(&mut s, low, false)),
        'B' => (amp_init(&mut s, low, false), load(&mut s, &[(W, f32)])),
        'C' => (amp_init(&mut s, low, false), load(&mut s, &[(W, low)])),
        'D' => (load(&mut s, &[(W, f32)]), amp_init(&mut s, low, true)),
        'E' => (amp_init(&mut s, low, true), load(&mut s, &[(W, low)])),
        'F' => (load(&mut s, &[(W, f32), (M, f32)]), amp_init(&mut s, low, false)),
        'G' => (load(&mut s, &[(W, f32), (M, f32)]), amp_init(&mut s, low, true)),
        'M' => (load(&mut s, &[(M, f32)]), amp_init(&mut s, low, false)),
        _ => unreachable!(),
    };
    let mut m = b.section(Section::Main);
    m.param(W, low, [4]);
    m.persistable(M, DType::F32, [4]);
    m.var("g", low, [4]);
    m.op("tanh").arg("X", [W]).out("Out", ["g"]).done();
    m.op("sgd")
        .arg("Param", [W])
        .arg("Grad", ["g"])
        .arg("MasterParam", [M])
        .out("ParamOut", [W])
        .out("MasterParamOut", [M])
        .attr("multi_precision", true)
        .done();
    b.finish()
}

fn rewrite(p: &mut Program) {
    let m = PassManager::parse("master-casts,load-order,resync").unwrap();
    let run = |p: &mut Program| m.run(p, &mut PassCx::default(), ManagerOptions::default(), |_, _| {}).unwrap();
    run(p);
    let again = run(p);
    assert!(!again.changed(), "a second run changes something: {again:?}");
}

#[test]
fn every_order_is_found_wrong_and_then_proved() {
    for low in [DType::F16, DType::BF16] {
        for which in "ABCDEFGM".chars() {
            let mut p = order(which, low);
            let before = coherence(&p);
            let findings = &before.verdicts[0].findings;
            let stale = findings.iter().any(|f| matches!(f, Finding::Stale { .. }));
            let lossy = findings.iter().any(|f| matches!(f, Finding::Lossy { .. }));
            let typed = !findings.iter().any(|f| matches!(f, Finding::WrongType { .. }));
            let unproved = findings.iter().any(|f| matches!(f, Finding::Unproved { .. }));
            // E starts lossy, and is stale besides.
            let wanted = match which {
                'A' | 'C' | 'M' => (true, false, true, false),
                'B' => (true, false, false, false),
                'D' | 'G' => (false, true, true, false),
                'E' => (true, true, true, false),
                'F' => (false, false, true, true),
                _ => unreachable!(),
            };
            assert_eq!((stale, lossy, typed, unproved), wanted, "{which} {low}: {findings:?}");
            rewrite(&mut p);
            let after = coherence(&p);
            assert!(after.proved(), "{which} {low}: {:?}\n{p:?}", after.verdicts);
        }
    }
}
