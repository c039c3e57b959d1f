//! How are the findings of the proof told to the user? As diagnostics with the two last writers and a help line.

use crate::analysis::coherence::{Coherence, Finding, Obligation, Remark, Subject, When};
use crate::analysis::exec::Writer;
use crate::analysis::pairs::{MAX_PAIRS_OF_A_CELL, Pair};
use crate::diag::{Code, Diagnostic, Diagnostics, Place, Places, shorten};
use crate::ir::{OpId, Program};
use crate::names::Name;
use crate::ops::{Effect, Ops};

/// The findings and remarks as diagnostics, in the order of the verdicts.
pub fn diagnostics(coherence: &Coherence, program: &Program) -> Diagnostics {
    let mut out = Diagnostics::new();
    let tell = Tell { program, places: Places::new(program) };
    for verdict in &coherence.verdicts {
        for finding in &verdict.findings {
            out.push(tell.finding(&verdict.subject, finding));
        }
    }
    for remark in &coherence.remarks {
        out.push(tell.remark(remark));
    }
    out
}

/// What an op of the crate's own table does.
fn effect(program: &Program, op: OpId) -> Effect {
    Ops::standard().get(program.op(op).kind_str()).map_or(Effect::Unknown, |s| s.effect)
}

impl Finding {
    /// The code of this finding about a subject.
    pub fn code(&self, subject: &Subject) -> Code {
        match (self, subject) {
            (Finding::Stale { .. }, Subject::Copy { .. }) => Code::StaleCopy,
            (Finding::Stale { old, .. }, Subject::Pair(p)) if *old == p.master => Code::StaleMaster,
            (Finding::Stale { .. }, _) => Code::StaleParameter,
            (Finding::Lossy { .. }, _) => Code::LossyMaster,
            (Finding::WrongType { .. }, _) => Code::WrongDtype,
            (Finding::Conflict { .. }, _) => Code::LoadConflict,
            (Finding::Unset, _) => Code::UnsetMaster,
            (Finding::Unproved { .. }, _) => Code::Unproved,
        }
    }
}

struct Tell<'p> {
    program: &'p Program,
    places: Places<'p>,
}

