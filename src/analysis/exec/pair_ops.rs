//! What do the ops that know of pairs leave in their cells? Optimizers, `amp_init`, `resync`.

use super::{Exec, Observer, UNSET};
use crate::analysis::values::{Known, Value};
use crate::entity::EntityId;
use crate::ir::{AttrValue, DType, OpRef};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};

impl Exec<'_> {
    pub(super) fn optimizer(&mut self, op: OpRef<'_>, wants: Wants, observer: &mut dyn Observer) {
        let (params, masters) = (op.output(sym::PARAM_OUT), op.output(sym::MASTER_PARAM_OUT));
        let uses_master = wants == Wants::Master
            && masters.len() == params.len()
            && op.attr(sym::MULTI_PRECISION).and_then(AttrValue::as_bool) == Some(true);
        // A skipped update leaves both as they were: one decision for both cells.
        let skips = !op.input(sym::SKIP_UPDATE).is_empty();
        if uses_master {
            for (i, (&p, &m)) in params.iter().zip(masters).enumerate() {
                let low = self.cells.dtype(self.program, p).unwrap_or(DType::Other(-1));
                // The parameter keeps its run-time dtype: one that is still as wide as its master takes it as it is.
                let (old_p, old_m) = (self.value(p), self.value(m));
                let mut new_m = self.values.fresh(Value::Opaque(op.id, i as u32), Known::Is(DType::F32));
                let mut new_p = match self.values.known(old_p) {
                    _ if old_p == old_m => new_m,
                    Known::Is(DType::F32) => new_m,
                    Known::Is(d) if d == low => self.values.cast(low, new_m),
                    known => self.values.fresh(Value::Opaque(op.id, i as u32), known),
                };
                if skips {
                    new_m = self.values.join(op.id, new_m, old_m);
                    new_p = self.values.join(op.id, new_p, old_p);
                }
                self.set(op, m, new_m, observer);
                self.set(op, p, new_p, observer);
            }
        }
        let done = |slot| uses_master && (slot == sym::PARAM_OUT || slot == sym::MASTER_PARAM_OUT);
        for slot in op.outputs().filter(|s| !done(s.name)) {
            for (i, &name) in slot.args.iter().enumerate() {
                // Updated in place: each keeps its dtype.
                let known = match self.state[name.index()] {
                    UNSET => self.declared(op, name),
                    _ => self.known(name),
                };
                self.set_opaque(op, name, i as u32, known, observer);
            }
        }
    }

    pub(super) fn amp_init(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        let Some(&AttrValue::Int(code)) = op.attr(sym::DTYPE) else { return self.unknown(op, observer) };
        let low = DType::from_code(code);
        for (&x, &out) in op.input(sym::X).iter().zip(op.output(sym::OUT)) {
            let x = self.value(x);
            let v = self.values.cast(low, x);
            self.set(op, out, v, observer);
        }
        if self.options.ignore_rewrite {
            return;
        }
        for (&p, &m) in op.input(sym::MASTER_OF).iter().zip(op.output(sym::MASTER_PARAM_OUT)) {
            let p = self.value(p);
            let v = self.values.cast(DType::F32, p);
            self.set(op, m, v, observer);
        }
    }

    pub(super) fn resync(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        let (&[p], &[m]) = (op.input(sym::PARAM), op.input(sym::MASTER_PARAM)) else {
            return self.unknown(op, observer);
        };
        let Some(&AttrValue::Int(code)) = op.attr(sym::DTYPE) else { return self.unknown(op, observer) };
        let low = DType::from_code(code);
        let (pv, mv) = (self.value(p), self.value(m));
        let agree = self.values.cast(low, pv) == self.values.cast(low, mv);
        // Whatever the master was, it is float32 afterwards.
        let mv = self.values.cast(DType::F32, mv);
        let wide = self.values.cast(DType::F32, pv);
        let takes_param = op.attr(sym::ON_CONFLICT).and_then(AttrValue::as_str) == Some("param");
        let new_m = match op.attr(sym::DIRECTION).and_then(AttrValue::as_str) {
            Some("param") => wide,
            Some("master") => mv,
            Some("both") if takes_param && !agree => self.values.join(op.id, wide, mv),
            Some("both") => mv,
            // Decided by what was loaded last; when neither was, the op does nothing. A narrow parameter
            // that agrees with its master stays as it is either way.
            Some("auto") if self.loaded(p) || self.loaded(m) => self.values.join(op.id, wide, mv),
            Some("auto") if agree && self.values.known(pv) == Known::Is(low) => self.values.join(op.id, wide, mv),
            _ => return self.unknown(op, observer),
        };
        let new_p = self.values.cast(low, new_m);
        self.set(op, m, new_m, observer);
        self.set(op, p, new_p, observer);
    }

    fn loaded(&self, name: Name) -> bool {
        self.writer(name).op().is_some_and(|op| self.effects.effect(self.program.op(op)) == Effect::Load)
    }
}
