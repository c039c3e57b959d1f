//! `mastercast diff`: how do two programs differ, line by line of their text?

use super::input::{FileKind, load};
use super::{FINDINGS, Failure, Outcome, Ui, print_out, render};
use clap::Args;
use mastercast::ir::Section;
use mastercast::text;
use similar::TextDiff;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `diff`.
#[derive(Args)]
#[command(after_help = "Exit code: 0 equal, 1 different, 2 could not run.")]
pub struct Diff {
    /// The old program
    a: PathBuf,
    /// The new program
    b: PathBuf,
    /// Lines of context
    #[arg(short = 'U', long, default_value_t = 3)]
    context: usize,
}

impl Diff {
    pub fn run(self, ui: Ui) -> Outcome {
        let (a, b) = (printed(&self.a)?, printed(&self.b)?);
        if a == b {
            return Ok(ExitCode::SUCCESS);
        }
        let diff = TextDiff::from_lines(&a, &b);
        let mut unified = diff.unified_diff();
        unified.context_radius(self.context).header(&self.a.display().to_string(), &self.b.display().to_string());
        let text = unified.to_string();
        let painted: String = text
            .split_inclusive('\n')
            .map(|line| match line.as_bytes().first() {
                Some(b'+') => render::paint(ui, "32", line),
                Some(b'-') => render::paint(ui, "31", line),
                _ => line.to_owned(),
            })
            .collect();
        print_out(painted.as_bytes())?;
        Ok(ExitCode::from(FINDINGS))
    }
}

fn printed(path: &Path) -> Result<String, Failure> {
    let loaded = load(path, Section::Main)?;
    match loaded.diagnostics.iter().next() {
        Some(d) if loaded.diagnostics.has_errors() && loaded.kind == FileKind::Text => {
            Err(Failure::new(format!("{}: {}", path.display(), d.message)))
        }
        _ => Ok(text::print(&loaded.program)),
    }
}
