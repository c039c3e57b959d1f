//! How is one op spelt? Attributes, types, results, and what was kept beside it.

use super::super::error::PirError;
use super::super::import::{BLOCKS, BLOCKS_OF, RENAME, RESULT, TYPE};
use super::super::kinds::{self, Row};
use super::super::{json, value};
use super::{Cur, Lists, Out};
use crate::entity::EntityId;
use crate::ir::{AttrValue, BlockId, DType, Entity, OpRef};
use crate::names::{Name, sym};
use std::fmt::Write;

impl<'p> Out<'p> {
    /// Writes an op, and gives its results their names.
    pub(super) fn plain(
        &mut self,
        block: BlockId,
        op: OpRef<'p>,
        row: Option<&'static Row>,
        operands: &[Option<Cur>],
        results: &[(Name, Option<DType>)],
    ) -> Result<(), PirError> {
        let kind = op.kind_str().strip_prefix(RENAME).unwrap_or(op.kind_str());
        let short = kinds::short(row.map_or(kind, |r| r.pir));
        let lists = self.lists(op, row)?;
        let _ = write!(self.text, "{{\"#\":{},\"A\":{}", json::quote(&short), lists.attrs);
        self.text.push_str(",\"I\":[");
        for (i, operand) in operands.iter().enumerate() {
            self.comma(i);
            let _ = write!(self.text, "{{\"%\":{}}}", operand.map_or(0, |c| c.id));
        }
        self.text.push_str("],\"O\":[");
        for (i, &(name, dtype)) in results.iter().enumerate() {
            self.comma(i);
            let id = self.new_id();
            let _ = write!(self.text, "{{\"%\":{id},\"TT\":");
            let (ty, dtype) = self.result_type(op, i, dtype);
            match ty {
                Some(ty) => self.text.push_str(ty),
                None => self.put_type(block, name, dtype),
            }
            self.text.push('}');
            self.set(name, Cur { id, dtype });
        }
        self.text.push(']');
        match &lists.results {
            Some(text) => {
                self.text.push_str(",\"OA\":");
                self.text.push_str(text);
            }
            None if results.is_empty() && self.trainable => self.text.push_str(",\"OA\":[]"),
            None if row.is_some_and(|r| r.fresh.is_some()) && is_new(op, self.trainable) => {
                let cell = results.iter().any(|(n, _)| self.marks.contains_key(n));
                self.text.push_str(",\"OA\":");
                self.text.push_str(&new_result_attrs(results.len(), cell));
            }
            None if self.trainable => self.text.push_str(",\"OA\":[]"),
            None => {}
        }
        self.more(op);
        self.sub_blocks(op)
    }

    /// The kept type of a result, and the element type that it has.
    fn result_type(&self, op: OpRef<'p>, index: usize, dtype: Option<DType>) -> (Option<&'p str>, Option<DType>) {
        let kept = op
            .attrs()
            .iter()
            .find(|a| self.program.sym(a.name).strip_prefix(TYPE).is_some_and(|n| n.parse() == Ok(index)));
        let ty = kept.and_then(|a| a.value.as_str());
        match ty.and_then(value::tensor_type) {
            Some((d, _)) if dtype.is_some_and(|want| want != d) => (None, dtype),
            Some((d, _)) => (ty, Some(d)),
            None if dtype.is_none() => (ty, None),
            None => (None, dtype),
        }
    }

    fn more(&mut self, op: OpRef<'_>) {
        let kept = self.program.extra(Entity::Op(op.id)).and_then(|x| std::str::from_utf8(&x.unknown).ok());
        for (key, value) in kept.and_then(json::object).into_iter().flatten() {
            let _ = write!(self.text, ",\"{key}\":{value}");
        }
    }

