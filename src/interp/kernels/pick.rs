//! Which ops pick elements by an index or a condition? Embedding, gather, where, one_hot, top_k, arg_max,
//! accuracy, tril_triu, range, and their gradients. An index out of range is an error that names it.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor, each};
use super::Kernel;
use super::lanes::{float_input, same_dtype};
use super::real::Real;
use super::transfer::axis_of;
use crate::convert::Narrowing;
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("lookup_table_v2", lookup),
    ("lookup_table_v2_grad", lookup_grad),
    ("gather", gather),
    ("gather_grad", gather_grad),
    ("where", select),
    ("where_grad", select_grad),
    ("one_hot_v2", one_hot),
    ("top_k_v2", top_k),
    ("top_k_v2_grad", top_k_grad),
    ("arg_max", arg_max),
    ("accuracy", accuracy),
    ("tril_triu", tril_triu),
    ("range", range),
];

type Result<T> = std::result::Result<T, InterpError>;

/// Whole numbers below `limit`.
fn indices(t: &Tensor, slot: &str, limit: usize) -> Result<Vec<usize>> {
    if !matches!(t.dtype(), DType::I32 | DType::I64) {
        return Err(dtype_fault(slot, t, "where int32 or int64 is needed"));
    }
    let index = |i: i64| {
        usize::try_from(i)
            .ok()
            .filter(|&at| at < limit)
            .ok_or_else(|| Fault::Index { slot: slot.to_owned(), index: i, limit }.into())
    };
    t.to_i64_vec().into_iter().map(index).collect()
}

/// Rows of a table by an index: `W` as rows of `width` elements.
struct Table {
    w: Tensor,
    rows: Vec<usize>,
    width: usize,
    /// the row that reads as zeros and has no gradient
    padding: Option<usize>,
}

fn table(cx: &OpCx<'_, '_>) -> Result<(Table, Tensor)> {
    let (w, ids) = (cx.input("W")?, cx.input("Ids")?);
    let &[limit, width] = w.shape() else { return Err(shape_fault("W", &w, "where a matrix is needed")) };
    let padding = cx.attr_i64("padding_idx", -1)?;
    let rows = indices(&ids, "Ids", limit)?;
    Ok((Table { w, rows, width, padding: usize::try_from(padding).ok() }, ids))
}

/// `lookup_table_v2`: the rows of `W` that `Ids` names; row `padding_idx` reads as zeros.
fn lookup(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (Table { w, rows, width, padding }, ids) = table(cx)?;
    let shape = [ids.shape(), &[width]].concat();
    cx.room(w.dtype(), &shape)?;
    let out = each!(w.data(), v => {
        let mut out = Vec::with_capacity(rows.len() * width);
        for &r in &rows {
            match padding == Some(r) {
                true => out.resize(out.len() + width, Default::default()),
                false => out.extend_from_slice(&v[r * width..(r + 1) * width]),
            }
        }
        Tensor::new(&shape, out)?
    });
    cx.set("Out", out)
}

/// The gradient's rows added up (in float64) where they were taken.
fn lookup_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    if cx.attr_bool("is_sparse", false)? {
        return Err(Fault::Unsupported { what: "a sparse gradient".into() }.into());
    }
    let (Table { w, rows, width, padding }, _) = table(cx)?;
    let g = float_input(cx, "Out@GRAD")?;
    let rows: Vec<Option<usize>> = rows.into_iter().map(|r| Some(r).filter(|_| padding != Some(r))).collect();
    let out = scatter(cx, &w, &rows, width, &g)?;
    cx.set("W@GRAD", out)
}

/// Zeros like `x`, to whose rows of `width` elements those of `g` are added.
fn scatter(cx: &OpCx<'_, '_>, x: &Tensor, rows: &[Option<usize>], width: usize, g: &Tensor) -> Result<Tensor> {
    if g.len() != rows.len() * width {
        return Err(shape_fault("Out@GRAD", g, format!("for {} rows of {width} elements", rows.len())));
    }
    cx.room(DType::F64, x.shape())?;
    let mut sum = vec![0.0f64; x.len()];
    if width > 0 {
        for (row, g) in rows.iter().zip(f64::read(g).chunks_exact(width)) {
            if let Some(r) = row {
                sum[r * width..(r + 1) * width].iter_mut().zip(g).for_each(|(s, g)| *s += g);
            }
        }
    }
    f64::tensor(sum, g.dtype(), x.shape())
}

