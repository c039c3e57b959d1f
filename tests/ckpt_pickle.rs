//! Are files of `paddle.save` read bit for bit, whatever their protocol, and written so that the reader agrees?

mod ckpt_common;

use ckpt_common::{BOTH, check_entry, data, expected};
use mastercast::ckpt::{self, Access, Checkpoint, Manifest, PickleFile, PickleOptions, Plain, TensorData};
use mastercast::ir::DType;
use std::collections::BTreeMap;
use std::fs;

#[test]
fn state_dicts_are_read_bit_for_bit() {
    let mut seen = 0;
    for part in ["dygraph_zoo", "dygraph_zoo_v3", "optimizer", "optimizer_v3", "static_zoo"] {
        for (file, entries) in &expected(part) {
            for access in BOTH {
                let ckpt = ckpt::open_with(&data(part).join(file), access).unwrap();
                assert_eq!((ckpt.format(), ckpt.entries().len()), ("pickle", entries.len()), "{part}/{file}");
                for e in entries {
                    // A file of one tensor without a name takes the file's.
                    let name = if e.name.is_empty() { file.clone() } else { e.name.replace("weights/", "weights.") };
                    let name = if part == "static_zoo" { name.replace("model/", "model.") } else { name };
                    let index = ckpt.find(&name).unwrap_or_else(|| panic!("{part}/{file} lacks {name}"));
                    check_entry(&*ckpt, index, e);
                }
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2 * 22, "files that were compared");
}

#[test]
fn nested_objects_keep_their_tensors_under_their_path() {
    let zoo = expected("dygraph_nested");
    for (file, tensors) in [
        ("checkpoint.protocol2.pd", &[("model.w", "t"), ("model.b", "b"), ("nested.0.s", "scalar")][..]),
        ("checkpoint.protocol4.pd", &[("model.w", "t"), ("model.b", "b"), ("nested.0.s", "scalar")]),
        ("flat_with_scalar.protocol4.pd", &[("w", "t")]),
        ("list.protocol4.pd", &[("0", "t"), ("1", "scalar")]),
        ("ordered.protocol2.pd", &[("w", "t"), ("inner.b", "b")]),
        ("ordered.protocol4.pd", &[("w", "t"), ("inner.b", "b")]),
        ("single_tensor.protocol2.pd", &[("tensor.t", "t")]),
        ("single_bf16.protocol4.pd", &[("tensor.b", "b")]),
        ("tuple.protocol4.pd", &[("0", "t")]),
        ("numpy_scalar.protocol2.pd", &[("w", "t")]),
        ("numpy_scalar.protocol4.pd", &[("w", "t")]),
    ] {
        let ckpt = PickleFile::open(&data("dygraph_nested").join(file), Access::Map).unwrap();
        for (name, tensor) in tensors {
            let index = ckpt.find(name).unwrap_or_else(|| panic!("{file} lacks {name}"));
            let wanted = zoo[file].iter().find(|e| e.name == format!("tensor.{tensor}")).unwrap();
            check_entry(&ckpt, index, wanted);
            assert_eq!(ckpt.alias(index), Some(&wanted.name[..]), "{file}: the name of the eager tensor");
        }
    }
    let ckpt = PickleFile::open(&data("dygraph_nested/checkpoint.protocol2.pd"), Access::Map).unwrap();
    let plain: BTreeMap<_, _> = ckpt.plain().iter().map(|(n, v)| (&n[..], v)).collect();
    assert_eq!(plain["epoch"], &Plain::Int(3));
    assert_eq!((plain["best"], plain["ok"]), (&Plain::None, &Plain::Bool(true)));
    assert_eq!((plain["history.0"], plain["history.1"]), (&Plain::Float(0.5), &Plain::Float(0.25)));
    assert_eq!(plain["text"], &Plain::Text("ünï".to_owned()));
    // NumPy's own scalars are tensors without dimensions.
    let ckpt = PickleFile::open(&data("dygraph_nested/numpy_scalar.protocol4.pd"), Access::Map).unwrap();
    let lr = &ckpt.entries()[ckpt.find("lr").unwrap()];
    assert_eq!((lr.dtype, &lr.shape[..], lr.bytes), (DType::F32, &[][..], 4));
}

#[test]
fn names_schedules_and_types_are_kept() {
    let ckpt = ckpt::open(&data("optimizer/Adam.master.bfloat16.protocol4.pdopt")).unwrap();
    let master = ckpt.find("master_weights.linear_0.w_0").unwrap();
    assert_eq!(ckpt.alias(master), Some("linear_0.w_0_fp32_master_0"));
    assert_eq!(ckpt.plain()[0], ("LR_Scheduler.last_epoch".to_owned(), Plain::Int(1)));
    assert_eq!(ckpt.plain()[1], ("LR_Scheduler.last_lr".to_owned(), Plain::Float(0.0078125)));
    let ckpt = ckpt::open(&data("optimizer/Adam.master.bfloat16.pdparams")).unwrap();
    let weight = ckpt.find("0.weight").unwrap();
    assert_eq!(ckpt.alias(weight), Some("linear_0.w_0"));
    assert_eq!((ckpt.entries()[weight].dtype, &*ckpt.dtype_name(weight)), (DType::BF16, "bf16 (as uint16)"));
    let manifest = Manifest::of(&*ckpt);
    assert_eq!(manifest.alias(weight), Some("linear_0.w_0"));
    // A slice of more than 2^30 bytes in protocols 2 and 3, here by hand with small ones.
    let ckpt = ckpt::open(&data("dygraph_zoo/big.sliced.pdparams")).unwrap();
    assert_eq!(ckpt.entries()[ckpt.find("big").unwrap()].shape, [4, 6]);
    assert_eq!(ckpt.find("big@@.0"), None);
    let ckpt = ckpt::open(&data("dygraph_zoo/empty.pdparams")).unwrap();
    assert_eq!(ckpt.entries(), []);
}

#[test]
fn what_is_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.pdparams");
    for file in ["dygraph_zoo/zoo.protocol2.pdparams", "optimizer/Adam.master.float16.protocol4.pdopt"] {
        let from = ckpt::open(&data(file)).unwrap();
        let count = from.entries().len();
        let structured = (0..count).filter_map(|i| Some((from.entries()[i].name.clone(), from.alias(i)?.to_owned())));
        let nested = file.ends_with("pdopt");
        let options = PickleOptions {
            structured: if nested { Vec::new() } else { structured.collect() },
            plain: from.plain().to_vec(),
            nest_masters: nested,
        };
        ckpt::write_pickle(&path, (0..count).map(|i| TensorData::of(&*from, i).unwrap()), &options).unwrap();
        let copy = ckpt::open(&path).unwrap();
        assert_eq!(copy.entries(), from.entries());
        assert_eq!(copy.plain(), from.plain());
        for i in 0..count {
            assert_eq!(copy.read(i).unwrap(), from.read(i).unwrap());
            assert_eq!(copy.alias(i), from.alias(i), "{}", from.entries()[i].name);
        }
    }
}

#[test]
fn writers_refuse_what_a_state_dict_cannot_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pdparams");
    let one = |name: &'static str| TensorData::new(name, DType::F32, vec![1], vec![0; 4]);
    let options = PickleOptions::default();
    let error = ckpt::write_pickle(&path, [one("a"), one("a")], &options).unwrap_err();
    assert!(error.to_string().contains("two tensors"), "{error}");
    let error = ckpt::write_pickle(&path, [one("")], &options).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
    let error = ckpt::write_pickle(&path, [TensorData::new("a", DType::F32, vec![2], vec![0; 4])], &options);
    assert!(error.unwrap_err().to_string().contains("needs 8 bytes"));
    let lod = TensorData { lod: vec![vec![0, 1]], ..one("a") };
    assert!(ckpt::write_pickle(&path, [lod], &options).unwrap_err().to_string().contains("LoD"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}