    pub(super) fn parameter(&mut self, block: BlockId, op: OpRef<'p>, cell: Name) -> Result<(), PirError> {
        let ints = |name: &str| {
            let value = self.program.symbols().lookup(name).and_then(|s| op.attr(s));
            value.and_then(AttrValue::to_ints)
        };
        let (flags, results) = (ints("p:flags").unwrap_or_else(|| vec![0, 1, 1]), ints("p:oa"));
        let (id, name) = (self.new_id(), json::quote(self.program.name(cell)));
        let join = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let kept = self.program.extra(Entity::Op(op.id)).and_then(|x| std::str::from_utf8(&x.unknown).ok());
        let kept: Vec<(&str, &str)> = kept.and_then(json::object).into_iter().flatten().collect();
        let of = |key| kept.iter().find(|(k, _)| *k == key).map_or("[]", |(_, v)| *v);
        self.start_op();
        let (da, qa) = (of("DA"), of("QA"));
        let _ =
            write!(self.text, "{{\"#\":\"p\",\"A\":[{},{name}],\"DA\":{da},\"O\":{{\"%\":{id},\"TT\":", join(&flags));
        let (ty, dtype) = self.result_type(op, 0, None);
        match ty {
            Some(ty) => self.text.push_str(ty),
            None => self.put_type(block, cell, dtype),
        }
        self.text.push('}');
        if let Some(results) = results {
            let _ = write!(self.text, ",\"OA\":[{}]", join(&results));
        }
        let _ = write!(self.text, ",\"QA\":{qa}");
        for (key, value) in kept.iter().filter(|(k, _)| !matches!(*k, "DA" | "QA")) {
            let _ = write!(self.text, ",\"{key}\":{value}");
        }
        self.text.push('}');
        self.from_scope[cell.index()] = true;
        self.set(cell, Cur { id, dtype });
        Ok(())
    }

    /// `load` of one cell: a list of one tensor from a file, and its element.
    pub(super) fn load(&mut self, block: BlockId, op: OpRef<'p>) -> Result<(), PirError> {
        let &[cell] = op.output(sym::OUT) else {
            return Err(self.no_form(op.id, "a load of several cells; `lower` makes one load a cell"));
        };
        if op.attr(sym::KEYS).is_some() {
            return Err(self.no_form(op.id, "a load by keys; `lower` makes it one of a file"));
        }
        let Some(path) = op.attr(sym::FILE_PATH).and_then(AttrValue::as_str) else {
            return Err(self.no_form(op.id, "a load without `file_path`"));
        };
        let as_fp16 = op.attr(sym::LOAD_AS_FP16).and_then(AttrValue::as_bool) == Some(true);
        let stored = op.attr(sym::STORED_DTYPES).and_then(AttrValue::to_ints).and_then(|s| s.first().copied());
        let dtype = match (as_fp16, stored.and_then(|c| i32::try_from(c).ok())) {
            (true, _) => Some(DType::F16),
            (false, code) => code.map(DType::from_code),
        };
        let (list, id) = (self.new_id(), self.new_id());
        self.start_op();
        let text = std::mem::take(&mut self.text);
        self.put_type(block, cell, dtype);
        let ty = std::mem::replace(&mut self.text, text);
        self.text.push_str(&load_text(&json::quote(path), as_fp16, (list, id), &ty));
        self.set(cell, Cur { id, dtype });
        Ok(())
    }

    fn lists(&mut self, op: OpRef<'p>, row: Option<&'static Row>) -> Result<std::rc::Rc<Lists>, PirError> {
        let key = (op.data().attrs, row.map_or("", |r| r.pir));
        if let Some(lists) = self.lists.get(&key) {
            return Ok(lists.clone());
        }
        let (mut attrs, mut results, mut some) = (String::from("["), String::from("["), false);
        let new = is_new(op, self.trainable);
        for attr in op.attrs() {
            let name = self.program.sym(attr.name);
            if name == BLOCKS || name == BLOCKS_OF || name.starts_with(TYPE) {
                continue;
            }
            let (list, name) = match name.strip_prefix(RESULT) {
                Some(name) => {
                    some = true;
                    (&mut results, name)
                }
                None => (&mut attrs, name),
            };
            // What passes note for the interpreter and ProgramDesc.
            let noted = attr.raw.is_none() && (attr.name == sym::IN_DTYPE || attr.name == sym::OP_ROLE);
            let fresh = row.and_then(|r| r.fresh).filter(|_| new && attr.raw.is_none());
            if noted || fresh.is_some_and(|f| !f.contains(&name)) {
                continue;
            }
            let name = row.and_then(|r| r.renames.iter().find(|(_, ir)| *ir == name)).map_or(name, |r| r.0);
            let text = match &attr.raw {
                Some(raw) => std::str::from_utf8(raw).ok().map(str::to_owned),
                None => value::encode(name, &attr.value),
            };
            let Some(text) = text else {
                return Err(self.no_form(op.id, format!("the attribute `{name}` has no kind in PIR")));
            };
            if list.len() > 1 {
                list.push(',');
            }
            let _ = write!(list, "{{\"AT\":{text},\"N\":{}}}", json::quote(name));
        }
        attrs.push(']');
        results.push(']');
        let lists = std::rc::Rc::new(Lists { attrs, results: some.then_some(results) });
        self.lists.insert(key, lists.clone());
        Ok(lists)
    }

