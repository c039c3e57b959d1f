//! What do the tests of checkpoints share? The recorded files, what is in them, and how an entry is compared.

#![allow(dead_code, reason = "each test uses a part")]

use mastercast::ckpt::rect::Rect;
use mastercast::ckpt::{Access, Checkpoint};
use mastercast::ir::DType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const BOTH: [Access; 2] = [Access::Map, Access::Read];

/// A recorded file.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt").join(name)
}

/// A tensor as Paddle had it in memory.
#[derive(serde::Deserialize)]
pub struct Expected {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub hex: String,
}

impl Expected {
    pub fn bytes(&self) -> Vec<u8> {
        (0..self.hex.len() / 2).map(|i| u8::from_str_radix(&self.hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    }
}

/// What Paddle had in memory, by file of one part.
pub fn expected(part: &str) -> BTreeMap<String, Vec<Expected>> {
    serde_json::from_str(&std::fs::read_to_string(data(part).join("expected.json")).unwrap()).unwrap()
}

/// Entry `index` is the expected tensor: read whole, in blocks, and in blocks out of order.
pub fn check_entry(ckpt: &dyn Checkpoint, index: usize, expected: &Expected) {
    let (entry, bytes) = (&ckpt.entries()[index], expected.bytes());
    let place = format!("{} {}", ckpt.path().display(), expected.name);
    assert_eq!(entry.dtype, DType::parse(&expected.dtype).unwrap(), "{place}");
    assert_eq!((&entry.shape, entry.bytes), (&expected.shape, bytes.len() as u64), "{place}");
    assert_eq!(*ckpt.read(index).unwrap(), bytes[..], "{place}");
    for step in [1, 7, 64] {
        let mut blocks = vec![0; bytes.len()];
        for (i, block) in blocks.chunks_mut(step).enumerate() {
            ckpt.read_into(index, (i * step) as u64, block).unwrap();
        }
        assert_eq!(blocks, bytes, "{place}");
        let starts: Vec<usize> = (0..bytes.len()).step_by(step).collect();
        for &at in starts.iter().rev() {
            let end = bytes.len().min(at + step);
            ckpt.read_into(index, at as u64, &mut blocks[at..end]).unwrap();
        }
        assert_eq!(blocks, bytes, "{place}");
    }
}

/// The bytes of a box of a float32 tensor whose values tell their place.
pub fn values(shape: &[u64], rect: &Rect) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..rect.count() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for d in (0..shape.len()).rev() {
            at += (rest % rect.shape[d] + rect.offset[d]) * stride;
            rest /= rect.shape[d];
            stride *= shape[d];
        }
        out.extend((at as f32).to_le_bytes());
    }
    out
}
