//! What do the ops that pairs are about leave in their cells? Loads, optimizers, `amp_init`, `resync`.

use super::{Exec, Observer};
use crate::analysis::values::{Known, Value, ValueId};
use crate::entity::EntityId;
use crate::ir::{AttrValue, DType, OpRef};
use crate::names::{Name, sym};
use crate::ops::{Effect, Wants};

impl<'a> Exec<'a> {
    pub(super) fn load(&mut self, op: OpRef<'a>, observer: &mut dyn Observer) {
        self.any_load = true;
        let path = op.attr(sym::FILE_PATH).and_then(AttrValue::as_str).unwrap_or("");
        let file = self.files.number(path);
        if file as usize == self.paths.len() {
            self.paths.push(path.into());
        }
        let keys = op.attr(sym::KEYS).and_then(AttrValue::as_strs).unwrap_or(&[]);
        let stored = op.attr(sym::STORED_DTYPES).and_then(AttrValue::to_ints).unwrap_or_default();
        let as_fp16 = op.attr(sym::LOAD_AS_FP16).and_then(AttrValue::as_bool) == Some(true);
        for (i, &name) in op.output(sym::OUT).iter().enumerate() {
            let mut key = keys.get(i).map_or(name.index() as u32, |k| self.key_number(k));
            if op.kind() != sym::LOAD {
                // Tensors without names: the place counts as well as the name that the load gives.
                let (named, next) = (key, u32::MAX - self.named.len() as u32);
                key = *self.places.entry((named, i as u32)).or_insert(next);
                if key == next {
                    self.named.push(named);
                }
            }
            let known = match stored.get(i) {
                Some(&code) => i32::try_from(code).map_or(Known::Unknown, |c| Known::Is(DType::from_code(c))),
                // What a 16-bit cell may be loaded from (SEMANTICS §8); the interpreter refuses the rest.
                None if self.cells.dtype(self.program, name).is_some_and(DType::is_low) => Known::UpToF32,
                None => Known::Unknown,
            };
            let mut v = self.values.load(file, key, self.saves, known);
            if as_fp16 {
                v = self.values.cast(DType::F16, v);
            }
            self.set(op, name, v, observer);
            self.unread[name.index()] = Some(op.id);
        }
        for slot in op.outputs().filter(|s| s.name != sym::OUT) {
            slot.args.iter().for_each(|&name| self.set_opaque(op, name, 0, Known::Unknown, observer));
        }
    }

    pub(super) fn optimizer(&mut self, op: OpRef<'_>, wants: Wants, observer: &mut dyn Observer) {
        let (params, masters) = (op.output(sym::PARAM_OUT), op.output(sym::MASTER_PARAM_OUT));
        let (old_params, old_masters) = (op.input(sym::PARAM), op.input(sym::MASTER_PARAM));
        // A kind that is not for several parameters at once updates the first alone.
        let several = params.len() > 1 && !op.kind_str().starts_with("merged_");
        let uses_master = wants == Wants::Master
            && !several
            && [masters.len(), old_params.len(), old_masters.len()] == [params.len(); 3]
            && op.attr(sym::MULTI_PRECISION).and_then(AttrValue::as_bool) == Some(true);
        // A skipped update leaves both as they were: one decision for both cells.
        let skips = !op.input(sym::SKIP_UPDATE).is_empty();
        let old: Vec<_> = old_params.iter().map(|&p| self.value(p)).collect();
        if uses_master {
            let old_masters: Vec<_> = old_masters.iter().map(|&m| self.value(m)).collect();
            for i in 0..params.len() {
                // The parameter keeps its run-time dtype: one that is still as wide as its master takes it as it is.
                let (old_p, old_m) = (old[i], old_masters[i]);
                let mut new_m = self.values.fresh(Value::Opaque(op.id, i as u32), Known::Is(DType::F32));
                let mut new_p = match self.values.known(old_p) {
                    _ if old_p == old_m => new_m,
                    Known::Is(d) => self.values.cast(d, new_m),
                    known => self.values.fresh(Value::Opaque(op.id, i as u32), known),
                };
                if skips {
                    let choice = self.choice(op.id);
                    new_m = self.values.join(choice, new_m, old_m);
                    new_p = self.values.join(choice, new_p, old_p);
                }
                self.set(op, masters[i], new_m, observer);
                self.set(op, params[i], new_p, observer);
            }
        }
        let done = |slot| uses_master && (slot == sym::PARAM_OUT || slot == sym::MASTER_PARAM_OUT);
        for slot in op.outputs().filter(|s| !done(s.name)) {
            for (i, &name) in slot.args.iter().enumerate() {
                let known = match slot.name == sym::PARAM_OUT && !several {
                    true => old.get(i).map_or(Known::Unknown, |&v| self.values.known(v)),
                    false => Known::Unknown,
                };
                self.set_opaque(op, name, i as u32, known, observer);
            }
        }
    }

