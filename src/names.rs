//! How are strings held? Interned once; everything else compares `u32`s.
//!
//! Two spaces: [`Name`] for variables (a name is a storage cell of the scope) and [`Symbol`]
//! for the small vocabulary of op kinds, slots and attributes. Symbols that the crate itself
//! speaks of are interned first, in a fixed order, so that they are constants in [`sym`].

use crate::entity::{EntityId, entity};
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// How keys that a file chooses are hashed: under a seed of this process, so that no file can be made
/// whose keys collide. Order that reaches output never comes from such a table.
#[derive(Clone)]
pub(crate) struct Seeded(foldhash::fast::RandomState);

impl Default for Seeded {
    fn default() -> Self {
        static SEED: OnceLock<foldhash::fast::RandomState> = OnceLock::new();
        Seeded(SEED.get_or_init(Default::default).clone())
    }
}

impl BuildHasher for Seeded {
    type Hasher = foldhash::fast::FoldHasher<'static>;

    #[inline(always)]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// A map whose keys a file chooses.
pub(crate) type SeededMap<K, V> = std::collections::HashMap<K, V, Seeded>;
/// A set whose keys a file chooses.
pub(crate) type SeededSet<K> = std::collections::HashSet<K, Seeded>;

entity! {
    /// An interned variable name. Startup and main share one space: equal names are one storage cell.
    Name, "name"
}
entity! {
    /// An interned op kind, slot name or attribute name.
    Symbol, "sym"
}

/// Strings by dense id, each stored once.
///
/// The table is one array of words (hash above, id + 1 below, 0 when free), probed in order and at
/// most half full: on large programs a lookup is one cache miss, where it was most of an import's time.
#[derive(Clone)]
pub struct Interner<K> {
    text: String,
    ends: Vec<u32>,
    table: Vec<u64>,
    seeded: Seeded,
    key: PhantomData<fn(K) -> K>,
}

/// Strings that are looked up together, so that their cache misses overlap.
const BATCH: usize = 16;

impl<K: EntityId> Interner<K> {
    /// An empty interner.
    pub fn new() -> Self {
        Interner {
            text: String::new(),
            ends: Vec::new(),
            table: Vec::new(),
            seeded: Seeded::default(),
            key: PhantomData,
        }
    }

    #[inline(always)]
    fn hash(&self, text: &str) -> u32 {
        let mut h = self.seeded.build_hasher();
        h.write(text.as_bytes());
        let h = h.finish();
        (h ^ (h >> 32)) as u32
    }

    /// Makes room for `strings` more strings.
    pub fn reserve(&mut self, strings: usize) {
        self.ends.reserve(strings);
        self.grow((self.ends.len() + strings) * 2);
    }

    /// At least `slots` slots.
    fn grow(&mut self, slots: usize) {
        let slots = slots.next_power_of_two().max(16);
        if slots <= self.table.len() {
            return;
        }
        let old = std::mem::replace(&mut self.table, vec![0; slots]);
        let mask = slots - 1;
        for entry in old.into_iter().filter(|&e| e != 0) {
            let mut at = (entry >> 32) as usize & mask;
            while self.table[at] != 0 {
                at = (at + 1) & mask;
            }
            self.table[at] = entry;
        }
    }

