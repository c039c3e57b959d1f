//! How does the `rnn` op run? LSTM layers, one or both directions, and their gradient through time.
//!
//! `Input` is [time, batch, features]. `WeightList` holds, for each layer and direction, the input and
//! the hidden matrix ([4·hidden, …], gates in the order input, forget, cell, output), and after all of
//! them the two biases of each. Products and gates in float32 (float64 for float64), rounded once at
//! the op's outputs. The gradient computes the forward pass again; nothing is kept in `Reserve`.
//! Source: Paddle 2.6.2's `rnn` kernel.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;
use super::Kernel;
use super::lanes::{float_input, same_dtype};
use super::real::{Mat, Real, real};
use crate::ir::DType;

pub(super) const KERNELS: &[(&str, Kernel)] = &[("rnn", rnn), ("rnn_grad", rnn_grad)];

type Result<T> = std::result::Result<T, InterpError>;

/// Sizes and weights of a run.
struct Rnn {
    time: usize,
    batch: usize,
    hidden: usize,
    layers: usize,
    directions: usize,
    x: Tensor,
    states: [Tensor; 2],
    weights: Vec<Tensor>,
}

impl Rnn {
    fn of(cx: &OpCx<'_, '_>) -> Result<Rnn> {
        let x = float_input(cx, "Input")?;
        let &[time, batch, _] = x.shape() else {
            return Err(shape_fault("Input", &x, "where [time, batch, features] is needed"));
        };
        let unsupported = |what: &str| InterpError::from(Fault::Unsupported { what: what.into() });
        if cx.attr_str("mode")? != Some("LSTM") {
            return Err(unsupported("an rnn that is no LSTM"));
        }
        if !cx.input_names("SequenceLength").is_empty() {
            return Err(unsupported("an rnn with SequenceLength"));
        }
        if cx.attr_f32("dropout_prob", 0.0)? != 0.0 && !cx.attr_bool("is_test", false)? {
            return Err(unsupported("an rnn with dropout"));
        }
        let size = |name: &str, default: i64| -> Result<usize> {
            let n = cx.attr_i64(name, default)?;
            let bad = || Fault::BadAttr { name: name.to_owned(), what: format!("{n}") };
            Ok(usize::try_from(n).ok().filter(|n| (1..1 << 20).contains(n)).ok_or_else(bad)?)
        };
        let (hidden, layers) = (size("hidden_size", 0)?, size("num_layers", 1)?);
        let directions = if cx.attr_bool("is_bidirec", false)? { 2 } else { 1 };
        let pairs = layers * directions;
        let states: [Tensor; 2] =
            cx.inputs("PreState")?.try_into().map_err(|_| unsupported("PreState without 2 tensors"))?;
        for s in &states {
            same_dtype("PreState", s, "Input", x.dtype())?;
            if s.shape() != [pairs, batch, hidden] {
                return Err(shape_fault("PreState", s, format!("where {:?} is needed", [pairs, batch, hidden])));
            }
        }
        let weights = cx.inputs("WeightList")?;
        if weights.len() != 4 * pairs {
            return Err(unsupported(&format!("{} weights for {layers} layers", weights.len())));
        }
        let rnn = Rnn { time, batch, hidden, layers, directions, x, states, weights };
        for (i, w) in rnn.weights.iter().enumerate() {
            same_dtype("WeightList", w, "Input", rnn.x.dtype())?;
            let wanted = match (i < 2 * pairs, i % 2) {
                (true, 0) => vec![4 * hidden, rnn.features(i / 2 / directions)],
                (true, _) => vec![4 * hidden, hidden],
                _ => vec![4 * hidden],
            };
            if w.shape() != wanted {
                return Err(shape_fault("WeightList", w, format!("where {wanted:?} is needed")));
            }
        }
        cx.room(DType::F64, &[time, batch, pairs, 6, hidden])?;
        Ok(rnn)
    }

    /// Features that a layer sees.
    fn features(&self, layer: usize) -> usize {
        if layer == 0 { self.x.shape()[2] } else { self.hidden * self.directions }
    }

    fn out_shape(&self) -> [usize; 3] {
        [self.time, self.batch, self.hidden * self.directions]
    }
}

/// One direction of one layer, over all steps in the order in which they ran.
struct Pass<T> {
    /// gates after their functions: [step, batch, 4 · hidden]
    gates: Vec<T>,
    /// cell and hidden states, the initial ones first: [step + 1, batch, hidden]
    c: Vec<T>,
    h: Vec<T>,
}

/// The time that step `s` of a direction works on.
fn at(direction: usize, s: usize, time: usize) -> usize {
    if direction == 0 { s } else { time - 1 - s }
}

fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Runs all layers; the input of each layer and its passes, and the last output.
fn run<T: Real>(r: &Rnn) -> (Vec<Vec<T>>, Vec<Pass<T>>) {
    let (b, h, d) = (r.batch, r.hidden, r.directions);
    let (mut inputs, mut passes) = (vec![T::read(&r.x).into_owned()], Vec::new());
    for layer in 0..r.layers {
        let f = r.features(layer);
        let mut out = vec![T::ZERO; r.time * b * h * d];
        for direction in 0..d {
            let p = layer * d + direction;
            let w: Vec<_> = [2 * p, 2 * p + 1].iter().map(|&i| T::read(&r.weights[i])).collect();
            let at_bias = 2 * r.layers * d + 2 * p;
            let bias: Vec<_> = [at_bias, at_bias + 1].iter().map(|&i| T::read(&r.weights[i])).collect();
            let mut gates = vec![T::ZERO; r.time * b * 4 * h];
            let state = |i: usize| T::read(&r.states[i])[p * b * h..(p + 1) * b * h].to_vec();
            let (mut hs, mut cs) = (state(0), state(1));
            for s in 0..r.time {
                let t = at(direction, s, r.time);
                let x = &inputs[layer][t * b * f..(t + 1) * b * f];
                let g = &mut gates[s * b * 4 * h..(s + 1) * b * 4 * h];
                for row in g.chunks_exact_mut(4 * h) {
                    row.iter_mut().zip(bias[0].iter().zip(bias[1].iter())).for_each(|(g, (&x, &y))| *g = x + y);
                }
                T::gemm(Mat::new(x, b, f), Mat::new(&w[0], 4 * h, f).t(), g);
                T::gemm(Mat::new(&hs[s * b * h..], b, h), Mat::new(&w[1], 4 * h, h).t(), g);
                for (i, g) in g.chunks_exact_mut(4 * h).enumerate() {
                    for j in 0..h {
                        let (i_, f_, g_, o_) = (g[j], g[h + j], g[2 * h + j], g[3 * h + j]);
                        let (i_, f_, g_, o_) = (sigmoid(i_), sigmoid(f_), g_.tanh(), sigmoid(o_));
                        (g[j], g[h + j], g[2 * h + j], g[3 * h + j]) = (i_, f_, g_, o_);
                        let c = f_ * cs[(s * b + i) * h + j] + i_ * g_;
                        cs.push(c);
                        hs.push(o_ * c.tanh());
                        out[((t * b + i) * d + direction) * h + j] = o_ * c.tanh();
                    }
                }
            }
            passes.push(Pass { gates, c: cs, h: hs });
        }
        inputs.push(out);
    }
    (inputs, passes)
}

fn rnn(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let r = Rnn::of(cx)?;
    let dtype = r.x.dtype();
    let (out, last) = real!(dtype, T => {
        let (mut layers, passes) = run::<T>(&r);
        let n = r.batch * r.hidden;
        let end = |v: fn(&Pass<T>) -> &Vec<T>| passes.iter().flat_map(|p| v(p)[r.time * n..].to_vec()).collect();
        let last = [end(|p| &p.h), end(|p| &p.c)];
        let out = T::tensor(layers.pop().unwrap_or_default(), dtype, &r.out_shape())?;
        (out, last.map(|v: Vec<T>| T::tensor(v, dtype, r.states[0].shape())))
    });
    let [h, c] = last;
    let states = vec![h?, c?];
    cx.set_all("State", states)?;
    for slot in ["Reserve", "DropoutState"] {
        let none = Tensor::zeros(if slot == "Reserve" { dtype } else { DType::U8 }, &[0])?;
        cx.set_opt(slot, none)?;
    }
    cx.set("Out", out)
}

/// Gradients of everything, as they add up.
struct Grads<T> {
    x: Vec<T>,
    states: [Vec<T>; 2],
    weights: Vec<Vec<T>>,
}

