//! What does each cell hold after each op? Abstract execution over symbolic [`Values`].
//!
//! One sweep a block, in order. A branch joins what its sub-block may have written. A loop (and the
//! steps of main) is handled by induction: at its head, what the body writes is unknown, except
//! that a pair in step stays in step; the body must then re-establish the relation, or the pair is
//! not claimed. The state is a dense row a name, so a sweep costs the arguments alone.

use crate::analysis::cells::Cells;
use crate::analysis::effects::{Access, Effects};
use crate::analysis::facts::Facts;
use crate::analysis::order::positions;
use crate::analysis::pairs::Pairs;
use crate::analysis::values::{Choice, Known, Tuple, Value, ValueId, Values};
use crate::entity::EntityId;
use crate::ir::{AttrValue, BlockId, DType, OpId, OpRef, Program, Section};
use crate::names::{Name, SeededMap, Symbol, sym};
use crate::ops::Effect;
use std::sync::Arc;

mod control;
mod pair_ops;
mod state;

use state::{STEP, State, UNSET};

/// Who wrote a cell last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// nothing yet
    Nobody,
    /// an op; for a write inside a sub-block, the op there
    Op(OpId),
}

impl Writer {
    /// The op, if there is one.
    pub fn op(self) -> Option<OpId> {
        match self {
            Writer::Op(op) => Some(op),
            Writer::Nobody => None,
        }
    }
}

/// What the executor tells while it runs.
pub trait Observer {
    /// Called before each op, sub-blocks included; a loop body may be run more than once.
    fn before(&mut self, _exec: &mut Exec<'_>, _op: OpRef<'_>) {}
    /// Called after each op.
    fn after(&mut self, _exec: &mut Exec<'_>, _op: OpRef<'_>) {}
    /// Called instead for a control op whose blocks are not looked into: they are nested too deep, or in
    /// one another. What they write is unknown afterwards.
    fn skipped(&mut self, _exec: &mut Exec<'_>, _op: OpRef<'_>) {}
    /// A load wrote `name` and `by` overwrote it before anything read it.
    fn lost(&mut self, _exec: &Exec<'_>, _name: Name, _load: OpId, _by: OpId) {}
}

/// The relation of a pair that is assumed at the head of a loop and must hold at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// parameter = narrow(master)
    Narrow,
    /// parameter = master: not narrowed yet
    Same,
}

/// An observer that looks at nothing.
pub struct Silent;
impl Observer for Silent {}

/// Options of an execution.
#[derive(Clone, Copy, Default, Debug)]
pub struct ExecOptions {
    /// leave masters as they are at an `amp_init` that would overwrite them
    pub ignore_rewrite: bool,
    /// take every pair to be in step when main starts, and look for what main breaks
    pub assume_entry: bool,
}

/// Ops looked at for each op of the program. Only blocks that several ops run, which hold such blocks in
/// turn, come near; beyond it nothing is known of what a block writes.
const STEPS_A_ROW: u64 = 256;

/// What a pure op computes from: its arguments, and how they stand in its slots.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    args: Tuple,
    known: Known,
    form: u32,
}

/// Texts with numbers, in order of first use.
#[derive(Default)]
struct Texts<'a> {
    numbers: SeededMap<&'a str, u32>,
    texts: Vec<&'a str>,
}

impl<'a> Texts<'a> {
    fn number(&mut self, text: &'a str) -> u32 {
        let next = self.texts.len() as u32;
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.texts.push(text);
        }
        number
    }

    fn text(&self, number: u32) -> &'a str {
        self.texts.get(number as usize).copied().unwrap_or("")
    }
}

