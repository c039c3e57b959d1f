//! In which precision is each op computed, and which dtype does each variable get?
//!
//! The rules of PaddlePaddle 2.6.2 (`static/amp/fp16_utils.py`), block by block in file order, because a
//! decision sees the dtypes that the ones before it left. Two things differ, for soundness: a cast that
//! the user wrote keeps its `out_dtype` when a rule wants it in float32, and a parameter that is not
//! float32 is not narrowed.
//!
//! The result is a value that other passes may use; nothing in the program is changed.

use super::lists::Kinds;
use super::params::{Kept, Params};
use super::{Level, Precision};
use crate::entity::EntityId;
use crate::ir::{BlockId, DType, OpId, OpRef, Program, Section, VarId, VarKind};
use crate::names::{Name, Symbol, sym};
use crate::verify::DeclIndex;

/// How an op is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Choice {
    /// not looked at: it computes no float, or its attributes say the type
    Skip,
    /// a cast of the user's: only its attributes and its output's dtype are brought up to date
    Cast,
    /// in float32
    Float32,
    /// in the 16-bit type
    Low,
}

/// Why an op is computed so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// skipped: it is in another section
    NotInMain,
    /// skipped: it has inputs, and none is a tensor of float32, float16 or bfloat16
    NoFloatInput,
    /// skipped: it reads from a reader
    Reader,
    /// skipped: its `dtype` attribute says the type of its result
    DtypeAttribute,
    /// float32: the kind has no kernel of the type on the device, or is on the user's black list
    Unsupported,
    /// float32: the device profile does not know the kind
    UnknownKind,
    /// float32: a name that it touches contains `learning_rate`
    LearningRate,
    /// float32: it stands outside the guard
    OutsideGuard,
    /// float32: it touches a variable of the user's black list
    BlackVariable,
    /// float32: on the black list
    BlackList,
    /// 16 bits: on the white list
    WhiteList,
    /// a cast that was there before
    UserCast,
    /// float32: with promotion, an input is float32
    Float32Input,
    /// 16 bits: with promotion, no input is float32
    NoFloat32Input,
    /// 16 bits: O2 computes all that nothing forbids
    Permitted,
    /// either: gray, and the last input that an op of known precision made says which
    Producer,
    /// 16 bits: gray, and no input says which
    NoProducer,
    /// float32: in no list
    Unlisted,
}

/// What was decided about an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// how it is computed
    pub choice: Choice,
    /// by which rule
    pub reason: Reason,
    /// the variable that the rule looked at, when it looked at one
    pub witness: Option<Name>,
}

impl Decision {
    const fn new(choice: Choice, reason: Reason) -> Self {
        Decision { choice, reason, witness: None }
    }
}

/// The decisions about a program: the value to build on.
pub struct Decisions {
    pub(super) ops: Vec<Decision>,
    pub(super) dtypes: Vec<DType>,
    pub(super) returned: Vec<bool>,
    /// by declaration: the first op of its block that writes it (O1 and OD without promotion)
    pub(super) producer: Vec<Option<OpId>>,
    /// what the parameters become, and why
    pub params: Params,
    /// the lists by symbol
    pub kinds: Kinds,
    /// the declarations of the program when the decisions were made
    pub decls: DeclIndex,
    /// the 16-bit type
    pub low: DType,
    sorted: Sorted,
}

impl Decisions {
    /// The input slots of an op by name, as Paddle holds them; `None` when they stand so.
    pub(super) fn slot_order(&self, op: OpRef<'_>) -> Option<Vec<usize>> {
        self.sorted.order(op)
    }

    /// The decision about an op; ops of startup are skipped.
    #[inline]
    pub fn op(&self, op: OpId) -> Decision {
        self.ops[op.index()]
    }

    /// The dtype that a declaration gets.
    #[inline]
    pub fn dtype(&self, var: VarId) -> DType {
        self.dtypes[var.index()]
    }

    /// The dtype that a name has in a block, `None` for an undeclared one or one that holds no tensor.
    #[inline]
    pub fn dtype_of(&self, program: &Program, block: BlockId, name: Name) -> Option<DType> {
        let var = self.decls.find(block, name)?;
        program.var(var).kind.has_tensor().then(|| self.dtypes[var.index()])
    }

    /// Whether Paddle's `cast_model_to_fp16` returns this name: every float variable in a non-kept input slot of
    /// an op computed in 16 bits, and parameters of black ops, less those that must stay float32.
    #[inline]
    pub fn is_returned(&self, name: Name) -> bool {
        self.returned[name.index()]
    }

    /// Whether an input slot stays float32 although the op is computed in 16 bits.
    pub fn keeps_input(&self, op: OpRef<'_>, slot: Symbol) -> bool {
        self.kinds.keeps_input(self.kinds.get(op.kind()), slot)
    }

