//! Do ops read the value that a rewrite to mixed precision meant them to read, in the dtype that they compute in?
//!
//! A *copy* is a variable that such a rewrite makes: `<x>.cast_fp16` (also of bfloat16) or `<x>.cast_fp32`,
//! perhaps with a number behind, written by a cast of `x`.
//!
//! - V13 `stale-cast`: between the cast and a forward use of the copy nothing writes `x`; and nothing reads `x`
//!   after an op wrote the copy in its place.
//! - V14 `undominated-cast`: the cast has run wherever a forward op reads the copy.
//! - V15 `capture-list` (warning): a `while` or `conditional_block` lists a copy exactly when its blocks
//!   read the copy, and `x` exactly when they read `x`.
//! - V16 `mixed-dtype` (warning): a forward op of a kind that computes in one float type reads and writes
//!   variables of one float type.
//!
//! Backward ops may read a copy of what was overwritten since: that is the value their forward op read. Blocks
//! of gradient ops are not looked into. One walk; leaving a sub-block undoes what it did.

use super::{Checks, Cx, DeclIndex, MAX_NESTING, OpAt, is_gradient, op_place};
use crate::analysis::effects::Effects;
use crate::analysis::numbers::Numbers;
use crate::diag::{Code, Diagnostic, shorten};
use crate::entity::EntityId;
use crate::ir::{BlockId, DType, OpId, OpRef, Program, Role, Section, VarId};
use crate::names::{Name, sym};
use crate::ops::{AmpLists, Effect, KeptSlots, Kinds, Ops};
use rustc_hash::{FxHashMap, FxHashSet};

/// A cast, or a copy that one made, that is wrong where an op uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CastFinding {
    /// the op that uses it
    pub op: OpId,
    /// its place in its block
    pub index: usize,
    /// what kind of fault
    pub code: Code,
    /// the variable at fault
    pub name: Name,
    /// the variable that it should agree with
    pub other: Option<Name>,
}

/// The variable that a copy's name says it copies: `x` of `x.cast_fp16`, `x.cast_fp32.1`.
pub fn copied(text: &str) -> Option<&str> {
    let at = [".cast_fp16", ".cast_fp32"].iter().filter_map(|s| text.rfind(s)).max()?;
    let rest = &text[at + ".cast_fp16".len()..];
    let number = |d: &str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix('.').is_some_and(number)).then(|| &text[..at])
}

/// V13 to V15 of a section.
pub fn cast_uses(program: &Program, ops: &Ops, section: Section) -> Vec<CastFinding> {
    let kinds = ops.resolve(program);
    uses(program, &kinds, &DeclIndex::new(program), section)
}

/// V16 of a section.
pub fn mixed_dtypes(program: &Program, section: Section) -> Vec<CastFinding> {
    mixed(program, &DeclIndex::new(program), section)
}

pub(super) fn check(cx: &mut Cx<'_>, checks: Checks) {
    for section in Section::ALL {
        let mut found = Vec::new();
        if checks.has(Checks::CAST_USES) {
            found = uses(cx.program, &cx.kinds, &cx.decls, section);
        }
        // In startup a cell may be wide while main declares it narrow: `amp_init` comes later.
        if checks.has(Checks::DTYPES) && section == Section::Main {
            found.extend(mixed(cx.program, &cx.decls, section));
        }
        for f in found {
            cx.push(f.code, f.code.severity(), |p| tell(p, &f));
        }
    }
}

fn tell(p: &Program, f: &CastFinding) -> Diagnostic {
    let name = shorten(p.name(f.name));
    let other = f.other.map(|n| shorten(p.name(n)).into_owned()).unwrap_or_default();
    let message = match f.code {
        Code::StaleCast => format!("reads `{name}`, but `{other}` holds a newer value"),
        Code::UndominatedCast => format!("reads `{name}`, but the cast that makes it has not run here"),
        Code::CaptureList if f.other.is_some() => format!("its blocks read `{name}`, but it lists `{other}`"),
        Code::CaptureList => format!("lists `{name}`, which its blocks do not touch"),
        _ => format!("`{name}` is of another float type than `{other}`"),
    };
    Diagnostic::new(f.code, message, op_place(p, OpAt { id: f.op, index: f.index }))
}