/// The state of an execution.
pub struct Exec<'a> {
    /// the program
    pub program: &'a Program,
    /// its effects
    pub effects: &'a Effects<'a>,
    /// its declarations
    pub cells: &'a Cells,
    /// its pairs
    pub pairs: &'a Pairs,
    /// all terms
    pub values: Values,
    options: ExecOptions,
    state: Vec<State>,
    /// op that wrote each cell last, [`NOBODY`] before
    writers: Vec<u32>,
    /// load that wrote a cell nobody has read since
    unread: Vec<Option<OpId>>,
    /// whether a load has been met at all
    any_load: bool,
    files: Texts<'a>,
    /// by file: its path
    paths: Vec<Arc<str>>,
    /// keys that are no name of the program; a key that is one has that name's number
    keys: Texts<'a>,
    /// for a file of unnamed tensors: keys by place
    places: SeededMap<(u32, u32), u32>,
    /// by such a key, counted from the last number down: the key that it is made of
    named: Vec<u32>,
    /// forms of pure functions
    forms: SeededMap<Box<[u32]>, u32>,
    /// room to write down a form in
    slots: Vec<u32>,
    /// How many saves there were. Two paths may name one file (a directory and a file in it, a link), so
    /// that any save may have replaced any entry.
    saves: u32,
    /// how many decisions were made
    choices: u32,
    open: Vec<bool>,
    /// whether the observer is told: not in the first sweeps of a loop body
    loud: bool,
    /// loops around the op at hand
    loops: usize,
    /// blocks around the op at hand
    depth: usize,
    /// ops that may still be looked at
    steps_left: u64,
    /// places of ops in program order, by section, computed when first asked for
    order: [std::cell::OnceCell<Vec<u32>>; 2],
}

/// The floating dtypes that an op reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inputs {
    None,
    One(DType),
    /// several, or not known
    Mixed,
}

/// No op wrote the cell.
const NOBODY: u32 = u32::MAX;

impl<'a> Exec<'a> {
    /// A state before startup: nothing is known of any cell.
    pub fn new(facts: &'a Facts<'a>, options: ExecOptions) -> Self {
        let Facts { program, effects, cells, pairs, .. } = facts;
        let n = program.names().len();
        let mut values = Values::new();
        // About a term an op; to grow step by step would copy them all each time.
        values.reserve(program.op_rows());
        Exec {
            program,
            effects,
            cells,
            pairs,
            values,
            options,
            state: vec![UNSET; n],
            writers: vec![NOBODY; n],
            unread: vec![None; n],
            any_load: false,
            files: Texts::default(),
            paths: Vec::new(),
            keys: Texts::default(),
            places: SeededMap::default(),
            named: Vec::new(),
            forms: SeededMap::default(),
            slots: Vec::new(),
            saves: 0,
            choices: 0,
            open: vec![false; program.block_rows()],
            loud: true,
            loops: 0,
            depth: 0,
            steps_left: STEPS_A_ROW * (program.op_rows() as u64 + 1024),
            order: Default::default(),
        }
    }

    /// What a cell holds now.
    #[inline]
    pub fn value(&mut self, name: Name) -> ValueId {
        let state = self.state[name.index()];
        if let Some(v) = state.value() {
            return v;
        }
        let v = match (state.opaque(), self.writer(name)) {
            (Some(known), Writer::Op(op)) => {
                let init = self.effects.effect(self.program.op(op)) == Effect::Init;
                self.values.fresh(if init { Value::Init(op, 0) } else { Value::Opaque(op, 0) }, known)
            }
            _ if state == STEP => self.values.fresh(Value::Step(name), Known::Unknown),
            _ => self.values.fresh(Value::Entry(name), Known::Unknown),
        };
        self.state[name.index()] = State::of(v);
        v
    }

    /// What is known of the dtype that a cell holds now.
    #[inline]
    pub fn known(&self, name: Name) -> Known {
        let state = self.state[name.index()];
        match state.value() {
            Some(v) => self.values.known(v),
            None => state.opaque().unwrap_or(Known::Unknown),
        }
    }

    /// Who wrote a cell last.
    pub fn writer(&self, name: Name) -> Writer {
        match self.writers[name.index()] {
            NOBODY => Writer::Nobody,
            op => Writer::Op(OpId(op)),
        }
    }

    /// The place of an op in the order in which the job runs.
    pub fn order(&self, op: OpId) -> (Section, u32) {
        let section = self.program.op(op).section();
        let places = self.order[section as usize].get_or_init(|| positions(self.program, section));
        (section, places[op.index()])
    }

    /// Whether a pair agrees: narrow(master) equals narrow(parameter).
    pub fn in_step(&mut self, pair: usize) -> bool {
        let pair = self.pairs.rows()[pair];
        let (p, m) = (self.value(pair.param), self.value(pair.master));
        self.values.cast(pair.low, p) == self.values.cast(pair.low, m)
    }

