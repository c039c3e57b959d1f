//! What is wrong with the user's program, and where? Diagnostics: collected, with code, place and help.
//!
//! A diagnostic is about the user's program. An operation that could not be done is a typed error;
//! a fault of this crate is a panic. The three never mix.

mod codes;
mod render;

pub use codes::Code;
pub use render::{render_json, render_plain};

use crate::entity::EntityId;
use crate::ir::{BlockData, BlockId, OpId, Origin, Program, Section, Slot, VarId};
use crate::names::sym;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Severity {
    /// worth knowing
    Note,
    /// legal, but likely not meant
    Warning,
    /// wrong
    Error,
}

impl Severity {
    /// `error`, `warning` or `note`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// What a place in a program points at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// the block itself
    Block,
    /// an op, by index in its block, printed
    Op(u32, String),
    /// a declaration, by index in its block, with its name
    Var(u32, String),
}

/// Where in the user's input.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// nowhere in particular
    #[default]
    Nowhere,
    /// a byte range of a text
    Text {
        /// the file, as the caller named it
        file: Arc<str>,
        /// the bytes
        range: Range<usize>,
    },
    /// a row of a program
    Item {
        /// `startup` or `main`
        section: Section,
        /// block index in the section
        block: u32,
        /// what in it
        item: Item,
        /// the passes that made it, last first
        made_by: Vec<String>,
        /// byte range of the row that it stems from, when the program was read from a text
        text: Option<Range<usize>>,
    },
}

impl Place {
    /// The place of an op. Searches its block when the op is not where a file had it; a caller that
    /// knows the index uses [`Place::op_at`], one that asks for many [`Places`].
    pub fn op(program: &Program, op: OpId) -> Place {
        let r = program.op(op);
        let index = match program.origin(r.origin()) {
            Origin::File { index, .. } => index,
            // An op that a pass made has no row in the file; its index is that of today's program.
            _ => program.block(r.block()).ops.iter().position(|&o| o == op).map_or(0, |i| i as u32),
        };
        Place::op_at(program, op, index)
    }

    /// The place of an op that stands at `index` in its block; what its file says goes first.
    pub fn op_at(program: &Program, op: OpId, index: u32) -> Place {
        let r = program.op(op);
        let (root, passes) = program.origin_root(r.origin());
        let block = program.block(r.block());
        let index = match root {
            Origin::File { index: there, .. } if passes.is_empty() => there,
            _ => index,
        };
        Place::Item {
            section: block.section,
            block: block.index,
            item: Item::Op(index, brief(program, op)),
            made_by: passes.iter().map(|&s| program.sym(s).to_owned()).collect(),
            text: text_range(root),
        }
    }

    /// The place of a declaration. Searches its block when it is not where a file had it.
    pub fn var(program: &Program, var: VarId) -> Place {
        let v = program.var(var);
        let index = match program.origin(v.origin) {
            Origin::File { index, .. } => index,
            _ => program.block(v.block).vars.iter().position(|&o| o == var).map_or(0, |i| i as u32),
        };
        Place::var_at(program, var, index)
    }

    /// The place of a declaration that stands at `index` in its block; what its file says goes first.
    pub fn var_at(program: &Program, var: VarId, index: u32) -> Place {
        let v = program.var(var);
        let (root, passes) = program.origin_root(v.origin);
        let block = program.block(v.block);
        let index = match root {
            Origin::File { index: there, .. } if passes.is_empty() => there,
            _ => index,
        };
        Place::Item {
            section: block.section,
            block: block.index,
            item: Item::Var(index, shorten(program.name(v.name)).into_owned()),
            made_by: passes.iter().map(|&s| program.sym(s).to_owned()).collect(),
            text: text_range(root),
        }
    }

    /// The place of a block.
    pub fn block(program: &Program, block: BlockId) -> Place {
        let b = program.block(block);
        Place::Item { section: b.section, block: b.index, item: Item::Block, made_by: Vec::new(), text: None }
    }
}

/// The places of many rows of one program: where each stands in its block is computed once.
pub struct Places<'p> {
    program: &'p Program,
    /// by op row; made when an op is asked for that has no row in a file
    ops: OnceCell<Vec<u32>>,
    /// by declaration, likewise
    vars: OnceCell<Vec<u32>>,
}

impl<'p> Places<'p> {
    /// Places of this program as it is now.
    pub fn new(program: &'p Program) -> Self {
        Places { program, ops: OnceCell::new(), vars: OnceCell::new() }
    }

    /// The place of an op: as [`Place::op`].
    pub fn op(&self, op: OpId) -> Place {
        let index = match self.program.origin(self.program.op(op).origin()) {
            Origin::File { index, .. } => index,
            _ => self.ops.get_or_init(|| indices(self.program, self.program.op_rows(), |b| &b.ops))[op.index()],
        };
        Place::op_at(self.program, op, index)
    }

    /// The place of a declaration: as [`Place::var`].
    pub fn var(&self, var: VarId) -> Place {
        let index = match self.program.origin(self.program.var(var).origin) {
            Origin::File { index, .. } => index,
            _ => self.vars.get_or_init(|| indices(self.program, self.program.var_rows(), |b| &b.vars))[var.index()],
        };
        Place::var_at(self.program, var, index)
    }
}

/// By row: its index in its block.
fn indices<K: EntityId>(program: &Program, rows: usize, of: impl Fn(&BlockData) -> &[K]) -> Vec<u32> {
    let mut index = vec![0; rows];
    for block in program.block_ids() {
        for (i, row) in of(program.block(block)).iter().enumerate() {
            index[row.index()] = i as u32;
        }
    }
    index
}

