//! What happens between the last gradient and the update of a parameter?
//!
//! For each backward pass (several optimizers may train parts of one program): the loss is scaled; gradients become
//! master gradients where that is asked for, are unscaled and checked in groups of one dtype, and adapt the scale;
//! clip and regularisation compute in the dtype of the gradient; optimizers get `multi_precision` and learn
//! whether to skip the step. Numbers and order are those of PaddlePaddle 2.6.2 (`static/amp/decorator.py`,
//! `nn/clip.py`, `optimizer/optimizer.py`).

use super::backward::param_order;
use super::grads::{GRAD, Grads};
use super::scaling::{Plan, ScalingCells, any_found, to_host};
use super::state::narrow_initialisers;
use super::steps::{Step, steps};
use super::typed::{Typer, cast};
use super::{TrainError, TrainPrecision};
use crate::entity::EntityId;
use crate::ir::{At, Attr, AttrValue, BlockId, DType, EditSummary, NewOp, OpId, Program, Role, Section, VarDef};
use crate::names::{Name, Symbol, sym};
use crate::ops::{Effect, Kinds, Wants};
use crate::passes::PassCx;
use crate::passes::precision::Level;
use rustc_hash::{FxHashMap, FxHashSet};

/// Optimizers that skip a step when told so in host memory, or on the device (Paddle 2.6.2).
const SKIPS_BY_HOST: &[&str] = &["adam", "adamw"];
const SKIPS_BY_DEVICE: &[&str] = &["lamb"];
/// Accumulators that have the dtype of a parameter without a master (kind, slot); the others keep float32.
const NARROW_STATE: &[(&str, &str)] = &[
    ("adadelta", "AvgSquaredGrad"),
    ("adadelta", "AvgSquaredUpdate"),
    ("adagrad", "Moment"),
    ("adamax", "Beta1Pow"),
    // Paddle's main says float32 where startup makes a 16-bit cell; the kernel reads the parameter's type.
    ("momentum", "Velocity"),
    ("rmsprop", "MeanGrad"),
    ("rmsprop", "MeanSquare"),
    ("rmsprop", "Moment"),
];

/// Rewrites losses, what stands between gradients and optimizers, and those; `others` are backward ops that are not
/// understood.
pub(super) fn rewrite(
    options: &TrainPrecision,
    before: &Program,
    work: &mut Program,
    cx: &PassCx<'_>,
    others: &[OpId],
    pass: &str,
) -> Result<EditSummary, TrainError> {
    let low = options.dtype.dtype();
    let grads = Grads::new(work);
    let kinds = cx.ops.resolve(before);
    let mut rest: FxHashSet<OpId> = others.iter().copied().collect();
    let steps = steps(before, work, &kinds, &grads, &rest);
    let order = param_order(before);
    let plan = options.loss_scaling.plan(low);
    let mut t = Typer::new(work, low);
    let losses: FxHashSet<OpId> = steps.iter().flat_map(|s| s.losses.iter().copied()).collect();
    // What keeps its dtype: gradients, and what outlives a step; what stands between follows them.
    let vars = before.section_blocks(Section::Main).flat_map(|b| &before.block(b).vars).map(|&v| before.var(v));
    let kept: FxHashSet<Name> = vars.filter(|v| v.persistable()).map(|v| v.name).collect();
    let fixed = |name: Name| grads.of(name).is_some() || kept.contains(&name);
    let with_steps = steps.iter().flat_map(|s| &s.others).chain(&losses);
    for op in with_steps {
        rest.remove(op);
    }
    for &op in others.iter().filter(|op| rest.contains(op)) {
        t.fix(op, &fixed);
    }
    let (mut narrowed, mut marked) = (FxHashSet::default(), FxHashSet::default());
    let norms: FxHashSet<Name> = {
        let ops = steps.iter().flat_map(|s| &s.ops).map(|&op| t.work.op(op));
        ops.filter(|op| op.kind() == sym::SQUARED_L2_NORM).flat_map(|op| op.output_args()).collect()
    };
    for step in steps {
        let mut one = One {
            options,
            t: &mut t,
            kinds: &kinds,
            plan,
            fixed: &fixed,
            renamed: FxHashMap::default(),
            narrowed: &mut narrowed,
            marked: &mut marked,
            norms: &norms,
        };
        one.step(step, &order)?;
    }
    narrow_initialisers(&mut t, &narrowed);
    loss_roles(before, &mut t, &marked);
    Ok(t.commit(pass))
}

