//! Does every line of the attack list of `ckpt` end in a typed error? One test a line, same numbers.

use mastercast::ckpt::{self, Access, Checkpoint, CkptError, StreamDir, StreamFile, TensorData, TensorEntry, limits};
use mastercast::ir::DType;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const BOTH: [Access; 2] = [Access::Map, Access::Read];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt").join(name)
}

/// The error of opening these bytes as a file, whatever they look like; both ways of access agree.
fn refused(bytes: &[u8]) -> CkptError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, bytes).unwrap();
    let [a, b] = BOTH.map(|access| ckpt::open_with(&path, access).err().expect("the file was taken"));
    assert_eq!(a.to_string(), b.to_string());
    a
}

/// Malformed, and the message has this text.
#[track_caller]
fn malformed(bytes: &[u8], text: &str) {
    let error = refused(bytes);
    assert!(matches!(error, CkptError::Malformed { .. }), "{error}");
    assert!(error.to_string().contains(text), "`{error}` does not say `{text}`");
}

#[track_caller]
fn unsupported(bytes: &[u8], text: &str) {
    let error = refused(bytes);
    assert!(matches!(error, CkptError::Unsupported { .. }) && error.to_string().contains(text), "{error}");
}

#[track_caller]
fn unknown(bytes: &[u8]) {
    let error = refused(bytes);
    assert!(matches!(error, CkptError::UnknownFormat { .. }), "{error}");
}

/// The head of a tensor stream without LoD, then what follows.
fn stream(desc: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 16];
    out.extend((desc.len() as i32).to_le_bytes());
    out.extend(desc);
    out.extend(rest);
    out
}

fn safetensors(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// A float32 tensor's entry of a header.
fn entry(name: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

// Tensor streams

#[test]
fn attack_01_cut_files() {
    for file in ["save_ops/save/w.bf16", "binary_tensor/lod.bin", "save_ops/combine", "save_vars/combined"] {
        let whole = fs::read(data(file)).unwrap();
        // A combined file cut between two tensors is a shorter combined file: nothing in it tells.
        let full = ckpt::open(&data(file)).unwrap();
        let mut ends = 0;
        for len in 0..whole.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("cut");
            fs::write(&path, &whole[..len]).unwrap();
            for access in BOTH {
                match ckpt::open_with(&path, access) {
                    Ok(cut) => {
                        assert!(cut.entries().len() < full.entries().len(), "{file} cut at {len}");
                        ends += 1;
                    }
                    Err(CkptError::Malformed { .. } | CkptError::UnknownFormat { .. }) => {}
                    Err(e) => panic!("{file} cut at {len}: {e}"),
                }
            }
        }
        assert_eq!(ends, 2 * (full.entries().len() - 1), "{file}");
    }
}

#[test]
fn attack_02_versions() {
    let whole = fs::read(data("save_ops/save/w.f32")).unwrap();
    let mut bytes = whole.clone();
    bytes[0] = 1;
    unknown(&bytes);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("w"), &bytes).unwrap();
    let error = StreamFile::open(&dir.path().join("w"), Access::Map).err().unwrap();
    assert!(error.to_string().contains("LoDTensor version 1"), "{error}");
    let mut bytes = whole;
    bytes[12] = 7;
    malformed(&bytes, "tensor version 7");
}

#[test]
fn attack_03_lod() {
    let lod = |levels: u64, size: u64, rest: usize| {
        [&[0; 4][..], &levels.to_le_bytes(), &size.to_le_bytes(), &vec![0; rest]].concat()
    };
    unknown(&lod(u64::MAX, 0, 64));
    unknown(&lod(limits::MAX_LOD_LEVELS + 1, 0, 4096));
    malformed(&lod(1, u64::MAX - 7, 64), "a LoD level of 18446744073709551608 bytes");
    malformed(&lod(1, 72, 64), "the file has 64 more");
    malformed(&lod(1, 12, 64), "not whole offsets");
    malformed(&lod(16, 0, 8), "LoD level needs 8 bytes");
}

