//! Does the precision pass do what Paddle does, wherever that is sound?

mod parity;

use mastercast::ir::Section;
use mastercast::paddle::proto::read_program;
use mastercast::passes::precision::decide;
use mastercast::passes::{Pass, PassCx};
use parity::cases::{Case, cases, read_dir};
use parity::compare::compare;
use std::path::Path;

fn run(case: &Case) -> usize {
    let mut program = read_program(None, Some(&case.source)).unwrap();
    let theirs = read_program(None, Some(&case.result)).unwrap();
    let (_, kinds) = case.options.prepare(&program).unwrap_or_else(|e| panic!("{} {}: {e}", case.model, case.file));
    let decisions = decide(&program, &case.options, kinds);
    let mut returned: Vec<String> =
        program.names().iter().filter(|&(n, _)| decisions.is_returned(n)).map(|(_, t)| t.to_owned()).collect();
    returned.sort();
    let mut n = 0;
    if returned != case.returned {
        let a: std::collections::BTreeSet<_> = returned.iter().collect();
        let b: std::collections::BTreeSet<_> = case.returned.iter().collect();
        println!(
            "{} {} returned: ours only {:?}, theirs only {:?}",
            case.model,
            case.file,
            a.difference(&b),
            b.difference(&a)
        );
    }
    case.options.run(&mut program, &mut PassCx::default()).unwrap();
    for d in compare(&program, &theirs) {
        println!("{} {} {:?} {}", case.model, case.file, d.at, d.what);
        n += 1;
    }
    let _ = Section::Main;
    n
}

#[test]
fn a_corpus_is_rewritten_as_paddle_does() {
    let Some(dir) = std::env::var_os("MASTERCAST_CORPUS") else {
        eprintln!("skipped: MASTERCAST_CORPUS is not set");
        return;
    };
    let (mut files, mut differing) = (0, 0);
    for (model, found) in read_dir(Path::new(&dir)) {
        for case in cases(&model, &found) {
            files += 1;
            differing += usize::from(run(&case) > 0);
        }
    }
    println!("{files} files, {differing} differ");
}
