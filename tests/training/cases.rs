//! Which training programs did Paddle decorate, with which options? Read from the files that describe a corpus.

use mastercast::passes::TrainPrecision;
use mastercast::passes::precision::{Level, LowType};
use mastercast::passes::train_precision::scaling::LossScaling;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One decorated training program, and the float32 one of the same model and optimizer.
pub struct Case {
    pub file: String,
    pub startup: Option<Vec<u8>>,
    pub source: Vec<u8>,
    pub their_startup: Option<Vec<u8>>,
    pub result: Vec<u8>,
    pub options: TrainPrecision,
}

/// The files of one model by name.
pub type Files = BTreeMap<String, Vec<u8>>;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str()).map(str::to_owned).collect()
}

/// The options of a call of `paddle.static.amp.decorate`.
fn options(call: &Value) -> TrainPrecision {
    let kw = &call["kwargs"];
    let lists = &kw["amp_lists"];
    let flag = |name: &str, or: bool| kw[name].as_bool().unwrap_or(or);
    let base = TrainPrecision {
        white: strings(&lists["custom_white_list"]),
        black: strings(&lists["custom_black_list"]),
        black_vars: strings(&lists["custom_black_varnames"]),
        ..TrainPrecision::default()
    };
    if let Some(pure) = kw["use_pure_fp16"].as_bool() {
        // The older form: the optimizer's own multi_precision is kept, and the guard is on with pure float16.
        let level = if pure { Level::O2 } else { Level::O1 };
        return TrainPrecision {
            level,
            guard: pure,
            master_weight: false,
            loss_scaling: LossScaling::legacy(),
            ..base
        };
    }
    let mut scaling = LossScaling { dynamic: kw["use_dynamic_loss_scaling"].as_bool(), ..LossScaling::default() };
    let number = |name: &str| kw[name].as_f64();
    if let Some(v) = number("init_loss_scaling") {
        scaling.init = v as f32;
    }
    if let Some(v) = number("incr_every_n_steps") {
        scaling.incr_every_n_steps = v as i32;
    }
    if let Some(v) = number("decr_every_n_nan_or_inf") {
        scaling.decr_every_n_nan_or_inf = v as i32;
    }
    if let Some(v) = number("incr_ratio") {
        scaling.incr_ratio = v as f32;
    }
    if let Some(v) = number("decr_ratio") {
        scaling.decr_ratio = v as f32;
    }
    let level = serde_json::from_value::<Level>(kw["level"].clone()).expect("a level");
    TrainPrecision {
        level,
        dtype: match kw["dtype"].as_str() {
            Some("float16") => LowType::Float16,
            Some("bfloat16") => LowType::BFloat16,
            other => panic!("dtype {other:?}"),
        },
        promote: flag("use_promote", false),
        // Paddle's `decorate` drops the guard at other levels.
        guard: flag("use_amp_guard", false) && level == Level::O2,
        master_weight: flag("master_weight", true),
        master_grad: flag("master_grad", false),
        loss_scaling: scaling,
        ..base
    }
}

/// The decorated training programs of a model.
pub fn cases(files: &Files) -> Vec<Case> {
    let Some(config) = files.get("config.json") else { return Vec::new() };
    let config: Value = serde_json::from_slice(config).expect("JSON");
    let bytes = |name: &str| -> Option<Vec<u8>> {
        let same = config[name]["same_bytes_as"].as_str().unwrap_or(name);
        files.get(same).cloned()
    };
    let mut out = Vec::new();
    for (file, call) in config.as_object().expect("an object") {
        if !file.starts_with("train.") || call["api"].is_null() || !call["error"].is_null() || file.contains(".raw.") {
            continue;
        }
        // The float32 program of the same optimizer.
        let same = |(name, other): &(&String, &Value)| {
            name.starts_with("train.fp32") && !name.contains(".raw.") && other["optimizer"] == call["optimizer"]
        };
        let Some((source, _)) = config.as_object().expect("an object").iter().find(same) else { continue };
        let (Some(result), Some(main)) = (bytes(file), bytes(source)) else { continue };
        // Large models come without the startup program of float32 training.
        let startup = bytes(&format!("startup.{source}"));
        let their_startup = startup.is_some().then(|| bytes(&format!("startup.{file}"))).flatten();
        out.push(Case { file: file.clone(), startup, source: main, their_startup, result, options: options(call) });
    }
    out
}

/// The files of each model below a directory.
pub fn read_dir(dir: &Path) -> BTreeMap<String, Files> {
    let mut models = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path()) {
        if !entry.join("config.json").is_file() {
            continue;
        }
        let mut files = Files::new();
        for file in std::fs::read_dir(&entry).expect("a directory").map(|e| e.expect("an entry").path()) {
            let name = file.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
            if name.starts_with("train.") || name.starts_with("startup.train.") || name == "config.json" {
                files.insert(name, std::fs::read(&file).expect("a file"));
            }
        }
        models.insert(entry.file_name().expect("a name").to_str().expect("UTF-8").to_owned(), files);
    }
    models
}
