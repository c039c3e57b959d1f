//! How do findings look as plain text and as JSON? Both are stable; the CLI adds colour and source lines.

use super::{Diagnostic, Diagnostics, Item, Place};
use serde_json::{Value, json};
use std::fmt::Write;

/// Plain text, a block of lines a finding.
pub fn render_plain(diagnostics: &Diagnostics) -> String {
    let mut out = String::new();
    for d in diagnostics {
        plain(&mut out, d);
    }
    if diagnostics.dropped() > 0 {
        let _ = writeln!(out, "… and {} more findings", diagnostics.dropped());
    }
    out
}

fn plain(out: &mut String, d: &Diagnostic) {
    let _ = writeln!(out, "{}[{}]: {}", d.severity.as_str(), d.code, d.message);
    if d.place != Place::Nowhere {
        let _ = writeln!(out, "  --> {}", d.place);
    }
    for l in &d.labels {
        let _ = writeln!(out, "   | {}: {}", l.message, l.place);
    }
    for n in &d.notes {
        let _ = writeln!(out, "   = note: {n}");
    }
    if let Some(h) = &d.help {
        let _ = writeln!(out, "   = help: {h}");
    }
}

/// A JSON array, one object a finding.
pub fn render_json(diagnostics: &Diagnostics) -> Value {
    Value::Array(
        diagnostics
            .iter()
            .map(|d| {
                json!({
                    "code": d.code.as_str(),
                    "severity": d.severity.as_str(),
                    "message": d.message,
                    "place": place(&d.place),
                    "labels": d.labels.iter().map(|l| json!({"message": l.message, "place": place(&l.place)})).collect::<Vec<_>>(),
                    "notes": d.notes,
                    "help": d.help,
                })
            })
            .collect(),
    )
}

fn place(p: &Place) -> Value {
    match p {
        Place::Nowhere => Value::Null,
        Place::Text { file, range } => json!({"file": &**file, "start": range.start, "end": range.end}),
        Place::Item { section, block, item, made_by, text } => {
            let mut v = json!({"section": section.as_str(), "block": block});
            match item {
                Item::Block => {}
                Item::Op(i, op) => {
                    v["op"] = json!(i);
                    v["printed"] = json!(op);
                }
                Item::Var(i, name) => {
                    v["var"] = json!(i);
                    v["name"] = json!(name);
                }
            }
            if !made_by.is_empty() {
                v["made_by"] = json!(made_by);
            }
            if let Some(range) = text {
                v["start"] = json!(range.start);
                v["end"] = json!(range.end);
            }
            v
        }
    }
}
