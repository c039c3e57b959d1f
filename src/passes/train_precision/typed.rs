//! How does an op outside the forward and backward parts compute in one dtype? Through casts of its operands.

use super::flow::Slots;
use crate::entity::EntityId;
use crate::ir::{At, AttrValue, BlockId, DType, Edit, EditSummary, NewOp, OpId, Program, Role, VarDef, VarFlag, VarId};
use crate::names::{Name, sym};
use crate::passes::precision::cast_attrs;
use crate::verify::DeclIndex;
use indexmap::IndexMap;
use rustc_hash::FxHashMap;

/// Kinds whose result has the dtype of their (first) operand, whatever float type that is (Paddle 2.6.2).
const FOLLOWS: &[&str] = &[
    "abs",
    "assign",
    "clip",
    "clip_by_norm",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "fill_any_like",
    "fill_zeros_like",
    "get_tensor_from_selected_rows",
    "merge_selected_rows",
    "scale",
    "sign",
    "sqrt",
    "square",
    "squared_l2_norm",
    "sum",
];

/// Rewrites single ops against the dtypes that variables have by now.
pub(super) struct Typer<'t> {
    pub work: &'t mut Program,
    pub edit: Edit,
    decls: DeclIndex,
    /// dtypes by declaration, and of declarations to come by block and name
    dtypes: Vec<DType>,
    new: FxHashMap<(BlockId, Name), DType>,
    follows: Vec<bool>,
    /// slots that were changed
    slots: IndexMap<OpId, Slots>,
    /// values of `op_role_var` that were changed
    pub role_vars: FxHashMap<OpId, AttrValue>,
    pub low: DType,
}

impl<'t> Typer<'t> {
    pub fn new(work: &'t mut Program, low: DType) -> Self {
        Typer {
            decls: DeclIndex::new(work),
            dtypes: (0..work.var_rows()).map(|i| work.var(VarId::from_index(i)).dtype).collect(),
            new: FxHashMap::default(),
            follows: work.symbols().iter().map(|(_, text)| FOLLOWS.contains(&text)).collect(),
            work,
            edit: Edit::new(),
            slots: IndexMap::new(),
            role_vars: FxHashMap::default(),
            low,
        }
    }

    /// The slots of an op by now, to be changed.
    pub fn slots(&mut self, op: OpId) -> &mut Slots {
        let r = self.work.op(op);
        let list = |s: crate::ir::Slot<'_>| (s.name, s.args.to_vec());
        let now = || Slots { inputs: r.inputs().map(list).collect(), outputs: r.outputs().map(list).collect() };
        self.slots.entry(op).or_insert_with(now)
    }

    /// Carries out what was queued.
    pub fn commit(mut self, pass: &str) -> EditSummary {
        for (op, Slots { inputs, outputs }) in self.slots {
            let r = self.work.op(op);
            let old = r.inputs().chain(r.outputs()).map(|s| (s.name, s.args));
            if !old.eq(inputs.iter().chain(&outputs).map(|(s, a)| (*s, &a[..]))) {
                self.edit.set_slots(op, inputs, outputs, "follows its gradient");
            }
        }
        self.edit.commit(self.work, pass)
    }

    /// The declaration that a name has in a block.
    pub fn var(&self, block: BlockId, name: Name) -> Option<VarId> {
        self.decls.find(block, name)
    }

    /// The dtype of a tensor.
    pub fn dtype(&self, block: BlockId, name: Name) -> Option<DType> {
        if let Some(&d) = self.new.get(&(block, name)) {
            return Some(d);
        }
        let var = self.decls.find(block, name)?;
        self.work.var(var).kind.has_tensor().then(|| self.dtypes[var.index()])
    }

    /// Whether it is a type between which casts are made.
    pub fn castable(&self, dtype: DType) -> bool {
        dtype == DType::F32 || dtype == self.low
    }

    /// Declares a variable like another one, in a dtype.
    pub fn declare_like(&mut self, block: BlockId, like: Name, base: &str, dtype: DType) -> Name {
        let name = self.work.fresh_name(base);
        let (shape, kind, lod, origin) = match self.decls.find(block, like) {
            Some(v) => {
                let d = self.work.var(v);
                (self.work.shape(v).to_vec(), d.kind, d.lod_level, d.origin)
            }
            None => {
                let origin = self.work.push_origin(crate::ir::Origin::Built { tag: 0 });
                (Vec::new(), crate::ir::VarKind::LOD_TENSOR, Some(0), origin)
            }
        };
        let mut def = VarDef::tensor(name, dtype, shape).with(VarFlag::StopGradient, true);
        (def.kind, def.lod_level) = (kind, lod);
        self.edit.declare(block, def, origin, "");
        self.new.insert((block, name), dtype);
        name
    }

