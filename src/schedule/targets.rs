//! Which storage cells can a load write, and what is each to it? Parameters, masters, anything else persistable.

use crate::analysis::cells::Cells;
use crate::analysis::pairs::Pairs;
use crate::ir::{DType, Program, Section, VarId, VarKind};
use crate::names::Name;
use crate::ops::Ops;
use rustc_hash::FxHashSet;

/// What a cell is to a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// a parameter, paired with a master or not
    Param { paired: bool },
    /// the master of a pair
    Master,
    /// anything else that is persistable
    Other,
}

/// The persistable tensors of a program.
pub(crate) struct Targets {
    /// in the order of startup's declarations, then main's
    pub names: Vec<Name>,
    cells: Cells,
    pairs: Pairs,
}

impl Targets {
    /// Collects them in one sweep over declarations and ops.
    pub fn of(program: &Program) -> Targets {
        let cells = Cells::new(program);
        let pairs = Pairs::new(program, &Ops::standard().resolve(program), &cells, &[]);
        let (mut names, mut set) = (Vec::new(), FxHashSet::default());
        for block in Section::ALL.into_iter().filter_map(|s| program.global_block(s)) {
            for &id in &program.block(block).vars {
                let v = program.var(id);
                if v.kind == VarKind::LOD_TENSOR && cells.get(v.name).persistable && set.insert(v.name) {
                    names.push(v.name);
                }
            }
        }
        Targets { names, cells, pairs }
    }

    /// What a cell is.
    pub fn part(&self, name: Name) -> Part {
        let pairs = || self.pairs.of(name).map(|i| self.pairs.rows()[i]);
        // In a chain param -> m1 -> m2 the middle one is a master.
        if pairs().any(|p| p.master == name) {
            return Part::Master;
        }
        let paired = pairs().next().is_some();
        if paired || self.cells.get(name).is_parameter { Part::Param { paired } } else { Part::Other }
    }

    /// The declaration that main goes by.
    pub fn decl(&self, name: Name) -> VarId {
        self.cells.declaration(name).expect("a target is declared")
    }

    /// Startup's declaration.
    pub fn startup(&self, name: Name) -> Option<VarId> {
        self.cells.get(name).startup
    }

    /// The dtype that main declares.
    pub fn main_dtype(&self, program: &Program, name: Name) -> Option<DType> {
        self.cells.get(name).main.map(|v| program.var(v).dtype)
    }

    /// The dtypes that startup or main declares, main's first.
    pub fn declared(&self, program: &Program, name: Name) -> impl Iterator<Item = DType> {
        let cell = self.cells.get(name);
        [cell.main, cell.startup].map(|v| v.map(|v| program.var(v).dtype)).into_iter().flatten()
    }

    /// The first pair of each of these parameters: that of its optimizer, if there is one.
    pub fn masters(&self, params: &[Name]) -> Vec<(Name, Name)> {
        let mut open: FxHashSet<Name> = params.iter().copied().collect();
        self.pairs.rows().iter().filter(|p| open.remove(&p.param)).map(|p| (p.param, p.master)).collect()
    }
}