    /// Whether an output slot keeps its dtype.
    pub fn keeps_output(&self, op: OpRef<'_>, slot: Symbol) -> bool {
        self.kinds.keeps_output(self.kinds.get(op.kind()), slot)
    }
}

/// What a pass over ops needs to know of one attribute list; computed once for each distinct one.
#[derive(Clone, Copy, Default)]
struct AttrFacts {
    known: bool,
    /// `dtype` or `out_dtype` is a float type, and there is no `in_dtype`
    says_dtype: bool,
    guarded: bool,
}

/// What the rules look up of a program.
pub(super) struct Lookup<'p> {
    pub program: &'p Program,
    pub kinds: Kinds,
    pub decls: DeclIndex,
    options: &'p Precision,
    /// by name: it contains `learning_rate`
    learning_rate: Vec<bool>,
    black_vars: Vec<bool>,
    attrs: Vec<AttrFacts>,
    sorted: Sorted,
}

/// Input slots in the order in which Paddle holds them: by name.
struct Sorted {
    rank: Vec<u32>,
}

impl Sorted {
    fn new(program: &Program) -> Self {
        let mut order: Vec<(&str, Symbol)> = program.symbols().iter().map(|(s, text)| (text, s)).collect();
        order.sort_unstable();
        let mut rank = vec![0; order.len()];
        for (i, (_, s)) in order.into_iter().enumerate() {
            rank[s.index()] = i as u32;
        }
        Sorted { rank }
    }

    /// Positions of the input slots by name; `None` when they stand so.
    fn order(&self, op: OpRef<'_>) -> Option<Vec<usize>> {
        let rank = |s: Symbol| self.rank[s.index()];
        if op.inputs().map(|s| rank(s.name)).is_sorted() {
            return None;
        }
        let slots: Vec<u32> = op.inputs().map(|s| rank(s.name)).collect();
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_by_key(|&i| slots[i]);
        Some(order)
    }
}

/// The part of a namescope that Paddle's `fp16_guard` leaves.
pub(super) const GUARD: &str = "__use_fp16__";
const LEARNING_RATE: &[u8] = b"learning_rate";

impl<'p> Lookup<'p> {
    pub fn new(program: &'p Program, options: &'p Precision, kinds: Kinds) -> Self {
        let contains = |text: &str| {
            let text = text.as_bytes();
            text.len() >= LEARNING_RATE.len()
                && (0..=text.len() - LEARNING_RATE.len())
                    .any(|i| text[i] == b'l' && text[i..].starts_with(LEARNING_RATE))
        };
        let mut black_vars = Vec::new();
        if !options.black_vars.is_empty() {
            black_vars = vec![false; program.names().len()];
            for name in options.black_vars.iter().filter_map(|v| program.names().lookup(v)) {
                black_vars[name.index()] = true;
            }
        }
        Lookup {
            program,
            kinds,
            decls: DeclIndex::new(program),
            options,
            learning_rate: program.names().iter().map(|(_, text)| contains(text)).collect(),
            black_vars,
            attrs: vec![AttrFacts::default(); program.attr_list_count()],
            sorted: Sorted::new(program),
        }
    }

    fn attr_facts(&mut self, op: OpRef<'_>) -> AttrFacts {
        let row = &mut self.attrs[op.data().attrs.index()];
        if !row.known {
            let mut in_dtype = false;
            *row = AttrFacts { known: true, ..AttrFacts::default() };
            for a in op.attrs() {
                match a.name {
                    sym::IN_DTYPE => in_dtype = true,
                    sym::DTYPE | sym::OUT_DTYPE => {
                        row.says_dtype |= a.value.as_int().is_some_and(is_float_code);
                    }
                    sym::OP_NAMESCOPE => row.guarded |= a.value.as_str().is_some_and(|s| s.contains(GUARD)),
                    _ => {}
                }
            }
            row.says_dtype &= !in_dtype;
        }
        *row
    }

    /// Rules that hold an op in float32 before any list does; also what keeps its parameters float32.
    pub fn forced(&mut self, op: OpRef<'p>) -> Option<(Reason, Option<Name>)> {
        let kind = self.kinds.get(op.kind());
        if kind.unsupported {
            return Some((if kind.unknown { Reason::UnknownKind } else { Reason::Unsupported }, None));
        }
        let rate = |&n: &Name| self.learning_rate[n.index()];
        if let Some(name) = op.input_args().chain(op.output_args()).find(rate) {
            return Some((Reason::LearningRate, Some(name)));
        }
        if self.options.guard && !self.attr_facts(op).guarded {
            return Some((Reason::OutsideGuard, None));
        }
        None
    }

