//! `ckpt convert`: the same tensors in another format.

use super::super::{Failure, Outcome, Ui};
use super::{Bar, open, size};
use clap::{Args, ValueEnum};
use mastercast::ckpt::names::Rules;
use mastercast::ckpt::rect::Rect;
use mastercast::ckpt::{
    self, Checkpoint, DistFlavour, DistWriter, PickleOptions, ShardData, TensorData, convert_to_streams,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// one safetensors file
    Safetensors,
    /// a pickle that `paddle.load` reads
    Pdparams,
    /// the same with masters in a dict of their own
    Pdopt,
    /// a directory of one tensor stream a variable, for the `load` op
    Streams,
    /// one file of tensor streams in order of name, for `load_combine`
    Combined,
    /// a distributed checkpoint for Paddle 2.6
    Dist26,
    /// a distributed checkpoint for Paddle 3
    Dist3,
}

/// Arguments of `convert`.
#[derive(Args)]
pub struct Convert {
    /// The checkpoint, of any known format
    from: PathBuf,
    /// The file or directory to write
    to: PathBuf,
    /// Its format; without it, by the name's end: .safetensors, .pdparams, .pdopt, .pdiparams
    #[arg(long, value_enum)]
    to_format: Option<To>,
    /// Rename keys, as `ckpt plan --map`
    #[arg(long, value_name = "RULE")]
    map: Vec<String>,
    /// Distributed: split each tensor's first dimension over this many ranks
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS))]
    ranks: u64,
}

/// Each rank is a file.
const MAX_RANKS: u64 = 4096;

impl Convert {
    pub fn run(self, ui: Ui) -> Outcome {
        let format = self.format()?;
        let ckpt = open(&self.from)?;
        let rules = Rules::parse(&self.map.join("\n"))?;
        let names: Vec<String> = ckpt.entries().iter().map(|e| rules.rename(&e.name)).collect();
        if let Some(i) = (0..names.len()).find(|&i| names[i].is_empty()) {
            let what = format!("tensor {i} of {} has no name", self.from.display());
            return Err(Failure::new(what).help("a combined file keeps no names"));
        }
        let total: u64 = ckpt.entries().iter().map(|e| e.bytes).sum();
        let bar = Bar::new(ui, "converting", total);
        let data = |i: usize| {
            let named = TensorData::of(&*ckpt, i).map(|t| TensorData { name: (&names[i][..]).into(), ..t });
            bar.add(ckpt.entries()[i].bytes);
            named
        };
        let all = 0..names.len();
        // What cannot be read must be known before the old file is replaced: writers take tensors, not errors.
        match format {
            To::Safetensors => {
                let tensors = all.map(data).collect::<Result<Vec<_>, _>>()?;
                ckpt::write_safetensors(&self.to, tensors, &BTreeMap::new())?;
            }
            To::Pdparams | To::Pdopt => {
                let options = PickleOptions {
                    structured: if format == To::Pdopt { Vec::new() } else { structured(&*ckpt, &names) },
                    plain: ckpt.plain().to_vec(),
                    nest_masters: format == To::Pdopt,
                };
                let tensors = all.map(data).collect::<Result<Vec<_>, _>>()?;
                ckpt::write_pickle(&self.to, tensors, &options)?;
            }
            To::Streams => {
                let items: Vec<(usize, &str)> = names.iter().enumerate().map(|(i, n)| (i, &n[..])).collect();
                convert_to_streams(&*ckpt, &items, &self.to, &mut |n| bar.add(n))?;
            }
            To::Combined => {
                let mut order: Vec<usize> = all.collect();
                order.sort_by_key(|&i| &names[i]);
                let tensors = order.into_iter().map(data).collect::<Result<Vec<_>, _>>()?;
                ckpt::write_combined(&self.to, tensors)?;
            }
            To::Dist26 | To::Dist3 => {
                let flavour = if format == To::Dist26 { DistFlavour::V2 } else { DistFlavour::V3 };
                let mut writer = DistWriter::create(&self.to, flavour)?;
                for rank in 0..self.ranks {
                    let mut shards = Vec::new();
                    for (i, name) in names.iter().enumerate() {
                        shards.extend(rows_of(&*ckpt, i, name, rank, self.ranks)?);
                    }
                    writer.rank(rank, shards)?;
                }
                writer.finish()?;
            }
        }
        drop(bar);
        if !ui.quiet {
            eprintln!("wrote {} tensors, {}, to {}", names.len(), size(total), self.to.display());
        }
        Ok(ExitCode::SUCCESS)
    }

    fn format(&self) -> Result<To, Failure> {
        if let Some(format) = self.to_format {
            return Ok(format);
        }
        match self.to.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Ok(To::Safetensors),
            Some("pdparams") => Ok(To::Pdparams),
            Some("pdopt") => Ok(To::Pdopt),
            Some("pdiparams") => Ok(To::Combined),
            _ => Err(Failure::new(format!("{}: the name does not tell the format", self.to.display()))
                .help("--to-format says it")),
        }
    }
}

/// The table of layer and parameter names, when the checkpoint has one.
fn structured(ckpt: &dyn Checkpoint, names: &[String]) -> Vec<(String, String)> {
    names.iter().enumerate().filter_map(|(i, n)| Some((n.clone(), ckpt.alias(i)?.to_owned()))).collect()
}

/// The rows of tensor `i` that are those of a rank; a tensor without dimensions is rank 0's.
fn rows_of<'c>(
    ckpt: &'c dyn Checkpoint,
    i: usize,
    name: &'c str,
    rank: u64,
    ranks: u64,
) -> Result<Option<ShardData<'c>>, Failure> {
    let entry = &ckpt.entries()[i];
    let rect = Rect::of_rank(&entry.shape, rank, ranks);
    if rect.is_empty() && !(rank == 0 && entry.bytes == 0) {
        return Ok(None);
    }
    let data = if rect.count() * entry.dtype.size().unwrap_or(1) as u64 == entry.bytes {
        ckpt.read(i)?
    } else {
        let row = entry.bytes / entry.shape[0];
        let mut part = vec![0; (rect.shape[0] * row) as usize];
        ckpt.read_into(i, rect.offset[0] * row, &mut part)?;
        part.into()
    };
    let data = TensorData::new(name, entry.dtype, rect.shape.clone(), data);
    Ok(Some(ShardData { data, shape: entry.shape.clone(), rect, flat: None }))
}
