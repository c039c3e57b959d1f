//! What do several analyses of one program share? Computed once, handed round.

use crate::analysis::cells::Cells;
use crate::analysis::effects::Effects;
use crate::analysis::pairs::Pairs;
use crate::ir::Program;
use crate::names::Name;
use crate::ops::{Kinds, Ops};

/// Kinds, effects, declarations and pairs of one program.
pub struct Facts<'p> {
    /// the program
    pub program: &'p Program,
    /// its op kinds, resolved
    pub kinds: Kinds<'p>,
    /// what its ops touch
    pub effects: Effects<'p>,
    /// what it declares
    pub cells: Cells,
    /// its parameter/master pairs
    pub pairs: Pairs,
}

impl<'p> Facts<'p> {
    /// Computes them; `declared` are pairs that the caller knows of.
    pub fn new(program: &'p Program, ops: &'p Ops, declared: &[(Name, Name)]) -> Self {
        let kinds = ops.resolve(program);
        let effects = Effects::new(program, &kinds);
        let cells = Cells::new(program);
        let pairs = Pairs::new(program, &kinds, &cells, declared);
        Facts { program, kinds, effects, cells, pairs }
    }
}
