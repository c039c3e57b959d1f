//! How are float slices converted between 32 and 16 bits? At the speed of a copy, bit-equal to `half`.
//!
//! Nearest even, on all 2^32 float32 and all 2^16 narrow bit patterns, NaNs and subnormals
//! included, equals what [`half`] computes; [`Narrowing::Truncate`] equals the CPU `cast` of
//! Paddle 2.6.2. The fastest [`Path`] of the processor is chosen at run time.
//!
//! | | AVX-512 | AVX2 + F16C | generic |
//! |---|---|---|---|
//! | f32 → f16, f16 → f32 | `vcvtps2ph`, `vcvtph2ps` | the same | `half` |
//! | f32 → bf16 | integer add, then the upper words | integer add, shift, pack | `half` |
//! | bf16 → f32 | integer shift | integer shift | `half` |
//!
//! The hardware instruction for bfloat16 (`vcvtneps2bf16`) is not used: it flushes subnormals.
//! Above [`STREAM_BYTES`] of output the stores go around the cache, as a large `memcpy` does: the
//! result does not fit in it, and an ordinary store would first read each line it overwrites.
//! `cargo bench --bench convert` measures each path beside `memcpy`: over 256 MB on a shared machine
//! with AVX-512, bytes read and written, narrowing ran at 1.3 to 1.5 times its speed and widening at
//! 1.4 to 1.8, AVX2 like AVX-512; the generic path at 0.8 to 1.2.

// Reasons stand at each block: vector loads and stores take raw pointers, and calling a function
// compiled for a processor feature is sound only after that feature was detected.
#![allow(unsafe_code)]

use crate::ir::DType;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
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

/// Output size, in bytes, from which stores go around the cache. Below it the result is likely to
/// be read again while it is still in a cache of usual size.
pub const STREAM_BYTES: usize = 16 << 20;

/// Which instructions convert. Tests and benches force one; everything else takes [`Path::best`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// the code of `half`
    Generic,
    /// AVX2 and F16C, x86-64
    Avx2,
    /// AVX-512 F and BW, x86-64
    Avx512,
}

impl Path {
    /// All paths, slowest first.
    pub const ALL: [Path; 3] = [Path::Generic, Path::Avx2, Path::Avx512];

    /// Whether this processor (and operating system) has the instructions.
    pub fn available(self) -> bool {
        match self {
            Path::Generic => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            #[cfg(not(target_arch = "x86_64"))]
            Path::Avx2 | Path::Avx512 => false,
        }
    }

    /// The fastest path that is available.
    pub fn best() -> Path {
        if Path::Avx512.available() {
            Path::Avx512
        } else if Path::Avx2.available() {
            Path::Avx2
        } else {
            Path::Generic
        }
    }
}

/// float32 to float16, nearest even. Panics when the lengths differ.
pub fn f32_to_f16(src: &[f32], dst: &mut [f16]) {
    narrow_on(Path::best(), DType::F16, src, dst.reinterpret_cast_mut(), Narrowing::NearestEven);
}

/// float32 to bfloat16, nearest even. Panics when the lengths differ.
pub fn f32_to_bf16(src: &[f32], dst: &mut [bf16]) {
    narrow_on(Path::best(), DType::BF16, src, dst.reinterpret_cast_mut(), Narrowing::NearestEven);
}

/// float16 to float32, exact. Panics when the lengths differ.
pub fn f16_to_f32(src: &[f16], dst: &mut [f32]) {
    widen_on(Path::best(), DType::F16, src.reinterpret_cast(), dst);
}

/// bfloat16 to float32, exact. Panics when the lengths differ.
pub fn bf16_to_f32(src: &[bf16], dst: &mut [f32]) {
    widen_on(Path::best(), DType::BF16, src.reinterpret_cast(), dst);
}

/// float32 to the bits of `dtype`, which is float16 or bfloat16. Panics when it is another type or
/// when the lengths differ.
pub fn narrow(dtype: DType, src: &[f32], dst: &mut [u16], narrowing: Narrowing) {
    narrow_on(Path::best(), dtype, src, dst, narrowing);
}

