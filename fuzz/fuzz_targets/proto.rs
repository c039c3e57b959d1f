//! Does any input panic the ProgramDesc reader, or come back as other bytes?
#![no_main]

use libfuzzer_sys::fuzz_target;
use mastercast::ir::Section;
use mastercast::paddle::proto::{Document, export, looks_like_program, read_program};

fuzz_target!(|bytes: &[u8]| {
    let _ = looks_like_program(bytes);
    if let Ok(doc) = Document::decode(bytes) {
        assert!(doc.encode() == bytes, "the document differs");
    }
    if let Ok(program) = read_program(None, Some(bytes)) {
        assert!(export(&program, Section::Main) == bytes, "the export differs");
    }
});
