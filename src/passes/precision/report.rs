//! What did a rewrite to mixed precision do, and why is one variable as it is?

use super::decide::{Choice, Decision, Decisions, Reason};
use super::params::Kept;
use super::{Precision, Rewritten};
use crate::entity::EntityId;
use crate::ir::{OpId, Program, Section};
use crate::names::Name;
use serde::Serialize;
use std::collections::BTreeMap;

impl Reason {
    /// The rule, as a clause after "because".
    pub const fn text(self) -> &'static str {
        match self {
            Reason::NotInMain => "it is not in main",
            Reason::NoFloatInput => "no input is a tensor of float32 or a 16-bit type",
            Reason::Reader => "it reads from a reader",
            Reason::DtypeAttribute => "its dtype attribute says the type of its result",
            Reason::Unsupported => "the kind has no kernel of the type on the device, or is on the user's black list",
            Reason::UnknownKind => "the device profile does not know the kind",
            Reason::LearningRate => "it touches a learning rate",
            Reason::OutsideGuard => "it stands outside the guard",
            Reason::BlackVariable => "it touches a variable of the user's black list",
            Reason::BlackList => "the kind is on the black list",
            Reason::WhiteList => "the kind is on the white list",
            Reason::UserCast => "it is a cast of the user's",
            Reason::Float32Input => "an input is float32 (promotion)",
            Reason::NoFloat32Input => "no input is float32 (promotion)",
            Reason::Permitted => "at O2 nothing forbids it",
            Reason::Producer => "the kind is gray and follows what made its input",
            Reason::NoProducer => "the kind is gray and nothing says otherwise",
            Reason::Unlisted => "the kind is in no list",
        }
    }
}

/// A parameter that stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KeptParam {
    /// its name
    pub name: String,
    /// the reason
    pub why: String,
}

/// How many ops of one kind are computed how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct KindCount {
    /// in 16 bits
    pub low: usize,
    /// in float32
    pub float32: usize,
    /// not looked at, or a cast of the user's
    pub other: usize,
}

/// What a rewrite did, as numbers and sorted lists.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// ops of the source program
    pub ops: usize,
    /// ops by how they are computed (`low`, `float32`, `cast`, `skip`), then by reason
    pub by_reason: BTreeMap<&'static str, BTreeMap<&'static str, usize>>,
    /// ops by kind
    pub by_kind: BTreeMap<String, KindCount>,
    /// casts to 16 bits that were inserted
    pub casts_to_low: usize,
    /// casts to float32 that were inserted
    pub casts_to_float32: usize,
    /// of these, casts after an op, from what it computes to what its variable is declared
    pub casts_of_results: usize,
    /// inserted casts for each op that computes floats
    pub casts_per_op: f64,
    /// parameters that stay as they are
    pub kept: Vec<KeptParam>,
    /// bytes that narrowed parameters take less; parameters of unknown shape are left out
    pub param_bytes_saved: u64,
    /// what Paddle's `cast_model_to_fp16` returns, sorted
    pub returned: Vec<String>,
    /// parameters that are declared in 16 bits, sorted: what `amp_init` must narrow
    pub low: Vec<String>,
    /// one line for a person
    pub summary: String,
}

fn choice(choice: Choice) -> &'static str {
    match choice {
        Choice::Skip => "skip",
        Choice::Cast => "cast",
        Choice::Float32 => "float32",
        Choice::Low => "low",
    }
}

/// Whether an op was in the program before the rewrite.
fn is_source(done: &Rewritten, op: OpId) -> bool {
    op.index() < done.decisions.ops.len()
}

impl Report {
    /// Reads a rewritten program.
    pub fn new(program: &Program, options: &Precision, done: &Rewritten) -> Report {
        let Rewritten { decisions, plan, .. } = done;
        let mut report = Report::default();
        for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
            if !is_source(done, op.id) {
                continue;
            }
            report.ops += 1;
            let d = decisions.op(op.id);
            *report.by_reason.entry(choice(d.choice)).or_default().entry(d.reason.text()).or_default() += 1;
            if !report.by_kind.contains_key(op.kind_str()) {
                report.by_kind.insert(op.kind_str().to_owned(), KindCount::default());
            }
            if let Some(count) = report.by_kind.get_mut(op.kind_str()) {
                match d.choice {
                    Choice::Low => count.low += 1,
                    Choice::Float32 => count.float32 += 1,
                    Choice::Skip | Choice::Cast => count.other += 1,
                }
            }
        }
        for cast in &plan.casts {
            let to_low = plan.copies[cast.copy as usize].dtype.is_low() != cast.back;
            *(if to_low { &mut report.casts_to_low } else { &mut report.casts_to_float32 }) += 1;
            report.casts_of_results += usize::from(cast.back);
        }
        for &(var, name, kept) in &decisions.params.all {
            match kept {
                Kept::No => {
                    let elements =
                        program.shape(var).iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?));
                    report.param_bytes_saved =
                        report.param_bytes_saved.saturating_add(elements.unwrap_or(0).saturating_mul(2));
                }
                _ => {
                    let why = kept_text(program, kept);
                    report.kept.push(KeptParam { name: program.name(name).to_owned(), why });
                }
            }
        }
        let texts = |names: &mut dyn Iterator<Item = Name>| {
            let mut all: Vec<String> = names.map(|n| program.name(n).to_owned()).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        report.returned = texts(
            &mut program
                .names()
                .iter()
                .take(decisions.returned.len())
                .map(|(n, _)| n)
                .filter(|&n| decisions.is_returned(n)),
        );
        report.low = texts(&mut decisions.params.low());
        let count = |c: Choice| report.by_reason.get(choice(c)).map_or(0, |r| r.values().sum::<usize>());
        let (low, wide) = (count(Choice::Low), count(Choice::Float32));
        report.casts_per_op = if low + wide == 0 { 0.0 } else { plan.casts.len() as f64 / (low + wide) as f64 };
        report.summary = format!(
            "{:?}, {}: {low} of {} ops in 16 bits, {wide} in float32; {} casts inserted; {} of {} parameters narrowed, {} saved",
            options.level,
            decisions.low,
            report.ops,
            plan.casts.len(),
            report.low.len(),
            decisions.params.all.len(),
            bytes(report.param_bytes_saved),
        );
        report
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}

