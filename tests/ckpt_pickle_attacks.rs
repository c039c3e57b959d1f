//! Does every line of the attack list about pickles end in a typed error? One test a line, same numbers.

use mastercast::ckpt::{self, Access, Checkpoint, CkptError, limits};
use std::fs;
use std::path::Path;

fn data(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt").join(name)).unwrap()
}

/// Opens these bytes as a file, both ways; the errors agree.
fn open(bytes: &[u8]) -> Result<Box<dyn Checkpoint>, CkptError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, bytes).unwrap();
    let [a, b] = [Access::Map, Access::Read].map(|access| ckpt::open_with(&path, access));
    match (&a, &b) {
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        (a, b) => assert_eq!(a.is_ok(), b.is_ok()),
    }
    a
}

/// Refused, and the message has this text.
#[track_caller]
fn refused(bytes: &[u8], text: &str) {
    let error = open(bytes).err().expect("the file was taken");
    assert!(matches!(error, CkptError::Malformed { .. } | CkptError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains(text), "`{error}` does not say `{text}`");
}

/// A pickle of protocol 4 with this body and a STOP.
fn pickle(body: &[&[u8]]) -> Vec<u8> {
    [&[0x80, 4], &body.concat()[..], b"."].concat()
}

fn text(s: &str) -> Vec<u8> {
    [&[0x8c, s.len() as u8], s.as_bytes()].concat()
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

/// An array: `dims` and `data` are code, so that they can be wrong.
fn array(dims: &[u8], code: &str, order: &str, fortran: u8, data: &[u8]) -> Vec<u8> {
    [
        &global("numpy.core.multiarray", "_reconstruct")[..],
        &global("numpy", "ndarray"),
        b"K\0\x85C\x01b\x87R(K\x01",
        dims,
        &global("numpy", "dtype"),
        &text(code),
        b"\x89\x88\x87R(K\x03",
        &text(order),
        b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb",
        &[fortran],
        data,
        b"tb",
    ]
    .concat()
}

const FALSE: u8 = 0x89;
const TRUE: u8 = 0x88;

/// Eight bytes of data.
const EIGHT: &[u8] = b"C\x0812345678";

fn good() -> Vec<u8> {
    array(b"K\x02\x85", "f4", "<", FALSE, EIGHT)
}

fn dict_of(value: &[u8]) -> Vec<u8> {
    pickle(&[b"}", &text("w"), value, b"s"])
}

#[test]
fn attack_28_cut_files() {
    for file in ["optimizer/Adam.master.float16.protocol2.pdopt", "dygraph_zoo/zoo.protocol4.pdparams"] {
        let whole = data(file);
        assert!(open(&whole).is_ok());
        // Every length near the ends, and a sample of those between.
        for len in (0..whole.len()).filter(|n| *n < 600 || n % 37 == 0 || *n + 300 > whole.len()) {
            match open(&whole[..len]).err().unwrap_or_else(|| panic!("{file} cut at {len} was taken")) {
                CkptError::Malformed { .. } | CkptError::UnknownFormat { .. } => {}
                e => panic!("{file} cut at {len}: {e}"),
            }
        }
    }
}

#[test]
fn attack_29_names_that_are_not_on_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let witness = dir.path().join("witness");
    let command = format!("touch {}", witness.display());
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "check_output"),
        ("builtins", "exec"),
        ("builtins", "getattr"),
        ("__builtin__", "apply"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "fromfile"),
        ("paddle.base.core", "eager"),
        ("paddle.distributed.checkpoint.metadata", "os"),
        ("torch._utils", "_rebuild_tensor_v2"),
    ] {
        let call = [&global(module, name)[..], &text(&command), b"\x85R"].concat();
        refused(&dict_of(&call), &format!("names `{module}.{name}`"));
        let call = [&text(module)[..], &text(name), b"\x93", &text(&command), b"\x85R"].concat();
        refused(&dict_of(&call), &format!("names `{module}.{name}`"));
    }
    // What is on the list is not called either.
    let eval = [&global("builtins", "eval")[..], &text("__import__('os').system('x')"), b"}\x86R"].concat();
    refused(&dict_of(&eval), "calls Eval");
    let eval = [&global("builtins", "eval")[..], &text("data"), b"}", &text("data"), &text("x"), b"s\x86R"].concat();
    refused(&dict_of(&eval), "calls eval with something that is no tensor");
    let encode = [&global("_codecs", "encode")[..], &text("a"), &text("rot13"), b"\x86R"].concat();
    refused(&dict_of(&encode), "calls Encode");
    let bytes = [&global("builtins", "bytes")[..], b"J\xff\xff\xff\x7f\x85R"].concat();
    refused(&dict_of(&bytes), "calls Bytes");
    let shape = [
        &global("numpy.core.multiarray", "_reconstruct")[..],
        &global("numpy", "ndarray"),
        b"J\xff\xff\xff\x7f\x85C\x01b\x87R",
    ];
    refused(&dict_of(&shape.concat()), "calls Reconstruct");
    refused(&pickle(&[&global("numpy", "ndarray")]), "a function or a type");
    assert!(!witness.exists());
}