/// By name: the variable that it copies, for names that some cast makes so.
fn copies(program: &Program, section: Section) -> FxHashMap<Name, Name> {
    let mut out = FxHashMap::default();
    for op in program.section_blocks(section).flat_map(|b| program.ops(b)).filter(|op| op.kind() == sym::CAST) {
        if let (&[x], &[y]) = (op.input(sym::X), op.output(sym::OUT))
            && copied(program.name(y)) == Some(program.name(x))
        {
            out.insert(y, x);
        }
    }
    out
}

fn is_forward(op: OpRef<'_>) -> bool {
    !op.role().is_some_and(|r| r.has(Role::BACKWARD) || r.has(Role::OPTIMIZE))
}

/// What a copy holds.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Holds {
    /// nothing: its cast has not run here
    #[default]
    Nothing,
    /// what its source held when the cast ran
    Cast,
    /// what an op wrote in its place
    Own,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// a number for its value
    version: u32,
    holds: Holds,
    /// the copy in which an op left a newer value
    behind: Option<Name>,
}

struct Walk<'w> {
    program: &'w Program,
    decls: &'w DeclIndex,
    effects: Effects<'w>,
    copies: FxHashMap<Name, Name>,
    state: Vec<State>,
    undo: Vec<(VarId, State)>,
    depth: usize,
    numbers: Numbers,
    done: Vec<bool>,
    found: Vec<CastFinding>,
}

fn uses(program: &Program, kinds: &Kinds<'_>, decls: &DeclIndex, section: Section) -> Vec<CastFinding> {
    let copies = copies(program, section);
    let Some(global) = program.global_block(section).filter(|_| !copies.is_empty()) else { return Vec::new() };
    let mut walk = Walk {
        program,
        decls,
        effects: Effects::new(program, kinds),
        copies,
        state: (0..program.var_rows()).map(|i| State { version: i as u32 + 1, ..State::default() }).collect(),
        undo: Vec::new(),
        depth: 0,
        numbers: Numbers::after(program.var_rows() as u32 + 1),
        done: vec![false; program.block_rows()],
        found: Vec::new(),
    };
    walk.block(global);
    walk.found
}

