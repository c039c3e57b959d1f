//! Are NumPy archives read as NumPy wrote them, and refused where they cannot be?

use mastercast::ckpt::{self, Access, CkptError};
use mastercast::ir::DType;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt/npz").join(name)
}

fn refused(name: &str) -> String {
    match ckpt::open(&data(name)) {
        Err(e @ CkptError::Unsupported { .. }) => e.to_string(),
        Err(e) => panic!("{name}: {e:?}"),
        Ok(_) => panic!("{name} was opened"),
    }
}

#[test]
fn arrays_are_as_numpy_wrote_them() {
    for access in [Access::Map, Access::Read] {
        let npz = ckpt::open_with(&data("feed.npz"), access).unwrap();
        assert_eq!(npz.format(), "npz");
        let rows: Vec<_> = npz.entries().iter().map(|e| (e.name.as_str(), e.dtype, e.shape.clone())).collect();
        assert_eq!(
            rows,
            [
                ("image", DType::F32, vec![3, 4]),
                ("layer/0.w", DType::F16, vec![2]),
                ("label", DType::I64, vec![2, 1]),
                ("scalar", DType::F64, vec![]),
                ("mask", DType::Bool, vec![3]),
                ("empty", DType::I32, vec![0, 5]),
            ]
        );
        let image: Vec<u8> = (0..12).flat_map(|i| (i as f32 / 8.0).to_le_bytes()).collect();
        assert_eq!(*npz.read(0).unwrap(), image[..]);
        assert_eq!(*npz.read(1).unwrap(), [0x00, 0x3e, 0x80, 0xc0]);
        assert_eq!(*npz.read(2).unwrap(), [3i64, 9].map(i64::to_le_bytes).concat()[..]);
        assert_eq!(*npz.read(3).unwrap(), 0.1f64.to_le_bytes());
        assert_eq!(*npz.read(4).unwrap(), [1, 0, 1]);
        assert!(npz.read(5).unwrap().is_empty());
        assert_eq!(npz.find("label"), Some(2));
        let mut part = [0; 4];
        npz.read_into(0, 8, &mut part).unwrap();
        assert_eq!(part, 0.25f32.to_le_bytes());
        assert!(npz.read_into(0, 46, &mut part).is_err());
    }
}

#[test]
fn what_is_not_read_says_why() {
    assert!(refused("compressed.npz").contains("numpy.savez"));
    assert!(refused("columns.npz").contains("Fortran order"));
    assert!(refused("objects.npz").contains("\"|O\""));
    assert!(refused("big_endian.npz").contains("\">f4\""));
}

#[test]
fn a_cut_or_changed_archive_is_refused_or_still_within_bounds() {
    let bytes = std::fs::read(data("feed.npz")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.npz");
    for n in (0..bytes.len()).step_by(3) {
        std::fs::write(&path, &bytes[..n]).unwrap();
        assert!(ckpt::open(&path).is_err(), "cut at {n}");
    }
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(3) {
        let mut changed = bytes.clone();
        changed[at] = 0xff;
        std::fs::write(&path, &changed).unwrap();
        match ckpt::open_with(&path, Access::Read) {
            Err(_) => refused += 1,
            Ok(npz) => (0..npz.entries().len()).for_each(|i| {
                assert_eq!(npz.read(i).unwrap().len() as u64, npz.entries()[i].bytes);
            }),
        }
    }
    assert!(refused > 100, "{refused}");
}
