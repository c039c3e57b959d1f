//! What does `mastercast run` watch? Traces of ops, pairs, NaNs and costs, each on request.

use super::{Ui, print_out};
use mastercast::analysis::{Subject, coherence};
use mastercast::diag::Place;
use mastercast::interp::{Data, Fault, Observer, PairCheck, Profile, Scope, Seen, Tensor};
use mastercast::ir::{Program, Section};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The observers of a run.
#[derive(Default)]
pub struct Watch {
    /// print what each op wrote
    pub trace: bool,
    /// stop where a NaN appears
    pub nan: bool,
    /// compare pairs
    pub pairs: Option<PairCheck>,
    /// take times
    pub profile: Option<Profile>,
    /// the step that is running, 0 in startup
    pub step: u64,
}

/// The pairs of a program, to be compared as it runs.
pub fn pair_check(program: &Program) -> PairCheck {
    PairCheck::new(coherence(program).verdicts.into_iter().filter_map(|v| match v.subject {
        Subject::Pair(pair) => Some(pair),
        _ => None,
    }))
}

/// Least, largest, and how many are not finite.
fn extent(t: &Tensor) -> (f64, f64, usize, usize) {
    let (mut min, mut max, mut nan, mut inf) = (f64::INFINITY, f64::NEG_INFINITY, 0, 0);
    for v in t.to_f64_vec() {
        nan += usize::from(v.is_nan());
        inf += usize::from(v.is_infinite());
        (min, max) = (min.min(v), max.max(v));
    }
    (min, max, nan, inf)
}

fn has_nan(t: &Tensor) -> bool {
    match t.data() {
        Data::F16(v) => v.iter().any(|x| x.is_nan()),
        Data::BF16(v) => v.iter().any(|x| x.is_nan()),
        Data::F32(v) => v.iter().any(|x| x.is_nan()),
        Data::F64(v) => v.iter().any(|x| x.is_nan()),
        _ => false,
    }
}

impl Watch {
    /// Whether anything is watched.
    pub fn any(&self) -> bool {
        self.trace || self.nan || self.pairs.is_some() || self.profile.is_some()
    }

    /// After a step: pairs that should be in step.
    pub fn end(&mut self, program: &Program, scope: &Scope) -> Result<(), Fault> {
        self.pairs.as_mut().map_or(Ok(()), |p| p.end(program, scope))
    }

    /// The profile, most time first.
    pub fn report(&self) -> Option<String> {
        let profile = self.profile.as_ref()?;
        let mut rows: Vec<_> = profile.kinds.iter().collect();
        rows.sort_by(|a, b| b.1.time.cmp(&a.1.time).then(a.0.cmp(b.0)));
        let total: Duration = rows.iter().map(|(_, c)| c.time).sum();
        let mut out = format!("{:>10} {:>6} {:>8} {:>10}  kind\n", "ms", "%", "ops", "MB written");
        for (kind, cost) in rows {
            let (ms, share) = (cost.time.as_secs_f64() * 1e3, cost.time.as_secs_f64() / total.as_secs_f64().max(1e-9));
            let mb = cost.bytes as f64 / 1e6;
            out += &format!("{ms:>10.3} {:>6.1} {:>8} {mb:>10.2}  {kind}\n", share * 100.0, cost.ops);
        }
        Some(out)
    }
}

impl Observer for Watch {
    fn before(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        if let Some(pairs) = self.pairs.as_mut().filter(|_| self.step > 0) {
            pairs.before(at)?;
        }
        self.profile.as_mut().map_or(Ok(()), |p| p.before(at))
    }

    fn after(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        if let Some(profile) = &mut self.profile {
            profile.after(at)?;
        }
        if self.trace {
            let place = Place::op(at.program(), at.op().id).to_string();
            let place = place.split(": (").next().unwrap_or("").to_owned();
            let mut lines = String::new();
            for (name, t) in at.outputs() {
                let (min, max, nan, inf) = extent(t);
                lines += &format!(
                    "step {} {place} {} {name} {}{:?} min {min} max {max} nan {nan} inf {inf}\n",
                    self.step,
                    at.op().kind_str(),
                    t.dtype(),
                    t.shape()
                );
            }
            // A reader that went away ends the trace, not the run.
            self.trace = print_out(lines.as_bytes()).is_ok();
        }
        if self.nan
            && let Some((name, t)) = at.outputs().find(|(_, t)| has_nan(t))
        {
            let inputs = at.op().inputs().flat_map(|s| s.args.iter());
            let of = |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape());
            let inputs: Vec<String> = inputs.filter_map(|&n| at.value(n).map(of)).collect();
            let what = format!("`{name}` ({}) holds a NaN; inputs were {}", of(t), inputs.join(", "));
            return Err(Fault::Stopped { what });
        }
        Ok(())
    }
}

/// Tells of long runs on a terminal, once a second.
pub struct Progress {
    shown: Instant,
    on: bool,
    any: bool,
}

impl Progress {
    /// Nothing is shown when standard error is no terminal, or on `--quiet`.
    pub fn new(ui: Ui) -> Progress {
        Progress { shown: Instant::now(), on: !ui.quiet && std::io::stderr().is_terminal(), any: false }
    }

    /// After a step.
    pub fn step(&mut self, step: u64, steps: u64) {
        if self.on && self.shown.elapsed() >= Duration::from_secs(1) {
            self.shown = Instant::now();
            self.any = true;
            eprint!("\r\x1b[Kstep {step} of {steps}");
        }
    }

    /// Takes the line away.
    pub fn done(&self) {
        if self.any {
            eprint!("\r\x1b[K");
        }
    }
}

/// Which section's programs hold pairs; for the message when none do.
pub fn no_pairs(program: &Program) -> &'static str {
    match program.global_block(Section::Main) {
        Some(_) => "main has no parameter with a master: nothing to compare",
        None => "there is no main program: nothing to compare",
    }
}