impl Tell<'_> {
    fn name(&self, n: Name) -> String {
        format!("`{}`", shorten(self.program.name(n)))
    }

    fn place(&self, w: Writer) -> Place {
        w.op().map_or(Place::Nowhere, |op| self.places.op(op))
    }

    fn when(&self, when: When) -> &'static str {
        match when {
            When::Entry => "when main starts",
            When::Before(_) => "where main reads it",
            When::StepEnd => "at the end of a step of main",
        }
    }

    fn finding(&self, subject: &Subject, finding: &Finding) -> Diagnostic {
        match finding {
            Finding::Stale { when, old, new, old_writer, new_writer } => {
                self.stale(subject, *when, (*old, *old_writer), (*new, *new_writer))
            }
            Finding::Lossy { writer } => {
                let Subject::Pair(pair) = subject else { unreachable!("only a pair is lossy") };
                Diagnostic::new(
                    Code::LossyMaster,
                    format!(
                        "master {} is widened from {} although the float32 value of {} was at hand",
                        self.name(pair.master),
                        pair.low,
                        self.name(pair.param)
                    ),
                    self.place(*writer),
                )
                .help("`master-casts` seeds the master before the narrowing; `resync` clears `rewrite_master`")
            }
            Finding::WrongType { cell, runtime, declared, writer } => Diagnostic::new(
                Code::WrongDtype,
                format!("{} holds {runtime} when main starts, but main declares {declared}", self.name(*cell)),
                self.place(*writer),
            )
            .help("run `amp_init` (name it in the schedule); `load-order` places loads before it, `resync` narrows after one that cannot move"),
            Finding::Conflict { largest } => {
                let Subject::Pair(pair) = subject else { unreachable!("only a pair can conflict") };
                Diagnostic::new(
                    Code::LoadConflict,
                    format!(
                        "the checkpoint's {} is not its master {} narrowed: they differ by up to {}",
                        self.name(pair.param),
                        self.name(pair.master),
                        largest.get()
                    ),
                    self.pair_place(pair),
                )
                .help("choose: `rewrite --on-conflict master` or `--on-conflict param`")
            }
            Finding::Unset => {
                let Subject::Pair(pair) = subject else { unreachable!("only a pair has a master") };
                Diagnostic::new(
                    Code::UnsetMaster,
                    format!("nothing in startup writes master {} of {}", self.name(pair.master), self.name(pair.param)),
                    self.pair_place(pair),
                )
                .help("`master-casts` adds the cast")
            }
            Finding::Unproved { when, obligation } => self.unproved(subject, *when, obligation),
        }
    }

    fn pair_place(&self, pair: &Pair) -> Place {
        use crate::analysis::pairs::PairSource;
        match pair.source {
            PairSource::Optimizer(op) | PairSource::StartupCast(op) => self.places.op(op),
            PairSource::Declared => Place::Nowhere,
        }
    }

    fn stale(&self, subject: &Subject, when: When, old: (Name, Writer), new: (Name, Writer)) -> Diagnostic {
        let (code, message) = match subject {
            Subject::Pair(p) if old.0 == p.master => (
                Code::StaleMaster,
                format!(
                    "{}, master {} does not descend from the value that {} holds",
                    self.when(when),
                    self.name(old.0),
                    self.name(new.0)
                ),
            ),
            Subject::Pair(_) => (
                Code::StaleParameter,
                format!(
                    "{}, parameter {} does not descend from the value that its master {} holds",
                    self.when(when),
                    self.name(old.0),
                    self.name(new.0)
                ),
            ),
            Subject::Copy { source, .. } => (
                Code::StaleCopy,
                format!(
                    "{}, {} still holds what was derived from the old value of {}",
                    self.when(when),
                    self.name(old.0),
                    self.name(*source)
                ),
            ),
            Subject::Param(_) => unreachable!("a parameter without master cannot be stale"),
        };
        let place = match when {
            When::Before(op) => self.places.op(op),
            _ => self.place(new.1),
        };
        let mut d = Diagnostic::new(code, message, place);
        if let Some(op) = new.1.op() {
            d = d.label(self.places.op(op), format!("{} was last written here", self.name(new.0)));
        }
        if let Some(op) = old.1.op() {
            d = d.label(self.places.op(op), format!("{} was last written here", self.name(old.0)));
        }
        d.note("different sources are evidence of unequal numbers, not proof").help(match code {
            Code::StaleCopy => "`load-order,resync` derive it again",
            _ => "`master-casts,load-order,resync` bring the pair in step: `mastercast rewrite`",
        })
    }

    fn unproved(&self, subject: &Subject, when: When, obligation: &Obligation) -> Diagnostic {
        let what = match subject {
            Subject::Pair(p) => format!("{} and its master {} are as they", self.name(p.param), self.name(p.master)),
            Subject::Copy { cell, source, .. } => {
                format!("{} and its source {} are as they", self.name(*cell), self.name(*source))
            }
            Subject::Param(n) => format!("{} is as it", self.name(*n)),
        };
        let place = match (when, obligation) {
            (_, Obligation::UnknownOp(op)) => self.places.op(*op),
            (When::Before(op), _) => self.places.op(op),
            _ => match subject {
                Subject::Pair(p) => self.pair_place(p),
                _ => Place::Nowhere,
            },
        };
        let note = match obligation {
            Obligation::EntriesAgree { file, param, master_file, master } => {
                let (param, master, file, other) =
                    (shorten(param), shorten(master), shorten(file), shorten(master_file));
                match file == other {
                    true => format!("both were loaded: do `{param}` and `{master}` of {file} agree when narrowed?"),
                    false => {
                        format!(
                            "both were loaded: do `{param}` of {file} and `{master}` of {other} agree when narrowed?"
                        )
                    }
                }
            }
            Obligation::StoredDtype(n) => {
                format!("the dtype that the checkpoint holds for {} is not known", self.name(*n))
            }
            Obligation::Rounded(n) => format!(
                "{} is widened from 16 bits, and the dtype that the checkpoint holds is not known: it may be float32",
                self.name(*n)
            ),
            Obligation::RunDtype(n) => format!("the dtype that {} has at run time is not known", self.name(*n)),
            Obligation::UnknownOp(_) => "an op of unknown kind may have written the cell".to_owned(),
            Obligation::NeverWritten(n) => format!("nothing in startup writes {}", self.name(*n)),
            Obligation::Branches => "the values come from branches that the proof does not relate".to_owned(),
        };
        Diagnostic::new(Code::Unproved, format!("cannot tell whether {what} must be {}", self.when(when)), place)
            .note(note)
    }

    fn remark(&self, remark: &Remark) -> Diagnostic {
        match remark {
            Remark::LowPrecisionSource(pair, stored, writer) => Diagnostic::new(
                Code::LowPrecisionSource,
                format!(
                    "master {} is derived from a {stored} checkpoint value: float32 precision is lost",
                    self.name(pair.master),
                ),
                self.place(*writer),
            )
            .help("save the masters beside the parameters, and load both"),
            Remark::LoadOverwritten { cell, load, by } => Diagnostic::new(
                Code::LoadOverwritten,
                format!("the loaded value of {} is overwritten before anything reads it", self.name(*cell)),
                self.places.op(*load),
            )
            .label(self.places.op(*by), "overwritten here")
            .help(match effect(self.program, *by) {
                Effect::AmpInit => "`resync` clears `rewrite_master` where the master holds the float32 value",
                Effect::Load => "the later load counts; leave the earlier one out, or load other keys",
                _ => "`load-order` places the load after the initialisers",
            }),
            Remark::UnusedMaster(pair, op) => Diagnostic::new(
                Code::UnusedMaster,
                format!("{} is updated without its master {}", self.name(pair.param), self.name(pair.master)),
                self.places.op(*op),
            ),
            Remark::BadPair(pair) => Diagnostic::new(
                Code::BadPair,
                format!(
                    "{} cannot be the master of {}: they need one shape, and the dtypes float32 and float16 or bfloat16 (one cell has at most {MAX_PAIRS_OF_A_CELL} pairs)",
                    self.name(pair.master),
                    self.name(pair.param)
                ),
                self.pair_place(pair),
            ),
        }
    }
}
