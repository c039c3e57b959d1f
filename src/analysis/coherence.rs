//! Do parameter and master agree when main starts, and after every step? The proof.
//!
//! For each pair, each derived copy and each 16-bit parameter without a master: no finding means
//! *proved*, on every run, modulo NaN payloads. A finding is evidence, worded as such: different
//! symbolic sources may still hold equal numbers.
//!
//! What is checked (SEMANTICS §5): **in step** at main's entry, at the end of a step, and before every
//! op of main that reads either cell; **typed** and **lossless** at main's entry. **Fresh** follows from
//! in step: equal terms descend from the same loads; a load that an initialiser overwrites is
//! reported apart. Of a derived copy, only that it is what its op would make of its sources at main's
//! entry: main may mean to update the source alone.

use crate::analysis::effects::Access;
use crate::analysis::exec::{Exec, ExecOptions, Form, Observer, Silent, Writer};
use crate::analysis::facts::Facts;
use crate::analysis::pairs::Pair;
use crate::analysis::values::{Known, Value, ValueId};
use crate::ir::{DType, F32, OpId, OpRef, Program, Section};
use crate::names::{Name, SeededSet, sym};
use crate::ops::{Effect, Ops};
use std::sync::Arc;

mod others;

/// What a verdict is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// a parameter and its master
    Pair(Pair),
    /// a persistable that `op` derives from others
    Copy {
        /// the derived cell
        cell: Name,
        /// the first cell that it is derived from
        source: Name,
        /// the op that derives it
        op: OpId,
    },
    /// a 16-bit parameter without a master
    Param(Name),
}

/// When a finding holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// when main starts
    Entry,
    /// before this op of main reads it
    Before(OpId),
    /// at the end of a step of main
    StepEnd,
}

/// What would settle an unproved claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obligation {
    /// entry `param` of the file, narrowed, equals entry `master`, narrowed
    EntriesAgree {
        /// the checkpoint that brought the parameter
        file: Arc<str>,
        /// the parameter's key
        param: String,
        /// the checkpoint that brought the master
        master_file: Arc<str>,
        /// the master's key
        master: String,
    },
    /// the stored dtype of a checkpoint entry is not known
    StoredDtype(Name),
    /// the master went through 16 bits, and the stored dtype of what it stems from is not known
    Rounded(Name),
    /// the dtype that the cell has at run time is not known
    RunDtype(Name),
    /// an op of unknown kind may have written a cell
    UnknownOp(OpId),
    /// nothing in startup writes this cell
    NeverWritten(Name),
    /// the values come from branches that the proof does not relate
    Branches,
}

/// One thing wrong, or not proved, about a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// the two descend from different sources
    Stale {
        /// when
        when: When,
        /// the cell that holds the old value
        old: Name,
        /// the cell that holds the new one
        new: Name,
        /// who wrote the old one
        old_writer: Writer,
        /// who wrote the new one
        new_writer: Writer,
    },
    /// the master went through 16 bits although float32 was at hand
    Lossy {
        /// who wrote the master
        writer: Writer,
    },
    /// the run-time dtype differs from main's declaration
    WrongType {
        /// the cell
        cell: Name,
        /// what it holds
        runtime: DType,
        /// what main declares
        declared: DType,
        /// who wrote it
        writer: Writer,
    },
    /// both were loaded, and the loaded values disagree
    Conflict {
        /// the largest difference between the two, as float32
        largest: F32,
    },
    /// nothing in startup writes the master
    Unset,
    /// cannot be decided from the program alone
    Unproved {
        /// when
        when: When,
        /// what would settle it
        obligation: Obligation,
    },
}

/// The outcome for one subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// what it is about
    pub subject: Subject,
    /// what was found; empty means proved
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Whether the subject is proved.
    pub fn proved(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Facts that are no verdict on a subject but worth a warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remark {
    /// the master is made from a checkpoint value of this 16-bit dtype
    LowPrecisionSource(Pair, DType, Writer),
    /// a load's value is overwritten before anything reads it
    LoadOverwritten {
        /// the cell
        cell: Name,
        /// the load
        load: OpId,
        /// the op that overwrites it
        by: OpId,
    },
    /// an optimizer op updates the parameter of a pair without its master
    UnusedMaster(Pair, OpId),
    /// looks like a pair, but shapes or dtypes do not fit
    BadPair(Pair),
}

/// The outcome of the proof.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coherence {
    /// one verdict a pair, then a derived copy, then a 16-bit parameter without master
    pub verdicts: Vec<Verdict>,
    /// warnings
    pub remarks: Vec<Remark>,
}

