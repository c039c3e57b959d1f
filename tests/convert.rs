//! Are the conversions between float32 and 16 bits bit-equal to `half`, on every path and pattern?

use half::{bf16, f16};
use mastercast::convert::{self, Narrowing, Path, STREAM_BYTES};
use mastercast::ir::DType;

const LOW: [DType; 2] = [DType::F16, DType::BF16];

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|p| p.available())
}

/// The software code of `half`, which uses no instruction under test.
fn narrow_reference(dtype: DType, x: f32) -> u16 {
    match dtype {
        DType::F16 => f16::from_f32_const(x).to_bits(),
        _ => bf16::from_f32_const(x).to_bits(),
    }
}

fn widen_reference(dtype: DType, bits: u16) -> u32 {
    match dtype {
        DType::F16 => f16::from_bits(bits).to_f32_const().to_bits(),
        _ => bf16::from_bits(bits).to_f32_const().to_bits(),
    }
}

/// Narrows the patterns on every path; panics at the first that is not what `half` says.
fn check_narrow(patterns: &[u32]) {
    let src: Vec<f32> = patterns.iter().map(|&b| f32::from_bits(b)).collect();
    let mut dst = vec![0u16; src.len()];
    for dtype in LOW {
        let expected: Vec<u16> = src.iter().map(|&x| narrow_reference(dtype, x)).collect();
        for path in paths() {
            dst.fill(0xdead);
            convert::narrow_on(path, dtype, &src, &mut dst, Narrowing::NearestEven);
            if let Some(i) = (0..dst.len()).find(|&i| dst[i] != expected[i]) {
                panic!("{path:?} {dtype}: {:08x} became {:04x}, not {:04x}", patterns[i], dst[i], expected[i]);
            }
        }
    }
}

#[test]
fn narrowing_agrees_with_half_on_a_dense_sample() {
    // Every upper half, with the lower halves at which rounding, stickiness and ties change.
    let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let patterns: Vec<u32> = (0..=0xffffu32).flat_map(|h| lower.map(|l| h << 16 | l)).collect();
    check_narrow(&patterns);
    // A stride that is coprime with 2^32 visits every exponent with mixed mantissas.
    let patterns: Vec<u32> = (0..1u32 << 20).map(|i| i.wrapping_mul(0x9e37_79b1)).collect();
    check_narrow(&patterns);
}

#[test]
#[ignore = "all 2^32 patterns; run in release"]
fn narrowing_agrees_with_half_on_all_patterns() {
    const STEP: u32 = 1 << 22;
    for chunk in 0..(1u64 << 32) / u64::from(STEP) {
        let first = chunk as u32 * STEP;
        check_narrow(&(0..STEP).map(|i| first + i).collect::<Vec<_>>());
    }
}

#[test]
fn widening_agrees_with_half_on_all_patterns() {
    let src: Vec<u16> = (0..=0xffff).collect();
    for dtype in LOW {
        for path in paths() {
            let mut dst = vec![0f32; src.len()];
            convert::widen_on(path, dtype, &src, &mut dst);
            for (&s, d) in src.iter().zip(&dst) {
                assert_eq!(d.to_bits(), widen_reference(dtype, s), "{path:?} {dtype} {s:04x}");
            }
        }
    }
}