#[test]
fn attack_04_desc_sizes() {
    for size in [-1, i32::MIN, i32::MAX, limits::MAX_DESC as i32 + 1] {
        let bytes = [&[0; 16][..], &size.to_le_bytes(), &[0; 4096]].concat();
        malformed(&bytes, &format!("a TensorDesc of {size} bytes"));
    }
    malformed(&[&[0; 16][..], &100i32.to_le_bytes(), &[8, 5]].concat(), "a TensorDesc needs 100 bytes");
}

#[test]
fn attack_05_descs() {
    malformed(&stream(&[0x08, 5, 0x18, 1], &[0; 64]), "unknown TensorDesc field (key 0x18)");
    malformed(&stream(&[0x0d, 5, 0, 0, 0], &[0; 64]), "unknown TensorDesc field");
    malformed(&stream(&[0x08, 5, 0x08, 5], &[0; 64]), "a second element type");
    malformed(&stream(&[0x10, 2], &[0; 64]), "no element type");
    malformed(&stream(&[], &[0; 64]), "no element type");
    malformed(&stream(&[0x08, 5, 0x10], &[0; 64]), "passes the end");
    malformed(&stream(&[0x08, 5, 0x10, 0x80, 0x80], &[0; 64]), "passes the end");
    let endless = [&[0x08, 5, 0x10][..], &[0xff; 40]].concat();
    malformed(&stream(&endless, &[0; 64]), "more than 64 bits");
    malformed(&stream(&[0x08, 5, 0x12, 9, 1], &[0; 64]), "packed dimensions of 9 bytes");
    // A packed list is what any protobuf reader takes too.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("w"), stream(&[0x08, 5, 0x12, 2, 1, 2], &[0; 8])).unwrap();
    assert_eq!(ckpt::open(&dir.path().join("w")).unwrap().entries()[0].shape, [1, 2]);
}

#[test]
fn attack_06_dimensions() {
    let dim = |d: i64| {
        let mut d = d as u64;
        let mut out = vec![0x10];
        while d >= 0x80 {
            out.push(d as u8 | 0x80);
            d >>= 7;
        }
        out.push(d as u8);
        out
    };
    let desc = |dims: &[i64]| [vec![8, 5], dims.iter().flat_map(|&d| dim(d)).collect()].concat();
    malformed(&stream(&desc(&[2, -1]), &[0; 64]), "dimension -1 is negative");
    malformed(&stream(&desc(&[i64::MAX, i64::MAX]), &[0; 64]), "more than any file holds");
    malformed(&stream(&desc(&[1 << 62, 4]), &[0; 64]), "more than any file holds");
    malformed(&stream(&desc(&[1 << 61]), &[0; 64]), "more than any file holds");
    malformed(&stream(&desc(&[1; limits::MAX_RANK + 1]), &[0; 64]), "more than 64 dimensions");
}

#[test]
fn attack_07_long_data() {
    malformed(&stream(&[8, 5, 0x10, 17], &[0; 64]), "the data needs 68 bytes, the file has 64 more");
    // 2^40 elements are 4 TiB: refused by the size of the file, before anything is allocated.
    malformed(&stream(&[8, 5, 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20], &[0; 64]), "needs 4398046511104 bytes");
}

#[test]
fn attack_08_types() {
    for code in [7u8, 19, 25, 31, 127] {
        unsupported(&stream(&[8, code, 0x10, 1], &[0; 64]), &format!("element type {code} is not known"));
    }
    malformed(&stream(&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x10, 1], &[0; 64]), "is not known");
}

#[test]
fn attack_09_trailing_bytes() {
    let mut whole = fs::read(data("save_ops/save/w.f32")).unwrap();
    whole.extend([1, 2, 3]);
    malformed(&whole, "the version of a LoDTensor needs 4 bytes, the file has 3 more");
    whole.extend([0; 40]);
    malformed(&whole, "LoDTensor version");
}