/// The rewrite of what belongs to one backward pass.
pub(super) struct One<'o, 't, 'w> {
    pub options: &'o TrainPrecision,
    pub t: &'o mut Typer<'w>,
    pub kinds: &'o Kinds<'t>,
    pub plan: Plan,
    pub fixed: &'o dyn Fn(Name) -> bool,
    /// gradients that ops behind read under another name
    pub renamed: FxHashMap<Name, Name>,
    /// accumulators that became 16-bit
    pub narrowed: &'o mut FxHashSet<Name>,
    /// losses that are no longer what is differentiated
    pub marked: &'o mut FxHashSet<Name>,
    /// results of `squared_l2_norm`
    pub norms: &'o FxHashSet<Name>,
}

impl One<'_, '_, '_> {
    fn step(&mut self, step: Step, order: &FxHashMap<Name, usize>) -> Result<(), TrainError> {
        let Some(last) = step.last else { return Ok(()) };
        let global = self.t.work.op(last).block();
        let mut trained: Vec<(Name, Name)> = Vec::new();
        let (mut seen, mut made) = (FxHashSet::default(), None);
        for &p in step.params.iter().flat_map(|(_, params, _)| params).filter(|&&p| seen.insert(p)) {
            match step.grads.get(&p) {
                Some(&(g, place, op)) => {
                    trained.push((p, g));
                    made = made.max(Some((place, op)));
                }
                // It would be updated with a gradient that is scaled and never unscaled.
                None if self.plan.active && !step.losses.is_empty() => {
                    return Err(TrainError::Untraced { param: self.t.work.name(p).to_owned() });
                }
                None => {}
            }
        }
        trained.sort_by_key(|(p, _)| order.get(p).copied().unwrap_or(usize::MAX));
        // Behind the last gradient of a parameter, and before whatever uses one.
        let (place, at) = made.map_or((usize::MAX, At::After(last)), |(place, op)| (place, At::After(op)));
        if self.plan.active
            && let Some(&(p, _)) =
                trained.iter().find(|(_, g)| step.reads.get(g).is_some_and(|(read, _)| *read <= place))
        {
            return Err(TrainError::UsedEarly { param: self.t.work.name(p).to_owned() });
        }
        let mut cells = None;
        for &loss in &step.losses {
            // Without an optimizer nobody would unscale the gradients.
            self.loss(global, loss, &mut cells, self.plan.active && !trained.is_empty());
        }
        self.master_grads(global, at, &mut trained);
        let mut found = None;
        if let Some(cells) = cells {
            let skips = |t: &Typer<'_>, list: &[&str]| {
                step.params.iter().any(|(op, ..)| list.contains(&t.work.op(*op).kind_str()))
            };
            let (host, device) = (skips(self.t, SKIPS_BY_HOST), skips(self.t, SKIPS_BY_DEVICE));
            found = Some(self.unscale(global, at, cells, &trained, host, device));
        }
        let masters: Vec<Name> = self.renamed.keys().copied().collect();
        let mut readers: Vec<OpId> =
            masters.iter().filter_map(|g| step.reads.get(g)).flat_map(|r| &r.1).copied().collect();
        readers.sort_unstable();
        readers.dedup();
        for op in readers {
            self.rename(op);
        }
        for &op in step.others.iter().filter(|op| !step.losses.contains(op)) {
            self.t.fix(op, self.fixed);
        }
        let wide: FxHashMap<Name, DType> =
            trained.iter().filter_map(|&(p, g)| Some((p, self.t.dtype(global, g)?))).collect();
        let updates: FxHashSet<OpId> = step.params.iter().map(|p| p.0).collect();
        for op in step.ops {
            self.rename(op);
            if updates.contains(&op) {
                self.optimizer(op, found);
            } else {
                self.between(op, &wide);
            }
        }
        Ok(())
    }

    /// Scales a loss, before the op that sets the gradient of the loss.
    fn loss(&mut self, global: BlockId, fill: OpId, cells: &mut Option<ScalingCells>, scale: bool) {
        let grad = self.t.work.op(fill).output(sym::OUT)[0];
        let text = self.t.work.name(grad).rsplit_once(GRAD).map(|(of, _)| of.to_owned()).unwrap_or_default();
        let Some(loss) = self.t.work.names().lookup(&text) else { return };
        let Some(dtype) = self.t.dtype(global, loss).filter(|&d| self.t.castable(d)) else { return };
        if dtype == DType::F32 && !scale {
            return;
        }
        let before = At::Before(fill);
        let mut top = loss;
        let mut back: Vec<NewOp> = Vec::new();
        let mut marked = false;
        if dtype != DType::F32 {
            let top_text = format!("{text}.cast_fp32");
            top = self.t.declare_like(global, loss, &top_text, DType::F32);
            let role = if scale { Role::FORWARD } else { Role::LOSS };
            self.t.edit.insert(before, cast(loss, top, dtype, DType::F32, role), "the loss in float32");
            marked = true;
            let top_grad = self.t.declare_like(global, loss, &format!("{top_text}{GRAD}"), DType::F32);
            back.push(cast(top_grad, grad, DType::F32, dtype, Role::BACKWARD));
        }
        let mut shape: Option<Vec<i64>> = None;
        if scale {
            let cells = *cells.get_or_insert_with(|| declare_cells(self.t, self.plan));
            let scaled = self.t.declare_like(global, loss, &format!("{text}.scaled"), DType::F32);
            self.t.edit.insert(before, cells.scale_loss(top, scaled), "scales the loss");
            marked = true;
            let scaled_grad = self.t.declare_like(global, loss, &format!("{text}.scaled{GRAD}"), DType::F32);
            let x_grad = back.first().map_or(grad, |op| op.inputs[0].1[0]);
            back.insert(0, cells.scale_loss_grad(top, scaled_grad, x_grad));
            let of = self.t.var(global, loss).map(|v| self.t.work.shape(v).to_vec()).unwrap_or_default();
            shape = of.is_empty().then(|| vec![1]);
        }
        let first = back[0].inputs.iter().find(|s| s.0 == sym::OUT_GRAD || s.0 == sym::X).map(|s| s.1[0]);
        for slot in &mut self.t.slots(fill).outputs {
            slot.1 = first.into_iter().collect();
        }
        self.t.edit.set_attr(fill, Attr::new(sym::DTYPE, DType::F32), "");
        if let Some(shape) = shape {
            self.t.edit.set_attr(fill, Attr::new(sym::SHAPE, AttrValue::Longs(shape.into())), "");
        }
        for op in back {
            self.t.edit.insert(At::After(fill), op, "");
        }
        if marked {
            self.marked.insert(loss);
        }
    }

    /// 16-bit gradients cast to float32, where that is asked for.
    pub fn master_grads(&mut self, global: BlockId, at: At, trained: &mut [(Name, Name)]) {
        if !self.options.master_grad || self.options.level != Level::O2 {
            return;
        }
        for (_, grad) in trained {
            let Some(dtype) = self.t.dtype(global, *grad).filter(|d| d.is_low()) else { continue };
            let base = format!("{}_fp32_master_0", self.t.work.name(*grad));
            let master = self.t.declare_like(global, *grad, &base, DType::F32);
            self.t.edit.insert(at, cast(*grad, master, dtype, DType::F32, Role::FORWARD), "a master gradient");
            self.renamed.insert(*grad, master);
            *grad = master;
        }
    }

    fn flag(&mut self, global: BlockId, base: &str, shape: Vec<i64>) -> Name {
        let name = self.t.work.fresh_name(base);
        let def = VarDef::tensor(name, DType::Bool, shape);
        let origin = self.t.work.push_origin(crate::ir::Origin::Built { tag: 0 });
        self.t.edit.declare(global, def, origin, "");
        name
    }

    /// Unscales and checks the gradients; returns the flag that says whether one is not finite, in host memory (when
    /// an optimizer asks for that) and on the device.
    pub fn unscale(
        &mut self,
        global: BlockId,
        at: At,
        cells: ScalingCells,
        trained: &[(Name, Name)],
        host: bool,
        device: bool,
    ) -> (Option<Name>, Option<Name>) {
        let text = |t: &Typer<'_>, g: Name| (g, t.work.name(g).to_owned());
        let grads: Vec<(Name, String)> = trained.iter().map(|&(_, g)| text(self.t, g)).collect();
        let wide = |t: &Typer<'_>, g: Name| t.dtype(global, g) == Some(DType::F32);
        let mut groups: Vec<(Vec<(Name, String)>, &str)> = Vec::new();
        let split = self.options.level == Level::O2;
        if split {
            let (a, b): (Vec<_>, Vec<_>) = grads.into_iter().partition(|g| wide(self.t, g.0));
            groups.extend([(a, "find_infinite_scale_fp32.tmp_0"), (b, "find_infinite_scale_fp16.tmp_0")]);
            groups.retain(|g| !g.0.is_empty());
        } else {
            groups.push((grads, "find_infinite_scale.tmp_0"));
        }
        let mut flags = Vec::new();
        for (grads, name) in &groups {
            let found = self.flag(global, name, vec![1]);
            self.t.edit.insert(at, cells.check(grads, found), "unscales gradients");
            flags.push(found);
        }
        let mut found = flags[0];
        if split {
            let joined = self.flag(global, "concat_0.tmp_0", vec![flags.len() as i64]);
            let any = self.flag(global, "any_0.tmp_0", vec![]);
            for op in any_found(flags, joined, any) {
                self.t.edit.insert(at, op, "");
            }
            found = any;
        }
        for (i, (grads, _)) in groups.iter().enumerate() {
            let names = grads.iter().map(|g| g.0).collect();
            if let Some(op) = cells.update(&self.options.loss_scaling, names, found, i > 0) {
                self.t.edit.insert(at, op, "adapts the scale");
            }
        }
        let mut on_host = None;
        if host {
            let shape = if split { vec![] } else { vec![1] };
            let flag = self.flag(global, "memcpy_0.tmp_0", shape);
            self.t.edit.insert(at, to_host(found, flag), "");
            on_host = Some(flag);
        }
        (on_host, Some(found).filter(|_| device))
    }

    /// Reads and writes master gradients in place of gradients.
    fn rename(&mut self, op: OpId) {
        if self.renamed.is_empty() {
            return;
        }
        let renamed = &self.renamed;
        let slots = self.t.slots(op);
        for name in slots.inputs.iter_mut().chain(&mut slots.outputs).flat_map(|s| s.1.iter_mut()) {
            *name = renamed.get(name).copied().unwrap_or(*name);
        }
        let r = self.t.work.op(op);
        let Some(list) = r.attr(sym::OP_ROLE_VAR).and_then(|v| v.as_strs()) else { return };
        let names = self.t.work.names();
        let new: Vec<Box<str>> = list
            .iter()
            .map(|text| {
                let to = names.lookup(text).and_then(|n| self.renamed.get(&n));
                to.map_or_else(|| text.clone(), |&to| names.get(to).into())
            })
            .collect();
        if new != list {
            let value = AttrValue::Strings(new.into());
            self.t.role_vars.insert(op, value.clone());
            self.t.edit.set_attr(op, Attr { name: sym::OP_ROLE_VAR, value, raw: None }, "");
        }
    }

    /// Clip, regularisation, the learning rate of one parameter.
    fn between(&mut self, op: OpId, wide: &FxHashMap<Name, DType>) {
        let floats = self.t.floats(op);
        let r = self.t.work.op(op);
        let role = r.role().unwrap_or(Role::OPTIMIZE);
        // A regularisation term has the dtype of the gradient that it is added to.
        for &(slot, at, name, dtype) in &floats {
            if let Some(&to) = wide.get(&name).filter(|&&to| to != dtype && self.t.castable(to)) {
                let copy = self.t.cast_before(op, name, dtype, to, role);
                self.t.slots(op).inputs[slot].1[at] = copy;
            }
        }
        let r = self.t.work.op(op);
        let norms = r.kind() == sym::SUM
            && floats.iter().any(|f| f.3.is_low())
            && r.input(sym::X).first().is_some_and(|n| self.norms.contains(n));
        if norms {
            self.add_norms(op);
        } else {
            self.t.fix(op, self.fixed);
        }
    }

    /// The sum of squared norms: those of 16 bits are added apart and cast to float32.
    fn add_norms(&mut self, op: OpId) {
        let r = self.t.work.op(op);
        let (block, role) = (r.block(), r.role().unwrap_or(Role::OPTIMIZE));
        let args = r.input(sym::X).to_vec(); // norms are not renamed
        let out = r.output(sym::OUT)[0];
        let attrs = r.attrs().to_vec();
        let (low, wide): (Vec<Name>, Vec<Name>) =
            args.iter().partition(|&&n| self.t.dtype(block, n).is_some_and(DType::is_low));
        let text = self.t.work.name(out).to_owned();
        let dtype = self.t.low;
        let sum = |x: Vec<Name>, out: Name| NewOp {
            kind: sym::SUM,
            inputs: vec![(sym::X, x)],
            outputs: vec![(sym::OUT, vec![out])],
            attrs: attrs.clone(),
        };
        let narrow = self.t.declare_like(block, out, &format!("{text}.sum_fp16"), dtype);
        self.t.edit.insert(At::Before(op), sum(low, narrow), "adds up norms of one dtype");
        let mut parts = Vec::new();
        let cast_to = if wide.is_empty() {
            out
        } else {
            self.t.declare_like(block, out, &format!("{text}.sum_fp16.cast_fp32"), DType::F32)
        };
        let mut widen = cast(narrow, cast_to, dtype, DType::F32, role);
        widen.attrs.retain(|a| a.name != sym::OP_ROLE_VAR);
        widen.attrs.extend(attrs.iter().find(|a| a.name == sym::OP_ROLE_VAR).cloned());
        self.t.edit.insert(At::Before(op), widen, "");
        if wide.is_empty() {
            self.t.edit.remove(op, "adds up norms of one dtype");
            return;
        }
        parts.push(cast_to);
        let part = self.t.declare_like(block, out, &format!("{text}.sum_fp32"), DType::F32);
        self.t.edit.insert(At::Before(op), sum(wide, part), "adds up norms of one dtype");
        parts.push(part);
        self.t.slots(op).inputs = vec![(sym::X, parts)];
    }

    fn optimizer(&mut self, op: OpId, found: Option<(Option<Name>, Option<Name>)>) {
        let r = self.t.work.op(op);
        let (block, kind) = (r.block(), r.kind_str().to_owned());
        let params = r.input(sym::PARAM).to_vec();
        let low = params.iter().any(|&p| self.t.dtype(block, p).is_some_and(DType::is_low));
        let masters = self.kinds.get(r.kind()).effect == Effect::Optimizer(Wants::Master);
        if low && !masters {
            self.t.fix(op, self.fixed);
            return;
        }
        if low && self.options.master_weight {
            self.t.edit.set_attr(op, Attr::new(sym::MULTI_PRECISION, true), "its parameter is of 16 bits");
        } else if low {
            self.narrow_state(op, &kind);
        }
        let Some((host, device)) = found else { return };
        let flag = if SKIPS_BY_HOST.contains(&kind.as_str()) {
            host
        } else if SKIPS_BY_DEVICE.contains(&kind.as_str()) {
            device
        } else {
            None
        };
        if let Some(flag) = flag {
            let mut inputs = std::mem::take(&mut self.t.slots(op).inputs);
            put(self.t.work, &mut inputs, sym::SKIP_UPDATE, vec![flag]);
            self.t.slots(op).inputs = inputs;
        }
    }

    /// Accumulators of a 16-bit parameter without a master, in both programs.
    fn narrow_state(&mut self, op: OpId, kind: &str) {
        let (dtype, r) = (self.t.low, self.t.work.op(op));
        let slots = r.inputs().filter(|s| NARROW_STATE.contains(&(kind, self.t.work.sym(s.name))));
        let state: Vec<Name> = slots.flat_map(|s| s.args.iter().copied()).collect();
        for name in state {
            for section in Section::ALL {
                let Some(global) = self.t.work.global_block(section) else { continue };
                let Some(var) = self.t.var(global, name) else { continue };
                if self.t.work.var(var).dtype == DType::F32 {
                    self.t.set_dtype(var, dtype);
                    self.narrowed.insert(name);
                }
            }
        }
    }
}

