//! How do gradients of elementwise ops flow? Element by element in float32 or float64, then summed (in
//! float64, index order) over the axes along which an operand was stretched.

use super::super::context::{OpCx, shape_fault};
use super::super::error::InterpError;
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{Lanes, float_input, from_f32, same_dtype};
use super::math::{Broadcast, broadcast};
use super::real::{Real, real, wide};
use super::transfer::strides;
use super::walk::Walk;
use crate::ir::DType;

/// An expression in float32 and in float64.
macro_rules! both {
    (|$($arg:ident),*| $e:expr) => {
        (|$($arg: f32),*| -> f32 { $e }, |$($arg: f64),*| -> f64 { $e })
    };
}

pub(super) use both;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("elementwise_add_grad", |cx| binary(cx, Needs::Nothing, both!(|_x, _y, g| g), both!(|_x, _y, g| g))),
    ("elementwise_sub_grad", |cx| binary(cx, Needs::Shapes, both!(|_x, _y, g| g), both!(|_x, _y, g| -g))),
    ("elementwise_mul_grad", |cx| binary(cx, Needs::Values, both!(|_x, y, g| g * y), both!(|x, _y, g| g * x))),
    ("elementwise_div_grad", |cx| {
        binary(cx, Needs::Values, both!(|_x, y, g| g / y), both!(|x, y, g| -g * (x / y) / y))
    }),
    ("elementwise_pow_grad", |cx| {
        binary(cx, Needs::Values, both!(|x, y, g| g * y * x.powf(y - 1.0)), both!(|x, y, g| g * x.ln() * x.powf(y)))
    }),
    ("elementwise_max_grad", |cx| {
        binary(
            cx,
            Needs::Values,
            both!(|x, y, g| if x > y { g } else { 0.0 }),
            both!(|x, y, g| if x > y { 0.0 } else { g }),
        )
    }),
    ("elementwise_min_grad", |cx| {
        binary(
            cx,
            Needs::Values,
            both!(|x, y, g| if x < y { g } else { 0.0 }),
            both!(|x, y, g| if x < y { 0.0 } else { g }),
        )
    }),
    ("relu_grad", |cx| unary(cx, "Out", both!(|o, g| if o > 0.0 { g } else { 0.0 }))),
    ("tanh_grad", |cx| unary(cx, "Out", both!(|o, g| g * (1.0 - o * o)))),
    ("sigmoid_grad", |cx| unary(cx, "Out", both!(|o, g| g * o * (1.0 - o)))),
    ("exp_grad", |cx| unary(cx, "Out", both!(|o, g| g * o))),
    ("sqrt_grad", |cx| unary(cx, "Out", both!(|o, g| g * 0.5 / o))),
    ("log_grad", |cx| unary(cx, "X", both!(|x, g| g / x))),
    ("square_grad", |cx| unary(cx, "X", both!(|x, g| g * 2.0 * x))),
    ("abs_grad", |cx| {
        unary(
            cx,
            "X",
            both!(|x, g| if x > 0.0 {
                g
            } else if x < 0.0 {
                -g
            } else {
                0.0
            }),
        )
    }),
];

/// What the gradient looks at besides the output's gradient.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// the gradient itself
    Nothing,
    Shapes,
    Values,
}

fn binary(
    cx: &mut OpCx<'_, '_>,
    needs: Needs,
    dx: (impl Fn(f32, f32, f32) -> f32, impl Fn(f64, f64, f64) -> f64),
    dy: (impl Fn(f32, f32, f32) -> f32, impl Fn(f64, f64, f64) -> f64),
) -> Result<(), InterpError> {
    let (x, y, g) = (cx.input("X")?, cx.input("Y")?, float_input(cx, "Out@GRAD")?);
    if needs == Needs::Values {
        same_dtype("X", &x, "Out@GRAD", g.dtype())?;
        same_dtype("Y", &y, "Out@GRAD", g.dtype())?;
    }
    let b = broadcast(cx, &x, &y)?;
    if g.shape() != b.shape {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} is needed", b.shape)));
    }
    let parts = Parts { x: &x, y: &y, g: &g, b: &b };
    if cx.wants("X@GRAD") {
        let out = parts.grad(&x, &b.x, needs, dx)?;
        cx.set("X@GRAD", out)?;
    }
    if cx.wants("Y@GRAD") {
        let out = parts.grad(&y, &b.y, needs, dy)?;
        cx.set("Y@GRAD", out)?;
    }
    Ok(())
}

