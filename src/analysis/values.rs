//! What does a cell hold, symbolically? Hash-consed terms: equal ids mean equal bits on every run.
//!
//! Rules of simplification, each exact (modulo NaN payloads):
//! 1. a cast to the value's own dtype is identity;
//! 2. a cast of a widened value is the cast of the value itself, because widening is exact; with
//!    rule 1, narrowing a value that was widened from that dtype is identity;
//! 3. a cast of a join is the join of the casts;
//! 4. a join of equal values is that value.
//!
//! A join remembers which decision made it: two joins of one decision took the same side. An op that
//! runs twice decides twice.

use crate::entity::{IdVec, entity};
use crate::ir::{AttrListId, DType, OpId};
use crate::names::{Name, Seeded, Symbol};
use hashbrown::HashTable;
use rustc_hash::FxHashMap;
use std::hash::BuildHasher;

entity! {
    /// A symbolic value.
    ValueId, "v"
}

/// What is known of a value's run-time dtype.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Known {
    /// exactly this
    Is(DType),
    /// float16, bfloat16 or float32: what a load may bring for a 16-bit cell
    UpToF32,
    /// nothing
    Unknown,
}

impl Known {
    /// The dtype, when it is known exactly.
    pub fn exact(self) -> Option<DType> {
        match self {
            Known::Is(d) => Some(d),
            _ => None,
        }
    }

    /// What is known of a value that is one of two.
    fn join(self, other: Known) -> Known {
        let up = |k| matches!(k, Known::UpToF32 | Known::Is(DType::F16 | DType::BF16 | DType::F32));
        match self == other {
            true => self,
            false if up(self) && up(other) => Known::UpToF32,
            false => Known::Unknown,
        }
    }

    /// Whether a cast to `to` keeps every value as it is.
    fn widens_to(self, to: DType) -> bool {
        match self {
            Known::Is(DType::F16 | DType::BF16) => matches!(to, DType::F32 | DType::F64),
            Known::Is(DType::F32) | Known::UpToF32 => matches!(to, DType::F32 | DType::F64),
            _ => false,
        }
    }
}

/// One decision: an op at one of its runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Choice {
    /// the op that decides
    pub op: OpId,
    /// which of its runs
    pub run: u32,
}

/// A term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// what the cell held before startup
    Entry(Name),
    /// what an initialiser wrote
    Init(OpId, u32),
    /// an entry of a checkpoint
    Load {
        /// file, by number
        file: u32,
        /// key, by number
        key: u32,
        /// saves before this load: one may have replaced the entry
        version: u32,
        /// what this load makes sure of; another may have been skipped
        known: Known,
    },
    /// a cast
    Cast(DType, ValueId),
    /// a pure function; arguments in the table's pool
    Apply {
        /// what it computes
        kind: Symbol,
        /// with these attributes
        attrs: AttrListId,
        /// which output, and in which slots the arguments are
        form: u32,
        /// first argument in the pool
        args: u32,
        /// number of arguments
        len: u32,
    },
    /// some output of an op
    Opaque(OpId, u32),
    /// the cell's value at the head of the loop that this op runs
    Head(OpId, Name),
    /// the cell's value at the start of a step of main
    Step(Name),
    /// one of two
    Join(Choice, ValueId, ValueId),
}

#[derive(Clone, Copy)]
struct Row {
    value: Value,
    known: Known,
    /// The cast of this value that was asked for first: nearly all values are cast to one type, and
    /// this spares them the table.
    cast: Option<(DType, ValueId)>,
    depth: u16,
}

/// The arguments of a pure function, held once: equal tuples have equal places in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple {
    args: u32,
    len: u32,
    depth: u16,
}

/// Deepest nesting of joins that is followed; beyond it a join is opaque.
const MAX_JOIN_DEPTH: u16 = 48;