impl Coherence {
    /// Whether every subject is proved.
    pub fn proved(&self) -> bool {
        self.verdicts.iter().all(Verdict::proved)
    }

    /// The verdict on a parameter's pair (the first, when it has several masters).
    pub fn of_param(&self, param: Name) -> Option<&Verdict> {
        self.verdicts.iter().find(|v| match v.subject {
            Subject::Pair(p) => p.param == param,
            Subject::Param(n) => n == param,
            Subject::Copy { .. } => false,
        })
    }

    /// Number of pairs, and of those proved.
    pub fn pair_counts(&self) -> (usize, usize) {
        let pairs = self.verdicts.iter().filter(|v| matches!(v.subject, Subject::Pair(_)));
        pairs.fold((0, 0), |(n, ok), v| (n + 1, ok + usize::from(v.proved())))
    }

    /// Settles obligations on pairs: `decide` looks at one, `None` when it cannot tell. What holds is
    /// struck; what does not becomes a [`Finding::Conflict`].
    pub fn discharge(&mut self, mut decide: impl FnMut(&Pair, &Obligation) -> Option<Settled>) {
        for verdict in &mut self.verdicts {
            let Subject::Pair(pair) = verdict.subject else { continue };
            verdict.findings.retain_mut(|f| {
                let Finding::Unproved { obligation, .. } = f else { return true };
                match decide(&pair, obligation) {
                    None => true,
                    Some(Settled::Holds) => false,
                    Some(Settled::Differs(largest)) => {
                        *f = Finding::Conflict { largest };
                        true
                    }
                }
            });
        }
    }
}

/// The outcome of looking at an obligation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// it holds
    Holds,
    /// it does not; the largest difference
    Differs(F32),
}

/// Proves what can be proved of a program, with the crate's op table.
///
/// ```
/// use mastercast::analysis::coherence;
/// let (program, found) = mastercast::text::parse(r#"
///   program {
///     startup {
///       param w : f32[2] persistable
///       var w_fp32_master_0 : f32[2] persistable
///       (Out: w) = fill_constant() {dtype: f32, shape: [2L], value: 0.5f}
///       (Out: w_fp32_master_0) = cast(X: w) {in_dtype: f32, out_dtype: f32}
///       (Out: w) = load() {file_path: "ckpt.safetensors", stored_dtypes: [f32]}
///       (Out: w) = amp_init(X: w) {dtype: f16}
///     }
///     main {
///       param w : f16[2] persistable
///       var w_fp32_master_0 : f32[2] persistable
///     }
///   }"#, "job");
/// assert!(found.is_empty());
/// // The load came after the master was cast: the master still holds the initial value.
/// let proof = coherence(&program);
/// assert!(!proof.proved());
/// let said = mastercast::analysis::diagnostics(&proof, &program);
/// assert_eq!(said.iter().next().unwrap().code.as_str(), "stale-master");
/// ```
pub fn coherence(program: &Program) -> Coherence {
    coherence_with(program, Ops::standard(), &[], ExecOptions::default())
}

/// The same with another op table, pairs that the caller knows of, and options.
pub fn coherence_with(program: &Program, ops: &Ops, declared: &[(Name, Name)], options: ExecOptions) -> Coherence {
    prove(&Facts::new(program, ops, declared), options)
}