struct Parts<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
    g: &'a Tensor,
    b: &'a Broadcast,
}

impl Parts<'_> {
    /// The gradient of one operand, whose strides are `of`: element by element, and summed in float64 where
    /// it was stretched.
    fn grad(
        &self,
        operand: &Tensor,
        of: &[usize],
        needs: Needs,
        (f32s, f64s): (impl Fn(f32, f32, f32) -> f32, impl Fn(f64, f64, f64) -> f64),
    ) -> Result<Tensor, InterpError> {
        if needs == Needs::Nothing {
            if operand.shape() == self.g.shape() {
                return Ok(self.g.clone());
            }
            return real!(self.g.dtype(), T => self.sum(operand, of, &T::read(self.g)));
        }
        match self.g.dtype() {
            DType::F64 => self.of(operand, of, self.each::<f64>(needs, f64s)),
            _ => self.of(operand, of, self.each::<f32>(needs, f32s)),
        }
    }

    fn each<T: Real>(&self, needs: Needs, f: impl Fn(T, T, T) -> T) -> Vec<T> {
        let g = T::read(self.g);
        if needs == Needs::Shapes {
            return g.iter().map(|&g| f(T::ZERO, T::ZERO, g)).collect();
        }
        let (x, y) = (T::read(self.x), T::read(self.y));
        let mut out = Vec::with_capacity(g.len());
        self.b.walk().runs(|r| {
            let at = out.len();
            let run = g[at..at + r.len].iter().enumerate();
            out.extend(run.map(|(k, &g)| f(x[r.a + k * r.step.0], y[r.b + k * r.step.1], g)));
        });
        out
    }

    fn of<T: Real>(&self, operand: &Tensor, of: &[usize], each: Vec<T>) -> Result<Tensor, InterpError> {
        match operand.shape() == self.g.shape() {
            true => T::tensor(each, self.g.dtype(), operand.shape()),
            false => self.sum(operand, of, &each),
        }
    }

    fn sum<T: Real>(&self, operand: &Tensor, of: &[usize], each: &[T]) -> Result<Tensor, InterpError> {
        let mut sum = vec![0.0f64; operand.len()];
        Walk::new(&self.b.shape, of, &strides(&self.b.shape)).runs(|r| {
            let each = &each[r.b..r.b + r.len];
            match r.step.0 {
                0 => sum[r.a] = each.iter().fold(sum[r.a], |s, e| s + e.wide()),
                1 => wide(|| sum[r.a..r.a + r.len].iter_mut().zip(each).for_each(|(s, e)| *s += e.wide())),
                step => each.iter().enumerate().for_each(|(k, e)| sum[r.a + k * step] += e.wide()),
            }
        });
        from_f64(sum, self.g.dtype(), operand.shape())
    }
}

/// float64 results, rounded once to float64, or by way of float32 to a narrower type.
pub(super) fn from_f64(v: Vec<f64>, dtype: DType, shape: &[usize]) -> Result<Tensor, InterpError> {
    match dtype {
        DType::F64 => Lanes::F64(v).tensor(dtype, shape),
        _ => from_f32(v.into_iter().map(|x| x as f32).collect(), dtype, shape),
    }
}

/// A gradient that is a function of `X` or `Out` (the slot `by`) and of the output's gradient.
pub(super) fn unary(
    cx: &mut OpCx<'_, '_>,
    by: &str,
    (f32s, f64s): (impl Fn(f32, f32) -> f32, impl Fn(f64, f64) -> f64),
) -> Result<(), InterpError> {
    let (v, g) = (cx.input(by)?, float_input(cx, "Out@GRAD")?);
    same_dtype(by, &v, "Out@GRAD", g.dtype())?;
    if v.shape() != g.shape() {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} is needed", v.shape())));
    }
    let out = match g.dtype() {
        DType::F64 => {
            let out = wide(|| f64::read(&v).iter().zip(f64::read(&g).iter()).map(|(&v, &g)| f64s(v, g)).collect());
            from_f64(out, DType::F64, g.shape())?
        }
        dtype => {
            let out = wide(|| f32::read(&v).iter().zip(f32::read(&g).iter()).map(|(&v, &g)| f32s(v, g)).collect());
            from_f32(out, dtype, g.shape())?
        }
    };
    cx.set("X@GRAD", out)
}