#[test]
fn attack_30_opcodes_that_paddle_does_not_write() {
    for op in [
        &b"i"[..],
        b"o",
        b"P",
        b"Q",
        b"\x82",
        b"\x83",
        b"\x84",
        b"\x92",
        b"\x97",
        b"\x98",
        b"\x96",
        b"\x8f",
        b"\x90",
        b"\x91",
        b"I",
        b"L",
        b"F",
        b"S",
        b"T",
        b"U",
        b"V",
        b"p",
        b"g",
        b"d",
        b"l",
        b"2",
        b"\x8b",
        b"\x8d",
        b"\xff",
    ] {
        refused(&pickle(&[b"}", op]), "uses opcode");
    }
    refused(&pickle(&[b"\x8a\x09123456789"]), "more than 64 bits");
    // A protocol that is not known is no checkpoint.
    assert!(matches!(open(b"\x80\x06}."), Err(CkptError::UnknownFormat { .. })));
}

#[test]
fn attack_31_stacks() {
    for (body, what) in [
        (&b""[..], "empty stack"),
        (b"0", "empty stack"),
        (b"1", "no mark"),
        (b"u", "no mark"),
        (b"e", "no mark"),
        (b"t", "no mark"),
        (b"\x87", "too few"),
        (b"a", "no list"),
        (b"Ns", "no dict"),
        (b"NNNs", "no dict"),
        (b"](K\0u", "no dict"),
        (b"}(K\0e", "no list"),
        (b"}(K\0u", "without a value"),
        (b"(\x85", "mark inside a tuple"),
        (b"](a", "mark"),
        (b"}((NNs", "no dict"),
        (b"(", "mark"),
        (b"(\x94", "nothing to keep"),
        (b"NN", "left over"),
        (b"R", "empty stack"),
        (b"b", "empty stack"),
        (b"NNR", "calls what is no name"),
        (b"NNb", "may not"),
        (b"}}b", "may not"),
        (b"NN\x93", "no text"),
        (b"N)\x81", "class that is not known"),
    ] {
        refused(&pickle(&[body]), what);
    }
}

#[test]
fn attack_32_memo() {
    refused(&pickle(&[b"h\0"]), "was never set");
    refused(&pickle(&[b"}r\xff\xff\xff\x7f"]), "out of order");
    refused(&pickle(&[b"}q\x01"]), "out of order");
    refused(&pickle(&[b"}q\0j\xff\xff\xff\xff"]), "was never set");
}

