//! How are convolutions computed? conv2d and depthwise_conv2d with gradients: as matrix products.
//!
//! An image becomes a matrix with one row a tap of the filter and one column an output position
//! ("im2col"); the product with the filter is the output. Products are added in float32 (float64 for
//! float64) and rounded once. Depthwise filters, whose matrices would have one row, run a loop over taps.
//! Layout NCHW.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{float_input, same_dtype};
use super::real::{Mat, Real, real};
use super::window::{Axis, axes, steps};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("conv2d", conv2d),
    ("conv2d_grad", conv2d_grad),
    ("depthwise_conv2d", conv2d),
    ("depthwise_conv2d_grad", conv2d_grad),
];

type Result<T> = std::result::Result<T, InterpError>;

/// A convolution's sizes.
struct Conv {
    batch: usize,
    groups: usize,
    /// channels of one group, in and out
    c: usize,
    m: usize,
    h: Axis,
    w: Axis,
}

impl Conv {
    fn of(cx: &OpCx<'_, '_>, x: &Tensor, filter: &Tensor) -> Result<Conv> {
        if cx.attr_str("data_format")?.is_some_and(|l| l != "NCHW" && l != "AnyLayout") {
            return Err(Fault::Unsupported { what: "a convolution in a layout other than NCHW".into() }.into());
        }
        let groups = usize::try_from(cx.attr_i64("groups", 1)?).unwrap_or(0);
        let &[batch, channels, ..] = x.shape() else { return Err(shape_fault("Input", x, "where NCHW is needed")) };
        let &[out, c, kh, kw] = filter.shape() else {
            return Err(shape_fault("Filter", filter, "where four dimensions are needed"));
        };
        if x.shape().len() != 4 {
            return Err(shape_fault("Input", x, "where NCHW is needed"));
        }
        if groups == 0 || c.checked_mul(groups) != Some(channels) || out % groups != 0 {
            let what = format!("does not fit Input of {:?} in {groups} groups", x.shape());
            return Err(shape_fault("Filter", filter, what));
        }
        let [h, w] = axes(cx, "Input", x, [kh, kw], &steps(cx, "dilations", 1)?, false)?;
        Ok(Conv { batch, groups, c, m: out / groups, h, w })
    }

    fn out_shape(&self) -> [usize; 4] {
        [self.batch, self.groups * self.m, self.h.output, self.w.output]
    }

    /// Elements of one group of one image, in and out; taps of a filter; output positions.
    fn sizes(&self) -> (usize, usize, usize, usize) {
        let positions = self.h.output * self.w.output;
        let taps = self.c * self.h.kernel * self.w.kernel;
        (self.c * self.h.input * self.w.input, self.m * positions, taps, positions)
    }

    /// Whether the image is its own matrix.
    fn pointwise(&self) -> bool {
        [self.h, self.w].iter().all(|a| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input)
    }

    /// One output line for each tap and output row: (row of the matrix, output row, range of columns,
    /// first input element). Taps that fall in the padding are left out.
    fn lines(&self, mut f: impl FnMut(usize, usize, std::ops::Range<usize>, usize)) {
        let (h, w) = (&self.h, &self.w);
        for c in 0..self.c {
            for kh in 0..h.kernel {
                for kw in 0..w.kernel {
                    let tap = (c * h.kernel + kh) * w.kernel + kw;
                    let cols = w.inside(kw);
                    if cols.is_empty() {
                        continue;
                    }
                    let first = cols.start * w.stride + kw * w.dilation - w.before;
                    for oh in h.inside(kh) {
                        let ih = oh * h.stride + kh * h.dilation - h.before;
                        f(tap, oh, cols.clone(), (c * h.input + ih) * w.input + first);
                    }
                }
            }
        }
    }

    /// The image as a matrix; `matrix` holds zeros where taps fall in the padding, and keeps them.
    fn unfold<T: Real>(&self, image: &[T], matrix: &mut [T]) {
        let (positions, width, stride) = (self.h.output * self.w.output, self.w.output, self.w.stride);
        self.lines(|tap, oh, cols, from| {
            let at = tap * positions + oh * width;
            let to = &mut matrix[at + cols.start..at + cols.end];
            match stride {
                1 => to.copy_from_slice(&image[from..from + to.len()]),
                _ => to.iter_mut().zip(image[from..].iter().step_by(stride)).for_each(|(t, &x)| *t = x),
            }
        });
    }

    /// The reverse: every element of the matrix is added to the image element it came from.
    fn fold<T: Real>(&self, matrix: &[T], image: &mut [T]) {
        let (positions, width, stride) = (self.h.output * self.w.output, self.w.output, self.w.stride);
        self.lines(|tap, oh, cols, to| {
            let at = tap * positions + oh * width;
            let from = &matrix[at + cols.start..at + cols.end];
            image[to..].iter_mut().step_by(stride).zip(from).for_each(|(t, &x)| *t += x);
        });
    }

    /// One channel in, one out: no matrix.
    fn depthwise(&self) -> bool {
        self.c == 1 && self.m == 1
    }

    /// Room for an image as a matrix; none where there is no matrix, or the image is its own.
    fn matrix<T: Real>(&self) -> Vec<T> {
        let (_, _, taps, positions) = self.sizes();
        vec![T::ZERO; if self.pointwise() || self.depthwise() { 0 } else { taps * positions }]
    }

