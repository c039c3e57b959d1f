//! How does a user run a program? An interpreter resolves it once; a run gives what was asked for.

use super::context::OpCx;
use super::error::{Fault, InterpError};
use super::files::{DiskFiles, Files};
use super::kernels::{Kernel, Kernels};
use super::machine::{Dispatch, Machine, Options, Plan, RunStats};
use super::observe::Observer;
use super::scope::Scope;
use super::tensor::Tensor;
use crate::entity::EntityId;
use crate::ir::{OpRef, Program, Section};
use crate::names::Name;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What a run with fetches gives.
#[derive(Clone, PartialEq, Debug)]
pub struct Outputs {
    /// the values of the variables to fetch, in the order asked for
    pub values: Vec<Tensor>,
    /// what the run did
    pub stats: RunStats,
}

/// Runs the sections of one program. Kernels and declarations are resolved once, when it is made.
pub struct Interpreter<'p> {
    program: &'p Program,
    kernels: Resolved,
    options: Options,
    files: Box<dyn Files>,
    plan: Plan,
    /// the scope that `slots` speaks of, and the slot of each name in it
    scope: u64,
    slots: Vec<u32>,
    draws: FxHashMap<Name, u64>,
    given: FxHashMap<Name, Tensor>,
}

/// Kernels by a program's symbols.
struct Resolved(Vec<Option<Kernel>>);

impl Dispatch for Resolved {
    fn run<'r>(&self, machine: &mut Machine<'r>, op: OpRef<'r>) -> Result<(), InterpError> {
        match self.0.get(op.kind().index()).copied().flatten() {
            Some(kernel) => kernel(&mut OpCx { machine, op }),
            None => Err(Fault::UnknownOp { kind: op.kind_str().to_owned() }.into()),
        }
    }
}

impl<'p> Interpreter<'p> {
    /// An interpreter with the standard kernels, default options, and files on disk.
    pub fn new(program: &'p Program) -> Self {
        Interpreter {
            program,
            kernels: Resolved(Kernels::standard().resolve(program)),
            options: Options::default(),
            files: Box::new(DiskFiles),
            plan: Plan::new(program),
            scope: 0,
            slots: Vec::new(),
            draws: FxHashMap::default(),
            given: FxHashMap::default(),
        }
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The same with other kernels.
    #[must_use]
    pub fn with_kernels(mut self, kernels: &Kernels) -> Self {
        self.kernels = Resolved(kernels.resolve(self.program));
        self
    }

    /// The same with load and save reaching other files.
    #[must_use]
    pub fn with_files(mut self, files: impl Files + 'static) -> Self {
        self.files = Box::new(files);
        self
    }

    /// Lets random ops write this value instead of drawing: `name` is the output of an initialiser, or the
    /// `Mask` of a dropout (uint8, 1 where an element stays). It holds until another is given. False when the
    /// program has no such name.
    pub fn give_draw(&mut self, name: &str, value: Tensor) -> bool {
        let name = self.program.names().lookup(name);
        if let Some(name) = name {
            self.given.insert(name, value);
        }
        name.is_some()
    }

    /// Runs a section once. An empty section is a run of no ops.
    pub fn run(&mut self, section: Section, scope: &mut Scope) -> Result<RunStats, InterpError> {
        self.run_with(section, scope, &[], &[]).map(|o| o.stats)
    }

    /// Runs a section once on these feeds and gives the values of the variables in `fetch`.
    ///
    /// A feed must fit its declaration in dtype, rank and known dimensions.
    pub fn run_with(
        &mut self,
        section: Section,
        scope: &mut Scope,
        feeds: &[(String, Tensor)],
        fetch: &[&str],
    ) -> Result<Outputs, InterpError> {
        self.observed(section, scope, feeds, fetch, None)
    }

    /// The same, with an observer that sees every op before and after it runs, and may stop the run.
    pub fn run_observed(
        &mut self,
        section: Section,
        scope: &mut Scope,
        feeds: &[(String, Tensor)],
        fetch: &[&str],
        observer: &mut dyn Observer,
    ) -> Result<Outputs, InterpError> {
        self.observed(section, scope, feeds, fetch, Some(observer))
    }

    fn observed(
        &mut self,
        section: Section,
        scope: &mut Scope,
        feeds: &[(String, Tensor)],
        fetch: &[&str],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Outputs, InterpError> {
        if self.scope != scope.id() {
            self.slots = self.program.names().iter().map(|(_, text)| scope.slot(text)).collect();
            self.scope = scope.id();
        }
        // What this run makes and no declaration keeps.
        let mut passing = vec![false; scope.slots()];
        let temporaries: Vec<u32> = std::iter::zip(&self.slots, &self.plan.persistable)
            .filter(|&(&slot, &keep)| !keep && scope.cell(slot).is_none())
            .map(|(&slot, _)| slot)
            .collect();
        temporaries.iter().for_each(|&slot| passing[slot as usize] = true);
        for name in fetch.iter().filter_map(|name| self.program.names().lookup(name)) {
            passing[self.slots[name.index()] as usize] = false;
        }
        let out = self.run_fed(section, scope, (feeds, fetch), &passing, observer);
        for slot in temporaries {
            scope.take(slot);
        }
        out
    }

    fn run_fed(
        &mut self,
        section: Section,
        scope: &mut Scope,
        (feeds, fetch): (&[(String, Tensor)], &[&str]),
        passing: &[bool],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Outputs, InterpError> {
        let mut machine = Machine {
            program: self.program,
            section,
            dispatch: &self.kernels,
            plan: &self.plan,
            slots: &self.slots,
            options: &self.options,
            files: &*self.files,
            scope,
            frames: Vec::new(),
            frame_bytes: 0,
            draws: &mut self.draws,
            given: &self.given,
            passing,
            observer: observer.map(|o| o as &mut dyn Observer),
            opened: BTreeMap::new(),
            stats: RunStats::default(),
        };
        for (name, value) in feeds {
            machine.feed(name, value)?;
        }
        if let Some(block) = self.program.global_block(section) {
            machine.run_global(block)?;
        }
        let values = fetch
            .iter()
            .map(|&name| machine.scope.get(name).cloned().ok_or_else(|| Fault::Fetch { name: name.to_owned() }.into()))
            .collect::<Result<_, InterpError>>()?;
        Ok(Outputs { values, stats: machine.stats })
    }
}
