//! How is one attribute read and written? By its `AttrType`; what a value cannot hold stays beside it as bytes.
//!
//! [`decode`] encodes what it made and compares: whenever the bytes differ, they are kept with the
//! attribute, so that nothing here must foresee every unusual spelling.

use super::error::{ProtoError, ProtoErrorKind as Kind};
use super::schema::{attr as a, attr_type as ty, complex, scalar};
use super::wire::{
    FIXED32, FIXED64, Part, Reader, Value, counted_len, put_bytes, put_head, put_int, put_tag, varint_len,
};
use crate::ir::{Attr, AttrValue, F32, F64, Program, Scalar};
use crate::names::{Name, Names, Symbols};

/// Reads an `OpDesc.Attr` message.
pub(crate) fn decode(file: &[u8], message: Part, program: &mut Program) -> Result<Attr, ProtoError> {
    let (mut name, mut kind) = (None, None);
    let mut r = Reader::new(file, message);
    while let Some(f) = r.next()? {
        match (f.number, f.value) {
            (a::NAME, Value::Len(part)) => name = Some(part),
            (a::TYPE, Value::Varint(v)) => kind = Some(v as i32),
            _ => {}
        }
    }
    let missing = |field| ProtoError::new(Kind::Missing(field), message.start as usize);
    let name = name.ok_or_else(|| missing("name"))?;
    let kind = kind.ok_or_else(|| missing("type"))?;
    let text = std::str::from_utf8(name.of(file));
    let text = text.map_err(|_| ProtoError::new(Kind::NotUtf8("attribute name"), name.start as usize))?;
    let value = match (Fields { file, message }).value(kind, program)? {
        Some(value) => value,
        None => AttrValue::Unknown { tag: kind, raw: other_fields(file, message)? },
    };
    let name = program.symbol(text);
    let mut again = Vec::with_capacity(message.len());
    encode(text, &value, program.names(), &mut again);
    let raw = message.of(file);
    Ok(Attr { name, value, raw: (again != raw).then(|| raw.into()) })
}

/// All fields but the name and the type.
fn other_fields(file: &[u8], message: Part) -> Result<Box<[u8]>, ProtoError> {
    let mut raw = Vec::new();
    let mut r = Reader::new(file, message);
    while let Some(f) = r.next()? {
        if !matches!((f.number, f.value), (a::NAME, Value::Len(_)) | (a::TYPE, Value::Varint(_))) {
            raw.extend_from_slice(f.whole.of(file));
        }
    }
    Ok(raw.into())
}

/// The value fields of one attribute. As in protobuf, the last of a singular field counts, an absent one is zero,
/// and a list may be packed.
struct Fields<'a> {
    file: &'a [u8],
    message: Part,
}

