//! How are matrices multiplied? `mul`, `matmul`, `matmul_v2` and their gradients.
//!
//! One loop: for each row, products are added in float32 (float64 for float64) in the order of the inner
//! index, without fused multiply-add, so that the bits are the same on every machine. A tuned library
//! picks its kernel by the processor it finds and rounds differently on each.

use super::super::context::{OpCx, dtype_fault, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Tensor, count};
use super::Kernel;
use super::grad::from_f64;
use super::lanes::{float_input, from_f32, same_dtype};
use super::transfer::{offsets, strides, transpose};
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("mul", mul),
    ("mul_grad", mul_grad),
    ("matmul", |cx| matmul(cx, &V1)),
    ("matmul_v2", |cx| matmul(cx, &V2)),
    ("matmul_grad", |cx| matmul_grad(cx, &V1)),
    ("matmul_v2_grad", |cx| matmul_grad(cx, &V2)),
];

/// Names of the attributes of the two generations of `matmul`.
struct Attrs {
    trans_x: &'static str,
    trans_y: &'static str,
    alpha: Option<&'static str>,
}
const V1: Attrs = Attrs { trans_x: "transpose_X", trans_y: "transpose_Y", alpha: Some("alpha") };
const V2: Attrs = Attrs { trans_x: "trans_x", trans_y: "trans_y", alpha: None };

macro_rules! gemm {
    ($name:ident, $t:ty) => {
        /// `out[m, n] += a[m, k] · b[k, n]`, row major.
        fn $name(a: &[$t], b: &[$t], out: &mut [$t], k: usize, n: usize) {
            if k == 0 || n == 0 {
                return;
            }
            for (a, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
                for (&x, b) in a.iter().zip(b.chunks_exact(n)) {
                    out.iter_mut().zip(b).for_each(|(o, &y)| *o += x * y);
                }
            }
        }
    };
}
gemm!(gemm32, f32);
gemm!(gemm64, f64);

/// The product of two stacks of matrices: `batch` pairs of matrices, given by their index in `x` and `y`.
fn product(
    x: &Tensor,
    y: &Tensor,
    [m, k, n]: [usize; 3],
    batch: &[(usize, usize)],
    alpha: f32,
    shape: &[usize],
) -> Result<Tensor, InterpError> {
    let len = batch.len() * m * n;
    if x.dtype() == DType::F64 {
        let (x, y, mut out) = (x.to_f64_vec(), y.to_f64_vec(), vec![0.0; len]);
        for (b, &(i, j)) in batch.iter().enumerate() {
            gemm64(
                &x[i * m * k..(i + 1) * m * k],
                &y[j * k * n..(j + 1) * k * n],
                &mut out[b * m * n..(b + 1) * m * n],
                k,
                n,
            );
        }
        out.iter_mut().for_each(|v| *v *= f64::from(alpha));
        return from_f64(out, DType::F64, shape);
    }
    let (xs, ys, mut out) = (x.to_f32_vec(), y.to_f32_vec(), vec![0.0; len]);
    for (b, &(i, j)) in batch.iter().enumerate() {
        gemm32(
            &xs[i * m * k..(i + 1) * m * k],
            &ys[j * k * n..(j + 1) * k * n],
            &mut out[b * m * n..(b + 1) * m * n],
            k,
            n,
        );
    }
    if alpha != 1.0 {
        out.iter_mut().for_each(|v| *v *= alpha);
    }
    from_f32(out, x.dtype(), shape)
}

/// A tensor seen as a matrix: the dimensions before `cols` against those from it on.
fn flat(t: &Tensor, cols: i64, slot: &str) -> Result<(usize, usize, usize), InterpError> {
    let at = usize::try_from(cols).ok().filter(|&c| c > 0 && c < t.shape().len());
    let at = at.ok_or_else(|| shape_fault(slot, t, format!("cannot be flattened at {cols}")))?;
    Ok((at, t.shape()[..at].iter().product(), t.shape()[at..].iter().product()))
}

struct Mul {
    x: Tensor,
    y: Tensor,
    shape: Vec<usize>,
    dims: [usize; 3],
}