impl Walk<'_> {
    fn set(&mut self, var: VarId, state: State) {
        let old = std::mem::replace(&mut self.state[var.index()], state);
        if self.depth > 0 {
            self.undo.push((var, old));
        }
    }

    /// A new value of a variable.
    fn write(&mut self, block: BlockId, name: Name) {
        let Some(var) = self.decls.find(block, name) else { return };
        let mut state = State { version: self.numbers.fresh(), holds: Holds::Nothing, behind: None };
        if let Some(&x) = self.copies.get(&name) {
            state.holds = Holds::Own;
            if let Some(source) = self.decls.find(block, x) {
                let old = self.state[source.index()];
                self.set(source, State { behind: Some(name), ..old });
            }
        }
        self.set(var, state);
    }

    fn block(&mut self, block: BlockId) {
        // Each block is walked once, for the first op that runs it.
        if std::mem::replace(&mut self.done[block.index()], true) {
            return;
        }
        let program = self.program;
        for (index, op) in program.ops(block).enumerate() {
            let effect = self.effects.effect(op);
            let control = op.has_sub_blocks();
            if !control && is_forward(op) {
                self.reads(block, op, index);
            }
            if control {
                let known = matches!(effect, Effect::Cond | Effect::While) && !op.kind_str().ends_with("_grad");
                if known && is_forward(op) {
                    self.captures(op, index);
                }
                self.enter(block, op, known, effect == Effect::While);
                continue;
            }
            if self.moves(block, op) {
                continue;
            }
            for name in op.output_args() {
                self.write(block, name);
            }
            if effect == Effect::Unknown {
                op.input_args().for_each(|n| self.write(block, n));
            }
        }
    }

    /// An assignment or a cast: the value of the result follows from that of the operand.
    fn moves(&mut self, block: BlockId, op: OpRef<'_>) -> bool {
        if !matches!(op.kind(), sym::CAST | sym::ASSIGN) {
            return false;
        }
        let (&[x], &[y]) = (op.input(sym::X), op.output(sym::OUT)) else { return false };
        let (Some(source), Some(made)) = (self.decls.find(block, x), self.decls.find(block, y)) else { return false };
        let (from, to) = (self.program.var(source).dtype, self.program.var(made).dtype);
        let version = self.state[source.index()].version;
        let copy = self.copies.get(&y) == Some(&x);
        if !copy && (self.copies.contains_key(&y) || op.kind() == sym::ASSIGN && from != to) {
            return false;
        }
        let holds = if copy { Holds::Cast } else { Holds::Nothing };
        let version = self.numbers.cast(version, from, to);
        self.set(made, State { version, holds, behind: None });
        true
    }

    fn reads(&mut self, block: BlockId, op: OpRef<'_>, index: usize) {
        for name in op.input_args() {
            let Some(var) = self.decls.find(block, name) else { continue };
            let state = self.state[var.index()];
            let mut report = |code, other| self.found.push(CastFinding { op: op.id, index, code, name, other });
            if let Some(newer) = state.behind {
                report(Code::StaleCast, Some(newer));
            }
            let Some(&x) = self.copies.get(&name) else { continue };
            match state.holds {
                Holds::Own => {}
                Holds::Nothing => report(Code::UndominatedCast, Some(x)),
                Holds::Cast => {
                    let Some(source) = self.decls.find(block, x) else { continue };
                    let (from, to) = (self.program.var(source).dtype, self.program.var(var).dtype);
                    if self.numbers.cast(self.state[source.index()].version, from, to) != state.version {
                        report(Code::StaleCast, Some(x));
                    }
                }
            }
        }
    }

    fn enter(&mut self, block: BlockId, op: OpRef<'_>, known: bool, is_loop: bool) {
        for sub in op.sub_blocks() {
            if known && self.depth < MAX_NESTING && !is_gradient(self.program, sub) {
                let mark = self.undo.len();
                self.depth += 1;
                if is_loop {
                    self.forget(block, sub);
                }
                self.block(sub);
                while self.undo.len() > mark {
                    let Some((var, old)) = self.undo.pop() else { break };
                    self.state[var.index()] = old;
                }
                self.depth -= 1;
            }
        }
        for sub in op.sub_blocks() {
            self.forget(block, sub);
        }
    }

    /// What a sub-block may write has another value at the head of a loop, and after it.
    fn forget(&mut self, block: BlockId, sub: BlockId) {
        for i in 0..self.effects.block(sub).writes.len() {
            let name = self.effects.block(sub).writes[i];
            if !self.copies.contains_key(&name) {
                self.write(block, name);
            }
        }
    }

    fn captures(&mut self, op: OpRef<'_>, index: usize) {
        let listed: FxHashSet<Name> = op.input_args().collect();
        let (mut reads, mut writes) = (FxHashSet::default(), FxHashSet::default());
        for sub in op.sub_blocks() {
            reads.extend(self.effects.block(sub).reads.iter().copied());
            writes.extend(self.effects.block(sub).writes.iter().copied());
        }
        let mut report = |name, other| {
            self.found.push(CastFinding { op: op.id, index, code: Code::CaptureList, name, other });
        };
        let mut told: FxHashSet<Name> = FxHashSet::default();
        for name in op.input_args().chain(op.output_args()) {
            let Some(&x) = self.copies.get(&name) else { continue };
            if !reads.contains(&name) && !writes.contains(&name) && told.insert(name) {
                report(name, None);
            }
            if reads.contains(&x) && !listed.contains(&x) && told.insert(x) {
                report(x, Some(name));
            }
        }
        for sub in op.sub_blocks() {
            for &name in &self.effects.block(sub).reads {
                if let Some(&x) = self.copies.get(&name)
                    && !listed.contains(&name)
                    && self.decls.declared_in(sub, name).is_none()
                    && told.insert(name)
                {
                    report(name, Some(x));
                }
            }
        }
    }
}

