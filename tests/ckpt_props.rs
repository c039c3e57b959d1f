//! Does a mutated checkpoint ever do more than fail? And does ours agree with the safetensors crate?

use mastercast::ckpt::{self, Access, Checkpoint, TensorData};
use mastercast::ir::DType;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const FILES: [&str; 10] = [
    "save_ops/save/w.f32",
    "save_ops/save/n.i64",
    "binary_tensor/lod.bin",
    "binary_tensor/selected_rows.bin",
    "save_ops/combine",
    "save_vars/combined",
    "safetensors/mlp.safetensors",
    "safetensors/zoo.safetensors",
    "npz/feed.npz",
    "npz/columns.npz",
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt").join(name)
}

/// One change of a file: a byte set, a range cut out, bytes put in, the end cut off.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Remove(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let odd = prop_oneof![Just(0u8), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    prop_oneof![
        4 => (any::<Index>(), odd).prop_map(|(i, b)| Change::Set(i, b)),
        4 => (any::<Index>(), 0..8u8).prop_map(|(i, b)| Change::Flip(i, b)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(i, n)| Change::Remove(i, n)),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(i, b)| Change::Insert(i, b)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, changes: &[Change]) {
    for change in changes {
        if bytes.is_empty() {
            return;
        }
        // Most of a small file is head; where it is not, half of the changes go there.
        let near = |i: &Index| if i.index(2) == 0 { i.index(bytes.len()) } else { i.index(bytes.len().min(400)) };
        match change {
            Change::Set(i, b) => {
                let at = near(i);
                bytes[at] = *b;
            }
            Change::Flip(i, bit) => {
                let at = near(i);
                bytes[at] ^= 1 << bit;
            }
            Change::Remove(i, n) => {
                let at = near(i);
                bytes.drain(at..(at + usize::from(*n)).min(bytes.len()));
            }
            Change::Insert(i, b) => {
                let at = near(i);
                bytes.splice(at..at, b.iter().copied());
            }
            Change::Cut(i) => bytes.truncate(i.index(bytes.len())),
        }
    }
}

