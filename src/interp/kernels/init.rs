//! How do cells get their first values? Constants, literal values, random numbers.

use super::super::context::OpCx;
use super::super::error::{Fault, InterpError};
use super::super::tensor::{Data, Tensor};
use super::Kernel;
use super::lanes::{Lanes, from_f32};
use crate::convert::Narrowing;
use crate::ir::{AttrValue, DType, Scalar};

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("fill_constant", fill_constant),
    ("fill_any_like", fill_any_like),
    ("assign_value", assign_value),
    ("uniform_random", uniform_random),
    ("gaussian_random", gaussian_random),
];

/// Dimensions given as a tensor or as an attribute, or else those that the output is declared with.
fn out_shape(cx: &OpCx<'_, '_>) -> Result<Vec<usize>, InterpError> {
    let dims = match cx.opt_input("ShapeTensor")? {
        Some(t) => t.to_i64_vec(),
        None if !cx.input_names("ShapeTensorList").is_empty() => {
            cx.inputs("ShapeTensorList")?.iter().flat_map(Tensor::to_i64_vec).collect()
        }
        None => match cx.attr_ints("shape")? {
            Some(dims) => dims,
            None => {
                let declared = cx.output_names("Out").first().and_then(|&name| cx.declaration(name));
                cx.need("shape", declared.map(|id| cx.program().shape(id).to_vec()))?
            }
        },
    };
    dims.iter()
        .map(|&d| usize::try_from(d))
        .collect::<Result<_, _>>()
        .map_err(|_| Fault::BadAttr { name: "shape".into(), what: format!("{dims:?} has a negative dimension") }.into())
}

fn fill(cx: &mut OpCx<'_, '_>, dtype: DType, shape: &[usize], value: Tensor) -> Result<(), InterpError> {
    let n = cx.room(dtype, shape)?;
    let data = match value.cast(dtype, Narrowing::NearestEven)?.into_data() {
        Data::Bool(v) => Data::Bool(vec![v[0]; n]),
        Data::U8(v) => Data::U8(vec![v[0]; n]),
        Data::I8(v) => Data::I8(vec![v[0]; n]),
        Data::I16(v) => Data::I16(vec![v[0]; n]),
        Data::I32(v) => Data::I32(vec![v[0]; n]),
        Data::I64(v) => Data::I64(vec![v[0]; n]),
        Data::F16(v) => Data::F16(vec![v[0]; n]),
        Data::BF16(v) => Data::BF16(vec![v[0]; n]),
        Data::F32(v) => Data::F32(vec![v[0]; n]),
        Data::F64(v) => Data::F64(vec![v[0]; n]),
    };
    let out = Tensor::new(shape, data)?;
    cx.set("Out", out)
}

/// `fill_constant`: `str_value` counts before `value` when it is not empty (it keeps 64-bit integers).
fn fill_constant(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let shape = out_shape(cx)?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::F32);
    let value = if let Some(t) = cx.opt_input("ValueTensor")?.filter(|t| !t.is_empty()) {
        first(&t)
    } else {
        match cx.attr_str("str_value")?.map(str::trim).filter(|s| !s.is_empty()) {
            Some(text) => match text.parse::<i64>() {
                Ok(v) => Tensor::scalar(v),
                Err(_) => Tensor::scalar(text.parse::<f64>().map_err(|_| Fault::BadAttr {
                    name: "str_value".into(),
                    what: format!("{text:?} is not a number"),
                })?),
            },
            None => Tensor::scalar(cx.attr_f32("value", 0.0)?),
        }
    };
    fill(cx, dtype, &shape, value)
}

fn first(t: &Tensor) -> Tensor {
    match t.dtype() {
        d if d.is_float() => Tensor::scalar(t.to_f64_vec()[0]),
        _ => Tensor::scalar(t.to_i64_vec()[0]),
    }
}

fn fill_any_like(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let x = cx.input("X")?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(x.dtype());
    let value = Tensor::scalar(cx.attr_f32("value", 0.0)?);
    fill(cx, dtype, x.shape(), value)
}

