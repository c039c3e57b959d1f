//! Are checkpoints by real Paddle read bit for bit, and written as Paddle and safetensors write them?

mod ckpt_common;

use ckpt_common::{BOTH, Expected, check_entry, data, expected};
use mastercast::ckpt::{
    self, Access, Checkpoint, CkptError, Manifest, SafetensorsFile, StreamDir, StreamFile, TensorData,
};
use mastercast::convert::{self, Narrowing};
use mastercast::ir::DType;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Of what Paddle had in memory, the files of one part that are kept here.
fn kept(part: &str) -> BTreeMap<String, Vec<Expected>> {
    expected(part).into_iter().filter(|(file, _)| data(part).join(file).exists()).collect()
}

fn tensors(ckpt: &dyn Checkpoint) -> Vec<TensorData<'_>> {
    (0..ckpt.entries().len()).map(|i| TensorData::of(ckpt, i).unwrap()).collect()
}

#[test]
fn single_tensor_streams_are_read_and_written_as_by_paddle() {
    let out = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for part in ["save_ops", "save_vars", "binary_tensor"] {
        for (file, entries) in kept(part).iter().filter(|(file, e)| e.len() == 1 && *file != "selected_rows.bin") {
            let path = data(part).join(file);
            for access in BOTH {
                let ckpt = ckpt::open_with(&path, access).unwrap();
                assert_eq!((ckpt.format(), ckpt.entries().len()), ("tensor-stream", 1));
                assert_eq!(ckpt.find(path.file_name().unwrap().to_str().unwrap()), Some(0));
                check_entry(&*ckpt, 0, &entries[0]);
                let copy = out.path().join("copy");
                ckpt::write_stream(&copy, &TensorData::of(&*ckpt, 0).unwrap()).unwrap();
                assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap(), "{file} is not written as it was");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 71, "files that were compared");
}

#[test]
fn combined_files_are_read_and_written_as_by_paddle() {
    let out = tempfile::tempdir().unwrap();
    for (part, file) in [
        ("save_ops", "combine"),
        ("save_ops", "combine.as_fp16"),
        ("save_vars", "combined"),
        ("save_vars", "persistables_combined"),
    ] {
        let (path, expected) = (data(part).join(file), kept(part));
        let names: Vec<String> = expected[file].iter().map(|e| e.name.clone()).collect();
        for access in BOTH {
            let named = ckpt::open_combined(&path, &names, access).unwrap();
            let unnamed = ckpt::open_with(&path, access).unwrap();
            assert_eq!((named.format(), unnamed.format()), ("tensor-stream-combined", "tensor-stream-combined"));
            for (i, e) in expected[file].iter().enumerate() {
                assert_eq!(named.find(&e.name), Some(i));
                assert_eq!(unnamed.entries()[i].name, "");
                check_entry(&named, i, e);
                check_entry(&*unnamed, i, e);
            }
            assert_eq!((named.find(""), unnamed.find("")), (None, None));
            let copy = out.path().join(file);
            ckpt::write_combined(&copy, tensors(&named)).unwrap();
            assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap(), "{file} is not written as it was");
        }
    }
}

#[test]
fn lod_is_kept() {
    let ckpt = ckpt::open(&data("binary_tensor/lod.bin")).unwrap();
    assert_eq!(ckpt.lod(0).unwrap(), [vec![0, 1, 3], vec![0, 2, 3, 5]]);
    assert!(ckpt::open(&data("save_ops/save/w.f32")).unwrap().lod(0).unwrap().is_empty());
}

#[test]
fn directories_of_streams_are_read_by_name() {
    let expected = kept("save_vars");
    for access in BOTH {
        let ckpt = ckpt::open_with(&data("save_vars/vars"), access).unwrap();
        assert_eq!(ckpt.format(), "tensor-stream-dir");
        let vars: Vec<_> = expected.iter().filter_map(|(f, e)| Some((f.strip_prefix("vars/")?, &e[0]))).collect();
        assert_eq!(ckpt.entries().len(), vars.len());
        for (name, e) in vars {
            check_entry(&*ckpt, ckpt.find(name).unwrap(), e);
        }
        assert!(ckpt.entries().is_sorted_by(|a, b| a.name < b.name));
        assert_eq!(ckpt.skipped(), []);
        assert_eq!(ckpt.find("not.there"), None);
    }
    // One level up: the directories become part of the names, the rest is told.
    let ckpt = ckpt::open(&data("save_vars")).unwrap();
    assert!(ckpt.find("vars/w.f32").is_some() && ckpt.find("persistables/linear_0.w_0").is_some());
    let skipped: Vec<_> = ckpt.skipped().iter().map(|s| (&s.name[..], &s.why[..])).collect();
    assert_eq!(
        skipped,
        [
            ("combined", "holds several tensors without names"),
            ("expected.json", "is no tensor"),
            ("persistables_combined", "holds several tensors without names"),
        ]
    );
}