#[test]
fn the_typed_functions_agree_with_half() {
    let src: Vec<f32> = (0..1000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
    let (mut h, mut b) = (vec![f16::ZERO; 1000], vec![bf16::ZERO; 1000]);
    convert::f32_to_f16(&src, &mut h);
    convert::f32_to_bf16(&src, &mut b);
    let (mut from_h, mut from_b) = (vec![0f32; 1000], vec![0f32; 1000]);
    convert::f16_to_f32(&h, &mut from_h);
    convert::bf16_to_f32(&b, &mut from_b);
    for i in 0..1000 {
        assert_eq!(h[i].to_bits(), narrow_reference(DType::F16, src[i]));
        assert_eq!(b[i].to_bits(), narrow_reference(DType::BF16, src[i]));
        assert_eq!(from_h[i].to_bits(), widen_reference(DType::F16, h[i].to_bits()));
        assert_eq!(from_b[i].to_bits(), widen_reference(DType::BF16, b[i].to_bits()));
    }
}

/// Every length and misalignment around the vector sizes; what lies outside stays untouched.
#[test]
fn ends_of_every_length_and_alignment() {
    let src: Vec<f32> = (0..200).map(|i| i as f32 * 1.37 - 99.0).collect();
    for dtype in LOW {
        for path in paths() {
            for start in [0, 1, 3, 17, 31] {
                for len in 0..100 {
                    let mut narrow = vec![0xabcdu16; 200];
                    let part = &src[start..start + len];
                    convert::narrow_on(path, dtype, part, &mut narrow[start..start + len], Narrowing::NearestEven);
                    let mut wide = vec![-7.5f32; 200];
                    convert::widen_on(path, dtype, &narrow[start..start + len], &mut wide[start..start + len]);
                    for i in 0..200 {
                        let inside = (start..start + len).contains(&i);
                        let n = if inside { narrow_reference(dtype, src[i]) } else { 0xabcd };
                        let w = if inside { widen_reference(dtype, n) } else { (-7.5f32).to_bits() };
                        assert_eq!((narrow[i], wide[i].to_bits()), (n, w), "{path:?} {dtype} {start}+{len} at {i}");
                    }
                }
            }
        }
    }
}

/// Slices large enough to be stored around the cache, from an odd address and with a ragged end.
#[test]
fn large_slices_are_converted_whole() {
    let n = STREAM_BYTES / 2 + 1001;
    let src: Vec<f32> = (0..n as u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
    for dtype in LOW {
        let expected: Vec<u16> = src.iter().map(|&x| narrow_reference(dtype, x)).collect();
        for path in paths() {
            let (mut narrow, mut wide) = (vec![0u16; n], vec![0f32; n]);
            convert::narrow_on(path, dtype, &src[1..], &mut narrow[1..], Narrowing::NearestEven);
            assert!(narrow[0] == 0 && narrow[1..] == expected[1..], "{path:?} {dtype}");
            convert::widen_on(path, dtype, &narrow[1..], &mut wide[1..]);
            assert_eq!(wide[0], 0.0);
            assert!(
                (1..n).all(|i| wide[i].to_bits() == widen_reference(dtype, narrow[i])),
                "{path:?} {dtype}: widening"
            );
        }
    }
}

/// What the CPU `cast` of Paddle 2.6.2 gave for these float32 patterns: (source, float16, bfloat16).
const PADDLE_2_6_2: [(u32, u16, u16); 12] = [
    (0x0000_0001, 0x0000, 0x0000),
    (0x3300_0000, 0x0000, 0x3300),
    (0x3300_0001, 0x0000, 0x3300),
    (0x387f_c000, 0x03ff, 0x387f),
    (0x477f_efff, 0x7c00, 0x477f),
    (0x477f_f000, 0x7c00, 0x477f),
    (0x4780_0000, 0x7c00, 0x4780),
    (0x7f7f_ffff, 0x7c00, 0x7f7f),
    (0x7f80_0001, 0x7c01, 0x7f80),
    (0x7fc0_0000, 0x7e00, 0x7fc0),
    (0x7fff_ffff, 0x7fff, 0x7fff),
    (0xffc0_0000, 0xfe00, 0xffc0),
];

#[test]
fn truncation_is_that_of_paddle() {
    let src: Vec<f32> = PADDLE_2_6_2.iter().map(|c| f32::from_bits(c.0)).collect();
    let (mut h, mut b) = ([0u16; 12], [0u16; 12]);
    convert::narrow(DType::F16, &src, &mut h, Narrowing::Truncate);
    convert::narrow(DType::BF16, &src, &mut b, Narrowing::Truncate);
    for (i, (bits, f16_bits, bf16_bits)) in PADDLE_2_6_2.into_iter().enumerate() {
        assert_eq!((h[i], b[i]), (f16_bits, bf16_bits), "{bits:08x}");
    }
}

/// Towards zero: the largest value of the type whose magnitude is not above the source's.
#[test]
fn truncation_never_increases_the_magnitude() {
    let src: Vec<f32> =
        (0..1u32 << 18).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).filter(|x| !x.is_nan()).collect();
    let mut dst = vec![0u16; src.len()];
    for dtype in LOW {
        convert::narrow(dtype, &src, &mut dst, Narrowing::Truncate);
        for (&x, &d) in src.iter().zip(&dst) {
            let value = |bits| f32::from_bits(widen_reference(dtype, bits));
            if x.abs() > 65504.0 && dtype == DType::F16 {
                assert_eq!(value(d).abs(), f32::INFINITY, "{x:e}");
            } else {
                assert!(value(d).abs() <= x.abs(), "{x:e} grew to {:e}", value(d));
                assert!(x.is_infinite() || value(d + 1).abs() > x.abs(), "{x:e} lost more than the tail");
            }
            assert_eq!(d >> 15, (x.to_bits() >> 31) as u16, "sign of {x:e}");
        }
    }
}

#[test]
#[should_panic(expected = "different lengths")]
fn lengths_must_be_equal() {
    convert::narrow(DType::F16, &[0.0; 3], &mut [0; 2], Narrowing::NearestEven);
}

#[test]
#[should_panic(expected = "cannot narrow")]
fn only_sixteen_bit_floats() {
    convert::narrow(DType::I16, &[0.0; 3], &mut [0; 3], Narrowing::NearestEven);
}