/// `assign_value`: the first list attribute that is not empty, in the order in which Paddle tries them.
fn assign_value(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let shape = out_shape(cx)?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::F32);
    let n = cx.room(dtype, &shape)?;
    let names = ["bool_values", "fp32_values", "fp64_values", "int32_values", "int64_values", "values"];
    let mut data = None;
    for name in names {
        data = data.or(match cx.attr(name) {
            Some(AttrValue::Bools(v)) if !v.is_empty() => Some(Data::from(v.to_vec())),
            Some(AttrValue::Ints(v)) if !v.is_empty() => Some(v.to_vec().into()),
            Some(AttrValue::Longs(v)) if !v.is_empty() => Some(v.to_vec().into()),
            Some(AttrValue::Floats(v)) if !v.is_empty() => Some(v.iter().map(|x| x.get()).collect::<Vec<f32>>().into()),
            Some(AttrValue::F64s(v)) if !v.is_empty() => Some(v.iter().map(|x| x.get()).collect::<Vec<f64>>().into()),
            Some(AttrValue::Scalars(v)) if !v.is_empty() => Some(scalars(v)),
            _ => None,
        });
    }
    let data = match data {
        Some(d) => d,
        None if n == 0 => Data::zeros(dtype, 0)?,
        None => return Err(Fault::MissingAttr { name: names.join("` or `") }.into()),
    };
    let out = Tensor::new(&shape, data)?.cast(dtype, Narrowing::NearestEven)?;
    cx.set("Out", out)
}

fn scalars(values: &[Scalar]) -> Data {
    if values.iter().all(|s| matches!(s, Scalar::Bool(_) | Scalar::Long(_))) {
        let of = |s: &Scalar| match *s {
            Scalar::Bool(b) => i64::from(b),
            Scalar::Long(v) => v,
            _ => 0,
        };
        return values.iter().map(of).collect::<Vec<i64>>().into();
    }
    let of = |s: &Scalar| match *s {
        Scalar::Bool(b) => f64::from(u8::from(b)),
        Scalar::Long(v) => v as f64,
        Scalar::F64(v) | Scalar::C128(v, _) => v.get(),
    };
    values.iter().map(of).collect::<Vec<f64>>().into()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of the op's output; see [`super::Kernels`].
    pub(super) fn of(cx: &mut OpCx<'_, '_>) -> Result<Stream, InterpError> {
        let own = cx.attr_i64("seed", 0)? as u64;
        let Some(&name) = cx.output_names("Out").first() else {
            return Err(Fault::MissingSlot { slot: "Out".into() }.into());
        };
        let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01B3);
        let hash = cx.text(name).as_bytes().iter().fold(0xCBF2_9CE4_8422_2325, fnv);
        let seed = cx.options().seed;
        let draws = cx.machine.draws.entry(name).or_insert(0);
        let mut s = Stream(hash);
        for part in [seed, own, *draws] {
            s.0 = s.next() ^ part;
        }
        *draws += 1;
        Ok(s)
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The value that the caller gave for what an op would draw.
pub(super) fn given(
    cx: &OpCx<'_, '_>,
    slot: &str,
    dtype: DType,
    shape: &[usize],
) -> Result<Option<Tensor>, InterpError> {
    let Some(name) = cx.output_names(slot).first() else { return Ok(None) };
    match cx.machine.given.get(name) {
        Some(t) if t.shape() != shape || t.dtype() != dtype => {
            let what = format!("{t:?} given, {dtype}{shape:?} drawn");
            Err(Fault::Feed { name: cx.text(*name).to_owned(), what }.into())
        }
        t => Ok(t.cloned()),
    }
}

fn random(cx: &mut OpCx<'_, '_>, mut draw: impl FnMut(&mut Stream) -> f64) -> Result<(), InterpError> {
    let shape = out_shape(cx)?;
    let dtype = cx.attr_dtype("dtype")?.unwrap_or(DType::F32);
    let n = cx.room(dtype, &shape)?;
    if let Some(out) = given(cx, "Out", dtype, &shape)? {
        return cx.set("Out", out);
    }
    let mut stream = Stream::of(cx)?;
    let out = match dtype {
        DType::F64 => Lanes::F64((0..n).map(|_| draw(&mut stream)).collect()).tensor(dtype, &shape)?,
        _ => from_f32((0..n).map(|_| draw(&mut stream) as f32).collect(), dtype, &shape)?,
    };
    cx.set("Out", out)
}

/// Uniform in [min, max): attributes, or (in PIR) tensors of one element.
fn uniform_random(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let bound = |cx: &OpCx<'_, '_>, slot: &str, attr: &str, default: f32| match cx.opt_input(slot)? {
        Some(t) if !t.is_empty() => Ok(t.to_f64_vec()[0]),
        _ => cx.attr_f32(attr, default).map(f64::from),
    };
    let (min, max) = (bound(cx, "Min", "min", -1.0)?, bound(cx, "Max", "max", 1.0)?);
    random(cx, |s| min + (max - min) * s.unit())
}

/// Normal, by Box and Muller's method (one of each pair is used).
fn gaussian_random(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let (mean, std) = (f64::from(cx.attr_f32("mean", 0.0)?), f64::from(cx.attr_f32("std", 1.0)?));
    random(cx, |s| {
        let (u, v) = (1.0 - s.unit(), s.unit());
        mean + std * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    })
}