/// A name of the user's program as a message shows it: on one line, and cut when it is very long, so
/// that ten thousand findings about one absurd row stay small.
pub fn shorten(text: &str) -> Cow<'_, str> {
    const MOST: usize = 120;
    let cut = &text[..text.floor_char_boundary(MOST)];
    let odd = cut.contains(char::is_control);
    if cut.len() == text.len() && !odd {
        return Cow::Borrowed(text);
    }
    let shown = if odd { cut.escape_debug().to_string() } else { cut.to_owned() };
    Cow::Owned(if cut.len() < text.len() { shown + "…" } else { shown })
}

/// An op on one line, `(Out: y) = cast(X: x)`, cut when it is very long.
pub(crate) fn brief(program: &Program, op: OpId) -> String {
    // Each side has its own room, so that a long list of outputs does not hide the kind and inputs.
    const MOST: usize = 60;
    let op = program.op(op);
    let mut out = String::new();
    let slots = |out: &mut String, slots: &mut dyn Iterator<Item = Slot<'_>>| {
        let start = out.len();
        out.push('(');
        let full = |out: &String| out.len() - start > MOST;
        for (i, slot) in slots.filter(|s| !s.args.is_empty()).enumerate() {
            out.push_str(if i == 0 { "" } else { "; " });
            if full(out) {
                out.push('…');
                break;
            }
            out.push_str(&shorten(program.sym(slot.name)));
            for (j, &arg) in slot.args.iter().enumerate() {
                out.push_str(if j == 0 { ": " } else { ", " });
                if full(out) {
                    out.push('…');
                    break;
                }
                out.push_str(&shorten(program.name(arg)));
            }
        }
        out.push(')');
    };
    if op.outputs().len() > 0 {
        slots(&mut out, &mut op.outputs());
        out.push_str(" = ");
    }
    out.push_str(&shorten(op.kind_str()));
    slots(&mut out, &mut op.inputs());
    // Which file is what a reader looks for in a load.
    if let Some(path) = op.attr(sym::FILE_PATH).and_then(|v| v.as_str()) {
        out.push_str(&format!(" {{file_path: \"{}\"}}", shorten(path)));
    }
    out
}

fn text_range(origin: Origin) -> Option<Range<usize>> {
    match origin {
        Origin::Text { start, end } => Some(start as usize..end as usize),
        _ => None,
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Nowhere => Ok(()),
            Place::Text { file, range } => write!(f, "{file}:{}..{}", range.start, range.end),
            Place::Item { section, block, item, made_by, .. } => {
                write!(f, "{}: blocks[{block}]", section.as_str())?;
                match item {
                    Item::Block => {}
                    Item::Op(i, text) => write!(f, ".ops[{i}]: {text}")?,
                    Item::Var(i, name) => write!(f, ".vars[{i}]: {name}")?,
                }
                for (i, pass) in made_by.iter().rev().enumerate() {
                    write!(f, "{}`{pass}`", if i == 0 { " (inserted by " } else { ", " })?;
                }
                f.write_str(if made_by.is_empty() { "" } else { ")" })
            }
        }
    }
}

/// A second place that explains the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// where
    pub place: Place,
    /// what is there
    pub message: String,
}

/// One finding about the user's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// what kind of finding
    pub code: Code,
    /// how bad
    pub severity: Severity,
    /// one sentence, lower case, no full stop
    pub message: String,
    /// where
    pub place: Place,
    /// places that explain it
    pub labels: Vec<Label>,
    /// further facts
    pub notes: Vec<String>,
    /// what mends it
    pub help: Option<String>,
}

impl Diagnostic {
    /// A finding of the code's own severity.
    pub fn new(code: Code, message: impl Into<String>, place: Place) -> Self {
        Diagnostic {
            code,
            severity: code.severity(),
            message: message.into(),
            place,
            labels: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    /// The same with a label.
    #[must_use]
    pub fn label(mut self, place: Place, message: impl Into<String>) -> Self {
        self.labels.push(Label { place, message: message.into() });
        self
    }

    /// The same with a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The same with help.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Findings in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnostics {
    items: Vec<Diagnostic>,
    /// findings beyond [`Diagnostics::LIMIT`], counted but not kept
    dropped: usize,
    dropped_errors: usize,
}

impl Diagnostics {
    /// Most findings that are kept; the rest is counted.
    pub const LIMIT: usize = 10_000;

    /// No findings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding. Beyond [`Self::LIMIT`] it is only counted.
    pub fn push(&mut self, d: Diagnostic) {
        if self.items.len() < Self::LIMIT {
            self.items.push(d);
        } else {
            self.dropped += 1;
            self.dropped_errors += usize::from(d.severity == Severity::Error);
        }
    }

    /// Adds all findings of another collection.
    pub fn extend(&mut self, other: Diagnostics) {
        for d in other.items {
            self.push(d);
        }
        self.dropped += other.dropped;
        self.dropped_errors += other.dropped_errors;
    }

    /// The findings kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.items.iter()
    }

    /// Number of findings, those not kept included.
    pub fn len(&self) -> usize {
        self.items.len() + self.dropped
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of findings that were counted but not kept.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Whether any is an error.
    pub fn has_errors(&self) -> bool {
        self.dropped_errors > 0 || self.items.iter().any(|d| d.severity == Severity::Error)
    }

    /// Number of findings of a severity among those kept.
    pub fn count(&self, severity: Severity) -> usize {
        self.items.iter().filter(|d| d.severity == severity).count()
    }
}

impl<'d> IntoIterator for &'d Diagnostics {
    type Item = &'d Diagnostic;
    type IntoIter = std::slice::Iter<'d, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}
