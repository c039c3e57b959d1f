//! Which op kinds does a framework compute in 16 bits? The lists that it ships, as data.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Slots of a kind that stay float32 when the op is computed in 16 bits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptSlots {
    /// all slots but these
    AllBut(Vec<String>),
    /// these slots
    Only(Vec<String>),
}

/// The op lists that a framework ships.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmpLists {
    /// where the lists are from
    pub source: String,
    /// computed in 16 bits
    pub white: Vec<String>,
    /// the same, for float16 alone
    pub white_float16: Vec<String>,
    /// computed in float32 at O1
    pub black: Vec<String>,
    /// computed in float32 at O1 and O2
    pub extra_black: Vec<String>,
    /// follow their inputs at O1
    pub gray: Vec<String>,
    /// need no kernel of the type: control flow, casts
    pub kernel_free: Vec<String>,
    /// input slots that stay float32
    pub kept_inputs: BTreeMap<String, KeptSlots>,
    /// output slots that stay float32
    pub kept_outputs: BTreeMap<String, KeptSlots>,
}

impl AmpLists {
    /// The lists of PaddlePaddle 2.6.2.
    pub fn paddle() -> &'static AmpLists {
        static LISTS: OnceLock<AmpLists> = OnceLock::new();
        LISTS.get_or_init(|| serde_json::from_str(include_str!("data/amp_lists.json")).expect("the crate's own lists"))
    }
}