/// All terms of one analysis.
#[derive(Default)]
pub struct Values {
    rows: IdVec<ValueId, Row>,
    args: Vec<ValueId>,
    /// terms by hash
    table: HashTable<(u64, ValueId)>,
    /// tuples by hash
    tuples: HashTable<(u64, Tuple)>,
    seeded: Seeded,
    join_casts: FxHashMap<(DType, ValueId), ValueId>,
}

impl Values {
    /// No terms.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `more` terms.
    pub fn reserve(&mut self, more: usize) {
        self.rows.reserve(more);
    }

    /// A term.
    #[inline]
    pub fn get(&self, id: ValueId) -> Value {
        self.rows[id].value
    }

    /// What is known of a term's dtype.
    #[inline]
    pub fn known(&self, id: ValueId) -> Known {
        self.rows[id].known
    }

    /// The arguments of an [`Value::Apply`].
    pub fn args(&self, args: u32, len: u32) -> &[ValueId] {
        &self.args[args as usize..(args + len) as usize]
    }

    /// Number of terms.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A term that equals no other: made anew at each call.
    #[inline]
    pub fn fresh(&mut self, value: Value, known: Known) -> ValueId {
        self.rows.push(Row { value, known, cast: None, depth: 0 })
    }

    fn cons(&mut self, value: Value, known: Known, depth: u16) -> ValueId {
        let h = self.seeded.hash_one(value);
        if let Some(&(_, id)) = self.table.find(h, |&(eh, id)| eh == h && self.rows[id].value == value) {
            return id;
        }
        let id = self.rows.push(Row { value, known, cast: None, depth });
        self.table.insert_unique(h, (h, id), |&(eh, _)| eh);
        id
    }

    /// A checkpoint entry; two loads of one entry of one version are equal if they make sure of the same.
    pub fn load(&mut self, file: u32, key: u32, version: u32, known: Known) -> ValueId {
        self.cons(Value::Load { file, key, version, known }, known, 0)
    }

    /// A cast, simplified.
    pub fn cast(&mut self, to: DType, v: ValueId) -> ValueId {
        let row = self.rows[v];
        if row.known == Known::Is(to) {
            return v;
        }
        match row.value {
            Value::Cast(mid, inner) if to.is_float() && self.rows[inner].known.widens_to(mid) => self.cast(to, inner),
            Value::Join(at, a, b) => {
                // Joins share parts; without the memory a nest of them would cost its unfolding.
                if let Some(&done) = self.join_casts.get(&(to, v)) {
                    return done;
                }
                let (a, b) = (self.cast(to, a), self.cast(to, b));
                let done = self.join(at, a, b);
                self.join_casts.insert((to, v), done);
                done
            }
            _ => match row.cast {
                Some((dtype, id)) if dtype == to => id,
                Some(_) => self.cons(Value::Cast(to, v), Known::Is(to), row.depth),
                None => {
                    let value = Value::Cast(to, v);
                    let id = self.rows.push(Row { value, known: Known::Is(to), cast: None, depth: row.depth });
                    self.rows[v].cast = Some((to, id));
                    id
                }
            },
        }
    }

    /// A join, simplified.
    pub fn join(&mut self, at: Choice, a: ValueId, b: ValueId) -> ValueId {
        if a == b {
            return a;
        }
        let (ra, rb) = (self.rows[a], self.rows[b]);
        let known = ra.known.join(rb.known);
        let depth = ra.depth.max(rb.depth) + 1;
        if depth > MAX_JOIN_DEPTH {
            return self.fresh(Value::Opaque(at.op, u32::MAX), known);
        }
        self.cons(Value::Join(at, a, b), known, depth)
    }

