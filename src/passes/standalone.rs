//! What does a user run after weights were loaded from outside the program? A program of its own.
//!
//! `resync`: parameters were loaded (`set_state_dict`): each master is made from its parameter, at
//! whatever precision that now has, then the parameter is narrowed. `renarrow`: masters were loaded: each
//! parameter is narrowed from its master. Derived copies are derived again after their sources.

use super::lower::subjects;
use super::master_casts::cast;
use super::{PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::coherence::Subject;
use crate::ir::{At, Attr, DType, Edit, NewOp, Origin, Program, Section, VarDef, VarFlag};
use crate::names::{Name, sym};

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standalone {
    /// parameters were loaded
    Resync,
    /// masters were loaded
    Renarrow,
}

/// Makes the program, in lowered form, as the main section of a new [`Program`].
pub fn standalone(program: &Program, which: Standalone, cx: &PassCx<'_>) -> Result<Program, PassError> {
    let cells = Cells::new(program);
    let mut out = Program::new();
    let section = program.section(Section::Main);
    out.set_section_info(Section::Main, section.version, section.op_versions.clone());
    let block = out.push_block(Section::Main, -1, None);
    let origin = out.push_origin(Origin::Built { tag: 0 });
    let mut declared = indexmap::IndexMap::new();
    let mut edit = Edit::new();
    let mut make = Make { from: program, cells: &cells, out: &mut out, declared: &mut declared };
    let mut derived = None;
    for subject in subjects(program, cx) {
        match subject {
            // One op, several copies: they stand together.
            Subject::Copy { op, .. } if derived.replace(op) == Some(op) => {}
            Subject::Pair(pair) => {
                let (p, m) = (make.cell(pair.param, None), make.cell(pair.master, None));
                match which {
                    Standalone::Resync => {
                        edit.insert(
                            At::End(block),
                            cast(p, m, DType::F32, DType::F32),
                            "the master from the parameter",
                        );
                        make.narrow(&mut edit, block, pair.param, pair.low);
                    }
                    Standalone::Renarrow => {
                        edit.insert(At::End(block), cast(m, p, DType::F32, pair.low), "the parameter from its master");
                    }
                }
            }
            Subject::Param(name) if which == Standalone::Resync => {
                if let Some(low) = cells.dtype(program, name) {
                    make.narrow(&mut edit, block, name, low);
                }
            }
            Subject::Param(_) => {}
            Subject::Copy { op, .. } => {
                let r = program.op(op);
                let kind = make.out.symbol(r.kind_str());
                let mut new = NewOp::new(kind);
                for slot in r.inputs() {
                    let args: Vec<Name> = slot.args.iter().map(|&n| make.cell(n, None)).collect();
                    let name = make.out.symbol(program.sym(slot.name));
                    new = new.input(name, args);
                }
                for slot in r.outputs() {
                    let args: Vec<Name> = slot.args.iter().map(|&n| make.cell(n, None)).collect();
                    let name = make.out.symbol(program.sym(slot.name));
                    new = new.output(name, args);
                }
                for attr in r.attrs() {
                    let name = make.out.symbol(program.sym(attr.name));
                    new.attrs.push(Attr { name, ..attr.clone() });
                }
                edit.insert(At::End(block), new, "derived again");
            }
        }
    }
    for def in declared.into_values() {
        out.push_var(block, &def, origin);
    }
    edit.commit(&mut out, "standalone");
    Ok(out)
}

struct Make<'a> {
    from: &'a Program,
    cells: &'a Cells,
    out: &'a mut Program,
    declared: &'a mut indexmap::IndexMap<Name, VarDef>,
}

impl Make<'_> {
    /// The cell of the new program, declared as main has it.
    fn cell(&mut self, name: Name, dtype: Option<DType>) -> Name {
        let new = self.out.intern(self.from.name(name));
        if let Some(var) = self.cells.declaration(name) {
            self.declared.entry(new).or_insert_with(|| {
                let mut def = self.from.var_def(var);
                def.name = new;
                def.dtype = dtype.unwrap_or(def.dtype);
                def.with(VarFlag::Persistable, true)
            });
        }
        new
    }

    /// Narrows a cell in place.
    fn narrow(&mut self, edit: &mut Edit, block: crate::ir::BlockId, name: Name, low: DType) {
        let cell = self.cell(name, None);
        let base = format!("{}.wide", self.from.name(name));
        // Cells that come later have their names too.
        let taken = |s: &Self, text: &str| [s.from.names(), s.out.names()].iter().any(|n| n.lookup(text).is_some());
        let (mut text, mut n) = (base.clone(), 0u64);
        while taken(self, &text) {
            n += 1;
            text = format!("{base}.{n}");
        }
        let tmp = self.out.intern(&text);
        let shape = self.declared.get(&cell).map(|d| d.shape.clone()).unwrap_or_default();
        self.declared.insert(tmp, VarDef::tensor(tmp, DType::F32, shape));
        let assign = NewOp::new(sym::ASSIGN).input(sym::X, [cell]).output(sym::OUT, [tmp]).attr(sym::OP_ROLE, 0);
        edit.insert(At::End(block), assign, "narrows in place: the value aside");
        edit.insert(At::End(block), cast(tmp, cell, DType::F32, low), "narrows in place: and back");
    }
}
