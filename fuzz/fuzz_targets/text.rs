//! Does any text panic the parser, or print as something that reads differently?
#![no_main]

use libfuzzer_sys::fuzz_target;
use mastercast::text::{parse, print};

fuzz_target!(|text: &str| {
    let (program, diagnostics) = parse(text, "fuzz");
    if !diagnostics.has_errors() {
        let canonical = print(&program);
        let (again, _) = parse(&canonical, "fuzz");
        assert!(print(&again) == canonical, "print and parse differ");
    }
});