/// Opens, reads everything by every way; all lengths are what the manifest says.
fn use_all(path: &Path) -> bool {
    let mut opened = [false; 2];
    for (access, opened) in [Access::Map, Access::Read].into_iter().zip(&mut opened) {
        let Ok(ckpt) = ckpt::open_with(path, access) else { continue };
        *opened = true;
        for (i, entry) in ckpt.entries().iter().enumerate() {
            let bytes = ckpt.read(i).unwrap();
            assert_eq!(bytes.len() as u64, entry.bytes);
            let mut again = vec![0; bytes.len()];
            ckpt.read_into(i, 0, &mut again).unwrap();
            assert_eq!(*bytes, again[..]);
            ckpt.lod(i).unwrap();
            assert!(entry.name.is_empty() || ckpt.find(&entry.name) == Some(i));
        }
    }
    assert_eq!(opened[0], opened[1]);
    opened[0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn mutated_files_never_panic(file in prop::sample::select(&FILES[..]), changes in prop::collection::vec(change(), 1..4)) {
        let mut bytes = fs::read(data(file)).unwrap();
        apply(&mut bytes, &changes);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, &bytes).unwrap();
        use_all(&path);
        use_all(dir.path());
        let names: Vec<String> = (0..4).map(|i| i.to_string()).collect();
        let _ = ckpt::open_combined(&path, &names, Access::Map);
    }

    /// What we take, the crate takes, with the same tensors; what only we refuse has a known reason.
    #[test]
    fn mutated_safetensors_are_judged_as_by_the_crate(
        zoo in any::<bool>(), in_json in any::<bool>(), changes in prop::collection::vec(change(), 1..3)
    ) {
        let mut bytes = fs::read(data(if zoo { FILES[7] } else { FILES[6] })).unwrap();
        if in_json {
            // Only the JSON changes and the size follows, so that more of it gets past the size check.
            let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut json = bytes[8..8 + size].to_vec();
            apply(&mut json, &changes);
            bytes = [&(json.len() as u64).to_le_bytes()[..], &json, &bytes[8 + size..]].concat();
        } else {
            apply(&mut bytes, &changes);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let ours = ckpt::SafetensorsFile::open(&path, Access::Map);
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                let names: BTreeSet<&str> = theirs.names().into_iter().collect();
                prop_assert_eq!(names.len(), ours.entries().len());
                for (i, entry) in ours.entries().iter().enumerate() {
                    let view = theirs.tensor(&entry.name).unwrap();
                    prop_assert_eq!(view.data(), &*ours.read(i).unwrap());
                    let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
                    prop_assert_eq!(&shape, &entry.shape);
                    prop_assert_eq!(view.dtype().to_string(), ours.dtype_name(i).into_owned());
                }
            }
            (Err(_), Err(_)) => {}
            (Ok(_), Err(e)) => prop_assert!(false, "only the crate refuses: {e}"),
            (Err(e), Ok(_)) => {
                let text = e.to_string();
                let known = ["twice", "two `__metadata__`", "without a name", "begin with", "overlaps"];
                prop_assert!(known.iter().any(|k| text.contains(k)), "only we refuse: {text}");
            }
        }
    }

    /// Random tensors: what is written is what the crate writes, and reads back.
    #[test]
    fn writers_agree_with_the_crate_and_with_the_readers(
        tensors in prop::collection::btree_map(
            "[a-zé\"\\\\/ ]{1,6}",
            (0..11usize, prop::collection::vec(0..4u64, 0..4), any::<u8>()),
            0..6,
        ),
        metadata in prop::option::of(("[a-z\"]{1,5}", "[a-zé\n]{0,5}")),
    ) {
        use ::safetensors::Dtype as D;
        let types = [
            (DType::Bool, D::BOOL), (DType::U8, D::U8), (DType::I8, D::I8), (DType::I16, D::I16), (DType::I32, D::I32),
            (DType::I64, D::I64), (DType::F16, D::F16), (DType::BF16, D::BF16), (DType::F32, D::F32),
            (DType::F64, D::F64), (DType::C64, D::C64),
        ];
        let filled: Vec<_> = tensors.iter().map(|(name, (t, shape, seed))| {
            let bytes = shape.iter().product::<u64>() as usize * types[*t].0.size().unwrap();
            let data: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(*seed)).collect();
            (name, types[*t], shape, data)
        }).collect();
        let ours = || filled.iter().map(|(name, t, shape, data)| TensorData::new(&name[..], t.0, &shape[..], &data[..]));
        let theirs = filled.iter().map(|(name, t, shape, data)| {
            let shape = shape.iter().map(|&d| d as usize).collect();
            (name, ::safetensors::tensor::TensorView::new(t.1, shape, data).unwrap())
        });
        let metadata: BTreeMap<String, String> = metadata.into_iter().collect();
        let their_metadata = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        ckpt::write_safetensors(&path, ours(), &metadata).unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), ::safetensors::serialize(theirs, their_metadata).unwrap());
        let back = ckpt::SafetensorsFile::open(&path, Access::Map).unwrap();
        prop_assert_eq!(back.metadata(), &metadata);
        for (name, t, shape, data) in &filled {
            let i = back.find(name).unwrap();
            let entry = &back.entries()[i];
            prop_assert_eq!((entry.dtype, &entry.shape, &*back.read(i).unwrap()), (t.0, *shape, &data[..]));
        }
        if !filled.is_empty() {
            ckpt::write_combined(&path, ours()).unwrap();
            let names: Vec<String> = tensors.keys().cloned().collect();
            let back = ckpt::open_combined(&path, &names, Access::Map).unwrap();
            for (i, (_, t, shape, data)) in filled.iter().enumerate() {
                let entry = &back.entries()[i];
                prop_assert_eq!((entry.dtype, &entry.shape, &*back.read(i).unwrap()), (t.0, *shape, &data[..]));
            }
        }
    }
}
