//! What does the PIR reader do with bad input? A typed error with a place, and nothing is left behind.

use mastercast::ir::{Entity, Program, Section};
use mastercast::paddle::pir::{self, PirError, PirErrorKind as Bad};

fn file(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pir").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn read(text: &str) -> Result<Program, PirError> {
    let mut program = Program::new();
    let result = pir::import(text, Section::Main, &mut program);
    if result.is_err() {
        assert_eq!(program.section(Section::Main), &Default::default());
        assert_eq!(program.extra(Entity::Section(Section::Main)), None);
    }
    result.map(|()| program)
}

fn bad(text: &str) -> PirError {
    match read(text) {
        Ok(_) => panic!("{} was read", &text[..text.len().min(300)]),
        Err(e) => e,
    }
}

/// A real program with one part replaced, which must be there.
fn with(from: &str, to: &str) -> PirError {
    let text = file("main.mlp.bf16.json");
    assert!(text.contains(from), "{from}");
    bad(&text.replacen(from, to, 1))
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let text = file("startup.mlp.bf16.json");
    for end in (0..text.len()).filter(|i| text.is_char_boundary(*i)) {
        assert!(matches!(bad(&text[..end]).kind, Bad::Json { .. }), "{end}");
    }
}

#[test]
fn a_file_with_any_byte_changed_is_read_or_refused() {
    let text = file("main.cond.fp32.json");
    let mut read_as = 0;
    for at in (0..text.len()).step_by(5) {
        for byte in [b'"', b'0', b'}', b'-'] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            if let Ok(program) = read(&changed) {
                assert_eq!(pir::export(&program, Section::Main).unwrap(), changed);
                read_as += 1;
            }
        }
    }
    assert!(read_as > 100);
}

#[test]
fn deep_text() {
    assert_eq!(bad(&"[".repeat(100_000)).kind, Bad::TooDeep);
    assert_eq!(bad(&"{\"a\":".repeat(100_000)).kind, Bad::TooDeep);
    let e = with("\"OA\":[", &format!("\"OA\":[{}{},", "[".repeat(100_000), "]".repeat(100_000)));
    assert_eq!(e.kind, Bad::TooDeep);
}

fn nested(depth: usize) -> String {
    let mut text = String::from("{\"#\":\"2.yield\",\"A\":[],\"I\":[],\"O\":[]}");
    for i in (0..depth).rev() {
        text = format!(
            "{{\"#\":\"1.if\",\"A\":[],\"I\":[],\"O\":[],\"regions\":[{{\"#\":\"region_{n}\",\"blocks\":\
             [{{\"#\":\"block_{n}\",\"args\":[],\"ops\":[{text}]}}]}}]}}",
            n = i + 1
        );
    }
    format!(
        "{{\"base_code\":{{\"magic\":\"pir\",\"trainable\":false,\"version\":4}},\"program\":{{\"regions\":[{{\"#\":\"region_0\",\
         \"blocks\":[{{\"#\":\"block_0\",\"args\":[],\"ops\":[{text}]}}]}}]}}}}"
    )
}

#[test]
fn regions_in_regions() {
    let text = nested(pir::MAX_BLOCKS - 1);
    let program = read(&text).unwrap();
    assert_eq!(pir::export(&program, Section::Main).unwrap(), text);
    assert_eq!(program.block_rows(), pir::MAX_BLOCKS);
    assert_eq!(bad(&nested(pir::MAX_BLOCKS)).kind, Bad::TooDeep);
    assert_eq!(bad(&nested(20_000)).kind, Bad::TooDeep);
}

#[test]
fn numbers_beyond_their_kind() {
    let e = with("{\"%\":1,", "{\"%\":99999999999999999999,");
    assert_eq!(e.kind, Bad::Expected("a value id"));
    assert_eq!(e.path, "program.regions[0].blocks[0].ops[0].O");
    // Where any value may stand, it is kept.
    let text = file("startup.mlp.bf16.json").replacen("\"D\":0}", "\"D\":123456789012345678901234567890}", 1);
    let program = read(&text).unwrap();
    assert_eq!(pir::export(&program, Section::Main).unwrap(), text);
    let text = text.replacen("0.6546536684036255", "1e999", 1).replacen("\"D\":0.1", "\"D\":0.10", 1);
    assert_eq!(pir::export(&read(&text).unwrap(), Section::Main).unwrap(), text);
}

