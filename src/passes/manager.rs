//! How are passes chained? By a textual pipeline, verified before and after each pass.
//!
//! `master-casts,load-order,resync{on_conflict=master}`: names of the table [`super::PASSES`], options in
//! braces. The string and the JSON form (`[{"pass": "resync", "on_conflict": "master"}, …]`) are the same thing.

use super::{PASSES, Pass, PassCx, PassError};
use crate::diag::Severity;
use crate::ir::{EditSummary, Program};
use crate::verify::{Checks, verify_with};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Why a pipeline text is not one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("pipeline, byte {at}: {what}")]
pub struct PipelineError {
    /// byte in the text
    pub at: usize,
    /// what is wrong there
    pub what: String,
}

/// A chain of passes.
///
/// ```
/// use mastercast::passes::{ManagerOptions, PassCx, PassManager};
/// # let (mut program, _) = mastercast::text::parse(r#"program {
/// #   startup {
/// #     param w : f32[2] persistable
/// #     (Out: w) = load() {file_path: "f", stored_dtypes: [f32]}
/// #     (Out: w) = fill_constant() {dtype: f32, shape: [2L], value: 0.5f}
/// #   }
/// # }"#, "job");
/// let manager = PassManager::parse("master-casts,load-order,resync{on_conflict=error}")?;
/// let mut cx = PassCx::default();
/// let report = manager.run(&mut program, &mut cx, ManagerOptions::default(), |pass, _program| {
///     println!("{pass} is done");
/// })?;
/// // Here a load stood before the initialiser that overwrites what it brings.
/// assert_eq!(report.passes[1].summary.moved, 1);
/// // Every pass is idempotent.
/// assert!(!manager.run(&mut program, &mut cx, ManagerOptions::default(), |_, _| {})?.changed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PassManager {
    passes: Vec<Box<dyn Pass>>,
}

/// How a chain is run.
#[derive(Clone, Copy, Debug)]
pub struct ManagerOptions {
    /// verify before the first and after each pass
    pub verify_each: bool,
    /// run only this many passes: bisects a fault
    pub stop_after: Option<usize>,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        ManagerOptions { verify_each: true, stop_after: None }
    }
}

/// What one pass did.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// its name
    pub name: &'static str,
    /// what it changed
    pub summary: EditSummary,
    /// how long it took, verification apart
    pub time: Duration,
}

/// What a chain did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// one entry a pass that ran
    pub passes: Vec<PassReport>,
}

impl Report {
    /// Whether any pass changed anything.
    pub fn changed(&self) -> bool {
        self.passes.iter().any(|p| p.summary.changed())
    }
}

impl PassManager {
    /// A chain of given passes.
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Self {
        PassManager { passes }
    }

    /// Reads a pipeline text.
    pub fn parse(text: &str) -> Result<Self, PipelineError> {
        let mut reader = Reader { text, at: 0 };
        let mut passes = Vec::new();
        reader.space();
        if reader.at == text.len() {
            return Ok(PassManager { passes });
        }
        loop {
            reader.space();
            let start = reader.at;
            let name = reader.word();
            let entry = PASSES.iter().find(|p| p.name == name).ok_or_else(|| {
                let names: Vec<_> = PASSES.iter().map(|p| p.name).collect();
                PipelineError { at: start, what: format!("no pass is named `{name}` (passes: {})", names.join(", ")) }
            })?;
            let options = reader.options()?;
            let pass = (entry.make)(Value::Object(options))
                .map_err(|e| PipelineError { at: start, what: format!("`{name}`: {e}") })?;
            passes.push(pass);
            reader.space();
            match reader.next() {
                None => return Ok(PassManager { passes }),
                Some(',') => {}
                Some(c) => {
                    return Err(PipelineError {
                        at: reader.at - c.len_utf8(),
                        what: format!("expected `,`, found `{c}`"),
                    });
                }
            }
        }
    }

    /// The pipeline as text; `parse` of it gives the same chain.
    pub fn text(&self) -> String {
        let one = |p: &dyn Pass| {
            let options = match p.options() {
                Value::Object(o) if !o.is_empty() => {
                    let items: Vec<_> = o.iter().map(|(k, v)| format!("{k}={v}")).collect();
                    format!("{{{}}}", items.join(","))
                }
                _ => String::new(),
            };
            format!("{}{options}", p.name())
        };
        self.passes.iter().map(|p| one(&**p)).collect::<Vec<_>>().join(",")
    }

