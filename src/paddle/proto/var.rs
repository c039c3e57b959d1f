//! How is one declaration read and written? Name, kind, tensor description and flags; anything else stays bytes.
//!
//! Protobuf merges a message field that is written twice. So what a declaration's type holds beyond
//! the IR (a reader's list, a tuple, a field of a later Paddle) is kept as a second `type` field among
//! the unknown bytes: readers of the file see one type, and an edited declaration loses nothing.

use super::error::{ProtoError, ProtoErrorKind as Kind};
use super::schema::{lod_tensor, tensor, var, var_type};
use super::wire::{LEN, Part, Reader, Value, put_bytes, put_head, put_int, put_tag, put_varint, varint_len};
use crate::ir::{DType, VarFlag, VarFlags, VarKind};

/// Stands for "the file does not say": no Paddle type has this number.
pub(crate) const NO_DTYPE: DType = DType::Other(-1);

/// A declaration without its name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Decl {
    pub kind: VarKind,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub lod_level: Option<i32>,
    pub flags: VarFlags,
}

/// What a tensor message says, and what it says beyond the IR.
#[derive(Default)]
struct Tensor {
    present: bool,
    dtype: Option<i32>,
    dims: Vec<i64>,
    lod_level: Option<i32>,
    /// unknown fields of the `TensorDesc`
    unknown: Vec<u8>,
    /// unknown fields of the message around it
    around: Vec<u8>,
    inner: bool,
}

impl Tensor {
    fn desc(&mut self, file: &[u8], message: Part) -> Result<(), ProtoError> {
        let mut r = Reader::new(file, message);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (tensor::DATA_TYPE, Value::Varint(v)) => self.dtype = Some(v as i32),
                (tensor::DIMS, Value::Varint(v)) => self.dims.push(v as i64),
                (tensor::DIMS, Value::Len(list)) => {
                    Reader::packed_varints(file, list, |v| self.dims.push(v as i64))?;
                }
                _ => self.unknown.extend_from_slice(f.whole.of(file)),
            }
        }
        Ok(())
    }

    fn lod(&mut self, file: &[u8], message: Part) -> Result<(), ProtoError> {
        let mut r = Reader::new(file, message);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (lod_tensor::TENSOR, Value::Len(part)) => {
                    self.inner = true;
                    self.desc(file, part)?;
                }
                (lod_tensor::LOD_LEVEL, Value::Varint(v)) => self.lod_level = Some(v as i32),
                _ => self.around.extend_from_slice(f.whole.of(file)),
            }
        }
        Ok(())
    }
}

/// The field of `VarType` that describes the tensor of a kind.
fn tensor_field(kind: VarKind) -> Option<u32> {
    match kind {
        VarKind::SELECTED_ROWS => Some(var_type::SELECTED_ROWS),
        VarKind::LOD_TENSOR => Some(var_type::LOD_TENSOR),
        VarKind::LOD_TENSOR_ARRAY => Some(var_type::TENSOR_ARRAY),
        _ => None,
    }
}

/// Reads a `VarDesc` message: its name, what the IR holds, and the fields that it does not.
pub(crate) fn decode(file: &[u8], message: Part) -> Result<(Part, Decl, Vec<u8>), ProtoError> {
    let missing = |field| ProtoError::new(Kind::Missing(field), message.start as usize);
    let (mut name, mut types, mut flags, mut unknown) = (None, Vec::new(), VarFlags::default(), Vec::new());
    let mut r = Reader::new(file, message);
    while let Some(f) = r.next()? {
        let flag = match (f.number, f.value) {
            (var::NAME, Value::Len(part)) => {
                name = Some(part);
                continue;
            }
            (var::TYPE, Value::Len(part)) => {
                types.push(part);
                continue;
            }
            (var::PERSISTABLE, Value::Varint(v)) => (VarFlag::Persistable, v),
            (var::NEED_CHECK_FEED, Value::Varint(v)) => (VarFlag::NeedCheckFeed, v),
            (var::IS_PARAMETER, Value::Varint(v)) => (VarFlag::IsParameter, v),
            (var::STOP_GRADIENT, Value::Varint(v)) => (VarFlag::StopGradient, v),
            _ => {
                unknown.extend_from_slice(f.whole.of(file));
                continue;
            }
        };
        flags = flags.with(flag.0, Some(flag.1 != 0));
    }
    let name = name.ok_or_else(|| missing("name"))?;
    let mut kind = None;
    for &part in &types {
        let mut r = Reader::new(file, part);
        while let Some(f) = r.next()? {
            if let (var_type::TYPE, Value::Varint(v)) = (f.number, f.value) {
                kind = Some(VarKind(v as i32));
            }
        }
    }
    let kind = kind.ok_or_else(|| missing("type"))?;
    let (t, beyond) = type_of(file, &types, kind)?;
    let mut decl = Decl { kind, dtype: NO_DTYPE, shape: t.dims, lod_level: t.lod_level, flags };
    if t.present {
        if kind.has_lod() && !t.inner {
            return Err(missing("tensor"));
        }
        decl.dtype = DType::from_code(t.dtype.ok_or_else(|| missing("data_type"))?);
    }
    if !beyond.is_empty() {
        let mut first = Vec::new();
        put_bytes(&mut first, var::TYPE, &beyond);
        unknown.splice(0..0, first);
    }
    Ok((name, decl, unknown))
}

