//! safetensors: a u64 header size, a JSON header, the data without gaps.
//!
//! The types, and the form of the header that is written, are those of the `safetensors` crate. The
//! header is read here, because the crate's reader keeps only the last of repeated names, leaves
//! tensors without elements in random order, adds up the sizes without a check, and holds a header
//! as a tree 16 times its size. `tests/ckpt_props.rs` compares the two readers on mutated files.

use super::error::CkptError;
use super::index::NameIndex;
use super::limits::{MAX_ENTRIES, MAX_HEADER, MAX_NAME, MAX_RANK};
use super::map::{Access, Source};
use super::stream::check_part;
use super::write::AtomicFile;
use super::{Checkpoint, TensorData, TensorEntry, byte_len, entry_at, no_such_type};
use crate::ir::DType;
use ::safetensors::tensor::{Dtype, TensorInfo};
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// An open safetensors file.
pub struct SafetensorsFile {
    source: Source,
    entries: Vec<TensorEntry>,
    /// where each entry's data begins in the file
    starts: Vec<u64>,
    types: Vec<Dtype>,
    index: NameIndex,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file and checks its header whole.
    pub fn open(path: &Path, access: Access) -> Result<SafetensorsFile, CkptError> {
        let source = Source::open(path, access)?;
        let bad = |at, what: String| CkptError::malformed(path, at, what);
        let size = u64::from_le_bytes(source.array(0, "the header size")?);
        let rest = source.len() - 8;
        if size > MAX_HEADER || size > rest {
            let what = format!("a header of {size} bytes; the file has {rest} more, the limit is {MAX_HEADER}");
            return Err(bad(0, what));
        }
        let json = source.bytes(8, size, "the header")?;
        let text = std::str::from_utf8(&json)
            .map_err(|e| bad(8 + e.valid_up_to() as u64, "the header is not UTF-8".into()))?;
        if !text.starts_with('{') {
            return Err(bad(8, "the header does not begin with `{`".into()));
        }
        let header: Header = serde_json::from_str(text).map_err(|e| bad(8 + offset_of(text, &e), e.to_string()))?;
        let parts = check_header(path, header.tensors, rest - size)?;
        let index = NameIndex::unique(&parts.entries)
            .map_err(|i| bad(8, format!("tensor `{}` is listed twice", parts.entries[i].name.escape_debug())))?;
        let starts = parts.starts.into_iter().map(|start| 8 + size + start).collect();
        let (entries, types, metadata) = (parts.entries, parts.types, header.metadata);
        drop(json);
        Ok(SafetensorsFile { source, entries, starts, types, index, metadata })
    }

    /// The `__metadata__` of the header, empty when there is none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

impl Checkpoint for SafetensorsFile {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> &'static str {
        "safetensors"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        self.source.bytes(self.starts[index], entry.bytes, "the data")
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(self.path(), &self.entries, index)?;
        check_part(entry, offset, buffer)?;
        self.source.read_into(self.starts[index] + offset, buffer)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn dtype_name(&self, index: usize) -> Cow<'static, str> {
        Cow::Owned(self.types[index].to_string())
    }
}

/// What stands for a safetensors type in the IR. Types that Paddle 2.6.2 has no code for get a
/// negative one: no program can hold it, so that nothing takes such a tensor by accident.
fn from_safetensors(dtype: Dtype) -> DType {
    match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::C64 => DType::C64,
        other => DType::Other(-1 - other as i32),
    }
}

/// The safetensors type of an element type; there is none for complex128.
fn to_safetensors(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::C64 => Dtype::C64,
        DType::C128 | DType::Other(_) => return None,
    })
}

struct Parts {
    entries: Vec<TensorEntry>,
    types: Vec<Dtype>,
    starts: Vec<u64>,
}

/// Puts the tensors in file order and checks that their ranges cover the data exactly.
fn check_header(path: &Path, mut tensors: Vec<(String, Info)>, data_len: u64) -> Result<Parts, CkptError> {
    // Stable: tensors without elements share their offsets and keep the header's order.
    tensors.sort_by_key(|(_, info)| (info.data_offsets.0, info.data_offsets.1));
    let mut parts = Parts { entries: Vec::new(), types: Vec::new(), starts: Vec::new() };
    let mut covered = 0;
    for (name, info) in tensors {
        let bad = |what: String| CkptError::malformed(path, 8, format!("tensor `{}`: {what}", name.escape_debug()));
        let (start, end) = info.data_offsets;
        let dtype: Dtype = Deserialize::deserialize(StrDeserializer::<ValueError>::new(&info.dtype)).map_err(|_| {
            let (name, dtype) = (name.escape_debug(), info.dtype.escape_debug());
            CkptError::unsupported(path, format!("tensor `{name}` has the unknown element type `{dtype}`"))
        })?;
        let shape = info.shape.0;
        let Some(bytes) = byte_len(&shape, dtype.bitsize() as u64) else {
            return Err(bad(format!("shape {shape:?} of {dtype} is not a number of bytes")));
        };
        if end < start || end > data_len {
            return Err(bad(format!("data range {start}..{end} of {data_len} bytes of data")));
        }
        if end - start != bytes {
            return Err(bad(format!("data range {start}..{end}, but shape {shape:?} of {dtype} needs {bytes} bytes")));
        }
        if start != covered {
            let how = if start < covered { "overlaps the one before" } else { "leaves a hole before it" };
            return Err(bad(format!("data range {start}..{end} {how}, which ends at {covered}")));
        }
        covered = end;
        parts.types.push(dtype);
        parts.starts.push(start);
        parts.entries.push(TensorEntry { name, dtype: from_safetensors(dtype), shape, bytes });
    }
    if covered != data_len {
        let what = format!("the tensors end at byte {covered} of {data_len} bytes of data");
        return Err(CkptError::malformed(path, 8, what));
    }
    Ok(parts)
}