#[test]
fn attack_10_selected_rows() {
    let whole = fs::read(data("binary_tensor/selected_rows.bin")).unwrap();
    unsupported(&whole, "SelectedRows");
    // More rows than there may be LoD levels.
    let many = [&[0; 4][..], &100u64.to_le_bytes(), &[1; 800], &9u64.to_le_bytes(), &stream(&[8, 5], &[0; 4])[12..]];
    unsupported(&many.concat(), "SelectedRows");
    // A count of rows that would pass the end of the address space.
    unknown(&[&[0; 4][..], &(u64::MAX / 8).to_le_bytes(), &[0; 64]].concat());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rows"), whole).unwrap();
    fs::copy(data("save_ops/save/w.f32"), dir.path().join("w")).unwrap();
    assert!(ckpt::open(dir.path()).unwrap().skipped()[0].why.contains("SelectedRows"));
}

#[test]
fn attack_11_combined_names() {
    let open = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        ckpt::open_combined(&data("save_ops/combine"), &names, Access::Map).err().expect("the names were taken")
    };
    assert!(matches!(open(&["a", "b", "c"]), CkptError::NameCount { names: 3, tensors: 4, .. }));
    assert!(matches!(open(&["a", "b", "c", "d", "e"]), CkptError::NameCount { names: 5, .. }));
    assert!(matches!(open(&["a", "b", "c", "a"]), CkptError::BadName { .. }));
    assert!(matches!(open(&["a", "b", "c", ""]), CkptError::BadName { .. }));
}

// safetensors

#[test]
fn attack_12_header_sizes() {
    let sized = |size: u64| [&size.to_le_bytes()[..], b"{}", &[b' '; 100]].concat();
    malformed(&sized(103), "a header of 103 bytes; the file has 102 more");
    malformed(&sized(limits::MAX_HEADER + 1), "a header of 100000001 bytes");
    malformed(&sized(1 << 47), "a header of 140737488355328 bytes");
    unknown(&sized(u64::MAX));
    malformed(&sized(0), "does not begin with `{`");
    malformed(&sized(1), "EOF");
}

#[test]
fn attack_13_headers_that_are_none() {
    malformed(&[&7u64.to_le_bytes()[..], b"{\"a\":\xff\xfe"].concat(), "at byte 13: the header is not UTF-8");
    malformed(&safetensors("{\"a\" 1}", &[]), "expected `:`");
    malformed(&safetensors("{} {}", &[]), "trailing characters");
    malformed(&safetensors("{\"a\":[]}", &[]), "at byte");
    malformed(&safetensors("{\"a\":{}}", &[]), "missing field");
    unknown(&safetensors("[]", &[]));
    let deep = format!("{{\"a\":{{\"x\":{}", "[".repeat(1 << 20));
    malformed(&safetensors(&deep, &[]), "EOF while parsing");
    let deep = format!("{{\"a\":{}", "{\"a\":".repeat(1 << 20));
    malformed(&safetensors(&deep, &[]), "EOF while parsing");
}