#[test]
fn large_files_of_a_directory_are_borrowed_from_a_map() {
    let dir = tempfile::tempdir().unwrap();
    let values: Vec<u8> = (0..1u32 << 16).flat_map(u32::to_le_bytes).collect();
    let tensor = TensorData::new("w", DType::F32, vec![1 << 8, 1 << 8], values.clone());
    ckpt::write_stream(&dir.path().join("w"), &tensor).unwrap();
    let ckpt = StreamDir::open(dir.path(), Access::Map).unwrap();
    for _ in 0..2 {
        assert!(matches!(ckpt.read(0).unwrap(), std::borrow::Cow::Borrowed(b) if b == values));
    }
}

#[test]
fn safetensors_files_are_read_and_written_as_by_their_crate() {
    let out = tempfile::tempdir().unwrap();
    let expected = kept("safetensors");
    assert_eq!(expected.len(), 2);
    for (file, entries) in &expected {
        let path = data("safetensors").join(file);
        for access in BOTH {
            let ckpt = ckpt::open_with(&path, access).unwrap();
            assert_eq!((ckpt.format(), ckpt.entries().len()), ("safetensors", entries.len()));
            for e in entries {
                check_entry(&*ckpt, ckpt.find(&e.name).unwrap(), e);
            }
            let copy = out.path().join(file);
            ckpt::write_safetensors(&copy, tensors(&*ckpt), &BTreeMap::new()).unwrap();
            assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap(), "{file} is not written as it was");
        }
    }
}

#[test]
fn safetensors_metadata_is_written_in_order() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("m.safetensors");
    let metadata: BTreeMap<String, String> =
        (0..20).map(|i| (format!("key {}", i * 7 % 20), format!("\"{i}\" é"))).collect();
    let tensor = || TensorData::new("w", DType::F16, vec![3], vec![1u8, 2, 3, 4, 5, 6]);
    ckpt::write_safetensors(&path, [tensor()], &metadata).unwrap();
    let first = fs::read(&path).unwrap();
    assert_eq!(SafetensorsFile::open(&path, Access::Map).unwrap().metadata(), &metadata);
    // The crate reads it, and writes the same bytes when it has only one order to choose.
    let (_, crates) = ::safetensors::SafeTensors::read_metadata(&first).unwrap();
    assert_eq!(crates.metadata().as_ref().unwrap().len(), 20);
    let one = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    ckpt::write_safetensors(&path, [tensor()], &one).unwrap();
    let view = ::safetensors::tensor::TensorView::new(::safetensors::Dtype::F16, vec![3], &[1, 2, 3, 4, 5, 6]).unwrap();
    let theirs = ::safetensors::serialize([("w", view)], Some(one.into_iter().collect())).unwrap();
    assert_eq!(fs::read(&path).unwrap(), theirs);
}

#[test]
fn an_empty_safetensors_file_is_a_checkpoint_without_tensors() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("none");
    ckpt::write_safetensors(&path, [], &BTreeMap::new()).unwrap();
    assert_eq!(ckpt::open(&path).unwrap().entries(), []);
}

#[test]
fn safetensors_convert_to_files_that_equal_those_of_paddle() {
    let out = tempfile::tempdir().unwrap();
    let zoo = ckpt::open(&data("safetensors/zoo.safetensors")).unwrap();
    let items: Vec<(usize, &str)> = zoo.entries().iter().enumerate().map(|(i, e)| (i, &e.name[..])).collect();
    let dir = out.path().join("deep/params");
    // Into a directory that is not there, and again into the one that is.
    for _ in 0..2 {
        let mut told = 0;
        ckpt::convert_to_streams(&*zoo, &items, &dir, &mut |bytes| told += bytes).unwrap();
        assert_eq!(told, zoo.entries().iter().map(|e| e.bytes).sum::<u64>());
        let mut compared = 0;
        // The two versions cast the NaN in this tensor differently (7fff and 7fc0).
        for (_, name) in items.iter().filter(|(_, name)| *name != "special.bf16") {
            let theirs = data("binary_tensor/bin").join(format!("{}.bin", name.replace('/', "__")));
            assert_eq!(fs::read(dir.join(name)).unwrap(), fs::read(&theirs).unwrap(), "{name}");
            compared += 1;
        }
        assert_eq!(compared, 23);
        let back = ckpt::open(&dir).unwrap();
        assert_eq!((back.entries().len(), back.skipped()), (24, &[][..]));
        assert!(back.find("block/with/slash").is_some());
    }
    let beside: Vec<_> = fs::read_dir(out.path().join("deep")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside, ["params"], "nothing is left beside");
}