/// The role of the loss is that of the op that makes what is differentiated, and of no cast before it.
fn loss_roles(before: &Program, t: &mut Typer<'_>, marked: &FxHashSet<Name>) {
    let ops: Vec<OpId> = {
        let ops = t.work.section_blocks(Section::Main).flat_map(|b| t.work.ops(b));
        let ops = ops.filter(|op| op.role() == Some(Role::LOSS));
        let no_loss = |op: &crate::ir::OpRef<'_>| {
            op.id.index() >= before.op_rows() || op.output_args().any(|n| marked.contains(&n))
        };
        ops.filter(no_loss).map(|op| op.id).collect()
    };
    for op in ops {
        t.edit.set_attr(op, Attr::new(sym::OP_ROLE, Role::FORWARD.0), "no longer makes the loss");
    }
}

/// Sets a slot, where its name stands in order when the others do.
fn put(program: &Program, slots: &mut Vec<(Symbol, Vec<Name>)>, slot: Symbol, args: Vec<Name>) {
    match slots.iter_mut().find(|s| s.0 == slot) {
        Some(s) => s.1 = args,
        None => {
            let text = program.sym(slot);
            let at = slots.iter().position(|s| program.sym(s.0) > text).unwrap_or(slots.len());
            slots.insert(at, (slot, args));
        }
    }
}

/// The cells of loss scaling, declared in both programs and written by startup.
pub(super) fn declare_cells(t: &mut Typer<'_>, plan: Plan) -> ScalingCells {
    let mut n = 0u64;
    let texts = |n: u64| ["loss_scaling", "num_good_steps", "num_bad_steps"].map(|b| format!("{b}_{n}"));
    while texts(n).iter().any(|text| t.work.names().lookup(text).is_some()) {
        n += 1;
    }
    let [scale, good, bad] = texts(n);
    let scale = t.work.intern(&scale);
    let steps = plan.dynamic.then(|| (t.work.intern(&good), t.work.intern(&bad)));
    let cells = ScalingCells { scale, steps };
    for section in Section::ALL {
        if section == Section::Startup && t.work.is_empty(section) {
            continue;
        }
        let Some(block) = t.work.global_block(section) else { continue };
        for def in cells.declarations() {
            let origin = t.work.push_origin(crate::ir::Origin::Built { tag: 0 });
            t.edit.declare(block, def, origin, "a cell of loss scaling");
        }
        if section == Section::Startup {
            for op in cells.initialisers(plan) {
                t.edit.insert(At::End(block), op, "a cell of loss scaling");
            }
        }
    }
    cells
}
