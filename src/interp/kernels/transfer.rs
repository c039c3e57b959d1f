//! How do values move without new ones being computed? Copies, casts, shapes, slices.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Tensor, each};
use super::Kernel;
use super::lanes::{Lanes, lanes};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("assign", assign),
    ("memcpy", assign),
    ("memcpy_d2h", assign),
    ("memcpy_h2d", assign),
    ("share_data", assign),
    ("cast", cast),
    ("scale", scale),
    ("concat", concat),
    ("reshape2", reshape2),
    ("reshape", reshape2),
    ("transpose2", transpose2),
    ("transpose", transpose2),
    ("slice", slice),
    ("shape", shape),
    ("select_input", select_input),
];

fn assign(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    cx.set("Out", x)
}

/// `cast` goes by the value's own dtype; `in_dtype` is not looked at (Paddle writes a wrong one on the
/// casts that seed masters).
fn cast(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let to = cx.attr_dtype("out_dtype")?;
    let to = cx.need("out_dtype", to)?;
    let x = cx.input("X")?;
    cx.room(to, x.shape())?;
    let out = x.cast(to, cx.options().narrowing)?;
    cx.set("Out", out)
}

fn scale(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let by = match cx.opt_input("ScaleTensor")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_f32_vec()[0],
        None => cx.attr_f32("scale", 1.0)?,
    };
    let (bias, after) = (cx.attr_f32("bias", 0.0)?, cx.attr_bool("bias_after_scale", true)?);
    let out = match lanes(&x) {
        Lanes::F32(v) if after => Lanes::F32(v.into_iter().map(|x| x * by + bias).collect()),
        Lanes::F32(v) => Lanes::F32(v.into_iter().map(|x| (x + bias) * by).collect()),
        Lanes::F64(v) if after => Lanes::F64(v.into_iter().map(|x| x * f64::from(by) + f64::from(bias)).collect()),
        Lanes::F64(v) => Lanes::F64(v.into_iter().map(|x| (x + f64::from(bias)) * f64::from(by)).collect()),
        // As in Paddle, an integer tensor takes integer scale and bias.
        Lanes::Int(v) => {
            let (by, bias) = (by as i64, bias as i64);
            let f = |x: i64| match after {
                true => x.wrapping_mul(by).wrapping_add(bias),
                false => x.wrapping_add(bias).wrapping_mul(by),
            };
            Lanes::Int(v.into_iter().map(f).collect())
        }
    };
    let out = out.tensor(x.dtype(), x.shape())?;
    cx.set("Out", out)
}

/// An axis that may count from the end.
pub(super) fn axis_of(axis: i64, rank: usize, name: &str) -> Result<usize, InterpError> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(at)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| Fault::BadAttr { name: name.to_owned(), what: format!("{axis} with {rank} dimensions") }.into())
}

fn concat(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let xs = cx.inputs("X")?;
    let Some(first) = xs.first() else { return Err(Fault::MissingSlot { slot: "X".into() }.into()) };
    let axis = match cx.opt_input("AxisTensor")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_i64_vec()[0],
        None => cx.attr_i64("axis", 0)?,
    };
    let axis = axis_of(axis, first.shape().len(), "axis")?;
    let mut shape = first.shape().to_vec();
    shape[axis] = 0;
    for x in &xs {
        let fits = x.shape().len() == shape.len() && (0..shape.len()).all(|i| i == axis || x.shape()[i] == shape[i]);
        if !fits {
            return Err(shape_fault("X", x, format!("does not fit {:?} along axis {axis}", first.shape())));
        }
        if x.dtype() != first.dtype() {
            return Err(dtype_fault("X", x, format!("beside {}", first.dtype())));
        }
        shape[axis] = shape[axis].saturating_add(x.shape()[axis]);
    }
    cx.room(first.dtype(), &shape)?;
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let lens: Vec<usize> = xs.iter().map(|x| x.shape()[axis] * inner).collect();
    let out = join(&xs, outer, &lens, &shape)?;
    cx.set("Out", out)
}

/// Tensors of one dtype side by side: `outer` rows, to each of which tensor i brings `lens[i]` elements.
pub(super) fn join(xs: &[Tensor], outer: usize, lens: &[usize], shape: &[usize]) -> Result<Tensor, InterpError> {
    Ok(each!(xs[0].data(), v => {
        let mut out = v[..0].to_vec();
        for o in 0..outer {
            for (x, n) in xs.iter().zip(lens) {
                gather(&mut out, x, o * n..(o + 1) * n);
            }
        }
        Tensor::new(shape, out)?
    }))
}

