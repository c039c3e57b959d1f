//! How is a recorded run of a model repeated? Programs, feeds, initial values and curve, by name.

#![allow(dead_code, reason = "each test uses a part")]

pub mod archive;

use mastercast::ckpt;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::read_program;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A recorded run of a program.
#[derive(Default)]
pub struct Recording {
    /// what is fed at each step
    pub feeds: Tensors,
    /// persistables when main starts
    pub init: Tensors,
    /// by step: what random ops wrote
    pub draws: Vec<Tensors>,
    /// by step: the losses, in the order of their names
    pub losses: Vec<Vec<f64>>,
    /// persistables after the last step, if they were kept
    pub last: Tensors,
    /// of how many elements in even strides `last` tells, when not of all
    pub sampled: Option<usize>,
    /// how far losses move when the initial values move by a rounding
    pub spread: f64,
}

impl Recording {
    /// From the corpus: `<model>.feeds.npz`, `<model>.params.npz`, `<model>.<stem>.final.npz` and the losses of a
    /// `<model>.v2.json`. `None` when feeds or values were not kept.
    pub fn of_corpus(dir: &Path, model: &str, stem: &str, curve: &Value) -> Option<Recording> {
        let read = |what: &str| {
            let path = dir.join(format!("{model}.{what}.npz"));
            path.exists().then(|| tensors(&path))
        };
        let step = |v: &Value| match v {
            Value::Array(all) => all.iter().map(|v| v.as_f64().unwrap()).collect(),
            one => vec![one.as_f64().unwrap()],
        };
        Some(Recording {
            feeds: read("feeds")?,
            init: read("params")?,
            draws: Vec::new(),
            losses: curve["losses"].as_array()?.iter().map(step).collect(),
            last: read(&format!("{stem}.final")).unwrap_or_default(),
            ..Recording::default()
        })
    }

    /// From a file of `gen_curves.py`.
    pub fn of_curve(path: &Path) -> Recording {
        let mut r = Recording::default();
        for (name, t) in tensors(path) {
            let (kind, rest) = name.split_once('/').unwrap();
            match kind {
                "feed" => drop(r.feeds.insert(rest.to_owned(), t)),
                "init" => drop(r.init.insert(rest.to_owned(), t)),
                "final" => drop(r.last.insert(rest.to_owned(), t)),
                "loss" => {
                    let step: usize = rest.parse().unwrap();
                    r.losses.resize(r.losses.len().max(step + 1), Vec::new());
                    r.losses[step] = t.to_f64_vec();
                }
                "draw" => {
                    let (step, name) = rest.split_once('/').unwrap();
                    let step: usize = step.parse().unwrap();
                    r.draws.resize(r.draws.len().max(step + 1), Tensors::new());
                    r.draws[step].insert(name.to_owned(), t);
                }
                _ => {}
            }
        }
        r
    }
}

/// A program of a model, and the names of its losses.
pub struct Run {
    /// startup and main
    pub program: Program,
    /// in the order of the recorded ones
    pub fetch: Vec<String>,
}

/// How far a run is from the recorded one.
pub struct Row {
    /// by step: largest relative difference of a loss
    pub losses: Vec<f64>,
    /// largest difference of an element of a final value, and whose
    pub value: Option<(f64, String)>,
    /// elements left out since their gradient is nothing but rounding, how many and how far
    pub noise: (usize, f64),
    /// how far losses may be
    pub bound: f64,
    /// milliseconds of all steps
    pub ms: f64,
}

/// Relative bound of losses, absolute bound of final values.
const BOUNDS: (f64, f64) = (1e-6, 1e-5);
/// A gradient that is below this in some step, or below this part of its tensor's largest, is rounding there, and
/// Adam makes a step of full length of it. (Paddle's own values move as far when its initial ones are perturbed by
/// a rounding: `PERTURB=1` of `gen_curves.py`.)
const NO_GRADIENT: (f32, f32) = (1e-7, 1e-5);

