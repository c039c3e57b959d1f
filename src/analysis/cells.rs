//! What do startup and main declare about each storage cell? One dense row per name.
//!
//! A persistable is one cell, wherever it is declared: also a sub-block's declaration of one counts.

use crate::entity::EntityId;
use crate::ir::{DType, Program, Section, VarFlag, VarId};
use crate::names::Name;

/// The declarations of a cell: those of the global blocks, and of persistables also those of sub-blocks.
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

/// A [`Cell`] in twelve bytes: ids with [`NONE`] for none, and two bits.
#[derive(Clone, Copy)]
struct Row {
    vars: [u32; 2],
    persistable: bool,
    is_parameter: bool,
}

const NONE: u32 = u32::MAX;

/// Declarations by name. The first declaration of a name counts; the verifier reports a second one.
pub struct Cells {
    rows: Vec<Row>,
}

impl Cells {
    /// Reads the declarations of both sections.
    pub fn new(program: &Program) -> Self {
        let none = Row { vars: [NONE; 2], persistable: false, is_parameter: false };
        let mut rows = vec![none; program.names().len()];
        for block in Section::ALL.into_iter().flat_map(|s| program.section_blocks(s)) {
            for &id in &program.block(block).vars {
                let var = program.var(id);
                rows[var.name.index()].persistable |= var.persistable();
            }
        }
        for section in Section::ALL {
            let blocks = program.section_blocks(section);
            for (block, &id) in blocks.flat_map(|b| program.block(b).vars.iter().map(move |v| (b, v))) {
                let var = program.var(id);
                let cell = &mut rows[var.name.index()];
                if program.block(block).index != 0 && !cell.persistable {
                    continue;
                }
                cell.is_parameter |= var.flags.is(VarFlag::IsParameter);
                let place = &mut cell.vars[section as usize];
                if *place == NONE {
                    *place = id.index() as u32;
                }
            }
        }
        Cells { rows }
    }

    /// The row of a name.
    #[inline]
    pub fn get(&self, name: Name) -> Cell {
        let Some(row) = self.rows.get(name.index()) else { return Cell::default() };
        let [startup, main] = row.vars.map(|v| (v != NONE).then_some(VarId(v)));
        Cell { startup, main, persistable: row.persistable, is_parameter: row.is_parameter }
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