/// Element vectors, so that code over [`each!`] can pick from another tensor of the same dtype.
trait Pick: Sized + Copy {
    fn of(t: &Tensor) -> Option<&[Self]>;
}
macro_rules! pick {
    ($($t:ty => $variant:ident),*) => {$(
        impl Pick for $t {
            fn of(t: &Tensor) -> Option<&[Self]> {
                match t.data() {
                    super::super::tensor::Data::$variant(v) => Some(v),
                    _ => None,
                }
            }
        }
    )*};
}
pick!(bool => Bool, u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, half::f16 => F16, half::bf16 => BF16,
    f32 => F32, f64 => F64);

fn gather<T: Pick>(out: &mut Vec<T>, from: &Tensor, range: std::ops::Range<usize>) {
    if let Some(v) = T::of(from) {
        out.extend_from_slice(&v[range]);
    }
}

/// Elements in the order of `index`, in another shape.
pub(super) fn permute(x: &Tensor, shape: &[usize], index: &[usize]) -> Result<Tensor, InterpError> {
    Ok(each!(x.data(), v => Tensor::new(shape, index.iter().map(|&i| v[i]).collect::<Vec<_>>())?))
}

/// `reshape2`: 0 keeps a dimension, one -1 is inferred. `XShape` gets an empty tensor whose shape is
/// 0 and then that of `X`.
fn reshape2(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let dims = match cx.opt_input("Shape")? {
        Some(t) => t.to_i64_vec(),
        None if !cx.input_names("ShapeTensor").is_empty() => {
            cx.inputs("ShapeTensor")?.iter().flat_map(Tensor::to_i64_vec).collect()
        }
        None => {
            let dims = cx.attr_ints("shape")?;
            cx.need("shape", dims)?
        }
    };
    let bad = || shape_fault("X", &x, format!("cannot be reshaped to {dims:?}"));
    let mut shape = Vec::with_capacity(dims.len());
    let mut infer = None;
    for (i, &d) in dims.iter().enumerate() {
        match d {
            -1 if infer.is_none() => {
                infer = Some(i);
                shape.push(1);
            }
            0 => shape.push(*x.shape().get(i).ok_or_else(bad)?),
            d => shape.push(usize::try_from(d).map_err(|_| bad())?),
        }
    }
    if let Some(i) = infer {
        let known = super::super::tensor::count(&shape)?;
        if known == 0 || x.len() % known != 0 {
            return Err(bad());
        }
        shape[i] = x.len() / known;
    }
    let out = x.reshape(&shape).map_err(|_| bad())?;
    x_shape(cx, &x)?;
    cx.set("Out", out)
}

/// Writes `XShape`, if the op has one.
pub(super) fn x_shape(cx: &mut OpCx<'_, '_>, x: &Tensor) -> Result<(), InterpError> {
    let mut shape = vec![0];
    shape.extend_from_slice(x.shape());
    let t = Tensor::zeros(x.dtype(), &shape)?;
    cx.set_opt("XShape", t)
}

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut s = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i];
    }
    s
}

/// For each element of an array of `shape`, the offset that these strides give, in row-major order.
pub(super) fn offsets(shape: &[usize], strides: &[usize], start: usize) -> Vec<usize> {
    let n = shape.iter().product();
    let mut out = Vec::with_capacity(n);
    let (mut at, mut index) = (start, vec![0; shape.len()]);
    for _ in 0..n {
        out.push(at);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            at += strides[d];
            if index[d] < shape[d] {
                break;
            }
            at -= strides[d] * shape[d];
            index[d] = 0;
        }
    }
    out
}

/// The tensor with its axes in the order `perm`.
pub(super) fn transpose(x: &Tensor, perm: &[usize]) -> Result<Tensor, InterpError> {
    let own = strides(x.shape());
    let shape: Vec<_> = perm.iter().map(|&p| x.shape()[p]).collect();
    let by: Vec<_> = perm.iter().map(|&p| own[p]).collect();
    permute(x, &shape, &offsets(&shape, &by, 0))
}

