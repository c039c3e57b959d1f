//! Do shapes and dtypes that are said twice agree?
//!
//! - V6 `cell-mismatch` (warning): a persistable that startup and main both declare has one kind
//!   and one shape; -1 fits any dimension. Dtypes may differ: `amp_init` narrows.
//! - V9 `bad-shape`: a dimension is -1 or more. For a temporary it is a warning: Paddle 2.6.2 infers
//!   shapes like [-32, 4] by multiplying with -1.
//! - V10 `cast-attribute` (warning): `in_dtype` and `out_dtype` of a cast are the dtypes of its
//!   variables in the same program; in startup also those that main declares. The code -1 says nothing.

use super::{Cx, VarAt, all_blocks, ops_at, var_place, vars_at};
use crate::diag::{Code, Diagnostic, Severity, shorten};
use crate::ir::{DType, Section};
use crate::names::sym;
use crate::ops::Effect;

/// Checks V6.
pub(super) fn check_cells(cx: &mut Cx<'_>) {
    let p = cx.program;
    let (Some(_), Some(main)) = (p.global_block(Section::Startup), p.global_block(Section::Main)) else { return };
    let mut startup_index = vec![0; p.var_rows()];
    for at in p.global_block(Section::Startup).into_iter().flat_map(|b| vars_at(p, b)) {
        startup_index[crate::entity::EntityId::index(at.id)] = at.index;
    }
    for at in vars_at(p, main) {
        let there = p.var(at.id);
        let Some(first) = cx.decls.global(Section::Startup, there.name) else { continue };
        let here = p.var(first);
        if !here.persistable() || !there.persistable() {
            continue;
        }
        let same_kind = here.kind == there.kind;
        if same_kind && (!here.kind.has_tensor() || agree(p.shape(first), p.shape(at.id))) {
            continue;
        }
        let first = VarAt { id: first, index: startup_index[crate::entity::EntityId::index(first)] };
        cx.push(Code::CellMismatch, Severity::Warning, |p| {
            let name = shorten(p.name(there.name));
            let message = if same_kind {
                let shape = |v| shorten(&format!("{:?}", p.shape(v))).into_owned();
                format!("main declares `{name}` as {}, startup as {}", shape(at.id), shape(first.id))
            } else {
                format!("main and startup declare `{name}` as different kinds of variable")
            };
            Diagnostic::new(Code::CellMismatch, message, var_place(p, at))
                .label(var_place(p, first), "startup says so here")
        });
    }
}

fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&x, &y)| x == y || x == -1 || y == -1)
}

/// Checks V9.
pub(super) fn check_shapes(cx: &mut Cx<'_>) {
    let p = cx.program;
    for block in all_blocks(p) {
        for at in vars_at(p, block) {
            let Some(&dim) = p.shape(at.id).iter().find(|&&d| d < -1) else { continue };
            let severity = if p.var(at.id).persistable() { Severity::Error } else { Severity::Warning };
            cx.push(Code::BadShape, severity, |p| {
                let name = shorten(p.name(p.var(at.id).name));
                Diagnostic::new(Code::BadShape, format!("`{name}` has the dimension {dim}"), var_place(p, at))
                    .help("an unknown dimension is -1")
            });
        }
    }
}

/// Checks V10.
pub(super) fn check_casts(cx: &mut Cx<'_>) {
    let p = cx.program;
    for block in all_blocks(p) {
        for at in ops_at(p, block) {
            let op = p.op(at.id);
            if cx.kinds.get(op.kind()).effect != Effect::Cast {
                continue;
            }
            for (attr, args) in [(sym::IN_DTYPE, op.input(sym::X)), (sym::OUT_DTYPE, op.output(sym::OUT))] {
                let (Some(code), &[arg]) = (op.attr(attr).and_then(|v| v.as_int()), args) else { continue };
                let Some(var) = cx.decls.find(block, arg).map(|v| p.var(v)) else { continue };
                if code == -1 || !var.kind.has_tensor() || code == i64::from(var.dtype.code()) {
                    continue;
                }
                // A parameter is wide or narrow in startup, whichever way startup declares it.
                let in_main = cx.decls.global(Section::Main, arg).map(|v| p.var(v).dtype);
                if p.block(block).section == Section::Startup && in_main.is_some_and(|d| code == i64::from(d.code())) {
                    continue;
                }
                cx.op(Code::CastAttribute, at, |p| {
                    let said =
                        i32::try_from(code).map_or_else(|_| code.to_string(), |c| DType::from_code(c).to_string());
                    let name = shorten(p.name(arg));
                    format!("`{}` says {said}, but `{name}` is declared {}", p.sym(attr), var.dtype)
                });
            }
        }
    }
}
