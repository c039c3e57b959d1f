//! What do startup and main declare about each storage cell? One dense row per name.

use crate::entity::EntityId;
use crate::ir::{DType, Program, Section, VarFlag, VarId};
use crate::names::Name;

/// The global declarations of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cell {
    /// in startup
    pub startup: Option<VarId>,
    /// in main
    pub main: Option<VarId>,
    /// whether either calls it persistable
    pub persistable: bool,
    /// whether either calls it a parameter
    pub is_parameter: bool,
}

/// Declarations by name. The first declaration of a name counts; the verifier reports a second one.
pub struct Cells {
    rows: Vec<Cell>,
}

impl Cells {
    /// Reads the global blocks of both sections.
    pub fn new(program: &Program) -> Self {
        let mut rows = vec![Cell::default(); program.names().len()];
        for section in Section::ALL {
            let Some(global) = program.global_block(section) else { continue };
            for &id in &program.block(global).vars {
                let var = program.var(id);
                let cell = &mut rows[var.name.index()];
                cell.persistable |= var.persistable();
                cell.is_parameter |= var.flags.is(VarFlag::IsParameter);
                let place = match section {
                    Section::Startup => &mut cell.startup,
                    Section::Main => &mut cell.main,
                };
                place.get_or_insert(id);
            }
        }
        Cells { rows }
    }

    /// The row of a name.
    #[inline]
    pub fn get(&self, name: Name) -> Cell {
        self.rows.get(name.index()).copied().unwrap_or_default()
    }

    /// The declaration that main goes by: its own, else startup's.
    pub fn declaration(&self, name: Name) -> Option<VarId> {
        let cell = self.get(name);
        cell.main.or(cell.startup)
    }

    /// The dtype that a cell must have when main starts.
    pub fn dtype(&self, program: &Program, name: Name) -> Option<DType> {
        self.declaration(name).map(|v| program.var(v).dtype)
    }
}