impl Row {
    /// Whether it is as near as it should be.
    pub fn good(&self) -> bool {
        self.losses.iter().all(|l| *l <= self.bound) && self.value.as_ref().is_none_or(|(v, _)| *v <= BOUNDS.1)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {}", self.losses.iter().map(|l| format!("{l:.0e}")).collect::<Vec<_>>().join(" "))?;
        if let Some((v, name)) = &self.value {
            write!(f, "  values {v:.1e} ({name})")?;
        }
        if self.noise.0 > 0 {
            write!(f, "  without gradient {} elements up to {:.1e}", self.noise.0, self.noise.1)?;
        }
        write!(f, "  {:.0} ms", self.ms)
    }
}

/// A JSON file.
pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).unwrap()
}

/// All tensors of a checkpoint file, by name.
pub fn tensors(path: &Path) -> BTreeMap<String, Tensor> {
    let file = ckpt::open(path).unwrap_or_else(|e| panic!("{e}"));
    let read = |(i, e): (usize, &ckpt::TensorEntry)| {
        let shape: Vec<usize> = e.shape.iter().map(|&d| d as usize).collect();
        (e.name.clone(), Tensor::from_bytes(e.dtype, &shape, &file.read(i).unwrap()).unwrap())
    };
    file.entries().iter().enumerate().map(read).collect()
}

impl Run {
    /// From a model's directory in the corpus.
    pub fn of_corpus(dir: &Path, stem: &str) -> Run {
        let bytes = |name: &str| {
            let path = dir.join(name);
            if let Ok(bytes) = std::fs::read(&path) {
                return bytes;
            }
            let config = json(&dir.join("config.json"));
            let same = config[name]["same_bytes_as"].as_str().unwrap_or_else(|| panic!("no {}", path.display()));
            std::fs::read(dir.join(same)).unwrap()
        };
        let startup = if stem.starts_with("train") { stem } else { "fp32" };
        let (startup, main) = (bytes(&format!("startup.{startup}.pb")), bytes(&format!("{stem}.pb")));
        let meta = json(&dir.join("meta.json"));
        let fetch = meta["losses"].as_object().unwrap().values().map(|v| v.as_str().unwrap().to_owned()).collect();
        Run { program: read_program(Some(&startup), Some(&main)).unwrap(), fetch }
    }

    /// Whether main draws random numbers, which are not Paddle's.
    pub fn random(&self) -> bool {
        let mut ops = self.program.section_blocks(Section::Main).flat_map(|b| self.program.ops(b));
        ops.any(|op| ["dropout", "uniform_random"].contains(&op.kind_str()))
    }

