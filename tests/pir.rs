//! Do Paddle 3.x programs come out as they went in, and mean what the executor of 3.3.1 makes of them?

use mastercast::ir::{Program, Section};
use mastercast::paddle::pir;
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
