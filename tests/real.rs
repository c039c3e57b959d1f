//! Do real files survive every form, and does the verifier find no fault with them?
//!
//! The files and the scripts that made them: `tests/data/proto`, `tests/data/scripts`.

#[path = "common/snapshots.rs"]
mod snapshots;

use mastercast::diag::{Severity, render_plain};
use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::{export, import};
use mastercast::text::{parse, print};
use mastercast::verify::{Checks, verify};
use std::path::PathBuf;

/// Every ProgramDesc of tests/data/proto: name, bytes, program.
fn files() -> Vec<(String, Vec<u8>, Program)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "pb" || e == "pdmodel"));
    paths.sort();
    assert!(paths.len() >= 10, "{paths:?}");
    paths
        .into_iter()
        .map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            let mut program = Program::new();
            import(&bytes, Section::Main, &mut program).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), bytes, program)
        })
        .collect()
}

#[test]
fn text_keeps_every_byte_of_a_file() {
    for (name, bytes, program) in files() {
        let text = print(&program);
        let (read, findings) = parse(&text, &name);
        assert!(findings.is_empty(), "{name}: {}", render_plain(&findings));
        assert!(print(&read) == text, "{name}: printed again, the text differs");
        assert!(export(&read, Section::Main) == bytes, "{name}: exported from text, the bytes differ");
    }
}

#[test]
fn json_keeps_every_byte_of_a_file() {
    for (name, bytes, program) in files() {
        let text = serde_json::to_string(&program).unwrap();
        let read = Program::from_json(&text).unwrap();
        assert!(serde_json::to_string(&read).unwrap() == text, "{name}: written again, the document differs");
        assert!(export(&read, Section::Main) == bytes, "{name}: exported from JSON, the bytes differ");
    }
}

#[test]
fn real_programs_have_no_errors() {
    for (name, _, program) in files() {
        // Made by hand to hold every kind of row, not to make sense.
        if matches!(name.as_str(), "kinds.pb" | "unknown.pb") {
            continue;
        }
        let found = verify(&program, Checks::ALL);
        assert_eq!(found.count(Severity::Error), 0, "{name}: {}", render_plain(&found));
        assert_eq!(verify(&program, Checks::STRUCTURE).count(Severity::Warning), 0, "{name}: {}", render_plain(&found));
    }
}

#[test]
fn a_real_program_reads_well() {
    let (_, _, program) = files().into_iter().find(|(name, ..)| name == "mlp.train.O2.fp16.raw.pb").unwrap();
    let text = print(&program);
    let lines: Vec<_> = text.lines().filter(|l| l.contains(" : ") && !l.contains('(')).collect();
    // Most declarations need no mark for what is absent.
    let marked = lines.iter().filter(|l| l.contains('?')).count();
    assert!(marked * 2 < lines.len(), "{marked} of {}", lines.len());
    let _snapshots = snapshots::bind();
    insta::assert_snapshot!(lines.iter().take(12).map(|l| l.trim()).collect::<Vec<_>>().join("\n"));
}
