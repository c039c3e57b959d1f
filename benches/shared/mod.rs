//! What do the benches share? Medians, peak memory, and a large real-looking ProgramDesc.

// Each bench uses a part.
#![allow(dead_code)]

use mastercast::ir::{Origin, Program, Section};
use mastercast::names::{Name, Symbol};
use mastercast::paddle::proto::{export, read_program};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// The middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median seconds of `runs` runs of `f`; what it makes is dropped outside the time.
pub fn time<T>(runs: usize, mut f: impl FnMut() -> T) -> f64 {
    let mut times = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        let value = black_box(f());
        times.push(start.elapsed().as_secs_f64());
        drop(value);
    }
    median(times)
}

/// Peak resident bytes of this process so far, where the system tells.
pub fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
}

/// Which ops of the template are its second layer.
const LAYER: std::ops::Range<usize> = 4..8;

/// `fc_1.w_0` of the template is `fc_{layer}.w_0` of the copy, and so on.
fn rename(name: &str, layer: usize) -> String {
    for prefix in ["fc_", "layer_norm_"] {
        if let Some((number, rest)) = name.strip_prefix(prefix).and_then(|s| s.split_once('.')) {
            let number: usize = number.parse().expect("a layer's number");
            return format!("{prefix}{}.{rest}", layer + number - 1);
        }
    }
    name.to_string()
}

/// `tests/data/proto/fc_norm.pb` with its second layer repeated until there are `ops` ops.
pub fn synthesize(ops: usize) -> Vec<u8> {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto/fc_norm.pb");
    let mut p = read_program(None, Some(&std::fs::read(template).expect("the template"))).expect("a program");
    let block = p.global_block(Section::Main).expect("a block");
    let layer_ops = p.block(block).ops[LAYER].to_vec();
    let vars = p.block(block).vars.clone();
    let in_layer = |p: &Program, v| ["fc_1.", "layer_norm_1."].iter().any(|s| p.name(p.var(v).name).starts_with(s));
    let layer_vars: Vec<_> = vars.into_iter().filter(|&v| in_layer(&p, v)).collect();
    for layer in 2..ops / LAYER.len() {
        let origin = p.push_origin(Origin::Built { tag: layer as u32 });
        for &v in &layer_vars {
            let mut def = p.var_def(v);
            let name = rename(p.name(def.name), layer);
            def.name = p.intern(&name);
            p.push_var(block, &def, origin);
        }
        for &op in &layer_ops {
            let r = p.op(op);
            let (kind, attrs) = (r.kind(), r.data().attrs);
            let texts = |s: mastercast::ir::Slot<'_>| {
                (s.name, s.args.iter().map(|&a| rename(p.name(a), layer)).collect::<Vec<_>>())
            };
            let (inputs, outputs): (Vec<_>, Vec<_>) =
                (r.inputs().map(texts).collect(), r.outputs().map(texts).collect());
            let new = p.push_op(block, kind, attrs, origin);
            let names = |p: &mut Program, slots: Vec<(Symbol, Vec<String>)>| -> Vec<(Symbol, Vec<Name>)> {
                slots.into_iter().map(|(s, a)| (s, a.iter().map(|a| p.intern(a)).collect())).collect()
            };
            for (slot, args) in names(&mut p, inputs) {
                p.push_input(new, slot, args);
            }
            for (slot, args) in names(&mut p, outputs) {
                p.push_output(new, slot, args);
            }
        }
    }
    export(&p, Section::Main)
}