    /// The image as a matrix, in the room that [`Conv::matrix`] gave.
    fn columns<'m, T: Real>(&self, image: &'m [T], matrix: &'m mut [T]) -> &'m [T] {
        if self.pointwise() {
            return image;
        }
        self.unfold(image, matrix);
        matrix
    }

    fn forward<T: Real>(&self, x: &[T], filter: &[T]) -> Vec<T> {
        let (ins, outs, taps, positions) = self.sizes();
        let mut out = vec![T::ZERO; self.batch * self.groups * outs];
        let mut matrix = self.matrix();
        for (i, out) in out.chunks_exact_mut(outs.max(1)).enumerate() {
            let x = &x[i * ins..(i + 1) * ins];
            let f = &filter[i % self.groups * self.m * taps..][..self.m * taps];
            if self.depthwise() {
                let (width, stride) = (self.w.output, self.w.stride);
                self.lines(|tap, oh, cols, from| {
                    let to = &mut out[oh * width + cols.start..oh * width + cols.end];
                    to.iter_mut().zip(x[from..].iter().step_by(stride)).for_each(|(o, &x)| *o += f[tap] * x);
                });
                continue;
            }
            let m = self.columns(x, &mut matrix);
            T::gemm(Mat::new(f, self.m, taps), Mat::new(m, taps, positions), out);
        }
        out
    }

    /// dFilter = dOut · matrixᵀ, summed over the batch in the elements' type.
    fn filter_grad<T: Real>(&self, x: &[T], g: &[T], len: usize) -> Vec<T> {
        let (ins, outs, taps, positions) = self.sizes();
        let mut df = vec![T::ZERO; len];
        let mut matrix = self.matrix();
        for i in 0..self.batch * self.groups {
            let (x, g) = (&x[i * ins..(i + 1) * ins], &g[i * outs..(i + 1) * outs]);
            let df = &mut df[i % self.groups * self.m * taps..][..self.m * taps];
            if self.depthwise() {
                let (width, stride) = (self.w.output, self.w.stride);
                self.lines(|tap, oh, cols, from| {
                    let g = &g[oh * width + cols.start..oh * width + cols.end];
                    let dot = g.iter().zip(x[from..].iter().step_by(stride)).fold(T::ZERO, |s, (&g, &x)| s + g * x);
                    df[tap] += dot;
                });
                continue;
            }
            let m = self.columns(x, &mut matrix);
            T::gemm(Mat::new(g, self.m, positions), Mat::new(m, taps, positions).t(), df);
        }
        df
    }

    /// dInput: filterᵀ · dOut, folded back.
    fn input_grad<T: Real>(&self, filter: &[T], g: &[T]) -> Vec<T> {
        let (ins, outs, taps, positions) = self.sizes();
        let mut dx = vec![T::ZERO; self.batch * self.groups * ins];
        let mut matrix = self.matrix();
        for (i, dx) in dx.chunks_exact_mut(ins.max(1)).enumerate() {
            let g = &g[i * outs..(i + 1) * outs];
            let f = &filter[i % self.groups * self.m * taps..][..self.m * taps];
            if self.depthwise() {
                let (width, stride) = (self.w.output, self.w.stride);
                self.lines(|tap, oh, cols, to| {
                    let g = &g[oh * width + cols.start..oh * width + cols.end];
                    dx[to..].iter_mut().step_by(stride).zip(g).for_each(|(d, &g)| *d += f[tap] * g);
                });
                continue;
            }
            let (f, g) = (Mat::new(f, self.m, taps).t(), Mat::new(g, self.m, positions));
            if self.pointwise() {
                T::gemm(f, g, dx);
                continue;
            }
            matrix.fill(T::ZERO);
            T::gemm(f, g, &mut matrix);
            self.fold(&matrix, dx);
        }
        dx
    }
}

fn operands(cx: &OpCx<'_, '_>) -> Result<(Tensor, Tensor, Conv)> {
    let (x, filter) = (float_input(cx, "Input")?, float_input(cx, "Filter")?);
    same_dtype("Filter", &filter, "Input", x.dtype())?;
    let conv = Conv::of(cx, &x, &filter)?;
    let (_, _, taps, positions) = conv.sizes();
    cx.room(crate::ir::DType::F64, &[taps, positions])?;
    cx.room(crate::ir::DType::F64, &conv.out_shape())?;
    Ok((x, filter, conv))
}

fn conv2d(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, filter, conv) = operands(cx)?;
    let out = real!(x.dtype(), T => {
        T::tensor(conv.forward(&T::read(&x), &T::read(&filter)), x.dtype(), &conv.out_shape())?
    });
    cx.set("Output", out)
}

fn conv2d_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let (x, filter, conv) = operands(cx)?;
    let g = float_input(cx, "Output@GRAD")?;
    same_dtype("Output@GRAD", &g, "Input", x.dtype())?;
    if g.shape() != conv.out_shape() {
        return Err(shape_fault("Output@GRAD", &g, format!("where {:?} is needed", conv.out_shape())));
    }
    if cx.wants("Filter@GRAD") {
        let out = real!(x.dtype(), T => {
            T::tensor(conv.filter_grad(&T::read(&x), &T::read(&g), filter.len()), x.dtype(), filter.shape())?
        });
        cx.set("Filter@GRAD", out)?;
    }
    if cx.wants("Input@GRAD") {
        let out = real!(x.dtype(), T => {
            T::tensor(conv.input_grad(&T::read(&filter), &T::read(&g)), x.dtype(), x.shape())?
        });
        cx.set("Input@GRAD", out)?;
    }
    Ok(())
}
