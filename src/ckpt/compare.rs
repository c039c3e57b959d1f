//! Do two entries of checkpoints agree when both are narrowed? Compared in blocks, so that memory stays small.

use super::limits::BLOCK;
use super::{Checkpoint, CkptError, TensorEntry};
use crate::convert::{Narrowing, narrow};
use crate::ir::DType;
use half::{bf16, f16};

/// Compares entry `a` with entry `b`, each narrowed to `low` (round to nearest even).
///
/// `None`: the entries have one shape and equal bits. `Some(d)`: they differ, by at most `d` (NaN when
/// a NaN is among the differing values, infinity when the shapes differ).
///
/// # Errors
/// A read that fails, or an entry that is not float32, float16 or bfloat16.
pub fn agree_narrowed(
    a: (&dyn Checkpoint, usize),
    b: (&dyn Checkpoint, usize),
    low: DType,
) -> Result<Option<f32>, CkptError> {
    agree_narrowed_as(a, b, low, Narrowing::NearestEven)
}

/// [`agree_narrowed`] with another rounding: Paddle 2.6.2 on a CPU truncates, so that what it saved agrees with
/// its masters that way.
pub fn agree_narrowed_as(
    (ckpt_a, a): (&dyn Checkpoint, usize),
    (ckpt_b, b): (&dyn Checkpoint, usize),
    low: DType,
    narrowing: Narrowing,
) -> Result<Option<f32>, CkptError> {
    let (ea, eb) = (&ckpt_a.entries()[a], &ckpt_b.entries()[b]);
    let (size_a, size_b) = (width(ckpt_a, ea)?, width(ckpt_b, eb)?);
    if ea.shape != eb.shape {
        return Ok(Some(f32::INFINITY));
    }
    let count = ea.bytes as usize / size_a;
    let step = (BLOCK / 4).min(count.max(1));
    let mut raw = vec![0u8; step * 4];
    let (mut wide_a, mut wide_b) = (vec![0f32; step], vec![0f32; step]);
    let (mut low_a, mut low_b) = (vec![0u16; step], vec![0u16; step]);
    let (mut differs, mut largest) = (false, 0f32);
    for at in (0..count).step_by(step) {
        let n = step.min(count - at);
        for (ckpt, i, size, dtype, wide) in
            [(ckpt_a, a, size_a, ea.dtype, &mut wide_a), (ckpt_b, b, size_b, eb.dtype, &mut wide_b)]
        {
            let raw = &mut raw[..n * size];
            ckpt.read_into(i, (at * size) as u64, raw)?;
            widen(dtype, raw, &mut wide[..n]);
        }
        narrow(low, &wide_a[..n], &mut low_a[..n], narrowing);
        narrow(low, &wide_b[..n], &mut low_b[..n], narrowing);
        for k in 0..n {
            if low_a[k] != low_b[k] {
                differs = true;
                let d = (wide_a[k] - wide_b[k]).abs();
                if d.is_nan() || d > largest {
                    largest = d;
                }
            }
        }
    }
    Ok(differs.then_some(largest))
}

fn width(ckpt: &dyn Checkpoint, entry: &TensorEntry) -> Result<usize, CkptError> {
    match entry.dtype {
        DType::F32 => Ok(4),
        DType::F16 | DType::BF16 => Ok(2),
        other => Err(CkptError::Unsupported {
            path: ckpt.path().to_path_buf(),
            what: format!("`{}` is {other}; float32, float16 or bfloat16 can be compared", entry.name),
        }),
    }
}

fn widen(dtype: DType, raw: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            out.iter_mut().zip(raw.chunks_exact(4)).for_each(|(o, c)| *o = f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        }
        DType::F16 => {
            out.iter_mut().zip(raw.chunks_exact(2)).for_each(|(o, c)| *o = f16::from_le_bytes([c[0], c[1]]).to_f32())
        }
        _ => out.iter_mut().zip(raw.chunks_exact(2)).for_each(|(o, c)| *o = bf16::from_le_bytes([c[0], c[1]]).to_f32()),
    }
}
