//! How does a float32 program become one of mixed precision?
//!
//! The rules are those of PaddlePaddle 2.6.2 (`static.amp`), so that users get what they expect: which ops are
//! computed in 16 bits ([`Level`]), which parameters are narrowed, which slots stay float32.
//!
//! *Before*: a forward program in main, without casts of this pass. *After*: each op of main computes in
//! the dtype that was decided, reads its inputs through casts where they have another, and writes variables
//! of the dtype that it computes; at O2 parameters are declared in 16 bits (startup stays as it is: `amp_init`
//! narrows the cells). *Preserves*: every op, its order, and the user's own casts. *Cost*: linear in the
//! program; no string is compared within.
//!
//! # For other passes
//! [`decide`] gives the decisions as a value and changes nothing: [`Decisions::op`] (how each op is computed and
//! why), [`Decisions::keeps_input`] and [`Decisions::keeps_output`] (slots that stay float32), [`Decisions::dtype`]
//! (of each declaration), [`Params::low`] (parameters to narrow) and [`Decisions::is_returned`] (the set that
//! Paddle returns). [`plan_casts`] and [`copy_names`] say where casts stand and what they are called; [`cast_attrs`]
//! are the attributes of a cast as Paddle writes them. [`Precision::prepare`] checks options against a program.
//!
//! # Where the result is not Paddle's
//! Casts are keyed by reaching definition, not by name alone; in a sub-block only a dominating one is reused,
//! and the control op lists what its blocks read. An op whose result is of another dtype than its variable
//! writes a copy that is cast. A user's cast keeps its `out_dtype`. OD keeps the type and the user's lists.
//! Only float32 parameters are narrowed. O0 does nothing.

mod apply;
pub(in crate::passes) mod captures;
mod casts;
mod decide;
mod lists;
mod params;
mod profile;
mod report;

pub use apply::cast_attrs;
pub use casts::{CastOp, Copy, Plan, names as copy_names, plan as plan_casts};
pub use decide::{Choice, Decision, Decisions, Reason, decide};
pub use lists::{Effective, KindFacts, Kinds};
pub use params::{Kept, Params};
pub use profile::{Device, DeviceProfile};
pub use report::{KeptParam, KindCount, Report, why};

use super::{Pass, PassCx, PassError};
use crate::diag::{Code, Diagnostic, Place};
use crate::ir::{DType, EditSummary, Program, Role, Section};
use crate::names::{Name, sym};
use crate::ops::{AmpLists, Ops};
use crate::verify::copied;
use serde::{Deserialize, Serialize};

/// How far a program goes to 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Level {
    /// nothing is changed
    O0,
    /// white ops in 16 bits, gray ones as their inputs; parameters stay float32
    #[default]
    O1,
    /// all but what a list or a missing kernel forbids; parameters are narrowed
    O2,
    /// white ops alone
    OD,
}

/// The 16-bit type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LowType {
    /// IEEE 754 binary16
    #[default]
    Float16,
    /// the upper half of binary32
    BFloat16,
}

impl LowType {
    /// The element type.
    pub const fn dtype(self) -> DType {
        match self {
            LowType::Float16 => DType::F16,
            LowType::BFloat16 => DType::BF16,
        }
    }
}

/// The pass and its options.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// how far
    pub level: Level,
    /// the 16-bit type
    pub dtype: LowType,
    /// an op in no list is computed in float32 when an input is float32, else in 16 bits
    pub promote: bool,
    /// only ops inside Paddle's `fp16_guard` (or `bf16_guard`) are computed in 16 bits
    pub guard: bool,
    /// where the program will run
    pub device: Device,
    /// the user's white list of op kinds
    pub white: Vec<String>,
    /// the user's black list of op kinds
    pub black: Vec<String>,
    /// variables whose ops stay float32
    pub black_vars: Vec<String>,
    /// other lists than Paddle's
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists: Option<Box<AmpLists>>,
}

/// Why options do not fit, or a program cannot be rewritten.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrecisionError {
    /// a list names a kind that neither the lists nor the device profile know
    #[error("no op kind is named `{kind}`{}", near_text(.near))]
    UnknownKind {
        /// the name
        kind: String,
        /// kinds with a similar name
        near: Vec<String>,
    },
    /// one kind on both of the user's lists
    #[error("`{kind}` is on the white and on the black list")]
    Overlap {
        /// the kind
        kind: String,
    },
    /// a variable list names what the program does not have
    #[error("main has no variable `{name}`")]
    UnknownVariable {
        /// the name
        name: String,
    },
    /// the program has backward or optimizer ops
    #[error("main is a training program ({kind}, op {index} of block {block}); this pass takes a forward program")]
    Training {
        /// the first such op
        kind: String,
        /// its block
        block: u32,
        /// its place there
        index: usize,
    },
    /// a control-flow op names a block that is not there
    #[error("{kind} (op {index} of block {block}) names sub-block {missing}, which the program does not have")]
    MissingBlock {
        /// the op's kind
        kind: String,
        /// its block
        block: u32,
        /// its place there
        index: usize,
        /// the block that it names
        missing: i32,
    },
}

fn near_text(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (similar: {})", near.join(", ")) }
}

/// What [`Precision::prepare`] found: whether there is anything to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ready {
    /// the program can be rewritten
    Yes,
    /// the level is O0
    Off,
    /// a cast of this pass, or of Paddle's, is already there
    Already {
        /// what the cast makes
        copy: Name,
    },
    /// no op computes in float32: float64 ones alone, or none
    NoFloat32 {
        /// number of declarations of float64
        float64: usize,
    },
}

