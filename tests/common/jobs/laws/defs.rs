//! Are reaching definitions the writes that a run sees?

use super::run::{LOOKS, run};
use super::{Said, tally};
use crate::jobs::Job;
use mastercast::analysis::defuse::{DefSite, DefUse};
use mastercast::analysis::effects::{Access, Effects};
use mastercast::interp::Tensor;
use mastercast::ir::{At, Edit, NewOp, Section};
use mastercast::names::{Name, sym};
use mastercast::ops::Ops;

/// On straight lines, reaching definitions are the writes that a run sees.
pub fn reaching_definitions_are_seen(job: &Job) -> Said {
    let mut job = job.clone();
    job.startup.retain(|s| s.body().is_none());
    let program = job.program();
    let kinds = Ops::standard().resolve(&program);
    let effects = Effects::new(&program, &kinds);
    let defuse = DefUse::new(&program, &effects, Section::Startup);
    let global = program.global_block(Section::Startup).expect("startup");
    let ops = program.block(global).ops.clone();
    let names: Vec<Name> = program.names().iter().map(|(n, _)| n).collect();
    let mut watched = program.clone();
    let look = watched.symbol("look");
    let mut edit = Edit::new();
    for &op in &ops {
        edit.insert(At::Before(op), NewOp::new(look).input(sym::X, names.clone()), "");
    }
    edit.insert(At::End(global), NewOp::new(look).input(sym::X, names.clone()), "");
    edit.commit(&mut watched, "look");
    LOOKS.with_borrow_mut(Vec::clear);
    let ran = run(&watched, &job.store());
    let looks = LOOKS.with_borrow(Clone::clone);
    let here = |t: &Option<Tensor>| t.as_ref().map(|t| std::ptr::from_ref(t.data()));
    let (mut reads, mut writer) = (0, vec![None::<usize>; names.len()]);
    for (i, &op) in ops.iter().enumerate() {
        if i >= looks.len() {
            break;
        }
        for def in defuse.reads(op) {
            let def = defuse.def(def);
            let at = match def.site {
                DefSite::Entry => None,
                DefSite::Op(o) => Some(ops.iter().position(|&x| x == o).expect("an op of startup")),
                DefSite::LoopHead(_) => return Err("a loop head on a straight line".into()),
            };
            let column = names.iter().position(|&n| n == def.name).expect("a name");
            reads += 1;
            // A write that leaves the old value is a definition all the same.
            if writer[column] > at || at >= Some(i) {
                return Err(format!(
                    "{:?} reads {} as defined at {at:?}; the run saw a write at {:?}",
                    program.op(op),
                    program.name(def.name),
                    writer[column]
                ));
            }
            if let Some(at) = at {
                let mut named = false;
                effects.each(program.op(ops[at]), |n, a| {
                    named |= n == def.name && a != Access::Read;
                });
                if !named {
                    return Err(format!("{:?} does not write {}", program.op(ops[at]), program.name(def.name)));
                }
            }
        }
        let Some(after) = looks.get(i + 1) else { break };
        for (column, (old, new)) in looks[i].iter().zip(after).enumerate() {
            if here(old) != here(new) {
                writer[column] = Some(i);
            }
        }
    }
    Ok(tally([("reads", reads), ("startup runs", usize::from(ran.entry.is_some()))]))
}