    /// Holds the arguments of a pure function.
    pub fn tuple(&mut self, args: &[ValueId]) -> Tuple {
        let h = self.seeded.hash_one(args);
        let same = |t: &Tuple| self.args[t.args as usize..(t.args + t.len) as usize] == *args;
        if let Some((_, t)) = self.tuples.find(h, |(eh, t)| *eh == h && same(t)) {
            return *t;
        }
        let depth = args.iter().map(|&a| self.rows[a].depth).max().unwrap_or(0);
        let t = Tuple { args: self.args.len() as u32, len: args.len() as u32, depth };
        self.args.extend_from_slice(args);
        self.tuples.insert_unique(h, (h, t), |&(eh, _)| eh);
        t
    }

    /// A pure function of values. `form` tells apart the outputs of an op, and ops whose arguments are in
    /// other slots. The cost does not depend on the number of arguments.
    pub fn apply(&mut self, kind: Symbol, attrs: AttrListId, form: u32, args: Tuple, known: Known) -> ValueId {
        self.cons(Value::Apply { kind, attrs, form, args: args.args, len: args.len }, known, args.depth)
    }

    /// Whether a float32 value was rounded from one that was at hand: it was widened from 16 bits, and these
    /// were narrowed from more. `None` when that hangs on a dtype, a loop or an op that is not known.
    pub fn rounded(&self, v: ValueId) -> Option<bool> {
        match self.get(v) {
            Value::Cast(DType::F32, low) => self.narrowed(low),
            Value::Join(_, a, b) => either(self.rounded_in(a, 1), self.rounded_in(b, 1)),
            _ => Some(false),
        }
    }

    fn rounded_in(&self, v: ValueId, depth: u32) -> Option<bool> {
        match self.get(v) {
            Value::Join(_, a, b) if depth < 8 => either(self.rounded_in(a, depth + 1), self.rounded_in(b, depth + 1)),
            Value::Join(..) => None,
            _ => self.rounded(v),
        }
    }

    fn narrowed(&self, mut low: ValueId) -> Option<bool> {
        loop {
            let (d, v) = match self.get(low) {
                Value::Cast(d, v) => (d, v),
                // What an iteration before did is not known, nor what an unknown op left.
                Value::Head(..) | Value::Step(_) if self.known(low) != Known::Is(DType::F32) => return None,
                Value::Opaque(..) if self.known(low) == Known::Unknown => return None,
                _ => return Some(false),
            };
            if !d.is_low() {
                return Some(false);
            }
            match self.known(v) {
                Known::Is(DType::F32 | DType::F64) => return Some(true),
                Known::Is(DType::F16 | DType::BF16) => low = v,
                Known::Is(_) => return Some(false),
                Known::UpToF32 | Known::Unknown => return None,
            }
        }
    }

    /// Whether a term is made from `part`; `limit` terms are looked at.
    pub fn made_from(&self, root: ValueId, part: ValueId, limit: usize) -> bool {
        let (mut stack, mut seen) = (vec![root], 0);
        while let Some(v) = stack.pop().filter(|_| seen < limit) {
            seen += 1;
            match self.get(v) {
                _ if v == part => return true,
                Value::Cast(_, v) => stack.push(v),
                Value::Join(_, a, b) => stack.extend([a, b]),
                Value::Apply { args, len, .. } => stack.extend(self.args(args, len)),
                _ => {}
            }
        }
        false
    }

    /// Calls `f` for each leaf (entry, init, load, opaque, head, step) below a term, at most `limit`
    /// terms deep in total. Returns false when the limit was reached.
    pub fn leaves(&self, root: ValueId, limit: usize, mut f: impl FnMut(Value)) -> bool {
        let (mut stack, mut seen) = (vec![root], 0);
        while let Some(v) = stack.pop() {
            seen += 1;
            if seen > limit {
                return false;
            }
            match self.get(v) {
                Value::Cast(_, v) => stack.push(v),
                Value::Join(_, a, b) => stack.extend([a, b]),
                Value::Apply { args, len, .. } => stack.extend(self.args(args, len)),
                leaf => f(leaf),
            }
        }
        true
    }
}

fn either(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}
