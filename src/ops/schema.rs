//! What is known of an op kind? Its slots, the attributes it needs, and its effect on storage cells.

use crate::names::Symbol;

/// How many arguments a slot takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// exactly one
    One,
    /// none or one
    Optional,
    /// one or more
    Many,
    /// any number
    Any,
}

/// A slot of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSpec {
    /// its name
    pub name: Symbol,
    /// how many arguments
    pub arity: Arity,
}

/// The kind of value of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttrKind {
    /// 32- or 64-bit integer, or a dtype's code
    Int,
    /// string
    Str,
    /// list of strings
    Strs,
    /// list of integers
    Ints,
    /// boolean
    Bool,
    /// sub-block
    Block,
}

/// An attribute that an op needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrSpec {
    /// its name
    pub name: Symbol,
    /// its kind
    pub kind: AttrKind,
    /// whether it must be there
    pub required: bool,
}

/// Whether an optimizer can update a float32 master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// it has MasterParam slots and `multi_precision`
    Master,
    /// it updates the parameter alone
    NoMaster,
}

/// What an op does to storage cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The outputs are a function of inputs and attributes: equal inputs give equal bits, on every
    /// run. Only given to kinds that users derive persistables with.
    Pure,
    /// `Out` equals `X`, bit for bit.
    Copy,
    /// `Out` is `X` in the dtype of `out_dtype`.
    Cast,
    /// Writes its outputs from attributes (and perhaps a random stream), reading no cell.
    Init,
    /// Reads inputs and writes outputs; nothing more is known of the values.
    Opaque,
    /// Updates a parameter, and its master when there is one, so that parameter = narrow(master).
    Optimizer(Wants),
    /// Writes its outputs from a file.
    Load,
    /// Writes its inputs to a file.
    Save,
    /// Narrows parameters in place (see SEMANTICS: `amp_init`).
    AmpInit,
    /// Brings a pair back in step.
    Resync,
    /// Runs its sub-block once if a condition holds.
    Cond,
    /// Runs its sub-block as long as a condition holds.
    While,
    /// Runs its sub-blocks, each any number of times, and writes its outputs from what they yield (`if` and
    /// `while` of PIR, whose blocks hold values of their own).
    Regions,
    /// Not known: may read and write everything it names, sub-blocks included.
    Unknown,
}

/// The entry of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schema {
    /// input slots that are checked; others are allowed
    pub inputs: &'static [SlotSpec],
    /// output slots that are checked; others are allowed
    pub outputs: &'static [SlotSpec],
    /// attributes that are checked; others are allowed
    pub attrs: &'static [AttrSpec],
    /// what it does to cells
    pub effect: Effect,
}

impl Schema {
    /// The schema of a kind that has none.
    pub const UNKNOWN: Schema = Schema::plain(Effect::Unknown);

    /// The schema of a kind without entry, by its name: an op of PIR's dialects writes its results alone,
    /// unless its name ends in `_` (in place). Source: naming of Paddle 3.3.1's dialects.
    pub fn of_name(kind: &str) -> &'static Schema {
        const RESULTS: Schema = Schema::plain(Effect::Opaque);
        let pir = ["pd_op.", "builtin.", "cf."].iter().any(|dialect| kind.starts_with(dialect));
        if pir && !kind.ends_with('_') { &RESULTS } else { &Schema::UNKNOWN }
    }

    /// A schema that checks no slots.
    pub const fn plain(effect: Effect) -> Schema {
        Schema { inputs: &[], outputs: &[], attrs: &[], effect }
    }
}

pub(crate) const fn one(name: Symbol) -> SlotSpec {
    SlotSpec { name, arity: Arity::One }
}
pub(crate) const fn many(name: Symbol) -> SlotSpec {
    SlotSpec { name, arity: Arity::Many }
}
pub(crate) const fn any(name: Symbol) -> SlotSpec {
    SlotSpec { name, arity: Arity::Any }
}
pub(crate) const fn need(name: Symbol, kind: AttrKind) -> AttrSpec {
    AttrSpec { name, kind, required: true }
}
pub(crate) const fn may(name: Symbol, kind: AttrKind) -> AttrSpec {
    AttrSpec { name, kind, required: false }
}