fn gather_axis(cx: &OpCx<'_, '_>, x: &Tensor) -> Result<(usize, Vec<usize>, Tensor)> {
    let index = cx.input("Index")?;
    let axis = match cx.opt_input("Axis")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_i64_vec()[0],
        None => cx.attr_i64("axis", 0)?,
    };
    let axis = axis_of(axis, x.shape().len(), "axis")?;
    if index.shape().len() > 1 {
        return Err(shape_fault("Index", &index, "where a vector is needed"));
    }
    let at = indices(&index, "Index", x.shape()[axis])?;
    Ok((axis, at, index))
}

/// Items of `X` along an axis by `Index`.
fn gather(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let (axis, at, index) = gather_axis(cx, &x)?;
    let shape = [&x.shape()[..axis], index.shape(), &x.shape()[axis + 1..]].concat();
    cx.room(x.dtype(), &shape)?;
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let outer: usize = x.shape()[..axis].iter().product();
    let out = each!(x.data(), v => {
        let mut out = v[..0].to_vec();
        for o in 0..outer {
            at.iter().for_each(|i| out.extend_from_slice(&v[(o * len + i) * inner..(o * len + i + 1) * inner]));
        }
        Tensor::new(&shape, out)?
    });
    cx.set("Out", out)
}

fn gather_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, g) = (cx.input("X")?, float_input(cx, "Out@GRAD")?);
    let (axis, at, _) = gather_axis(cx, &x)?;
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let outer: usize = x.shape()[..axis].iter().product();
    let rows: Vec<Option<usize>> = (0..outer).flat_map(|o| at.iter().map(move |i| Some(o * len + i))).collect();
    let out = scatter(cx, &x, &rows, inner, &g)?;
    cx.set("X@GRAD", out)
}

fn mask(cx: &OpCx<'_, '_>, like: &Tensor) -> Result<Vec<bool>> {
    let c = cx.input("Condition")?;
    if c.dtype() != DType::Bool {
        return Err(dtype_fault("Condition", &c, "where bool is needed"));
    }
    if c.shape() != like.shape() {
        return Err(shape_fault("Condition", &c, format!("where {:?} is needed", like.shape())));
    }
    Ok(c.to_bool_vec())
}

/// `where`: `X` where the condition holds, else `Y`; equal shapes.
fn select(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, y) = (cx.input("X")?, cx.input("Y")?);
    same_dtype("Y", &y, "X", x.dtype())?;
    let c = mask(cx, &x)?;
    if y.shape() != x.shape() {
        return Err(shape_fault("Y", &y, format!("where `X` has {:?}", x.shape())));
    }
    // Element i of `X`, or element len + i of both in a row.
    let both = super::transfer::join(&[x.clone(), y], 1, &[x.len(), x.len()], &[x.len().saturating_mul(2)])?;
    let at: Vec<usize> = c.iter().enumerate().map(|(i, &c)| if c { i } else { x.len() + i }).collect();
    let out = super::transfer::permute(&both, x.shape(), &at)?;
    cx.set("Out", out)
}

fn select_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let g = cx.input("Out@GRAD")?;
    let c = mask(cx, &g)?;
    for (slot, when) in [("X@GRAD", true), ("Y@GRAD", false)] {
        if cx.wants(slot) {
            let out = each!(g.data(), v => {
                let pick = v.iter().zip(&c).map(|(&v, &c)| if c == when { v } else { Default::default() });
                Tensor::new(g.shape(), pick.collect::<Vec<_>>())?
            });
            cx.set(slot, out)?;
        }
    }
    Ok(())
}