    /// Runs the chain. `after` is called after each pass, for printing.
    ///
    /// On an error the program is as the last good pass left it; when a pass made one that does not verify, it
    /// holds that one, so that it can be printed.
    pub fn run(
        &self,
        program: &mut Program,
        cx: &mut PassCx<'_>,
        options: ManagerOptions,
        mut after: impl FnMut(&'static str, &Program),
    ) -> Result<Report, PassError> {
        let mut report = Report::default();
        let check = |program: &Program, cx: &PassCx<'_>, pass: &'static str, when: &'static str| {
            if !options.verify_each {
                return Ok(());
            }
            let diagnostics = verify_with(program, cx.ops, Checks::STRUCTURE);
            if !diagnostics.has_errors() {
                return Ok(());
            }
            let count = diagnostics.count(Severity::Error);
            Err(PassError::Invalid { pass: pass.to_owned(), when, count, diagnostics })
        };
        for (i, pass) in self.passes.iter().take(options.stop_after.unwrap_or(usize::MAX)).enumerate() {
            if i == 0 {
                check(program, cx, pass.name(), "before")?;
            }
            let start = Instant::now();
            let summary = pass.run(program, cx)?;
            let time = start.elapsed();
            if summary.changed() {
                check(program, cx, pass.name(), "after")?;
            }
            report.passes.push(PassReport { name: pass.name(), summary, time });
            after(pass.name(), program);
        }
        Ok(report)
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    fn word(&mut self) -> &'t str {
        let start = self.at;
        while self.peek().is_some_and(|c| !matches!(c, ',' | '{' | '}' | '=' | '"') && !c.is_whitespace()) {
            self.next();
        }
        &self.text[start..self.at]
    }

    fn expect(&mut self, wanted: char) -> Result<(), PipelineError> {
        let at = self.at;
        match self.next() {
            Some(c) if c == wanted => Ok(()),
            Some(c) => Err(PipelineError { at, what: format!("expected `{wanted}`, found `{c}`") }),
            None => Err(PipelineError { at, what: format!("expected `{wanted}`, found the end") }),
        }
    }

    fn options(&mut self) -> Result<Map<String, Value>, PipelineError> {
        let mut map = Map::new();
        self.space();
        if self.peek() != Some('{') {
            return Ok(map);
        }
        self.next();
        loop {
            self.space();
            if self.peek() == Some('}') {
                self.next();
                return Ok(map);
            }
            let at = self.at;
            let key = self.word().to_owned();
            if key.is_empty() {
                return Err(PipelineError { at, what: "expected an option".into() });
            }
            self.space();
            self.expect('=')?;
            self.space();
            let value = self.value()?;
            if map.insert(key.clone(), value).is_some() {
                return Err(PipelineError { at, what: format!("option `{key}` is given twice") });
            }
            self.space();
            if self.peek() == Some(',') {
                self.next();
            } else if self.peek() != Some('}') {
                self.expect('}')?;
            }
        }
    }

    /// JSON where it is JSON (numbers, strings, objects, lists), else a bare word as a string.
    fn value(&mut self) -> Result<Value, PipelineError> {
        let at = self.at;
        if matches!(self.peek(), Some('"' | '{' | '[')) {
            let mut stream = serde_json::Deserializer::from_str(&self.text[at..]).into_iter::<Value>();
            return match stream.next() {
                Some(Ok(value)) => {
                    self.at += stream.byte_offset();
                    Ok(value)
                }
                _ => Err(PipelineError { at, what: "not a value".into() }),
            };
        }
        let word = self.word();
        if word.is_empty() {
            return Err(PipelineError { at, what: "expected a value".into() });
        }
        Ok(serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_round_trips_through_its_text() {
        let m = PassManager::parse(" master-casts, load-order ,resync{ on_conflict = param }").unwrap();
        assert_eq!(m.text(), "master-casts,load-order,resync{on_conflict=\"param\"}");
        assert_eq!(PassManager::parse(&m.text()).unwrap().text(), m.text());
        assert_eq!(PassManager::parse("").unwrap().text(), "");
    }

    #[test]
    fn a_bad_pipeline_says_where() {
        let at = |text: &str| PassManager::parse(text).err().map(|e| e.at);
        assert_eq!(at("resync,nope"), Some(7));
        assert_eq!(at("resync{on_conflict=perhaps}"), Some(0));
        assert_eq!(at("resync{zip=1}"), Some(0));
        assert_eq!(at("resync{on_conflict"), Some(18));
        assert_eq!(at("resync load-order"), Some(7));
        assert_eq!(at("resync,"), Some(7));
    }
}
