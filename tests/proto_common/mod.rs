//! What do the tests of the ProgramDesc front end share? Files, one check, and a file with one message changed.

#![allow(dead_code)] // each test binary uses a part

pub mod tree;

use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::{Document, ProtoError, ProtoErrorKind as Bad, export, read_program};
use std::path::{Path, PathBuf};
use tree::{Kind, Message};

pub fn data() -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto");
    let mut found = Vec::new();
    programs(&dir, &mut found);
    assert!(found.len() >= 10, "the files of {} are missing", dir.display());
    found.into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect()
}

pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto").join(name)).unwrap()
}

pub fn programs(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            programs(&path, found);
        } else if path.extension().is_some_and(|e| e == "pb" || e == "pdmodel") {
            found.push(path);
        }
    }
    found.sort();
}

pub fn read(bytes: &[u8]) -> Result<Program, ProtoError> {
    read_program(None, Some(bytes))
}

/// Reads and writes by both ways; the bytes must be equal. Returns the program.
#[track_caller]
pub fn check(bytes: &[u8]) -> Result<Program, ProtoError> {
    if let Ok(doc) = Document::decode(bytes) {
        assert!(doc.encode() == bytes, "the document differs");
    }
    let program = read(bytes)?;
    assert!(export(&program, Section::Main) == bytes, "the export differs");
    Ok(program)
}

#[track_caller]
pub fn fails(bytes: &[u8], kind: Bad, path: &str) -> ProtoError {
    let error = match check(bytes) {
        Ok(_) => panic!("no error, expected {kind} at {path}"),
        Err(e) => e,
    };
    assert_eq!((error.kind(), error.path().as_str()), (kind, path), "{error}");
    assert!(error.offset() <= bytes.len());
    error
}

/// `fc_norm.pb` with one message of a kind replaced by what `f` makes of it.
pub fn with(kind: Kind, f: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut m = Message::parse(Kind::Program, &file("fc_norm.pb"));
    f(m.first(kind));
    m.encode()
}
