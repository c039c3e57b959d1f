//! How does an entry become a tensor of another dtype without a second copy of it? In blocks that stay in cache.

use crate::ckpt::{Checkpoint, CkptError, prefer_huge_pages};
use crate::convert::{self, Narrowing};
use crate::interp::{Data, Tensor};
use crate::ir::DType;
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};

/// Bytes of a block: the float32 of it and what it is narrowed to fit in a second-level cache.
const BLOCK: usize = 256 << 10;

/// What a long load is told, in bytes read, after each block. Several threads may call it at once.
pub type Progress<'p> = &'p (dyn Fn(u64) + Sync);

/// Reads entry `index` as a tensor of `dtype`.
///
/// # Errors
/// A read that fails, or types that are not cast (complex numbers).
pub fn read_tensor(
    ckpt: &dyn Checkpoint,
    index: usize,
    dtype: DType,
    narrowing: Narrowing,
    progress: Progress<'_>,
) -> Result<Tensor, CkptError> {
    let entry = &ckpt.entries()[index];
    let fail = |what: String| CkptError::Unsupported { path: ckpt.path().to_path_buf(), what };
    let no_cast = || fail(format!("`{}` is {}, which is not cast to {dtype}", entry.name.escape_debug(), entry.dtype));
    let shape: Result<Vec<usize>, _> = entry.shape.iter().map(|&d| usize::try_from(d)).collect();
    let shape = shape.map_err(|_| fail("a dimension does not fit the address space".to_owned()))?;
    let size = entry.dtype.size().ok_or_else(no_cast)?;
    let count = entry.bytes as usize / size;
    let mut reader = Blocks { ckpt, index, size, raw: Vec::new(), progress };
    let data = match (entry.dtype, dtype) {
        (DType::F32, DType::F16 | DType::BF16) => {
            // Zeros by the bit type: the system's zero pages, not a pass over memory.
            let mut out = vec![0u16; count];
            let mut wide = vec![0f32; (BLOCK / 4).min(count)];
            reader.each(&mut out, |raw, out| {
                let wide = &mut wide[..out.len()];
                floats(raw, wide);
                convert::narrow(dtype, wide, out, narrowing);
            })?;
            low(dtype, out)
        }
        (from @ (DType::F16 | DType::BF16), DType::F32) => {
            let mut out = vec![0f32; count];
            let mut narrow = vec![0u16; (BLOCK / 2).min(count)];
            reader.each(&mut out, |raw, out| {
                let narrow = &mut narrow[..out.len()];
                halves(raw, narrow);
                convert::widen(from, narrow, out);
            })?;
            out.into()
        }
        (DType::F32, DType::F32) => {
            let mut out = vec![0f32; count];
            reader.each(&mut out, floats)?;
            out.into()
        }
        (a @ (DType::F16 | DType::BF16), b) if a == b => {
            let mut out = vec![0u16; count];
            reader.each(&mut out, halves)?;
            low(dtype, out)
        }
        _ => {
            let bytes = ckpt.read(index)?;
            progress(entry.bytes);
            let tensor = Tensor::from_bytes(entry.dtype, &shape, &bytes).map_err(|e| fail(e.to_string()))?;
            return tensor.cast(dtype, narrowing).map_err(|_| no_cast());
        }
    };
    Tensor::new(&shape, data).map_err(|e| fail(e.to_string()))
}

fn low(dtype: DType, bits: Vec<u16>) -> Data {
    match dtype {
        DType::F16 => bits.reinterpret_into::<f16>().into(),
        _ => bits.reinterpret_into::<bf16>().into(),
    }
}

fn floats(raw: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(raw.as_chunks::<4>().0).for_each(|(o, &c)| *o = f32::from_le_bytes(c));
}

fn halves(raw: &[u8], out: &mut [u16]) {
    out.iter_mut().zip(raw.as_chunks::<2>().0).for_each(|(o, &c)| *o = u16::from_le_bytes(c));
}

/// An entry, block by block.
struct Blocks<'c> {
    ckpt: &'c dyn Checkpoint,
    index: usize,
    size: usize,
    raw: Vec<u8>,
    progress: Progress<'c>,
}

impl Blocks<'_> {
    /// Reads each block and hands it to `take` with the elements it becomes.
    fn each<T>(&mut self, out: &mut [T], mut take: impl FnMut(&[u8], &mut [T])) -> Result<(), CkptError> {
        let step = BLOCK / self.size;
        prefer_huge_pages(out);
        self.raw.resize(BLOCK.min(out.len() * self.size), 0);
        let mut at = 0;
        for part in out.chunks_mut(step) {
            let raw = &mut self.raw[..part.len() * self.size];
            self.ckpt.read_into(self.index, at, raw)?;
            take(raw, part);
            at += raw.len() as u64;
            (self.progress)(raw.len() as u64);
        }
        Ok(())
    }
}
