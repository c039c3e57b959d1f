//! How are attributes and types spelt in the file? Each kind that the IR can hold, and its text again.
//!
//! What does not encode to the same text again keeps its text, beside the value or instead of it.

use super::json;
use crate::ir::{AttrValue, DType};

/// The tag of [`AttrValue::Unknown`] for an attribute of PIR: its `AT` as text.
pub const UNKNOWN_TAG: i32 = 1_000_000;

const fn long_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "bool",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "float16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::BF16 => "bfloat16",
        DType::C64 => "complex64",
        DType::C128 => "complex128",
        DType::Other(_) => return None,
    })
}

/// Attributes that hold an element type.
fn is_dtype(name: &str) -> bool {
    matches!(name, "dtype" | "in_dtype" | "out_dtype")
}

/// The value of an attribute's `AT`, by the attribute's name in the file.
pub(super) fn decode(name: &str, at: &str) -> AttrValue {
    decode_known(name, at).unwrap_or_else(|| AttrValue::Unknown { tag: UNKNOWN_TAG, raw: at.as_bytes().into() })
}

/// `#` and `D` of an object that has these two.
fn parts(at: &str) -> Option<(&str, &str)> {
    let (mut kind, mut data) = (None, None);
    for (key, value) in json::object(at)? {
        match key {
            "#" if kind.is_none() => kind = value.strip_prefix('"')?.strip_suffix('"'),
            "D" if data.is_none() => data = Some(value),
            _ => return None,
        }
    }
    Some((kind?, data?))
}

fn decode_known(name: &str, at: &str) -> Option<AttrValue> {
    let (kind, data) = parts(at)?;
    Some(match kind {
        "0.a_bool" => AttrValue::Bool(data.parse().ok()?),
        "0.a_i32" => AttrValue::Int(data.parse().ok()?),
        "0.a_i64" => AttrValue::Long(data.parse().ok()?),
        "0.a_f32" => AttrValue::Float((data.parse::<f64>().ok()? as f32).into()),
        "0.a_f64" => AttrValue::F64(data.parse::<f64>().ok()?.into()),
        "0.a_str" => AttrValue::str(json::string(data)?),
        "1.a_dtype" => AttrValue::Int(DType::parse(&json::string(data)?)?.code()),
        "1.a_intarray" => AttrValue::Longs(json::list(data)?.map(|v| v.parse().ok()).collect::<Option<_>>()?),
        "1.a_place" if name == "place" => {
            let parts: Vec<&str> = json::list(data)?.collect();
            let [kind, id, "\"\""] = parts[..] else { return None };
            AttrValue::Ints([kind.parse().ok()?, id.parse().ok()?].into())
        }
        "0.a_array" => array(data)?,
        _ => return None,
    })
}

fn array(data: &str) -> Option<AttrValue> {
    let (mut of, mut items) = (None, Vec::new());
    for item in json::list(data)? {
        let (kind, data) = parts(item)?;
        if *of.get_or_insert(kind) != kind {
            return None;
        }
        items.push(data);
    }
    let items = items.into_iter();
    Some(match of {
        None => AttrValue::Longs([].into()),
        Some("0.a_bool") => AttrValue::Bools(items.map(|v| v.parse().ok()).collect::<Option<_>>()?),
        Some("0.a_i32") => AttrValue::Ints(items.map(|v| v.parse().ok()).collect::<Option<_>>()?),
        Some("0.a_i64") => AttrValue::Longs(items.map(|v| v.parse().ok()).collect::<Option<_>>()?),
        Some("0.a_f32") => {
            AttrValue::Floats(items.map(|v| Some((v.parse::<f64>().ok()? as f32).into())).collect::<Option<_>>()?)
        }
        Some("0.a_f64") => AttrValue::F64s(items.map(|v| Some(v.parse::<f64>().ok()?.into())).collect::<Option<_>>()?),
        Some("0.a_str") => AttrValue::Strings(items.map(|v| Some(json::string(v)?.into())).collect::<Option<_>>()?),
        Some(_) => return None,
    })
}

