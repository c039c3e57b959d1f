//! How does a program look as JSON? A versioned document that holds everything the IR holds.
//!
//! ```json
//! {
//!   "format": "mastercast-program",
//!   "version": 1,
//!   "startup": {"blocks": [{"parent": -1, "vars": [
//!     {"name": "w", "kind": "lod_tensor", "dtype": "f32", "shape": [4], "flags": {"persistable": true}}
//!   ], "ops": [
//!     {"kind": "fill_constant", "inputs": [], "outputs": [["Out", ["w"]]],
//!      "attrs": [{"name": "value", "value": {"float": "0.5"}}]}
//!   ]}]}
//! }
//! ```
//!
//! - Fields stand in one order; a field that is absent in the file is absent here, and an unknown
//!   field is an error. A section that holds nothing is left out.
//! - Slots are ordered pairs of a name and its arguments. An attribute's value is tagged by its kind.
//! - Floats are strings that read back to the same bits: `"0.1"`, `"-inf"`, `"nan(0x7fc00000)"`. JSON
//!   has no number for the last two, and its readers round. Integers are numbers. Bytes are hex.
//! - Names, kinds and dtypes that the crate does not know keep their numbers: `"dtype(77)"`, `"kind(23)"`.
//!
//! Any layout that reads differently gets another [`JSON_VERSION`].

mod document;
mod scalar;

use crate::ir::Program;
use document::{Document, Written};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Version of the JSON layout.
pub const JSON_VERSION: u32 = 1;

/// Longest document in bytes: names and places are 32-bit.
pub const MAX_JSON: usize = u32::MAX as usize - 1;

/// What the field `format` says.
const FORMAT: &str = "mastercast-program";

/// Why a JSON document is not a program.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It is longer than [`MAX_JSON`].
    #[error("the document has {0} bytes; at most {MAX_JSON} are read")]
    TooLarge(usize),
    /// It is no JSON, is nested too deep, or has other fields than the layout.
    #[error("not a program: {0}")]
    Layout(#[from] serde_json::Error),
    /// It is JSON for something else.
    #[error("the document says it is `{0}`, not `{FORMAT}`")]
    Format(String),
    /// It is of another version of the layout.
    #[error("layout version {0} is not known; this is version {JSON_VERSION}")]
    Version(u64),
    /// A value has the right shape but makes no sense.
    #[error("{section}, block {block}: {what}")]
    Value {
        /// `startup` or `main`
        section: &'static str,
        /// block index
        block: usize,
        /// what is wrong
        what: String,
    },
}

impl Serialize for Program {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::of(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Program {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        Document::deserialize(deserializer)?.into_program().map_err(D::Error::custom)
    }
}

/// The head of a document of any version.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

impl Program {
    /// The program as a JSON value.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a document has string keys and no failing values")
    }

    /// Reads a program from JSON. Ops and variables get the origin
    /// [`Origin::File`](crate::ir::Origin::File) by their place in the document.
    pub fn from_json(text: &str) -> Result<Program, JsonError> {
        if text.len() > MAX_JSON {
            return Err(JsonError::TooLarge(text.len()));
        }
        match serde_json::from_str::<Document>(text) {
            Ok(document) => document.into_program(),
            // Another version may have other fields: its head says more than the first odd field.
            Err(error) => match serde_json::from_str::<Head>(text) {
                Ok(head) if head.format != FORMAT => Err(JsonError::Format(head.format)),
                Ok(head) if head.version != u64::from(JSON_VERSION) => Err(JsonError::Version(head.version)),
                _ => Err(error.into()),
            },
        }
    }
}