fn back<T: Real>(r: &Rnn, dout: Vec<T>, dlast: [Vec<T>; 2]) -> Grads<T> {
    let (b, h, d) = (r.batch, r.hidden, r.directions);
    let (inputs, passes) = run::<T>(r);
    let mut weights: Vec<Vec<T>> = r.weights.iter().map(|w| vec![T::ZERO; w.len()]).collect();
    let mut states = dlast;
    let mut dout = dout;
    for layer in (0..r.layers).rev() {
        let f = r.features(layer);
        let mut dx = vec![T::ZERO; r.time * b * f];
        for direction in 0..d {
            let p = layer * d + direction;
            let (pass, w) = (&passes[p], [T::read(&r.weights[2 * p]), T::read(&r.weights[2 * p + 1])]);
            let own = p * b * h..(p + 1) * b * h;
            let (mut dh, mut dc) = (states[0][own.clone()].to_vec(), states[1][own.clone()].to_vec());
            let mut dg = vec![T::ZERO; b * 4 * h];
            for s in (0..r.time).rev() {
                let t = at(direction, s, r.time);
                for i in 0..b {
                    let g = &pass.gates[(s * b + i) * 4 * h..(s * b + i + 1) * 4 * h];
                    for j in 0..h {
                        let k = i * h + j;
                        let (i_, f_, g_, o_) = (g[j], g[h + j], g[2 * h + j], g[3 * h + j]);
                        let tanh = pass.c[((s + 1) * b + i) * h + j].tanh();
                        let dh = dh[k] + dout[((t * b + i) * d + direction) * h + j];
                        let grad_c = dc[k] + dh * o_ * (T::ONE - tanh * tanh);
                        let to = &mut dg[i * 4 * h..(i + 1) * 4 * h];
                        to[j] = grad_c * g_ * i_ * (T::ONE - i_);
                        to[h + j] = grad_c * pass.c[(s * b + i) * h + j] * f_ * (T::ONE - f_);
                        to[2 * h + j] = grad_c * i_ * (T::ONE - g_ * g_);
                        to[3 * h + j] = dh * tanh * o_ * (T::ONE - o_);
                        dc[k] = grad_c * f_;
                    }
                }
                let g = Mat::new(&dg[..], b, 4 * h);
                let x = &inputs[layer][t * b * f..(t + 1) * b * f];
                T::gemm(g.t(), Mat::new(x, b, f), &mut weights[2 * p]);
                T::gemm(g.t(), Mat::new(&pass.h[s * b * h..(s + 1) * b * h], b, h), &mut weights[2 * p + 1]);
                let at_bias = 2 * r.layers * d + 2 * p;
                for row in dg.chunks_exact(4 * h) {
                    for at in [at_bias, at_bias + 1] {
                        weights[at].iter_mut().zip(row).for_each(|(w, &g)| *w += g);
                    }
                }
                T::gemm(g, Mat::new(&w[0], 4 * h, f), &mut dx[t * b * f..(t + 1) * b * f]);
                dh.fill(T::ZERO);
                T::gemm(g, Mat::new(&w[1], 4 * h, h), &mut dh);
            }
            states[0][own.clone()].copy_from_slice(&dh);
            states[1][own].copy_from_slice(&dc);
        }
        dout = dx;
    }
    Grads { x: dout, states, weights }
}

fn rnn_grad(cx: &mut OpCx<'_, '_>) -> Result<()> {
    let r = Rnn::of(cx)?;
    let dtype = r.x.dtype();
    let gradient = |slot: &str, shape: &[usize], t: Option<Tensor>| -> Result<Tensor> {
        match t {
            None => Ok(Tensor::zeros(dtype, shape)?),
            Some(t) if t.shape() != shape => Err(shape_fault(slot, &t, format!("where {shape:?} is needed"))),
            Some(t) => same_dtype(slot, &t, "Input", dtype).map(|()| t),
        }
    };
    let dout = gradient("Out@GRAD", &r.out_shape(), cx.opt_input("Out@GRAD")?)?;
    let names = cx.input_names("State@GRAD");
    let mut last = Vec::new();
    for i in 0..2 {
        let given = names.get(i).filter(|&&n| cx.present(n)).map(|&n| cx.read("State@GRAD", n)).transpose()?;
        last.push(gradient("State@GRAD", r.states[0].shape(), given)?);
    }
    let (x, states, weights) = real!(dtype, T => {
        let read = |t: &Tensor| T::read(t).into_owned();
        let g = back::<T>(&r, read(&dout), [read(&last[0]), read(&last[1])]);
        let states = g.states.map(|v| T::tensor(v, dtype, r.states[0].shape()));
        let weights: Result<Vec<_>> =
            g.weights.into_iter().zip(&r.weights).map(|(v, w)| T::tensor(v, dtype, w.shape())).collect();
        (T::tensor(g.x, dtype, r.x.shape())?, states, weights?)
    });
    cx.set_opt("Input@GRAD", x)?;
    let [h, c] = states;
    for (slot, values) in [("PreState@GRAD", vec![h?, c?]), ("WeightList@GRAD", weights)] {
        if !cx.output_names(slot).is_empty() {
            cx.set_all(slot, values)?;
        }
    }
    Ok(())
}
