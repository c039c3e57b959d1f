//! How does a finished float32 training program become one of mixed precision?
//!
//! *Before*: main holds forward, backward and optimizer ops, all in float32, told apart by `op_role`. *After*:
//! the forward part is what the pass `precision` makes of it; each gradient op computes as its forward op does
//! and reads the copies that it read; gradients have the dtype of what they are the gradient of; the loss is
//! scaled, and gradients are unscaled and checked before clip, regularisation and optimizer, which follow the
//! dtype of the gradients; at O2 optimizers update float32 masters, under whose names accumulators are kept.
//! *Preserves*: what the program computes up to rounding, every op, and roles. *Cost*: linear.
//!
//! The result computes what PaddlePaddle 2.6.2 makes when it decorates the optimizer before it differentiates
//! (`static.amp.decorate`), in the same order.
//!
//! # How
//! 1. Backward and optimizer ops are set aside, and `precision` rewrites what is left (`split`).
//! 2. Each gradient op is matched with its forward op (`matching`); what that op now reads and writes says what
//!    the gradient op reads and writes. The gradient of a copy is cast to become one of the variable, behind
//!    the gradient ops of all that reads the copy; sums are split accordingly (`backward`).
//! 3. Loss scaling ([`scaling`]), then clip, regularisation and optimizer (`optimize`).
//! 4. `master-casts` gives optimizers their masters.
//!
//! An op that is not understood computes in float32, through casts.
//!
//! Those who differentiate themselves use [`TrainPrecision::decorate`] and [`TrainPrecision::apply_gradients`].

mod backward;
mod decorate;
mod flow;
mod grads;
mod matching;
mod optimize;
pub mod scaling;
mod split;
mod state;
mod steps;
mod typed;

pub use decorate::{Applied, Decorated};

use super::precision::{Device, Level, LowType, Precision, Report};
use super::{MasterCasts, Pass, PassCx, PassError};
use crate::diag::{Code, Diagnostic, Place};
use crate::ir::{EditSummary, Program};
use crate::ops::AmpLists;
use scaling::LossScaling;
use serde::{Deserialize, Serialize};

/// The pass and its options: those of [`Precision`], of masters, and of loss scaling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainPrecision {
    /// how far
    pub level: Level,
    /// the 16-bit type
    pub dtype: LowType,
    /// see [`Precision::promote`]
    pub promote: bool,
    /// see [`Precision::guard`]
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
    /// optimizers of 16-bit parameters update float32 masters
    pub master_weight: bool,
    /// at O2, 16-bit gradients of parameters are cast to float32 before they are unscaled, clipped and used
    pub master_grad: bool,
    /// loss scaling
    pub loss_scaling: LossScaling,
}

impl Default for TrainPrecision {
    fn default() -> Self {
        Precision::default().into()
    }
}

/// These options for the forward part, and the defaults of the rest: masters, no master gradients.
impl From<Precision> for TrainPrecision {
    fn from(forward: Precision) -> Self {
        let Precision { level, dtype, promote, guard, device, white, black, black_vars, lists } = forward;
        let (master_weight, master_grad, loss_scaling) = (true, false, LossScaling::default());
        TrainPrecision {
            level,
            dtype,
            promote,
            guard,
            device,
            white,
            black,
            black_vars,
            lists,
            master_weight,
            master_grad,
            loss_scaling,
        }
    }
}

impl TrainPrecision {
    /// The options of the forward part.
    pub fn precision(&self) -> Precision {
        let TrainPrecision { level, dtype, promote, guard, device, white, black, black_vars, lists, .. } = self.clone();
        Precision { level, dtype, promote, guard, device, white, black, black_vars, lists }
    }
}

/// Why a training program cannot be rewritten.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// there is nothing to train
    #[error("main has no gradient ops; for a forward program use the pass `precision`")]
    NotTraining,
    /// the loss is no float variable of main
    #[error("main has no float32 or 16-bit variable `{name}` to differentiate")]
    NoLoss {
        /// the name that was given
        name: String,
    },
    /// a gradient is no float variable of main
    #[error("main declares no float32 or 16-bit gradient `{name}`")]
    NoGradient {
        /// the gradient
        name: String,
    },
    /// an optimizer updates a parameter of which the backward pass makes no gradient under Paddle's names
    #[error("no gradient op makes a gradient of `{param}`, which an optimizer updates: it cannot be unscaled")]
    Untraced {
        /// the parameter
        param: String,
    },
    /// a gradient is used before all are there, so that it cannot be unscaled with them
    #[error("a gradient op uses the gradient of `{param}` before those of all parameters are made")]
    UsedEarly {
        /// the parameter
        param: String,
    },
    /// a gradient is read that would no longer be written
    #[error("the gradient `{name}` is used in a way that is not understood (by {kind}, op {index} of block {block})")]
    Gradient {
        /// the gradient
        name: String,
        /// the op that reads it
        kind: String,
        /// its block
        block: u32,
        /// its place there
        index: usize,
    },
}

impl Pass for TrainPrecision {
    fn name(&self) -> &'static str {
        "train-precision"
    }

    fn options(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let Trained { summary, told, .. } = self.rewrite(program, cx)?;
        if let Some(told) = told {
            cx.diagnostics.push(Diagnostic::new(Code::NothingToNarrow, told, Place::Nowhere));
        }
        Ok(summary)
    }
}

/// What [`TrainPrecision::rewrite`] did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trained {
    /// the edits
    pub summary: EditSummary,
    /// what became of the forward part; `None` when nothing was rewritten
    pub report: Option<Report>,
    /// why nothing was rewritten
    pub told: Option<String>,
}

impl TrainPrecision {
    /// Rewrites a training program, and reports on its forward part. On error the program is as before.
    pub fn rewrite(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<Trained, PassError> {
        let refused = |e: &dyn std::error::Error| PassError::Refused { pass: "train-precision", why: e.to_string() };
        let precision = self.precision();
        let mut work = program.clone();
        let aside = split::set_aside(&mut work);
        if !aside.trains {
            return Err(refused(&TrainError::NotTraining));
        }
        let (ready, _) = precision.prepare(&work).map_err(|e| refused(&e))?;
        let again = || {
            split::scaled(program).map(|op| format!("main is of mixed precision already ({op}): nothing is rewritten"))
        };
        if let Some(told) = ready.told(program).or_else(again) {
            return Ok(Trained { told: Some(told), ..Trained::default() });
        }
        let (_, done) = precision.rewrite(&mut work, cx.ops).map_err(|e| refused(&e))?;
        let Some(done) = done else { return Ok(Trained::default()) };
        let report = Report::new(&work, &precision, &done);
        let mut summary = done.summary;
        split::put_back(&mut work, program, &aside);
        let backward::Backward { summary: done, others } =
            backward::rewrite(program, &mut work, &aside, self.name()).map_err(|e| refused(&e))?;
        summary.merge(done);
        summary.merge(optimize::rewrite(self, program, &mut work, cx, &others, self.name()).map_err(|e| refused(&e))?);
        summary.merge(MasterCasts::default().run(&mut work, cx)?);
        summary.merge(state::rekey(&mut work, cx, self.name()));
        *program = work;
        Ok(Trained { summary, report: Some(report), told: None })
    }
}