fn mul_operands(cx: &OpCx<'_, '_>) -> Result<Mul, InterpError> {
    let (x, y) = (float_input(cx, "X")?, float_input(cx, "Y")?);
    same_dtype("Y", &y, "X", x.dtype())?;
    let (xa, m, k) = flat(&x, cx.attr_i64("x_num_col_dims", 1)?, "X")?;
    let (ya, k2, n) = flat(&y, cx.attr_i64("y_num_col_dims", 1)?, "Y")?;
    if k != k2 {
        return Err(shape_fault("Y", &y, format!("does not multiply with X of {:?}", x.shape())));
    }
    let shape = [&x.shape()[..xa], &y.shape()[ya..]].concat();
    Ok(Mul { x, y, shape, dims: [m, k, n] })
}

fn mul(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let Mul { x, y, shape, dims } = mul_operands(cx)?;
    cx.room(x.dtype(), &shape)?;
    let out = product(&x, &y, dims, &[(0, 0)], 1.0, &shape)?;
    cx.set("Out", out)
}

fn mul_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let Mul { x, y, shape, dims: [m, k, n] } = mul_operands(cx)?;
    let g = float_input(cx, "Out@GRAD")?;
    same_dtype("Out@GRAD", &g, "X", x.dtype())?;
    if g.shape() != shape {
        return Err(shape_fault("Out@GRAD", &g, format!("where {shape:?} is needed")));
    }
    let matrix = |t: &Tensor, r, c| t.reshape(&[r, c]);
    if cx.wants("X@GRAD") {
        let yt = transpose(&matrix(&y, k, n)?, &[1, 0])?;
        let out = product(&g, &yt, [m, n, k], &[(0, 0)], 1.0, x.shape())?;
        cx.set("X@GRAD", out)?;
    }
    if cx.wants("Y@GRAD") {
        let xt = transpose(&matrix(&x, m, k)?, &[1, 0])?;
        let out = product(&xt, &g, [k, m, n], &[(0, 0)], 1.0, y.shape())?;
        cx.set("Y@GRAD", out)?;
    }
    Ok(())
}

/// The last two axes exchanged.
fn swap_last(t: &Tensor) -> Result<Tensor, InterpError> {
    let rank = t.shape().len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    transpose(t, &perm)
}

/// The operands as stacks of matrices, transposed as the attributes say.
struct Stacks {
    x: Tensor,
    y: Tensor,
    /// whether an operand was a vector and got an axis
    vector: [bool; 2],
    trans: [bool; 2],
    batch: Vec<usize>,
    pairs: Vec<(usize, usize)>,
    dims: [usize; 3],
}

fn stacks(cx: &OpCx<'_, '_>, attrs: &Attrs) -> Result<Stacks, InterpError> {
    let (x, y) = (float_input(cx, "X")?, float_input(cx, "Y")?);
    same_dtype("Y", &y, "X", x.dtype())?;
    for (slot, t) in [("X", &x), ("Y", &y)] {
        if t.shape().is_empty() {
            return Err(shape_fault(slot, t, "where a vector or more is needed"));
        }
    }
    let vector = [x.shape().len() == 1, y.shape().len() == 1];
    let trans = [!vector[0] && cx.attr_bool(attrs.trans_x, false)?, !vector[1] && cx.attr_bool(attrs.trans_y, false)?];
    let bad = shape_fault("Y", &y, format!("does not multiply with X of {:?}", x.shape()));
    let x = if vector[0] { x.reshape(&[1, x.len()])? } else { x };
    let y = if vector[1] { y.reshape(&[y.len(), 1])? } else { y };
    let x = if trans[0] { swap_last(&x)? } else { x };
    let y = if trans[1] { swap_last(&y)? } else { y };
    let (xb, yb) = (x.shape().len() - 2, y.shape().len() - 2);
    let dims = [x.shape()[xb], x.shape()[xb + 1], y.shape()[yb + 1]];
    let rank = xb.max(yb);
    let pad = |t: &Tensor, own: usize| [vec![1; rank - own], t.shape()[..own].to_vec()].concat();
    let (xs, ys) = (pad(&x, xb), pad(&y, yb));
    let fits = xs.iter().zip(&ys).all(|(&a, &b)| a == b || a == 1 || b == 1);
    if dims[1] != y.shape()[yb] || !fits {
        return Err(bad);
    }
    let batch: Vec<usize> = xs.iter().zip(&ys).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
    cx.room(DType::F64, &batch)?;
    let index = |own: &[usize]| {
        let mut by = strides(own);
        by.iter_mut().zip(own).for_each(|(s, &d)| *s *= usize::from(d != 1));
        offsets(&batch, &by, 0)
    };
    let pairs = index(&xs).into_iter().zip(index(&ys)).collect();
    Ok(Stacks { x, y, vector, trans, batch, pairs, dims })
}

