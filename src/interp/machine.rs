//! What is the state of a run? Cells, frames, fuel and memory, and how blocks run over them.

use super::error::{Fault, InterpError};
use super::files::Files;
use super::observe::{Observer, Seen};
use super::scope::{Cell, Locals, ROW, Scope, Value};
use super::tensor::Tensor;
use crate::ckpt::Checkpoint;
use crate::convert::Narrowing;
use crate::diag::Place;
use crate::entity::EntityId;
use crate::ir::{BlockId, DType, OpRef, Program, Section, VarId};
use crate::names::{Name, sym};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// How deep sub-blocks may run one another.
pub const MAX_DEPTH: usize = 64;

/// How a program is run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// how `cast` and `amp_init` narrow (see the module's page)
    pub narrowing: Narrowing,
    /// seed of the random initialisers
    pub seed: u64,
    /// ops that one run may execute
    pub fuel: u64,
    /// bytes that cells may hold during a run
    pub memory_limit: u64,
    /// directory that relative paths of load and save start from; the process's own when empty
    pub base_dir: PathBuf,
}

impl Default for Options {
    /// Nearest even, seed 0, 100 million ops, 8 GiB, the current directory.
    fn default() -> Self {
        Options {
            narrowing: Narrowing::NearestEven,
            seed: 0,
            fuel: 100_000_000,
            memory_limit: 8 << 30,
            base_dir: PathBuf::new(),
        }
    }
}

/// Something that a run did and the user should know.
#[derive(Clone, PartialEq, Debug)]
pub struct RunWarning {
    /// the op
    pub place: Place,
    /// what it did
    pub message: String,
}

/// What a run did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RunStats {
    /// ops executed, those of sub-blocks included
    pub ops: u64,
    /// what the user should know
    pub warnings: Vec<RunWarning>,
    /// most bytes that cells held at once; a tensor that two cells share counts twice
    pub peak_bytes: u64,
    /// what the program's own `fetch` ops fetched, in order
    pub fetched: Vec<(String, Tensor)>,
}

/// What runs one op. The machine does not know the kernels, which know it.
pub(super) trait Dispatch {
    fn run<'r>(&self, machine: &mut Machine<'r>, op: OpRef<'r>) -> Result<(), InterpError>;
}

/// What is known of a program's names before it runs.
pub(super) struct Plan {
    /// by name: outlives a run
    pub persistable: Vec<bool>,
    /// by section and name: the declaration in the global block
    global: [Vec<Option<VarId>>; 2],
    /// by block: what it declares for itself
    locals: Vec<FxHashMap<Name, VarId>>,
    /// variables of step scopes that some op reads, so that they must be kept
    scopes_read: FxHashSet<Name>,
    /// by section: what no op of the global block needs after each op
    pub dead: [Dead; 2],
}

/// Names by the op of a block after which nothing uses them.
#[derive(Default)]
pub(super) struct Dead {
    names: Vec<Name>,
    /// where each op's names end
    ends: Vec<u32>,
}

impl Dead {
    /// Every name that the block uses, under its last use.
    fn new(program: &Program, section: Section) -> Dead {
        let Some(block) = program.global_block(section) else { return Dead::default() };
        let mut last: FxHashMap<Name, u32> = FxHashMap::default();
        let mut uses = |op: OpRef<'_>, at: u32| {
            for &name in op.inputs().chain(op.outputs()).flat_map(|slot| slot.args) {
                let last = last.entry(name).or_insert(at);
                *last = at.max(*last);
            }
        };
        let (mut ops, mut control) = (0, None);
        for op in program.ops(block) {
            uses(op, ops);
            control = if op.has_sub_blocks() { Some(ops) } else { control };
            ops += 1;
        }
        // A gradient block reads what its forward block left, and more than the op names: with control flow,
        // everything that some sub-block uses lives to the end of the last op that runs one.
        if let Some(at) = control {
            for b in program.section_blocks(section).filter(|&b| b != block) {
                program.ops(b).for_each(|op| uses(op, at));
            }
        }
        let mut rows: Vec<(u32, Name)> = last.into_iter().map(|(name, at)| (at, name)).collect();
        rows.sort_unstable();
        let mut ends = vec![0u32; ops as usize];
        rows.iter().for_each(|&(at, _)| ends[at as usize] += 1);
        (1..ends.len()).for_each(|i| ends[i] += ends[i - 1]);
        Dead { names: rows.into_iter().map(|(_, name)| name).collect(), ends }
    }

    /// The names after op `i`.
    fn after(&self, i: usize) -> &[Name] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.names[start..self.ends[i] as usize]
    }
}

