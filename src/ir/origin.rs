//! Where does an op or a variable come from? Every one has an origin, so that a diagnostic has a place.

use crate::entity::entity;
use crate::names::Symbol;

entity! {
    /// An origin in a program's table.
    OriginId, "origin"
}

/// The source of one op or variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Row `index` of block `block` in an imported program (ops and variables count apart).
    File {
        /// block index in the file
        block: u32,
        /// index of the op, or of the variable, in that block
        index: u32,
    },
    /// A byte range of a text.
    Text {
        /// first byte
        start: u32,
        /// one past the last byte
        end: u32,
    },
    /// Made by the builder or another library call, with the caller's own number for its place.
    Built {
        /// the caller's number (0 when none was given)
        tag: u32,
    },
    /// Made by a pass from what `from` made.
    Derived {
        /// the pass
        pass: Symbol,
        /// the origin of the anchor
        from: OriginId,
    },
}
