//! How do findings look in a terminal? With source lines when the program was text, in colour when asked.

use super::Ui;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use mastercast::diag::{Code, Diagnostic, Diagnostics, Place, Severity};
use std::ops::Range;

/// Text in an SGR style, or plain.
pub fn paint(ui: Ui, style: &str, text: &str) -> String {
    if ui.color { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A text that places may point into.
pub struct Source<'s> {
    /// its name
    pub file: &'s str,
    /// its content
    pub text: &'s str,
}

/// Findings of one code that are shown unless all are asked for.
const SHOWN: usize = 3;

/// Findings in order; of each code the first few, the rest counted, unless `ui.all`.
pub fn diagnostics(ui: Ui, found: &Diagnostics, source: Option<&Source<'_>>) -> String {
    let renderer = if ui.color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    let mut seen: Vec<(Code, usize)> = Vec::new();
    for d in found {
        let n = match seen.iter_mut().find(|(code, _)| *code == d.code) {
            Some((_, n)) => n,
            None => {
                seen.push((d.code, 0));
                &mut seen.last_mut().expect("just pushed").1
            }
        };
        *n += 1;
        if ui.all || *n <= SHOWN {
            out.push_str(&one(&renderer, d, source));
            out.push_str("\n\n");
        }
    }
    for (code, n) in seen.into_iter().filter(|&(_, n)| !ui.all && n > SHOWN) {
        out.push_str(&format!("… and {} more `{code}` (--all shows them)\n", n - SHOWN));
    }
    if found.dropped() > 0 {
        out.push_str(&format!("… and {} more findings\n", found.dropped()));
    }
    out
}

fn range(place: &Place) -> Option<Range<usize>> {
    match place {
        Place::Text { range, .. } => Some(range.clone()),
        Place::Item { text, .. } => text.clone(),
        Place::Nowhere => None,
    }
}

fn one(renderer: &Renderer, d: &Diagnostic, source: Option<&Source<'_>>) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level.primary_title(&d.message).id(d.code.as_str());
    let in_text = source.and_then(|s| range(&d.place).filter(|r| r.end <= s.text.len()).map(|r| (s, r)));
    let mut group = Group::with_title(title);
    let mut lines = Vec::new();
    match in_text {
        Some((source, at)) => {
            let mut snippet =
                Snippet::source(source.text).path(source.file).fold(true).annotation(AnnotationKind::Primary.span(at));
            for l in &d.labels {
                if let Some(r) = range(&l.place).filter(|r| r.end <= source.text.len()) {
                    snippet = snippet.annotation(AnnotationKind::Context.span(r).label(&l.message));
                }
            }
            group = group.element(snippet);
        }
        None => {
            // A label on the same place says more.
            if d.place != Place::Nowhere && d.labels.iter().all(|l| l.place != d.place) {
                lines.push(format!("at {}", d.place));
            }
            lines.extend(d.labels.iter().map(|l| format!("{}: {}", l.message, l.place)));
        }
    }
    for line in &lines {
        group = group.element(Level::NOTE.no_name().message(line));
    }
    for note in &d.notes {
        group = group.element(Level::NOTE.message(note));
    }
    if let Some(help) = &d.help {
        group = group.element(Level::HELP.message(help));
    }
    renderer.render(&[group])
}
