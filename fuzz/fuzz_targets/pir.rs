//! Does any text panic the PIR reader, or come out otherwise than it went in?
#![no_main]

use libfuzzer_sys::fuzz_target;
use mastercast::ir::{Program, Section};
use mastercast::paddle::pir::{export, import, read_program};
use mastercast::text::{parse, print};

fuzz_target!(|text: &str| {
    let mut program = Program::new();
    if import(text, Section::Main, &mut program).is_ok() {
        assert!(export(&program, Section::Main).as_deref() == Ok(text), "import and export differ");
        let (again, found) = parse(&print(&program), "fuzz");
        assert!(!found.has_errors() && export(&again, Section::Main).as_deref() == Ok(text), "by way of text");
        let as_startup = read_program(Some(text), None).expect("read once");
        assert!(export(&as_startup, Section::Startup).as_deref() == Ok(text));
    }
});