    /// Runs as many steps as were recorded.
    pub fn compare(&self, recording: &Recording) -> Result<Row, String> {
        let program = &self.program;
        let feeds: Vec<_> = recording.feeds.clone().into_iter().collect();
        let mut scope = Scope::new();
        let mut interp = Interpreter::new(program);
        interp.run(Section::Startup, &mut scope).map_err(|e| format!("startup: {e}"))?;
        for (name, value) in &recording.init {
            if scope.get(name).is_some() {
                scope.set(name, value.clone());
            }
        }
        let bound = BOUNDS.0.max(2.0 * recording.spread);
        let mut row = Row { losses: Vec::new(), value: None, noise: (0, 0.0), bound, ms: 0.0 };
        let grads: Vec<String> = gradients(program);
        let fetched: Vec<&str> = self.fetch.iter().chain(&grads).map(String::as_str).collect();
        let mut no_gradient: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for (step, wants) in recording.losses.iter().enumerate() {
            for (name, value) in recording.draws.get(step).into_iter().flatten() {
                interp.give_draw(name, value.clone());
            }
            let start = std::time::Instant::now();
            let out = interp.run_with(Section::Main, &mut scope, &feeds, &fetched).map_err(|e| e.to_string())?;
            row.ms += start.elapsed().as_secs_f64() * 1e3;
            let far = |(got, want): (&Tensor, &f64)| (got.to_f64_vec()[0] - want).abs() / want.abs().max(1e-30);
            let worst = |m: f64, far: f64| if far > m || far.is_nan() { far } else { m };
            row.losses.push(out.values.iter().zip(wants).map(far).fold(0.0, worst));
            for (name, g) in grads.iter().zip(&out.values[self.fetch.len()..]) {
                let old = no_gradient.entry(name.trim_end_matches("@GRAD")).or_insert_with(|| vec![false; g.len()]);
                let g = g.to_f32_vec();
                let limit = g.iter().fold(0.0f32, |m, g| m.max(g.abs())) * NO_GRADIENT.1;
                old.iter_mut().zip(g).for_each(|(flat, g)| *flat |= g.abs() < NO_GRADIENT.0.max(limit));
            }
        }
        let flat: BTreeSet<&str> =
            no_gradient.iter().filter(|(_, g)| g.iter().all(|&flat| flat)).map(|(&p, _)| p).collect();
        let follow = followers(program, &flat);
        for (name, want) in &recording.last {
            let Some(got) = scope.get(name) else { return Err(format!("{name} has no value")) };
            let all = recording.sampled.unwrap_or(usize::MAX);
            // The elements that were kept, and which they are.
            let every = (got.len() / all).max(1);
            if got.dtype() == want.dtype() && recording.sampled.is_some() && want.len() == got.len().min(all) {
                // as many as were asked for
            } else if got.dtype() != want.dtype() || got.shape() != want.shape() {
                return Err(format!("{name} is {got:?}, recorded {want:?}"));
            }
            // A parameter, or a state of the optimizer that is named for it.
            let of = no_gradient.iter().filter(|(p, _)| name == **p || name.starts_with(&format!("{p}_")));
            let grads = of.max_by_key(|(p, _)| p.len()).map(|(_, g)| g);
            let kept = got.to_f64_vec().into_iter().enumerate().step_by(every);
            for ((i, g), w) in kept.zip(want.to_f64_vec()) {
                let far = (g - w).abs();
                let noise = grads.and_then(|g| g.get(i)).is_some_and(|&flat| flat);
                if noise || follow.contains(name) {
                    row.noise = (row.noise.0 + 1, row.noise.1.max(far));
                } else if row.value.as_ref().is_none_or(|(v, _)| far > *v || far.is_nan()) {
                    row.value = Some((far, name.clone()));
                }
            }
        }
        Ok(row)
    }
}

/// Values that follow parameters without a gradient: the running mean of a batch_norm over a bias, and
/// memory that parameters of an LSTM share in Paddle but not here.
fn followers(program: &Program, flat: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut bias: BTreeSet<String> = flat.iter().map(|&p| p.to_owned()).collect();
    let mut biased = BTreeSet::new();
    for section in Section::ALL {
        for op in program.section_blocks(section).flat_map(|b| program.ops(b)) {
            let args = |slots: Vec<mastercast::ir::Slot<'_>>, wanted: &str| -> Vec<String> {
                let slot = slots.into_iter().find(|s| program.sym(s.name) == wanted);
                slot.map_or(Vec::new(), |s| s.args.iter().map(|&n| program.name(n).to_owned()).collect())
            };
            let reads = |slot| args(op.inputs().collect(), slot);
            let writes = |slot| args(op.outputs().collect(), slot);
            match op.kind_str() {
                "reshape2" if reads("X").iter().any(|x| bias.contains(x)) => bias.extend(writes("Out")),
                "elementwise_add" if reads("Y").iter().any(|y| bias.contains(y)) => biased.extend(writes("Out")),
                "batch_norm" if reads("X").iter().any(|x| biased.contains(x)) => out.extend(writes("MeanOut")),
                "coalesce_tensor" => out.extend(writes("FusedOutput")),
                _ => {}
            }
        }
    }
    out
}

/// Gradients of parameters that the optimizer reads by their own name.
fn gradients(program: &Program) -> Vec<String> {
    let Some(block) = program.global_block(Section::Main) else { return Vec::new() };
    let mut grads: Vec<String> = Vec::new();
    for op in program.ops(block) {
        for slot in op.outputs() {
            for &name in slot.args {
                let text = program.name(name);
                let of = text.strip_suffix("@GRAD").and_then(|p| program.names().lookup(p));
                let param = of.is_some_and(|p| {
                    program.block(block).vars.iter().any(|&v| program.var(v).name == p && program.var(v).persistable())
                });
                if param && !grads.iter().any(|g| g == text) {
                    grads.push(text.to_owned());
                }
            }
        }
    }
    grads
}
