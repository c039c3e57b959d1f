//! Does the repository keep its own rules? Headers, sizes, fixtures of codes and passes, `unsafe`.

#[allow(dead_code, reason = "the tests of fixtures use all of it")]
mod fixture;

use mastercast::diag::Code;
use mastercast::passes::PASSES;
use std::path::{Path, PathBuf};

fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Rust files below some folders, with their text, sorted.
fn rust_files(folders: &[&str]) -> Vec<(String, String)> {
    let mut dirs: Vec<PathBuf> = folders.iter().map(|f| repo().join(f)).filter(|d| d.is_dir()).collect();
    let mut out = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(repo()).unwrap().to_str().unwrap().replace('\\', "/");
                out.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    out.sort();
    assert!(!out.is_empty());
    out
}

fn header(text: &str) -> String {
    text.lines().take_while(|l| l.starts_with("//!")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_file_begins_with_what_it_answers() {
    for (name, text) in rust_files(&["src", "tests", "examples", "benches"]) {
        let first = text.lines().next().unwrap_or("");
        assert!(first.starts_with("//! ") && first.len() > 14, "{name} begins with `{first}`");
    }
}

#[test]
fn a_long_file_says_why() {
    for (name, text) in rust_files(&["src", "tests", "examples", "benches"]) {
        let lines = text.lines().count();
        let says = header(&text).to_lowercase().contains("one file");
        assert!(lines <= 600 || says, "{name} has {lines} lines; split it, or say in its header why it is one file");
    }
}

#[test]
fn unsafe_code_is_in_two_files() {
    let word = concat!("unsafe", " ");
    for (name, text) in rust_files(&["src"]) {
        let code = text.lines().map(str::trim).filter(|l| !l.starts_with("//"));
        let found = code.filter(|l| l.contains(word) && !l.contains('"')).count();
        let may = ["src/ckpt/map.rs", "src/convert.rs"].contains(&&*name);
        assert!(found == 0 || may, "{name} has unsafe code");
    }
}

#[test]
fn every_code_is_expected_somewhere() {
    let fixtures = fixture::all();
    let tests = rust_files(&["tests", "src"]);
    let missing: Vec<&str> = Code::ALL
        .iter()
        .filter(|code| {
            let head = format!("[{code}]");
            let in_fixture = fixtures.iter().any(|f| f.expects.iter().any(|e| e.head.ends_with(&head)));
            let variant = format!("Code::{code:?}");
            let in_test = tests.iter().filter(|(name, _)| name.starts_with("tests/") && name != "tests/tidy.rs");
            !in_fixture && !in_test.clone().any(|(_, text)| text.contains(&variant) || text.contains(&head))
        })
        .map(|c| c.as_str())
        .collect();
    assert!(missing.is_empty(), "no test expects {missing:?}");
}

/// The proof's own codes have fixtures, not only tests.
#[test]
fn every_code_of_the_proof_has_a_fixture() {
    use Code::*;
    let proof = [
        StaleMaster,
        StaleParameter,
        StaleCopy,
        LossyMaster,
        LowPrecisionSource,
        WrongDtype,
        Unproved,
        LoadConflict,
        LoadOverwritten,
        UnsetMaster,
        UnusedMaster,
        BadPair,
        PinnedLoad,
    ];
    let fixtures = fixture::all();
    for code in proof {
        let head = format!("[{code}]");
        let n = fixtures.iter().filter(|f| f.expects.iter().any(|e| e.head.ends_with(&head))).count();
        assert!(n > 0, "no fixture expects {code}");
    }
}

#[test]
fn every_pass_has_fixtures_and_a_header() {
    let fixtures = fixture::all();
    for pass in PASSES {
        let file = format!("src/passes/{}.rs", pass.name.replace('-', "_"));
        let text = std::fs::read_to_string(repo().join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let header = header(&text);
        for word in ["*Before*", "*After*", "*Preserves*", "*Cost*"] {
            assert!(header.contains(word), "{file}: the header does not say {word}");
        }
        // Every fixture with a pipeline is lowered by the harness.
        let runs = |p: &str| pass.name == "lower" || p.split([',', '{']).any(|w| w.trim() == pass.name);
        let n = fixtures.iter().filter(|f| f.pipeline.as_deref().is_some_and(runs)).count();
        assert!(n >= 3, "{} has {n} fixtures", pass.name);
    }
}

/// Snapshots mirror fixtures: none is left behind when a fixture is renamed.
#[test]
fn every_snapshot_has_its_fixture() {
    let mut dirs = vec![repo().join("snapshots/programs")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(repo().join("snapshots/programs")).unwrap().with_extension("mc");
            assert!(fixture::root().join(&name).exists(), "{} has no fixture", path.display());
        }
    }
}

#[test]
fn the_readme_names_every_pass() {
    let readme = std::fs::read_to_string(repo().join("README.md")).expect("README.md");
    for pass in PASSES {
        let row = readme.lines().any(|l| l.starts_with('|') && l.contains(&format!("`{}`", pass.name)));
        assert!(row, "README.md has no row for `{}`", pass.name);
    }
}