#[test]
fn conversion_moves_blocks_not_tensors() {
    /// A tensor of 64 MB that exists only as a rule; asked for more than a block, it panics.
    struct Rule(Vec<ckpt::TensorEntry>);
    impl Checkpoint for Rule {
        fn path(&self) -> &Path {
            Path::new("rule")
        }
        fn format(&self) -> &'static str {
            "rule"
        }
        fn entries(&self) -> &[ckpt::TensorEntry] {
            &self.0
        }
        fn read(&self, _: usize) -> Result<std::borrow::Cow<'_, [u8]>, CkptError> {
            panic!("the whole tensor was asked for")
        }
        fn read_into(&self, _: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
            assert!(buffer.len() <= ckpt::limits::BLOCK);
            buffer.iter_mut().zip(offset..).for_each(|(b, at)| *b = (at % 251) as u8);
            Ok(())
        }
    }
    let bytes = (64 << 20) + 5;
    let rule = Rule(vec![ckpt::TensorEntry { name: "w".into(), dtype: DType::U8, shape: vec![bytes], bytes }]);
    let out = tempfile::tempdir().unwrap();
    ckpt::convert_to_streams(&rule, &[(0, "w")], out.path(), &mut |_| ()).unwrap();
    let back = ckpt::open(&out.path().join("w")).unwrap();
    assert!(back.read(0).unwrap().iter().zip(0u64..).all(|(&b, at)| b == (at % 251) as u8));
    assert_eq!(back.entries()[0].bytes, bytes);
}

#[test]
fn a_manifest_outlives_its_checkpoint() {
    let ckpt = ckpt::open(&data("safetensors/mlp.safetensors")).unwrap();
    let manifest = Manifest::of(&*ckpt);
    let entries = ckpt.entries().to_vec();
    drop(ckpt);
    let copy = manifest.clone();
    assert_eq!((copy.entries(), copy.format()), (&entries[..], "safetensors"));
    assert_eq!(copy.find("0.weight").unwrap().dtype, DType::F32);
    assert!(copy.find("missing").is_none() && copy.path().ends_with("mlp.safetensors"));
}

/// `save_as_fp16` of Paddle 2.6.2 on a CPU is `cast`, which truncates.
#[test]
fn truncation_is_what_save_as_fp16_did() {
    for name in ["w.f32", "special.f32", "one.f32", "zero_d.f32"] {
        let read = |file: &str| ckpt::open(&data("save_ops/save").join(file)).unwrap().read(0).unwrap().into_owned();
        let wide: Vec<f32> = read(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let theirs: Vec<u16> =
            read(&format!("{name}.as_fp16")).as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        let mut ours = vec![0; wide.len()];
        convert::narrow(DType::F16, &wide, &mut ours, Narrowing::Truncate);
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn an_index_that_is_not_there_is_an_error() {
    for path in ["safetensors/mlp.safetensors", "save_ops/combine", "save_vars/vars"] {
        let ckpt = ckpt::open(&data(path)).unwrap();
        let none = ckpt.entries().len();
        assert!(matches!(ckpt.read(none), Err(CkptError::NoEntry { .. })), "{path}");
        assert!(matches!(ckpt.read_into(none, 0, &mut [0]), Err(CkptError::NoEntry { .. })), "{path}");
        let end = ckpt.entries()[0].bytes;
        for offset in [end, u64::MAX] {
            assert!(matches!(ckpt.read_into(0, offset, &mut [0]), Err(CkptError::WrongLength { .. })), "{path}");
        }
    }
}

#[cfg(unix)]
#[test]
fn written_files_have_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let out = tempfile::tempdir().unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode();
    fs::write(out.path().join("plain"), "").unwrap();
    fs::create_dir(out.path().join("plain.dir")).unwrap();
    let ckpt = StreamFile::open(&data("save_ops/save/w.f32"), Access::Map).unwrap();
    ckpt::write_stream(&out.path().join("ours"), &TensorData::of(&ckpt, 0).unwrap()).unwrap();
    ckpt::convert_to_streams(&ckpt, &[(0, "w")], &out.path().join("ours.dir"), &mut |_| ()).unwrap();
    assert_eq!(mode(&out.path().join("ours")), mode(&out.path().join("plain")));
    assert_eq!(mode(&out.path().join("ours.dir/w")), mode(&out.path().join("plain")));
    assert_eq!(mode(&out.path().join("ours.dir")), mode(&out.path().join("plain.dir")));
}
