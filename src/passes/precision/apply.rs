//! How do decisions and casts get into the program? As queued edits, committed once; the lists of control ops follow.

use super::Rewritten;
use super::captures;
use super::casts::{self, Plan};
use super::decide::{Choice, Decisions, is_float_code};
use crate::analysis::effects::Effects;
use crate::entity::EntityId;
use crate::ir::{At, Attr, AttrListId, AttrValue, DType, Edit, Program, Role, Section, VarDef, VarFlag, VarKind};
use crate::names::{Name, sym};
use crate::ops::Ops;
use rustc_hash::FxHashMap;

/// The attributes of a cast, as PaddlePaddle 2.6.2 writes them.
pub fn cast_attrs(from: DType, to: DType, device: &str, role: Role) -> Vec<Attr> {
    vec![
        Attr::new(sym::IN_DTYPE, from),
        Attr::new(sym::OP_DEVICE, device),
        Attr::new(sym::OP_NAMESCOPE, "/"),
        Attr::new(sym::OP_ROLE, role.0),
        Attr { name: sym::OP_ROLE_VAR, value: AttrValue::Strings(Box::new([])), raw: None },
        Attr::new(sym::OUT_DTYPE, to),
        Attr::new(sym::USE_MKLDNN, false),
        Attr::new(sym::WITH_QUANT_ATTR, false),
    ]
}

/// Rewrites main.
pub(super) fn apply(program: &mut Program, ops: &Ops, decisions: Decisions, pass: &str) -> Rewritten {
    let kinds = ops.resolve(program);
    let (plan, lists) = {
        let effects = Effects::new(program, &kinds);
        (casts::plan(program, &effects, &decisions), captures::read(program, &effects))
    };
    let names = casts::names(program, &decisions, &plan);
    program.reserve(plan.casts.len(), 2 * plan.casts.len(), 2 * plan.casts.len());
    let mut edit = Edit::new();
    declare(program, &decisions, &plan, &names, &mut edit);
    insert(program, &decisions, &plan, &names, &mut edit);
    for &(op, place, copy) in &plan.args {
        edit.set_arg(op, place, names[copy as usize], "through the cast");
    }
    attributes(program, &decisions, &plan, &mut edit);
    let mut summary = edit.commit(program, pass);
    if !plan.copies.is_empty() {
        let of = names.iter().zip(&plan.copies).map(|(&n, c)| (n, c.of)).collect();
        summary.merge(captures::update(program, &of, &lists, pass));
    }
    Rewritten { decisions, plan, names, summary }
}

/// New dtypes of old declarations, and the copies.
fn declare(program: &Program, decisions: &Decisions, plan: &Plan, names: &[Name], edit: &mut Edit) {
    for block in program.section_blocks(Section::Main) {
        for &var in &program.block(block).vars {
            if program.var(var).dtype != decisions.dtype(var) {
                edit.set_dtype(var, decisions.dtype(var), "of the dtype that is computed");
            }
        }
    }
    for (copy, &name) in plan.copies.iter().zip(names) {
        let of = program.var(copy.of);
        let flags = VarDef::tensor(name, copy.dtype, []).flags;
        let def = VarDef {
            name,
            kind: if of.kind.has_tensor() { of.kind } else { VarKind::LOD_TENSOR },
            dtype: copy.dtype,
            shape: program.shape(copy.of).to_vec(),
            lod_level: Some(of.lod_level.unwrap_or(0)),
            flags: flags.with(VarFlag::StopGradient, Some(of.flags.is(VarFlag::StopGradient))),
        };
        edit.declare(copy.block, def, of.origin, "a copy in another dtype");
    }
}

/// The cast ops.
fn insert(program: &mut Program, decisions: &Decisions, plan: &Plan, names: &[Name], edit: &mut Edit) {
    // Ops of one attribute list ask for one list of casts; there are few dtypes.
    let mut lists: FxHashMap<(AttrListId, DType, DType), AttrListId> = FxHashMap::default();
    for cast in &plan.casts {
        let copy = plan.copies[cast.copy as usize];
        let (var, declared) = (program.var(copy.of).name, decisions.dtype(copy.of));
        let name = names[cast.copy as usize];
        let (from, to) = if cast.back { (copy.dtype, declared) } else { (declared, copy.dtype) };
        let (x, out) = if cast.back { (name, var) } else { (var, name) };
        let of = program.op(cast.at).data().attrs;
        let attrs = match lists.get(&(of, from, to)) {
            Some(&list) => list,
            None => {
                let op = program.op(cast.at);
                let device = op.attr(sym::OP_DEVICE).and_then(|v| v.as_str()).unwrap_or("").to_owned();
                let role = op.role().unwrap_or(Role::FORWARD);
                let list = program.intern_attrs(cast_attrs(from, to, &device, role));
                lists.insert((of, from, to), list);
                list
            }
        };
        let place = if cast.back { At::After(cast.at) } else { At::Before(cast.at) };
        edit.insert_small(place, sym::CAST, attrs, (sym::X, x), (sym::OUT, out), "the op computes in another dtype");
    }
}

/// `in_dtype`, `out_dtype` and `dtype` of ops follow what they compute in; a cast of the user's says what it reads.
fn attributes(program: &Program, decisions: &Decisions, plan: &Plan, edit: &mut Edit) {
    let mut cast_inputs: FxHashMap<crate::ir::OpId, DType> = FxHashMap::default();
    for &(op, place, copy) in &plan.args {
        if place == 0 && program.op(op).kind() == sym::CAST {
            cast_inputs.insert(op, plan.copies[copy as usize].dtype);
        }
    }
    // By attribute list: whether one of the three is a float type.
    let mut says: Vec<Option<bool>> = vec![None; program.attr_list_count()];
    let typed = |a: &Attr| {
        matches!(a.name, sym::IN_DTYPE | sym::OUT_DTYPE | sym::DTYPE) && a.value.as_int().is_some_and(is_float_code)
    };
    for block in program.section_blocks(Section::Main) {
        for op in program.ops(block) {
            let choice = decisions.op(op.id).choice;
            if choice == Choice::Skip {
                continue;
            }
            if op.kind() == sym::CAST {
                let declared = op.input(sym::X).first().and_then(|&x| decisions.dtype_of(program, block, x));
                let reads = cast_inputs.get(&op.id).copied().or(declared);
                if let Some(dtype) = reads {
                    edit.set_attr(op.id, Attr::new(sym::IN_DTYPE, dtype), "says what is computed");
                }
                if choice == Choice::Low && op.attr(sym::OUT_DTYPE).and_then(|v| v.as_int()).is_some_and(is_float_code)
                {
                    edit.set_attr(op.id, Attr::new(sym::OUT_DTYPE, decisions.low), "says what is computed");
                }
                continue;
            }
            let row = &mut says[op.data().attrs.index()];
            if !*row.get_or_insert_with(|| op.attrs().iter().any(typed)) {
                continue;
            }
            let dtype = if choice == Choice::Low { decisions.low } else { DType::F32 };
            for a in op.attrs().iter().filter(|a| typed(a)) {
                edit.set_attr(op.id, Attr::new(a.name, dtype), "says what is computed");
            }
        }
    }
}
