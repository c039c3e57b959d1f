//! How are matrices multiplied? `mul`, `matmul`, `matmul_v2` and their gradients.
//!
//! Products are added in float32 (float64 for float64) by `gemm.rs`, and rounded once. A transposed operand
//! is read in its own memory.

use super::super::context::{OpCx, shape_fault};
use super::super::error::InterpError;
use super::super::tensor::{Tensor, count};
use super::Kernel;
use super::lanes::{float_input, same_dtype};
use super::real::{Mat, Real, real};
use super::transfer::{offsets, strides};
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

/// One operand of a stack of products: its matrices lie one after the other.
#[derive(Clone, Copy)]
struct Operand<'t> {
    t: &'t Tensor,
    /// rows and columns of one matrix, as it is multiplied
    rows: usize,
    cols: usize,
    /// in memory, rows and columns are exchanged
    transposed: bool,
}

impl Operand<'_> {
    fn t(self) -> Self {
        Operand { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    fn at<'v, T>(&self, v: &'v [T], i: usize) -> Mat<'v, T> {
        let size = self.rows * self.cols;
        let data = &v[i * size..(i + 1) * size];
        match self.transposed {
            false => Mat::new(data, self.rows, self.cols),
            true => Mat::new(data, self.cols, self.rows).t(),
        }
    }
}

/// The products of pairs of matrices, given by their index in `x` and `y` and that of the result, to which
/// they are added.
fn product(
    x: Operand<'_>,
    y: Operand<'_>,
    pairs: impl Iterator<Item = (usize, usize, usize)>,
    results: usize,
    alpha: f32,
    shape: &[usize],
) -> Result<Tensor, InterpError> {
    let size = x.rows * y.cols;
    real!(x.t.dtype(), T => {
        let (xs, ys, mut out) = (T::read(x.t), T::read(y.t), vec![T::ZERO; results * size]);
        for (i, j, to) in pairs {
            T::gemm(x.at(&xs, i), y.at(&ys, j), &mut out[to * size..(to + 1) * size]);
        }
        if alpha != 1.0 {
            out.iter_mut().for_each(|v| *v *= T::of(f64::from(alpha)));
        }
        T::tensor(out, x.t.dtype(), shape)
    })
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

impl Mul {
    fn x(&self) -> Operand<'_> {
        Operand { t: &self.x, rows: self.dims[0], cols: self.dims[1], transposed: false }
    }

    fn y(&self) -> Operand<'_> {
        Operand { t: &self.y, rows: self.dims[1], cols: self.dims[2], transposed: false }
    }
}

const ONE: [(usize, usize, usize); 1] = [(0, 0, 0)];

fn mul(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let m = mul_operands(cx)?;
    cx.room(m.x.dtype(), &m.shape)?;
    let out = product(m.x(), m.y(), ONE.into_iter(), 1, 1.0, &m.shape)?;
    cx.set("Out", out)
}

fn mul_grad(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let m = mul_operands(cx)?;
    let g = float_input(cx, "Out@GRAD")?;
    same_dtype("Out@GRAD", &g, "X", m.x.dtype())?;
    if g.shape() != m.shape {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} is needed", m.shape)));
    }
    let g = Operand { t: &g, rows: m.dims[0], cols: m.dims[2], transposed: false };
    if cx.wants("X@GRAD") {
        let out = product(g, m.y().t(), ONE.into_iter(), 1, 1.0, m.x.shape())?;
        cx.set("X@GRAD", out)?;
    }
    if cx.wants("Y@GRAD") {
        let out = product(m.x().t(), g, ONE.into_iter(), 1, 1.0, m.y.shape())?;
        cx.set("Y@GRAD", out)?;
    }
    Ok(())
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

impl Stacks {
    fn x(&self) -> Operand<'_> {
        Operand { t: &self.x, rows: self.dims[0], cols: self.dims[1], transposed: self.trans[0] }
    }

    fn y(&self) -> Operand<'_> {
        Operand { t: &self.y, rows: self.dims[1], cols: self.dims[2], transposed: self.trans[1] }
    }
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
    let (xb, yb) = (x.shape().len() - 2, y.shape().len() - 2);
    let sides = |t: &Tensor, b: usize, trans: bool| match trans {
        false => (t.shape()[b], t.shape()[b + 1]),
        true => (t.shape()[b + 1], t.shape()[b]),
    };
    let ((m, k), (k2, n)) = (sides(&x, xb, trans[0]), sides(&y, yb, trans[1]));
    let rank = xb.max(yb);
    let pad = |t: &Tensor, own: usize| [vec![1; rank - own], t.shape()[..own].to_vec()].concat();
    let (xs, ys) = (pad(&x, xb), pad(&y, yb));
    let fits = xs.iter().zip(&ys).all(|(&a, &b)| a == b || a == 1 || b == 1);
    if k != k2 || !fits {
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
    Ok(Stacks { x, y, vector, trans, batch, pairs, dims: [m, k, n] })
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
    let pairs = s.pairs.iter().enumerate().map(|(b, &(i, j))| (i, j, b));
    let out = product(s.x(), s.y(), pairs, s.pairs.len(), alpha(cx, attrs)?, &shape)?;
    cx.set("Out", out)
}

/// dX = dOut · Yᵀ and dY = Xᵀ · dOut, summed (in the products' type) over the batch axes along which an
/// operand was stretched. The gradient of a transposed operand is the transposed product.
fn matmul_grad(cx: &mut OpCx<'_, '_>, attrs: &Attrs) -> Result<(), InterpError> {
    let s = stacks(cx, attrs)?;
    let [m, k, n] = s.dims;
    let g = float_input(cx, "Out@GRAD")?;
    same_dtype("Out@GRAD", &g, "X", s.x.dtype())?;
    if g.len() != count(&[s.pairs.len(), m, n])? {
        return Err(shape_fault("Out@GRAD", &g, format!("where {:?} × [{m}, {n}] is needed", s.batch)));
    }
    let g = Operand { t: &g, rows: m, cols: n, transposed: false };
    let alpha = alpha(cx, attrs)?;
    let pairs = || s.pairs.iter().enumerate();
    if cx.wants("X@GRAD") {
        let own = cx.input("X")?;
        let results = own.len() / (m * k).max(1);
        let out = match s.trans[0] {
            false => product(g, s.y().t(), pairs().map(|(b, &(i, j))| (b, j, i)), results, alpha, own.shape()),
            true => product(s.y(), g.t(), pairs().map(|(b, &(i, j))| (j, b, i)), results, alpha, own.shape()),
        }?;
        cx.set("X@GRAD", out)?;
    }
    if cx.wants("Y@GRAD") {
        let own = cx.input("Y")?;
        let results = own.len() / (k * n).max(1);
        let out = match s.trans[1] {
            false => product(s.x().t(), g, pairs().map(|(b, &(i, j))| (i, b, j)), results, alpha, own.shape()),
            true => product(g.t(), s.x(), pairs().map(|(b, &(i, j))| (b, i, j)), results, alpha, own.shape()),
        }?;
        cx.set("Y@GRAD", out)?;
    }
    Ok(())
}
