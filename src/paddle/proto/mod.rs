//! ProgramDesc
mod attr;
mod error;
mod export;
mod import;
mod lazy;
mod memo;
mod schema;
mod var;
mod wire;

pub use error::{ProtoError, ProtoErrorKind};
pub use export::export;
pub use import::{import, read_program};
pub use lazy::{DocOp, Document};
pub use wire::MAX_GROUP_DEPTH;

/// Longest file that is read, in bytes: 2 GiB less one, as protobuf itself.
pub const MAX_FILE: usize = i32::MAX as usize;
/// Most input slots, and most output slots, of one op.
pub const MAX_SLOTS: usize = u16::MAX as usize;

/// Whether bytes look like a ProgramDesc file: cheap, and true of a cut or damaged file that begins like one.
///
/// The first fields must be those of a ProgramDesc, and the first block must begin with its index, its
/// parent or a declaration. Text never passes: no text has a control character there. The empty message is not recognised.
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
