//! Do the bytes kept beside a program say what its rows say? A text or JSON file may claim anything.
//!
//! Kept bytes (`unknown`, `verbatim`, an attribute's `raw`) are written out as they are. Those that
//! [`import`](super::import) keeps agree with their rows; a hand-written file can hold one op for the
//! eyes of the analyses and another one for the framework.

use super::{export, import};
use crate::diag::Place;
use crate::entity::EntityId;
use crate::ir::{Attr, AttrValue, Entity, Extra, OpRef, Program, Section, VarId};

/// The first row of a section whose file would be read differently: its kept bytes contradict it.
///
/// Rows without kept bytes are not looked at, and without any this costs one sweep. With some, the
/// section is written and read again.
pub fn contradiction(program: &Program, section: Section) -> Option<Place> {
    let raw = program.attr_lists.iter().map(|(_, l)| l.attrs.iter().any(|a| a.raw.is_some())).collect::<Vec<_>>();
    if program.extras().next().is_none() && !raw.contains(&true) {
        return None;
    }
    let whole = program.global_block(section).map_or(Place::Nowhere, |b| Place::block(program, b));
    let mut again = Program::new();
    if import(&export(program, section), section, &mut again).is_err() {
        return Some(whole);
    }
    let all = program.extra(Entity::Section(section)).is_some();
    let (ours, theirs) = (program.section(section), again.section(section));
    if (ours.blocks.len(), ours.version, &ours.op_versions)
        != (theirs.blocks.len(), theirs.version, &theirs.op_versions)
    {
        return Some(whole);
    }
    for (&a, &b) in ours.blocks.iter().zip(&theirs.blocks) {
        let (x, y) = (program.block(a), again.block(b));
        if (x.parent, x.forward, x.ops.len(), x.vars.len()) != (y.parent, y.forward, y.ops.len(), y.vars.len()) {
            return Some(Place::block(program, a));
        }
        // The bytes of a block hold its rows.
        let all = all || verbatim(program.extra(Entity::Block(a)));
        for (&v, &w) in x.vars.iter().zip(&y.vars) {
            let kept = all || program.extra(Entity::Var(v)).is_some();
            if kept && !same_var((program, v), (&again, w)) {
                return Some(Place::var(program, v));
            }
        }
        for (&o, &p) in x.ops.iter().zip(&y.ops) {
            let kept = all || program.extra(Entity::Op(o)).is_some() || raw[program.op(o).data().attrs.index()];
            if kept && !same_op(program.op(o), again.op(p)) {
                return Some(Place::op(program, o));
            }
        }
    }
    None
}

fn verbatim(extra: Option<&Extra>) -> bool {
    extra.is_some_and(|x| x.verbatim.is_some())
}

fn same_var((p, v): (&Program, VarId), (q, w): (&Program, VarId)) -> bool {
    let (a, b) = (p.var(v), q.var(w));
    p.name(a.name) == q.name(b.name)
        && p.shape(v) == q.shape(w)
        && (a.kind, a.dtype, a.lod_level, a.flags) == (b.kind, b.dtype, b.lod_level, b.flags)
}

fn same_op(a: OpRef<'_>, b: OpRef<'_>) -> bool {
    let (p, q) = (a.program, b.program);
    let slots = |a: OpRef<'_>| a.inputs().chain(a.outputs()).map(|s| (s.name, s.args.to_vec())).collect::<Vec<_>>();
    let slot = |((n, x), (m, y)): (&(_, Vec<_>), &(_, Vec<_>))| {
        p.sym(*n) == q.sym(*m) && x.len() == y.len() && x.iter().zip(y).all(|(&x, &y)| p.name(x) == q.name(y))
    };
    let (x, y) = (slots(a), slots(b));
    (a.kind_str(), a.is_target(), a.inputs().len(), x.len()) == (b.kind_str(), b.is_target(), b.inputs().len(), y.len())
        && x.iter().zip(&y).all(slot)
        && a.attrs().len() == b.attrs().len()
        && a.attrs().iter().zip(b.attrs()).all(|(x, y)| same_attr((p, x), (q, y)))
}

fn same_attr((p, a): (&Program, &Attr), (q, b): (&Program, &Attr)) -> bool {
    let value = match (&a.value, &b.value) {
        (AttrValue::Var(x), AttrValue::Var(y)) => p.name(*x) == q.name(*y),
        (AttrValue::Vars(x), AttrValue::Vars(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(&x, &y)| p.name(x) == q.name(y))
        }
        (x, y) => x == y,
    };
    value && p.sym(a.name) == q.sym(b.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    /// Whether a main program of this text contradicts itself.
    fn lies(main: &str) -> bool {
        let (program, mistakes) = text::parse(&format!("main {{\n{main}\n}}\n"), "t");
        assert!(mistakes.is_empty(), "{mistakes:?}");
        contradiction(&program, Section::Main).is_some()
    }

    /// The bytes of an op, as hex.
    fn bytes(kind: &str) -> String {
        let n = kind.len();
        let kind: String = kind.bytes().map(|b| format!("{b:02x}")).collect();
        format!("1a{n:02x}{kind}")
    }

    #[test]
    fn bytes_that_say_another_op_are_found() {
        assert!(!lies("relu()"));
        assert!(!lies(&format!("relu() verbatim x\"{}\"", bytes("relu"))));
        assert!(lies(&format!("relu() verbatim x\"{}\"", bytes("tanh"))));
        // A second kind among the unknown fields counts as the last one.
        assert!(lies(&format!("relu() unknown x\"{}\"", bytes("tanh"))));
        assert!(!lies("relu() unknown x\"f83f01\""));
        assert!(lies("relu() verbatim x\"00\""), "no message at all");
        assert!(lies("relu() {a: 1 raw x\"0a016110001802\"}"), "the attribute is 2");
        assert!(!lies("relu() {a: 1 raw x\"0a016110001801\"}"));
        assert!(lies("var x : f32[2] unknown x\"0a0179\""), "another name");
    }

    #[test]
    fn what_import_keeps_agrees() {
        for name in ["unknown.pb", "kinds.pb", "fc_norm.pb", "mlp.jit.pdmodel"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto").join(name);
            let mut program = Program::new();
            import(&std::fs::read(path).unwrap(), Section::Main, &mut program).unwrap();
            assert_eq!(contradiction(&program, Section::Main), None, "{name}");
            let (read, mistakes) = text::parse(&text::print(&program), "t");
            assert!(mistakes.is_empty());
            assert_eq!(contradiction(&read, Section::Main), None, "{name}");
        }
    }
}
