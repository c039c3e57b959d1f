//! What does an op kind mean? A table keyed by kind: slots, effect, and the family it belongs to.
//!
//! One family per file. A kind without an entry is unknown, and unknown is conservative everywhere:
//! it may write all that it names. Kernels are looked up by kind in `interp`, so that a user of the
//! analyses alone does not depend on them.
//!
//! Source of slots and attributes: Paddle 2.6.2 operator definitions, as the programs of the corpus
//! show them. [`KNOWN_KINDS`] lists every kind that Paddle 2.6.2 registers and that touches only the
//! variables it names, in the direction in which it names them.

mod amp;
mod control;
mod io;
mod math;
mod optimizer;
mod schema;
mod transfer;

pub use amp::{AmpLists, KeptSlots};
pub use schema::{Arity, AttrKind, AttrSpec, Effect, Schema, SlotSpec, Wants};

use crate::entity::EntityId;
use crate::ir::Program;
use crate::names::Symbol;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Kinds that Paddle 2.6.2 registers and that only read their inputs and write their outputs, one a
/// line. Left out: kinds that alias memory (`coalesce_tensor`), run foreign code (`py_func`), or
/// talk to other processes without naming what they touch (`send*`, `recv*`, `push_*`, `pull_*`).
pub const KNOWN_KINDS: &str = include_str!("paddle_kinds.txt");

/// The op table: what each kind means.
#[derive(Clone, Default)]
pub struct Ops {
    by_kind: FxHashMap<String, Schema>,
}

impl Ops {
    /// A table without entries; every kind is unknown.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The table of this crate.
    pub fn standard() -> &'static Ops {
        static TABLE: OnceLock<Ops> = OnceLock::new();
        TABLE.get_or_init(|| {
            let mut ops = Ops::empty();
            for kind in KNOWN_KINDS.lines() {
                ops.register(kind, Schema::plain(Effect::Opaque));
            }
            for family in [transfer::SCHEMAS, math::SCHEMAS, optimizer::SCHEMAS, io::SCHEMAS, control::SCHEMAS] {
                for (kind, schema) in family {
                    ops.register(kind, *schema);
                }
            }
            ops
        })
    }

    /// Adds or replaces an entry.
    pub fn register(&mut self, kind: &str, schema: Schema) {
        self.by_kind.insert(kind.to_owned(), schema);
    }

    /// The entry of a kind.
    pub fn get(&self, kind: &str) -> Option<&Schema> {
        self.by_kind.get(kind)
    }

    /// The entries of a program's kinds by symbol, so that a sweep never hashes a string.
    pub fn resolve(&self, program: &Program) -> Kinds<'_> {
        Kinds {
            rows: program
                .symbols()
                .iter()
                .map(|(_, text)| self.by_kind.get(text).unwrap_or_else(|| Schema::of_name(text)))
                .collect(),
        }
    }
}

/// The op table resolved for one program.
#[derive(Clone)]
pub struct Kinds<'o> {
    rows: Vec<&'o Schema>,
}

impl<'o> Kinds<'o> {
    /// The schema of a kind; [`Schema::UNKNOWN`] when it has none.
    #[inline]
    pub fn get(&self, kind: Symbol) -> &'o Schema {
        self.rows.get(kind.index()).copied().unwrap_or(&Schema::UNKNOWN)
    }
}
