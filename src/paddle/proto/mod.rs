//! How does a Paddle 2.x program file (ProgramDesc, protobuf) become a program, and the same bytes again?
//!
//! # Layout
//! `wire` knows protobuf's wire format, `schema` the field numbers of framework.proto in Paddle 2.6.2.
//! [`Document`] is the codec's own form: rows over the input in which ops are split into slots and
//! arguments while attributes and declarations stay raw. [`import`] interns a document into a section of
//! a [`Program`](crate::ir::Program); `attr` and `var` read what it asks for. [`export`] writes a section.
//!
//! # Nothing is lost
//! An unedited import exports the bytes that it read, whatever they were. The rule is by entity
//! (attribute, declaration, op, block, file):
//! - What the IR holds is encoded as protobuf's own encoders do: fields ascending, shortest varints,
//!   lists not packed (framework.proto is proto2).
//! - Fields without a place in the IR are kept in [`Extra::unknown`](crate::ir::Extra) and written after
//!   the known ones, where protobuf writes unknown fields, too. A known field with another wire type
//!   counts as unknown. Parts of a declaration's type are kept as a second `type` field, and a block's
//!   number that is not its position as a second `idx`: protobuf merges them, so that they outlive edits.
//! - When these two together are not the entity's bytes (another order, a repeated singular field, a
//!   padded varint, unknown fields of a slot), the whole message is kept in
//!   [`Extra::verbatim`](crate::ir::Extra), until an edit contradicts it. An attribute keeps its own
//!   bytes in [`Attr::raw`](crate::ir::Attr); a kind or a string that the IR cannot hold is
//!   [`AttrValue::Unknown`](crate::ir::AttrValue).
//! - Whether bytes are needed is decided by encoding again and comparing, for attributes, declarations and
//!   unusual ops; by the order and width of the fields, for blocks and the file.
//!
//! A repeated singular field means its last value, an absent optional one stays absent; a missing
//! required one is an error, as in protobuf. A tensor declaration that does not state its tensor has the
//! dtype `Other(-1)`.
//!
//! # Why a codec of our own
//! Unknown fields must survive, which prost drops, and a rewrite should cost little beside reading the
//! file. Measured on 100,000 ops without call stacks (41 MB), two cores, medians, MB/s:
//!
//! | codec | decode | encode |
//! |---|---|---|
//! | prost 0.14 | 169 | 134 |
//! | buffa 0.9 owned / view | 145 / 210 | 181 / – |
//! | C++ protobuf heap / arena | 202 / 125 | 310 / 349 |
//! | Python protobuf (upb) | 316 | 218 |
//! | lazy codec in Rust: arguments split, attributes raw, arena | 1,890 | 2,010 |
//! | copy into a fresh vector | 2,875 | – |
//!
//! No library came within a factor of 5 of the lazy one. `benches/proto.rs` measures this module on such
//! a file beside a copy and, with `PEER_PYTHON`, beside upb in the same run: decode into and encode from
//! [`Document`], [`import`], [`export`], and the peak memory of each.
//!
//! # Attack list (`tests/proto_attacks.rs`, a test a line)
//! - a file cut at any byte
//! - a length longer than its message, than the file, than 32 or 63 bits
//! - a varint of eleven bytes, or of more than 64 bits
//! - varints, tags and lengths with padding
//! - groups: nested without end, not ended, ended with another number
//! - field number zero, or above 2^29 - 1
//! - wire types 6 and 7; known fields with another wire type
//! - singular fields twice, messages that merge
//! - required fields missing
//! - names that are not UTF-8
//! - more slots than an op can have; as many rows as the bytes can hold
//! - packed lists that end inside an element
//! - block numbers that dangle or disagree
//! - files that are no program at all
//! - text and JSON whose kept bytes are another program ([`contradiction`])
//!
//! Memory is linear in the file: nothing is reserved for a stated length. A real program costs about three
//! bytes for each of its file; the worst files (blocks or ops of a few bytes, each with an unknown field)
//! cost about a hundred. Nesting is bounded by the schema and [`MAX_GROUP_DEPTH`]; no function calls itself.

mod attr;
mod encode;
mod error;
mod export;
mod import;
mod kept;
mod lazy;
mod memo;
mod schema;
mod var;
mod wire;

pub use error::{ProtoError, ProtoErrorKind};
pub use export::export;
pub use import::{import, read_program};
pub use kept::contradiction;
pub use lazy::{DocOp, Document};
pub use wire::MAX_GROUP_DEPTH;

/// Longest file that is read, in bytes: 2 GiB less one, as protobuf itself.
pub const MAX_FILE: usize = i32::MAX as usize;
/// Most input slots, and most output slots, of one op.
pub const MAX_SLOTS: usize = u16::MAX as usize;

/// Whether bytes look like a ProgramDesc file: cheap, and true of a cut or damaged file that begins like one.
///
/// The first fields must be those of a ProgramDesc, and the first block must begin with its index, its
/// parent or a declaration. Text never passes: no text has a control character there. The empty message
/// is not recognised.
pub fn looks_like_program(bytes: &[u8]) -> bool {
    const FIELDS: usize = 16;
    let bytes = &bytes[..bytes.len().min(MAX_FILE)];
    let mut at = 0;
    for _ in 0..FIELDS {
        let Some(&tag) = bytes.get(at) else { return false };
        let Some((len, start)) = wire::short_len(bytes, at + 1) else { return false };
        match tag {
            // blocks: the first tag inside is that of idx, parent_idx or vars.
            0x0A => return matches!(bytes.get(start), Some(0x08 | 0x10 | 0x1A)) && len > 1,
            // version, op_version_map
            0x22 | 0x2A => at = start + len,
            _ => return false,
        }
    }
    false
}
