//! What do kinds and attributes of the file become? Symbols and shared lists, each distinct text read once.

use super::super::error::{PirError, PirErrorKind as Kind};
use super::super::kinds::{self, Row};
use super::super::{json, value};
use super::{BLOCKS, BLOCKS_OF, Frame, Importer, KindInfo, RESULT, TYPE, need, once};
use crate::ir::{Attr, AttrListId, AttrValue};
use crate::names::Symbol;
use std::borrow::Cow;

impl<'t> Importer<'t, '_> {
    pub(super) fn kind_info(&mut self, kind: &'t str, quoted: &str) -> Result<KindInfo, PirError> {
        let long = kinds::long(&need(json::string(quoted), "a kind `#`")?);
        let row = kinds::of_pir(&long);
        let slots = self.row_slots.len();
        for slot in row.into_iter().flat_map(|r| r.inputs.iter().chain(r.outputs)) {
            let slot = self.program.symbol(slot);
            self.row_slots.push(slot);
        }
        let info = KindInfo {
            kind: self.program.symbol(row.map_or(&long, |r| r.kind)),
            row,
            slots,
            names: kinds::names_cell(&long),
            in_place: long.ends_with('_'),
            combines: long == "builtin.combine",
        };
        self.kinds.insert(kind, info);
        Ok(info)
    }

    /// The slot of an operand (0) or result (1) of an op that the table does not know.
    pub(super) fn place_slot(&mut self, side: usize, index: usize) -> Symbol {
        while self.place_slots[side].len() <= index {
            let name = format!("{}{}", ["I", "O"][side], self.place_slots[side].len());
            let slot = self.program.symbol(&name);
            self.place_slots[side].push(slot);
        }
        self.place_slots[side][index]
    }

    pub(super) fn attr_list(
        &mut self,
        kind: Symbol,
        row: Option<&'static Row>,
        attrs: &'t str,
        of_results: &'t str,
    ) -> Result<AttrListId, PirError> {
        if let Some(&list) = self.attrs.get(&(kind, attrs, of_results)) {
            return Ok(list);
        }
        let mut list = Vec::new();
        for (text, key, prefix) in [(attrs, ".A", ""), (of_results, ".OA", RESULT)] {
            for (i, item) in need(json::list(text), "a list").map_err(|e| e.within(key))?.enumerate() {
                let attr = self.attr(item, row.filter(|_| prefix.is_empty()), prefix);
                list.push(attr.map_err(|e| e.within(&format!("{key}[{i}]")))?);
            }
        }
        let id = self.program.intern_attrs(list);
        self.attrs.insert((kind, attrs, of_results), id);
        Ok(id)
    }

    fn attr(&mut self, item: &'t str, row: Option<&'static Row>, prefix: &str) -> Result<Attr, PirError> {
        let (mut name, mut at) = (None, None);
        for (key, value) in need(json::object(item), "an attribute")? {
            match key {
                "N" => once(&mut name, key, value)?,
                "AT" => once(&mut at, key, value)?,
                _ => return Err(PirError::new(Kind::Expected("an attribute of `N` and `AT` alone"))),
            }
        }
        let name = need(name.and_then(json::string), "a name `N`")?;
        let at = need(at, "a value `AT`")?;
        if prefix.is_empty() && [RESULT, TYPE, BLOCKS].iter().any(|p| name.starts_with(p)) {
            return Err(PirError::new(Kind::BadName(name.into_owned())));
        }
        let value = value::decode(&name, at);
        // One that passes give new ops is told from the file's own by its text.
        let own = name == "op_role" || name == "in_dtype";
        let raw = (own || value::encode(&name, &value).as_deref() != Some(at)).then(|| at.as_bytes().into());
        let renamed = row.and_then(|r| r.renames.iter().find(|(file, _)| *file == name)).map(|r| r.1);
        let name: Cow<'_, str> = match renamed {
            Some(ir) => Cow::Borrowed(ir),
            None => Cow::Owned(format!("{prefix}{name}")),
        };
        let name = self.program.symbol(&name);
        Ok(Attr { name, value, raw })
    }

    /// The list with the op's sub-blocks, and how many of them each region has if not one.
    pub(super) fn with_blocks(&mut self, list: AttrListId, frames: &[Vec<Frame<'t>>]) -> Result<AttrListId, PirError> {
        let blocks = frames.iter().flatten().map(|f| self.program.block(f.block).index as i32).collect();
        let mut attrs = self.program.attr_list(list).to_vec();
        attrs.push(Attr::new(self.program.symbol(BLOCKS), AttrValue::Blocks(blocks)));
        if frames.iter().any(|f| f.len() != 1) {
            let counts = frames.iter().map(|f| f.len() as i32).collect();
            attrs.push(Attr::new(self.program.symbol(BLOCKS_OF), AttrValue::Ints(counts)));
        }
        Ok(self.program.intern_attrs(attrs))
    }
}