    /// The relation of a pair, `None` when none is known.
    pub fn form(&mut self, pair: usize) -> Option<Form> {
        let pair = self.pairs.rows()[pair];
        let (p, m) = (self.value(pair.param), self.value(pair.master));
        if p == m {
            Some(Form::Same)
        } else if self.values.cast(pair.low, m) == p {
            Some(Form::Narrow)
        } else {
            None
        }
    }

    /// Runs a section's global block once.
    pub fn run(&mut self, section: Section, observer: &mut dyn Observer) {
        if let Some(global) = self.program.global_block(section) {
            self.block(global, observer);
        }
    }

    /// Prepares for a step of main other than the first: whatever main writes and keeps is unknown,
    /// except that each pair of `holding` agrees. Temporaries do not outlive a section.
    pub fn enter_step(&mut self, holding: &[(usize, Form)]) {
        for i in 0..self.state.len() {
            if !self.cells.get(Name::from_index(i)).persistable {
                self.state[i] = UNSET;
            }
        }
        let Some(global) = self.program.global_block(Section::Main) else { return };
        // Nothing is kept of a dtype, except of the masters, which are float32 with the relation: an earlier
        // step may have written another.
        let mut masters = Vec::with_capacity(holding.len());
        for &(i, _) in holding {
            let m = self.pairs.rows()[i].master;
            let v = self.value(m);
            masters.push((m, self.values.known(v)));
        }
        let mut written = vec![false; self.state.len()];
        for op in self.program.ops(global) {
            // A later step finds what an earlier one saved.
            self.saves += u32::from(self.effects.may_save(op));
            self.effects.each(op, |name, access| {
                if access != Access::Read
                    && self.cells.get(name).persistable
                    && !std::mem::replace(&mut written[name.index()], true)
                {
                    self.state[name.index()] = STEP;
                }
            });
        }
        for (m, known) in masters.into_iter().filter(|(m, _)| written[m.index()]) {
            self.state[m.index()] = State::of(self.values.fresh(Value::Step(m), known));
        }
        self.relate(holding);
    }

    /// Gives the parameters of these pairs the value that their relation to the master says.
    fn relate(&mut self, holding: &[(usize, Form)]) {
        for &(i, form) in holding {
            let pair = self.pairs.rows()[i];
            let m = self.value(pair.master);
            self.state[pair.param.index()] = State::of(match form {
                Form::Same => m,
                Form::Narrow => self.values.cast(pair.low, m),
            });
        }
    }

    fn block(&mut self, block: BlockId, observer: &mut dyn Observer) {
        let (program, effects) = (self.program, self.effects);
        self.open[block.index()] = true;
        self.depth += 1;
        self.steps_left = self.steps_left.saturating_sub(program.block(block).ops.len() as u64);
        // What the block declares for itself hides a cell of the same name.
        let mut hidden = Vec::new();
        if program.block(block).index != 0 {
            hidden.extend(effects.locals(block).map(|n| (n, self.state[n.index()])));
            hidden.iter().for_each(|&(n, _)| self.state[n.index()] = UNSET);
        }
        for op in program.ops(block) {
            if self.loud {
                observer.before(self, op);
            }
            self.step(op, observer);
            if self.loud {
                observer.after(self, op);
            }
        }
        hidden.into_iter().rev().for_each(|(n, state)| self.state[n.index()] = state);
        self.depth -= 1;
        self.open[block.index()] = false;
    }

    /// The dtype that the op's own section declares. Startup and main may differ: a parameter is
    /// initialised as float32 where main declares it narrow.
    fn declared(&self, op: OpRef<'_>, name: Name) -> Known {
        let cell = self.cells.get(name);
        let var = match op.section() {
            Section::Startup => cell.startup.or(cell.main),
            Section::Main => cell.main.or(cell.startup),
        };
        var.map_or(Known::Unknown, |v| Known::Is(self.program.var(v).dtype))
    }