/// Kinds of the gray list whose result does not follow their inputs, or that have slots of their own.
const NOT_ONE_TYPE: &[&str] = &[
    "cast",
    "fill_constant",
    "gaussian_random",
    "uniform_random",
    "uniform_random_batch_size_like",
    "rank",
    "get_tensor_from_selected_rows",
];
/// Further kinds that compute in one float type (their kernels are templates of one type).
const ONE_TYPE: &[&str] = &[
    "abs",
    "assign",
    "clip",
    "exp",
    "gelu",
    "mean",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "rsqrt",
    "select_input",
    "softmax",
    "sqrt",
    "square",
    "squeeze2",
    "sum",
    "tile",
    "unsqueeze2",
    "where",
];

fn mixed(program: &Program, decls: &DeclIndex, section: Section) -> Vec<CastFinding> {
    let lists = AmpLists::paddle();
    let mut rows: Vec<bool> = vec![false; program.symbols().len()];
    let known = lists.gray.iter().chain(&lists.white).map(String::as_str).filter(|k| !NOT_ONE_TYPE.contains(k));
    for kind in known.chain(ONE_TYPE.iter().copied()) {
        if let Some(s) = program.symbols().lookup(kind) {
            rows[s.index()] = true;
        }
    }
    let says_type = |op: OpRef<'_>| {
        op.attrs().iter().any(|a| {
            matches!(a.name, sym::IN_DTYPE | sym::OUT_DTYPE | sym::DTYPE) && a.value.as_int().is_some_and(|v| v >= 0)
        })
    };
    let keeps = |kept: Option<&KeptSlots>, slot: &str| match kept {
        None => false,
        Some(KeptSlots::AllBut(s)) => !s.iter().any(|k| k == slot),
        Some(KeptSlots::Only(s)) => s.iter().any(|k| k == slot),
    };
    let mut out = Vec::new();
    for block in program.section_blocks(section) {
        for (index, op) in program.ops(block).enumerate() {
            if !rows[op.kind().index()] || !is_forward(op) || is_gradient(program, block) || says_type(op) {
                continue;
            }
            let mut first: Option<(Name, DType)> = None;
            let slots =
                op.inputs().map(|s| (s, &lists.kept_inputs)).chain(op.outputs().map(|s| (s, &lists.kept_outputs)));
            for (slot, table) in slots {
                let text = program.sym(slot.name);
                // `ScaleTensor`, `ShapeTensorList` …: an attribute as a tensor, of whatever type.
                let attribute = text.ends_with("Tensor") || text.ends_with("TensorList");
                if attribute || keeps(table.get(op.kind_str()), text) {
                    continue;
                }
                for &name in slot.args {
                    let Some(var) = decls.find(block, name).map(|v| program.var(v)) else { continue };
                    if !var.kind.has_tensor() || !var.dtype.is_float() {
                        continue;
                    }
                    match first {
                        None => first = Some((name, var.dtype)),
                        Some((_, dtype)) if dtype == var.dtype => {}
                        Some((other, _)) => {
                            out.push(CastFinding {
                                op: op.id,
                                index,
                                code: Code::MixedDtype,
                                name,
                                other: Some(other),
                            });
                        }
                    }
                }
            }
        }
    }
    out
}