/// The same on facts that are at hand.
pub fn prove(facts: &Facts<'_>, options: ExecOptions) -> Coherence {
    let Facts { program, pairs, .. } = facts;
    let mut exec = Exec::new(facts, options);
    let mut out = Coherence::default();
    out.remarks.extend(pairs.rejected().iter().map(|&p| Remark::BadPair(p)));

    let mut lost = Lost::default();
    exec.run(Section::Startup, &mut lost);
    out.remarks.extend(lost.0);

    let mut verdicts: Vec<Verdict> =
        pairs.rows().iter().map(|&p| Verdict { subject: Subject::Pair(p), findings: Vec::new() }).collect();
    let no_startup = program.is_empty(Section::Startup);
    for (i, verdict) in verdicts.iter_mut().enumerate() {
        entry_findings(&mut exec, i, no_startup, verdict, &mut out.remarks);
    }
    let mut others = Vec::new();
    others::derived(&mut exec, &mut others);
    others::singles(&mut exec, &mut others);

    // What held at entry must hold through a step, for every step.
    let lost = |f: &Finding| matches!(f, Finding::Stale { .. } | Finding::Unset);
    let open = |f: &Finding| matches!(f, Finding::Unproved { .. });
    let holding: Vec<(usize, Form)> = (0..pairs.rows().len())
        .filter_map(|i| match options.assume_entry {
            // Once mended a pair is narrowed.
            true if !verdicts[i].proved() => Some((i, Form::Narrow)),
            _ if verdicts[i].findings.iter().any(lost) => None,
            _ => match exec.form(i) {
                // Somebody may settle what is open at entry, and must not learn less of main for it.
                None if verdicts[i].findings.iter().all(open) => Some((i, Form::Narrow)),
                form => form.map(|f| (i, f)),
            },
        })
        .collect();
    let masters: Vec<Known> = holding.iter().map(|&(i, _)| known_master(&mut exec, i)).collect();
    exec.enter_step(&holding);
    let mut watch = Watch { watched: vec![false; verdicts.len()], found: Vec::new(), unused: Vec::new() };
    holding.iter().for_each(|&(i, _)| watch.watched[i] = true);
    exec.run(Section::Main, &mut watch);
    for (&(i, form), known) in holding.iter().zip(masters) {
        if !watch.watched[i] {
            continue;
        }
        if !exec.in_step(i) {
            let finding = disagreement(&mut exec, i, When::StepEnd);
            watch.found.push((i, finding));
        } else if exec.form(i) != Some(form) || (known != Known::Unknown && known_master(&mut exec, i) != known) {
            // Agrees, but as another dtype: what was assumed of the next step does not hold.
            let obligation = Obligation::RunDtype(pairs.rows()[i].param);
            watch.found.push((i, Finding::Unproved { when: When::StepEnd, obligation }));
        }
    }
    out.remarks.extend(watch.unused);
    for (i, finding) in watch.found {
        verdicts[i].findings.push(finding);
    }
    out.verdicts = verdicts;
    out.verdicts.extend(others);
    out
}

fn known_master(exec: &mut Exec<'_>, pair: usize) -> Known {
    let m = exec.value(exec.pairs.rows()[pair].master);
    exec.values.known(m)
}

/// Symbolic state at main's entry, for passes that need it.
pub fn run_startup<'a>(exec: &mut Exec<'a>) {
    exec.run(Section::Startup, &mut Silent);
}

fn entry_findings(exec: &mut Exec<'_>, i: usize, no_startup: bool, verdict: &mut Verdict, remarks: &mut Vec<Remark>) {
    let pair = exec.pairs.rows()[i];
    let (p, m) = (exec.value(pair.param), exec.value(pair.master));
    let findings = &mut verdict.findings;
    if !no_startup && exec.writer(pair.master) == Writer::Nobody {
        findings.push(Finding::Unset);
        return typed(exec, pair.param, p, pair.low, findings);
    }
    if !exec.in_step(i) {
        let finding = disagreement(exec, i, When::Entry);
        findings.push(finding);
    }
    for (cell, v, declared) in [(pair.param, p, pair.low), (pair.master, m, DType::F32)] {
        typed(exec, cell, v, declared, findings);
    }
    match exec.values.rounded(m) {
        Some(true) => findings.push(Finding::Lossy { writer: exec.writer(pair.master) }),
        Some(false) => {}
        None => findings.push(unproved(Obligation::Rounded(pair.master))),
    }
    if let Value::Cast(DType::F32, inner) = exec.values.get(m)
        && matches!(exec.values.get(inner), Value::Load { .. })
        && let Some(stored) = exec.values.known(inner).exact().filter(|d| d.is_low())
    {
        remarks.push(Remark::LowPrecisionSource(pair, stored, exec.writer(pair.master)));
    }
}

