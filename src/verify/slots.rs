//! Does an op have the slots and attributes that its kind needs?
//!
//! - V7 `slot-arity`: a slot of the op's schema has as many arguments as it says; no slot is given
//!   twice. An empty slot counts as absent. Slots that the schema does not name are allowed.
//! - V8 `attr-type`: an attribute of the op's schema is there when it must be, and of the right kind; no
//!   attribute is given twice with different values. Attributes that the schema does not name are allowed.

use super::{Checks, Cx, OpAt, all_blocks, ops_at};
use crate::diag::{Code, shorten};
use crate::entity::EntityId;
use crate::ir::{AttrValue, Slot};
use crate::names::Symbol;
use crate::ops::{Arity, AttrKind, SlotSpec};

/// Marks by symbol, valid for the sweep that set them: no table is cleared between ops.
struct Marks {
    rows: Vec<(u64, usize)>,
    sweep: u64,
}

impl Marks {
    fn new(symbols: usize) -> Self {
        Marks { rows: vec![(0, 0); symbols], sweep: 0 }
    }

    fn start(&mut self) {
        self.sweep += 1;
    }

    /// Sets a mark; whether it was set before in this sweep.
    fn set(&mut self, symbol: Symbol, value: usize) -> bool {
        let old = std::mem::replace(&mut self.rows[symbol.index()], (self.sweep, value));
        old.0 == self.sweep
    }

    fn get(&self, symbol: Symbol) -> usize {
        match self.rows.get(symbol.index()) {
            Some(&(sweep, value)) if sweep == self.sweep => value,
            _ => 0,
        }
    }
}

/// Checks V7 and V8, those that are asked for.
pub(super) fn check(cx: &mut Cx<'_>, checks: Checks) {
    let p = cx.program;
    let mut marks = Marks::new(p.symbols().len());
    // Lists are shared by many ops: twice-given attributes are looked for once a list.
    let mut list_seen = vec![false; p.attr_list_count()];
    for block in all_blocks(p) {
        for at in ops_at(p, block) {
            let op = p.op(at.id);
            let schema = cx.kinds.get(op.kind());
            if checks.has(Checks::SLOTS) {
                check_slots(cx, at, &mut marks, &mut op.inputs(), schema.inputs, "input");
                check_slots(cx, at, &mut marks, &mut op.outputs(), schema.outputs, "output");
            }
            if !checks.has(Checks::ATTRS) {
                continue;
            }
            for spec in schema.attrs {
                match op.attr(spec.name) {
                    None if spec.required => cx
                        .op(Code::AttrType, at, |p| format!("has no attribute `{}`, which it needs", p.sym(spec.name))),
                    Some(value) if !fits(value, spec.kind) => cx.op(Code::AttrType, at, |p| {
                        format!(
                            "has {} in attribute `{}`, where {} belongs",
                            kind_of(value),
                            p.sym(spec.name),
                            wanted(spec.kind)
                        )
                    }),
                    _ => {}
                }
            }
            if !std::mem::replace(&mut list_seen[op.data().attrs.index()], true) {
                marks.start();
                for (i, attr) in op.attrs().iter().enumerate() {
                    let before = marks.get(attr.name);
                    // Paddle 2.6.2 gives `mkldnn_data_type` twice, with one value: no harm.
                    if marks.set(attr.name, i) && op.attrs()[before].value != attr.value {
                        cx.op(Code::AttrType, at, |p| {
                            format!("has attribute `{}` twice, with different values", shorten(p.sym(attr.name)))
                        });
                    }
                }
            }
        }
    }
}

fn check_slots<'p>(
    cx: &mut Cx<'p>,
    at: OpAt,
    marks: &mut Marks,
    slots: &mut dyn Iterator<Item = Slot<'p>>,
    specs: &[SlotSpec],
    direction: &str,
) {
    marks.start();
    for slot in slots {
        if marks.set(slot.name, slot.args.len()) {
            cx.op(Code::SlotArity, at, |p| format!("has {direction} slot `{}` twice", shorten(p.sym(slot.name))));
        }
    }
    for spec in specs {
        let n = marks.get(spec.name);
        let (ok, wanted) = match spec.arity {
            Arity::One => (n == 1, "exactly one"),
            Arity::Optional => (n <= 1, "at most one"),
            Arity::Many => (n >= 1, "at least one"),
            Arity::Any => (true, "any number"),
        };
        if !ok {
            cx.op(Code::SlotArity, at, |p| {
                format!("has {n} arguments in {direction} slot `{}`, which takes {wanted}", p.sym(spec.name))
            });
        }
    }
}

fn fits(value: &AttrValue, kind: AttrKind) -> bool {
    use AttrValue as V;
    match kind {
        AttrKind::Int => matches!(value, V::Int(_) | V::Long(_)),
        AttrKind::Str => matches!(value, V::String(_)),
        AttrKind::Strs => matches!(value, V::Strings(_)),
        AttrKind::Ints => matches!(value, V::Ints(_) | V::Longs(_)),
        AttrKind::Bool => matches!(value, V::Bool(_)),
        AttrKind::Block => matches!(value, V::Block(_)),
    }
}

fn wanted(kind: AttrKind) -> &'static str {
    match kind {
        AttrKind::Int => "an integer",
        AttrKind::Str => "a string",
        AttrKind::Strs => "a list of strings",
        AttrKind::Ints => "a list of integers",
        AttrKind::Bool => "a boolean",
        AttrKind::Block => "a sub-block",
    }
}

fn kind_of(value: &AttrValue) -> &'static str {
    match value {
        AttrValue::Int(_) | AttrValue::Long(_) => "an integer",
        AttrValue::Float(_) | AttrValue::F64(_) => "a float",
        AttrValue::String(_) => "a string",
        AttrValue::Ints(_) | AttrValue::Longs(_) => "a list of integers",
        AttrValue::Floats(_) | AttrValue::F64s(_) => "a list of floats",
        AttrValue::Strings(_) => "a list of strings",
        AttrValue::Bool(_) => "a boolean",
        AttrValue::Bools(_) => "a list of booleans",
        AttrValue::Block(_) => "a sub-block",
        AttrValue::Blocks(_) => "a list of sub-blocks",
        AttrValue::Var(_) | AttrValue::Vars(_) => "variables",
        AttrValue::Scalar(_) | AttrValue::Scalars(_) => "scalars",
        AttrValue::Unknown { .. } => "a value of an unknown kind",
    }
}