impl Plan {
    pub fn new(program: &Program) -> Plan {
        let names = program.names().len();
        let mut plan = Plan {
            persistable: vec![false; names],
            global: [vec![None; names], vec![None; names]],
            locals: vec![FxHashMap::default(); program.block_rows()],
            scopes_read: FxHashSet::default(),
            dead: Section::ALL.map(|s| Dead::new(program, s)),
        };
        let vars =
            || Section::ALL.into_iter().flat_map(|s| program.section_blocks(s)).flat_map(|b| &program.block(b).vars);
        for v in vars().map(|&id| program.var(id)) {
            plan.persistable[v.name.index()] |= v.persistable();
        }
        for section in Section::ALL {
            for block in program.section_blocks(section) {
                let b = program.block(block);
                for &id in &b.vars {
                    let name = program.var(id).name;
                    // A persistable is one cell of the root scope, wherever it is declared.
                    if b.index == 0 || plan.persistable[name.index()] {
                        plan.global[section as usize][name.index()].get_or_insert(id);
                    } else {
                        plan.locals[block.index()].entry(name).or_insert(id);
                    }
                }
                for op in program.ops(block).filter(|op| op.has_sub_blocks()) {
                    plan.scopes_read.extend(op.input(sym::SCOPE).iter().chain(op.input(sym::STEP_SCOPES)));
                }
            }
        }
        plan
    }
}

/// One run in progress.
pub(super) struct Machine<'r> {
    pub program: &'r Program,
    pub section: Section,
    pub dispatch: &'r dyn Dispatch,
    pub plan: &'r Plan,
    pub slots: &'r [u32],
    pub options: &'r Options,
    pub files: &'r dyn Files,
    pub scope: &'r mut Scope,
    pub frames: Vec<(BlockId, Locals)>,
    /// bytes of the frames, and of frames that a kernel keeps for later
    pub frame_bytes: u64,
    pub draws: &'r mut FxHashMap<Name, u64>,
    /// by slot: whether it may be let go after its last use
    pub passing: &'r [bool],
    pub observer: Option<&'r mut dyn Observer>,
    /// what random ops write instead of drawing
    pub given: &'r FxHashMap<Name, Tensor>,
    /// checkpoints opened in this run, by path; none that may have been written since
    pub opened: BTreeMap<PathBuf, Arc<dyn Checkpoint>>,
    pub stats: RunStats,
}

/// Checkpoints that are kept open: a program may load thousands of tensors one by one from one file.
const MAX_OPEN: usize = 16;

impl<'r> Machine<'r> {
    /// Opens a checkpoint, or gives it again.
    pub fn open(&mut self, path: PathBuf) -> Result<Arc<dyn Checkpoint>, InterpError> {
        if let Some(open) = self.opened.get(&path) {
            return Ok(open.clone());
        }
        let open = self.files.open(&path)?;
        if self.opened.len() == MAX_OPEN {
            self.opened.clear();
        }
        self.opened.insert(path, open.clone());
        Ok(open)
    }

    /// Keeps what a `fetch` op fetched; it counts as memory in use.
    pub fn keep_fetched(&mut self, name: String, value: Tensor) -> Result<(), InterpError> {
        let bytes = value.bytes() + ROW;
        self.room(bytes)?;
        self.frame_bytes += bytes;
        self.stats.fetched.push((name, value));
        Ok(())
    }

    /// The declaration of a variable that a block has for itself.
    pub fn declared_in(&self, block: BlockId, name: Name) -> Option<VarId> {
        self.plan.locals[block.index()].get(&name).copied()
    }

    /// Local variables of a block that is about to run.
    pub fn new_locals(&mut self) -> Result<Locals, InterpError> {
        let locals = Locals::default();
        self.room(locals.bytes())?;
        self.frame_bytes += locals.bytes();
        Ok(locals)
    }

