//! Which ops put tensors together and take them apart? split, stack, unbind, tile and gradients.
//!
//! A tensor is seen along one axis: `outer` rows of `len` items of `inner` elements each.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Tensor, each};
use super::Kernel;
use super::real::{Real, real};
use super::transfer::{axis_of, offsets, permute, strides};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("coalesce_tensor", coalesce),
    ("concat_grad", concat_grad),
    ("split", split),
    ("stack", stack),
    ("stack_grad", stack_grad),
    ("unbind", unbind),
    ("tile", tile),
    ("tile_grad", tile_grad),
];

type Result<T> = std::result::Result<T, InterpError>;

/// The part of `x` with items `from` to `to` of an axis, in the given shape.
fn part(x: &Tensor, axis: usize, from: usize, to: usize, shape: &[usize]) -> Result<Tensor> {
    let outer: usize = x.shape()[..axis].iter().product();
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    Ok(each!(x.data(), v => {
        let mut out = v[..0].to_vec();
        (0..outer).for_each(|o| out.extend_from_slice(&v[(o * len + from) * inner..(o * len + to) * inner]));
        Tensor::new(shape, out)?
    }))
}

/// Parts of these lengths, one after the other; the lengths must sum up to the axis.
fn parts(x: &Tensor, slot: &str, axis: usize, lens: &[usize]) -> Result<Vec<Tensor>> {
    let sum = lens.iter().try_fold(0usize, |s, &n| s.checked_add(n));
    if sum != Some(x.shape()[axis]) {
        return Err(shape_fault(slot, x, format!("does not split into {lens:?} along axis {axis}")));
    }
    let (mut shape, mut at) = (x.shape().to_vec(), 0);
    let each = lens.iter().map(|&n| {
        shape[axis] = n;
        at += n;
        part(x, axis, at - n, at, &shape)
    });
    each.collect()
}

fn axis_attr(cx: &OpCx<'_, '_>, rank: usize) -> Result<usize> {
    let axis = match cx.opt_input("AxisTensor")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_i64_vec()[0],
        None => cx.attr_i64("axis", 0)?,
    };
    axis_of(axis, rank, "axis")
}

/// `Output` i is `Input` i, and `FusedOutput` all of them in a row. In Paddle the outputs lie in the memory
/// of `FusedOutput`; cells here share none, so a program that reads `FusedOutput` is refused.
fn coalesce(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let xs = cx.inputs("Input")?;
    let unsupported = |what: &str| InterpError::from(Fault::Unsupported { what: what.into() });
    if !cx.attr_bool("copy_data", false)? {
        return Err(unsupported("coalesce_tensor without copy_data"));
    }
    let Some(first) = xs.first() else { return Err(Fault::MissingSlot { slot: "Input".into() }.into()) };
    if let Some(x) = xs.iter().find(|x| x.dtype() != first.dtype()) {
        return Err(dtype_fault("Input", x, format!("beside {}", first.dtype())));
    }
    let fused = cx.output_names("FusedOutput");
    let p = cx.program();
    let reads = |name| {
        let blocks = crate::ir::Section::ALL.into_iter().flat_map(|s| p.section_blocks(s));
        let mut ops = blocks.flat_map(|b| p.ops(b));
        ops.any(|op| op.inputs().any(|s| s.args.contains(name)))
    };
    if fused.iter().any(reads) {
        return Err(unsupported("coalesce_tensor whose FusedOutput is read"));
    }
    let lens: Vec<usize> = xs.iter().map(Tensor::len).collect();
    let total = lens.iter().sum();
    cx.room(first.dtype(), &[total])?;
    let whole = super::transfer::join(&xs, 1, &lens, &[total])?;
    cx.set_all("Output", xs)?;
    cx.set("FusedOutput", whole)
}

/// The gradients of what was joined; an input may want none.
fn concat_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (xs, g) = (cx.inputs("X")?, cx.input("Out@GRAD")?);
    let axis = axis_attr(cx, g.shape().len())?;
    if let Some(x) = xs.iter().find(|x| x.shape().len() != g.shape().len()) {
        return Err(shape_fault("X", x, format!("does not fit a gradient of {:?}", g.shape())));
    }
    let lens: Vec<usize> = xs.iter().map(|x| x.shape()[axis]).collect();
    let parts = parts(&g, "Out@GRAD", axis, &lens)?;
    cx.set_all("X@GRAD", parts)
}

/// Into the lengths of `sections` (one may be -1) or into `num` equal parts.
fn split(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let axis = axis_attr(cx, x.shape().len())?;
    let dim = x.shape()[axis];
    let sections = match cx.input_names("SectionsTensorList").is_empty() {
        true => cx.attr_ints("sections")?.unwrap_or_default(),
        false => cx.inputs("SectionsTensorList")?.iter().flat_map(Tensor::to_i64_vec).collect(),
    };
    let bad = |what: String| InterpError::from(Fault::BadAttr { name: "sections".into(), what });
    let lens: Vec<usize> = if sections.is_empty() {
        let num = usize::try_from(cx.attr_i64("num", 0)?).unwrap_or(0);
        if num == 0 || dim % num != 0 || num != cx.output_names("Out").len() {
            return Err(shape_fault("X", &x, format!("does not split into {num} equal parts along axis {axis}")));
        }
        vec![dim / num; num]
    } else {
        let known: i64 = sections.iter().filter(|&&s| s >= 0).fold(0, |a, &b| a.saturating_add(b));
        let open = sections.iter().filter(|&&s| s < 0).count();
        if open > 1 || sections.iter().any(|&s| s < -1) {
            return Err(bad(format!("{sections:?}")));
        }
        let length = |&s: &i64| usize::try_from(if s < 0 { dim as i64 - known } else { s });
        sections.iter().map(length).collect::<std::result::Result<_, _>>().map_err(|_| bad(format!("{sections:?}")))?
    };
    let parts = parts(&x, "X", axis, &lens)?;
    cx.set_all("Out", parts)
}

