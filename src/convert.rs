//! How are float slices converted between 32 and 16 bits? Round to nearest even, bit-equal to `half`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// How a float32 becomes 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Narrowing {
    /// to the nearest value, ties to even: what GPUs, NumPy and this crate do
    #[default]
    NearestEven,
    /// towards zero: what Paddle 2.6.2's CPU `cast` does
    Truncate,
}

/// float32 to float16, nearest even. Panics when the lengths differ.
pub fn f32_to_f16(src: &[f32], dst: &mut [f16]) {
    dst.convert_from_f32_slice(src);
}

/// float32 to bfloat16, nearest even. Panics when the lengths differ.
pub fn f32_to_bf16(src: &[f32], dst: &mut [bf16]) {
    dst.convert_from_f32_slice(src);
}

/// float16 to float32, exact. Panics when the lengths differ.
pub fn f16_to_f32(src: &[f16], dst: &mut [f32]) {
    src.convert_to_f32_slice(dst);
}

/// bfloat16 to float32, exact. Panics when the lengths differ.
pub fn bf16_to_f32(src: &[bf16], dst: &mut [f32]) {
    src.convert_to_f32_slice(dst);
}