impl Precision {
    /// Checks the options, and the program against them, before anything is decided.
    pub fn prepare(&self, program: &Program) -> Result<(Ready, Kinds), PrecisionError> {
        let effective = Effective::new(self)?;
        let kinds = Kinds::new(program, self, &effective);
        if self.level == Level::O0 {
            return Ok((Ready::Off, kinds));
        }
        if let Some(name) = self.black_vars.iter().find(|v| program.names().lookup(v).is_none()) {
            return Err(PrecisionError::UnknownVariable { name: name.clone() });
        }
        let mut already = None;
        for block in program.section_blocks(Section::Main) {
            for (index, op) in program.ops(block).enumerate() {
                let at = || (op.kind_str().to_owned(), program.block(block).index, index);
                if op.role().is_some_and(|r| r.has(Role::BACKWARD) || r.has(Role::OPTIMIZE)) {
                    let (kind, block, index) = at();
                    return Err(PrecisionError::Training { kind, block, index });
                }
                if op.has_sub_blocks() {
                    let gone = |&i: &i32| program.block_at(Section::Main, i).is_none();
                    if let Some(missing) = op.sub_block_indices().find(gone) {
                        let (kind, block, index) = at();
                        return Err(PrecisionError::MissingBlock { kind, block, index, missing });
                    }
                }
                if op.kind() == sym::CAST
                    && let (&[x], &[out]) = (op.input(sym::X), op.output(sym::OUT))
                {
                    let (x_text, out_text) = (program.name(x), program.name(out));
                    let result = x_text.strip_prefix(out_text).is_some_and(|s| s.starts_with(".result_fp"));
                    if result || copied(out_text) == Some(x_text) {
                        already.get_or_insert(if result { x } else { out });
                    }
                }
            }
        }
        if let Some(copy) = already {
            return Ok((Ready::Already { copy }, kinds));
        }
        let vars = program.section_blocks(Section::Main).flat_map(|b| &program.block(b).vars);
        let (mut float32, mut float64) = (false, 0);
        for var in vars.map(|&v| program.var(v)).filter(|v| v.kind.has_tensor()) {
            float32 |= var.dtype == DType::F32;
            float64 += usize::from(var.dtype == DType::F64);
        }
        let ready = if float32 { Ready::Yes } else { Ready::NoFloat32 { float64 } };
        Ok((ready, kinds))
    }
}

/// A rewrite that was done: all that a report or a later pass may ask.
pub struct Rewritten {
    /// how each op is computed, and what each variable became
    pub decisions: Decisions,
    /// the casts
    pub plan: Plan,
    /// the names of [`Plan::copies`]
    pub names: Vec<Name>,
    /// what changed
    pub summary: EditSummary,
}

impl Precision {
    /// Rewrites main, when there is something to do.
    ///
    /// ```
    /// use mastercast::ops::Ops;
    /// use mastercast::passes::Precision;
    /// use mastercast::passes::precision::Report;
    /// let (mut program, _) = mastercast::text::parse(r#"program {
    ///   main {
    ///     param w : f32[4, 4] persistable
    ///     var x : f32[4, 4] persistable
    ///     var y : f32[4, 4]
    ///     var z : f32[4, 4]
    ///     (Out: y) = matmul_v2(X: x; Y: w)
    ///     (Out: z) = exp(X: y)
    ///   }
    /// }"#, "job");
    /// let options = Precision::default(); // O1, float16
    /// let (_, done) = options.rewrite(&mut program, Ops::standard())?;
    /// let report = Report::new(&program, &options, &done.unwrap());
    /// assert_eq!(report.returned, ["w", "x"]);
    /// assert_eq!((report.casts_to_low, report.casts_to_float32), (2, 1));
    /// # Ok::<(), mastercast::passes::precision::PrecisionError>(())
    /// ```
    pub fn rewrite(&self, program: &mut Program, ops: &Ops) -> Result<(Ready, Option<Rewritten>), PrecisionError> {
        let (ready, kinds) = self.prepare(program)?;
        if ready != Ready::Yes {
            return Ok((ready, None));
        }
        let decisions = decide(program, self, kinds);
        let done = apply::apply(program, ops, decisions, "precision");
        Ok((ready, Some(done)))
    }
}

impl Ready {
    /// Why nothing is rewritten; `None` when something is.
    pub fn told(&self, program: &Program) -> Option<String> {
        Some(match self {
            Ready::Yes => return None,
            Ready::Off => "level O0: nothing is rewritten".to_owned(),
            Ready::Already { copy } => {
                format!("main is of mixed precision already (`{}`): nothing is rewritten", program.name(*copy))
            }
            Ready::NoFloat32 { float64: 0 } => "main computes nothing in float32: nothing is rewritten".to_owned(),
            Ready::NoFloat32 { float64 } => {
                format!("main computes in float64 alone ({float64} variables): nothing is rewritten")
            }
        })
    }
}

impl Pass for Precision {
    fn name(&self) -> &'static str {
        "precision"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let refused = |e: PrecisionError| PassError::Refused { pass: "precision", why: e.to_string() };
        let (ready, done) = self.rewrite(program, cx.ops).map_err(refused)?;
        if let Some(told) = ready.told(program) {
            cx.diagnostics.push(Diagnostic::new(Code::NothingToNarrow, told, Place::Nowhere));
        }
        Ok(done.map(|d| d.summary).unwrap_or_default())
    }
}
