//! How do floats, dtypes, kinds and bytes look in the document? As strings, so that no bit is lost.

use crate::ir::{DType, F32, F64, VarKind};
use crate::text::{parse_hex, write_hex};
use serde::{Deserialize, Serialize, Serializer};

/// Bytes as a string of hex digits.
#[derive(Clone, PartialEq)]
pub(super) struct Hex(pub(super) Box<[u8]>);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        write_hex(&mut text, &self.0);
        s.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        parse_hex(&text).map(Hex).ok_or_else(|| serde::de::Error::custom("expected pairs of hex digits"))
    }
}

/// Serde for a type with a text of its own.
macro_rules! as_text {
    ($type:ty, $wanted:literal, $write:expr, $read:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                #[allow(clippy::redundant_closure_call)]
                s.collect_str(&$write(self))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                #[allow(clippy::redundant_closure_call)]
                $read(text.as_str()).ok_or_else(|| {
                    serde::de::Error::custom(format_args!(concat!("expected ", $wanted, ", found {:?}"), text))
                })
            }
        }
    };
}

as_text!(F32, "a 32-bit float as text", |v: &F32| float_text(v.get().into(), format!("{:?}", v.get()), v.0, 8), |t| {
    read_float(
        t,
        |t| t.parse().ok().filter(|v: &f32| !v.is_nan()).map(F32::from),
        |bits| u32::try_from(bits).ok().map(F32).filter(|v| v.get().is_nan()),
    )
});
as_text!(F64, "a 64-bit float as text", |v: &F64| float_text(v.get(), format!("{:?}", v.get()), v.0, 16), |t| {
    read_float(
        t,
        |t| t.parse().ok().filter(|v: &f64| !v.is_nan()).map(F64::from),
        |bits| Some(F64(bits)).filter(|v| v.get().is_nan()),
    )
});
as_text!(DType, "a dtype", |v: &DType| *v, |t: &str| {
    DType::parse(t).or_else(|| numbered(t, "dtype(").map(DType::from_code))
});
as_text!(VarKind, "a kind of variable", kind_text, |t: &str| {
    crate::text::kind_of_word(t).or_else(|| numbered(t, "kind(").map(VarKind))
});

fn kind_text(kind: &VarKind) -> String {
    crate::text::kind_word(*kind).map_or_else(|| format!("kind({})", kind.0), str::to_owned)
}

fn numbered(text: &str, prefix: &str) -> Option<i32> {
    text.strip_prefix(prefix)?.strip_suffix(')')?.parse().ok()
}

fn float_text(v: f64, shortest: String, bits: impl Into<u64>, digits: usize) -> String {
    if v.is_nan() { format!("nan(0x{:0digits$x})", bits.into()) } else { shortest }
}

fn read_float<T>(text: &str, number: impl Fn(&str) -> Option<T>, bits: impl Fn(u64) -> Option<T>) -> Option<T> {
    match text.strip_prefix("nan(").and_then(|t| t.strip_suffix(')')) {
        Some(hex) => bits(crate::text::parse_bits(hex)?),
        None => number(text),
    }
}