/// 1 at the index along a new last axis of `depth`.
fn one_hot(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let depth = match cx.opt_input("depth_tensor")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_i64_vec()[0],
        None => cx.attr_i64("depth", -1)?,
    };
    let depth = usize::try_from(depth)
        .map_err(|_| Fault::BadAttr { name: "depth".into(), what: format!("{depth} is negative") })?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::F32);
    let shape = [x.shape(), &[depth]].concat();
    let n = cx.room(dtype, &shape)?;
    let mut out = vec![0.0f32; n];
    let lenient = cx.attr_bool("allow_out_of_range", false)?;
    for (row, i) in x.to_i64_vec().into_iter().enumerate() {
        match usize::try_from(i).ok().filter(|&i| i < depth) {
            Some(i) => out[row * depth + i] = 1.0,
            None if lenient => {}
            None => return Err(Fault::Index { slot: "X".into(), index: i, limit: depth }.into()),
        }
    }
    let out = Tensor::new(&shape, out)?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("Out", out)
}

/// For each line along an axis, the offsets of its elements.
fn lines(x: &Tensor, axis: usize) -> impl Iterator<Item = Vec<usize>> + use<> {
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let outer: usize = x.shape()[..axis].iter().product();
    (0..outer * inner).map(move |line| {
        let start = line / inner * len * inner + line % inner;
        (0..len).map(|i| start + i * inner).collect()
    })
}

/// Larger first (or smaller); equal ones by index; NaN is larger than all.
fn ranked(v: &[f64], line: &[usize], largest: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..line.len()).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (v[line[a]], v[line[b]]);
        let up = x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
        if largest { up.reverse() } else { up }
    });
    order
}

/// The `k` largest (or smallest) of each line, and where they are. Always sorted.
fn top_k(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let k = match cx.opt_input("K")?.filter(|t| !t.is_empty()) {
        Some(t) => t.to_i64_vec()[0],
        None => cx.attr_i64("k", 1)?,
    };
    let axis = axis_of(cx.attr_i64("axis", -1)?, x.shape().len(), "axis")?;
    let k = usize::try_from(k)
        .ok()
        .filter(|&k| k >= 1 && k <= x.shape()[axis])
        .ok_or_else(|| Fault::BadAttr { name: "k".into(), what: format!("{k} of {}", x.shape()[axis]) })?;
    let largest = cx.attr_bool("largest", true)?;
    let mut shape = x.shape().to_vec();
    shape[axis] = k;
    let n = cx.room(DType::I64, &shape)?;
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let (v, mut at, mut index) = (x.to_f64_vec(), vec![0usize; n], vec![0i64; n]);
    for (i, line) in lines(&x, axis).enumerate() {
        for (j, r) in ranked(&v, &line, largest).into_iter().take(k).enumerate() {
            let to = i / inner * k * inner + j * inner + i % inner;
            (at[to], index[to]) = (line[r], r as i64);
        }
    }
    let out = super::transfer::permute(&x, &shape, &at)?;
    cx.set("Out", out)?;
    let index = Tensor::new(&shape, index)?;
    cx.set("Indices", index)
}

fn top_k_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, index, g) = (cx.input("X")?, cx.input("Indices")?, float_input(cx, "Out@GRAD")?);
    let axis = axis_of(cx.attr_i64("axis", -1)?, x.shape().len(), "axis")?;
    let fits = g.shape().len() == x.shape().len()
        && (0..g.shape().len()).all(|i| i == axis || g.shape()[i] == x.shape()[i])
        && index.shape() == g.shape();
    if !fits {
        return Err(shape_fault("Out@GRAD", &g, format!("beside {:?} and {:?}", x.shape(), index.shape())));
    }
    let at = indices(&index, "Indices", x.shape()[axis])?;
    let (len, k) = (x.shape()[axis], g.shape()[axis]);
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let to = |i: usize| {
        let (o, rest) = (i / (k * inner), i % inner);
        Some((o * len + at[i]) * inner + rest)
    };
    let rows: Vec<Option<usize>> = (0..g.len()).map(to).collect();
    let out = scatter(cx, &x, &rows, 1, &g)?;
    cx.set("X@GRAD", out)
}

