//! What smaller job still shows the fault? One step, or one part of a step, is left out at a time.

use super::{Job, Step};
use mastercast::ir::Section;

/// The smallest job found from `job` on which `fails` still says why.
pub fn shrink(job: &Job, fails: impl Fn(&Job) -> Option<String>) -> (Job, String) {
    let mut best = job.clone();
    let mut why = fails(&best).unwrap_or_default();
    let mut budget = 3000;
    'again: loop {
        for small in smaller(&best) {
            if budget == 0 {
                break 'again;
            }
            budget -= 1;
            if let Some(w) = fails(&small) {
                (best, why) = (small, w);
                continue 'again;
            }
        }
        break;
    }
    (best, why)
}

fn smaller(job: &Job) -> Vec<Job> {
    let mut out = Vec::new();
    for section in [Section::Startup, Section::Main] {
        let list = match section {
            Section::Startup => &job.startup,
            Section::Main => &job.main,
        };
        for variant in smaller_lists(list) {
            let mut j = job.clone();
            match section {
                Section::Startup => j.startup = variant,
                Section::Main => j.main = variant,
            }
            out.push(j);
        }
    }
    out
}

fn smaller_lists(list: &[Step]) -> Vec<Vec<Step>> {
    let mut out = Vec::new();
    if list.len() > 3 {
        out.push(list[..list.len() / 2].to_vec());
        out.push(list[list.len() / 2..].to_vec());
    }
    for i in (0..list.len()).rev() {
        let mut l = list.to_vec();
        let step = l.remove(i);
        out.push(l.clone());
        if let Some(body) = step.body() {
            let mut flat = l.clone();
            flat.splice(i..i, body.iter().cloned());
            out.push(flat);
            for b in smaller_lists(body) {
                let mut s = step.clone();
                *s.body_mut().unwrap() = b;
                let mut l = l.clone();
                l.insert(i, s);
                out.push(l);
            }
        }
        for s in simpler(&step) {
            let mut l = l.clone();
            l.insert(i, s);
            out.push(l);
        }
    }
    out
}

fn simpler(step: &Step) -> Vec<Step> {
    let mut out = Vec::new();
    match step.clone() {
        Step::Load { file, outs, annotate, pinned, as_fp16 } => {
            for i in (0..outs.len()).filter(|_| outs.len() > 1) {
                let mut outs = outs.clone();
                outs.remove(i);
                out.push(Step::Load { file, outs, annotate, pinned, as_fp16 });
            }
            if pinned {
                out.push(Step::Load { file, outs: outs.clone(), annotate, pinned: false, as_fp16 });
            }
            if as_fp16 {
                out.push(Step::Load { file, outs, annotate, pinned, as_fp16: false });
            }
        }
        Step::AmpInit { cells, rewrite, dtype } => {
            for i in (0..cells.len()).filter(|_| cells.len() > 1) {
                let mut cells = cells.clone();
                cells.remove(i);
                out.push(Step::AmpInit { cells, rewrite: rewrite.clone(), dtype });
            }
            for i in 0..rewrite.len() {
                let mut rewrite = rewrite.clone();
                rewrite.remove(i);
                out.push(Step::AmpInit { cells: cells.clone(), rewrite, dtype });
            }
        }
        Step::Cond { flag, unknown, locals, redeclare, twice, body } => {
            if twice.is_some() {
                let (locals, body) = (locals.clone(), body.clone());
                out.push(Step::Cond { flag, unknown, locals, redeclare, twice: None, body });
            }
            if !locals.is_empty() {
                out.push(Step::Cond { flag, unknown, locals: Vec::new(), redeclare, twice, body: body.clone() });
            }
            if redeclare {
                out.push(Step::Cond { flag, unknown, locals, redeclare: false, twice, body });
            }
        }
        Step::Loop { times, locals, body } => {
            if times > 1 {
                out.push(Step::Loop { times: times - 1, locals: locals.clone(), body: body.clone() });
            }
            if !locals.is_empty() {
                out.push(Step::Loop { times, locals: Vec::new(), body });
            }
        }
        Step::Update { kind, pair, master, skip: Some(_) } => {
            out.push(Step::Update { kind, pair, master, skip: None });
        }
        Step::Init { out: c, dtype, random: true, value } => {
            out.push(Step::Init { out: c, dtype, random: false, value });
        }
        _ => {}
    }
    out
}