#[test]
fn attack_14_repetitions() {
    // The crate keeps one of the two and takes the file.
    let twice = format!("{{{},{}}}", entry("a", "[1]", 0, 4), entry("a", "[0]", 4, 4));
    malformed(&safetensors(&twice, &[0; 4]), "tensor `a` is listed twice");
    let same = format!("{{{},{}}}", entry("a", "[1]", 0, 4), entry("a", "[1]", 0, 4));
    assert!(::safetensors::SafeTensors::read_metadata(&safetensors(&same, &[0; 4])).is_ok());
    malformed(&safetensors(&same, &[0; 4]), "overlaps");
    malformed(&safetensors(r#"{"__metadata__":{"k":"1","k":"2"}}"#, &[]), "metadata key `k` twice");
    malformed(&safetensors(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "two `__metadata__`");
    let field = r#"{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    malformed(&safetensors(field, &[0; 4]), "duplicate field");
}

#[test]
fn attack_15_ranges() {
    let two = |a: (u64, u64), b: (u64, u64)| {
        safetensors(&format!("{{{},{}}}", entry("a", "[2]", a.0, a.1), entry("b", "[2]", b.0, b.1)), &[0; 16])
    };
    malformed(&two((0, 8), (4, 12)), "overlaps the one before");
    malformed(&two((0, 8), (12, 20)), "of 16 bytes of data");
    let hole = format!("{{{},{}}}", entry("a", "[1]", 0, 4), entry("b", "[1]", 8, 12));
    malformed(&safetensors(&hole, &[0; 12]), "leaves a hole before it, which ends at 4");
    malformed(&safetensors(&format!("{{{}}}", entry("a", "[1]", 4, 8)), &[0; 8]), "leaves a hole");
    malformed(&safetensors(&format!("{{{}}}", entry("a", "[1]", 4, 0)), &[0; 4]), "data range 4..0");
    malformed(&safetensors(&format!("{{{}}}", entry("a", "[1]", 0, 4)), &[0; 5]), "end at byte 4 of 5");
    malformed(&safetensors(&format!("{{{}}}", entry("a", "[1]", 0, 4)), &[]), "of 0 bytes of data");
    malformed(&safetensors("{}", &[0; 1]), "end at byte 0 of 1");
}

#[test]
fn attack_16_shapes() {
    let one =
        |shape: &str, end: u64, data: usize| safetensors(&format!("{{{}}}", entry("a", shape, 0, end)), &vec![0; data]);
    malformed(&one("[2]", 4, 4), "needs 8 bytes");
    malformed(&one("[0]", 4, 4), "needs 0 bytes");
    malformed(&one("[9223372036854775807,4]", 4, 4), "is not a number of bytes");
    malformed(&one("[4611686018427387904]", 0, 0), "is not a number of bytes");
    malformed(&one("[-1]", 4, 4), "invalid value");
    malformed(&one("[1.5]", 4, 4), "invalid type");
    malformed(&one("[18446744073709551616]", 4, 4), "invalid");
    // Sizes whose sum with the header passes 2^64: the crate adds without a check.
    malformed(&one("[2305843009213693951]", u64::MAX / 8 * 8 - 4, 0), "is not a number of bytes");
    let huge = r#"{"a":{"dtype":"U8","shape":[18446744073709551610],"data_offsets":[0,18446744073709551610]}}"#;
    malformed(&safetensors(huge, &[]), "is not a number of bytes");
    let bits = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#;
    malformed(&safetensors(bits, &[0; 2]), "is not a number of bytes");
}

#[test]
fn attack_17_types() {
    let json = r#"{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,4]}}"#;
    unsupported(&safetensors(json, &[0; 4]), "tensor `a` has the unknown element type `F7`");
    // Types that Paddle has no code for: listed and read, but not written as a Paddle tensor.
    let json =
        r#"{"x":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}"#;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, safetensors(json, &[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    let ckpt = ckpt::open(&path).unwrap();
    assert_eq!(*ckpt.read(0).unwrap(), [1, 2, 3, 4]);
    assert_eq!(ckpt.dtype_name(0), "U16");
    assert!(ckpt.entries()[0].dtype.code() < 0 && ckpt.entries()[0].dtype.size().is_none());
    let out = dir.path().join("params");
    let error = ckpt::convert_to_streams(&*ckpt, &[(1, "w"), (0, "x")], &out, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("tensor `x` has element type U16"), "{error}");
    assert!(!out.exists());
    let error = ckpt::write_safetensors(&out, [TensorData::of(&*ckpt, 0).unwrap()], &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, CkptError::Unsupported { .. }), "{error}");
}

#[test]
fn attack_18_long_parts() {
    let shape = format!("[{}1]", "1,".repeat(limits::MAX_RANK));
    malformed(&safetensors(&format!("{{{}}}", entry("a", &shape, 0, 4)), &[0; 4]), "more than 64 dimensions");
    let name = "n".repeat(limits::MAX_NAME + 1);
    malformed(&safetensors(&format!("{{{}}}", entry(&name, "[1]", 0, 4)), &[0; 4]), "a name of more than 4096 bytes");
    malformed(&safetensors(&format!("{{{}}}", entry("", "[1]", 0, 4)), &[0; 4]), "without a name");
}

// Files

#[cfg(unix)]
#[test]
fn attack_19_files_that_are_none() {
    let error = ckpt::open(Path::new("/dev/zero")).err().unwrap();
    assert!(matches!(error, CkptError::Unsupported { .. }), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _open = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(ckpt::open(&socket).err().unwrap(), CkptError::Unsupported { .. }));
    assert!(matches!(ckpt::open(dir.path()).err().unwrap(), CkptError::UnknownFormat { .. }));
    assert!(matches!(ckpt::open(&dir.path().join("none")).err().unwrap(), CkptError::Io { .. }));
    unknown(&[]);
}

#[cfg(unix)]
#[test]
fn attack_20_directories() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let put = |name: &str, from: &str| fs::copy(data(from), root.join(name)).unwrap();
    put("w", "save_ops/save/w.f32");
    put(".w.tmp", "save_ops/save/w.f32");
    put("many", "save_ops/combine");
    put("model", "safetensors/mlp.safetensors");
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("note.txt"), "text").unwrap();
    symlink(root, root.join("self")).unwrap();
    symlink("w", root.join("linked")).unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    let _open = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    let mut deep = root.to_path_buf();
    (0..limits::MAX_DEPTH + 4).for_each(|_| deep.push("d"));
    fs::create_dir_all(&deep).unwrap();
    let ckpt = ckpt::open(root).unwrap();
    let names: Vec<_> = ckpt.entries().iter().map(|e| &e.name[..]).collect();
    assert_eq!(names, ["linked", "w"]);
    let skipped: BTreeMap<_, _> = ckpt.skipped().iter().map(|s| (&s.name[..], &s.why[..])).collect();
    let expected = [
        (".w.tmp", "is hidden"),
        ("broken", "a link that leads nowhere"),
        ("empty", "is no tensor"),
        ("many", "holds several tensors without names"),
        ("model", "is a safetensors file, a checkpoint of its own"),
        ("note.txt", "is no tensor"),
        ("self", "a link to a directory"),
        ("socket", "is not a regular file"),
    ];
    for (name, why) in expected {
        assert_eq!(skipped[name], why);
    }
    assert_eq!(skipped.len(), expected.len() + 1);
    assert!(skipped.values().any(|why| why.contains("directories deep")));
    // A file that begins like a tensor and is broken is no foreign file.
    let bytes = fs::read(data("save_ops/save/w.f32")).unwrap();
    fs::write(root.join("cut"), &bytes[..60]).unwrap();
    let error = ckpt::open(root).err().unwrap();
    assert!(matches!(&error, CkptError::Malformed { path, .. } if path.ends_with("cut")), "{error}");
}

