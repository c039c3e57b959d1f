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
    /// Leave out the attributes that the framework writes on every op
    #[arg(long)]
    brief: bool,
}

impl Diff {
    pub fn run(self, ui: Ui) -> Outcome {
        if self.a.as_os_str() == "-" && self.b.as_os_str() == "-" {
            return Err(Failure::new("standard input can be one of the two programs only"));
        }
        let (mut a, mut b) = (printed(&self.a, self.brief)?, printed(&self.b, self.brief)?);
        if a == b {
            return Ok(ExitCode::SUCCESS);
        }
        if versions(&a).eq(versions(&b)) {
            // Thousands of hex digits that do not differ are no context.
            (a, b) = (without_versions(&a), without_versions(&b));
        }
        let diff = TextDiff::from_lines(&a, &b);
        let mut unified = diff.unified_diff();
        // Twice the number must not overflow; no program has as many lines.
        let context = self.context.min(u32::MAX as usize / 4);
        unified.context_radius(context).header(&self.a.display().to_string(), &self.b.display().to_string());
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

fn is_versions(line: &str) -> bool {
    line.trim_start().starts_with("op_versions ")
}

fn versions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|l| is_versions(l))
}

fn without_versions(text: &str) -> String {
    text.split_inclusive('\n').filter(|l| !is_versions(l)).collect()
}

fn printed(path: &Path, brief: bool) -> Result<String, Failure> {
    let loaded = load(path, Section::Main)?;
    match loaded.diagnostics.iter().next() {
        Some(d) if loaded.diagnostics.has_errors() && loaded.kind == FileKind::Text => {
            Err(Failure::new(format!("{}: {}", path.display(), d.message)))
        }
        _ if brief => Ok(text::print_brief(&loaded.program)),
        _ => Ok(text::print(&loaded.program)),
    }
}
