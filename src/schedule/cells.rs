//! Which storage cells can a load write, and which of them are pairs? Read off the declarations and the optimizer.

use crate::ir::{DType, Program, Section, VarId, VarKind};
use crate::names::{Name, sym};
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

/// A persistable tensor, as the two programs declare it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cell {
    pub startup: Option<VarId>,
    pub main: Option<VarId>,
}

impl Cell {
    /// The declaration that main runs with: its own, or startup's when it has none.
    pub fn decl(&self) -> VarId {
        self.main.or(self.startup).expect("a cell is declared somewhere")
    }
}

/// What a cell is to a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// a parameter, paired with a master or not
    Param { paired: bool },
    /// the master of a pair
    Master,
    /// anything else that is persistable
    Other,
}

/// The cells of a program, and its pairs.
pub(super) struct Cells {
    /// in the order of startup's declarations, then main's
    pub rows: IndexMap<Name, Cell, FxBuildHasher>,
    /// (parameter, master), in the order of the optimizer ops, then by name
    pub pairs: Vec<(Name, Name)>,
    params: FxHashSet<Name>,
    masters: FxHashSet<Name>,
}

impl Cells {
    /// Collects them in one sweep over declarations and ops.
    pub fn of(program: &Program) -> Cells {
        let mut rows: IndexMap<Name, Cell, FxBuildHasher> = IndexMap::default();
        for section in Section::ALL {
            for block in program.section_blocks(section) {
                for &id in &program.block(block).vars {
                    let v = program.var(id);
                    if !v.persistable() || v.kind != VarKind::LOD_TENSOR {
                        continue;
                    }
                    let cell = rows.entry(v.name).or_default();
                    let side = match section {
                        Section::Startup => &mut cell.startup,
                        Section::Main => &mut cell.main,
                    };
                    side.get_or_insert(id);
                }
            }
        }
        let pairs = pairs(program, &rows);
        let params = pairs.iter().map(|&(p, _)| p).collect();
        let masters = pairs.iter().map(|&(_, m)| m).collect();
        Cells { rows, pairs, params, masters }
    }

    /// What a cell is.
    pub fn part(&self, program: &Program, name: Name) -> Part {
        if self.masters.contains(&name) {
            return Part::Master;
        }
        let paired = self.params.contains(&name);
        let cell = &self.rows[&name];
        let declared = [cell.startup, cell.main].into_iter().flatten().any(|v| program.var(v).is_parameter());
        if paired || declared { Part::Param { paired } } else { Part::Other }
    }

    /// The dtypes that the declarations of a cell name, main's first.
    pub fn declared(&self, program: &Program, name: Name) -> impl Iterator<Item = DType> {
        let cell = &self.rows[&name];
        [cell.main, cell.startup].map(|v| v.map(|v| program.var(v).dtype)).into_iter().flatten()
    }
}

/// Pairs by the optimizer's slots; for parameters that no optimizer op pairs, by `<param>_fp32_master_<N>`.
fn pairs(program: &Program, rows: &IndexMap<Name, Cell, FxBuildHasher>) -> Vec<(Name, Name)> {
    let mut pairs = Vec::new();
    let mut seen: FxHashMap<Name, Name> = FxHashMap::default();
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            let masters = op.input(sym::MASTER_PARAM);
            for (&param, &master) in op.input(sym::PARAM).iter().zip(masters) {
                if rows.contains_key(&param) && rows.contains_key(&master) && seen.insert(param, master).is_none() {
                    pairs.push((param, master));
                }
            }
        }
    }
    for &master in rows.keys() {
        let Some(param) = param_of(program.name(master)).and_then(|p| program.names().lookup(p)) else { continue };
        // A pair's parameter is 16-bit in main; a float32 one has no use for a master.
        let low = rows.get(&param).and_then(|c| c.main).is_some_and(|v| program.var(v).dtype.is_low());
        if low && seen.insert(param, master).is_none() {
            pairs.push((param, master));
        }
    }
    pairs
}

/// `linear_0.w_0` of `linear_0.w_0_fp32_master_0`, any number.
fn param_of(master: &str) -> Option<&str> {
    let (param, number) = master.rsplit_once("_fp32_master_")?;
    (!param.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(param)
}

#[cfg(test)]
mod tests {
    use super::param_of;

    #[test]
    fn a_master_is_known_by_its_name_whatever_its_number() {
        assert_eq!(param_of("fc_0.w_0_fp32_master_0"), Some("fc_0.w_0"));
        assert_eq!(param_of("fc_0.w_0_fp32_master_12"), Some("fc_0.w_0"));
        assert_eq!(param_of("fc_0.w_0_fp32_master_0_moment1_0"), None);
        assert_eq!(param_of("fc_0.w_0_fp32_master_"), None);
        assert_eq!(param_of("_fp32_master_0"), None);
    }
}