/// The `AT` of a value; `None` for what PIR has no kind for.
pub(super) fn encode(name: &str, value: &AttrValue) -> Option<String> {
    let one = |kind: &str, data: &str| format!("{{\"#\":\"{kind}\",\"D\":{data}}}");
    fn many<T>(kind: &str, items: &[T], data: impl Fn(&T) -> Option<String>) -> Option<String> {
        let items: Option<Vec<String>> =
            items.iter().map(|v| Some(format!("{{\"#\":\"{kind}\",\"D\":{}}}", data(v)?))).collect();
        Some(format!("{{\"#\":\"0.a_array\",\"D\":[{}]}}", items?.join(",")))
    }
    Some(match value {
        AttrValue::Bool(v) => one("0.a_bool", &v.to_string()),
        AttrValue::Int(code) if is_dtype(name) => one("1.a_dtype", &json::quote(long_name(DType::from_code(*code))?)),
        AttrValue::Int(v) => one("0.a_i32", &v.to_string()),
        AttrValue::Long(v) => one("0.a_i64", &v.to_string()),
        AttrValue::Float(v) => one("0.a_f32", &json::float(f64::from(v.get()))?),
        AttrValue::F64(v) => one("0.a_f64", &json::float(v.get())?),
        AttrValue::String(v) => one("0.a_str", &json::quote(v)),
        AttrValue::Ints(v) if name == "place" && v.len() == 2 => one("1.a_place", &format!("[{},{},\"\"]", v[0], v[1])),
        AttrValue::Longs(v) if name == "shape" => {
            let items: Vec<String> = v.iter().map(i64::to_string).collect();
            one("1.a_intarray", &format!("[{}]", items.join(",")))
        }
        AttrValue::Bools(v) => many("0.a_bool", v, |v| Some(v.to_string()))?,
        AttrValue::Ints(v) => many("0.a_i32", v, |v| Some(v.to_string()))?,
        AttrValue::Longs(v) => many("0.a_i64", v, |v| Some(v.to_string()))?,
        AttrValue::Floats(v) => many("0.a_f32", v, |v| json::float(f64::from(v.get())))?,
        AttrValue::F64s(v) => many("0.a_f64", v, |v| json::float(v.get()))?,
        AttrValue::Strings(v) => many("0.a_str", v, |v| Some(json::quote(v)))?,
        AttrValue::Unknown { tag: UNKNOWN_TAG, raw } => std::str::from_utf8(raw).ok()?.to_owned(),
        _ => return None,
    })
}

const DTYPES: [(&str, DType); 12] = [
    ("0.t_bool", DType::Bool),
    ("0.t_i8", DType::I8),
    ("0.t_ui8", DType::U8),
    ("0.t_i16", DType::I16),
    ("0.t_i32", DType::I32),
    ("0.t_i64", DType::I64),
    ("0.t_f16", DType::F16),
    ("0.t_bf16", DType::BF16),
    ("0.t_f32", DType::F32),
    ("0.t_f64", DType::F64),
    ("0.t_c64", DType::C64),
    ("0.t_c128", DType::C128),
];

/// Element type and dimensions of a dense tensor type.
pub(super) fn tensor_type(text: &str) -> Option<(DType, Vec<i64>)> {
    let ("0.t_dtensor", data) = parts(text)? else { return None };
    let mut items = json::list(data)?;
    let (element, dims) = (items.next()?, items.next()?);
    let name = element.strip_prefix("{\"#\":\"")?.strip_suffix("\"}")?;
    let dtype = DTYPES.iter().find(|(n, _)| *n == name)?.1;
    Some((dtype, json::list(dims)?.map(|d| d.parse().ok()).collect::<Option<_>>()?))
}

/// The type of a dense tensor, as the file's writer spells it.
pub(super) fn put_type(out: &mut String, dtype: DType, dims: &[i64]) -> bool {
    use std::fmt::Write;
    let Some((name, _)) = DTYPES.iter().find(|(_, d)| *d == dtype) else { return false };
    let _ = write!(out, "{{\"#\":\"0.t_dtensor\",\"D\":[{{\"#\":\"{name}\"}},[");
    for (i, d) in dims.iter().enumerate() {
        let _ = write!(out, "{}{d}", if i > 0 { "," } else { "" });
    }
    out.push_str("],\"NCHW\",[],0]}");
    true
}
