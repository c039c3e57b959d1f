//! What follows from a program? Effects, dependences, pairs, symbolic values, and the proof.
//!
//! Nothing here is stored in the IR: each analysis is computed from a program on demand, in time
//! linear in its size, and is invalid after any edit.
//!
//! Reading order: [`effects`], [`defuse`], [`depgraph`], [`cells`], [`pairs`], [`values`], [`facts`], [`exec`],
//! [`coherence`](mod@coherence).

pub mod cells;
pub mod coherence;
pub mod defuse;
pub mod depgraph;
pub mod effects;
pub mod exec;
pub mod facts;
pub mod findings;
pub mod numbers;
pub mod order;
pub mod pairs;
pub mod values;

pub use coherence::{
    Coherence, Finding, Obligation, Remark, Settled, Subject, Verdict, When, coherence, coherence_with,
};
pub use exec::{ExecOptions, Writer};
pub use findings::diagnostics;
pub use pairs::{Pair, PairSource, Pairs};