fn unproved(obligation: Obligation) -> Finding {
    Finding::Unproved { when: When::Entry, obligation }
}

fn typed(exec: &mut Exec<'_>, cell: Name, v: ValueId, declared: DType, findings: &mut Vec<Finding>) {
    match exec.values.known(v) {
        Known::Is(d) if d == declared => {}
        Known::Is(runtime) => {
            findings.push(Finding::WrongType { cell, runtime, declared, writer: exec.writer(cell) });
        }
        Known::UpToF32 | Known::Unknown => {
            let s = sources(exec, v);
            let obligation = match s.unknown {
                Some(op) => Obligation::UnknownOp(op),
                None if !s.loads.is_empty() => Obligation::StoredDtype(cell),
                None => match s.entry {
                    Some(name) => Obligation::NeverWritten(name),
                    None => Obligation::RunDtype(cell),
                },
            };
            let never = |f: &Finding| matches!(f, Finding::Unproved { obligation: Obligation::NeverWritten(_), .. });
            // That nothing wrote a pair is told once.
            let finding = unproved(obligation);
            if !(findings.contains(&finding) || never(&finding) && findings.iter().any(never)) {
                findings.push(finding);
            }
        }
    }
}

/// Terms looked at below one value: there may be as many values as ops.
const LEAVES: usize = 1024;

#[derive(Default)]
struct Sources {
    loads: SeededSet<Value>,
    unknown: Option<OpId>,
    entry: Option<Name>,
    whole: bool,
}

fn sources(exec: &Exec<'_>, v: ValueId) -> Sources {
    let mut s = Sources::default();
    let mut related = true;
    s.whole = exec.values.leaves(v, LEAVES, |leaf| match leaf {
        Value::Load { .. } => {
            s.loads.insert(leaf);
        }
        Value::Opaque(op, _) => match exec.effects.effect(exec.program.op(op)) {
            Effect::Unknown => s.unknown = Some(op),
            // Blocks that were not looked into, branches without end.
            Effect::Cond | Effect::While => related = false,
            _ => {}
        },
        Value::Entry(name) => s.entry = Some(name),
        _ => {}
    });
    s.whole &= related;
    s
}

/// Why a pair that does not provably agree does not.
fn disagreement(exec: &mut Exec<'_>, i: usize, when: When) -> Finding {
    let pair = exec.pairs.rows()[i];
    let (p, m) = (exec.value(pair.param), exec.value(pair.master));
    let (sp, sm) = (sources(exec, p), sources(exec, m));
    let unproved = |obligation| Finding::Unproved { when, obligation };
    if let Some(op) = sp.unknown.or(sm.unknown) {
        return unproved(Obligation::UnknownOp(op));
    }
    // What was read before anything wrote it: nothing is known of its dtype either.
    if let Some(name) = sp.entry.or(sm.entry).filter(|_| when == When::Entry) {
        return unproved(Obligation::NeverWritten(name));
    }
    if !sp.whole || !sm.whole {
        return unproved(Obligation::Branches);
    }
    if let (Some((f, k)), Some((mf, mk))) = (plain_load(exec, p), plain_load(exec, m)) {
        return unproved(Obligation::EntriesAgree {
            file: exec.file_path(f),
            param: exec.key_text(k).to_owned(),
            master_file: exec.file_path(mf),
            master: exec.key_text(mk).to_owned(),
        });
    }
    // The newer cell is the one with a load that the other has not seen, else the one written last.
    let only_p = sp.loads.iter().any(|l| !sm.loads.contains(l));
    let only_m = sm.loads.iter().any(|l| !sp.loads.contains(l));
    let later = |a: Writer, b: Writer| a.op().map(|op| exec.order(op)) >= b.op().map(|op| exec.order(op));
    let param_is_new = match (only_p, only_m) {
        (true, false) => true,
        (false, true) => false,
        _ => later(exec.writer(pair.param), exec.writer(pair.master)),
    };
    let (old, new) = if param_is_new { (pair.master, pair.param) } else { (pair.param, pair.master) };
    Finding::Stale { when, old, new, old_writer: exec.writer(old), new_writer: exec.writer(new) }
}

