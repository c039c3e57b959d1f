//! How is a loss scaled, and how are its gradients unscaled and checked?
//!
//! The ops and their attributes are those of PaddlePaddle 2.6.2 (`static/amp/decorator.py`, `amp_nn.py`). They need
//! no differentiation: whoever has parameters and their gradients can append them.

use crate::ir::{Attr, AttrValue, DType, NewOp, Role, VarDef, VarFlag};
use crate::names::{Name, sym};
use serde::{Deserialize, Serialize};

/// How the loss is scaled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScaling {
    /// the scale at the start
    pub init: f32,
    /// whether it is adapted; without a value it is for float16 and not for bfloat16
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<bool>,
    /// steps with finite gradients in a row before it grows
    pub incr_every_n_steps: i32,
    /// steps with infinite gradients before it shrinks
    pub decr_every_n_nan_or_inf: i32,
    /// by what it grows
    pub incr_ratio: f32,
    /// by what it shrinks
    pub decr_ratio: f32,
}

impl Default for LossScaling {
    /// The defaults of PaddlePaddle 2.6.2's `decorate(level=…)`.
    fn default() -> Self {
        LossScaling {
            init: 65536.0,
            dynamic: None,
            incr_every_n_steps: 2000,
            decr_every_n_nan_or_inf: 1,
            incr_ratio: 2.0,
            decr_ratio: 0.5,
        }
    }
}

impl LossScaling {
    /// The defaults of the older `decorate(use_pure_fp16=…)`.
    pub fn legacy() -> Self {
        LossScaling {
            init: 32768.0,
            dynamic: Some(true),
            incr_every_n_steps: 1000,
            decr_every_n_nan_or_inf: 2,
            incr_ratio: 2.0,
            decr_ratio: 0.8,
        }
    }

    /// No scaling.
    pub fn none() -> Self {
        LossScaling { init: 1.0, dynamic: Some(false), ..LossScaling::default() }
    }

    /// What is done for a 16-bit type: a scale that is not adapted and 1 is none, and for bfloat16 asking for an
    /// adapted one gives that.
    pub fn plan(&self, low: DType) -> Plan {
        let wanted = self.dynamic.unwrap_or(low == DType::F16);
        let init = if wanted && low == DType::BF16 { 1.0 } else { self.init };
        let dynamic = wanted && low == DType::F16;
        Plan { active: dynamic || init != 1.0, dynamic, init }
    }
}

/// What a [`LossScaling`] comes to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// whether the loss is multiplied at all
    pub active: bool,
    /// whether the scale is adapted
    pub dynamic: bool,
    /// the scale at the start
    pub init: f32,
}

/// The storage cells of loss scaling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScalingCells {
    /// the scale, float32 `[1]`
    pub scale: Name,
    /// steps with finite gradients since the last change, and with others, int32 `[1]`; only when it is adapted
    pub steps: Option<(Name, Name)>,
}

fn common(op: NewOp, role: Role) -> NewOp {
    let mut op = op.attr(sym::OP_DEVICE, "").attr(sym::OP_ROLE, role.0);
    op.attrs.push(Attr { name: sym::OP_ROLE_VAR, value: AttrValue::Strings(Box::new([])), raw: None });
    op.attr(sym::WITH_QUANT_ATTR, false)
}

impl ScalingCells {
    /// The declarations, as both programs hold them.
    pub fn declarations(&self) -> Vec<VarDef> {
        let cell = |name, dtype| VarDef::persistable(name, dtype, [1]).with(VarFlag::StopGradient, true);
        let mut out = vec![cell(self.scale, DType::F32)];
        out.extend(self.steps.iter().flat_map(|&(g, b)| [cell(g, DType::I32), cell(b, DType::I32)]));
        out
    }

    /// The ops of startup.
    pub fn initialisers(&self, plan: Plan) -> Vec<NewOp> {
        let fill = |name: Name, dtype: DType, value: f32| {
            let op = NewOp::new(sym::FILL_CONSTANT)
                .output(sym::OUT, [name])
                .attr(sym::DTYPE, dtype)
                .attr(sym::FORCE_CPU, false)
                .attr(sym::PLACE_TYPE, -1)
                .attr(sym::SHAPE, AttrValue::Longs(Box::new([1])))
                .attr(sym::STR_VALUE, format!("{value:?}").as_str())
                .attr(sym::USE_MKLDNN, false)
                .attr(sym::VALUE, value);
            common(op, Role::FORWARD)
        };
        let mut out = vec![fill(self.scale, DType::F32, plan.init)];
        out.extend(self.steps.iter().flat_map(|&(g, b)| [fill(g, DType::I32, 0.0), fill(b, DType::I32, 0.0)]));
        out
    }

