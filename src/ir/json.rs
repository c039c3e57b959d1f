//! How does a program look as JSON? (written by the text/JSON helper)
/// Version of the JSON layout.
pub const JSON_VERSION: u32 = 1;
/// Why a JSON document is not a program.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {}
