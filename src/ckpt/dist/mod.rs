//! Distributed checkpoints of Paddle 2.6.2 and 3.3.1: a directory of `<rank>_<id>.distcp` files and an
//! `<id>.metadata` that says which shard of which tensor is where.
//!
//! `metadata.rs` reads the metadata, `dir.rs` presents the shards as whole tensors, `write.rs` writes both.
//! A directory may hold several versions; the one with the highest number is opened, by number and not by text,
//! and [`DistDir::open_version`] opens another. Shard files may be pickles or safetensors.

mod dir;
mod metadata;
mod write;

pub use dir::DistDir;
pub use metadata::{DistMetadata, DistShard, DistTensor, versions};
pub use write::{DistFlavour, DistWriter, ShardData};

pub(super) use metadata::check_file_name;