#[test]
fn attack_21_files_that_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w");
    for from in ["save_ops/save/w.f32", "safetensors/mlp.safetensors"] {
        fs::copy(data(from), &path).unwrap();
        let ckpt = ckpt::open_with(&path, Access::Read).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20).unwrap();
        assert!(matches!(ckpt.read(0), Err(CkptError::Io { .. })));
        assert!(matches!(ckpt.read_into(0, 0, &mut [0; 4]), Err(CkptError::Io { .. })));
    }
    // Mapped, a replaced file stays what it was.
    fs::copy(data("save_ops/save/w.f32"), &path).unwrap();
    let ckpt = ckpt::open(&path).unwrap();
    let before = ckpt.read(0).unwrap().into_owned();
    ckpt::write_stream(&path, &TensorData::new("w", DType::U8, vec![1], vec![9u8])).unwrap();
    assert_eq!(*ckpt.read(0).unwrap(), before[..]);
    // In a directory the file is opened again, and its manifest compared.
    for access in BOTH {
        fs::copy(data("save_ops/save/w.f32"), &path).unwrap();
        let ckpt = StreamDir::open(dir.path(), access).unwrap();
        ckpt::write_stream(&path, &TensorData::new("w", DType::U8, vec![1], vec![9u8])).unwrap();
        for error in [ckpt.read(0).map(drop).unwrap_err(), ckpt.read_into(0, 0, &mut [0; 4]).unwrap_err()] {
            assert!(error.to_string().contains("changed since"), "{error}");
        }
    }
}

