//! Which ops name values, and what do they make of the names? Cells, parameters, data, and loads.

use super::super::error::{PirError, PirErrorKind as Kind};
use super::super::{export, json, kinds};
use super::{Cell, Frame, Importer, OpText, RENAME, RESULT, Val, need};
use crate::ir::{Attr, AttrListId, AttrValue, BlockId, OpId, OriginId, VarFlag, VarFlags};
use crate::names::{Name, Symbol, sym};

impl<'t> Importer<'t, '_> {
    pub(super) fn cell_of(&mut self, list: AttrListId, attr: &str) -> Result<Name, PirError> {
        let attr = self.program.symbol(attr);
        let attrs = self.program.attr_list(list);
        let text = attrs.iter().find(|a| a.name == attr).and_then(|a| a.value.as_str()).map(str::to_owned);
        let text = need(text, "the name of a cell").map_err(|e| e.within(".A"))?;
        self.cell_name(&text)
    }

    /// `builtin.parameter` in its short form.
    pub(super) fn parameter(&mut self, op: &OpText<'t>, block: BlockId, origin: OriginId) -> Result<(), PirError> {
        let items: Vec<&str> =
            need(json::list(op.attrs.unwrap_or("[]")), "a list").map_err(|e| e.within(".A"))?.collect();
        let [distributed, parameter, clip, name] = items[..] else {
            return Err(PirError::new(Kind::Expected("four attributes")).within(".A"));
        };
        let int = |v: &str| need(v.parse::<i32>().ok(), "a small integer").map_err(|e| e.within(".A"));
        let flags = [int(distributed)?, int(parameter)?, int(clip)?];
        let name = need(json::string(name), "a name").map_err(|e| e.within(".A"))?;
        let cell = self.cell_name(&name)?;
        let mut attrs = vec![
            Attr::new(self.program.symbol("parameter_name"), AttrValue::str(name)),
            Attr::new(self.program.symbol("p:flags"), AttrValue::Ints(flags.into())),
        ];
        if let Some(text) = op.result_attrs {
            let ints: Option<Vec<i32>> = need(json::list(text), "a list")?.map(|v| v.parse().ok()).collect();
            let ints = need(ints, "small integers").map_err(|e| e.within(".OA"))?;
            attrs.push(Attr::new(self.program.symbol("p:oa"), AttrValue::Ints(ints.into())));
        }
        let attrs = self.program.intern_attrs(attrs);
        let results = [need(op.results, "a result `O`")?];
        let kind = self.program.symbol(kinds::PARAMETER);
        self.naming(kinds::PARAMETER, kind, cell, attrs, &[], &results, (block, origin), op)?;
        Ok(())
    }

    /// A `load_combine` of one tensor and the `slice` that takes it are one `load`, if export writes the two
    /// so. The type that they state is taken for what the file holds, as that of any operand is.
    pub(super) fn load(
        &mut self,
        (op, before, list): (OpId, &str, i64),
        text: &'t str,
        slice: &OpText<'t>,
    ) -> Option<Result<(), PirError>> {
        let result = json::list(slice.results?)?.next()?;
        let (id, ty) = self.value_text(result, "%").ok()?;
        let attr = |name: &str| {
            let name = self.program.symbols().lookup(name)?;
            self.program.op(op).attr(name)
        };
        let (path, as_fp16) = (attr("file_path")?.as_str()?.to_owned(), attr("load_as_fp16")?.as_bool()?);
        let written = export::load_text(&json::quote(&path), as_fp16, (list, id), ty);
        if written.strip_prefix(before)?.strip_prefix(',')? != text {
            return None;
        }
        let row = self.find(list).ok()?;
        let (block, origin) = (self.vals[row].block, self.program.op(op).origin());
        let name = self.value_name(id).ok()?;
        // The list's declaration stays, without use: a row is never taken out.
        let var = self.declare(block, name, ty, origin);
        let mut attrs = vec![Attr::new(sym::FILE_PATH, AttrValue::str(path))];
        if as_fp16 {
            attrs.push(Attr::new(sym::LOAD_AS_FP16, true));
        } else {
            let dtype = self.program.var(var).dtype;
            attrs.push(Attr::new(sym::STORED_DTYPES, AttrValue::Ints([dtype.code()].into())));
        }
        let attrs = self.program.intern_attrs(attrs);
        let data = &mut self.program.ops[op];
        (data.kind, data.attrs) = (sym::LOAD, attrs);
        let slot = data.slots as usize + data.inputs as usize;
        self.program.slots[slot].name = sym::OUT;
        let arg = self.program.slots[slot].start as usize;
        self.program.args[arg] = name;
        Some(self.define(id, Val { name, ty, var, op, index: 0, block, plain: true }))
    }

    /// An op that names a value.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn naming(
        &mut self,
        kind_text: &str,
        kind: Symbol,
        cell: Name,
        attrs: AttrListId,
        operands: &[Option<usize>],
        results: &[&'t str],
        (block, origin): (BlockId, OriginId),
        text: &OpText<'t>,
    ) -> Result<Vec<Frame<'t>>, PirError> {
        if text.regions.is_some() {
            return Err(PirError::new(Kind::Expected("no regions in an op that names a value")));
        }
        let op = self.program.push_op(block, kind, attrs, origin);
        let more: Vec<_> = text.more.iter().copied().filter(|m| !matches!(m, ("DA" | "QA", "[]"))).collect();
        self.keep_more(op, &more);
        let reads = matches!(kind_text, kinds::PARAMETER | kinds::DATA);
        let (&[], &[result]) = (operands, results) else {
            let (&[Some(v)], [], false) = (operands, results, reads) else {
                return Err(PirError::new(Kind::Expected("one value to be named")));
            };
            self.name_value(op, v, cell, kind_text);
            return Ok(Vec::new());
        };
        if !reads {
            return Err(PirError::new(Kind::Expected("one value to be named")));
        }
        let (id, ty) = self.value_text(result, "%").map_err(|e| e.within(".O"))?;
        let var = match self.cells.get(&cell) {
            Some(known) => {
                let (var, same) = (known.var, known.ty == ty);
                if !same {
                    self.override_type(op, 0, ty);
                }
                var
            }
            None => {
                let var = self.declare(block, cell, ty, origin);
                let parameter = kind_text == kinds::PARAMETER;
                let persists = parameter || self.result_flag(attrs, "persistable");
                let flags = VarFlags::default().with(VarFlag::Persistable, Some(persists));
                self.program.vars[var].flags = match (parameter, persists) {
                    (true, _) => flags.with(VarFlag::IsParameter, Some(true)),
                    (false, true) => flags.with(VarFlag::StopGradient, Some(true)),
                    (false, false) => flags.with(VarFlag::NeedCheckFeed, Some(true)),
                };
                self.cells.insert(cell, Cell { ty, var });
                var
            }
        };
        self.define(id, Val { name: cell, ty, var, op, index: 0, block, plain: false })?;
        Ok(Vec::new())
    }

    fn result_flag(&mut self, list: AttrListId, flag: &str) -> bool {
        let name = self.program.symbol(&format!("{RESULT}{flag}"));
        let attrs = self.program.attr_list(list);
        attrs.iter().any(|a| a.name == name && matches!(&a.value, AttrValue::Bools(b) if b.first() == Some(&true)))
    }

    /// Gives a value the name of a cell, or says that it is renamed at run time.
    fn name_value(&mut self, op: OpId, v: usize, cell: Name, kind_text: &str) {
        let val = self.vals[v];
        let now = self.renames.get(&val.name).copied().unwrap_or(val.name);
        if now == cell {
            return;
        }
        let global = self.program.block(val.block).index == 0 && self.program.op(op).block() == val.block;
        if !val.plain || now != val.name || !global {
            let kind = self.program.symbol(&format!("{RENAME}{kind_text}"));
            let (x, out) = (self.program.symbol("X"), self.program.symbol("Out"));
            self.program.ops[op].kind = kind;
            self.program.push_input(op, x, [val.name]);
            self.program.push_output(op, out, [cell]);
            if !self.cells.contains_key(&cell) {
                let origin = self.program.op(op).origin();
                let var = self.declare(val.block, cell, val.ty, origin);
                self.program.vars[var].flags = VarFlags::default().with(VarFlag::Persistable, Some(true));
                self.cells.insert(cell, Cell { ty: val.ty, var });
            }
            return;
        }
        self.renames.insert(val.name, cell);
        match self.cells.get(&cell) {
            Some(known) => {
                let same = known.ty == val.ty;
                if !same {
                    self.override_type(val.op, val.index as usize, val.ty);
                }
            }
            None => {
                let row = &mut self.program.vars[val.var];
                row.name = cell;
                row.flags = VarFlags::default().with(VarFlag::Persistable, Some(true)).with(
                    if kind_text == kinds::SET_PARAMETER { VarFlag::IsParameter } else { VarFlag::StopGradient },
                    Some(true),
                );
                self.cells.insert(cell, Cell { ty: val.ty, var: val.var });
            }
        }
    }
}