    /// The dtype of the floating inputs of an op. An input of a dtype that is not known may be of any.
    fn reads_only(&self, op: OpRef<'_>) -> Inputs {
        let mut seen = Inputs::None;
        for input in op.input_args() {
            let known = self.known(input);
            seen = match (known, seen) {
                (Known::Is(d), Inputs::None) if d.is_float() => Inputs::One(d),
                (Known::Is(d), Inputs::One(e)) if d.is_float() && d != e => return Inputs::Mixed,
                (Known::Is(_), seen) => seen,
                (Known::UpToF32 | Known::Unknown, _) => return Inputs::Mixed,
            };
        }
        seen
    }

    /// The dtype of what an op computes: as declared, unless that is a floating type and the op computes
    /// from another one (or one that is not known), or an attribute says another. A kernel goes by its
    /// operands, not by declarations.
    fn computed(&self, op: OpRef<'_>, name: Name, inputs: Inputs) -> Known {
        let declared = self.declared(op, name);
        let Known::Is(d) = declared else { return declared };
        match inputs {
            Inputs::One(e) if d.is_float() && d != e => Known::Unknown,
            Inputs::Mixed if d.is_float() => Known::Unknown,
            _ if says_other(op, sym::DTYPE, d) || says_other(op, sym::OUT_DTYPE, d) => Known::Unknown,
            _ => declared,
        }
    }

    #[inline]
    fn set(&mut self, op: OpRef<'_>, name: Name, value: ValueId, observer: &mut dyn Observer) {
        self.put(op, name, State::of(value), observer);
    }

    #[inline]
    fn put(&mut self, op: OpRef<'_>, name: Name, state: State, observer: &mut dyn Observer) {
        self.state[name.index()] = state;
        self.writers[name.index()] = op.id.0;
        if self.any_load
            && let Some(load) = self.unread[name.index()].take()
            && self.loud
        {
            observer.lost(self, name, load, op.id);
        }
    }

    fn set_opaque(&mut self, op: OpRef<'_>, name: Name, out: u32, known: Known, observer: &mut dyn Observer) {
        match State::opaque_of(known) {
            Some(state) => self.put(op, name, state, observer),
            None => {
                let v = self.values.fresh(Value::Opaque(op.id, out), known);
                self.set(op, name, v, observer);
            }
        }
    }

    fn step(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        if self.any_load {
            for name in op.input_args().chain(op.attr_vars()) {
                self.unread[name.index()] = None;
            }
        }
        let effect = self.effects.effect(op);
        match effect {
            Effect::Copy | Effect::Cast => match (op.input(sym::X), op.output(sym::OUT)) {
                (&[x], &[out]) if op.output_args().count() == 1 => {
                    let x = self.value(x);
                    let to = match (effect, cast_to(op)) {
                        (Effect::Copy, _) => None,
                        (_, Some(to)) => Some(to),
                        _ => return self.all_opaque(op, observer),
                    };
                    let v = match to {
                        Some(to) => self.values.cast(to, x),
                        None => x,
                    };
                    self.set(op, out, v, observer);
                }
                _ => self.all_opaque(op, observer),
            },
            Effect::Pure => {
                // All are read before one is written.
                let args = self.arguments(op);
                let operands = self.operands(op, &args);
                for slot in op.outputs() {
                    for (i, &name) in slot.args.iter().enumerate() {
                        let v = self.pure(op, (slot.name, i), &operands);
                        self.set(op, name, v, observer);
                    }
                }
            }
            Effect::Init => {
                let known = init_dtype(op).map_or(Known::Unknown, Known::Is);
                for (i, name) in op.output_args().enumerate() {
                    self.set_opaque(op, name, i as u32, known, observer);
                }
            }
            Effect::Opaque => self.all_opaque(op, observer),
            Effect::Optimizer(wants) => self.optimizer(op, wants, observer),
            Effect::Load => self.load(op, observer),
            Effect::Save => self.saves += 1,
            Effect::AmpInit => self.amp_init(op, observer),
            Effect::Resync => self.resync(op, observer),
            Effect::Cond => self.cond(op, observer),
            Effect::While => self.while_loop(op, observer),
            Effect::Regions | Effect::Unknown => self.unknown(op, observer),
        }
    }

    /// The values of an op's inputs, then of its attributes' variables.
    pub fn arguments(&mut self, op: OpRef<'_>) -> Vec<ValueId> {
        op.input_args().chain(op.attr_vars()).map(|n| self.value(n)).collect()
    }