fn alpha(cx: &OpCx<'_, '_>, attrs: &Attrs) -> Result<f32, InterpError> {
    attrs.alpha.map_or(Ok(1.0), |name| cx.attr_f32(name, 1.0))
}

fn matmul(cx: &mut OpCx<'_, '_>, attrs: &Attrs) -> Result<(), InterpError> {
    let s = stacks(cx, attrs)?;
    let [m, _, n] = s.dims;
    let mut shape = s.batch.clone();
    if !s.vector[0] {
        shape.push(m);
    }
    if !s.vector[1] {
        shape.push(n);
    }
    cx.room(s.x.dtype(), &shape)?;
    let out = product(&s.x, &s.y, s.dims, &s.pairs, alpha(cx, attrs)?, &shape)?;
    cx.set("Out", out)
}

/// dX = dOut · Yᵀ and dY = Xᵀ · dOut, summed over the batch axes along which an operand was stretched.
fn matmul_grad(cx: &mut OpCx<'_, '_>, attrs: &Attrs) -> Result<(), InterpError> {
    let s = stacks(cx, attrs)?;
    let [m, k, n] = s.dims;
    let g = float_input(cx, "Out@GRAD")?;
    if g.dtype() != s.x.dtype() {
        return Err(dtype_fault("Out@GRAD", &g, format!("where `X` has {}", s.x.dtype())));
    }
    if g.len() != count(&[s.pairs.len(), m, n])? {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} × [{m}, {n}] is needed", s.batch)));
    }
    let alpha = alpha(cx, attrs)?;
    for (slot, operand, of_x) in [("X@GRAD", "X", true), ("Y@GRAD", "Y", false)] {
        if !cx.wants(slot) {
            continue;
        }
        let own = cx.input(operand)?;
        let (rows, cols) = if of_x { (m, k) } else { (k, n) };
        // Every batch pair's gradient, then the sum of those that belong to one matrix of the operand.
        let each: Vec<_> = s.pairs.iter().enumerate().map(|(b, &(i, j))| if of_x { (b, j) } else { (i, b) }).collect();
        let full = [s.pairs.len(), rows, cols];
        cx.room(DType::F64, &full)?;
        let parts = match of_x {
            true => product(&g, &swap_last(&s.y)?, [m, n, k], &each, alpha, &full),
            false => product(&swap_last(&s.x)?, &g, [k, m, n], &each, alpha, &full),
        }?;
        let size = rows * cols;
        let stacked = if s.pairs.len() * size == own.len() {
            parts
        } else {
            let mut sum = vec![0.0; own.len()];
            let v = parts.to_f64_vec();
            for (b, &(i, j)) in s.pairs.iter().enumerate() {
                let at = if of_x { i } else { j } * size;
                sum[at..at + size].iter_mut().zip(&v[b * size..(b + 1) * size]).for_each(|(a, b)| *a += b);
            }
            from_f64(sum, g.dtype(), &[own.len() / size.max(1), rows, cols])?
        };
        let out = if s.trans[usize::from(!of_x)] { swap_last(&stacked)? } else { stacked };
        let out = out.reshape(own.shape()).map_err(Fault::from)?;
        cx.set(slot, out)?;
    }
    Ok(())
}