/// Where in the text serde_json stopped.
fn offset_of(text: &str, error: &serde_json::Error) -> u64 {
    let line: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    (line + error.column().saturating_sub(1)) as u64
}

/// The header as it stands: nothing repeated, nothing over a limit, not yet compared with the data.
struct Header {
    tensors: Vec<(String, Info)>,
    metadata: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct Info {
    dtype: Name,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// A string of at most [`MAX_NAME`] bytes.
struct Name(String);

impl std::ops::Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a string of at most {MAX_NAME} bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Name, E> {
                if text.len() > MAX_NAME {
                    return Err(E::custom(format_args!("a name of more than {MAX_NAME} bytes")));
                }
                Ok(Name(text.to_owned()))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// At most [`MAX_RANK`] dimensions.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format_args!("more than {MAX_RANK} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

/// `__metadata__`: strings by strings, each key once.
struct Strings(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strings, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings, or null")
            }
            fn visit_unit<E>(self) -> Result<Strings, E> {
                Ok(Strings(BTreeMap::new()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if strings.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("metadata key `{}` twice", key.escape_debug())));
                    }
                    strings.insert(key, value);
                }
                Ok(Strings(strings))
            }
        }
        deserializer.deserialize_any(StringsVisitor)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut tensors, mut metadata) = (Vec::new(), None);
                while let Some(Name(key)) = map.next_key()? {
                    if key == METADATA {
                        if metadata.replace(map.next_value::<Strings>()?.0).is_some() {
                            return Err(A::Error::custom("two `__metadata__`"));
                        }
                    } else if key.is_empty() {
                        map.next_value::<IgnoredAny>()?;
                        return Err(A::Error::custom("a tensor without a name"));
                    } else if tensors.len() == MAX_ENTRIES {
                        return Err(A::Error::custom(format_args!("more than {MAX_ENTRIES} tensors")));
                    } else {
                        tensors.push((key, map.next_value()?));
                    }
                }
                Ok(Header { tensors, metadata: metadata.unwrap_or_default() })
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Writes a safetensors file: the bytes the `safetensors` crate would write for the same tensors
/// and metadata, with the metadata in order of its keys.
///
/// The data is written in descending alignment of the types and then by name, whatever order the
/// tensors come in. Errors: a repeated or reserved name, a type the format does not have, LoD,
/// data that is not as long as its shape, a header over [`MAX_HEADER`].
pub fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = TensorData<'a>>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), CkptError> {
    let mut sorted = Vec::new();
    for tensor in tensors {
        let dtype = to_safetensors(tensor.dtype).ok_or_else(|| no_such_type(path, &tensor.name, tensor.dtype))?;
        if !tensor.lod.is_empty() {
            let what = format!("tensor `{}` has LoD, which safetensors cannot hold", tensor.name.escape_debug());
            return Err(CkptError::unsupported(path, what));
        }
        match &tensor.name[..] {
            "" => return Err(CkptError::bad_name("", "is empty")),
            METADATA => return Err(CkptError::bad_name(METADATA, "is reserved by safetensors")),
            long if long.len() > MAX_NAME => return Err(CkptError::bad_name(long, "is too long")),
            _ => {}
        }
        sorted.push((dtype, tensor));
    }
    if sorted.len() > MAX_ENTRIES || sorted.iter().any(|(_, t)| t.shape.len() > MAX_RANK) {
        return Err(CkptError::unsupported(path, format!("more than {MAX_ENTRIES} tensors or {MAX_RANK} dimensions")));
    }
    sorted.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.name.cmp(&y.name)));
    // Equal names may have different types, so that they are not neighbours here.
    let mut names: Vec<&str> = sorted.iter().map(|(_, t)| &t.name[..]).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(CkptError::bad_name(twice[0], "is given to two tensors of one file"));
    }

    let mut infos = Vec::with_capacity(sorted.len());
    let mut start = 0usize;
    for (dtype, tensor) in &sorted {
        tensor.checked_len(path)?;
        // The data is in memory or mapped, so that neither its sum nor its dimensions pass a usize,
        // unless the tensor has no elements.
        let shape: Result<Vec<usize>, _> = tensor.shape.iter().map(|&d| usize::try_from(d)).collect();
        let shape = shape.map_err(|_| CkptError::unsupported(path, "a dimension does not fit the address space"))?;
        let end = start
            .checked_add(tensor.data.len())
            .ok_or_else(|| CkptError::unsupported(path, "the data does not fit the address space"))?;
        infos.push((&tensor.name[..], TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    let header = HeaderOut { metadata, infos: &infos };
    let mut header = serde_json::to_vec(&header).map_err(|e| CkptError::io(path, e.into()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        return Err(CkptError::unsupported(path, format!("the header would pass {MAX_HEADER} bytes")));
    }
    let mut file = AtomicFile::create(path)?;
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(&header)?;
    for (_, tensor) in &sorted {
        file.write(&tensor.data)?;
    }
    file.commit()
}

struct HeaderOut<'a> {
    metadata: &'a BTreeMap<String, String>,
    infos: &'a [(&'a str, TensorInfo)],
}

impl Serialize for HeaderOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, info) in self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}