// Writers

#[cfg(unix)]
#[test]
fn attack_22_names_that_leave() {
    let from = ckpt::open(&data("save_ops/save/w.f32")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().join("params");
    let long = "n".repeat(256);
    let convert = |name: &str| ckpt::convert_to_streams(&*from, &[(0, name)], &dir, &mut |_| ());
    for round in 0..2 {
        let names = [
            "",
            "..",
            ".",
            "../w",
            "a/../../w",
            "a/..",
            "/w",
            "/etc/passwd",
            "a//w",
            "w/",
            "./w",
            "a\\w",
            "c:w",
            "w\0",
        ];
        for name in names.into_iter().chain([&long[..], ".hidden"]) {
            assert!(matches!(convert(name), Err(CkptError::BadName { .. })), "{name:?}");
        }
        // First into a directory that is not there, then into one that is.
        assert_eq!(dir.exists(), round == 1);
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    // A link below the directory that leads out of it.
    std::os::unix::fs::symlink(out.path(), dir.join("link")).unwrap();
    assert!(matches!(convert("link/w"), Err(CkptError::BadName { .. })));
    assert!(!out.path().join("w").exists());
    // A link in the place of the file itself is replaced, not followed.
    fs::write(out.path().join("victim"), "old").unwrap();
    std::os::unix::fs::symlink(out.path().join("victim"), dir.join("w")).unwrap();
    convert("w").unwrap();
    assert_eq!(fs::read_to_string(out.path().join("victim")).unwrap(), "old");
    assert!(fs::symlink_metadata(dir.join("w")).unwrap().is_file());
}

#[test]
fn attack_23_two_for_one_place() {
    let from = ckpt::open(&data("save_ops/combine")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().join("params");
    for items in [&[(0, "a"), (1, "a")][..], &[(0, "a/b"), (1, "a")], &[(0, "a"), (1, "a.b"), (2, "a/b/c")]] {
        let error = ckpt::convert_to_streams(&*from, items, &dir, &mut |_| ()).unwrap_err();
        assert!(matches!(error, CkptError::BadName { .. }), "{error}");
    }
    let error = ckpt::convert_to_streams(&*from, &[(0, "a"), (4, "b")], &dir, &mut |_| ()).unwrap_err();
    assert!(matches!(error, CkptError::NoEntry { index: 4, len: 4, .. }), "{error}");
    assert!(!dir.exists());
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a"), "old").unwrap();
    let error = ckpt::convert_to_streams(&*from, &[(0, "a/b")], &dir, &mut |_| ()).unwrap_err();
    assert!(matches!(error, CkptError::BadName { .. }), "{error}");
    let tensor = || TensorData::new("w", DType::U8, vec![1], vec![1u8]);
    let other = TensorData::new("w", DType::F32, vec![0], vec![]);
    for pair in [[tensor(), tensor()], [tensor(), other]] {
        let error = ckpt::write_safetensors(&dir.join("s"), pair, &BTreeMap::new()).unwrap_err();
        assert!(matches!(error, CkptError::BadName { .. }), "{error}");
    }
    for name in ["", "__metadata__", &"n".repeat(limits::MAX_NAME + 1)] {
        let tensor = TensorData { name: name.into(), ..tensor() };
        let error = ckpt::write_safetensors(&dir.join("s"), [tensor], &BTreeMap::new()).unwrap_err();
        assert!(matches!(error, CkptError::BadName { .. }), "{error}");
    }
}

#[test]
fn attack_24_data_of_another_length() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("w");
    for (dtype, shape, bytes) in [
        (DType::F32, vec![2], 7),
        (DType::F32, vec![2], 9),
        (DType::F32, vec![], 0),
        (DType::F32, vec![0, 5], 4),
        (DType::C128, vec![u64::MAX, 2], 16),
    ] {
        let tensor = || TensorData::new("w", dtype, shape.clone(), vec![0; bytes]);
        let [a, b] =
            [ckpt::write_stream(&path, &tensor()), ckpt::write_combined(&path, [tensor()])].map(Result::unwrap_err);
        assert!(matches!((a, b), (CkptError::WrongLength { .. }, CkptError::WrongLength { .. })));
        if dtype != DType::C128 {
            let error = ckpt::write_safetensors(&path, [tensor()], &BTreeMap::new()).unwrap_err();
            assert!(matches!(error, CkptError::WrongLength { .. }), "{error}");
        }
    }
    let deep = TensorData::new("w", DType::U8, vec![1; limits::MAX_RANK + 1], vec![0]);
    assert!(matches!(ckpt::write_stream(&path, &deep), Err(CkptError::Unsupported { .. })));
    assert!(matches!(ckpt::write_safetensors(&path, [deep], &BTreeMap::new()), Err(CkptError::Unsupported { .. })));
    let other = TensorData::new("w", DType::Other(99), vec![1], vec![0]);
    assert!(matches!(ckpt::write_stream(&path, &other), Err(CkptError::Unsupported { .. })));
    let lod = TensorData { lod: vec![vec![0, 1]], ..TensorData::new("w", DType::U8, vec![1], vec![0]) };
    assert!(matches!(ckpt::write_safetensors(&path, [lod], &BTreeMap::new()), Err(CkptError::Unsupported { .. })));
    assert!(matches!(ckpt::write_combined(&path, []), Err(CkptError::Unsupported { .. })));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

/// A checkpoint whose manifest promises more than it can read.
struct Broken(Vec<TensorEntry>);

impl Checkpoint for Broken {
    fn path(&self) -> &Path {
        Path::new("broken")
    }
    fn format(&self) -> &'static str {
        "broken"
    }
    fn entries(&self) -> &[TensorEntry] {
        &self.0
    }
    fn read(&self, _: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        Ok(Cow::Owned(vec![7; 2 << 20]))
    }
}

#[test]
fn attack_25_failures_in_the_middle() {
    let entry = |name: &str, bytes| TensorEntry { name: name.into(), dtype: DType::U8, shape: vec![bytes], bytes };
    let broken = Broken(vec![entry("a", 2 << 20), entry("b", 3 << 20)]);
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().join("params");
    let convert = || ckpt::convert_to_streams(&broken, &[(0, "a"), (1, "b")], &dir, &mut |_| ());
    // The directory appears whole or not at all.
    assert!(matches!(convert(), Err(CkptError::WrongLength { .. })));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    // In a directory that stands, the file that failed keeps its old content.
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("b"), "old").unwrap();
    assert!(matches!(convert(), Err(CkptError::WrongLength { .. })));
    assert_eq!(fs::read_to_string(dir.join("b")).unwrap(), "old");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    // The writers of one file: the second tensor fails after the first was written.
    let pair = || [(4, "a"), (5, "b")].map(|(n, name)| TensorData::new(name, DType::U8, vec![4], vec![1; n]));
    let path = dir.join("b");
    assert!(ckpt::write_combined(&path, pair()).is_err());
    assert!(ckpt::write_safetensors(&path, pair(), &BTreeMap::new()).is_err());
    // A target that cannot be replaced.
    fs::create_dir_all(dir.join("full/inside")).unwrap();
    let tensor = TensorData::new("w", DType::U8, vec![1], vec![1u8]);
    assert!(matches!(ckpt::write_stream(&dir.join("full"), &tensor), Err(CkptError::Io { .. })));
    assert!(matches!(ckpt::write_stream(&dir.join("none/w"), &tensor), Err(CkptError::Io { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
}
