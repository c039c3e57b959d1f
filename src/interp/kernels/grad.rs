//! How do gradients of elementwise ops flow? Element by element in float32 or float64, then summed (in
//! float64, index order) over the axes along which an operand was stretched.

use super::super::context::{OpCx, shape_fault};
use super::super::error::InterpError;
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{Lanes, float_input, from_f32, same_dtype};
use super::math::{Broadcast, broadcast};
use crate::ir::DType;

/// An expression in float32 and in float64.
macro_rules! both {
    (|$($arg:ident),*| $e:expr) => {
        (|$($arg: f32),*| -> f32 { $e }, |$($arg: f64),*| -> f64 { $e })
    };
}

pub(super) use both;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("elementwise_add_grad", |cx| binary(cx, Needs::Shapes, both!(|_x, _y, g| g), both!(|_x, _y, g| g))),
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

/// Whether the gradient looks at the operands' values or only at their shapes.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
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
        let out = parts.grad(&x, &b.x, dx)?;
        cx.set("X@GRAD", out)?;
    }
    if cx.wants("Y@GRAD") {
        let out = parts.grad(&y, &b.y, dy)?;
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
    /// The gradient of one operand, whose offsets are `of`.
    fn grad(
        &self,
        operand: &Tensor,
        of: &Option<Vec<usize>>,
        (f32s, f64s): (impl Fn(f32, f32, f32) -> f32, impl Fn(f64, f64, f64) -> f64),
    ) -> Result<Tensor, InterpError> {
        let Parts { x, y, g, b } = *self;
        let (n, dtype) = (g.len(), g.dtype());
        let each: Vec<f64> = if dtype == DType::F64 {
            let (x, y, g) = (x.to_f64_vec(), y.to_f64_vec(), g.to_f64_vec());
            (0..n).map(|i| f64s(x[Broadcast::at(&b.x, i)], y[Broadcast::at(&b.y, i)], g[i])).collect()
        } else {
            let (x, y, g) = (x.to_f32_vec(), y.to_f32_vec(), g.to_f32_vec());
            let each = (0..n).map(|i| f32s(x[Broadcast::at(&b.x, i)], y[Broadcast::at(&b.y, i)], g[i]));
            if of.is_none() {
                return from_f32(each.collect(), dtype, operand.shape());
            }
            each.map(f64::from).collect()
        };
        let each = match of {
            None => each,
            Some(offsets) => {
                let mut sum = vec![0.0; operand.len()];
                offsets.iter().zip(each).for_each(|(&at, v)| sum[at] += v);
                sum
            }
        };
        from_f64(each, dtype, operand.shape())
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
            let out = v.to_f64_vec().into_iter().zip(g.to_f64_vec()).map(|(v, g)| f64s(v, g)).collect();
            from_f64(out, DType::F64, g.shape())?
        }
        dtype => {
            let out = v.to_f32_vec().into_iter().zip(g.to_f32_vec()).map(|(v, g)| f32s(v, g)).collect();
            from_f32(out, dtype, g.shape())?
        }
    };
    cx.set("X@GRAD", out)
}
