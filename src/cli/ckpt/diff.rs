//! `ckpt diff`: how do two checkpoints differ? Names, types, shapes, then values: bits, absolute and in ulps.

use super::super::{FINDINGS, Format, Outcome, Ui, print_out};
use super::{Bar, is_json, open, print_json};
use clap::Args;
use mastercast::ckpt::Manifest;
use mastercast::ckpt::names::{Rules, map_names};
use mastercast::interp::{Data, Tensor};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `diff`.
#[derive(Args)]
#[command(after_help = "Exit code: 0 equal bit for bit, 1 different, 2 could not run.")]
pub struct Diff {
    /// The old checkpoint
    a: PathBuf,
    /// The new checkpoint, of any format
    b: PathBuf,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// How two tensors of one type and shape differ.
struct Difference {
    elements: u64,
    absolute: f64,
    /// steps between neighbouring floats; for integers, the same as `absolute`
    ulps: u64,
}

impl Diff {
    pub fn run(self, ui: Ui) -> Outcome {
        let (a, b) = (open(&self.a)?, open(&self.b)?);
        let (of_a, of_b) = (Manifest::of(&*a), Manifest::of(&*b));
        // Masters under another form of their name are the same tensor.
        let wanted: Vec<&str> = a.entries().iter().map(|e| &e.name[..]).collect();
        let map = map_names(&wanted, &[&of_b], &Rules::default());
        let bar = Bar::new(ui, "comparing", of_a.entries().iter().map(|e| e.bytes).sum());
        let (mut text, mut rows, mut equal) = (String::new(), Vec::new(), 0);
        for (i, e) in a.entries().iter().enumerate() {
            bar.add(e.bytes);
            let name = &e.name;
            let Some((key, _)) = &map.keys[i] else {
                text += &format!("- {name}  {}{:?}\n", e.dtype, e.shape);
                rows.push(json!({"name": name, "only_in": "a"}));
                continue;
            };
            let other = &b.entries()[key.entry];
            let called = if other.name == *name { String::new() } else { format!(" (`{}`)", other.name) };
            if (e.dtype, &e.shape) != (other.dtype, &other.shape) {
                text += &format!("~ {name}{called}  {}{:?} -> {}{:?}\n", e.dtype, e.shape, other.dtype, other.shape);
                rows.push(json!({"name": name, "other": other.name, "a": format!("{}{:?}", e.dtype, e.shape),
                                 "b": format!("{}{:?}", other.dtype, other.shape)}));
                continue;
            }
            let (x, y) = (a.read(i)?, b.read(key.entry)?);
            if x == y {
                equal += 1;
                continue;
            }
            let shape = e.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>()?;
            let d = match (Tensor::from_bytes(e.dtype, &shape, &x), Tensor::from_bytes(e.dtype, &shape, &y)) {
                (Ok(x), Ok(y)) => Some(difference(&x, &y)),
                // Complex numbers and types that nobody knows: their bytes differ.
                _ => None,
            };
            match d {
                Some(d) => {
                    let (n, abs, ulps) = (d.elements, d.absolute, d.ulps);
                    let s = if n == 1 { "" } else { "s" };
                    text += &format!("~ {name}{called}  {n} element{s}, at most {abs:e} or {ulps} ulp apart\n");
                    rows.push(json!({"name": name, "other": other.name, "elements": n, "largest_absolute": abs, "largest_ulp": ulps}));
                }
                None => {
                    text += &format!("~ {name}{called}  the bytes differ\n");
                    rows.push(json!({"name": name, "other": other.name}));
                }
            }
        }
        drop(bar);
        for key in &map.unused {
            let e = &b.entries()[key.entry];
            text += &format!("+ {}  {}{:?}\n", e.name, e.dtype, e.shape);
            rows.push(json!({"name": e.name, "only_in": "b"}));
        }
        let different = !rows.is_empty();
        if is_json(self.format) {
            print_json(&json!({"equal": equal, "differ": rows}))?;
        } else {
            let s = if equal == 1 { "" } else { "s" };
            text += &format!("{equal} tensor{s} equal, {} not\n", rows.len());
            print_out(text.as_bytes())?;
        }
        Ok(if different { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
    }
}

fn difference(a: &Tensor, b: &Tensor) -> Difference {
    let mut d = Difference { elements: 0, absolute: 0.0, ulps: 0 };
    let mut add = |equal: bool, x: f64, y: f64, ulps: u64| {
        if !equal {
            d.elements += 1;
            let apart = (x - y).abs();
            if apart.is_nan() || apart > d.absolute {
                d.absolute = apart;
            }
            d.ulps = d.ulps.max(ulps);
        }
    };
    macro_rules! floats {
        ($x:expr, $y:expr, $bits:ty, $wide:expr) => {
            for (x, y) in $x.iter().zip($y) {
                let (i, j) = (x.to_bits(), y.to_bits());
                let sign = 1 << (<$bits>::BITS - 1);
                // Ordered integers: neighbouring floats are neighbours, zero is in the middle.
                let order = |n: $bits| if n & sign != 0 { -i128::from(n & !sign) } else { i128::from(n) };
                add(i == j, $wide(x), $wide(y), order(i).abs_diff(order(j)) as u64);
            }
        };
    }
    match (a.data(), b.data()) {
        (Data::F32(x), Data::F32(y)) => floats!(x, y, u32, |v: &f32| f64::from(*v)),
        (Data::F64(x), Data::F64(y)) => floats!(x, y, u64, |v: &f64| *v),
        (Data::F16(x), Data::F16(y)) => floats!(x, y, u16, |v: &half::f16| v.to_f64()),
        (Data::BF16(x), Data::BF16(y)) => floats!(x, y, u16, |v: &half::bf16| v.to_f64()),
        _ => {
            for (x, y) in a.to_i64_vec().into_iter().zip(b.to_i64_vec()) {
                add(x == y, x as f64, y as f64, x.abs_diff(y));
            }
        }
    }
    d
}