#[test]
fn attack_33_lengths_longer_than_the_file() {
    refused(&pickle(&[b"X\xff\xff\xff\xff"]), "a text needs 4294967295 bytes");
    refused(&pickle(&[b"X\xff\x0f\0\0"]), "a text needs 4095 bytes");
    refused(&pickle(&[b"B\xff\xff\xff\xff"]), "needs 4294967295 bytes");
    refused(&pickle(&[b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff"]), "needs 18446744073709551615 bytes");
    refused(&pickle(&[b"\x95\xff\xff\xff\xff\xff\xff\xff\xff}"]), "a frame of 18446744073709551615 bytes");
    refused(&pickle(&[b"c", &[b'a'; 300], b"\n"]), "a module without an end");
    refused(&pickle(&[&[0x8c, 2, 0xff, 0xfe]]), "not UTF-8");
}

#[test]
fn attack_34_containers_in_themselves_or_too_deep() {
    refused(&pickle(&[b"]\x94h\0a"]), "deep, or inside themselves");
    refused(&pickle(&[b"}\x94", &text("a"), b"h\0s"]), "deep, or inside themselves");
    let deep = [vec![b']'; 100_000], vec![b'a'; 99_999]].concat();
    refused(&pickle(&[&deep]), "deep, or inside themselves");
    // A tuple cannot hold itself, but a list in it can.
    refused(&pickle(&[b"]\x94(h\0ta"]), "deep, or inside themselves");
}

#[test]
fn attack_35_sharing_that_multiplies() {
    // Ten levels of lists that hold the level below 64 times; POP_MARK leaves the last alone.
    let mut body = b"(]\x94".to_vec();
    for level in 0..10u8 {
        body.extend([b']', 0x94, b'(']);
        body.extend([b'h', level].repeat(64));
        body.push(b'e');
    }
    body.extend(b"1h\x0a");
    refused(&pickle(&[&body]), "more values than");
}

#[test]
fn attack_36_more_values_than_are_read() {
    let body = b"N0".repeat(limits::MAX_PICKLE_VALUES + 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, pickle(&[&body])).unwrap();
    let error = ckpt::open(&path).err().unwrap();
    assert!(error.to_string().contains("more than 33554432 values"), "{error}");
}

#[test]
fn attack_37_arrays() {
    assert!(open(&dict_of(&good())).is_ok());
    for (bytes, what) in [
        (array(b"J\xff\xff\xff\xff\x85", "f4", "<", FALSE, EIGHT), "no length"),
        (array(b"N\x85", "f4", "<", FALSE, EIGHT), "no length"),
        (array(b"K\x02", "f4", "<", FALSE, EIGHT), "no tuple"),
        (array(&[&b"("[..], &b"K\x01".repeat(65), b"t"].concat(), "f4", "<", FALSE, EIGHT), "65 dimensions"),
        (array(b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7fK\x10\x87", "f4", "<", FALSE, EIGHT), "more than any file"),
        (array(b"K\x03\x85", "f4", "<", FALSE, EIGHT), "needs 12 bytes, 8 are stored"),
        (array(b"K\x01\x85", "f4", "<", FALSE, EIGHT), "needs 4 bytes, 8 are stored"),
        (array(b"K\x02\x85", "f4", ">", FALSE, EIGHT), "big-endian"),
        (array(b"K\x02K\x01\x86", "f4", "<", TRUE, b"N"), "another kind"),
        (array(b"K\x01K\x01\x86", "O8", "|", FALSE, EIGHT), "NumPy type `O8`"),
        (array(b"K\x02\x85", "V8", "|", FALSE, EIGHT), "NumPy type `V8`"),
        (array(b"K\x01K\x01\x86", "f8", "<", FALSE, &text("12345678")), "another kind"),
        (array(b"K\x02K\x02\x86", "f2", "<", TRUE, EIGHT), "Fortran order"),
        ([&good()[..], b"(K\x01K\0\x85Nt", b"b"].concat(), "another kind"),
        (global("numpy.core.multiarray", "_reconstruct"), "a function or a type"),
    ] {
        refused(&dict_of(&bytes), what);
    }
    let unbuilt =
        [&global("numpy.core.multiarray", "_reconstruct")[..], &global("numpy", "ndarray"), b"K\0\x85C\x01b\x87R"];
    refused(&dict_of(&unbuilt.concat()), "never built");
    let fields = b"(K\x03\x8c\x01|N\x8c\x01a\x85}J\0\0\0\0K\x01K\0tb";
    let with_fields = [&global("numpy", "dtype")[..], &text("f4"), b"\x89\x88\x87R", fields].concat();
    refused(&dict_of(&with_fields), "with fields");
}

#[test]
fn attack_38_text_that_is_no_bytes() {
    let encoded = |text: &[u8]| {
        let head = [&global("_codecs", "encode")[..], b"X", &(text.len() as u32).to_le_bytes()].concat();
        [&head[..], text, &[0x8c, 6], b"latin1", b"\x86R"].concat()
    };
    let of = |text: &[u8]| dict_of(&array(b"K\x02\x85", "f4", "<", FALSE, &encoded(text)));
    let ok = |text: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, of(text)).unwrap();
        ckpt::open(&path).unwrap().read(0).map(|data| data.into_owned())
    };
    assert_eq!(ok("12345\u{e9}78".as_bytes()).unwrap(), b"12345\xe978");
    let error = ok("12345\u{20ac}".as_bytes()).unwrap_err();
    assert!(error.to_string().contains("no bytes"), "{error}");
    let error = ok("1234567\u{e9}9".as_bytes()).unwrap_err();
    assert!(error.to_string().contains("then 1 more"), "{error}");
    let error = ok("\u{e9}\u{e9}\u{e9}\u{e9}".as_bytes()).unwrap_err();
    assert!(error.to_string().contains("holds 4 bytes"), "{error}");
    refused(&of(b"1234567"), "needs 8 bytes, 7 are stored");
    refused(&of(&[b'a'; 17]), "needs 8 bytes, 17 are stored");
}

#[test]
fn attack_39_names() {
    let two = [b"}", &text("a.b")[..], &good(), b"s", &text("a"), b"}", &text("b"), &good(), b"ss"].concat();
    refused(&pickle(&[&two]), "two tensors are called `a.b`");
    refused(&pickle(&[b"}N", &good(), b"s"]), "neither a name nor a number");
    refused(&pickle(&[b"})", &good(), b"s"]), "neither a name nor a number");
    let long = [&b"X\x01\x10\0\0"[..], &[b'a'; 4097]].concat();
    refused(&pickle(&[b"}", &long, &good(), b"s"]), "neither a name");
    let long = [&b"X\0\x10\0\0"[..], &[b'a'; 4096]].concat();
    refused(&pickle(&[b"}", &long, b"}", &text("b"), &good(), b"ss"]), "a name longer than any");
}

#[test]
fn attack_40_tables() {
    let table = |rows: &[u8]| {
        let head = [b"}", &text("w@@.0")[..], &good(), b"s", &text("UnpackBigParamInfor@@")].concat();
        pickle(&[&head, rows, b"s"])
    };
    let info = |shape: &[u8], slices: &[&str]| {
        let slices: Vec<u8> = slices.iter().flat_map(|s| [&text(s)[..], b"a"].concat()).collect();
        [b"}", &text("w")[..], b"}", &text("OriginShape"), shape, b"s", &text("slices"), b"]", &slices, b"ss"].concat()
    };
    assert!(open(&table(&info(b"K\x02\x85", &["w@@.0"]))).is_ok());
    refused(&table(&info(b"K\x02\x85", &["w@@.1"])), "a slice is missing");
    refused(&table(&info(b"K\x02\x85", &["w@@.0", "w@@.0"])), "a slice is missing");
    refused(&table(&info(b"K\x03\x85", &["w@@.0"])), "do not make up the shape");
    refused(&table(&info(b"N", &["w@@.0"])), "no shape");
    refused(&table(&info(b"K\x02\x85", &[])), "without slices");
    refused(&table(b"N"), "is no dict");
    let structured =
        |rows: &[u8]| pickle(&[b"}", &text("w"), &good(), b"s", &text("StructuredToParameterName@@"), rows, b"s"]);
    refused(&structured(b"N"), "is no dict");
    refused(&structured(&[b"}", &text("w")[..], b"Ns"].concat()), "holds what is no name");
}

#[test]
fn attack_41_bytes_behind_the_end() {
    refused(&[&dict_of(&good())[..], b"x"].concat(), "1 bytes after the end");
    refused(&[dict_of(&good()), dict_of(&good())].concat(), "bytes after the end");
}