    fn black_variable(&self, op: OpRef<'_>) -> Option<Name> {
        if self.black_vars.is_empty() {
            return None;
        }
        op.input_args().chain(op.output_args()).find(|n| self.black_vars[n.index()])
    }

    /// The input slots of an op in Paddle's order.
    pub fn each_input(&self, op: OpRef<'p>, mut f: impl FnMut(Symbol, &'p [Name])) {
        match self.sorted.order(op) {
            None => op.inputs().for_each(|s| f(s.name, s.args)),
            Some(order) => {
                let slots: Vec<_> = op.inputs().collect();
                order.into_iter().for_each(|i| f(slots[i].name, slots[i].args));
            }
        }
    }
}

/// Whether an attribute's number is a float type of Paddle's.
pub(super) fn is_float_code(code: i64) -> bool {
    i32::try_from(code).is_ok_and(|c| DType::from_code(c).is_float())
}

/// Float32, float16 or bfloat16: the types between which the pass casts.
fn is_cast_type(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_low()
}

struct State<'s, 'p> {
    look: Lookup<'p>,
    options: &'s Precision,
    low: DType,
    dtypes: Vec<DType>,
    returned: Vec<bool>,
    ops: Vec<Decision>,
    /// by declaration: the first op of its block that writes it
    producer: Vec<Option<OpId>>,
    /// by name: a parameter that the global block declares
    is_param: Vec<bool>,
}

/// Decides about every op of main. The blocks must form a tree.
pub fn decide(program: &Program, options: &Precision, kinds: Kinds) -> Decisions {
    let low = options.dtype.dtype();
    let mut look = Lookup::new(program, options, kinds);
    let mut dtypes: Vec<DType> = (0..program.var_rows()).map(|i| program.var(VarId::from_index(i)).dtype).collect();
    let params = Params::new(&mut look, options);
    for &(var, _, kept) in &params.all {
        if kept == Kept::No {
            dtypes[var.index()] = low;
        }
    }
    let mut is_param = vec![false; program.names().len()];
    for &var in program.global_block(Section::Main).iter().flat_map(|&b| &program.block(b).vars) {
        is_param[program.var(var).name.index()] |= program.var(var).is_parameter();
    }
    let mut state = State {
        look,
        options,
        low,
        dtypes,
        returned: vec![false; program.names().len()],
        ops: vec![Decision::new(Choice::Skip, Reason::NotInMain); program.op_rows()],
        producer: Vec::new(),
        is_param,
    };
    if options.level != Level::O2 && !options.promote {
        state.find_producers();
    }
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            let decision = state.op(block, op);
            state.ops[op.id.index()] = decision;
        }
    }
    let State { look: Lookup { kinds, decls, sorted, .. }, dtypes, mut returned, ops, producer, .. } = state;
    for (r, &kept) in returned.iter_mut().zip(&params.must_stay) {
        *r &= !kept;
    }
    Decisions { ops, dtypes, returned, producer, params, kinds, decls, low, sorted }
}

