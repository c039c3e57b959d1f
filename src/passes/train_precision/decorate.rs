//! How does a forward program become one that is ready to be differentiated, and its gradients ready to be used?
//!
//! For whoever differentiates with a tool of his own. Between the two calls stands that tool:
//!
//! 1. [`TrainPrecision::decorate`] rewrites the forward program and scales the loss;
//! 2. the tool appends the gradient ops of the loss that it returns;
//! 3. [`TrainPrecision::apply_gradients`] appends what PaddlePaddle 2.6.2's decorated optimizer appends before
//!    clip, regularisation and update: master gradients, the check, the adaption of the scale, the flag;
//! 4. the tool appends optimizer ops that read the gradients and flags that this returns, with `multi_precision`
//!    set where parameters are of 16 bits, and the pass `master-casts` gives them masters.

use super::optimize::{One, declare_cells};
use super::scaling::{Plan, ScalingCells};
use super::typed::{Typer, cast};
use super::{TrainError, TrainPrecision};
use crate::ir::{At, DType, EditSummary, Program, Role, Section};
use crate::names::Name;
use crate::passes::precision::Report;
use crate::passes::{PassCx, PassError};
use rustc_hash::{FxHashMap, FxHashSet};

/// A forward program that is ready to be differentiated.
#[derive(Clone, PartialEq, Debug)]
pub struct Decorated {
    /// what to differentiate: the loss in float32, scaled when it is scaled
    pub loss: Name,
    /// the cells of loss scaling; `None` when the loss is not scaled
    pub cells: Option<ScalingCells>,
    /// what became of the forward program; `None` at level O0
    pub report: Option<Report>,
    /// the edits
    pub summary: EditSummary,
}

/// Gradients that are ready for clip, regularisation and optimizers.
#[derive(Clone, PartialEq, Debug)]
pub struct Applied {
    /// each parameter with the gradient to use
    pub params_grads: Vec<(Name, Name)>,
    /// true when a gradient is not finite, on the device: `SkipUpdate` of Lamb
    pub found: Option<Name>,
    /// the same in host memory: `SkipUpdate` of Adam and AdamW
    pub found_on_host: Option<Name>,
    /// the edits
    pub summary: EditSummary,
}

const PASS: &str = "decorate";

fn refused(e: &dyn std::error::Error) -> PassError {
    PassError::Refused { pass: PASS, why: e.to_string() }
}

impl TrainPrecision {
    /// Rewrites a forward program, and scales its loss. On error the program is as before.
    pub fn decorate(&self, program: &mut Program, loss: &str, cx: &PassCx<'_>) -> Result<Decorated, PassError> {
        let missing = || refused(&TrainError::NoLoss { name: loss.to_owned() });
        let mut work = program.clone();
        let global = work.global_block(Section::Main).ok_or_else(missing)?;
        let name = work.names().lookup(loss).ok_or_else(missing)?;
        let precision = self.precision();
        let (_, done) = precision.rewrite(&mut work, cx.ops).map_err(|e| refused(&e))?;
        let report = done.as_ref().map(|d| Report::new(&work, &precision, d));
        let mut summary = done.map(|d| d.summary).unwrap_or_default();
        let low = self.dtype.dtype();
        let mut t = Typer::new(&mut work, low);
        let dtype = t.dtype(global, name).filter(|&d| t.castable(d)).ok_or_else(missing)?;
        let (at, mut top) = (At::End(global), name);
        if dtype != DType::F32 {
            top = t.declare_like(global, name, &format!("{loss}.cast_fp32"), DType::F32);
            t.edit.insert(at, cast(name, top, dtype, DType::F32, Role::FORWARD), "the loss in float32");
        }
        let plan = self.scaling();
        let mut cells = None;
        if plan.active {
            let made = declare_cells(&mut t, plan);
            let scaled = t.declare_like(global, name, &format!("{loss}.scaled"), DType::F32);
            t.edit.insert(at, made.scale_loss(top, scaled), "scales the loss");
            (cells, top) = (Some(made), scaled);
        }
        summary.merge(t.commit(PASS));
        *program = work;
        Ok(Decorated { loss: top, cells, report, summary })
    }

    fn scaling(&self) -> Plan {
        self.loss_scaling.plan(self.dtype.dtype())
    }

    /// Appends to main what stands between gradients and what uses them. Each gradient must be declared in the
    /// global block; the order is that of the checks.
    pub fn apply_gradients(
        &self,
        program: &mut Program,
        cells: Option<ScalingCells>,
        params_grads: &[(Name, Name)],
        cx: &PassCx<'_>,
    ) -> Result<Applied, PassError> {
        let global = program.global_block(Section::Main).ok_or_else(|| refused(&TrainError::NotTraining))?;
        let kinds = cx.ops.resolve(program);
        let mut work = program.clone();
        let low = self.dtype.dtype();
        let mut t = Typer::new(&mut work, low);
        for &(_, grad) in params_grads {
            if t.dtype(global, grad).is_none_or(|d| !t.castable(d)) {
                let name = program.name(grad).to_owned();
                return Err(refused(&TrainError::NoGradient { name }));
            }
        }
        let (mut narrowed, mut marked, norms) = (FxHashSet::default(), FxHashSet::default(), FxHashSet::default());
        let mut one = One {
            options: self,
            t: &mut t,
            kinds: &kinds,
            plan: self.scaling(),
            fixed: &|_| true,
            renamed: FxHashMap::default(),
            narrowed: &mut narrowed,
            marked: &mut marked,
            norms: &norms,
        };
        let mut trained = params_grads.to_vec();
        let at = At::End(global);
        one.master_grads(global, at, &mut trained);
        let (mut on_host, mut found) = (None, None);
        if let Some(cells) = cells.filter(|_| !trained.is_empty()) {
            (on_host, found) = one.unscale(global, at, cells, &trained, true, true);
        }
        let summary = t.commit(PASS);
        *program = work;
        Ok(Applied { params_grads: trained, found, found_on_host: on_host, summary })
    }
}
