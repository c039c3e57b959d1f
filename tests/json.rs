//! Does JSON hold everything a program holds, and is bad JSON refused with a reason?

mod common;
#[path = "common/snapshots.rs"]
mod snapshots;

use common::r#gen;
use mastercast::ir::{DType, JSON_VERSION, JsonError, Program, ProgramBuilder, Section};
use proptest::prelude::*;

fn sample() -> Program {
    let mut b = ProgramBuilder::new();
    let mut s = b.section(Section::Startup);
    s.param("w", DType::F32, [2]);
    s.op("fill_constant").out("Out", ["w"]).attr("value", f32::NAN).attr("dtype", DType::F32).done();
    b.finish()
}

#[test]
fn the_layout_is_stable() {
    let _snapshots = snapshots::bind();
    insta::assert_snapshot!(serde_json::to_string_pretty(&sample()).unwrap());
}

#[test]
fn a_program_is_a_serde_value() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Job {
        program: Program,
    }
    let text = serde_json::to_string(&Job { program: sample() }).unwrap();
    let job: Job = serde_json::from_str(&text).unwrap();
    assert_eq!(job.program.to_json(), sample().to_json());
}

#[test]
fn other_documents_are_refused() {
    let head = |version: u32| format!(r#"{{"format": "mastercast-program", "version": {version}, "future": 1}}"#);
    assert!(matches!(Program::from_json(&head(JSON_VERSION + 1)), Err(JsonError::Version(2))));
    assert!(matches!(Program::from_json(&head(JSON_VERSION)), Err(JsonError::Layout(_))));
    assert!(matches!(Program::from_json(r#"{"format": "x", "version": 1}"#), Err(JsonError::Format(f)) if f == "x"));
    for bad in ["", "[]", "{}", "null", "{\"format\"", &"[".repeat(100_000), "{\"format\": 1, \"version\": 1}"] {
        assert!(matches!(Program::from_json(bad), Err(JsonError::Layout(_))), "{bad:.40}");
    }
    let other = serde_json::json!({"format": "mastercast-program", "version": 9});
    assert!(serde_json::from_value::<Program>(other).unwrap_err().to_string().contains("version 9"));
    let other = serde_json::json!({"format": "other", "version": 1});
    assert!(serde_json::from_value::<Program>(other).unwrap_err().to_string().contains("other"));
}

/// The message for a document whose only op, or attribute value, is this.
fn refused(op: &str) -> String {
    let text = format!(
        r#"{{"format": "mastercast-program", "version": 1, "main": {{"blocks": [{{"parent": -1, "vars": [], "ops": [{op}]}}]}}}}"#
    );
    Program::from_json(&text).unwrap_err().to_string()
}

#[test]
fn bad_values_are_refused() {
    let value = |v: &str| {
        refused(&format!(r#"{{"kind": "a", "inputs": [], "outputs": [], "attrs": [{{"name": "b", "value": {v}}}]}}"#))
    };
    let _snapshots = snapshots::bind();
    insta::assert_snapshot!(
        [
            value(r#"{"float": 0.1}"#),
            value(r#"{"float": "nan"}"#),
            value(r#"{"float": "nan(0x00000000)"}"#),
            value(r#"{"double": "1"}"#),
            value(r#"{"int": 3000000000}"#),
            value(r#"{"unknown": {"tag": 1, "raw": "0"}}"#),
            refused(r#"{"kind": "a", "inputs": []}"#),
            refused(r#"{"kind": "a", "inputs": [], "outputs": [], "attr": []}"#),
            refused(&format!(
                r#"{{"kind": "a", "inputs": [{}["x", []]], "outputs": []}}"#,
                r#"["x", []],"#.repeat(65_535)
            )),
        ]
        .join("\n")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn json_holds_the_whole_program(p in r#gen::program()) {
        let text = serde_json::to_string(&p).unwrap();
        let read = Program::from_json(&text).unwrap();
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
        // Text and JSON are independent writers; neither may drop what the other keeps.
        prop_assert_eq!(mastercast::text::print(&read), mastercast::text::print(&p));
    }

    #[test]
    fn cut_and_changed_json_never_panics(p in r#gen::program(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = serde_json::to_string(&p).unwrap();
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = Program::from_json(text);
        }
        bytes.truncate(at);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            prop_assert!(Program::from_json(text).is_err());
        }
    }
}