    /// What a pure op computes from.
    pub fn operands(&mut self, op: OpRef<'_>, args: &[ValueId]) -> Operands {
        let mut slots = std::mem::take(&mut self.slots);
        slots.clear();
        slots.extend(op.inputs().flat_map(|s| [s.name.index() as u32, s.args.len() as u32]));
        let form = self.form_number(&slots);
        self.slots = slots;
        // They move values: the result has the dtype of what is moved.
        Operands { args: self.values.tuple(args), known: self.moved(args), form }
    }

    /// What an output of a pure op (by its slot and place in it) is on these operands.
    pub fn pure(&mut self, op: OpRef<'_>, (slot, index): (Symbol, usize), operands: &Operands) -> ValueId {
        let form = self.form_number(&[operands.form, slot.index() as u32, index as u32]);
        self.values.apply(op.kind(), op.data().attrs, form, operands.args, operands.known)
    }

    fn form_number(&mut self, form: &[u32]) -> u32 {
        let next = self.forms.len() as u32;
        match self.forms.get(form) {
            Some(&number) => number,
            None => *self.forms.entry(form.into()).or_insert(next),
        }
    }

    fn choice(&mut self, op: OpId) -> Choice {
        self.choices += 1;
        Choice { op, run: self.choices }
    }

    /// The one dtype of these values; unknown when they differ.
    pub fn moved(&self, args: &[ValueId]) -> Known {
        let mut all = args.iter().map(|&v| self.values.known(v));
        let first = all.next().unwrap_or(Known::Unknown);
        if all.all(|k| k == first) { first } else { Known::Unknown }
    }

    fn all_opaque(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        let inputs = self.reads_only(op);
        for (i, name) in op.output_args().enumerate() {
            let known = self.computed(op, name, inputs);
            self.set_opaque(op, name, i as u32, known, observer);
        }
    }

    fn unknown(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        self.saves += u32::from(self.effects.may_save(op));
        let mut names = Vec::new();
        self.effects.each(op, |name, access| {
            if access != Access::Read {
                names.push(name);
            }
        });
        for (i, name) in names.into_iter().enumerate() {
            self.unread[name.index()] = None;
            let v = self.values.fresh(Value::Opaque(op.id, i as u32), Known::Unknown);
            self.set(op, name, v, observer);
        }
    }

    /// The path of a file number.
    pub fn file_path(&self, file: u32) -> Arc<str> {
        // Shared: every pair of a program may be loaded from one file.
        self.paths.get(file as usize).cloned().unwrap_or_default()
    }

    /// The number of a key: equal for equal texts.
    fn key_number(&mut self, key: &'a str) -> u32 {
        let names = self.program.names();
        names.lookup(key).map_or_else(|| names.len() as u32 + self.keys.number(key), |n| n.index() as u32)
    }

    /// The text of a key number.
    pub fn key_text(&self, key: u32) -> &'a str {
        let key = self.named.get((u32::MAX - key) as usize).copied().unwrap_or(key);
        match key.checked_sub(self.program.names().len() as u32) {
            Some(number) => self.keys.text(number),
            None => self.program.name(Name::from_index(key as usize)),
        }
    }
}

/// The dtype that a cast gives; none when it does not say.
pub(crate) fn cast_to(op: OpRef<'_>) -> Option<DType> {
    op.attr(sym::OUT_DTYPE).and_then(AttrValue::as_int).filter(|&c| c != -1).and_then(dtype_of)
}

/// The dtype that an initialiser writes.
fn init_dtype(op: OpRef<'_>) -> Option<DType> {
    match op.attr(sym::DTYPE) {
        Some(value) if value.as_int() != Some(-1) => value.as_int().and_then(dtype_of),
        // Kinds of integers have another default.
        _ => matches!(op.kind_str(), "fill_constant" | "uniform_random" | "gaussian_random" | "assign_value")
            .then_some(DType::F32),
    }
}

fn says_other(op: OpRef<'_>, attr: Symbol, than: DType) -> bool {
    op.attr(attr).and_then(AttrValue::as_int).is_some_and(|c| c != -1 && c != i64::from(than.code()))
}

fn dtype_of(code: i64) -> Option<DType> {
    i32::try_from(code).ok().map(DType::from_code)
}