/// A checkpoint entry under any number of casts.
fn plain_load(exec: &Exec<'_>, mut v: ValueId) -> Option<(u32, u32)> {
    loop {
        match exec.values.get(v) {
            Value::Cast(_, inner) => v = inner,
            // After a save the file is no longer what the caller can look at.
            Value::Load { file, key, version: 0, .. } => return Some((file, key)),
            _ => return None,
        }
    }
}

#[derive(Default)]
struct Lost(Vec<Remark>);

impl Observer for Lost {
    fn lost(&mut self, exec: &Exec<'_>, cell: Name, load: OpId, by: OpId) {
        // A parameter that was loaded beside its master is meant to be narrowed from it.
        let op = exec.program.op(by);
        let from_master = exec.pairs.of(cell).any(|i| op.input(sym::X) == [exec.pairs.rows()[i].master]);
        if from_master && matches!(exec.effects.effect(op), Effect::Cast | Effect::Copy) {
            return;
        }
        self.0.push(Remark::LoadOverwritten { cell, load, by });
    }
}

/// Watches main for reads of a pair that is not in step.
struct Watch {
    watched: Vec<bool>,
    found: Vec<(usize, Finding)>,
    unused: Vec<Remark>,
}

impl Observer for Watch {
    fn before(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        let pairs = exec.pairs;
        let effect = exec.effects.effect(op);
        if let Effect::Optimizer(_) = effect
            && op.input(sym::MASTER_PARAM).is_empty()
        {
            for &p in op.input(sym::PARAM) {
                self.unused.extend(pairs.of(p).map(|i| Remark::UnusedMaster(pairs.rows()[i], op.id)));
            }
        }
        if matches!(effect, Effect::Resync | Effect::AmpInit | Effect::Load) {
            return;
        }
        // A control op reads its condition; what its block reads is seen there, or told by `skipped`.
        if matches!(effect, Effect::Cond | Effect::While) {
            return;
        }
        if !op.has_sub_blocks() && effect != Effect::Unknown {
            op.input_args().chain(op.attr_vars()).for_each(|name| self.read(exec, op, name));
            return;
        }
        let mut reads = Vec::new();
        exec.effects.each(op, |name, access| {
            if access == Access::Read && pairs.has(name) {
                reads.push(name);
            }
        });
        reads.into_iter().for_each(|name| self.read(exec, op, name));
        self.inside(exec, op, Obligation::UnknownOp(op.id));
    }

    fn skipped(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        let effects = exec.effects;
        for sub in op.sub_blocks() {
            for &name in &effects.block(sub).reads {
                self.read(exec, op, name);
            }
        }
        self.inside(exec, op, Obligation::Branches);
    }
}

impl Watch {
    /// A block that is not looked into, and writes a pair, may read it before it is in step again.
    fn inside(&mut self, exec: &Exec<'_>, op: OpRef<'_>, obligation: Obligation) {
        for sub in op.sub_blocks() {
            for i in exec.effects.block(sub).writes.iter().flat_map(|&n| exec.pairs.of(n)) {
                if std::mem::replace(&mut self.watched[i], false) {
                    let when = When::Before(op.id);
                    self.found.push((i, Finding::Unproved { when, obligation: obligation.clone() }));
                }
            }
        }
    }

    /// An op reads a cell: each pair that it is part of must agree.
    fn read(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>, name: Name) {
        let pairs = exec.pairs;
        if !pairs.has(name) {
            return;
        }
        for i in pairs.of(name) {
            if !self.watched[i] || exec.in_step(i) {
                continue;
            }
            let pair = pairs.rows()[i];
            let other = if name == pair.param { pair.master } else { pair.param };
            let moves = matches!(exec.effects.effect(op), Effect::Copy | Effect::Cast);
            if !(moves && op.output(sym::OUT) == [other]) {
                self.watched[i] = false;
                let finding = disagreement(exec, i, When::Before(op.id));
                self.found.push((i, finding));
            }
        }
    }
}