impl<'p> State<'_, 'p> {
    fn find_producers(&mut self) {
        let program = self.look.program;
        self.producer = vec![None; program.var_rows()];
        for block in program.section_blocks(Section::Main) {
            for op in program.ops(block) {
                for name in op.output_args() {
                    if let Some(var) = self.look.decls.declared_in(block, name) {
                        self.producer[var.index()].get_or_insert(op.id);
                    }
                }
            }
        }
    }

    fn op(&mut self, block: BlockId, op: OpRef<'p>) -> Decision {
        if let Some(reason) = self.skip(block, op) {
            return Decision::new(Choice::Skip, reason);
        }
        let facts = self.look.kinds.get(op.kind());
        if let Some((reason, witness)) = self.look.forced(op) {
            return self.float32(block, op, Decision { choice: Choice::Float32, reason, witness });
        }
        if let Some(name) = self.look.black_variable(op) {
            let d = Decision { choice: Choice::Float32, reason: Reason::BlackVariable, witness: Some(name) };
            return self.float32(block, op, d);
        }
        if facts.black {
            for name in op.input_args().filter(|n| self.is_param[n.index()]) {
                self.returned[name.index()] = true;
            }
            return self.float32(block, op, Decision::new(Choice::Float32, Reason::BlackList));
        }
        if facts.white {
            return self.low(block, op, Decision::new(Choice::Low, Reason::WhiteList));
        }
        if op.kind() == sym::CAST {
            self.cast(block, op);
            return Decision::new(Choice::Cast, Reason::UserCast);
        }
        let decision = if self.options.promote {
            self.promoted(block, op)
        } else if self.options.level == Level::O2 {
            Decision::new(Choice::Low, Reason::Permitted)
        } else if facts.gray {
            self.gray(block, op)
        } else {
            Decision::new(Choice::Float32, Reason::Unlisted)
        };
        match decision.choice {
            Choice::Low => self.low(block, op, decision),
            _ => self.float32(block, op, decision),
        }
    }

    /// Rule 1.
    fn skip(&mut self, block: BlockId, op: OpRef<'p>) -> Option<Reason> {
        let program = self.look.program;
        let float = |name: Name| match self.look.decls.find(block, name) {
            None => true,
            Some(v) => program.var(v).kind == VarKind::LOD_TENSOR && is_cast_type(self.dtypes[v.index()]),
        };
        let (mut some, mut any) = (false, false);
        for name in op.input_args() {
            some = true;
            any |= float(name);
        }
        if some && !any {
            return Some(Reason::NoFloatInput);
        }
        match op.kind() {
            sym::SET_VALUE => None,
            sym::CREATE_PY_READER | sym::READ => Some(Reason::Reader),
            _ if self.look.attr_facts(op).says_dtype => Some(Reason::DtypeAttribute),
            _ => None,
        }
    }

    fn promoted(&self, block: BlockId, op: OpRef<'p>) -> Decision {
        let facts = self.look.kinds.get(op.kind());
        let mut wide = None;
        self.look.each_input(op, |slot, args| {
            if wide.is_some() || self.look.kinds.keeps_input(facts, slot) {
                return;
            }
            wide = args.iter().copied().find(|&n| self.tensor(block, n).is_some_and(|(_, d)| d == DType::F32));
        });
        match wide {
            Some(_) => Decision { choice: Choice::Float32, reason: Reason::Float32Input, witness: wide },
            None => Decision::new(Choice::Low, Reason::NoFloat32Input),
        }
    }

    /// The last input whose producer's precision is known says which.
    fn gray(&self, block: BlockId, op: OpRef<'p>) -> Decision {
        let mut decision = Decision::new(Choice::Low, Reason::NoProducer);
        self.look.each_input(op, |_, args| {
            for &name in args {
                let Some(var) = self.look.decls.find(block, name) else { continue };
                let Some(by) = self.producer[var.index()].filter(|&p| p != op.id) else { continue };
                let kind = self.look.kinds.get(self.look.program.op(by).kind());
                let choice = match self.ops[by.index()].choice {
                    Choice::Float32 => Choice::Float32,
                    _ if kind.black => Choice::Float32,
                    Choice::Low => Choice::Low,
                    _ if kind.white => Choice::Low,
                    _ => continue,
                };
                decision = Decision { choice, reason: Reason::Producer, witness: Some(name) };
            }
        });
        decision
    }

    /// The declaration of a name that holds tensors, and its dtype now.
    fn tensor(&self, block: BlockId, name: Name) -> Option<(VarId, DType)> {
        let var = self.look.decls.find(block, name)?;
        self.look.program.var(var).kind.has_tensor().then(|| (var, self.dtypes[var.index()]))
    }

    fn set_outputs(&mut self, block: BlockId, op: OpRef<'p>, dtype: DType) {
        let facts = self.look.kinds.get(op.kind());
        for slot in op.outputs() {
            if self.look.kinds.keeps_output(facts, slot.name) {
                continue;
            }
            for &name in slot.args {
                if let Some((var, old)) = self.tensor(block, name)
                    && old.is_float()
                {
                    self.dtypes[var.index()] = dtype;
                }
            }
        }
    }

    fn float32(&mut self, block: BlockId, op: OpRef<'p>, decision: Decision) -> Decision {
        // Where Paddle turns the user's cast into one to float32, it stays what it is.
        if op.kind() == sym::CAST {
            self.cast(block, op);
        } else {
            self.set_outputs(block, op, DType::F32);
        }
        decision
    }

    fn low(&mut self, block: BlockId, op: OpRef<'p>, decision: Decision) -> Decision {
        let facts = self.look.kinds.get(op.kind());
        for slot in op.inputs() {
            if self.look.kinds.keeps_input(facts, slot.name) {
                continue;
            }
            for &name in slot.args {
                if self.tensor(block, name).is_some_and(|(_, d)| d.is_float()) {
                    self.returned[name.index()] = true;
                }
            }
        }
        self.set_outputs(block, op, self.low);
        decision
    }

    /// The output of a user's cast gets the dtype that the cast says.
    fn cast(&mut self, block: BlockId, op: OpRef<'p>) {
        let Some(code) = op.attr(sym::OUT_DTYPE).and_then(|v| v.as_int()) else { return };
        let (Ok(code), Some(&out)) = (i32::try_from(code), op.output(sym::OUT).first()) else { return };
        if let Some((var, _)) = self.tensor(block, out)
            && code >= 0
        {
            self.dtypes[var.index()] = DType::from_code(code);
        }
    }
}
