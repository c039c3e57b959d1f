//! Does every model of a corpus train as it trained in Paddle? Losses and final values, float32.
//!
//! Set MASTERCAST_CORPUS to a directory that holds `dev` (programs) and `exec/dev` (recorded runs); the test
//! prints a table. Without it only what `interp_models.rs` holds is checked.

mod models;

use models::{Run, json};
use std::path::{Path, PathBuf};

fn corpus() -> Option<PathBuf> {
    let dir = std::env::var_os("MASTERCAST_CORPUS");
    if dir.is_none() {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
    }
    dir.map(PathBuf::from)
}

fn models(dir: &Path) -> Vec<String> {
    let only = std::env::var("MASTERCAST_MODEL").ok();
    let all = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = all.filter(|m| only.as_ref().is_none_or(|o| o.split(',').any(|o| o == m))).collect();
    all.sort();
    all
}

#[test]
fn every_model_trains_as_in_paddle() {
    let Some(corpus) = corpus() else { return };
    let (programs, recorded) = (corpus.join("dev"), corpus.join("exec/dev"));
    let mut failed = Vec::new();
    for model in models(&programs) {
        let curves = json(&recorded.join(format!("{model}.v2.json")));
        for (stem, curve) in curves["programs"].as_object().unwrap() {
            if curve["ok"] != true || !recorded.join(format!("{model}.params.npz")).exists() {
                continue;
            }
            let run = Run {
                programs: programs.join(&model),
                recorded: recorded.clone(),
                model: model.clone(),
                stem: stem.clone(),
            };
            match run.compare(curve) {
                Ok(row) => {
                    println!("{model:18} {stem:20} {row}");
                    if !row.good() && !run.random() {
                        failed.push(format!("{model} {stem}"));
                    }
                }
                Err(e) => {
                    println!("{model:18} {stem:20} {e}");
                    failed.push(format!("{model} {stem}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