    pub(super) fn put_type(&mut self, block: BlockId, name: Name, dtype: Option<DType>) {
        let Some(var) = self.decls.find(block, name) else {
            self.text.push_str("{\"#\":\"NULL\"}");
            return;
        };
        let v = *self.program.var(var);
        let kept = self.program.extra(Entity::Var(var)).and_then(|x| std::str::from_utf8(&x.unknown).ok());
        if let (Some(kept), None) = (kept.filter(|k| !k.is_empty()), dtype) {
            // Unless the declaration was changed since.
            if value::tensor_type(kept).is_none_or(|(d, _)| d == v.dtype) {
                self.text.push_str(kept);
                return;
            }
        }
        if !value::put_type(&mut self.text, dtype.unwrap_or(v.dtype), self.program.shape(var)) {
            self.text.push_str("{\"#\":\"NULL\"}");
        }
    }
}

/// Whether an op was made by a pass. One of the file has attributes of its results, if the file has any; the
/// role that passes give is told from one of the file by its kept text.
fn is_new(op: OpRef<'_>, trainable: bool) -> bool {
    let program = op.program;
    let role = || op.attrs().iter().any(|a| a.name == sym::OP_ROLE && a.raw.is_none());
    !op.attrs().iter().any(|a| program.sym(a.name).starts_with(RESULT)) && (trainable || role())
}

/// `load` as the two ops that it becomes; `path` is quoted.
pub(in super::super) fn load_text(path: &str, as_fp16: bool, (list, id): (i64, i64), ty: &str) -> String {
    let attrs = new_result_attrs(1, true);
    format!(
        "{{\"#\":\"1.load_combine\",\"A\":[{{\"AT\":{{\"#\":\"0.a_str\",\"D\":{path}}},\"N\":\"file_path\"}},\
         {{\"AT\":{{\"#\":\"0.a_bool\",\"D\":{as_fp16}}},\"N\":\"load_as_fp16\"}},\
         {{\"AT\":{{\"#\":\"0.a_bool\",\"D\":false}},\"N\":\"model_from_memory\"}}],\"I\":[],\
         \"O\":[{{\"%\":{list},\"TT\":{{\"#\":\"0.t_vec\",\"D\":[{ty}]}}}}],\"OA\":{attrs}}},\
         {{\"#\":\"0.slice\",\"A\":[{{\"AT\":{{\"#\":\"0.a_i32\",\"D\":0}},\"N\":\"index\"}}],\
         \"I\":[{{\"%\":{list}}}],\"O\":[{{\"%\":{id},\"TT\":{ty}}}],\"OA\":{attrs}}}"
    )
}

/// Attributes of the results of an op that is not from a file.
pub(super) fn new_result_attrs(results: usize, cell: bool) -> String {
    let array = |name: &str| {
        let items = vec!["{\"#\":\"0.a_bool\",\"D\":true}"; results].join(",");
        format!("{{\"AT\":{{\"#\":\"0.a_array\",\"D\":[{items}]}},\"N\":\"{name}\"}}")
    };
    match cell {
        true => format!("[{},{}]", array("persistable"), array("stop_gradient")),
        false => format!("[{}]", array("stop_gradient")),
    }
}
