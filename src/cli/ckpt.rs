//! `mastercast ckpt`: what do checkpoints hold, how do they differ, and do they fit a program?
//!
//! `ls`, `show`, `diff`, `verify` look at checkpoints; `plan` and `load` put them into a program's cells;
//! `convert` writes another format. Text for people, `--format json` for programs.

mod convert;
mod diff;
mod load;
mod look;

use super::{Failure, Format, Outcome, Ui};
use clap::{Args, Subcommand};
use mastercast::ckpt::{self, Checkpoint};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Arguments of `ckpt`.
#[derive(Args)]
pub struct Ckpt {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the tensors of checkpoints
    Ls(look::Ls),
    /// Show one tensor: type, shape, statistics, first values
    Show(look::Show),
    /// Compare two checkpoints tensor by tensor, with the largest absolute and ulp difference
    Diff(diff::Diff),
    /// Check every tensor, and that each parameter is its narrowed master
    Verify(look::Verify),
    /// Say what a load into a program would do, from manifests alone
    Plan(load::PlanCmd),
    /// Load into a program's cells and write them out
    Load(load::LoadCmd),
    /// Write a checkpoint in another format
    Convert(convert::Convert),
}

impl Ckpt {
    pub fn run(self, ui: Ui) -> Outcome {
        match self.command {
            Command::Ls(c) => c.run(),
            Command::Show(c) => c.run(),
            Command::Diff(c) => c.run(ui),
            Command::Verify(c) => c.run(ui),
            Command::Plan(c) => c.run(ui),
            Command::Load(c) => c.run(ui),
            Command::Convert(c) => c.run(ui),
        }
    }
}

fn open(path: &Path) -> Result<Box<dyn Checkpoint>, Failure> {
    Ok(ckpt::open(path)?)
}

/// Bytes done of bytes in all, on standard error when it is a terminal.
struct Bar {
    what: &'static str,
    total: u64,
    done: AtomicU64,
    shown: AtomicU64,
    live: bool,
}

impl Bar {
    fn new(ui: Ui, what: &'static str, total: u64) -> Bar {
        let live = !ui.quiet && std::io::stderr().is_terminal();
        Bar { what, total: total.max(1), done: AtomicU64::new(0), shown: AtomicU64::new(u64::MAX), live }
    }

    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let percent = (done as f64 / self.total as f64 * 100.0) as u64;
        if self.live && self.shown.swap(percent, Ordering::Relaxed) != percent {
            eprint!("\r{} {percent} %", self.what);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.live {
            eprint!("\r\x1b[K");
        }
    }
}

/// A count of bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn print_json(value: &serde_json::Value) -> Outcome {
    super::print_out(format!("{value:#}\n").as_bytes())
}

fn is_json(format: Format) -> bool {
    format == Format::Json
}
