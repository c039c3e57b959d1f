//! How does a Paddle 3.x program file (PIR as JSON) become a program, and the same text again?
//!
//! # Layout
//! `json` checks a text and walks it without recursion, `value` reads attributes and types, `kinds` is the
//! table between PIR and ProgramDesc kinds, [`import`] reads a file into a section of a
//! [`Program`], [`export`] writes a section. Format: version 4, Paddle 3.3.1.
//!
//! # SSA and storage cells
//! PIR has values, the IR has names. A value becomes a name (`%12` in main, `%s12` in startup), but for
//! those that are a cell. What a cell is was found out with the executor of 3.3.1, which *renames*: it
//! keeps the value that `builtin.set_parameter` or `builtin.shadow_output` names in the variable of that
//! name from its definition on, copying nothing. So
//! - such a value has the cell's name, and so have the results of `builtin.parameter` and `pd_op.data`.
//!   These four ops have no slots in the IR: they compute nothing;
//! - results of an in-place op (its kind ends in `_`) have the names of the operands that they overwrite;
//! - a value that cannot be renamed (it has a name already) is given another by an op `rename:…` of unknown
//!   kind, because the executor then takes away the first name.
//!
//! # One meaning
//! A kind that does what a ProgramDesc kind does has that kind and its slots in the IR (`pd_op.cast` is
//! `cast`), by the table in `kinds`, so that schema, analyses, passes and kernels have one entry for
//! both. Other kinds stay as they are, with a slot an operand (`I0`, `I1` …); they only write their results,
//! unless the kind ends in `_` or has regions.
//!
//! # Writing
//! Names become values again: an operand is the last value of that name. The executor takes one value for
//! a name (a second `set_parameter` of it is refused, or silently loses), so only the last value of a cell
//! is named and earlier ones stay plain values. A cell that is read before anything wrote it is read with
//! `builtin.parameter` or `pd_op.data`; its type is what the reader takes, because the executor picks kernels
//! by declared types. `load` becomes `load_combine` of one tensor and `builtin.slice`. Ids are
//! numbered anew, as the file's writer does.
//!
//! # Nothing is lost
//! An unedited import exports the text that it read: when the text is not what export writes, it is kept in
//! [`Extra::verbatim`](crate::ir::Extra) of the section until an edit. Attributes that encode otherwise
//! keep their text in [`Attr::raw`](crate::ir::Attr), of unknown kinds as
//! [`AttrValue::Unknown`](crate::ir::AttrValue); types, further keys of an op and the head of the file in
//! [`Extra::unknown`](crate::ir::Extra). Attributes of results are `oa:NAME`. After an edit white space
//! and the order of keys are those of the file's writer.
//!
//! # Between the two formats
//! There is no conversion from ProgramDesc to PIR or back. Paddle's own translator is thousands of lines for
//! hundreds of kinds, goes one way, and changes with each release; a half of it would give programs that
//! look right. Export here is for programs that were read as PIR.
//!
//! # Attack list (`tests/pir_attacks.rs`)
//! Text that is cut anywhere; 10^5 levels; numbers beyond 64 bits; ids twice, missing, or used before they
//! are defined; keys twice; other versions; cells with names of values; regions in regions. Memory is linear in
//! the file, and no function calls itself.

mod error;
mod export;
mod import;
mod json;
mod kept;
mod kinds;
mod value;

pub use error::{PirError, PirErrorKind};
pub use export::export;
pub use import::{import, read_program};
pub use json::MAX_DEPTH;
pub use kept::contradiction;
pub use value::UNKNOWN_TAG;

use crate::ir::{Entity, Extra, Program, Section};

/// Longest file that is read, in bytes.
pub const MAX_FILE: usize = i32::MAX as usize;
/// Deepest nesting of blocks.
pub const MAX_BLOCKS: usize = 128;
/// The version of the format that is read and written.
pub const VERSION: &str = "4";

/// Whether a section was read from a PIR file.
pub fn is_pir(program: &Program, section: Section) -> bool {
    head(program, section).is_some()
}

/// The head of the file: the object around `program`, without it.
fn head(program: &Program, section: Section) -> Option<&str> {
    let bytes = &program.extra(Entity::Section(section))?.unknown;
    bytes.starts_with(b"{\"").then(|| std::str::from_utf8(bytes).ok()).flatten()
}

/// Whether a text looks like a PIR file: an object that begins with `base_code` or `program`, or has the
/// magic word near its beginning.
pub fn looks_like_program(text: &str) -> bool {
    const NEAR: usize = 4096;
    let Some(inner) = text.trim_start().strip_prefix('{') else { return false };
    let near: String = inner.chars().filter(|c| !c.is_whitespace()).take(NEAR).collect();
    near.starts_with("\"base_code\":")
        || near.contains("\"magic\":\"pir\"")
        || near.starts_with("\"program\":{\"regions\":")
}

/// What a section of a new program keeps, so that it is one of Paddle 3.x.
pub(crate) fn new_head() -> Extra {
    Extra { unknown: NEW_HEAD.as_bytes().into(), verbatim: None }
}

/// The head of a new file.
const NEW_HEAD: &str = "{\"base_code\":{\"magic\":\"pir\",\"trainable\":true,\"version\":4}}";