/// The tensor of a kind from all `type` fields together, and what they hold beyond it.
fn type_of(file: &[u8], types: &[Part], kind: VarKind) -> Result<(Tensor, Vec<u8>), ProtoError> {
    let (mut t, mut beyond) = (Tensor::default(), Vec::new());
    for &part in types {
        let mut r = Reader::new(file, part);
        while let Some(f) = r.next()? {
            match (f.number, f.value) {
                (var_type::TYPE, Value::Varint(_)) => {}
                (number, Value::Len(part)) if Some(number) == tensor_field(kind) => {
                    t.present = true;
                    if kind.has_lod() { t.lod(file, part)? } else { t.desc(file, part)? }
                }
                _ => beyond.extend_from_slice(f.whole.of(file)),
            }
        }
    }
    if let Some(field) = tensor_field(kind) {
        let mut inner = std::mem::take(&mut t.unknown);
        if kind.has_lod() {
            let mut around = Vec::new();
            if !inner.is_empty() {
                put_bytes(&mut around, lod_tensor::TENSOR, &inner);
            }
            around.append(&mut t.around);
            inner = around;
        }
        if !inner.is_empty() {
            put_bytes(&mut beyond, field, &inner);
        }
    }
    Ok((t, beyond))
}

/// What the encoder needs of a declaration.
#[derive(Clone, Copy)]
pub(crate) struct DeclRef<'a> {
    pub name: &'a [u8],
    pub kind: VarKind,
    pub dtype: DType,
    pub shape: &'a [i64],
    pub lod_level: Option<i32>,
    pub flags: VarFlags,
}

const fn int_len(value: i32) -> usize {
    1 + varint_len(value as i64 as u64)
}

impl DeclRef<'_> {
    fn tensor_len(self) -> usize {
        int_len(self.dtype.code()) + self.shape.iter().map(|&d| 1 + varint_len(d as u64)).sum::<usize>()
    }

    /// The field of the tensor description; none when the kind has none, or when nothing is stated.
    fn tensor(self) -> Option<u32> {
        let stated = self.dtype != NO_DTYPE || !self.shape.is_empty() || self.lod_level.is_some();
        tensor_field(self.kind).filter(|_| stated)
    }

    fn lod_len(self, tensor: usize) -> usize {
        1 + varint_len(tensor as u64) + tensor + self.lod_level.map_or(0, int_len)
    }

    /// Bytes of the tensor description, and of the message around it.
    fn type_len(self) -> (usize, usize, usize) {
        let kind = int_len(self.kind.0);
        if self.tensor().is_none() {
            return (0, 0, kind);
        }
        let tensor = self.tensor_len();
        let desc = if self.kind.has_lod() { self.lod_len(tensor) } else { tensor };
        (tensor, desc, kind + 1 + varint_len(desc as u64) + desc)
    }

    /// Bytes that [`Self::put`] writes.
    pub fn len(self) -> usize {
        let (_, _, ty) = self.type_len();
        let flags = VarFlags::ALL.iter().filter(|&&f| self.flags.get(f).is_some()).count() * 2;
        super::wire::counted_len(self.name.len()) + 1 + varint_len(ty as u64) + ty + flags
    }

    /// Writes the fields of a `VarDesc` as protobuf does.
    pub fn put(self, out: &mut Vec<u8>) {
        put_bytes(out, var::NAME, self.name);
        let (tensor, desc, ty) = self.type_len();
        put_head(out, var::TYPE, ty);
        put_int(out, var_type::TYPE, i64::from(self.kind.0));
        if let Some(field) = self.tensor() {
            put_head(out, field, desc);
            if self.kind.has_lod() {
                put_tag(out, lod_tensor::TENSOR, LEN);
                put_varint(out, tensor as u64);
            }
            put_int(out, tensor::DATA_TYPE, i64::from(self.dtype.code()));
            for &d in self.shape {
                put_int(out, tensor::DIMS, d);
            }
            if let Some(level) = self.lod_level.filter(|_| self.kind.has_lod()) {
                put_int(out, lod_tensor::LOD_LEVEL, i64::from(level));
            }
        }
        for (i, &flag) in VarFlags::ALL.iter().enumerate() {
            if let Some(v) = self.flags.get(flag) {
                put_int(out, var::PERSISTABLE + i as u32, i64::from(v));
            }
        }
    }
}