/// The bits of `dtype`, which is float16 or bfloat16, to float32: exact, a signalling NaN becomes
/// quiet. Panics when it is another type or when the lengths differ.
pub fn widen(dtype: DType, src: &[u16], dst: &mut [f32]) {
    widen_on(Path::best(), dtype, src, dst);
}

/// [`narrow`] on one path. Panics when the path is not available.
pub fn narrow_on(path: Path, dtype: DType, src: &[f32], dst: &mut [u16], narrowing: Narrowing) {
    assert_eq!(src.len(), dst.len(), "source and destination of a conversion have different lengths");
    assert!(dtype.is_low(), "cannot narrow to {dtype}");
    assert!(path.available(), "this processor has no {path:?}");
    match (narrowing, path, dtype) {
        (Narrowing::Truncate, _, DType::F16) => {
            dst.iter_mut().zip(src).for_each(|(d, s)| *d = truncate_f16(s.to_bits()));
        }
        (Narrowing::Truncate, _, _) => dst.iter_mut().zip(src).for_each(|(d, s)| *d = (s.to_bits() >> 16) as u16),
        // SAFETY (all calls below): `available` has just found the features the callee is compiled for.
        #[cfg(target_arch = "x86_64")]
        (_, Path::Avx512, DType::F16) => unsafe { x86::f32_to_f16_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (_, Path::Avx512, _) => unsafe { x86::f32_to_bf16_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (_, Path::Avx2, DType::F16) => unsafe { x86::f32_to_f16_avx2(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (_, Path::Avx2, _) => unsafe { x86::f32_to_bf16_avx2(src, dst) },
        _ => narrow_half(dtype, src, dst),
    }
}

/// [`widen`] on one path. Panics when the path is not available.
pub fn widen_on(path: Path, dtype: DType, src: &[u16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len(), "source and destination of a conversion have different lengths");
    assert!(dtype.is_low(), "cannot widen from {dtype}");
    assert!(path.available(), "this processor has no {path:?}");
    match (path, dtype) {
        // SAFETY (all calls below): `available` has just found the features the callee is compiled for.
        #[cfg(target_arch = "x86_64")]
        (Path::Avx512, DType::F16) => unsafe { x86::f16_to_f32_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (Path::Avx512, _) => unsafe { x86::bf16_to_f32_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (Path::Avx2, DType::F16) => unsafe { x86::f16_to_f32_avx2(src, dst) },
        #[cfg(target_arch = "x86_64")]
        (Path::Avx2, _) => unsafe { x86::bf16_to_f32_avx2(src, dst) },
        _ => widen_half(dtype, src, dst),
    }
}

/// Nearest even by `half`: the generic path, and the ends of the others.
fn narrow_half(dtype: DType, src: &[f32], dst: &mut [u16]) {
    match dtype {
        DType::F16 => dst.reinterpret_cast_mut::<f16>().convert_from_f32_slice(src),
        _ => dst.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(src),
    }
}

/// Widening by `half`: the generic path, and the ends of the others.
fn widen_half(dtype: DType, src: &[u16], dst: &mut [f32]) {
    match dtype {
        DType::F16 => src.reinterpret_cast::<f16>().convert_to_f32_slice(dst),
        _ => src.reinterpret_cast::<bf16>().convert_to_f32_slice(dst),
    }
}

/// float16 towards zero as Paddle 2.6.2 computes it on a CPU: everything above 65504 is infinite,
/// and a NaN keeps the upper bits of its payload (a payload that would vanish becomes 1).
fn truncate_f16(bits: u32) -> u16 {
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    sign | match magnitude {
        0x7f80_0001.. => 0x7c00 | ((magnitude >> 13) as u16 & 0x3ff).max(1),
        0x477f_e001.. => 0x7c00,
        // normal in float16: rebias the exponent from 127 to 15
        0x3880_0000.. => ((magnitude - 0x3800_0000) >> 13) as u16,
        // a multiple of 2^-24; the product is exact and the cast truncates
        _ => (f32::from_bits(magnitude) * 16_777_216.0) as u16,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{DType, STREAM_BYTES, narrow_half, widen_half};
    use std::arch::x86_64::*;

    /// Defines one kernel: `$block` turns the pointer to `$lanes` source elements into one vector of
    /// results, `$store` and `$stream` write it, `$ends` converts what is left at both ends.
    macro_rules! kernel {
        ($name:ident, $features:literal, $src:ty => $dst:ty, $lanes:literal, $block:expr, $store:ident, $stream:ident,
         $vector:ty, $ends:expr) => {
            /// The lengths are equal (checked by the caller, and again by the slicing at the end).
            #[target_feature(enable = $features)]
            pub(super) fn $name(src: &[$src], dst: &mut [$dst]) {
                let n = src.len().min(dst.len());
                let streamed = size_of_val(dst) >= STREAM_BYTES;
                // A store around the cache needs an aligned address; the elements before it go alone.
                let head = if streamed { dst.as_ptr().align_offset(64).min(n) } else { 0 };
                let end = head + (n - head) / $lanes * $lanes;
                $ends(&src[..head], &mut dst[..head]);
                let (from, to) = (src.as_ptr(), dst.as_mut_ptr());
                let mut at = head;
                if streamed {
                    while at < end {
                        // SAFETY: `at + $lanes <= end <= n`, so the block reads `$lanes` elements of `src` and
                        // the store writes `$lanes` of `dst`; both slices are borrowed, and as `dst` is borrowed
                        // mutably they do not overlap. The address is a multiple of the vector's size: `head`
                        // made it a multiple of 64, and every step adds one vector.
                        unsafe { $stream(to.add(at).cast::<$vector>(), $block(from.add(at))) };
                        at += $lanes;
                    }
                    // Such stores are not ordered with others: whoever reads `dst` next, on any thread, must see them.
                    _mm_sfence();
                } else {
                    while at < end {
                        // SAFETY: bounds as above; this store takes any address.
                        unsafe { $store(to.add(at).cast::<$vector>(), $block(from.add(at))) };
                        at += $lanes;
                    }
                }
                $ends(&src[end..], &mut dst[end..]);
            }
        };
    }

    // float32 -> float16

    /// SAFETY for the caller: 32 elements are readable at `p`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn f16x32(p: *const f32) -> __m512i {
        // SAFETY: the caller's promise; the loads take any address.
        let (a, b) = unsafe { (_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))) };
        let low = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        let high = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(b);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    /// SAFETY for the caller: 16 elements are readable at `p`.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn f16x16(p: *const f32) -> __m256i {
        // SAFETY: the caller's promise; the loads take any address.
        let (a, b) = unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) };
        let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a);
        let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(b);
        _mm256_set_m128i(high, low)
    }

    // float32 -> bfloat16. Adding 0x7fff, and 1 more when the kept part is odd, carries into the kept
    // part exactly when nearest-even rounds up; a NaN could lose its payload or carry into the sign,
    // so it keeps its upper bits with the quiet bit set.

    /// The result stands in the upper 16 bits of each lane.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn bf16_upper_512(v: __m512) -> __m512i {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
    }

    /// SAFETY for the caller: 32 elements are readable at `p`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn bf16x32(p: *const f32) -> __m512i {
        // SAFETY: the caller's promise; the loads take any address.
        let (a, b) = unsafe { (_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))) };
        // words 1, 3, 5 … of `a`, then of `b`
        let odd = _mm512_add_epi32(
            _mm512_set1_epi32(0x0003_0001),
            _mm512_mullo_epi32(
                _mm512_set1_epi32(0x0004_0004),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            ),
        );
        _mm512_permutex2var_epi16(bf16_upper_512(a), odd, bf16_upper_512(b))
    }

    /// The result stands in the lower 16 bits of each lane, the upper are 0.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    fn bf16_lower_256(v: __m256) -> __m256i {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }

    /// SAFETY for the caller: 16 elements are readable at `p`.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn bf16x16(p: *const f32) -> __m256i {
        // SAFETY: the caller's promise; the loads take any address.
        let (a, b) = unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) };
        // the pack interleaves the 128-bit halves of `a` and `b`; the permutation puts them in order
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(bf16_lower_256(a), bf16_lower_256(b)))
    }

    // float16 -> float32

    /// SAFETY for the caller: 16 elements are readable at `p`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn from_f16x16(p: *const u16) -> __m512 {
        // SAFETY: the caller's promise; the load takes any address.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
    }

    /// SAFETY for the caller: 8 elements are readable at `p`.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn from_f16x8(p: *const u16) -> __m256 {
        // SAFETY: the caller's promise; the load takes any address.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }

    // bfloat16 -> float32. A NaN gets the quiet bit, as in `half`.

    /// SAFETY for the caller: 16 elements are readable at `p`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn from_bf16x16(p: *const u16) -> __m512 {
        // SAFETY: the caller's promise; the load takes any address.
        let words = unsafe { _mm256_loadu_si256(p.cast()) };
        let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(_mm512_castsi512_ps(bits), _mm512_castsi512_ps(bits));
        _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(0x0040_0000)))
    }

    /// SAFETY for the caller: 8 elements are readable at `p`.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn from_bf16x8(p: *const u16) -> __m256 {
        // SAFETY: the caller's promise; the load takes any address.
        let words = unsafe { _mm_loadu_si128(p.cast()) };
        let bits = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(bits, bits);
        _mm256_or_ps(bits, _mm256_and_ps(nan, _mm256_castsi256_ps(_mm256_set1_epi32(0x0040_0000))))
    }

    kernel!(f32_to_f16_avx512, "avx512f,avx512bw", f32 => u16, 32, f16x32, _mm512_storeu_si512,
        _mm512_stream_si512, __m512i, |s: &[f32], d: &mut [u16]| narrow_half(DType::F16, s, d));
    kernel!(f32_to_f16_avx2, "avx2,f16c", f32 => u16, 16, f16x16, _mm256_storeu_si256,
        _mm256_stream_si256, __m256i, |s: &[f32], d: &mut [u16]| narrow_half(DType::F16, s, d));
    kernel!(f32_to_bf16_avx512, "avx512f,avx512bw", f32 => u16, 32, bf16x32, _mm512_storeu_si512,
        _mm512_stream_si512, __m512i, |s: &[f32], d: &mut [u16]| narrow_half(DType::BF16, s, d));
    kernel!(f32_to_bf16_avx2, "avx2,f16c", f32 => u16, 16, bf16x16, _mm256_storeu_si256,
        _mm256_stream_si256, __m256i, |s: &[f32], d: &mut [u16]| narrow_half(DType::BF16, s, d));
    kernel!(f16_to_f32_avx512, "avx512f,avx512bw", u16 => f32, 16, from_f16x16, _mm512_storeu_ps,
        _mm512_stream_ps, f32, |s: &[u16], d: &mut [f32]| widen_half(DType::F16, s, d));
    kernel!(f16_to_f32_avx2, "avx2,f16c", u16 => f32, 8, from_f16x8, _mm256_storeu_ps,
        _mm256_stream_ps, f32, |s: &[u16], d: &mut [f32]| widen_half(DType::F16, s, d));
    kernel!(bf16_to_f32_avx512, "avx512f,avx512bw", u16 => f32, 16, from_bf16x16, _mm512_storeu_ps,
        _mm512_stream_ps, f32, |s: &[u16], d: &mut [f32]| widen_half(DType::BF16, s, d));
    kernel!(bf16_to_f32_avx2, "avx2,f16c", u16 => f32, 8, from_bf16x8, _mm256_storeu_ps,
        _mm256_stream_ps, f32, |s: &[u16], d: &mut [f32]| widen_half(DType::BF16, s, d));
}
