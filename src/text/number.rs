//! How are numbers and bytes spelled in the text format? Shortest round-trip floats, NaNs by bits, hex.

use crate::ir::{F32, F64};
use std::fmt::Write;

/// Writes a binary32: `0.1f`, `-0.0f`, `inf32`, `nan32(0x7fc00000)`.
pub(crate) fn write_f32(out: &mut String, v: F32) {
    let n = v.get();
    let _ = if n.is_nan() {
        write!(out, "nan32({:#010x})", v.0)
    } else if n.is_infinite() {
        write!(out, "{}inf32", if n < 0.0 { "-" } else { "" })
    } else {
        write!(out, "{n:?}f")
    };
}

/// Writes a binary64: `0.1`, `-0.0`, `inf64`, `nan64(0x7ff8000000000000)`.
pub(crate) fn write_f64(out: &mut String, v: F64) {
    let n = v.get();
    let _ = if n.is_nan() {
        write!(out, "nan64({:#018x})", v.0)
    } else if n.is_infinite() {
        write!(out, "{}inf64", if n < 0.0 { "-" } else { "" })
    } else {
        write!(out, "{n:?}")
    };
}

/// A number token, decoded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Number {
    /// without suffix, point or exponent
    Int(i64),
    /// with the suffix `L`
    Long(i64),
    /// with the suffix `f`, or `inf32`
    Float(F32),
    /// with a point or an exponent, or `inf64`
    F64(F64),
}

/// Decodes a number token; the error says what is wrong with it.
pub(crate) fn parse_number(text: &str) -> Result<Number, &'static str> {
    match text {
        "inf32" => return Ok(Number::Float(f32::INFINITY.into())),
        "-inf32" => return Ok(Number::Float(f32::NEG_INFINITY.into())),
        "inf64" => return Ok(Number::F64(f64::INFINITY.into())),
        "-inf64" => return Ok(Number::F64(f64::NEG_INFINITY.into())),
        _ => {}
    }
    // `parse` of the standard library also takes `nan`, `infinity` and `+1`; the format does not.
    if !text.strip_prefix('-').unwrap_or(text).starts_with(|c: char| c.is_ascii_digit()) {
        return Err("this is not a number");
    }
    const WIDE: &str = "this integer does not fit in 64 bits";
    if let Some(digits) = text.strip_suffix('L') {
        return if is_integer(digits) {
            digits.parse().map(Number::Long).map_err(|_| WIDE)
        } else {
            Err("`L` is for integers")
        };
    }
    if let Some(digits) = text.strip_suffix('f') {
        let v: f32 = digits.parse().map_err(|_| "this is not a number")?;
        return if v.is_finite() { Ok(Number::Float(v.into())) } else { Err("this number is too large for 32 bits") };
    }
    if is_integer(text) {
        return text.parse().map(Number::Int).map_err(|_| WIDE);
    }
    let v: f64 = text.parse().map_err(|_| "this is not a number")?;
    if v.is_finite() { Ok(Number::F64(v.into())) } else { Err("this number is too large for 64 bits") }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The bits of a `0x…` token.
pub(crate) fn parse_bits(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` takes a sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// Writes bytes as lower-case hex digits.
pub(crate) fn write_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len());
    for &b in bytes {
        out.push(DIGITS[usize::from(b >> 4)] as char);
        out.push(DIGITS[usize::from(b & 15)] as char);
    }
}

/// The bytes of hex digits; `None` when a digit is wrong or missing.
pub(crate) fn parse_hex(text: &str) -> Option<Box<[u8]>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    pairs.iter().map(|&[hi, lo]| Some(digit(hi)? << 4 | digit(lo)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_bits() {
        for bits in [0, 1, 0x8000_0000, 0x3dcc_cccd, 0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x0080_0000] {
            let mut s = String::new();
            write_f32(&mut s, F32(bits));
            assert_eq!(parse_number(&s), Ok(Number::Float(F32(bits))), "{s}");
        }
        for bits in [0, 1, 1 << 63, 0x3fb9_9999_9999_999a, 0x7fef_ffff_ffff_ffff, 0x7ff0_0000_0000_0000] {
            let mut s = String::new();
            write_f64(&mut s, F64(bits));
            assert_eq!(parse_number(&s), Ok(Number::F64(F64(bits))), "{s}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bad in ["", "-", "1e", "nan", "-nanf", "1.5L", "9223372036854775808", "1e999", "1e39f", "0x10", "1_0", "-x"]
        {
            assert!(parse_number(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_hex("0aF"), None);
        assert_eq!(parse_hex("0g"), None);
        assert_eq!(parse_hex("0aFf").as_deref(), Some(&[10, 255][..]));
        assert_eq!(parse_bits("0x+1"), None);
    }
}