    pub(super) fn amp_init(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        let Some(&AttrValue::Int(code)) = op.attr(sym::DTYPE) else { return self.unknown(op, observer) };
        // All parameters are read before one is written; then all of `MasterOf`.
        let new = self.casts(op.input(sym::X), DType::from_code(code));
        for (&out, v) in op.output(sym::OUT).iter().zip(new) {
            self.set(op, out, v, observer);
        }
        if self.options.ignore_rewrite {
            return;
        }
        let new = self.casts(op.input(sym::MASTER_OF), DType::F32);
        for (&m, v) in op.output(sym::MASTER_PARAM_OUT).iter().zip(new) {
            self.set(op, m, v, observer);
        }
    }

    fn casts(&mut self, names: &[Name], to: DType) -> Vec<ValueId> {
        let values: Vec<_> = names.iter().map(|&n| self.value(n)).collect();
        values.into_iter().map(|v| self.values.cast(to, v)).collect()
    }

    pub(super) fn resync(&mut self, op: OpRef<'_>, observer: &mut dyn Observer) {
        let (&[p], &[m]) = (op.input(sym::PARAM), op.input(sym::MASTER_PARAM)) else {
            return self.unknown(op, observer);
        };
        let in_place = op.output(sym::PARAM_OUT) == [p] && op.output(sym::MASTER_PARAM_OUT) == [m];
        let Some(&AttrValue::Int(code)) = op.attr(sym::DTYPE).filter(|_| in_place && p != m) else {
            return self.unknown(op, observer);
        };
        let low = DType::from_code(code);
        let (pv, old_m) = (self.value(p), self.value(m));
        let agree = self.values.cast(low, pv) == self.values.cast(low, old_m);
        // Whatever the master was, it is float32 afterwards.
        let mv = self.values.cast(DType::F32, old_m);
        let wide = self.values.cast(DType::F32, pv);
        let takes_param = op.attr(sym::ON_CONFLICT).and_then(AttrValue::as_str) == Some("param");
        let new_m = match op.attr(sym::DIRECTION).and_then(AttrValue::as_str) {
            Some("param") => wide,
            Some("master") => mv,
            Some("both") if takes_param && !agree => {
                let choice = self.choice(op.id);
                self.values.join(choice, wide, mv)
            }
            Some("both") => mv,
            // Decided by what was loaded since the last resync; when neither was, the op does nothing, which is
            // the same as taking the master when both are as they must be.
            Some("auto") if self.loaded(p) || self.loaded(m) || (mv == old_m && self.values.cast(low, mv) == pv) => {
                let choice = self.choice(op.id);
                self.values.join(choice, wide, mv)
            }
            // Narrowed, or left as wide as the master.
            Some("auto") if pv == mv && mv == old_m => {
                let (choice, narrow) = (self.choice(op.id), self.values.cast(low, mv));
                let new_p = self.values.join(choice, narrow, pv);
                return self.set(op, p, new_p, observer);
            }
            _ => return self.unknown(op, observer),
        };
        let new_p = self.values.cast(low, new_m);
        self.set(op, m, new_m, observer);
        self.set(op, p, new_p, observer);
    }

    /// Whether a load surely wrote the cell last: its last writer is one, and no branch around it.
    fn loaded(&mut self, name: Name) -> bool {
        let v = self.value(name);
        let entry = match self.values.get(v) {
            Value::Cast(_, inner) => self.values.get(inner),
            value => value,
        };
        matches!(entry, Value::Load { .. })
            && self.writer(name).op().is_some_and(|op| self.effects.effect(self.program.op(op)) == Effect::Load)
    }
}
