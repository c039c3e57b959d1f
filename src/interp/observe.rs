//! What happens while a program runs? Observers see each op before and after: to trace, to time, to check.

use super::error::Fault;
use super::machine::Machine;
use super::scope::{Scope, Value};
use super::tensor::Tensor;
use crate::analysis::Pair;
use crate::convert::Narrowing;
use crate::ir::{DType, OpRef, Program};
use crate::names::Name;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sees every op of a run, those of sub-blocks included. An error stops the run at the op.
pub trait Observer {
    /// Called before an op runs.
    fn before(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        let _ = at;
        Ok(())
    }

    /// Called after an op ran.
    fn after(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        let _ = at;
        Ok(())
    }
}

/// An op, and the values of variables at this point.
pub struct Seen<'m, 'r> {
    pub(super) machine: &'m Machine<'r>,
    pub(super) op: OpRef<'r>,
}

impl<'r> Seen<'_, 'r> {
    /// The op.
    pub fn op(&self) -> OpRef<'r> {
        self.op
    }

    /// The program.
    pub fn program(&self) -> &'r Program {
        self.machine.program
    }

    /// The tensor that a variable holds.
    pub fn value(&self, name: Name) -> Option<&Tensor> {
        match &self.machine.cell(name)?.value {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The op's outputs that hold tensors, in order.
    pub fn outputs(&self) -> impl Iterator<Item = (&'r str, &Tensor)> {
        let names = self.op.outputs().flat_map(|s| s.args.iter().copied());
        names.filter_map(|n| Some((self.machine.program.name(n), self.value(n)?)))
    }
}

/// What the ops of one kind took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// how often one ran
    pub ops: u64,
    /// time, without that of sub-blocks
    pub time: Duration,
    /// bytes written to variables
    pub bytes: u64,
}

/// Takes the time of ops, by kind.
#[derive(Default)]
pub struct Profile {
    /// by kind
    pub kinds: BTreeMap<String, Cost>,
    /// ops that are running, with the time of their sub-blocks' ops
    open: Vec<(Instant, Duration)>,
}

impl Observer for Profile {
    fn before(&mut self, _: &Seen<'_, '_>) -> Result<(), Fault> {
        self.open.push((Instant::now(), Duration::ZERO));
        Ok(())
    }

    fn after(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        let Some((start, inner)) = self.open.pop() else { return Ok(()) };
        let whole = start.elapsed();
        if let Some((_, inner)) = self.open.last_mut() {
            *inner += whole;
        }
        let kind = at.op().kind_str();
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.to_owned(), Cost::default());
        }
        if let Some(cost) = self.kinds.get_mut(kind) {
            cost.ops += 1;
            cost.time += whole.saturating_sub(inner);
            cost.bytes += at.outputs().map(|(_, t)| t.bytes()).sum::<u64>();
        }
        Ok(())
    }
}

/// Compares every pair of main bit for bit with its narrowed master: when main starts, before each op that
/// reads one of the two, and (by [`PairCheck::end`]) after the step. Stops at the first break.
///
/// An op that brings pairs in step itself (`resync`, `amp_init`) may read one that is not.
pub struct PairCheck {
    pairs: Vec<Pair>,
    /// by name: the pairs it belongs to
    of: BTreeMap<Name, Vec<usize>>,
    started: bool,
    compared: u64,
}

impl PairCheck {
    /// For these pairs, as [`coherence`](crate::analysis::coherence()) finds them.
    pub fn new(pairs: impl IntoIterator<Item = Pair>) -> PairCheck {
        let pairs: Vec<Pair> = pairs.into_iter().collect();
        let mut of: BTreeMap<Name, Vec<usize>> = BTreeMap::new();
        for (i, pair) in pairs.iter().enumerate() {
            of.entry(pair.param).or_default().push(i);
            of.entry(pair.master).or_default().push(i);
        }
        PairCheck { pairs, of, started: false, compared: 0 }
    }

    /// How many pairs there are.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// How often one was compared.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    fn compare(
        &mut self,
        program: &Program,
        pair: usize,
        when: &str,
        (param, master): (Option<&Tensor>, Option<&Tensor>),
    ) -> Result<(), Fault> {
        let Pair { param: p, master: m, .. } = self.pairs[pair];
        // A pair without values is not a pair yet: an op that reads one says so itself.
        let (Some(param), Some(master)) = (param, master) else { return Ok(()) };
        self.compared += 1;
        let broken = |index: usize, got: f32, want: f32| Fault::OutOfStep {
            param: program.name(p).to_owned(),
            master: program.name(m).to_owned(),
            when: when.to_owned(),
            index,
            got,
            want,
        };
        if master.dtype() != DType::F32 || param.shape() != master.shape() {
            let what = format!("`{}` is {param:?}, and its master {master:?}", program.name(p));
            return Err(Fault::Stopped { what });
        }
        let narrowed = master.cast(param.dtype(), Narrowing::NearestEven)?;
        if narrowed.bits_eq(param) {
            return Ok(());
        }
        let (got, want) = (param.to_f32_vec(), narrowed.to_f32_vec());
        // Elements that differ in nothing but the payload of a NaN are equal.
        let differs = |(g, w): (&f32, &f32)| g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan());
        match got.iter().zip(&want).position(differs) {
            Some(i) => Err(broken(i, got[i], want[i])),
            None => Ok(()),
        }
    }

    /// Compares all pairs after a step; the next step begins anew.
    pub fn end(&mut self, program: &Program, scope: &Scope) -> Result<(), Fault> {
        self.started = false;
        for i in 0..self.pairs.len() {
            let value = |name| scope.get(program.name(name));
            let pair = (value(self.pairs[i].param), value(self.pairs[i].master));
            self.compare(program, i, "after the step", pair)?;
        }
        Ok(())
    }
}

impl Observer for PairCheck {
    fn before(&mut self, at: &Seen<'_, '_>) -> Result<(), Fault> {
        let value = |i: usize, s: &Self| (at.value(s.pairs[i].param), at.value(s.pairs[i].master));
        if !std::mem::replace(&mut self.started, true) {
            for i in 0..self.pairs.len() {
                let pair = value(i, self);
                self.compare(at.program(), i, "when main starts", pair)?;
            }
            return Ok(());
        }
        if ["resync", "amp_init"].contains(&at.op().kind_str()) {
            return Ok(());
        }
        let mut read: Vec<usize> = Vec::new();
        for name in at.op().inputs().flat_map(|s| s.args.iter()) {
            read.extend(self.of.get(name).into_iter().flatten());
        }
        read.sort_unstable();
        read.dedup();
        for i in read {
            let pair = value(i, self);
            self.compare(at.program(), i, "where this op reads it", pair)?;
        }
        Ok(())
    }
}
