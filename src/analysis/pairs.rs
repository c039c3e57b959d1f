//! Which parameters have a float32 master?
//!
//! In order of authority (SEMANTICS §2): an optimizer op in main with the slots `Param` and
//! `MasterParam`; a startup cast from a parameter into a persistable named
//! `<param>_fp32_master_<N>`; what the caller declares. `<N>` is Paddle's unique-name counter:
//! usually 0, but 1, 2 … when a second optimizer is built in one process.

use crate::analysis::cells::Cells;
use crate::entity::EntityId;
use crate::ir::{DType, OpId, Program, Section};
use crate::names::{Name, SeededSet, sym};
use crate::ops::{Effect, Kinds};

/// How a pair was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairSource {
    /// an optimizer op in main
    Optimizer(OpId),
    /// a cast in startup, by name
    StartupCast(OpId),
    /// the caller said so
    Declared,
}

/// A parameter and its master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// the 16-bit parameter
    pub param: Name,
    /// the float32 master
    pub master: Name,
    /// the parameter's dtype in main
    pub low: DType,
    /// how it was found
    pub source: PairSource,
}

/// Pairs that one cell can be part of; further ones do not count as pairs, and are reported. A chain
/// needs two; without a bound a look at one cell would cost the whole program.
pub const MAX_PAIRS_OF_A_CELL: usize = 64;

/// All pairs of a program, in order of discovery.
pub struct Pairs {
    rows: Vec<Pair>,
    heads: Vec<u32>,
    links: Vec<(u32, u32)>,
    rejected: Vec<Pair>,
}

/// If `master` is named as a master of some parameter, that parameter's name and the counter.
pub fn split_master_name(master: &str) -> Option<(&str, u64)> {
    let (param, n) = master.rsplit_once("_fp32_master_")?;
    let plain = !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) && (n.len() == 1 || !n.starts_with('0'));
    (plain && !param.is_empty()).then(|| n.parse().ok().map(|n| (param, n))).flatten()
}

impl Pairs {
    /// Finds the pairs; `declared` are those that the caller knows of.
    pub fn new(program: &Program, kinds: &Kinds<'_>, cells: &Cells, declared: &[(Name, Name)]) -> Self {
        let mut found: Vec<(Name, Name, PairSource)> = Vec::new();
        for block in program.section_blocks(Section::Main) {
            for op in program.ops(block) {
                if let Effect::Optimizer(_) = kinds.get(op.kind()).effect {
                    let (params, masters) = (op.input(sym::PARAM), op.input(sym::MASTER_PARAM));
                    for (&p, &m) in params.iter().zip(masters) {
                        found.push((p, m, PairSource::Optimizer(op.id)));
                    }
                }
            }
        }
        for block in program.section_blocks(Section::Startup) {
            for op in program.ops(block) {
                let (Effect::Cast | Effect::Copy) = kinds.get(op.kind()).effect else { continue };
                let (&[p], &[m]) = (op.input(sym::X), op.output(sym::OUT)) else { continue };
                let named = || split_master_name(program.name(m)).is_some_and(|(base, _)| base == program.name(p));
                if cells.get(m).persistable && named() {
                    found.push((p, m, PairSource::StartupCast(op.id)));
                }
            }
        }
        found.extend(declared.iter().map(|&(p, m)| (p, m, PairSource::Declared)));

        let mut this = Pairs {
            rows: Vec::new(),
            heads: vec![u32::MAX; program.names().len()],
            links: Vec::new(),
            rejected: Vec::new(),
        };
        let mut refused: SeededSet<(Name, Name)> = SeededSet::default();
        for (param, master, source) in found {
            if param == master || this.of(param).any(|i| this.rows[i].master == master) {
                continue;
            }
            let low = cells.dtype(program, param).unwrap_or(DType::Other(-1));
            let pair = Pair { param, master, low, source };
            // Without a main program nothing says that the parameter will be narrow.
            let fits =
                low.is_low() && cells.dtype(program, master) == Some(DType::F32) && same_shape(program, cells, pair);
            let crowded = |this: &Self, n| this.of(n).nth(MAX_PAIRS_OF_A_CELL - 1).is_some();
            if fits && !crowded(&this, param) && !crowded(&this, master) {
                this.link(param);
                this.link(master);
                this.rows.push(pair);
            } else if (low.is_low() || matches!(source, PairSource::Declared)) && refused.insert((param, master)) {
                this.rejected.push(pair);
            }
        }
        this
    }

    fn link(&mut self, name: Name) {
        let head = &mut self.heads[name.index()];
        self.links.push((self.rows.len() as u32, *head));
        *head = self.links.len() as u32 - 1;
    }

    /// The pairs.
    pub fn rows(&self) -> &[Pair] {
        &self.rows
    }

    /// What looked like a pair but does not fit: another shape, a master that is not float32, a cell
    /// of more than [`MAX_PAIRS_OF_A_CELL`] pairs.
    pub fn rejected(&self) -> &[Pair] {
        &self.rejected
    }

    /// Pairs that a cell is part of, latest first.
    #[inline]
    pub fn of(&self, name: Name) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.heads.get(name.index()).copied().unwrap_or(u32::MAX);
        std::iter::from_fn(move || {
            let &(pair, next) = self.links.get(at as usize)?;
            at = next;
            Some(pair as usize)
        })
    }

    /// Whether a cell is part of a pair.
    #[inline]
    pub fn has(&self, name: Name) -> bool {
        self.heads.get(name.index()).is_some_and(|&h| h != u32::MAX)
    }
}

fn same_shape(program: &Program, cells: &Cells, pair: Pair) -> bool {
    match (cells.declaration(pair.param), cells.declaration(pair.master)) {
        (Some(a), Some(b)) => program.shape(a) == program.shape(b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::split_master_name;

    #[test]
    fn master_names_have_a_plain_counter() {
        assert_eq!(split_master_name("a.b_0_fp32_master_12"), Some(("a.b_0", 12)));
        assert_eq!(split_master_name("w_fp32_master_0_moment1_0"), None);
        assert_eq!(split_master_name("w_fp32_master_01"), None);
        assert_eq!(split_master_name("_fp32_master_0"), None);
    }
}
