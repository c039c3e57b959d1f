//! What does a user run after weights were loaded from outside the program? A program of its own.
//!
//! `resync`: parameters were loaded (`set_state_dict`): each master is made from its parameter, at
//! whatever precision that now has, then the parameter is narrowed. `renarrow`: masters were loaded: each
//! parameter is narrowed from its master. Derived copies are derived again after their sources.

use super::master_casts::cast;
use super::{PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::coherence::{Subject, coherence_with};
use crate::analysis::exec::ExecOptions;
use crate::analysis::order::positions;
use crate::entity::EntityId;
use crate::ir::{At, Attr, BlockId, DType, Edit, Entity, NewOp, OpId, Origin, Program, Section, VarDef, VarFlag};
use crate::names::{Name, sym};
use crate::paddle::pir;
use indexmap::IndexMap;
use rustc_hash::FxHashSet;

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standalone {
    /// parameters were loaded
    Resync,
    /// masters were loaded
    Renarrow,
}

/// Makes the program, in lowered form, as the main section of a new [`Program`].
///
/// Masters come first, all from parameters that are still as wide as they were loaded; then float32 copies
/// of parameters that have no master, then the narrowing, then the other copies in program order. Of a
/// parameter with several masters, `renarrow` believes the first. PIR declares each operand's dtype, and
/// casts say the parameter's own; a cast to float32 of what is float32 copies it all the same (Paddle 3.3.1), so
/// that one program does for parameters loaded wide or narrow. To run `resync` a second time rounds the
/// masters, because by then the parameters are narrow.
pub fn standalone(program: &Program, which: Standalone, cx: &PassCx<'_>) -> Result<Program, PassError> {
    let cells = Cells::new(program);
    let mut out = Program::new();
    let section = program.section(Section::Main);
    out.set_section_info(Section::Main, section.version, section.op_versions.clone());
    let pir = Section::ALL.into_iter().any(|s| pir::is_pir(program, s));
    if pir {
        out.set_extra(Entity::Section(Section::Main), pir::new_head());
    }
    let block = out.push_block(Section::Main, -1, None);
    let origin = out.push_origin(Origin::Built { tag: 0 });
    let mut make =
        Make { from: program, cells: &cells, out: &mut out, block, declared: IndexMap::new(), edit: Edit::new() };
    let Subjects { masters, singles, copies } = subjects(program, cx, &cells);
    match which {
        Standalone::Resync => {
            for &(param, master, low) in &masters {
                let (p, m) = (make.cell(param), make.cell(master));
                let says = if pir { low } else { DType::F32 };
                make.put(cast(p, m, says, DType::F32), "the master from the parameter");
            }
            let (wide, rest): (Vec<_>, Vec<_>) = copies.into_iter().partition(|c| c.wide);
            wide.iter().for_each(|c| make.copy(c.op));
            let mut narrowed = FxHashSet::default();
            let masters = masters.iter().map(|&(param, master, low)| (param, Some(master), low));
            let params = masters.chain(singles.into_iter().map(|(param, low)| (param, None, low)));
            for (param, master, low) in params.filter(|p| narrowed.insert(p.0)) {
                match (pir, master) {
                    (true, Some(master)) => {
                        let (p, m) = (make.cell(param), make.cell(master));
                        make.put(cast(m, p, DType::F32, low), "the parameter from its master");
                    }
                    _ => make.narrow(param, low, pir),
                }
            }
            rest.iter().for_each(|c| make.copy(c.op));
        }
        Standalone::Renarrow => {
            let mut narrowed = FxHashSet::default();
            for &(param, master, low) in masters.iter().filter(|m| narrowed.insert(m.0)) {
                let (p, m) = (make.cell(param), make.cell(master));
                make.put(cast(m, p, DType::F32, low), "the parameter from its master");
            }
            copies.iter().for_each(|c| make.copy(c.op));
        }
    }
    let Make { declared, edit, .. } = make;
    for def in declared.into_values() {
        out.push_var(block, &def, origin);
    }
    edit.commit(&mut out, "standalone");
    Ok(out)
}

/// What has to be made, and from what.
struct Subjects {
    /// parameter, master, and the parameter's dtype
    masters: Vec<(Name, Name, DType)>,
    /// 16-bit parameters without master
    singles: Vec<(Name, DType)>,
    /// derivations, in program order
    copies: Vec<Derivation>,
}

struct Derivation {
    op: OpId,
    /// a wide copy of what has no master and will be narrowed: it cannot wait
    wide: bool,
}

fn subjects(program: &Program, cx: &PassCx<'_>, cells: &Cells) -> Subjects {
    let proof = coherence_with(program, cx.ops, &cx.declared, ExecOptions::default());
    let mut out = Subjects { masters: Vec::new(), singles: Vec::new(), copies: Vec::new() };
    let mut derivations: IndexMap<OpId, Name> = IndexMap::new();
    for verdict in &proof.verdicts {
        match verdict.subject {
            Subject::Pair(pair) => out.masters.push((pair.param, pair.master, pair.low)),
            Subject::Param(name) => out.singles.extend(cells.dtype(program, name).map(|low| (name, low))),
            // An op that derives several cells does so once.
            Subject::Copy { cell, op, .. } => drop(derivations.entry(op).or_insert(cell)),
        }
    }
    let singles: FxHashSet<Name> = out.singles.iter().map(|s| s.0).collect();
    let low = |n: Name| cells.dtype(program, n).is_some_and(DType::is_low);
    let of = |(op, cell): (OpId, Name)| {
        let wide = !low(cell) && program.op(op).input_args().all(|n| singles.contains(&n));
        Derivation { op, wide }
    };
    out.copies = derivations.into_iter().map(of).collect();
    let places = positions(program, Section::Startup);
    out.copies.sort_by_key(|c| places[c.op.index()]);
    out
}

/// The program in the making.
struct Make<'a> {
    from: &'a Program,
    cells: &'a Cells,
    out: &'a mut Program,
    block: BlockId,
    declared: IndexMap<Name, VarDef>,
    edit: Edit,
}