#[test]
fn ids_twice_missing_or_too_early() {
    assert_eq!(with("{\"%\":2,", "{\"%\":1,").kind, Bad::DuplicateId(1));
    assert_eq!(with("{\"%\":2,", "{\"%\":0,").kind, Bad::DuplicateId(0));
    assert_eq!(with("{\"%\":2,", "{\"TT\":{},").kind, Bad::DuplicateKey("TT".into()));
    assert_eq!(with("{\"%\":2,", "{").kind, Bad::Expected("a value id"));
    let e = with("\"I\":[{\"%\":", "\"I\":[{\"%\":7777");
    assert!(matches!(e.kind, Bad::UnknownId(id) if id > 77_770), "{e}");
    assert!(e.path.starts_with("program.regions[0].blocks[0].ops[") && e.path.ends_with("].I[0]"), "{e}");
    // Ids need not be in a row.
    let text = file("main.mlp.bf16.json").replace("{\"%\":13", "{\"%\":913");
    assert_eq!(pir::export(&read(&text).unwrap(), Section::Main).unwrap(), text);
}

#[test]
fn keys_twice_or_unknown() {
    assert_eq!(with("\"I\":[", "\"I\":[],\"I\":[").kind, Bad::DuplicateKey("I".into()));
    assert_eq!(with("\"N\":\"name\"", "\"N\":\"name\",\"N\":\"name\"").kind, Bad::DuplicateKey("N".into()));
    assert_eq!(with("\"I\":[", "\"Z\":1,\"Z\":1,\"I\":[").kind, Bad::DuplicateKey("Z".into()));
    assert!(matches!(with("\"args\":[]", "\"args\":[],\"more\":1").kind, Bad::NotPir(_)));
    assert!(matches!(with("\"N\":\"name\"", "\"N\":\"name\",\"M\":1").kind, Bad::Expected(_)));
    // An op's further keys are kept.
    let text = file("main.mlp.bf16.json").replacen("\"I\":[", "\"Z\":{\"a\":[1]},\"I\":[", 1);
    let program = read(&text).unwrap();
    assert_eq!(pir::export(&program, Section::Main).unwrap(), text);
    assert!(program.extras().any(|(_, x)| &*x.unknown == b"{\"Z\":{\"a\":[1]}}"));
}

#[test]
fn other_versions_and_other_json() {
    assert_eq!(with("\"version\":4", "\"version\":5").kind, Bad::Version("5".into()));
    assert_eq!(with(",\"version\":4", "").kind, Bad::Version("(none)".into()));
    assert!(matches!(with("\"pir\"", "\"pie\"").kind, Bad::NotPir(_)));
    for text in ["{}", "[]", "1", "{\"base_code\":{\"magic\":\"pir\",\"version\":4}}", "{\"program\":{\"regions\":[]}}"]
    {
        bad(text);
    }
    assert!(matches!(with("{\"regions\":[", "{\"more\":1,\"regions\":[").kind, Bad::NotPir(_)));
}

#[test]
fn names_that_this_crate_gives() {
    assert_eq!(with("\"D\":\"learning_rate_0\"", "\"D\":\"%1\"").kind, Bad::BadName("%1".into()));
    assert_eq!(with("[0,1,1,\"linear_1.b_0\"]", "[0,1,1,\"%12\"]").kind, Bad::BadName("%12".into()));
    assert_eq!(with("\"N\":\"shape\"", "\"N\":\"oa:shape\"").kind, Bad::BadName("oa:shape".into()));
    assert!(matches!(with("[0,1,1,\"linear_1.b_0\"]", "[0,1,\"linear_1.b_0\"]").kind, Bad::Expected(_)));
}

#[test]
fn a_section_is_read_once() {
    let mut program = Program::new();
    let text = file("main.mlp.bf16.json");
    pir::import(&text, Section::Main, &mut program).unwrap();
    assert_eq!(pir::import(&text, Section::Main, &mut program).unwrap_err().kind, Bad::Occupied);
    assert_eq!(pir::export(&program, Section::Main).unwrap(), text);
}
