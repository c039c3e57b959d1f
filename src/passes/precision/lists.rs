//! Which op kinds are safe in 16 bits, which are not, and which follow their inputs?
//!
//! The lists are data (`src/ops/data/amp_lists.json`, read off PaddlePaddle 2.6.2); [`Effective`] is what they
//! come to with a level, a type, a device and the user's own lists; [`Kinds`] is that by symbol, so that
//! the pass compares no string.

use super::profile::DeviceProfile;
use super::{Level, Precision, PrecisionError};
use crate::entity::EntityId;
use crate::ir::{DType, Program};
use crate::names::Symbol;
use crate::ops::{AmpLists, KeptSlots as Kept};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The lists as a call uses them. A kind may be in several; the order of the rules decides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Effective {
    /// computed in 16 bits
    pub white: BTreeSet<String>,
    /// computed in float32
    pub black: BTreeSet<String>,
    /// follow their inputs (O1, OD)
    pub gray: BTreeSet<String>,
    /// have no kernel of the type on the device, or are on the user's black list
    pub unsupported: BTreeSet<String>,
    /// on the white list without a kernel: the rules keep them in float32
    pub white_without_kernel: BTreeSet<String>,
}

fn set(items: &[String]) -> BTreeSet<String> {
    items.iter().cloned().collect()
}

impl Effective {
    /// Combines the lists as PaddlePaddle 2.6.2 does (`AutoMixedPrecisionLists`, then `cast_model_to_fp16` for
    /// the level). Unlike there, OD keeps the type and the user's lists.
    ///
    /// Fails when a kind is on both of the user's lists, or on one of them and known to nobody.
    pub fn new(options: &Precision) -> Result<Effective, PrecisionError> {
        let lists = options.lists.as_deref().unwrap_or_else(|| AmpLists::paddle());
        let profile = options.device.profile();
        let dtype = options.dtype.dtype();
        let known = Known::new(lists, profile);
        for kind in options.white.iter().chain(&options.black) {
            if !known.has(kind) {
                return Err(PrecisionError::UnknownKind { kind: kind.clone(), near: known.near(kind) });
            }
        }
        if let Some(kind) = options.white.iter().find(|k| options.black.contains(k)) {
            return Err(PrecisionError::Overlap { kind: kind.clone() });
        }
        let mut white = set(&lists.white);
        if dtype == DType::F16 {
            white.extend(lists.white_float16.iter().cloned());
        }
        let mut black: BTreeSet<String> = lists.black.iter().chain(&lists.extra_black).cloned().collect();
        let mut gray = set(&lists.gray);
        let mut unsupported = set(profile.without_kernel(dtype));
        lists.kernel_free.iter().for_each(|k| {
            unsupported.remove(k);
        });
        let no_kernel = unsupported.clone();
        for kind in &options.white {
            if !black.remove(kind) {
                gray.remove(kind);
            }
            white.insert(kind.clone());
        }
        for kind in &options.black {
            if !white.remove(kind) {
                gray.remove(kind);
            }
            black.insert(kind.clone());
            unsupported.insert(kind.clone());
        }
        match options.level {
            Level::O0 | Level::O1 => {}
            Level::O2 => lists.black.iter().for_each(|k| {
                black.remove(k);
            }),
            Level::OD => black = profile.kinds.iter().filter(|k| !white.contains(*k)).cloned().collect(),
        }
        let white_without_kernel = white.intersection(&no_kernel).cloned().collect();
        Ok(Effective { white, black, gray, unsupported, white_without_kernel })
    }
}

/// The kinds that lists may name.
struct Known<'a> {
    kinds: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn new(lists: &'a AmpLists, profile: &'a DeviceProfile) -> Self {
        let AmpLists { white, white_float16, black, extra_black, gray, kernel_free, .. } = lists;
        let all = [white, white_float16, black, extra_black, gray, kernel_free, &profile.kinds];
        Known { kinds: all.into_iter().flatten().map(String::as_str).collect() }
    }

    fn has(&self, kind: &str) -> bool {
        self.kinds.contains(kind)
    }

    /// Names that hold the text, or that begin like it: a few, sorted.
    fn near(&self, text: &str) -> Vec<String> {
        let stem: String = text.chars().take(5).collect();
        let fits = |k: &&&str| !text.is_empty() && (k.contains(text) || text.contains(**k) || k.starts_with(&stem));
        self.kinds.iter().filter(fits).take(5).map(|k| (*k).to_owned()).collect()
    }
}

/// What the lists say of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindFacts {
    /// on the white list
    pub white: bool,
    /// on the black list
    pub black: bool,
    /// on the gray list
    pub gray: bool,
    /// without a kernel, on the user's black list, or not known to the device profile
    pub unsupported: bool,
    /// not known to the device profile
    pub unknown: bool,
    inputs: u32,
    outputs: u32,
}

/// The lists by symbol of one program, and the slots that stay float32.
#[derive(Clone, Debug)]
pub struct Kinds {
    rows: Vec<KindFacts>,
    /// 1-based from the rows
    rules: Vec<(bool, Vec<Symbol>)>,
}

impl Kinds {
    /// Looks up every symbol of a program once.
    pub fn new(program: &Program, options: &Precision, effective: &Effective) -> Kinds {
        let lists = options.lists.as_deref().unwrap_or_else(|| AmpLists::paddle());
        let known: FxHashMap<&str, ()> = options.device.profile().kinds.iter().map(|k| (k.as_str(), ())).collect();
        let listed = Known::new(lists, options.device.profile());
        let mut kinds = Kinds { rows: Vec::new(), rules: Vec::new() };
        for (_, text) in program.symbols().iter() {
            let unknown = !known.contains_key(text) && !listed.has(text);
            let mut rule = |table: &BTreeMap<String, Kept>| match table.get(text) {
                None => 0,
                Some(kept) => {
                    let (all_but, slots) = match kept {
                        Kept::AllBut(s) => (true, s),
                        Kept::Only(s) => (false, s),
                    };
                    let slots = slots.iter().filter_map(|s| program.symbols().lookup(s)).collect();
                    kinds.rules.push((all_but, slots));
                    kinds.rules.len() as u32
                }
            };
            let (inputs, outputs) = (rule(&lists.kept_inputs), rule(&lists.kept_outputs));
            kinds.rows.push(KindFacts {
                white: effective.white.contains(text),
                black: effective.black.contains(text),
                gray: effective.gray.contains(text),
                unsupported: unknown || effective.unsupported.contains(text),
                unknown,
                inputs,
                outputs,
            });
        }
        kinds
    }

    /// What the lists say of a kind.
    #[inline]
    pub fn get(&self, kind: Symbol) -> KindFacts {
        self.rows[kind.index()]
    }

    /// Whether an input slot stays float32 when an op of this kind is computed in 16 bits.
    #[inline]
    pub fn keeps_input(&self, facts: KindFacts, slot: Symbol) -> bool {
        facts.inputs != 0 && self.keeps(facts.inputs, slot)
    }

    /// Whether an output slot stays float32 when an op of this kind is computed in 16 bits.
    #[inline]
    pub fn keeps_output(&self, facts: KindFacts, slot: Symbol) -> bool {
        facts.outputs != 0 && self.keeps(facts.outputs, slot)
    }

    fn keeps(&self, rule: u32, slot: Symbol) -> bool {
        let (all_but, slots) = &self.rules[rule as usize - 1];
        slots.contains(&slot) != *all_but
    }
}
