//! How do findings look in a terminal? With source lines when the program was text, in colour when asked.

use super::Ui;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
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
    let source = source.map(Lines::of);
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
            out.push_str(&one(&renderer, d, source.as_ref()));
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

/// A text cut into lines once: a finding is shown with the lines that it speaks of, whatever the length of the text.
struct Lines<'s> {
    source: &'s Source<'s>,
    /// where each line begins
    starts: Vec<usize>,
}

/// A range of the text and what is said of it; the first is the finding's own when that stands in the text.
type Mark<'d> = (Range<usize>, Option<&'d str>);

impl<'s> Lines<'s> {
    fn of(source: &'s Source<'s>) -> Self {
        let ends = source.text.bytes().enumerate().filter(|&(_, b)| b == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect();
        Lines { source, starts }
    }

    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at) - 1
    }

    /// From the line of the first byte to the end of that of the last.
    fn window(&self, first: usize, last: usize) -> Range<usize> {
        let end = self.starts.get(self.line(last) + 1).map_or(self.source.text.len(), |&next| next - 1);
        self.starts[self.line(first)]..end
    }

    /// One snippet of all marks when what lies between is short, else one a mark.
    fn snippets<'d>(&self, marks: &[Mark<'d>]) -> Vec<Snippet<'d, Annotation<'d>>>
    where
        's: 'd,
    {
        const SHORT: usize = 16 << 10;
        let first = marks.iter().map(|m| m.0.start).min().unwrap_or(0);
        let last = marks.iter().map(|m| m.0.end.saturating_sub(1).max(m.0.start)).max().unwrap_or(0);
        let whole = self.window(first, last);
        if whole.len() <= SHORT {
            return vec![self.snippet(whole, marks, true)];
        }
        let one = |(i, mark): (usize, &Mark<'d>)| {
            let mut at = self.window(mark.0.start, mark.0.start);
            // A line may name every cell of the program.
            at.start = at.start.max(mark.0.start.saturating_sub(200));
            at.end = at.end.min(at.start + 1000).max(mark.0.start);
            at.start = self.source.text.ceil_char_boundary(at.start);
            at.end = self.source.text.floor_char_boundary(at.end);
            self.snippet(at, std::slice::from_ref(mark), i == 0)
        };
        marks.iter().enumerate().map(one).collect()
    }

    /// The first mark is the primary one when `primary` says so.
    fn snippet<'d>(&self, at: Range<usize>, marks: &[Mark<'d>], primary: bool) -> Snippet<'d, Annotation<'d>>
    where
        's: 'd,
    {
        let line = self.line(at.start) + 1;
        let snippet = Snippet::source(&self.source.text[at.clone()]).path(self.source.file).line_start(line).fold(true);
        marks.iter().enumerate().fold(snippet, |snippet, (i, (range, message))| {
            let inside = range.start.clamp(at.start, at.end) - at.start..range.end.clamp(at.start, at.end) - at.start;
            let kind = if primary && i == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
            let mark = kind.span(inside);
            snippet.annotation(match message {
                Some(message) => mark.label(*message),
                None => mark,
            })
        })
    }
}

fn range(place: &Place) -> Option<Range<usize>> {
    match place {
        Place::Text { range, .. } => Some(range.clone()),
        Place::Item { text, .. } => text.clone(),
        Place::Nowhere => None,
    }
}

fn one(renderer: &Renderer, d: &Diagnostic, source: Option<&Lines<'_>>) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level.primary_title(&d.message).id(d.code.as_str());
    // What a pass or a schedule put there stands in no text: it is named on a line of its own.
    let within = |place: &Place| source.and_then(|s| range(place).filter(|r| r.end <= s.source.text.len()));
    let (mut marks, mut lines) = (Vec::new(), Vec::new());
    match within(&d.place) {
        Some(r) => marks.push((r, None)),
        // A label on the same place says more.
        None if d.place == Place::Nowhere || d.labels.iter().any(|l| l.place == d.place) => {}
        None => lines.push(format!("at {}", d.place)),
    }
    for l in &d.labels {
        match within(&l.place) {
            Some(r) => marks.push((r, Some(&*l.message))),
            None => lines.push(format!("{}: {}", l.message, l.place)),
        }
    }
    let mut group = Group::with_title(title);
    if let Some(source) = source.filter(|_| !marks.is_empty()) {
        for snippet in source.snippets(&marks) {
            group = group.element(snippet);
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
