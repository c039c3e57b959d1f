//! Does the pass `train-precision` make of a float32 training program what Paddle makes when it decorates?

mod training;

use mastercast::paddle::proto::read_program;
use mastercast::passes::{Pass, PassCx};
use std::path::Path;
use training::cases::{cases, read_dir};
use training::compare::differences;

#[test]
fn a_corpus_is_rewritten_as_paddle_decorates() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let only = std::env::var("MASTERCAST_ONLY").unwrap_or_default();
    let (mut files, mut differing) = (0, 0);
    for (model, found) in read_dir(Path::new(&dir)) {
        for case in cases(&model, &found) {
            let id = format!("{model}/{}", case.file);
            if !id.contains(&only) {
                continue;
            }
            files += 1;
            let mut ours = read_program(case.startup.as_deref(), Some(&case.source)).unwrap();
            let theirs = read_program(case.their_startup.as_deref(), Some(&case.result)).unwrap();
            match case.options.run(&mut ours, &mut PassCx::default()) {
                Err(e) => {
                    println!("{id}: {e}");
                    differing += 1;
                }
                Ok(_) => {
                    let d = differences(&ours, &theirs);
                    differing += usize::from(!d.is_empty());
                    if !d.is_empty() {
                        println!("{id}: {} differ", d.len());
                        if !only.is_empty() {
                            for line in d {
                                println!("    {line}");
                            }
                        }
                    }
                    if std::env::var("MASTERCAST_SHOW").is_ok() {
                        println!("{}", mastercast::text::print(&ours));
                    }
                }
            }
        }
    }
    println!("{files} files, {differing} differ");
}
