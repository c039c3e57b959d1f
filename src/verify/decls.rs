//! Which declaration does a name mean in a block, and does every name have one?
//!
//! - V4 `duplicate-declaration`: a block declares a name once.
//! - V5 `undeclared-variable`: an argument, or a variable that an attribute names, is declared in a visible block. Visible are the block
//!   itself, its forward block, and so on for each of its ancestors, as in Paddle 2.6.2's
//!   `FindVarRecursive`. The empty name and `@EMPTY@` (no argument here) need none. In gradient
//!   ops and blocks, which the framework writes, it is a warning.
//!
//! [`DeclIndex`] answers the first question for others too.

use super::{Cx, OpAt, all_blocks, is_gradient, op_place, ops_at, var_place, vars_at};
use crate::diag::{Code, Diagnostic, Place, Severity, shorten};
use crate::entity::{EntityId, IdVec};
use crate::ir::{BlockId, Program, Section, VarId};
use crate::names::{Name, SeededMap};

/// Paddle's `kEmptyVarName`: an argument that is not there.
pub const EMPTY_VAR: &str = "@EMPTY@";

/// Deepest nesting of blocks that a sound program has, and the most steps that a look-up takes.
pub const MAX_NESTING: usize = 256;

/// Forward blocks followed from one block: a gradient of a gradient has two.
const MAX_FORWARD: usize = 4;

#[derive(Clone, Copy)]
struct Link {
    section: Section,
    global: bool,
    /// whether the block declares anything: most sub-blocks of deep nests do not
    declares: bool,
    parent: Option<BlockId>,
    forward: Option<BlockId>,
}

/// The declarations of a program by block and name. It knows the program as it was when it was made.
///
/// Built in linear time; a look-up from the global block is one index, from a sub-block at most
/// a few hashes of two integers for each level. Of duplicates the first counts.
pub struct DeclIndex {
    /// by name: 1 + the declaration in the global block, 0 when there is none
    global: [Vec<u32>; 2],
    local: SeededMap<(BlockId, Name), VarId>,
    links: IdVec<BlockId, Link>,
}

impl DeclIndex {
    /// Indexes a program whose handles are sound.
    pub fn new(program: &Program) -> Self {
        let mut global = Section::ALL.map(|s| match program.global_block(s) {
            Some(_) => vec![0; program.names().len()],
            None => Vec::new(),
        });
        let mut local = SeededMap::default();
        let mut links = IdVec::new();
        for b in (0..program.block_rows()).map(BlockId::from_index) {
            let data = program.block(b);
            links.push(Link {
                section: data.section,
                global: data.index == 0,
                declares: !data.vars.is_empty(),
                parent: if data.index == 0 { None } else { program.parent(b) },
                forward: data.forward.and_then(|f| program.block_at(data.section, f)),
            });
            for &v in &data.vars {
                let name = program.var(v).name;
                if data.index == 0 {
                    let row = &mut global[data.section as usize][name.index()];
                    if *row == 0 {
                        *row = v.index() as u32 + 1;
                    }
                } else {
                    local.entry((b, name)).or_insert(v);
                }
            }
        }
        DeclIndex { global, local, links }
    }

    /// The declaration in this very block.
    #[inline]
    pub fn declared_in(&self, block: BlockId, name: Name) -> Option<VarId> {
        let link = self.links.get(block)?;
        if link.global {
            return self.global(link.section, name);
        }
        if !link.declares {
            return None;
        }
        self.local.get(&(block, name)).copied()
    }

    /// The declaration in a section's global block: the storage cell that startup and main share.
    #[inline]
    pub fn global(&self, section: Section, name: Name) -> Option<VarId> {
        match self.global[section as usize].get(name.index()) {
            None | Some(0) => None,
            Some(&row) => Some(VarId::from_index(row as usize - 1)),
        }
    }

    /// The declaration that a name means in a block: its own, its forward block's, or an ancestor's.
    #[inline]
    pub fn find(&self, block: BlockId, name: Name) -> Option<VarId> {
        let link = self.links.get(block)?;
        if link.global && link.forward.is_none() {
            return self.global(link.section, name);
        }
        self.find_up(block, name)
    }

    fn find_up(&self, block: BlockId, name: Name) -> Option<VarId> {
        let mut at = Some(block);
        for _ in 0..=MAX_NESTING {
            let link = self.links.get(at?)?;
            let mut here = at;
            for _ in 0..=MAX_FORWARD {
                let Some(b) = here else { break };
                if let Some(var) = self.declared_in(b, name) {
                    return Some(var);
                }
                here = self.links.get(b)?.forward;
            }
            at = link.parent;
        }
        None
    }
}

/// Checks V4.
pub(super) fn check_duplicates(cx: &mut Cx<'_>) {
    let p = cx.program;
    for block in all_blocks(p) {
        for at in vars_at(p, block) {
            let name = p.var(at.id).name;
            let first = cx.decls.declared_in(block, name).unwrap_or(at.id);
            if first == at.id {
                continue;
            }
            cx.push(Code::DuplicateDeclaration, Severity::Error, |p| {
                // Rows of one block are numbered in order, so that the index of the first is known.
                let index = p.block(block).vars.binary_search(&first).unwrap_or(0);
                Diagnostic::new(
                    Code::DuplicateDeclaration,
                    format!("`{}` is declared twice in one block", shorten(p.name(name))),
                    var_place(p, at),
                )
                .label(Place::var_at(p, first, index as u32), "declared here first")
            });
        }
    }
}

/// Checks V5.
pub(super) fn check_declared(cx: &mut Cx<'_>) {
    let p = cx.program;
    // One finding a name and section: what follows from it is no news.
    let mut known = vec![0u8; p.names().len()];
    let none = [p.names().lookup(EMPTY_VAR), p.names().lookup("")];
    for name in none.into_iter().flatten() {
        known[name.index()] = u8::MAX;
    }
    for block in all_blocks(p) {
        let bit = 1 << p.block(block).section as u8;
        for at in ops_at(p, block) {
            let op = p.op(at.id);
            let missing = |cx: &Cx<'_>, known: &mut [u8], args: &mut dyn Iterator<Item = Name>| {
                let mut names = Vec::new();
                for arg in args {
                    if known[arg.index()] & bit == 0 && cx.decls.find(block, arg).is_none() {
                        known[arg.index()] |= bit;
                        names.push(arg);
                    }
                }
                names
            };
            let read = missing(cx, &mut known, &mut op.input_args().chain(op.attr_vars()));
            let written = missing(cx, &mut known, &mut op.output_args());
            report(cx, block, at, "reads", &read);
            report(cx, block, at, "writes", &written);
        }
    }
}

fn report(cx: &mut Cx<'_>, block: BlockId, at: OpAt, verb: &str, names: &[Name]) {
    if names.is_empty() {
        return;
    }
    let p = cx.program;
    let gradient = is_gradient(p, block) || p.op(at.id).kind_str().ends_with("_grad");
    let severity = if gradient { Severity::Warning } else { Severity::Error };
    cx.push(Code::UndeclaredVariable, severity, |p| {
        const SHOWN: usize = 3;
        let shown: Vec<_> = names.iter().take(SHOWN).map(|&n| format!("`{}`", shorten(p.name(n)))).collect();
        let more = match names.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let message = format!("{verb} {}{more}, which no visible block declares", shown.join(", "));
        Diagnostic::new(Code::UndeclaredVariable, message, op_place(p, at))
            .help("declare it in this block or in a parent, or correct the name")
    });
}