    /// `scaled = loss * scale`, a float32 loss.
    pub fn scale_loss(&self, loss: Name, scaled: Name) -> NewOp {
        let op = NewOp::new(sym::ELEMENTWISE_MUL)
            .input(sym::X, [loss])
            .input(sym::Y, [self.scale])
            .output(sym::OUT, [scaled])
            .attr(sym::AXIS, -1)
            .attr(sym::USE_MKLDNN, false);
        common(op, Role::LOSS)
    }

    /// The gradient of the loss from that of the scaled loss.
    pub fn scale_loss_grad(&self, loss: Name, scaled_grad: Name, loss_grad: Name) -> NewOp {
        let op = NewOp::new(sym::ELEMENTWISE_MUL_GRAD)
            .input(sym::OUT_GRAD, [scaled_grad])
            .input(sym::X, [loss])
            .input(sym::Y, [self.scale])
            .output(sym::X_GRAD, [loss_grad])
            .output(sym::Y_GRAD, [])
            .attr(sym::AXIS, -1)
            .attr(sym::USE_MKLDNN, false);
        common(op, Role::BACKWARD)
    }

    /// Divides gradients of one dtype by the scale in place, and tells whether one is not finite.
    pub fn check(&self, grads: &[(Name, String)], found: Name) -> NewOp {
        let names: Vec<Name> = grads.iter().map(|g| g.0).collect();
        let op = NewOp::new(sym::CHECK_FINITE_AND_UNSCALE)
            .input(sym::SCALE_IN, [self.scale])
            .input(sym::X, names.clone())
            .output(sym::FOUND_INFINITE, [found])
            .output(sym::OUT, names);
        let mut op = common(op, Role::OPTIMIZE);
        let texts = AttrValue::Strings(grads.iter().map(|g| g.1.as_str().into()).collect());
        op.attrs.iter_mut().filter(|a| a.name == sym::OP_ROLE_VAR).for_each(|a| a.value = texts.clone());
        op
    }

    /// Adapts the scale, and zeroes gradients of which one is not finite. Only the first such op of a step
    /// adapts it; `again` is true of the others. `None` when the scale is fixed.
    pub fn update(&self, options: &LossScaling, grads: Vec<Name>, found: Name, again: bool) -> Option<NewOp> {
        let (good, bad) = self.steps?;
        let op = NewOp::new(sym::UPDATE_LOSS_SCALING)
            .input(sym::FOUND_INFINITE, [found])
            .input(sym::IN_BAD_STEPS, [bad])
            .input(sym::IN_GOOD_STEPS, [good])
            .input(sym::PREV_LOSS_SCALING, [self.scale])
            .input(sym::STOP_UPDATE, [])
            .input(sym::X, grads.clone())
            .output(sym::LOSS_SCALING, [self.scale])
            .output(sym::OUT, grads)
            .output(sym::OUT_BAD_STEPS, [bad])
            .output(sym::OUT_GOOD_STEPS, [good])
            .attr(sym::DECR_EVERY_N_NAN_OR_INF, options.decr_every_n_nan_or_inf)
            .attr(sym::DECR_RATIO, options.decr_ratio)
            .attr(sym::INCR_EVERY_N_STEPS, options.incr_every_n_steps)
            .attr(sym::INCR_RATIO, options.incr_ratio)
            .attr(sym::ATTR_STOP_UPDATE, again);
        Some(common(op, Role::OPTIMIZE))
    }
}

/// `out` is true when one of `found` is, by way of `joined`.
pub fn any_found(found: Vec<Name>, joined: Name, out: Name) -> [NewOp; 2] {
    let concat = NewOp::new(sym::CONCAT)
        .input(sym::AXIS_TENSOR, [])
        .input(sym::X, found)
        .output(sym::OUT, [joined])
        .attr(sym::AXIS, 0)
        .attr(sym::USE_MKLDNN, false);
    let any = NewOp::new(sym::REDUCE_ANY)
        .input(sym::X, [joined])
        .output(sym::OUT, [out])
        .attr(sym::DIM, AttrValue::Longs(Box::new([])))
        .attr(sym::IN_DTYPE, -1)
        .attr(sym::KEEP_DIM, false)
        .attr(sym::OUT_DTYPE, -1)
        .attr(sym::REDUCE_ALL, true)
        .attr(sym::USE_MKLDNN, false);
    [common(concat, Role::OPTIMIZE), common(any, Role::OPTIMIZE)]
}

/// A copy in host memory, where Adam and AdamW look.
pub fn to_host(found: Name, out: Name) -> NewOp {
    let op = NewOp::new(sym::MEMCPY).input(sym::X, [found]).output(sym::OUT, [out]).attr(sym::DST_PLACE_TYPE, 0);
    common(op, Role::OPTIMIZE)
}