fn op_text(program: &Program, op: OpId) -> String {
    let r = program.op(op);
    let block = program.block(r.block());
    let out = r.output_args().next().map_or("", |n| program.name(n));
    format!("{} -> {out} (block {})", r.kind_str(), block.index)
}

fn kept_text(program: &Program, kept: Kept) -> String {
    match kept {
        Kept::No => "narrowed".to_owned(),
        Kept::Level => "the level narrows no parameter".to_owned(),
        Kept::NotFloat32 => "it is not float32".to_owned(),
        Kept::Op(op, reason) => format!("{} reads it: {}", op_text(program, op), reason.text()),
        Kept::Slot(op) => format!("{} reads it in a slot that stays float32", op_text(program, op)),
    }
}

/// Ops that [`why`] tells of, writers and readers together; further ones are counted.
const MOST: usize = 12;
/// Steps from an op to the op that decided about it.
const STEPS: usize = 16;

/// Why a variable has the dtype that it has, and how it is read: the chain of rules, one a line. `None` when main
/// has no variable of this name.
pub fn why(program: &Program, done: &Rewritten, name: Name) -> Option<Vec<String>> {
    let decisions = &done.decisions;
    let mut lines = Vec::new();
    for block in program.section_blocks(Section::Main) {
        for &var in program.block(block).vars.iter().filter(|&&v| program.var(v).name == name) {
            let v = program.var(var);
            let index = program.block(block).index;
            lines.push(format!("`{}` is declared {} in block {index}", program.name(name), v.dtype));
            if let Some(&(_, _, kept)) = decisions.params.all.iter().find(|p| p.0 == var) {
                let text = match kept {
                    Kept::No => format!("  a parameter, narrowed to {}: no op needs it in float32", decisions.low),
                    kept => format!("  a parameter, kept: {}", kept_text(program, kept)),
                };
                lines.push(text);
            }
        }
    }
    if lines.is_empty() {
        return None;
    }
    if done.decisions.returned.get(name.index()) == Some(&true) {
        lines.push("  in the set that Paddle returns".to_owned());
    }
    let copies: Vec<Name> = done
        .plan
        .copies
        .iter()
        .zip(&done.names)
        .filter(|(c, _)| program.var(c.of).name == name)
        .map(|(_, &n)| n)
        .collect();
    let mut told = 0;
    let mut left = 0;
    for op in program.section_blocks(Section::Main).flat_map(|b| program.ops(b)) {
        let touches = |n: &Name| *n == name || copies.contains(n);
        let (reads, writes) = (op.input_args().find(touches), op.output_args().find(touches));
        if reads.is_none() && writes.is_none() {
            continue;
        }
        if told == MOST {
            left += 1;
            continue;
        }
        told += 1;
        let verb = match (reads, writes) {
            (_, Some(n)) if n == name => "written by".to_owned(),
            (_, Some(n)) => format!("`{}` made by", program.name(n)),
            (Some(n), _) if n == name => "read by".to_owned(),
            (Some(n), _) => format!("read as `{}` by", program.name(n)),
            (None, None) => continue,
        };
        if is_source(done, op.id) {
            lines.push(format!("  {verb} {}: {}", op_text(program, op.id), decision(program, decisions.op(op.id))));
            lines.extend(chain(program, decisions, op.id).into_iter().map(|l| format!("    {l}")));
        } else {
            lines.push(format!("  {verb} an inserted {}", op_text(program, op.id)));
        }
    }
    if left > 0 {
        lines.push(format!("  and {left} more ops"));
    }
    Some(lines)
}

fn decision(program: &Program, d: Decision) -> String {
    let how = match d.choice {
        Choice::Skip => "left alone",
        Choice::Cast => "kept",
        Choice::Float32 => "in float32",
        Choice::Low => "in 16 bits",
    };
    match d.witness {
        Some(n) => format!("{how}, because {} (`{}`)", d.reason.text(), program.name(n)),
        None => format!("{how}, because {}", d.reason.text()),
    }
}

/// The ops that decided about an op, each about the one before.
fn chain(program: &Program, decisions: &Decisions, op: OpId) -> Vec<String> {
    let (mut at, mut lines) = (op, Vec::new());
    for _ in 0..STEPS {
        let d = decisions.op(at);
        let (Reason::Producer, Some(name)) = (d.reason, d.witness) else { break };
        let Some(var) = decisions.decls.find(program.op(at).block(), name) else { break };
        let Some(by) = decisions.producer.get(var.index()).copied().flatten() else { break };
        if by == at {
            break;
        }
        lines.push(format!(
            "`{}` comes from {}: {}",
            program.name(name),
            op_text(program, by),
            decision(program, decisions.op(by))
        ));
        at = by;
    }
    lines
}