    /// The id of a string, or the free slot where it belongs. The table has slots.
    #[inline(always)]
    fn find(&self, h: u32, text: &str) -> Result<usize, usize> {
        let mask = self.table.len() - 1;
        let mut at = h as usize & mask;
        loop {
            let entry = self.table[at];
            if entry == 0 {
                return Err(at);
            }
            let id = (entry as u32 - 1) as usize;
            if (entry >> 32) as u32 == h && self.text_of(id).as_bytes() == text.as_bytes() {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline(always)]
    fn intern_hashed(&mut self, h: u32, text: &str) -> K {
        if self.ends.len() * 2 >= self.table.len() {
            self.grow(self.ends.len() * 2 + 2);
        }
        match self.find(h, text) {
            Ok(id) => K::from_index(id),
            Err(at) => {
                let id = self.ends.len();
                let entry = u32::try_from(id + 1).expect("more than 2^32 names");
                self.text.push_str(text);
                self.ends.push(u32::try_from(self.text.len()).expect("more than 4 GiB of names"));
                self.table[at] = u64::from(h) << 32 | u64::from(entry);
                K::from_index(id)
            }
        }
    }

    /// The id of `text`, made on first use. Panics when all strings together exceed 4 GiB
    /// (readers refuse larger inputs before this point).
    pub fn intern(&mut self, text: &str) -> K {
        self.intern_hashed(self.hash(text), text)
    }

    /// The ids of many strings, in order: as [`Self::intern`] of each, but faster.
    pub fn intern_all(&mut self, texts: &[&str], ids: &mut Vec<K>) {
        ids.reserve(texts.len());
        for chunk in texts.chunks(BATCH) {
            self.grow((self.ends.len() + BATCH) * 2);
            let mask = self.table.len() - 1;
            let (mut hashes, mut seen) = ([0; BATCH], 0);
            for (h, text) in hashes.iter_mut().zip(chunk) {
                *h = self.hash(text);
                seen ^= self.table[*h as usize & mask];
            }
            std::hint::black_box(seen);
            for (&h, text) in hashes.iter().zip(chunk) {
                ids.push(self.intern_hashed(h, text));
            }
        }
    }

    /// The id of `text` if it was interned.
    pub fn lookup(&self, text: &str) -> Option<K> {
        if self.table.is_empty() {
            return None;
        }
        self.find(self.hash(text), text).ok().map(K::from_index)
    }

    #[inline]
    fn text_of(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }

    /// The string of `id`.
    #[inline]
    pub fn get(&self, id: K) -> &str {
        self.text_of(id.index())
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether nothing was interned.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All ids with their strings, in order of first use.
    pub fn iter(&self) -> impl Iterator<Item = (K, &str)> {
        (0..self.ends.len()).map(|i| (K::from_index(i), self.text_of(i)))
    }
}

impl<K: EntityId> Default for Interner<K> {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! known {
    ($($ident:ident = $text:literal),* $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(u32)]
        enum Known { $($ident),* }

        /// The symbols that the crate itself speaks of.
        #[allow(missing_docs)]
        pub mod sym {
            use super::{Known, Symbol};
            $(pub const $ident: Symbol = Symbol(Known::$ident as u32);)*
        }

        const KNOWN: &[&str] = &[$($text),*];
    };
}

known! {
    // slots
    X = "X", Y = "Y", OUT = "Out", PARAM = "Param", PARAM_OUT = "ParamOut", GRAD = "Grad",
    MASTER_PARAM = "MasterParam", MASTER_PARAM_OUT = "MasterParamOut", MASTER_OF = "MasterOf",
    LEARNING_RATE = "LearningRate", SKIP_UPDATE = "SkipUpdate", COND = "Cond", CONDITION = "Condition",
    INPUT = "Input", SCOPE = "Scope", STEP_SCOPES = "StepScopes", INPUTS = "Inputs", SCALE_IN = "Scale",
    OUT_GRAD = "Out@GRAD", X_GRAD = "X@GRAD", Y_GRAD = "Y@GRAD", FOUND_INFINITE = "FoundInfinite",
    PREV_LOSS_SCALING = "PrevLossScaling", LOSS_SCALING = "LossScaling", STOP_UPDATE = "StopUpdate",
    IN_GOOD_STEPS = "InGoodSteps", IN_BAD_STEPS = "InBadSteps", OUT_GOOD_STEPS = "OutGoodSteps",
    OUT_BAD_STEPS = "OutBadSteps", AXIS_TENSOR = "AxisTensor",
    // op kinds
    LOAD = "load", LOAD_COMBINE = "load_combine", SAVE = "save", SAVE_COMBINE = "save_combine",
    CAST = "cast", ASSIGN = "assign", AMP_INIT = "amp_init", RESYNC = "resync",
    SET_VALUE = "set_value", CREATE_PY_READER = "create_py_reader", READ = "read",
    FILL_CONSTANT = "fill_constant", UNIFORM_RANDOM = "uniform_random", WHILE = "while",
    CONDITIONAL_BLOCK = "conditional_block", FEED = "feed", FETCH = "fetch", SUM = "sum",
    SQUARED_L2_NORM = "squared_l2_norm", ELEMENTWISE_MUL = "elementwise_mul",
    ELEMENTWISE_MUL_GRAD = "elementwise_mul_grad", CHECK_FINITE_AND_UNSCALE = "check_finite_and_unscale",
    UPDATE_LOSS_SCALING = "update_loss_scaling", CONCAT = "concat", REDUCE_ANY = "reduce_any", MEMCPY = "memcpy",
    // attributes
    IN_DTYPE = "in_dtype", OUT_DTYPE = "out_dtype", DTYPE = "dtype", SHAPE = "shape",
    FILE_PATH = "file_path", KEYS = "keys", STORED_DTYPES = "stored_dtypes", PINNED = "pinned",
    OP_ROLE = "op_role", OP_ROLE_VAR = "op_role_var", OP_DEVICE = "op_device",
    OP_NAMESCOPE = "op_namescope", OP_CALLSTACK = "op_callstack", SUB_BLOCK = "sub_block",
    MULTI_PRECISION = "multi_precision", REWRITE_MASTER = "rewrite_master", DIRECTION = "direction",
    ON_CONFLICT = "on_conflict", VALUE = "value", STR_VALUE = "str_value", WITH_QUANT_ATTR = "with_quant_attr",
    LOAD_AS_FP16 = "load_as_fp16", USE_MKLDNN = "use_mkldnn", AXIS = "axis", DIM = "dim", KEEP_DIM = "keep_dim",
    REDUCE_ALL = "reduce_all", DST_PLACE_TYPE = "dst_place_type", INCR_EVERY_N_STEPS = "incr_every_n_steps",
    DECR_EVERY_N_NAN_OR_INF = "decr_every_n_nan_or_inf", INCR_RATIO = "incr_ratio", DECR_RATIO = "decr_ratio",
    ATTR_STOP_UPDATE = "stop_update", FORCE_CPU = "force_cpu", PLACE_TYPE = "place_type",
}

/// The interner of op kinds, slots and attribute names; [`sym`] holds at fixed ids.
pub type Symbols = Interner<Symbol>;
/// The interner of variable names.
pub type Names = Interner<Name>;

/// A fresh symbol interner in which the constants of [`sym`] hold.
pub(crate) fn symbols() -> Symbols {
    static BASE: OnceLock<Symbols> = OnceLock::new();
    BASE.get_or_init(|| {
        let mut s = Symbols::new();
        for (i, text) in KNOWN.iter().enumerate() {
            let id = s.intern(text);
            assert_eq!(id.index(), i, "symbol {text} listed twice");
        }
        s
    })
    .clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_are_the_same_as_one_by_one() {
        let texts: Vec<String> = (0..6000).map(|i| format!("fc_{}.w_{}", i % 1700, i % 3)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (mut one, mut many, mut ids) = (Names::new(), Names::new(), Vec::new());
        assert_eq!(one.lookup("x"), None);
        many.reserve(10);
        many.intern_all(&texts, &mut ids);
        for (text, &id) in texts.iter().zip(&ids) {
            assert_eq!(one.intern(text), id);
            assert_eq!((many.get(id), many.lookup(text)), (*text, Some(id)));
        }
        assert!(one.iter().eq(many.iter()) && one.len() == 5100);
        assert_eq!(many.lookup("fc_0.w_9"), None);
    }
}
