//! What program and which files does a job stand for?

use super::{C, FILES, FLAGS, Job, Step, path};
use mastercast::ckpt::{Checkpoint, CkptError};
use mastercast::interp::{Files, MemoryCheckpoint, SaveFormat, Tensor};
use mastercast::ir::{Attr, AttrValue, BlockId, DType, OpId, Origin, OriginId, Program, Section, VarDef, VarFlag};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

impl Job {
    /// The files of a run, as they are before it.
    pub fn store(&self) -> Store {
        let mut files = BTreeMap::new();
        for file in 0..=FILES {
            let entries = (0..self.cells.len()).map(|c| (self.cells[c].name.clone(), self.entry(file, c))).collect();
            files.insert(path(file as u8), entries);
        }
        let pair = [self.entry(0, 0), self.entry(1, 1)].map(|t| t.cast(DType::F32, Default::default()).unwrap());
        Store(Rc::new(RefCell::new(Inner { files, unnamed: pair.into() })))
    }
}

struct Inner {
    files: BTreeMap<String, BTreeMap<String, Tensor>>,
    unnamed: Vec<Tensor>,
}

/// Checkpoints in memory. A save replaces the entries that it names; clones share what they hold.
#[derive(Clone)]
pub struct Store(Rc<RefCell<Inner>>);

impl Store {
    /// Adds an entry.
    pub fn put(&self, file: &str, key: &str, value: Tensor) {
        self.0.borrow_mut().files.entry(file.to_owned()).or_default().insert(key.to_owned(), value);
    }
}

impl Files for Store {
    fn open(&self, path: &Path) -> Result<Arc<dyn Checkpoint>, CkptError> {
        let inner = self.0.borrow();
        let text = path.to_str().unwrap_or("");
        match inner.files.get(text) {
            Some(entries) => Ok(Arc::new(MemoryCheckpoint::new(path, entries.iter().map(|(k, t)| (&**k, t.clone()))))),
            None => Err(CkptError::Unsupported { path: path.into(), what: "no such file".into() }),
        }
    }

    fn open_combined(&self, path: &Path, names: &[&str]) -> Result<Arc<dyn Checkpoint>, CkptError> {
        let unnamed = self.0.borrow().unnamed.clone();
        // Two cells of one name would be two entries of one name.
        Ok(Arc::new(MemoryCheckpoint::new(path, names.iter().copied().zip(unnamed))))
    }

    fn write(&self, path: &Path, _: SaveFormat, tensors: &[(&str, Tensor)]) -> Result<(), CkptError> {
        tensors.iter().for_each(|(k, t)| self.put(path.to_str().unwrap_or(""), k, t.clone()));
        Ok(())
    }
}

/// The job as a program.
pub fn program(job: &Job) -> Program {
    Write::new(job).finish()
}

struct Write<'j> {
    job: &'j Job,
    p: Program,
    origin: OriginId,
    loops: usize,
    /// block 0 of the section being written
    global: BlockId,
    section: Section,
}

