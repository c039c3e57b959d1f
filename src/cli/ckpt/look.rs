//! `ckpt ls`, `show` and `verify`: what is in a checkpoint, and is it whole?

use super::super::{FINDINGS, Failure, Format, Outcome, Ui, print_out};
use super::{Bar, is_json, open, print_json, size};
use clap::Args;
use mastercast::ckpt::names::{Rules, map_names};
use mastercast::ckpt::{Checkpoint, Manifest, Plain, agree_narrowed, agree_narrowed_as};
use mastercast::convert::Narrowing;
use mastercast::interp::Tensor;
use mastercast::ir::DType;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `ls`.
#[derive(Args)]
pub struct Ls {
    /// Files or directories of any known format
    #[arg(required = true)]
    checkpoints: Vec<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Ls {
    pub fn run(self) -> Outcome {
        let (mut text, mut all) = (String::new(), Vec::new());
        for path in &self.checkpoints {
            let ckpt = open(path)?;
            let total: u64 = ckpt.entries().iter().map(|e| e.bytes).sum();
            let rows: Vec<Value> = (0..ckpt.entries().len()).map(|i| row(&*ckpt, i)).collect();
            text += &format!("{}: {}, {} tensors, {}\n", path.display(), ckpt.format(), rows.len(), size(total));
            let wide = ckpt.entries().iter().map(|e| e.name.chars().count()).max().unwrap_or(0).min(60);
            for (i, e) in ckpt.entries().iter().enumerate() {
                let alias = ckpt.alias(i).map(|a| format!("  ({a})")).unwrap_or_default();
                let name = e.name.escape_debug().to_string();
                let shape = format!("{}{:?}", ckpt.dtype_name(i), e.shape);
                text += &format!("  {name:wide$}  {shape}  {}{alias}\n", size(e.bytes));
            }
            for (name, value) in ckpt.plain() {
                text += &format!("  {name} = {}\n", plain(value));
            }
            for s in ckpt.skipped() {
                text += &format!("  not read: {}: {}\n", s.name, s.why);
            }
            all.push(json!({
                "path": path.display().to_string(), "format": ckpt.format(), "bytes": total, "tensors": rows,
                "values": ckpt.plain().iter().map(|(n, v)| json!({"name": n, "value": plain_json(v)})).collect::<Vec<_>>(),
                "not_read": ckpt.skipped().iter().map(|s| json!({"name": s.name, "why": s.why})).collect::<Vec<_>>(),
            }));
        }
        if is_json(self.format) { print_json(&json!(all)) } else { print_out(text.as_bytes()) }
    }
}

fn row(ckpt: &dyn Checkpoint, i: usize) -> Value {
    let e = &ckpt.entries()[i];
    json!({"name": e.name, "dtype": e.dtype.to_string(), "stored_as": ckpt.dtype_name(i), "shape": e.shape, "bytes": e.bytes, "alias": ckpt.alias(i)})
}

fn plain(value: &Plain) -> String {
    match value {
        Plain::None => "None".to_owned(),
        Plain::Bool(x) => x.to_string(),
        Plain::Int(x) => x.to_string(),
        Plain::Float(x) => x.to_string(),
        Plain::Text(x) => format!("{x:?}"),
        Plain::Bytes(n) => format!("{n} bytes"),
    }
}

fn plain_json(value: &Plain) -> Value {
    match value {
        Plain::None => Value::Null,
        Plain::Bool(x) => json!(x),
        Plain::Int(x) => json!(x),
        Plain::Float(x) => json!(x),
        Plain::Text(x) => json!(x),
        Plain::Bytes(n) => json!({"bytes": n}),
    }
}

/// Arguments of `show`.
#[derive(Args)]
pub struct Show {
    /// File or directory of any known format
    checkpoint: PathBuf,
    /// Keys of tensors
    #[arg(required = true)]
    names: Vec<String>,
    /// How many values to print
    #[arg(long, default_value_t = 8)]
    values: usize,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Show {
    pub fn run(self) -> Outcome {
        let ckpt = open(&self.checkpoint)?;
        let (mut text, mut all) = (String::new(), Vec::new());
        for name in &self.names {
            let alias = || (0..ckpt.entries().len()).find(|&i| ckpt.alias(i) == Some(name));
            let i = ckpt.find(name).or_else(alias).ok_or_else(|| {
                let failure = Failure::new(format!("{} has no tensor `{name}`", self.checkpoint.display()));
                failure.help("`mastercast ckpt ls` lists the names")
            })?;
            let e = &ckpt.entries()[i];
            let shape = e.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>()?;
            let tensor = Tensor::from_bytes(e.dtype, &shape, &ckpt.read(i)?)?;
            let values = tensor.to_f64_vec();
            let finite = values.iter().copied().filter(|v| v.is_finite());
            let (mut low, mut high, mut sum, mut n) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0u64);
            finite.for_each(|v| (low, high, sum, n) = (low.min(v), high.max(v), sum + v, n + 1));
            let nans = values.iter().filter(|v| v.is_nan()).count();
            let infinite = values.len() - nans - n as usize;
            let head: Vec<String> = values.iter().take(self.values).map(f64::to_string).collect();
            let mean = if n > 0 { Some(sum / n as f64) } else { None };
            text += &format!("{name}  {}{:?}\n", ckpt.dtype_name(i), e.shape);
            if let Some(mean) = mean {
                text += &format!("  min {low}, max {high}, mean {mean}\n");
            }
            if nans + infinite > 0 {
                text += &format!("  {nans} NaN, {infinite} infinite\n");
            }
            text += &format!("  [{}{}]\n", head.join(", "), if values.len() > self.values { ", …" } else { "" });
            let mut value = row(&*ckpt, i);
            value["min"] = json!(mean.map(|_| low));
            value["max"] = json!(mean.map(|_| high));
            value["mean"] = json!(mean);
            value["nan"] = json!(nans);
            value["infinite"] = json!(infinite);
            value["values"] = json!(head);
            all.push(value);
        }
        if is_json(self.format) { print_json(&json!(all)) } else { print_out(text.as_bytes()) }
    }
}

/// Arguments of `verify`.
#[derive(Args)]
#[command(after_help = "Exit code: 0 whole and in step, 1 pairs that are not, 2 could not run (damaged).")]
pub struct Verify {
    /// Files or directories, taken together: say a .pdparams and its .pdopt
    #[arg(required = true)]
    checkpoints: Vec<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Verify {
    pub fn run(self, ui: Ui) -> Outcome {
        let open = self.checkpoints.iter().map(|p| open(p)).collect::<Result<Vec<_>, _>>()?;
        let bytes: u64 = open.iter().flat_map(|c| c.entries()).map(|e| e.bytes).sum();
        let bar = Bar::new(ui, "reading", bytes);
        let mut buffer = vec![0; 1 << 20];
        let mut tensors = 0;
        for ckpt in &open {
            for (i, e) in ckpt.entries().iter().enumerate() {
                let mut at = 0;
                while at < e.bytes {
                    let n = buffer.len().min((e.bytes - at) as usize);
                    ckpt.read_into(i, at, &mut buffer[..n])?;
                    at += n as u64;
                    bar.add(n as u64);
                }
                tensors += 1;
            }
        }
        drop(bar);
        let (mut differ, mut truncated) = (Vec::new(), 0);
        let pairs = pairs(&open);
        for pair in &pairs {
            let at = |(c, i): (usize, usize)| (&*open[c], i);
            let low = open[pair.param.0].entries()[pair.param.1].dtype;
            let (param, master) = (at(pair.param), at(pair.master));
            if let Some(largest) = agree_narrowed(param, master, low)? {
                match agree_narrowed_as(param, master, low, Narrowing::Truncate)? {
                    None => truncated += 1,
                    Some(_) => differ.push((pair, largest)),
                }
            }
        }
        let name = |(c, i): (usize, usize)| open[c].entries()[i].name.clone();
        if is_json(self.format) {
            let rows = differ
                .iter()
                .map(|(p, d)| json!({"param": name(p.param), "master": name(p.master), "largest_difference": d}));
            print_json(
                &json!({"tensors": tensors, "bytes": bytes, "pairs": pairs.len(), "truncated": truncated, "differ": rows.collect::<Vec<_>>()}),
            )?;
        } else {
            let mut text = format!("{tensors} tensors, {} read; {} pairs", size(bytes), pairs.len());
            text += match differ.len() {
                0 if pairs.is_empty() => "\n",
                0 => ", every parameter is its narrowed master\n",
                _ => "\n",
            };
            if truncated > 0 {
                text += &format!("{truncated} of them truncated, not rounded, as Paddle 2.6.2 does on a CPU\n");
            }
            for (p, d) in &differ {
                let (param, master) = (name(p.param), name(p.master));
                text += &format!("`{param}` is not narrow(`{master}`): they differ by at most {d}\n");
            }
            print_out(text.as_bytes())?;
        }
        Ok(if differ.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
    }
}

struct Pair {
    param: (usize, usize),
    master: (usize, usize),
}

/// The 16-bit tensors that have a master in one of the checkpoints, under its static or its dynamic name.
fn pairs(open: &[Box<dyn Checkpoint>]) -> Vec<Pair> {
    let manifests: Vec<Manifest> = open.iter().map(|c| Manifest::of(&**c)).collect();
    let mut low = Vec::new();
    for (c, ckpt) in open.iter().enumerate() {
        for (i, e) in ckpt.entries().iter().enumerate().filter(|(_, e)| e.dtype.is_low()) {
            // A layer's name, or the parameter's own: masters go by the latter.
            let name = ckpt.alias(i).unwrap_or(&e.name);
            low.push(((c, i), format!("{name}_fp32_master_0")));
        }
    }
    low.sort_by(|a, b| a.1.cmp(&b.1));
    low.dedup_by(|a, b| a.1 == b.1);
    let wanted: Vec<&str> = low.iter().map(|(_, n)| &n[..]).collect();
    let map = map_names(&wanted, &manifests.iter().collect::<Vec<_>>(), &Rules::default());
    let pair = |((param, _), key): (&((usize, usize), String), &Option<_>)| {
        let (key, _): &(mastercast::ckpt::names::KeyRef, _) = key.as_ref()?;
        let (p, m) = (&open[param.0].entries()[param.1], &open[key.file].entries()[key.entry]);
        (m.dtype == DType::F32 && m.shape == p.shape).then_some(Pair { param: *param, master: (key.file, key.entry) })
    };
    low.iter().zip(&map.keys).filter_map(pair).collect()
}