/// Equal shapes along a new axis.
fn stack(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let xs = cx.inputs("X")?;
    let Some(first) = xs.first() else { return Err(Fault::MissingSlot { slot: "X".into() }.into()) };
    let axis = axis_of(cx.attr_i64("axis", 0)?, first.shape().len() + 1, "axis")?;
    for x in &xs {
        if x.shape() != first.shape() {
            return Err(shape_fault("X", x, format!("beside {:?}", first.shape())));
        }
        if x.dtype() != first.dtype() {
            return Err(dtype_fault("X", x, format!("beside {}", first.dtype())));
        }
    }
    let mut shape = first.shape().to_vec();
    shape.insert(axis, xs.len());
    cx.room(first.dtype(), &shape)?;
    // As a concatenation of [outer, 1, inner] tensors.
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let out = super::transfer::join(&xs, outer, &vec![inner; xs.len()], &shape)?;
    cx.set("Y", out)
}

/// The slices of `x` along an axis, without it.
fn slices(x: &Tensor, axis: usize, n: usize, slot: &str) -> Result<Vec<Tensor>> {
    if x.shape()[axis] != n {
        return Err(shape_fault(slot, x, format!("for {n} tensors along axis {axis}")));
    }
    let mut shape = x.shape().to_vec();
    shape.remove(axis);
    (0..n).map(|i| part(x, axis, i, i + 1, &shape)).collect()
}

fn stack_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let g = cx.input("Y@GRAD")?;
    let axis = axis_of(cx.attr_i64("axis", 0)?, g.shape().len(), "axis")?;
    let parts = slices(&g, axis, cx.output_names("X@GRAD").len(), "Y@GRAD")?;
    cx.set_all("X@GRAD", parts)
}

fn unbind(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let axis = axis_of(cx.attr_i64("axis", 0)?, x.shape().len(), "axis")?;
    let parts = slices(&x, axis, cx.output_names("Out").len(), "X")?;
    cx.set_all("Out", parts)
}

/// How a tensor repeats: the result's shape, and for each of its elements the source.
fn repeats(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<(Vec<usize>, Vec<usize>)> {
    let times = match cx.opt_input("RepeatTimes")? {
        Some(t) => t.to_i64_vec(),
        None if !cx.input_names("repeat_times_tensor").is_empty() => {
            cx.inputs("repeat_times_tensor")?.iter().flat_map(Tensor::to_i64_vec).collect()
        }
        None => cx.attr_ints("repeat_times")?.unwrap_or_default(),
    };
    let bad = || Fault::BadAttr { name: "repeat_times".into(), what: format!("{times:?}") };
    let rank = times.len().max(x.shape().len());
    let own = [vec![1; rank - x.shape().len()], x.shape().to_vec()].concat();
    let by: Vec<usize> =
        times.iter().map(|&t| usize::try_from(t)).collect::<std::result::Result<_, _>>().map_err(|_| bad())?;
    let by = [vec![1; rank - by.len()], by].concat();
    // Each axis as (repeat, item): the repeat moves nothing.
    let (mut wide, mut step, own_step) = (Vec::new(), Vec::new(), strides(&own));
    for i in 0..rank {
        wide.extend([by[i], own[i]]);
        step.extend([0, own_step[i]]);
    }
    let shape: Vec<usize> =
        own.iter().zip(&by).map(|(&a, &b)| a.checked_mul(b)).collect::<Option<_>>().ok_or_else(bad)?;
    cx.room(crate::ir::DType::F64, &shape)?;
    let at = if x.is_empty() { Vec::new() } else { offsets(&wide, &step, 0) };
    Ok((shape, at))
}

fn tile(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let (shape, at) = repeats(cx, &x)?;
    let out = permute(&x, &shape, &at)?;
    cx.set("Out", out)
}

/// The sum over the repeats, in float64.
fn tile_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, g) = (cx.input("X")?, super::lanes::float_input(cx, "Out@GRAD")?);
    let (shape, at) = repeats(cx, &x)?;
    if at.len() != g.len() {
        return Err(shape_fault("Out@GRAD", &g, format!("where {shape:?} is needed")));
    }
    let out = real!(g.dtype(), T => {
        let mut sum = vec![0.0; x.len()];
        at.iter().zip(T::read(&g).iter()).for_each(|(&at, &g)| sum[at] += g.wide());
        f64::tensor(sum, g.dtype(), x.shape())?
    });
    cx.set("X@GRAD", out)
}
