//! Do the texts kept beside a program say what its rows say? A text or JSON file may claim anything.

use super::import::RESULT;
use super::{export, import, kinds, value};
use crate::diag::Place;
use crate::entity::IdVec;
use crate::ir::{AttrListId, Entity, OpRef, Program, Section};
use crate::text;

/// The first row of a section whose file would be read differently: its kept text contradicts it.
pub fn contradiction(program: &Program, section: Section) -> Option<Place> {
    let whole = program.global_block(section).map_or(Place::Nowhere, |b| Place::block(program, b));
    let kept = program.extra(Entity::Section(section)).and_then(|x| x.verbatim.as_deref());
    if kept.is_some() {
        // All rows came from this text.
        let mut again = Program::new();
        let text = export(program, section).unwrap_or_default();
        if import(&text, section, &mut again).is_err() || printed(&again, section) != printed(program, section) {
            return Some(whole);
        }
    }
    let mut good: IdVec<AttrListId, Option<bool>> = IdVec::filled(None, program.attr_list_count());
    for block in program.section_blocks(section) {
        for &var in &program.block(block).vars {
            let Some(kept) = program.extra(Entity::Var(var)) else { continue };
            let said = std::str::from_utf8(&kept.unknown).ok().and_then(value::tensor_type);
            if said.is_some_and(|(d, dims)| d != program.var(var).dtype || dims != program.shape(var)) {
                return Some(Place::var(program, var));
            }
        }
        for op in program.ops(block) {
            let good = &mut good[op.data().attrs];
            if !*good.get_or_insert_with(|| attrs_agree(op)) {
                return Some(Place::op(program, op.id));
            }
        }
    }
    None
}

fn attrs_agree(op: OpRef<'_>) -> bool {
    let row = kinds::of_ir(op.kind_str());
    op.attrs().iter().all(|attr| {
        let Some(raw) = &attr.raw else { return true };
        let name = op.program.sym(attr.name);
        let name = name.strip_prefix(RESULT).unwrap_or(name);
        let name = row.and_then(|r| r.renames.iter().find(|(_, ir)| *ir == name)).map_or(name, |r| r.0);
        std::str::from_utf8(raw).is_ok_and(|raw| value::decode(name, raw) == attr.value)
    })
}

/// A section as text, without the other.
fn printed(program: &Program, section: Section) -> String {
    let mut one = program.clone();
    let other = if section == Section::Main { Section::Startup } else { Section::Main };
    one.sections[other as usize] = Default::default();
    text::print(&one.compact())
}
