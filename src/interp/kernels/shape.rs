//! Which ops give elements another shape? The reshaping ones beyond `reshape2`, and their gradients.
//!
//! `XShape` is a tensor without elements whose shape is 0 and then that of `X`; the gradients go by it.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Tensor, count, each};
use super::Kernel;
use super::transfer::{axis_of, offsets, slice_of, strides, transpose, x_shape};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("flatten_contiguous_range", flatten),
    ("squeeze2", squeeze),
    ("unsqueeze2", unsqueeze),
    ("reshape2_grad", restore),
    ("flatten_contiguous_range_grad", restore),
    ("squeeze2_grad", restore),
    ("unsqueeze2_grad", restore),
    ("transpose2_grad", transpose2_grad),
    ("slice_grad", slice_grad),
];

type Result<T> = std::result::Result<T, InterpError>;

/// Axes `start_axis` to `stop_axis` become one.
fn flatten(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let rank = x.shape().len();
    if rank == 0 {
        x_shape(cx, &x)?;
        let out = x.reshape(&[1])?;
        return cx.set("Out", out);
    }
    let start = axis_of(cx.attr_i64("start_axis", 1)?, rank, "start_axis")?;
    let stop = axis_of(cx.attr_i64("stop_axis", 1)?, rank, "stop_axis")?;
    if stop < start {
        return Err(Fault::BadAttr { name: "stop_axis".into(), what: format!("{stop} is before {start}") }.into());
    }
    let middle = count(&x.shape()[start..=stop])?;
    let shape = [&x.shape()[..start], &[middle], &x.shape()[stop + 1..]].concat();
    let out = x.reshape(&shape)?;
    x_shape(cx, &x)?;
    cx.set("Out", out)
}

/// Without the axes in `axes` that have one element; without `axes`, without all of them.
fn squeeze(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let rank = x.shape().len();
    let axes = cx.attr_ints("axes")?.unwrap_or_default();
    let mut named = vec![axes.is_empty(); rank];
    for a in axes {
        named[axis_of(a, rank, "axes")?] = true;
    }
    let shape: Vec<usize> = x.shape().iter().zip(named).filter(|&(&d, n)| !(n && d == 1)).map(|(&d, _)| d).collect();
    let out = x.reshape(&shape)?;
    x_shape(cx, &x)?;
    cx.set("Out", out)
}

/// With an axis of one element at each of `axes`, which count in the result, one after the other.
fn unsqueeze(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let axes = match cx.opt_input("AxesTensor")? {
        Some(t) => t.to_i64_vec(),
        None if !cx.input_names("AxesTensorList").is_empty() => {
            cx.inputs("AxesTensorList")?.iter().flat_map(Tensor::to_i64_vec).collect()
        }
        None => {
            let axes = cx.attr_ints("axes")?;
            cx.need("axes", axes)?
        }
    };
    let mut shape = x.shape().to_vec();
    for a in axes {
        shape.insert(axis_of(a, shape.len() + 1, "axes")?, 1);
        count(&shape)?;
    }
    let out = x.reshape(&shape)?;
    x_shape(cx, &x)?;
    cx.set("Out", out)
}

/// The shape that `XShape` tells of.
fn told(cx: &OpCx<'_, '_>) -> Result<Vec<usize>> {
    let x = cx.input("XShape")?;
    match x.shape().split_first() {
        Some((_, shape)) => Ok(shape.to_vec()),
        None => Err(shape_fault("XShape", &x, "where 0 and a shape are needed")),
    }
}

/// The gradient in the input's shape.
fn restore(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (shape, g) = (told(cx)?, cx.input("Out@GRAD")?);
    let out =
        g.reshape(&shape).map_err(|_| shape_fault("Out@GRAD", &g, format!("does not have the size of {shape:?}")))?;
    cx.set("X@GRAD", out)
}

fn transpose2_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let g = cx.input("Out@GRAD")?;
    let axis = cx.attr_ints("axis")?;
    let perm = super::transfer::order(&cx.need("axis", axis)?, g.shape().len())?;
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    let out = transpose(&g, &back)?;
    cx.set("X@GRAD", out)
}

/// Zeros, with the gradient where the slice was.
fn slice_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, g) = (cx.input("Input")?, cx.input("Out@GRAD")?);
    let (shape, start) = slice_of(cx, &x)?;
    let wanted = count(&shape)?;
    if wanted != g.len() {
        return Err(shape_fault("Out@GRAD", &g, format!("where {shape:?} is needed")));
    }
    cx.room(g.dtype(), x.shape())?;
    let at = offsets(&shape, &strides(x.shape()), start);
    let out = each!(g.data(), v => {
        let mut out = vec![Default::default(); x.len()];
        at.iter().zip(v).for_each(|(&at, &v)| out[at] = v);
        Tensor::new(x.shape(), out)?
    });
    cx.set("Input@GRAD", out)
}
