//! Which casts give equal values? Numbers for values, such that equal numbers mean equal bits.
//!
//! Exact rules only: a cast to the type that is there is the operand; a narrowing of what was widened from that type
//! is the narrow value (modulo signalling NaNs, which a widening makes quiet); equal casts of one value are equal.

use crate::ir::DType;
use rustc_hash::FxHashMap;

/// Numbers of values along one walk.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    last: u32,
    casts: FxHashMap<(u32, DType), u32>,
    /// of what an exact widening made: the narrow value and its type
    widened: FxHashMap<u32, (u32, DType)>,
}

/// Whether every value of `from` is one of `to`, so that narrowing gives it back.
fn widens(from: DType, to: DType) -> bool {
    matches!((from, to), (DType::F16 | DType::BF16, DType::F32 | DType::F64) | (DType::F32, DType::F64))
}

impl Numbers {
    /// Numbers after `last`.
    pub fn after(last: u32) -> Self {
        Numbers { last, ..Numbers::default() }
    }

    /// The number of a value of which nothing is known.
    pub fn fresh(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The number of a cast of a value.
    pub fn cast(&mut self, value: u32, from: DType, to: DType) -> u32 {
        if from == to {
            return value;
        }
        match self.widened.get(&value) {
            Some(&(narrow, dtype)) if dtype == to => return narrow,
            _ => {}
        }
        if let Some(&known) = self.casts.get(&(value, to)) {
            return known;
        }
        let made = self.fresh();
        self.casts.insert((value, to), made);
        if widens(from, to) {
            self.widened.insert(made, (value, from));
        }
        made
    }
}