/// The axes of a permutation.
pub(super) fn order(axis: &[i64], rank: usize) -> Result<Vec<usize>, InterpError> {
    let perm = axis.iter().map(|&a| axis_of(a, rank, "axis")).collect::<Result<Vec<_>, _>>()?;
    let mut seen = vec![false; rank];
    perm.iter().for_each(|&p| seen[p] = true);
    if perm.len() != rank || seen.contains(&false) {
        return Err(Fault::BadAttr { name: "axis".into(), what: format!("{axis:?} is no order of {rank} axes") }.into());
    }
    Ok(perm)
}

fn transpose2(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let axis = cx.attr_ints("axis")?;
    let perm = order(&cx.need("axis", axis)?, x.shape().len())?;
    let out = transpose(&x, &perm)?;
    x_shape(cx, &x)?;
    cx.set("Out", out)
}

/// What `slice` cuts out of `x` by attributes `axes`, `starts`, `ends`: the shape, in all axes of `x`, and
/// the offset of the first element.
pub(super) fn slice_of(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<(Vec<usize>, usize), InterpError> {
    for slot in ["StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList"] {
        if !cx.input_names(slot).is_empty() {
            return Err(Fault::Unsupported { what: format!("slice with bounds in `{slot}`") }.into());
        }
    }
    let (axes, starts, ends) = (cx.attr_ints("axes")?, cx.attr_ints("starts")?, cx.attr_ints("ends")?);
    let (axes, starts, ends) = (cx.need("axes", axes)?, cx.need("starts", starts)?, cx.need("ends", ends)?);
    if axes.len() != starts.len() || axes.len() != ends.len() {
        return Err(
            Fault::BadAttr { name: "axes".into(), what: "axes, starts and ends differ in length".into() }.into()
        );
    }
    let (mut shape, by, mut start) = (x.shape().to_vec(), strides(x.shape()), 0);
    let mut cut = vec![false; shape.len()];
    for ((&axis, &from), &to) in axes.iter().zip(&starts).zip(&ends) {
        let axis = axis_of(axis, shape.len(), "axes")?;
        if std::mem::replace(&mut cut[axis], true) {
            return Err(Fault::BadAttr { name: "axes".into(), what: format!("names axis {axis} twice") }.into());
        }
        let dim = x.shape()[axis] as i64;
        let clamp = |v: i64| (if v < 0 { v.saturating_add(dim) } else { v }).clamp(0, dim) as usize;
        let (from, to) = (clamp(from), clamp(to));
        shape[axis] = to.saturating_sub(from);
        start += from * by[axis];
    }
    Ok((shape, start))
}

/// `slice`; the axes in `decrease_axis`, of one element, are left out of the result's shape.
fn slice(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("Input")?;
    let (shape, start) = slice_of(cx, &x)?;
    let index = offsets(&shape, &strides(x.shape()), start);
    let drop = cx.attr_ints("decrease_axis")?.unwrap_or_default();
    let drop = drop.iter().map(|&a| axis_of(a, shape.len(), "decrease_axis")).collect::<Result<Vec<_>, _>>()?;
    if drop.iter().any(|&a| shape[a] != 1) {
        return Err(shape_fault("Input", &x, format!("sliced to {shape:?} has a wider axis in decrease_axis")));
    }
    let kept: Vec<_> = (0..shape.len()).filter(|a| !drop.contains(a)).map(|a| shape[a]).collect();
    let out = permute(&x, &kept, &index)?;
    cx.set("Out", out)
}

fn shape(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("Input")?;
    let dims: Vec<i32> = x.shape().iter().map(|&d| d as i32).collect();
    let out = Tensor::new(&[dims.len()], dims)?;
    cx.set("Out", out)
}

/// The branch that a mask of one integer names.
pub(super) fn branch(mask: &Tensor, branches: usize) -> Result<usize, InterpError> {
    if mask.len() != 1 || mask.dtype().is_float() {
        return Err(shape_fault("Mask", mask, "where one integer is needed"));
    }
    let pick = mask.to_i64_vec()[0];
    let what = || format!("branch {pick} of {branches}");
    usize::try_from(pick).ok().filter(|&i| i < branches).ok_or_else(|| Fault::Unsupported { what: what() }.into())
}

/// `select_input`: the branch that `Mask` names; the others need no value.
fn select_input(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (mask, names) = (cx.input("Mask")?, cx.input_names("X"));
    let name = names[branch(&mask, names.len())?];
    let out = cx.read("X", name)?;
    cx.set("Out", out)
}
