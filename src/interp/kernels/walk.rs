//! In which order do two operands meet? Walks over a shape with a stride for each operand, run by run.
//!
//! Neighbouring axes along which both operands go on evenly are taken as one, so that the usual cases
//! (equal shapes, a bias along rows or channels, a sum over trailing axes) become a few long runs.

use super::real::wide;

/// A shape, and how far each step along its axes moves in two operands. A stride of 0 stays.
pub(super) struct Walk {
    dims: Vec<usize>,
    a: Vec<usize>,
    b: Vec<usize>,
}

/// Consecutive elements of the walk: how many, where they begin in both operands, and the steps.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub len: usize,
    pub a: usize,
    pub b: usize,
    pub step: (usize, usize),
}

impl Walk {
    /// A walk in row-major order over `shape`.
    pub fn new(shape: &[usize], a: &[usize], b: &[usize]) -> Walk {
        let mut walk = Walk { dims: Vec::new(), a: Vec::new(), b: Vec::new() };
        for i in (0..shape.len()).rev().filter(|&i| shape[i] != 1) {
            if let (Some(d), Some(&sa), Some(&sb)) = (walk.dims.last_mut(), walk.a.last(), walk.b.last())
                && a[i] == sa * *d
                && b[i] == sb * *d
            {
                *d *= shape[i];
                continue;
            }
            walk.dims.push(shape[i]);
            walk.a.push(a[i]);
            walk.b.push(b[i]);
        }
        // The innermost axis comes first.
        if walk.dims.is_empty() {
            (walk.dims, walk.a, walk.b) = (vec![1], vec![0], vec![0]);
        }
        walk
    }

    /// Visits all runs in order.
    pub fn runs(&self, mut f: impl FnMut(Run)) {
        let (len, step) = (self.dims[0], (self.a[0], self.b[0]));
        if self.dims.contains(&0) {
            return;
        }
        let (mut index, mut a, mut b) = (vec![0; self.dims.len()], 0, 0);
        loop {
            f(Run { len, a, b, step });
            let mut d = 1;
            loop {
                if d == self.dims.len() {
                    return;
                }
                index[d] += 1;
                a += self.a[d];
                b += self.b[d];
                if index[d] < self.dims[d] {
                    break;
                }
                a -= self.a[d] * self.dims[d];
                b -= self.b[d] * self.dims[d];
                index[d] = 0;
                d += 1;
            }
        }
    }

    /// `f` of all pairs of elements, in order.
    pub fn zip<T: Copy, U>(&self, n: usize, x: &[T], y: &[T], f: impl Fn(T, T) -> U) -> Vec<U> {
        let mut out = Vec::with_capacity(n);
        self.runs(
            #[inline(always)]
            |r| {
                wide(
                    #[inline(always)]
                    || {
                        let end = |at: usize, step: usize| at + (r.len - 1) * step + 1;
                        let (x, y) = (&x[r.a..end(r.a, r.step.0)], &y[r.b..end(r.b, r.step.1)]);
                        match r.step {
                            (1, 1) => out.extend(x.iter().zip(y).map(|(&x, &y)| f(x, y))),
                            (1, 0) => out.extend(x.iter().map(|&x| f(x, y[0]))),
                            (0, 1) => out.extend(y.iter().map(|&y| f(x[0], y))),
                            (0, 0) => out.extend((0..r.len).map(|_| f(x[0], y[0]))),
                            (i, j) => out.extend((0..r.len).map(|k| f(x[k * i], y[k * j]))),
                        }
                    },
                )
            },
        );
        out
    }
}