    /// Casts a variable before an op; gives the name of the result.
    pub fn cast_before(&mut self, op: OpId, name: Name, from: DType, to: DType, role: Role) -> Name {
        let block = self.work.op(op).block();
        let suffix = if to == DType::F32 { ".cast_fp32" } else { ".cast_fp16" };
        let base = format!("{}{suffix}", self.work.name(name));
        let out = self.declare_like(block, name, &base, to);
        let mut new = cast(name, out, from, to, role);
        // It belongs to the same parameter and gradient as the op.
        if let Some(value) = self.role_vars.get(&op).or_else(|| self.work.op(op).attr(sym::OP_ROLE_VAR)) {
            new.attrs.iter_mut().filter(|a| a.name == sym::OP_ROLE_VAR).for_each(|a| a.value = value.clone());
        }
        self.edit.insert(At::Before(op), new, "");
        out
    }

    /// Sets the dtype of a declaration.
    pub fn set_dtype(&mut self, var: VarId, dtype: DType) {
        if self.dtypes[var.index()] != dtype {
            self.dtypes[var.index()] = dtype;
            self.edit.set_dtype(var, dtype, "");
        }
    }

    /// Whether an op's result has the dtype of its operand.
    pub fn follows(&self, op: OpId) -> bool {
        self.follows[self.work.op(op).kind().index()]
    }

    /// The float operands of an op in order: slot, place, name, dtype.
    pub fn floats(&mut self, op: OpId) -> Vec<(usize, usize, Name, DType)> {
        let block = self.work.op(op).block();
        let inputs = self.slots(op).inputs.clone();
        let mut out = Vec::new();
        for (i, (_, args)) in inputs.iter().enumerate() {
            for (at, &name) in args.iter().enumerate() {
                if let Some(d) = self.dtype(block, name).filter(|&d| self.castable(d)) {
                    out.push((i, at, name, d));
                }
            }
        }
        out
    }

    /// Makes an op compute in the dtype of its X (when its kind follows that) or in float32: other operands are
    /// cast, results get that dtype, or are cast when `fixed` says that their variable keeps its own.
    /// A control op is left alone; its blocks hold ops of their own.
    pub fn fix(&mut self, op: OpId, fixed: &dyn Fn(Name) -> bool) {
        if self.work.op(op).has_sub_blocks() {
            return;
        }
        let floats = self.floats(op);
        let (block, role) = {
            let r = self.work.op(op);
            (r.block(), r.role().unwrap_or(Role::FORWARD))
        };
        let x = self.work.op(op).inputs().position(|s| s.name == sym::X);
        let first = floats.iter().find(|f| Some(f.0) == x).or(floats.first());
        let outputs: Vec<Name> = self.slots(op).outputs.iter().flat_map(|s| s.1.iter().copied()).collect();
        let made = || outputs.iter().find_map(|&n| self.dtype(block, n).filter(|&d| self.castable(d)));
        let persistable = |n: Name| self.decls.find(block, n).is_some_and(|v| self.work.var(v).persistable());
        let wide = outputs.iter().any(|&n| self.dtype(block, n) == Some(DType::F32) && persistable(n));
        let dtype = match first {
            // What is kept from step to step keeps its dtype, and is computed in it.
            Some(f) if self.follows(op) && !wide => f.3,
            Some(_) => DType::F32,
            // It makes its result from attributes.
            None => made().unwrap_or(DType::F32),
        };
        for (slot, at, name, from) in floats {
            if from != dtype {
                let copy = self.cast_before(op, name, from, dtype, role);
                self.slots(op).inputs[slot].1[at] = copy;
            }
        }
        for name in outputs {
            let Some(d) = self.dtype(block, name).filter(|&d| self.castable(d) && d != dtype) else { continue };
            let Some(var) = self.decls.find(block, name) else { continue };
            if !fixed(name) {
                self.set_dtype(var, dtype);
                continue;
            }
            let suffix = if dtype == DType::F32 { ".result_fp32" } else { ".result_fp16" };
            let base = format!("{}{suffix}", self.work.name(name));
            let result = self.declare_like(block, name, &base, dtype);
            self.edit.insert(At::After(op), cast(result, name, dtype, d, role), "");
            self.slots(op)
                .outputs
                .iter_mut()
                .flat_map(|s| s.1.iter_mut())
                .filter(|n| **n == name)
                .for_each(|n| *n = result);
        }
        for attr in [sym::DTYPE, sym::OUT_DTYPE] {
            let r = self.work.op(op);
            let says = r.attr(attr).and_then(|v| v.as_int()).and_then(|c| i32::try_from(c).ok()).map(DType::from_code);
            if r.kind() != sym::CAST && says.is_some_and(|d| self.castable(d) && d != dtype) {
                self.edit.set_attr(op, crate::ir::Attr::new(attr, dtype), "");
            }
        }
    }
}

/// A cast op as Paddle writes it.
pub(super) fn cast(x: Name, out: Name, from: DType, to: DType, role: Role) -> NewOp {
    let mut op = NewOp::new(sym::CAST).input(sym::X, [x]).output(sym::OUT, [out]);
    op.attrs = cast_attrs(from, to, "", role);
    op
}
