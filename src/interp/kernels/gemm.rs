//! Who multiplies matrices? The `faer` library, on one thread.
//!
//! Products are added in the type of the elements (float32, float64). The library picks its kernel by the
//! processor, so the last bits may differ from machine to machine; on one machine they are a function of
//! the operands alone.

use super::real::Mat;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

macro_rules! product {
    ($name:ident, $t:ty) => {
        /// `c[m, n] += a[m, k] · b[k, n]`, where `c` is row-major.
        pub(super) fn $name<'a>(a: Mat<'a, $t>, b: Mat<'a, $t>, c: &mut [$t]) {
            let (m, k, n) = (a.rows, a.cols, b.cols);
            if m == 0 || n == 0 || k == 0 {
                return;
            }
            let of = |m: &Mat<'a, $t>| match m.transposed {
                false => MatRef::from_row_major_slice(m.data, m.rows, m.cols),
                true => MatRef::from_column_major_slice(m.data, m.rows, m.cols),
            };
            matmul(MatMut::from_row_major_slice_mut(c, m, n), Accum::Add, of(&a), of(&b), 1.0, Par::Seq);
        }
    };
}
product!(f32s, f32);
product!(f64s, f64);
