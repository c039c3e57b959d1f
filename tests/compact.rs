//! Is a compacted program the same program, and only smaller? On every fixture, rewritten, and on real files.

use mastercast::ir::{Program, Section};
use mastercast::paddle::proto;
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use mastercast::text;
use mastercast::verify::{Checks, verify};
use std::path::{Path, PathBuf};

fn files(dir: &str, ext: &str) -> Vec<PathBuf> {
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    let mut out = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => dirs.push(path),
                false if path.extension().is_some_and(|e| e == ext) => out.push(path),
                false => {}
            }
        }
    }
    out.sort();
    out
}

fn live(program: &Program) -> usize {
    program.block_ids().map(|b| program.block(b).ops.len()).sum()
}

/// Places and passes of all ops, in order.
fn origins(program: &Program) -> Vec<String> {
    let blocks = Section::ALL.into_iter().flat_map(|s| program.section_blocks(s));
    let of = |origin| {
        let (root, passes) = program.origin_root(origin);
        format!("{root:?} {:?}", passes.iter().map(|&p| program.sym(p)).collect::<Vec<_>>())
    };
    blocks.flat_map(|b| program.ops(b)).map(|op| of(op.origin())).collect()
}

fn check(program: &Program, what: &str) {
    let compact = program.compact();
    assert_eq!(text::print(&compact), text::print(program), "{what}");
    assert_eq!(compact.to_json(), program.to_json(), "{what}");
    assert_eq!(origins(&compact), origins(program), "{what}");
    assert_eq!(compact.op_rows(), live(program), "{what}");
    assert!(compact.pool_bytes() <= program.pool_bytes(), "{what}");
    assert!(verify(&compact, Checks::HANDLES).is_empty(), "{what}");
    for section in Section::ALL.into_iter().filter(|&s| program.global_block(s).is_some()) {
        assert!(proto::export(&compact, section) == proto::export(program, section), "{what}");
    }
    let again = compact.compact();
    assert_eq!(again.pool_bytes(), compact.pool_bytes(), "{what}");
}

#[test]
fn fixtures_and_what_passes_make_of_them() {
    let manager = PassManager::parse("master-casts,load-order,resync,lower").unwrap();
    let mut shrunk = 0;
    for path in files("tests/programs", "mc") {
        let what = path.display().to_string();
        let source = std::fs::read_to_string(&path).unwrap();
        let (mut program, found) = text::parse(&source, &what);
        if found.has_errors() || verify(&program, Checks::STRUCTURE).has_errors() {
            continue;
        }
        check(&program, &what);
        // A program without a lowered form stays as the pass before left it.
        let _ = manager.run(&mut program, &mut PassCx::default(), ManagerOptions::default(), |_, _| {});
        check(&program, &what);
        shrunk += usize::from(program.op_rows() > live(&program));
    }
    assert!(shrunk > 50, "only {shrunk} programs had rows to lose");
}

#[test]
fn real_files() {
    let all = files("tests/data", "pb");
    assert!(!all.is_empty());
    for path in all {
        let bytes = std::fs::read(&path).unwrap();
        let program = proto::read_program(None, Some(&bytes)).unwrap();
        check(&program, &path.display().to_string());
        assert!(proto::export(&program.compact(), Section::Main) == bytes, "{}", path.display());
    }
}
