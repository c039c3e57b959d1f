//! How is a recorded run of a model repeated? Programs, feeds, initial values and curve, by name.

use mastercast::ckpt;
use mastercast::interp::{Interpreter, Scope, Tensor};
use mastercast::ir::{Program, Section};
use mastercast::paddle::proto::read_program;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// One recorded run.
pub struct Run {
    /// directory of the model's programs
    pub programs: PathBuf,
    /// directory of recorded runs
    pub recorded: PathBuf,
    /// the model's name
    pub model: String,
    /// which program
    pub stem: String,
}

/// How far a run is from the recorded one.
pub struct Row {
    /// largest relative difference of a loss
    pub loss: f64,
    /// largest difference of an element of a final value, and whose
    pub value: Option<(f64, String)>,
    /// values left out since their gradient is nothing but rounding, with how far they are
    pub noise: Vec<(String, f64)>,
    /// milliseconds of all steps
    pub ms: f64,
}

/// Relative bound of losses, absolute bound of final values.
const BOUNDS: (f64, f64) = (1e-6, 1e-5);
/// A gradient below this is rounding.
const NO_GRADIENT: f32 = 1e-7;

impl Row {
    /// Whether it is as near as it should be.
    pub fn good(&self) -> bool {
        self.loss <= BOUNDS.0 && self.value.as_ref().is_none_or(|(v, _)| *v <= BOUNDS.1)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.1e}", self.loss)?;
        if let Some((v, name)) = &self.value {
            write!(f, "  values {v:.1e} ({name})")?;
        }
        if !self.noise.is_empty() {
            let worst = self.noise.iter().fold(0.0f64, |m, (_, d)| m.max(*d));
            write!(f, "  without gradient {} up to {worst:.1e}", self.noise.len())?;
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
    fn bytes(&self, name: &str) -> Vec<u8> {
        let path = self.programs.join(name);
        if let Ok(bytes) = std::fs::read(&path) {
            return bytes;
        }
        let config = json(&self.programs.join("config.json"));
        let same = config[name]["same_bytes_as"].as_str().unwrap_or_else(|| panic!("no {}", path.display()));
        std::fs::read(self.programs.join(same)).unwrap()
    }

    /// Whether it draws random numbers, which are not Paddle's.
    pub fn random(&self) -> bool {
        self.stem.starts_with("train") && ["bert_mini", "gpt_mini", "mobilenet_v2", "vgg11"].contains(&&*self.model)
    }

    /// The program, startup and main.
    pub fn program(&self) -> Program {
        let startup = if self.stem.starts_with("train") { &self.stem } else { "fp32" };
        let (startup, main) = (self.bytes(&format!("startup.{startup}.pb")), self.bytes(&format!("{}.pb", self.stem)));
        read_program(Some(&startup), Some(&main)).unwrap()
    }

    /// Runs as many steps as were recorded.
    pub fn compare(&self, curve: &Value) -> Result<Row, String> {
        let program = self.program();
        let meta = json(&self.programs.join("meta.json"));
        let fetch: Vec<&str> = meta["losses"].as_object().unwrap().values().map(|v| v.as_str().unwrap()).collect();
        let feeds: Vec<_> = tensors(&self.recorded.join(format!("{}.feeds.npz", self.model))).into_iter().collect();
        let mut scope = Scope::new();
        let mut interp = Interpreter::new(&program);
        interp.run(Section::Startup, &mut scope).map_err(|e| format!("startup: {e}"))?;
        for (name, value) in tensors(&self.recorded.join(format!("{}.params.npz", self.model))) {
            if scope.get(&name).is_some() {
                scope.set(&name, value);
            }
        }
        let mut row = Row { loss: 0.0, value: None, noise: Vec::new(), ms: 0.0 };
        let grads: Vec<String> = self.gradients(&program);
        let mut fetched = fetch.clone();
        fetched.extend(grads.iter().map(String::as_str));
        let mut largest: BTreeMap<&str, f32> = BTreeMap::new();
        for want in curve["losses"].as_array().unwrap() {
            let wants: Vec<f64> = match want {
                Value::Array(all) => all.iter().map(|v| v.as_f64().unwrap()).collect(),
                one => vec![one.as_f64().unwrap()],
            };
            let start = std::time::Instant::now();
            let out = interp.run_with(Section::Main, &mut scope, &feeds, &fetched).map_err(|e| e.to_string())?;
            row.ms += start.elapsed().as_secs_f64() * 1e3;
            for (got, want) in out.values.iter().zip(&wants) {
                let got = got.to_f64_vec()[0];
                row.loss = row.loss.max((got - want).abs() / want.abs().max(1e-30));
                assert!(!row.loss.is_nan(), "a loss is not a number");
            }
            for (name, g) in grads.iter().zip(&out.values[fetch.len()..]) {
                let g = g.to_f32_vec().into_iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let old = largest.entry(name.trim_end_matches("@GRAD")).or_default();
                *old = old.max(g);
            }
        }
        let last = self.recorded.join(format!("{}.{}.final.npz", self.model, self.stem));
        if !last.exists() {
            return Ok(row);
        }
        for (name, want) in tensors(&last) {
            let Some(got) = scope.get(&name) else { return Err(format!("{name} has no value")) };
            if got.dtype() != want.dtype() || got.shape() != want.shape() {
                return Err(format!("{name} is {got:?}, recorded {want:?}"));
            }
            let far = got.to_f64_vec().iter().zip(want.to_f64_vec()).fold(0.0, |m: f64, (g, w)| m.max((g - w).abs()));
            // A parameter, or a state of the optimizer that is named for it.
            let of = largest.iter().filter(|(p, _)| name == **p || name.starts_with(&format!("{p}_")));
            if of.max_by_key(|(p, _)| p.len()).is_some_and(|(_, &g)| g < NO_GRADIENT) {
                row.noise.push((name, far));
            } else if row.value.as_ref().is_none_or(|(v, _)| far > *v) {
                row.value = Some((far, name));
            }
        }
        Ok(row)
    }

    /// Gradients of parameters that the optimizer reads by their own name.
    fn gradients(&self, program: &Program) -> Vec<String> {
        let Some(block) = program.global_block(Section::Main) else { return Vec::new() };
        let mut grads: Vec<String> = Vec::new();
        for op in program.ops(block) {
            for slot in op.outputs() {
                for &name in slot.args {
                    let text = program.name(name);
                    let of = text.strip_suffix("@GRAD").and_then(|p| program.names().lookup(p));
                    let param = of.is_some_and(|p| {
                        program
                            .block(block)
                            .vars
                            .iter()
                            .any(|&v| program.var(v).name == p && program.var(v).persistable())
                    });
                    if param && !grads.iter().any(|g| g == text) {
                        grads.push(text.to_owned());
                    }
                }
            }
        }
        grads
    }
}
