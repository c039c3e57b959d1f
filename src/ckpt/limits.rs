//! How much may a checkpoint ask for? Every bound on what a file can claim, in one place.
//!
//! No length that stands in a file is used to allocate before it was compared with one of these
//! and with the size of the file.

/// Bytes of a safetensors header: the limit of the reference implementation.
pub const MAX_HEADER: u64 = 100_000_000;
/// Tensors in one checkpoint.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Dimensions of one tensor. Paddle stops at 9.
pub const MAX_RANK: usize = 64;
/// Bytes of one tensor's name.
pub const MAX_NAME: usize = 4096;
/// LoD levels of one tensor stream. Ordinary tensors have none, sequences one or two.
pub const MAX_LOD_LEVELS: u64 = 16;
/// Bytes of one `TensorDesc` message: [`MAX_RANK`] dimensions of 11 bytes and the element type fit twice.
pub const MAX_DESC: u64 = 2048;
/// Directories inside one another, in a checkpoint that is a directory.
pub const MAX_DEPTH: usize = 16;
/// Files and directories looked at, in a checkpoint that is a directory.
pub const MAX_FILES: usize = 2 << 20;
/// Bytes moved at a time when a checkpoint is converted.
pub const BLOCK: usize = 1 << 20;
/// Values that one pickle may make: at most this many, of 16 to 24 bytes each.
pub const MAX_PICKLE_VALUES: usize = 1 << 25;
/// Bytes of all short texts of one pickle together.
pub const MAX_PICKLE_TEXT: usize = 1 << 28;
/// Containers inside one another, in a pickle.
pub const MAX_PICKLE_DEPTH: usize = 32;