    pub fn feed(&mut self, name: &str, value: &Tensor) -> Result<(), InterpError> {
        let fault = |what: String| Fault::Feed { name: name.to_owned(), what };
        let Some(n) = self.program.names().lookup(name) else {
            return Err(fault("the program has no such variable".into()).into());
        };
        if let Some(id) = self.declaration(n) {
            let (v, shape) = (self.program.var(id), self.program.shape(id));
            if v.kind.has_tensor() && v.dtype != value.dtype() {
                return Err(fault(format!("dtype {} given, {} declared", value.dtype(), v.dtype)).into());
            }
            if v.kind.has_tensor() && !fits(shape, value.shape().iter().map(|&d| d as u64)) {
                return Err(fault(format!("shape {:?} given, {shape:?} declared", value.shape())).into());
            }
        }
        self.write(n, Value::Tensor(value.clone()))
    }

    /// The declaration of a global name: this section's, or else the other's.
    pub fn declaration(&self, name: Name) -> Option<VarId> {
        let of = |s: Section| self.plan.global[s as usize][name.index()];
        of(self.section).or_else(|| Section::ALL.into_iter().find_map(of))
    }

    /// The dtype that a cell must have when main starts: main's declaration, or else startup's.
    pub fn main_dtype(&self, name: Name) -> Option<DType> {
        let of = |s: Section| self.plan.global[s as usize][name.index()];
        of(Section::Main).or_else(|| of(Section::Startup)).map(|id| self.program.var(id).dtype)
    }

    /// Whether some op reads what a control op leaves in this variable.
    pub fn scopes_read(&self, name: Name) -> bool {
        self.plan.scopes_read.contains(&name)
    }

    /// Runs the ops of a block over the current frames.
    pub fn run_block(&mut self, block: BlockId) -> Result<(), InterpError> {
        let program = self.program;
        for op in program.ops(block) {
            self.run_op(op).map_err(|e| e.at(|| Place::op(program, op.id)))?;
        }
        Ok(())
    }

    /// Runs the section's global block. Temporaries go after their last use.
    pub fn run_global(&mut self, block: BlockId) -> Result<(), InterpError> {
        let (program, plan) = (self.program, self.plan);
        for (i, op) in program.ops(block).enumerate() {
            self.run_op(op).map_err(|e| e.at(|| Place::op(program, op.id)))?;
            for name in plan.dead[self.section as usize].after(i) {
                let slot = self.slots[name.index()];
                if self.passing[slot as usize] {
                    self.scope.take(slot);
                }
            }
        }
        Ok(())
    }

    /// Burns one unit of fuel.
    pub fn spend(&mut self) -> Result<(), InterpError> {
        let limit = self.options.fuel;
        if self.stats.ops >= limit {
            return Err(Fault::Fuel { limit }.into());
        }
        self.stats.ops += 1;
        Ok(())
    }

    fn run_op(&mut self, op: OpRef<'r>) -> Result<(), InterpError> {
        self.spend()?;
        let Some(observer) = self.observer.take() else { return self.dispatch.run(self, op) };
        let mut ran = observer.before(&Seen { machine: self, op });
        if ran.is_ok() {
            // A sub-block's ops are observed too.
            self.observer = Some(observer);
            self.dispatch.run(self, op)?;
            let Some(observer) = self.observer.take() else { return Ok(()) };
            ran = observer.after(&Seen { machine: self, op });
            self.observer = Some(observer);
        }
        ran.map_err(InterpError::from)
    }

    /// Runs a block in a frame of its own and gives back what the frame then holds. Its bytes stay
    /// counted until [`Self::release`], or until they are stored in a cell.
    pub fn run_frame(&mut self, block: BlockId, locals: Locals) -> Result<Locals, InterpError> {
        self.push_frame(block, locals)?;
        let ran = self.run_block(block);
        let locals = self.pop_frame();
        ran.map(|()| locals)
    }

    /// Enters a frame whose bytes are counted already.
    pub fn push_frame(&mut self, block: BlockId, locals: Locals) -> Result<(), InterpError> {
        if self.frames.len() >= MAX_DEPTH {
            return Err(Fault::Depth { limit: MAX_DEPTH }.into());
        }
        self.frames.push((block, locals));
        Ok(())
    }

    /// Leaves the innermost frame.
    pub fn pop_frame(&mut self) -> Locals {
        self.frames.pop().map(|(_, locals)| locals).unwrap_or_default()
    }