impl Make<'_> {
    fn put(&mut self, op: NewOp, why: &'static str) {
        self.edit.insert(At::End(self.block), op, why);
    }

    /// The cell of the new program, declared as main has it.
    fn cell(&mut self, name: Name) -> Name {
        let new = self.out.intern(self.from.name(name));
        if let Some(var) = self.cells.declaration(name) {
            self.declared.entry(new).or_insert_with(|| {
                let def = VarDef { name: new, ..self.from.var_def(var) };
                def.with(VarFlag::Persistable, true)
            });
        }
        new
    }

    /// Narrows a cell in place.
    fn narrow(&mut self, name: Name, low: DType, pir: bool) {
        let cell = self.cell(name);
        let tmp = self.fresh(name);
        let shape = self.declared.get(&cell).map(|d| d.shape.clone()).unwrap_or_default();
        self.declared.insert(tmp, VarDef::tensor(tmp, DType::F32, shape));
        let aside = match pir {
            true => cast(cell, tmp, low, DType::F32),
            false => NewOp::new(sym::ASSIGN).input(sym::X, [cell]).output(sym::OUT, [tmp]).attr(sym::OP_ROLE, 0),
        };
        self.put(aside, "cast in place: the value aside");
        self.put(cast(tmp, cell, DType::F32, low), "cast in place: and back");
    }

    /// A temporary for a cell, named as no variable of either program is.
    fn fresh(&mut self, name: Name) -> Name {
        let base = format!("{}.wide", self.from.name(name));
        // Cells that come later have their names too.
        let taken = |s: &Self, text: &str| [s.from.names(), s.out.names()].iter().any(|n| n.lookup(text).is_some());
        let (mut text, mut n) = (base.clone(), 0u64);
        while taken(self, &text) {
            n += 1;
            text = format!("{base}.{n}");
        }
        self.out.intern(&text)
    }

    /// Derives cells again as an op of the original does.
    fn copy(&mut self, op: OpId) {
        let from = self.from;
        let op = from.op(op);
        let mut new = NewOp::new(self.out.symbol(op.kind_str()));
        for slot in op.inputs() {
            let name = self.out.symbol(from.sym(slot.name));
            new.inputs.push((name, slot.args.iter().map(|&n| self.cell(n)).collect()));
        }
        for slot in op.outputs() {
            let name = self.out.symbol(from.sym(slot.name));
            new.outputs.push((name, slot.args.iter().map(|&n| self.cell(n)).collect()));
        }
        for attr in op.attrs() {
            let name = self.out.symbol(from.sym(attr.name));
            new.attrs.push(Attr { name, ..attr.clone() });
        }
        self.put(new, "derived again");
    }
}
