//! Which write does each read see? Def-use by reaching definition, as compressed rows.
//!
//! A definition is a write of a cell by an op, or the cell's value at the entry of its section. In a
//! sub-block the entry of a loop body defines what the body writes (the value may come from either
//! side); after a control op, the op itself defines what its sub-blocks may have written.

use crate::analysis::effects::{Access, Effects};
use crate::entity::{EntityId, IdVec, entity};
use crate::ir::{BlockId, OpId, Program, Section};
use crate::names::Name;
use crate::ops::Effect;

entity! {
    /// A definition.
    DefId, "def"
}

/// Who made a definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefSite {
    /// the value at the entry of the section
    Entry,
    /// a write by an op, or by the sub-blocks that it runs
    Op(OpId),
    /// the value at the head of the loop that this op runs
    LoopHead(OpId),
}

/// A definition of one cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Def {
    /// the cell
    pub name: Name,
    /// who made it
    pub site: DefSite,
}

/// Definitions of a section and the ops that read each.
pub struct DefUse {
    defs: IdVec<DefId, Def>,
    starts: Vec<u32>,
    users: Vec<OpId>,
    reads: Vec<(OpId, DefId)>,
    read_starts: Vec<u32>,
}

impl DefUse {
    /// Computes definitions and uses of a section, in time linear in its arguments.
    pub fn new(program: &Program, effects: &Effects<'_>, section: Section) -> Self {
        let mut walk = Walk {
            program,
            effects,
            current: vec![None; program.names().len()],
            defs: IdVec::new(),
            uses: Vec::new(),
            done: vec![false; program.block_rows()],
        };
        if let Some(global) = program.global_block(section) {
            walk.block(global);
        }
        let Walk { defs, uses, .. } = walk;
        let (starts, users) = rows(defs.len(), uses.iter().map(|&(op, def)| (def.index(), op)));
        let (read_starts, reads) = rows(program.op_rows(), uses.iter().map(|&(op, def)| (op.index(), (op, def))));
        DefUse { defs, starts, users, reads, read_starts }
    }

    /// A definition.
    pub fn def(&self, id: DefId) -> Def {
        self.defs[id]
    }

    /// All definitions.
    pub fn defs(&self) -> impl Iterator<Item = (DefId, &Def)> {
        self.defs.iter()
    }

    /// The ops that read a definition, in program order; an op that reads it twice comes twice.
    pub fn users(&self, id: DefId) -> &[OpId] {
        &self.users[self.starts[id.index()] as usize..self.starts[id.index() + 1] as usize]
    }

    /// The definitions that an op reads, in the order of its arguments (then its sub-blocks' reads).
    pub fn reads(&self, op: OpId) -> impl Iterator<Item = DefId> + '_ {
        let (a, b) = (self.read_starts[op.index()] as usize, self.read_starts[op.index() + 1] as usize);
        self.reads[a..b].iter().map(|&(_, def)| def)
    }

    /// The definition of a cell that an op reads.
    pub fn reaching(&self, op: OpId, name: Name) -> Option<DefId> {
        self.reads(op).find(|&d| self.defs[d].name == name)
    }
}

/// Counting sort into compressed rows; keeps the order within a row.
fn rows<T: Copy>(n: usize, items: impl Iterator<Item = (usize, T)> + Clone) -> (Vec<u32>, Vec<T>) {
    let mut starts = vec![0u32; n + 1];
    for (row, _) in items.clone() {
        starts[row + 1] += 1;
    }
    for i in 0..n {
        starts[i + 1] += starts[i];
    }
    let mut at = starts.clone();
    let mut out: Vec<Option<T>> = vec![None; starts[n] as usize];
    for (row, item) in items {
        out[at[row] as usize] = Some(item);
        at[row] += 1;
    }
    (starts, out.into_iter().flatten().collect())
}

struct Walk<'w, 'p> {
    program: &'p Program,
    effects: &'w Effects<'p>,
    current: Vec<Option<DefId>>,
    defs: IdVec<DefId, Def>,
    uses: Vec<(OpId, DefId)>,
    done: Vec<bool>,
}

impl Walk<'_, '_> {
    fn read(&mut self, op: OpId, name: Name) {
        let def = match self.current[name.index()] {
            Some(def) => def,
            None => self.write(DefSite::Entry, name),
        };
        self.uses.push((op, def));
    }

    fn write(&mut self, site: DefSite, name: Name) -> DefId {
        let def = self.defs.push(Def { name, site });
        self.current[name.index()] = Some(def);
        def
    }

    fn block(&mut self, block: BlockId) {
        // Each block is entered once: a block that two ops run is walked for the first.
        if std::mem::replace(&mut self.done[block.index()], true) {
            return;
        }
        let program = self.program;
        for op in program.ops(block) {
            let effects = self.effects;
            effects.each(op, |name, access| {
                if access == Access::Read {
                    self.read(op.id, name);
                }
            });
            for sub in op.sub_blocks() {
                // What a block declares for itself has no definition before, and none after.
                let own = program.block(sub).vars.iter().map(|&v| program.var(v)).filter(|v| !v.persistable());
                let own: Vec<_> = own.map(|v| (v.name, self.current[v.name.index()].take())).collect();
                let writes = &effects.block(sub).writes;
                let saved: Vec<_> = writes.iter().map(|n| self.current[n.index()]).collect();
                if effects.effect(op) == Effect::While {
                    for &name in writes {
                        self.write(DefSite::LoopHead(op.id), name);
                    }
                }
                self.block(sub);
                for (&name, def) in writes.iter().zip(saved) {
                    self.current[name.index()] = def;
                }
                for (name, def) in own {
                    self.current[name.index()] = def;
                }
            }
            effects.each(op, |name, access| {
                if access != Access::Read && self.written_by(op.id, name).is_none() {
                    self.write(DefSite::Op(op.id), name);
                }
            });
        }
    }

    fn written_by(&self, op: OpId, name: Name) -> Option<DefId> {
        self.current[name.index()].filter(|&d| self.defs[d].site == DefSite::Op(op))
    }
}
