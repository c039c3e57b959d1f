//! Which rewrites did Paddle do, with which options? Read from the files that describe a corpus.

use mastercast::passes::Precision;
use mastercast::passes::precision::{Level, LowType};
use serde_json::Value;
use std::collections::BTreeMap;

/// One rewrite by Paddle.
pub struct Case {
    pub model: String,
    pub file: String,
    pub source: Vec<u8>,
    pub result: Vec<u8>,
    pub options: Precision,
    pub returned: Vec<String>,
}

/// The files of one model by name.
pub type Files = BTreeMap<String, Vec<u8>>;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str()).map(str::to_owned).collect()
}

fn options(call: &Value) -> Precision {
    let lists = &call["amp_lists"];
    Precision {
        level: serde_json::from_value::<Level>(call["level"].clone()).expect("a level"),
        dtype: match call["dest_type"].as_str() {
            Some("FP16") => LowType::Float16,
            Some("BF16") => LowType::BFloat16,
            other => panic!("dest_type {other:?}"),
        },
        promote: call["use_promote"].as_bool().expect("use_promote"),
        guard: call["use_fp16_guard"].as_bool().expect("use_fp16_guard"),
        white: strings(&lists["custom_white_list"]),
        black: strings(&lists["custom_black_list"]),
        black_vars: strings(&lists["custom_black_varnames"]),
        ..Precision::default()
    }
}

/// The forward rewrites of a model.
pub fn cases(model: &str, files: &Files) -> Vec<Case> {
    let json = |name: &str| -> Value {
        serde_json::from_slice(files.get(name).unwrap_or_else(|| panic!("{model}: no {name}"))).expect("JSON")
    };
    let (config, returned) = (json("config.json"), json("to_fp16_var_names.json"));
    let bytes = |name: &str| -> Option<Vec<u8>> {
        let same = config[name]["same_bytes_as"].as_str().unwrap_or(name);
        files.get(same).cloned()
    };
    let mut out = Vec::new();
    for (file, call) in config.as_object().expect("an object") {
        let stem = file.trim_end_matches(".pb");
        if !file.starts_with("fwd.") || call.get("api").is_none() || call.get("error").is_some() {
            continue;
        }
        let source = call["source"].as_str().expect("a source");
        let Some(result) = bytes(file) else { continue };
        out.push(Case {
            model: model.to_owned(),
            file: file.clone(),
            source: bytes(source).unwrap_or_else(|| panic!("{model}: no {source}")),
            result,
            options: options(call),
            returned: strings(&returned[stem]),
        });
    }
    out
}

/// The files of each model below a directory.
pub fn read_dir(dir: &std::path::Path) -> BTreeMap<String, Files> {
    let mut models = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path()) {
        if !entry.join("config.json").is_file() {
            continue;
        }
        let mut files = Files::new();
        for file in std::fs::read_dir(&entry).expect("a directory").map(|e| e.expect("an entry").path()) {
            let name = file.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
            if name.starts_with("fwd.") || name == "config.json" || name == "to_fp16_var_names.json" {
                files.insert(name, std::fs::read(&file).expect("a file"));
            }
        }
        models.insert(entry.file_name().expect("a name").to_str().expect("UTF-8").to_owned(), files);
    }
    models
}

/// The files of each model in a packed corpus (`tests/data/scripts/pack_amp.py` has the form).
pub fn unpack(packed: &[u8]) -> BTreeMap<String, Files> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).expect("zstd");
    decoder.read_to_end(&mut bytes).expect("zstd");
    let head = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    let index: Vec<(String, String, usize)> = serde_json::from_slice(&bytes[4..4 + head]).expect("JSON");
    let mut at = 4 + head;
    let mut models: BTreeMap<String, Files> = BTreeMap::new();
    for (model, name, len) in index {
        models.entry(model).or_default().insert(name, bytes[at..at + len].to_vec());
        at += len;
    }
    assert_eq!(at, bytes.len());
    models
}