impl Fields<'_> {
    fn each(&self, number: u32, mut f: impl FnMut(Value)) -> Result<(), ProtoError> {
        let mut r = Reader::new(self.file, self.message);
        while let Some(field) = r.next()? {
            if field.number == number {
                f(field.value);
            }
        }
        Ok(())
    }

    fn ints<T>(&self, number: u32, of: impl Fn(u64) -> T) -> Result<Vec<T>, ProtoError> {
        let mut list = Vec::new();
        let mut packed = Ok(());
        self.each(number, |v| match v {
            Value::Varint(v) => list.push(of(v)),
            Value::Len(part) if packed.is_ok() => {
                packed = Reader::packed_varints(self.file, part, |v| list.push(of(v)));
            }
            _ => {}
        })?;
        packed.map(|()| list)
    }

    fn int(&self, number: u32) -> Result<u64, ProtoError> {
        let mut value = 0;
        self.each(number, |v| {
            if let Value::Varint(v) = v {
                value = v;
            }
        })?;
        Ok(value)
    }

    fn f32s(&self) -> Result<Box<[F32]>, ProtoError> {
        let mut list = Vec::new();
        let mut packed = Ok(());
        self.each(a::FLOATS, |v| match v {
            Value::Fixed32(v) => list.push(F32(v)),
            Value::Len(part) if packed.is_ok() => {
                packed = Reader::packed_fixed(self.file, part, |w| list.push(F32(u32::from_le_bytes(w))));
            }
            _ => {}
        })?;
        packed.map(|()| list.into())
    }

    fn f64s(&self) -> Result<Box<[F64]>, ProtoError> {
        let mut list = Vec::new();
        let mut packed = Ok(());
        self.each(a::FLOAT64S, |v| match v {
            Value::Fixed64(v) => list.push(F64(v)),
            Value::Len(part) if packed.is_ok() => {
                packed = Reader::packed_fixed(self.file, part, |w| list.push(F64(u64::from_le_bytes(w))));
            }
            _ => {}
        })?;
        packed.map(|()| list.into())
    }

    fn f64(&self, number: u32) -> Result<F64, ProtoError> {
        let mut value = 0;
        self.each(number, |v| {
            if let Value::Fixed64(v) = v {
                value = v;
            }
        })?;
        Ok(F64(value))
    }

    fn parts(&self, number: u32) -> Result<Vec<Part>, ProtoError> {
        let mut list = Vec::new();
        self.each(number, |v| {
            if let Value::Len(part) = v {
                list.push(part);
            }
        })?;
        Ok(list)
    }

    /// Strings, or `None` when one is not UTF-8.
    fn texts(&self, number: u32) -> Result<Option<Vec<&str>>, ProtoError> {
        Ok(self.parts(number)?.into_iter().map(|p| std::str::from_utf8(p.of(self.file)).ok()).collect())
    }

    /// The last string, empty when there is none; `None` when it is not UTF-8.
    fn text(&self, number: u32) -> Result<Option<&str>, ProtoError> {
        Ok(self.texts(number)?.map(|t| t.last().copied().unwrap_or_default()))
    }

    /// The value, or `None` when no [`AttrValue`] but the unknown one can hold it.
    fn value(&self, kind: i32, program: &mut Program) -> Result<Option<AttrValue>, ProtoError> {
        use AttrValue as V;
        Ok(Some(match kind {
            ty::INT => V::Int(self.int(a::I)? as i32),
            ty::FLOAT => {
                let mut bits = 0;
                self.each(a::F, |v| {
                    if let Value::Fixed32(v) = v {
                        bits = v;
                    }
                })?;
                V::Float(F32(bits))
            }
            ty::STRING => match self.text(a::S)? {
                Some(t) => V::str(t),
                None => return Ok(None),
            },
            ty::INTS => V::Ints(self.ints(a::INTS, |v| v as i32)?.into()),
            ty::FLOATS => V::Floats(self.f32s()?),
            ty::STRINGS => match self.texts(a::STRINGS)? {
                Some(t) => V::strs(t),
                None => return Ok(None),
            },
            ty::BOOLEAN => V::Bool(self.int(a::B)? != 0),
            ty::BOOLEANS => V::Bools(self.ints(a::BOOLS, |v| v != 0)?.into()),
            ty::BLOCK => V::Block(self.int(a::BLOCK_IDX)? as i32),
            ty::LONG => V::Long(self.int(a::L)? as i64),
            ty::BLOCKS => V::Blocks(self.ints(a::BLOCKS_IDX, |v| v as i32)?.into()),
            ty::LONGS => V::Longs(self.ints(a::LONGS, |v| v as i64)?.into()),
            ty::FLOAT64S => V::F64s(self.f64s()?),
            ty::VAR => match self.text(a::VAR_NAME)? {
                Some(t) => V::Var(program.intern(t)),
                None => return Ok(None),
            },
            ty::VARS => match self.texts(a::VARS_NAME)? {
                Some(t) => V::Vars(t.into_iter().map(|t| program.intern(t)).collect()),
                None => return Ok(None),
            },
            ty::FLOAT64 => V::F64(self.f64(a::FLOAT64)?),
            ty::SCALAR => match self.parts(a::SCALAR)?.last().map(|&m| self.scalar(m)).transpose()?.flatten() {
                Some(s) => V::Scalar(s),
                None => return Ok(None),
            },
            ty::SCALARS => {
                let mut list = Vec::new();
                for m in self.parts(a::SCALARS)? {
                    match self.scalar(m)? {
                        Some(s) => list.push(s),
                        None => return Ok(None),
                    }
                }
                V::Scalars(list.into())
            }
            _ => return Ok(None),
        }))
    }

    /// A `Scalar` message; `None` when its type is unknown.
    fn scalar(&self, message: Part) -> Result<Option<Scalar>, ProtoError> {
        let s = Fields { file: self.file, message };
        Ok(Some(match s.int(scalar::TYPE)? as i32 {
            scalar::BOOLEAN => Scalar::Bool(s.int(scalar::B)? != 0),
            scalar::LONG => Scalar::Long(s.int(scalar::I)? as i64),
            scalar::FLOAT64 => Scalar::F64(s.f64(scalar::R)?),
            scalar::COMPLEX128 => match s.parts(scalar::C)?.last() {
                Some(&message) => {
                    let c = Fields { file: self.file, message };
                    Scalar::C128(c.f64(complex::R)?, c.f64(complex::I)?)
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }
}

/// Writes one attribute of a list: its kept bytes, or its value.
pub(crate) fn put(attr: &Attr, symbols: &Symbols, names: &Names, out: &mut Vec<u8>) {
    match &attr.raw {
        Some(raw) => out.extend_from_slice(raw),
        None => encode(symbols.get(attr.name), &attr.value, names, out),
    }
}

/// Writes the fields of an `OpDesc.Attr` as protobuf does.
pub(crate) fn encode(name: &str, value: &AttrValue, names: &Names, out: &mut Vec<u8>) {
    use AttrValue as V;
    put_bytes(out, a::NAME, name.as_bytes());
    put_int(out, a::TYPE, i64::from(type_of(value)));
    let ints = |out: &mut Vec<u8>, field, list: &[i32]| list.iter().for_each(|&v| put_int(out, field, i64::from(v)));
    let name = |n: Name| names.get(n).as_bytes();
    match value {
        V::Int(v) => put_int(out, a::I, i64::from(*v)),
        V::Float(v) => put_f32(out, a::F, *v),
        V::String(v) => put_bytes(out, a::S, v.as_bytes()),
        V::Ints(v) => ints(out, a::INTS, v),
        V::Floats(v) => v.iter().for_each(|&v| put_f32(out, a::FLOATS, v)),
        V::Strings(v) => v.iter().for_each(|v| put_bytes(out, a::STRINGS, v.as_bytes())),
        V::Bool(v) => put_int(out, a::B, i64::from(*v)),
        V::Bools(v) => v.iter().for_each(|&v| put_int(out, a::BOOLS, i64::from(v))),
        V::Block(v) => put_int(out, a::BLOCK_IDX, i64::from(*v)),
        V::Blocks(v) => ints(out, a::BLOCKS_IDX, v),
        V::Long(v) => put_int(out, a::L, *v),
        V::Longs(v) => v.iter().for_each(|&v| put_int(out, a::LONGS, v)),
        V::F64(v) => put_f64(out, a::FLOAT64, *v),
        V::F64s(v) => v.iter().for_each(|&v| put_f64(out, a::FLOAT64S, v)),
        V::Var(v) => put_bytes(out, a::VAR_NAME, name(*v)),
        V::Vars(v) => v.iter().for_each(|&v| put_bytes(out, a::VARS_NAME, name(v))),
        V::Scalar(v) => put_scalar(out, a::SCALAR, *v),
        V::Scalars(v) => v.iter().for_each(|&v| put_scalar(out, a::SCALARS, v)),
        V::Unknown { raw, .. } => out.extend_from_slice(raw),
    }
}

/// The `AttrType` of a value.
fn type_of(value: &AttrValue) -> i32 {
    use AttrValue as V;
    match value {
        V::Int(_) => ty::INT,
        V::Float(_) => ty::FLOAT,
        V::String(_) => ty::STRING,
        V::Ints(_) => ty::INTS,
        V::Floats(_) => ty::FLOATS,
        V::Strings(_) => ty::STRINGS,
        V::Bool(_) => ty::BOOLEAN,
        V::Bools(_) => ty::BOOLEANS,
        V::Block(_) => ty::BLOCK,
        V::Blocks(_) => ty::BLOCKS,
        V::Long(_) => ty::LONG,
        V::Longs(_) => ty::LONGS,
        V::F64(_) => ty::FLOAT64,
        V::F64s(_) => ty::FLOAT64S,
        V::Var(_) => ty::VAR,
        V::Vars(_) => ty::VARS,
        V::Scalar(_) => ty::SCALAR,
        V::Scalars(_) => ty::SCALARS,
        V::Unknown { tag, .. } => *tag,
    }
}

fn put_f32(out: &mut Vec<u8>, field: u32, value: F32) {
    put_tag(out, field, FIXED32);
    out.extend_from_slice(&value.0.to_le_bytes());
}

fn put_f64(out: &mut Vec<u8>, field: u32, value: F64) {
    put_tag(out, field, FIXED64);
    out.extend_from_slice(&value.0.to_le_bytes());
}

fn put_scalar(out: &mut Vec<u8>, field: u32, value: Scalar) {
    // A complex number is two tagged words.
    const COMPLEX: usize = 18;
    let (kind, size) = match value {
        Scalar::Bool(_) => (scalar::BOOLEAN, 2),
        Scalar::Long(v) => (scalar::LONG, 1 + varint_len(v as u64)),
        Scalar::F64(_) => (scalar::FLOAT64, 9),
        Scalar::C128(..) => (scalar::COMPLEX128, counted_len(COMPLEX)),
    };
    put_head(out, field, 2 + size);
    put_int(out, scalar::TYPE, i64::from(kind));
    match value {
        Scalar::Bool(v) => put_int(out, scalar::B, i64::from(v)),
        Scalar::Long(v) => put_int(out, scalar::I, v),
        Scalar::F64(v) => put_f64(out, scalar::R, v),
        Scalar::C128(re, im) => {
            put_head(out, scalar::C, COMPLEX);
            put_f64(out, complex::R, re);
            put_f64(out, complex::I, im);
        }
    }
}
