//! Are distributed checkpoints read whole, whatever their grid, and written so that the reader agrees?

mod ckpt_common;

use ckpt_common::{data, expected, values};
use mastercast::ckpt::rect::Rect;
use mastercast::ckpt::{
    self, Access, Checkpoint, DistDir, DistFlavour, DistMetadata, DistWriter, SafetensorsIndex, ShardData, TensorData,
};
use mastercast::ir::DType;
use std::fs;
use std::path::{Path, PathBuf};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn every_version_of_both_frameworks_is_read_bit_for_bit() {
    let mut seen = 0;
    for part in ["dist_v2", "dist_v3"] {
        for (file, entries) in &expected(part) {
            let dir = data(part).join(file).parent().unwrap().to_owned();
            let id = file.split(['_', '.']).rev().nth(1).unwrap().parse().unwrap();
            for access in [Access::Map, Access::Read] {
                let ckpt = DistDir::open_version(&dir, id, access).unwrap();
                assert_eq!((ckpt.format(), ckpt.entries().len()), ("distributed", entries.len()), "{file}");
                for e in entries {
                    let i = ckpt.find(&e.name).unwrap_or_else(|| panic!("{part}/{file} lacks {}", e.name));
                    let entry = &ckpt.entries()[i];
                    assert_eq!((entry.dtype, &entry.shape), (DType::parse(&e.dtype).unwrap(), &e.shape), "{file}");
                    assert_eq!(hex(&ckpt.read(i).unwrap()), e.hex, "{file} {}", e.name);
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(seen, 2 * 109, "tensors that were compared");
}

#[test]
fn the_highest_version_is_opened_by_number() {
    // 2.6.2 counts up; the second save holds other values.
    let twice = DistDir::open(&data("dist_v2/twice"), Access::Map).unwrap();
    assert_eq!(twice.metadata().id, 1);
    assert_eq!(twice.skipped()[0].name, "0.metadata");
    let first = DistDir::open_version(&data("dist_v2/twice"), 0, Access::Map).unwrap();
    assert_ne!(first.read(0).unwrap(), twice.read(0).unwrap());
    // 11 is not 1, and 9 is older than 11.
    let dir = tempfile::tempdir().unwrap();
    for (id, value) in [(1, 1.0f32), (9, 9.0), (11, 11.0)] {
        let temp = tempfile::tempdir().unwrap();
        let mut w = DistWriter::create(temp.path(), DistFlavour::V2).unwrap();
        w.whole([TensorData::new("w", DType::F32, vec![1], value.to_le_bytes().to_vec())]).unwrap();
        w.finish().unwrap();
        // Metadata names its file, so that the number can be changed by a copy of that name.
        let text = fs::read(temp.path().join("0.metadata")).unwrap();
        let name = format!("0_{id}.distcp");
        let renamed = replace(&text, b"\x8c\x0a0_0.distcp", &[&[0x8c, name.len() as u8], name.as_bytes()].concat());
        fs::write(dir.path().join(format!("{id}.metadata")), renamed).unwrap();
        fs::copy(temp.path().join("0_0.distcp"), dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("x1.metadata"), b"not a version").unwrap();
    let value = |ckpt: &dyn Checkpoint| f32::from_le_bytes(ckpt.read(0).unwrap()[..].try_into().unwrap());
    assert_eq!(value(&*ckpt::open(dir.path()).unwrap()), 11.0);
    assert_eq!(value(&DistDir::open_version(dir.path(), 1, Access::Map).unwrap()), 1.0);
    assert_eq!(value(&*ckpt::open(&dir.path().join("9.metadata")).unwrap()), 9.0);
    let versions: Vec<u64> = ckpt::versions(dir.path()).unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(versions, [1, 9, 11]);
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = text.windows(from.len()).position(|w| w == from).expect("the text has it");
    [&text[..at], to, &text[at + from.len()..]].concat()
}

/// Values that tell where they come from.
fn ramp(n: u64) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn whole(shape: &[u64]) -> Vec<u8> {
    ramp(shape.iter().product())
}

fn shard(name: &'static str, shape: &[u64], offset: &[u64], size: &[u64]) -> ShardData<'static> {
    let rect = Rect { offset: offset.to_vec(), shape: size.to_vec() };
    let data = TensorData::new(name, DType::F32, size.to_vec(), values(shape, &rect));
    ShardData { data, shape: shape.to_vec(), rect, flat: None }
}

#[test]
fn any_grid_is_put_together() {
    let shape = [5, 4, 3];
    let dir = tempfile::tempdir().unwrap();
    for flavour in [DistFlavour::V2, DistFlavour::V3] {
        for cuts in [
            vec![([0, 0, 0], [5, 4, 3])],
            vec![([0, 0, 0], [2, 4, 3]), ([2, 0, 0], [3, 4, 3])],
            vec![([0, 0, 0], [5, 1, 3]), ([0, 1, 0], [5, 3, 3])],
            vec![([0, 0, 0], [5, 4, 1]), ([0, 0, 1], [5, 4, 2])],
            vec![([0, 0, 0], [3, 2, 3]), ([3, 0, 0], [2, 2, 3]), ([0, 2, 0], [3, 2, 3]), ([3, 2, 0], [2, 2, 3])],
            // A replica of the first.
            vec![([0, 0, 0], [2, 4, 3]), ([2, 0, 0], [3, 4, 3]), ([0, 0, 0], [2, 4, 3])],
            // Overlapping shards that agree.
            vec![([0, 0, 0], [3, 4, 3]), ([2, 0, 0], [3, 4, 3])],
        ] {
            let mut w = DistWriter::create(dir.path(), flavour).unwrap();
            for (rank, (offset, size)) in cuts.iter().enumerate() {
                w.rank(rank as u64, [shard("w", &shape, offset, size)]).unwrap();
            }
            let metadata = w.finish().unwrap();
            let ckpt = ckpt::open(&metadata).unwrap();
            let wanted = whole(&shape);
            assert_eq!(*ckpt.read(0).unwrap(), wanted[..], "{cuts:?}");
            for step in [1, 5, 12, 100] {
                let mut got = vec![0; wanted.len()];
                for (i, block) in got.chunks_mut(step).enumerate() {
                    ckpt.read_into(0, (i * step) as u64, block).unwrap();
                }
                assert_eq!(got, wanted, "{cuts:?} by {step}");
            }
        }
    }
}

/// deepspeedai/DeepSpeed#1317: an odd length over 4 ranks, padded to a multiple of 4.
#[test]
fn flattened_ranges_drop_their_padding() {
    let dir = tempfile::tempdir().unwrap();
    let (shape, count) = ([3, 5], 15u64);
    let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
    for rank in 0..4 {
        let range = rank * 4..rank * 4 + 4;
        let values: Vec<u8> =
            range.clone().flat_map(|i| if i < count { i as f32 } else { -1.0 }.to_le_bytes()).collect();
        let data = TensorData::new("w", DType::F32, vec![4], values);
        w.rank(rank, [ShardData { data, shape: shape.to_vec(), rect: Rect::whole(&shape), flat: Some(range) }])
            .unwrap();
    }
    let ckpt = ckpt::open(&w.finish().unwrap()).unwrap();
    assert_eq!((&ckpt.entries()[0].shape[..], ckpt.entries()[0].bytes), (&shape[..], 60));
    assert_eq!(*ckpt.read(0).unwrap(), whole(&shape)[..]);
    // An empty shard and a range that is all padding count for nothing.
    let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
    w.rank(0, [shard("w", &shape, &[0, 0], &[3, 5])]).unwrap();
    w.rank(1, [shard("w", &shape, &[3, 0], &[0, 5])]).unwrap();
    let data = TensorData::new("w", DType::F32, vec![2], vec![0; 8]);
    w.rank(2, [ShardData { data, shape: shape.to_vec(), rect: Rect::whole(&shape), flat: Some(15..17) }]).unwrap();
    let ckpt = ckpt::open(&w.finish().unwrap()).unwrap();
    assert_eq!(*ckpt.read(0).unwrap(), whole(&shape)[..]);
}

#[test]
fn what_is_written_is_read_again() {
    let from = DistDir::open(&data("dist_v3/nested"), Access::Map).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for flavour in [DistFlavour::V2, DistFlavour::V3] {
        let mut w = DistWriter::create(dir.path(), flavour).unwrap();
        w.whole((0..from.entries().len()).map(|i| TensorData::of(&from, i).unwrap())).unwrap();
        let copy = DistDir::open(w.finish().unwrap().parent().unwrap(), Access::Map).unwrap();
        assert_eq!(copy.entries(), from.entries());
        if flavour == DistFlavour::V3 {
            let (a, b) = (copy.metadata(), from.metadata());
            assert_eq!(a.tensors, b.tensors);
        }
        for i in 0..from.entries().len() {
            assert_eq!(copy.read(i).unwrap(), from.read(i).unwrap());
        }
    }
    // The second went beside the first.
    assert_eq!(ckpt::versions(dir.path()).unwrap().len(), 2);
}

#[test]
fn a_version_without_metadata_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let one = |v: f32| TensorData::new("w", DType::F32, vec![1], v.to_le_bytes().to_vec());
    let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
    w.whole([one(1.0)]).unwrap();
    w.finish().unwrap();
    let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
    w.whole([one(2.0)]).unwrap();
    assert_eq!(w.id(), 1);
    drop(w);
    let ckpt = ckpt::open(dir.path()).unwrap();
    assert_eq!(*ckpt.read(0).unwrap(), 1.0f32.to_le_bytes());
}

/// A checkpoint of these shards of one tensor, by rank.
fn written(shards: Vec<ShardData<'static>>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
    for (rank, shard) in shards.into_iter().enumerate() {
        w.rank(rank as u64, [shard]).unwrap();
    }
    let path = w.finish().unwrap();
    (dir, path)
}

#[track_caller]
fn refused(path: &Path, text: &str) {
    for access in [Access::Map, Access::Read] {
        let error = ckpt::open_with(path, access).err().expect("the checkpoint was taken").to_string();
        assert!(error.contains(text), "`{error}` does not say `{text}`");
    }
}

#[test]
fn attack_42_metadata_of_another_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.metadata");
    let whole = fs::read(data("dist_v3/twice/0.metadata")).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(DistMetadata::open(&path).is_err(), "cut at {len}");
    }
    fs::write(&path, b"\x80\x04}.").unwrap();
    refused(dir.path(), "not the metadata of a distributed checkpoint");
    for (from, to, what) in [
        (&b"\x8c\x13state_dict_metadata"[..], &b"\x8c\x13state_dict_metadat_"[..], "no dict `state_dict_metadata`"),
        (b"\x8c\x10storage_metadata", b"\x8c\x10storage_metadat_", "no dict `storage_metadata`"),
        (b"\x8c\x0atensor_key", b"\x8c\x0atensor_ke_", "an index without a key"),
        (b"\x8c\x0dglobal_offset", b"\x8c\x0dglobal_offse_", "without an offset"),
        (b"\x8c\x0blocal_shape", b"\x8c\x0blocal_shap_", "without a shape"),
        (b"\x8c\x07float32", b"\x8c\x07floatxx", "unknown element type"),
        (b"K\x08K\x10\x86", b"K\x07K\x10\x86", "is [8, 16] in 0_0.distcp, the shard is [7, 16]"),
        (b"K\0K\0\x86", b"K\x01K\0\x86", "passes the tensor's shape"),
    ] {
        fs::copy(data("dist_v3/twice/0_0.distcp"), dir.path().join("0_0.distcp")).unwrap();
        fs::write(&path, replace(&whole, from, to)).unwrap();
        refused(dir.path(), what);
    }
}

#[test]
fn attack_43_shards_that_do_not_make_up_the_tensor() {
    let hole = written(vec![shard("w", &[4, 6], &[0, 0], &[2, 6]), shard("w", &[4, 6], &[2, 0], &[2, 5])]);
    refused(&hole.1, "no shard holds [2..4, 5..6]; 2 elements of [4, 6] are missing");
    // Overlapping shards that differ: found when the tensor is read, and told with both files.
    let mut other = shard("w", &[4], &[1], &[3]);
    other.data.data.to_mut()[0] = 0x55;
    let (_dir, path) = written(vec![shard("w", &[4], &[0], &[2]), other]);
    let ckpt = ckpt::open(&path).unwrap();
    let error = ckpt.read(0).unwrap_err().to_string();
    assert!(error.contains("`w` differs between 1_0.distcp and 0_0.distcp at [1..2]"), "{error}");
    let mut buffer = [0; 1];
    assert!(ckpt.read_into(0, 0, &mut buffer).is_err(), "also in blocks");
}

#[test]
fn attack_44_files_named_by_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(data("dist_v3/twice/0.metadata")).unwrap();
    for name in ["../x.distc", "/etc/passw", ".hidden.pd", "a/b.distcp", "c:d.distcp"] {
        let to = [&[0x8c, 10], name.as_bytes()].concat();
        fs::write(dir.path().join("0.metadata"), replace(&whole, b"\x8c\x0a0_0.distcp", &to)).unwrap();
        refused(dir.path(), "which is not one beside it");
    }
    // Metadata that names itself, or other metadata.
    fs::write(dir.path().join("0.metadata"), replace(&whole, b"\x8c\x0a0_0.distcp", b"\x8c\x0a0.metadata")).unwrap();
    refused(dir.path(), "is the metadata of a distributed checkpoint");
}

/// huggingface/accelerate#3010: a rank's file is not there.
#[test]
fn attack_45_shard_files_that_are_missing_or_of_another_save() {
    let both = || vec![shard("w", &[4, 6], &[0, 0], &[2, 6]), shard("w", &[4, 6], &[2, 0], &[2, 6])];
    let (dir, path) = written(both());
    fs::remove_file(dir.path().join("1_0.distcp")).unwrap();
    refused(&path, "lists `1_0.distcp` of rank 1, which is not there");
    let (dir, path) = written(both());
    let of = |shape: Vec<u64>, dtype: DType, n: usize| TensorData::new("w", dtype, shape, vec![0; n]);
    let swap = |t: TensorData<'_>| {
        ckpt::write_pickle(&dir.path().join("1_0.distcp"), [t], &Default::default()).unwrap();
    };
    swap(of(vec![6, 2], DType::F32, 48));
    refused(&path, "is [6, 2] in 1_0.distcp, the shard is [2, 6]");
    swap(of(vec![2, 6], DType::F16, 24));
    refused(&path, "is f32, and f16 in 1_0.distcp");
    swap(TensorData { name: "v".into(), ..of(vec![2, 6], DType::F32, 48) });
    refused(&path, "`w`: is not in 1_0.distcp");
}

#[test]
fn safetensors_in_several_files_are_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let t = |name: &'static str, v: f32| TensorData::new(name, DType::F32, vec![1], v.to_le_bytes().to_vec());
    let file = |n: u32| dir.path().join(format!("model-0000{n}-of-00002.safetensors"));
    ckpt::write_safetensors(&file(1), [t("a", 1.0), t("extra", 9.0)], &Default::default()).unwrap();
    ckpt::write_safetensors(&file(2), [t("b", 2.0)], &Default::default()).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let write =
        |map: &str| fs::write(&index, format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{{{map}}}}}"#)).unwrap();
    let (a, b) = (r#""a":"model-00001-of-00002.safetensors""#, r#""b":"model-00002-of-00002.safetensors""#);
    write(&format!("{b},{a}"));
    for path in [dir.path(), &index] {
        let ckpt = ckpt::open(path).unwrap();
        assert_eq!(ckpt.format(), "safetensors-index");
        let names: Vec<_> = ckpt.entries().iter().map(|e| &e.name[..]).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(*ckpt.read(ckpt.find("a").unwrap()).unwrap(), 1.0f32.to_le_bytes());
        assert_eq!(ckpt.skipped()[0].name, "model-00001-of-00002.safetensors: extra");
    }
    // attack 46: the index itself
    for (map, what) in [
        (format!("{a},{a}"), "`a` is listed twice"),
        (r#""a":"../model.safetensors""#.to_owned(), "which is not one beside it"),
        (r#""a":"model-00003-of-00002.safetensors""#.to_owned(), "lists `model-00003-of-00002.safetensors`"),
        (a.replace("\"a\"", "\"c\""), "`c` is not in model-00001"),
        (r#""a":7"#.to_owned(), "invalid type"),
    ] {
        write(&map);
        let error = SafetensorsIndex::open(&index, Access::Map).err().unwrap().to_string();
        assert!(error.contains(what), "`{error}` does not say `{what}`");
    }
}