    /// Stops counting a frame that is dropped or moves into a cell.
    pub fn release(&mut self, locals: &Locals) {
        self.frame_bytes -= locals.bytes();
    }

    /// Gives a frame that is not entered a variable of its own.
    pub fn give(&mut self, locals: &mut Locals, name: Name, value: Tensor) -> Result<(), InterpError> {
        self.room(value.bytes())?;
        self.frame_bytes += value.bytes() + ROW;
        let old = locals.cells.insert(name, Cell::new(Value::Tensor(value)));
        self.frame_bytes -= old.map_or(0, |c| c.value.bytes() + ROW);
        Ok(())
    }

    /// Takes step scopes out of their cell; their bytes stay counted until each is released.
    pub fn take_scopes(&mut self, name: Name) -> Vec<Locals> {
        if !matches!(self.cell(name), Some(Cell { value: Value::Scopes(_), .. })) {
            return Vec::new();
        }
        let taken = match self.frame_of(name) {
            Some(i) => {
                let cell = self.frames[i].1.cells.remove(&name);
                self.frame_bytes -= if cell.is_some() { ROW } else { 0 };
                cell.map(|c| c.value)
            }
            None => {
                let value = self.scope.take(self.slots[name.index()]);
                self.frame_bytes += value.as_ref().map_or(0, Value::bytes);
                value
            }
        };
        match taken {
            Some(Value::Scopes(frames)) => frames,
            _ => Vec::new(),
        }
    }

    /// The frame that declares a name, or was given a value for it; `None` for a global one.
    fn frame_of(&self, name: Name) -> Option<usize> {
        // The global level is by far the most common.
        if self.frames.is_empty() {
            return None;
        }
        let has = |(block, locals): &(BlockId, Locals)| {
            self.plan.locals[block.index()].contains_key(&name) || locals.cells.contains_key(&name)
        };
        self.frames.iter().rposition(has)
    }

    pub fn cell(&self, name: Name) -> Option<&Cell> {
        match self.frame_of(name) {
            Some(i) => self.frames[i].1.cells.get(&name),
            None => self.scope.cell(self.slots[name.index()]),
        }
    }

    /// The slot in the scope, `None` for a local variable.
    pub fn slot(&self, name: Name) -> Option<u32> {
        if self.frame_of(name).is_some() { None } else { Some(self.slots[name.index()]) }
    }

    /// Refuses a value that would not fit in memory.
    pub fn room(&self, wanted: u64) -> Result<(), InterpError> {
        let (used, limit) = (self.scope.bytes() + self.frame_bytes, self.options.memory_limit);
        match used.checked_add(wanted) {
            Some(total) if total <= limit => Ok(()),
            _ => Err(Fault::Memory { wanted, used, limit }.into()),
        }
    }

    pub fn write(&mut self, name: Name, value: Value) -> Result<(), InterpError> {
        let old = self.cell(name).map_or(0, |c| c.value.bytes());
        self.room(value.bytes().saturating_sub(old))?;
        match self.frame_of(name) {
            Some(i) => {
                self.frame_bytes = self.frame_bytes + value.bytes() - old;
                match self.frames[i].1.cells.get_mut(&name) {
                    Some(cell) => cell.value = value,
                    None => {
                        self.frame_bytes += ROW;
                        self.frames[i].1.cells.insert(name, Cell::new(value));
                    }
                }
            }
            None => self.scope.put(self.slots[name.index()], value),
        }
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.scope.bytes() + self.frame_bytes);
        Ok(())
    }

    /// Takes a tensor out of its cell to be rewritten in place; the cell holds an empty one meanwhile.
    pub fn lend(&mut self, name: Name) -> Option<Tensor> {
        let empty = Tensor::zeros(DType::U8, &[0]).ok()?;
        match self.cell(name) {
            Some(Cell { value: Value::Tensor(t), .. }) if self.frame_of(name).is_none() => {
                let t = t.clone();
                self.scope.put(self.slots[name.index()], Value::Tensor(empty));
                Some(t)
            }
            _ => None,
        }
    }
}

/// Whether dimensions fit a declaration, in which a negative one is unknown.
pub(super) fn fits(declared: &[i64], shape: impl ExactSizeIterator<Item = u64>) -> bool {
    declared.len() == shape.len() && declared.iter().zip(shape).all(|(&d, s)| d < 0 || d as u64 == s)
}
