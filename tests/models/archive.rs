//! What is in `tests/data/models.zst`? Programs and recorded runs of all small models; see `gen_models.py`.

use super::{Recording, Run, Tensors};
use mastercast::interp::Tensor;
use mastercast::ir::DType;
use mastercast::paddle::proto::read_program;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// Elements that a final value was sampled at.
const SAMPLES: usize = 16;

/// The unpacked archive.
pub struct Archive(Tensors);

impl Archive {
    /// Unpacks it.
    pub fn open() -> Archive {
        let packed = include_bytes!("../data/models.zst");
        let mut bytes = Vec::new();
        ruzstd::decoding::StreamingDecoder::new(&packed[..]).unwrap().read_to_end(&mut bytes).unwrap();
        let tensor = |view: safetensors::tensor::TensorView<'_>| {
            let dtype = match view.dtype() {
                Dtype::F64 => DType::F64,
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::I64 => DType::I64,
                Dtype::I32 => DType::I32,
                Dtype::U8 => DType::U8,
                Dtype::BOOL => DType::Bool,
                other => panic!("{other:?}"),
            };
            Tensor::from_bytes(dtype, view.shape(), view.data()).unwrap()
        };
        let all = SafeTensors::deserialize(&bytes).unwrap();
        Archive(all.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect())
    }

    /// Models and their programs.
    pub fn stems(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut out: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for name in self.0.keys() {
            if let Some((model, stem)) = name.strip_suffix("/main").and_then(|n| n.split_once('/')) {
                out.entry(model).or_default().insert(stem);
            }
        }
        out
    }

    fn below(&self, prefix: &str) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().filter_map(move |(name, t)| Some((name.strip_prefix(prefix)?, t)))
    }

    /// A program.
    pub fn run(&self, model: &str, stem: &str) -> Run {
        let part = |part: &str| self.0[&format!("{model}/{stem}/{part}")].to_bytes();
        let fetch = String::from_utf8(self.0[&format!("{model}/losses")].to_bytes()).unwrap();
        Run {
            program: read_program(Some(&part("startup")), Some(&part("main"))).unwrap(),
            fetch: fetch.lines().map(str::to_owned).collect(),
        }
    }

    /// What is fed to a model.
    pub fn feeds(&self, model: &str) -> Tensors {
        self.below(&format!("{model}/feed/")).map(|(n, t)| (n.to_owned(), t.clone())).collect()
    }

    /// The recorded run of a program, `None` when it was not run. Initial values are left to [`initial`].
    pub fn recording(&self, model: &str, stem: &str) -> Option<Recording> {
        let losses = self.0.get(&format!("{model}/{stem}/loss"))?;
        let width = losses.shape()[1];
        let mut draws = Vec::new();
        for (key, t) in self.below(&format!("{model}/{stem}/draw/")) {
            let (step, name) = key.split_once('/').unwrap();
            let step: usize = step.parse().unwrap();
            draws.resize(draws.len().max(step + 1), Tensors::new());
            draws[step].insert(name.to_owned(), t.clone());
        }
        Some(Recording {
            feeds: self.feeds(model),
            init: Tensors::new(),
            draws,
            losses: losses.to_f64_vec().chunks(width).map(<[f64]>::to_vec).collect(),
            last: self.below(&format!("{model}/{stem}/final/")).map(|(n, t)| (n.to_owned(), t.clone())).collect(),
            sampled: Some(SAMPLES),
            spread: self.0[&format!("{model}/{stem}/spread")].to_f64_vec()[0],
        })
    }
}

/// The initial value of a parameter, by the formula of `gen_models.py`; `base` is what startup left.
pub fn initial(name: &str, base: &Tensor) -> Tensor {
    let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01B3);
    let hash = name.as_bytes().iter().fold(0xCBF2_9CE4_8422_2325, fnv);
    let unit = |i: u64| {
        let z = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(hash);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let flat = base.shape().len() < 2;
    let value = |(i, &b): (usize, &f32)| if flat && b == 1.0 { 1.0 } else { 0.0 } + 0.1 * unit(i as u64);
    Tensor::new(base.shape(), base.to_f32_vec().iter().enumerate().map(value).collect::<Vec<f32>>()).unwrap()
}