type Slots<'s> = &'s [(&'s str, Vec<String>)];

fn dtype(d: DType) -> AttrValue {
    AttrValue::Int(d.code())
}

fn longs(v: &[i64]) -> AttrValue {
    AttrValue::Longs(v.into())
}

impl<'j> Write<'j> {
    fn new(job: &'j Job) -> Self {
        let mut p = Program::new();
        let origin = p.push_origin(Origin::Built { tag: 0 });
        let global = p.push_block(Section::Startup, -1, None);
        p.push_block(Section::Main, -1, None);
        Write { job, p, origin, loops: 0, global, section: Section::Startup }
    }

    fn declare(&mut self, block: BlockId, name: &str, dtype: DType, shape: &[i64], persistable: bool) {
        let name = self.p.intern(name);
        let def = VarDef::tensor(name, dtype, shape).with(VarFlag::Persistable, persistable);
        self.p.push_var(block, &def, self.origin);
    }

    fn op(&mut self, block: BlockId, kind: &str, ins: Slots<'_>, outs: Slots<'_>, attrs: &[(&str, AttrValue)]) -> OpId {
        let attrs = attrs.iter().map(|(n, v)| Attr::new(self.p.symbol(n), v.clone())).collect();
        let attrs = self.p.intern_attrs(attrs);
        let kind = self.p.symbol(kind);
        let op = self.p.push_op(block, kind, attrs, self.origin);
        for (slot, args) in ins {
            let (slot, args) = (self.p.symbol(slot), args.iter().map(|a| self.p.intern(a)).collect::<Vec<_>>());
            self.p.push_input(op, slot, args);
        }
        for (slot, args) in outs {
            let (slot, args) = (self.p.symbol(slot), args.iter().map(|a| self.p.intern(a)).collect::<Vec<_>>());
            self.p.push_output(op, slot, args);
        }
        op
    }

    fn name(&self, c: C) -> String {
        self.job.cells[c].name.clone()
    }

    fn shape(&self, c: C) -> [i64; 2] {
        [if self.job.cells[c].tall { 4 } else { 2 }, 2]
    }

    fn fill(&mut self, block: BlockId, name: &str, dt: DType, shape: &[i64], value: f32) {
        let attrs = [("dtype", dtype(dt)), ("shape", longs(shape)), ("value", AttrValue::Float(value.into()))];
        self.op(block, "fill_constant", &[], &[("Out", vec![name.to_owned()])], &attrs);
    }

    fn state(pair: usize) -> [(String, bool); 5] {
        ["velocity", "moment1", "moment2", "beta1_pow", "beta2_pow"]
            .map(|s| (format!("fc_{pair}.w_0_{s}_0"), s.ends_with("pow")))
    }

    fn finish(mut self) -> Program {
        for section in Section::ALL {
            self.section = section;
            self.global = self.p.global_block(section).unwrap();
            let global = self.global;
            for c in 0..self.job.cells.len() {
                let cell = &self.job.cells[c];
                let dt = if section == Section::Startup { cell.startup } else { cell.main };
                self.declare(global, &cell.name, dt, &self.shape(c), cell.persistable);
            }
            for pair in 0..self.job.pairs.len() {
                for (name, scalar) in Self::state(pair) {
                    let shape: &[i64] = if scalar { &[1] } else { &[2, 2] };
                    self.declare(global, &name, DType::F32, shape, true);
                    if section == Section::Startup {
                        self.fill(global, &name, DType::F32, shape, if scalar { 0.9 } else { 0.0 });
                    }
                }
            }
            self.declare(global, "lr", DType::F32, &[1], true);
            self.declare(global, "step", DType::I64, &[1], true);
            (0..FLAGS).for_each(|f| self.declare(global, &format!("flag_{f}"), DType::Bool, &[1], false));
            match section {
                Section::Startup => {
                    self.fill(global, "lr", DType::F32, &[1], 0.01);
                    self.fill(global, "step", DType::I64, &[1], 0.0);
                    for f in 0..FLAGS {
                        let value = f32::from(u8::from(self.job.flags[f]));
                        self.fill(global, &format!("flag_{f}"), DType::Bool, &[1], value);
                    }
                    let steps = &self.job.startup;
                    self.steps(global, steps);
                }
                Section::Main => {
                    self.declare(global, "limit", DType::I64, &[1], false);
                    for f in 0..FLAGS {
                        self.fill(global, "limit", DType::I64, &[1], f32::from(self.job.limits[f]));
                        let ins = [("X", vec!["limit".to_owned()]), ("Y", vec!["step".to_owned()])];
                        self.op(global, "less_equal", &ins, &[("Out", vec![format!("flag_{f}")])], &[]);
                    }
                    self.declare(global, "grad", DType::F32, &[2, 2], false);
                    let attrs = [("dtype", dtype(DType::F32)), ("shape", longs(&[2, 2]))];
                    self.op(global, "uniform_random", &[], &[("Out", vec!["grad".to_owned()])], &attrs);
                    let steps = &self.job.main;
                    self.steps(global, steps);
                    let by = [("step", AttrValue::Float(1.0.into()))];
                    let step = || vec!["step".to_owned()];
                    self.op(global, "increment", &[("X", step())], &[("Out", step())], &by);
                }
            }
        }
        self.p
    }

    fn steps(&mut self, block: BlockId, steps: &[Step]) {
        steps.iter().for_each(|s| self.step(block, s));
    }

    fn step(&mut self, block: BlockId, step: &Step) {
        let one = |this: &Self, c: C| vec![this.name(c)];
        match step {
            Step::Init { out, dtype: dt, random, value } => {
                let shape = self.shape(*out);
                if *random {
                    let attrs = [("dtype", dtype(*dt)), ("shape", longs(&shape))];
                    self.op(block, "uniform_random", &[], &[("Out", one(self, *out))], &attrs);
                } else {
                    let name = self.name(*out);
                    self.fill(block, &name, *dt, &shape, *value);
                }
            }
            Step::Cast { x, out, to } => {
                let attrs = [("in_dtype", dtype(DType::F32)), ("out_dtype", dtype(*to))];
                self.op(block, "cast", &[("X", one(self, *x))], &[("Out", one(self, *out))], &attrs);
            }
            Step::Copy { x, out } => {
                self.op(block, "assign", &[("X", one(self, *x))], &[("Out", one(self, *out))], &[]);
            }
            Step::Pure { kind, x, out, by } => {
                let (kind, attrs): (_, Vec<(&str, AttrValue)>) = match kind {
                    0 => ("transpose2", vec![("axis", AttrValue::Ints([1, 0].into()))]),
                    1 => {
                        let bias = AttrValue::Float((by / 4.0).into());
                        ("scale", vec![("scale", AttrValue::Float((*by).into())), ("bias", bias)])
                    }
                    _ => ("reshape2", vec![("shape", AttrValue::Ints([2, 2].into()))]),
                };
                self.op(block, kind, &[("X", one(self, *x))], &[("Out", one(self, *out))], &attrs);
            }
            Step::Concat { x, y, out } => {
                let ins = [("X", vec![self.name(*x), self.name(*y)])];
                self.op(block, "concat", &ins, &[("Out", one(self, *out))], &[("axis", AttrValue::Int(0))]);
            }
            Step::Slice { x, out, second } => {
                let (from, to) = if *second { (2, 4) } else { (0, 2) };
                let ints = |v: i32| AttrValue::Ints([v].into());
                let attrs = [("axes", ints(0)), ("starts", ints(from)), ("ends", ints(to))];
                self.op(block, "slice", &[("Input", one(self, *x))], &[("Out", one(self, *out))], &attrs);
            }
            Step::Load { file, outs, annotate, pinned, as_fp16 } => {
                let names = outs.iter().map(|o| self.name(o.0)).collect();
                let mut attrs = vec![("file_path", AttrValue::str(path(*file)))];
                attrs.push(("keys", AttrValue::strs(outs.iter().map(|o| self.name(o.1)))));
                if *annotate {
                    let codes = outs.iter().map(|o| self.job.stored[*file as usize][o.1].code()).collect();
                    attrs.push(("stored_dtypes", AttrValue::Ints(codes)));
                }
                if *pinned {
                    attrs.push(("pinned", AttrValue::Bool(true)));
                }
                if *as_fp16 {
                    attrs.push(("load_as_fp16", AttrValue::Bool(true)));
                }
                self.op(block, "load", &[], &[("Out", names)], &attrs);
            }
            Step::LoadCombine { outs } => {
                let names = outs.iter().map(|&c| self.name(c)).collect();
                let attrs = [("file_path", AttrValue::str("unnamed"))];
                self.op(block, "load_combine", &[], &[("Out", names)], &attrs);
            }
            Step::Save { file, cells } => {
                let names = cells.iter().map(|&c| self.name(c)).collect();
                let attrs = [("file_path", AttrValue::str(path(*file)))];
                self.op(block, "save_combine", &[("X", names)], &[], &attrs);
            }
            Step::AmpInit { cells, rewrite, dtype: dt } => {
                let names: Vec<String> = cells.iter().map(|&c| self.name(c)).collect();
                let mut ins = vec![("X", names.clone())];
                let mut outs = vec![("Out", names)];
                if !rewrite.is_empty() {
                    ins.push(("MasterOf", rewrite.iter().map(|&i| self.name(self.job.pairs[i].param)).collect()));
                    outs.push((
                        "MasterParamOut",
                        rewrite.iter().map(|&i| self.name(self.job.pairs[i].master)).collect(),
                    ));
                }
                self.op(block, "amp_init", &ins, &outs, &[("dtype", dtype(*dt))]);
            }
            Step::Resync { pair, direction, policy } => {
                let pair = &self.job.pairs[*pair];
                let (p, m) = (one(self, pair.param), one(self, pair.master));
                let ins = [("Param", p.clone()), ("MasterParam", m.clone())];
                let outs = [("ParamOut", p), ("MasterParamOut", m)];
                let attrs = [
                    ("dtype", dtype(pair.low)),
                    ("direction", AttrValue::str(*direction)),
                    ("on_conflict", AttrValue::str(*policy)),
                ];
                self.op(block, "resync", &ins, &outs, &attrs);
            }
            Step::Math { x, out } => {
                self.op(block, "tanh", &[("X", one(self, *x))], &[("Out", one(self, *out))], &[]);
            }
            Step::Unknown { ins, outs, writes, value } => {
                let ins = [("X", ins.iter().map(|&c| self.name(c)).collect())];
                let outs = [("Out", outs.iter().map(|&c| self.name(c)).collect())];
                let attrs = [("writes", AttrValue::Int(*writes as i32)), ("value", AttrValue::Float((*value).into()))];
                self.op(block, "made_up", &ins, &outs, &attrs);
            }
            Step::Update { kind, pair, master, skip } => self.update(block, *kind, *pair, *master, *skip),
            Step::Cond { flag, unknown, locals, redeclare, twice, body } => {
                let sub = self.sub_block(block, locals, *redeclare);
                self.steps(sub, body);
                let index = self.p.block(sub).index as i32;
                let mut outs = Vec::new();
                let mut ins = vec![("Cond", vec![format!("flag_{flag}")])];
                if self.job.lists && !*unknown {
                    let (reads, writes) = self.touched(sub, locals);
                    ins.push(("Input", reads));
                    outs.push(("Out", writes));
                }
                let attrs = [("sub_block", AttrValue::Block(index)), ("is_scalar_condition", AttrValue::Bool(true))];
                let kind = if *unknown { "made_up_block" } else { "conditional_block" };
                self.op(block, kind, &ins, &outs, &attrs);
                if let Some(flag) = twice {
                    ins[0].1 = vec![format!("flag_{flag}")];
                    self.op(block, kind, &ins, &outs, &attrs);
                }
            }
            Step::Loop { times, locals, body } => {
                let n = self.loops;
                self.loops += 1;
                let names = ["i", "n", "on"].map(|s| format!("loop_{n}_{s}"));
                let (global, at) = (self.global, [DType::I64, DType::I64, DType::Bool]);
                names.iter().zip(at).for_each(|(name, dt)| self.declare(global, name, dt, &[1], false));
                let [i, limit, on] = names;
                self.fill(block, &i, DType::I64, &[1], 0.0);
                self.fill(block, &limit, DType::I64, &[1], f32::from(*times));
                let test = |this: &mut Self, block| {
                    let ins = [("X", vec![i.clone()]), ("Y", vec![limit.clone()])];
                    this.op(block, "less_than", &ins, &[("Out", vec![on.clone()])], &[]);
                };
                test(self, block);
                let sub = self.sub_block(block, locals, false);
                self.steps(sub, body);
                let by = [("step", AttrValue::Float(1.0.into()))];
                self.op(sub, "increment", &[("X", vec![i.clone()])], &[("Out", vec![i.clone()])], &by);
                test(self, sub);
                let index = self.p.block(sub).index as i32;
                let mut ins = vec![("Condition", vec![on.clone()])];
                let mut outs = Vec::new();
                if self.job.lists {
                    let (reads, writes) = self.touched(sub, locals);
                    ins.push(("X", reads));
                    outs.push(("Out", writes));
                }
                self.op(block, "while", &ins, &outs, &[("sub_block", AttrValue::Block(index))]);
            }
        }
    }

    fn sub_block(&mut self, parent: BlockId, locals: &[C], redeclare: bool) -> BlockId {
        let parent = self.p.block(parent).index as i32;
        let sub = self.p.push_block(self.section, parent, None);
        for &c in locals {
            let (name, shape) = (self.name(c), self.shape(c));
            self.declare(sub, &name, self.job.cells[c].main, &shape, false);
        }
        if redeclare {
            // A persistable is one cell, wherever it is declared.
            let pair = &self.job.pairs[0];
            for c in [pair.param, pair.master] {
                let (name, shape) = (self.name(c), self.shape(c));
                self.declare(sub, &name, self.job.cells[c].main, &shape, true);
            }
        }
        sub
    }

    /// What the ops of a block name, less its own variables: read, written.
    fn touched(&self, block: BlockId, locals: &[C]) -> (Vec<String>, Vec<String>) {
        let hidden: Vec<String> = locals.iter().map(|&c| self.name(c)).collect();
        let list = |names: Vec<mastercast::names::Name>| {
            let mut out: Vec<String> = names.into_iter().map(|n| self.p.name(n).to_owned()).collect();
            out.retain(|n| !hidden.contains(n));
            out.sort();
            out.dedup();
            out
        };
        let ops = || self.p.ops(block);
        (list(ops().flat_map(|o| o.input_args()).collect()), list(ops().flat_map(|o| o.output_args()).collect()))
    }

    fn update(&mut self, block: BlockId, kind: u8, pair: usize, master: bool, skip: Option<u8>) {
        let p = &self.job.pairs[pair];
        let (param, master_name) = (self.name(p.param), self.name(p.master));
        let one = |s: &str| vec![s.to_owned()];
        let [velocity, m1, m2, b1, b2] = Self::state(pair).map(|s| s.0);
        let mut ins = vec![("Param", one(&param)), ("Grad", one("grad")), ("LearningRate", one("lr"))];
        let mut outs = vec![("ParamOut", one(&param))];
        if kind == 1 {
            ins.push(("Velocity", one(&velocity)));
            outs.push(("VelocityOut", one(&velocity)));
        }
        if kind >= 2 {
            for (slot, out, name) in [
                ("Moment1", "Moment1Out", &m1),
                ("Moment2", "Moment2Out", &m2),
                ("Beta1Pow", "Beta1PowOut", &b1),
                ("Beta2Pow", "Beta2PowOut", &b2),
            ] {
                ins.push((slot, one(name)));
                outs.push((out, one(name)));
            }
            if let Some(flag) = skip {
                ins.push(("SkipUpdate", one(&format!("flag_{flag}"))));
            }
        }
        if master {
            ins.push(("MasterParam", one(&master_name)));
            outs.push(("MasterParamOut", one(&master_name)));
        }
        let mut attrs = vec![("multi_precision", AttrValue::Bool(master))];
        if kind == 1 {
            attrs.push(("mu", AttrValue::Float(0.9.into())));
        }
        let kind = ["sgd", "momentum", "adam", "adamw"][kind as usize];
        self.op(block, kind, &ins, &outs, &attrs);
    }
}