/// The first largest of each line.
fn arg_max(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let (flat, keep) = (cx.attr_bool("flatten", false)?, cx.attr_bool("keepdims", false)?);
    let x = if flat { x.reshape(&[x.len()])? } else { x };
    let axis = axis_of(cx.attr_i64("axis", -1)?, x.shape().len(), "axis")?;
    if x.shape()[axis] == 0 {
        return Err(shape_fault("X", &x, format!("has no elements along axis {axis}")));
    }
    let v = x.to_f64_vec();
    let first = |line: Vec<usize>| {
        let mut best = 0;
        for i in 1..line.len() {
            if v[line[i]] > v[line[best]] {
                best = i;
            }
        }
        best as i64
    };
    let out: Vec<i64> = lines(&x, axis).map(first).collect();
    let mut shape = x.shape().to_vec();
    match keep {
        true => shape[axis] = 1,
        false => _ = shape.remove(axis),
    }
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::I64);
    let out = Tensor::new(&shape, out)?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("Out", out)
}

/// The share of rows of `Indices` that hold their label.
fn accuracy(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (index, label) = (cx.input("Indices")?, cx.input("Label")?);
    let &[rows, k] = index.shape() else { return Err(shape_fault("Indices", &index, "where a matrix is needed")) };
    if label.len() != rows || rows == 0 {
        return Err(shape_fault("Label", &label, format!("for {rows} rows")));
    }
    let (index, label) = (index.to_i64_vec(), label.to_i64_vec());
    let right = label.iter().enumerate().filter(|&(i, l)| index[i * k..(i + 1) * k].contains(l)).count();
    cx.set("Accuracy", Tensor::scalar(right as f32 / rows as f32))?;
    cx.set("Correct", Tensor::scalar(right as i32))?;
    cx.set("Total", Tensor::scalar(rows as i32))
}

/// The lower or upper triangle of each matrix, zeros elsewhere.
fn tril_triu(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let x = cx.input("X")?;
    let &[.., rows, cols] = x.shape() else { return Err(shape_fault("X", &x, "where a matrix is needed")) };
    let (diagonal, lower) = (cx.attr_i64("diagonal", 0)?, cx.attr_bool("lower", false)?);
    let keeps = |i: usize| {
        let off = (i % cols) as i64 - (i / cols % rows) as i64;
        if lower { off <= diagonal } else { off >= diagonal }
    };
    let out = each!(x.data(), v => {
        let pick = v.iter().enumerate().map(|(i, &v)| if keeps(i) { v } else { Default::default() });
        Tensor::new(x.shape(), pick.collect::<Vec<_>>())?
    });
    cx.set("Out", out)
}

/// From `Start` to before `End` in steps of `Step`, one number each of one dtype.
fn range(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let one = |slot: &str| -> Result<Tensor> {
        let t = cx.input(slot)?;
        if t.len() == 1 { Ok(t) } else { Err(shape_fault(slot, &t, "where one element is needed")) }
    };
    let (start, end, step) = (one("Start")?, one("End")?, one("Step")?);
    let dtype = start.dtype();
    same_dtype("End", &end, "Start", dtype)?;
    same_dtype("Step", &step, "Start", dtype)?;
    let bad = || Fault::Arithmetic { what: format!("no range from {start:?} to {end:?} in steps of {step:?}") };
    let (a, b, s) = (start.to_f64_vec()[0], end.to_f64_vec()[0], step.to_f64_vec()[0]);
    let n = ((b - a) / s).ceil();
    if !(n.is_finite() && s != 0.0 && n < 1e15) {
        return Err(bad().into());
    }
    let n = n.max(0.0) as usize;
    cx.room(DType::F64, &[n])?;
    let data: Data = match dtype.is_float() {
        true => (0..n).map(|i| a + i as f64 * s).collect::<Vec<f64>>().into(),
        false => {
            let (a, s) = (start.to_i64_vec()[0], step.to_i64_vec()[0]);
            (0..n as i64).map(|i| a.wrapping_add(i.wrapping_mul(s))).collect::<Vec<i64>>().into()
        }
    };
    let out = Tensor::new(&[n], data)?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("Out", out)
}
