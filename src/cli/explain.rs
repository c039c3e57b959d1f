//! `mastercast explain` and `mastercast passes`: what does a code mean, what does a pass do?

use super::amp::AmpOptions;
use super::{Failure, Outcome, print_out};
use clap::Args;
use mastercast::diag::Code;
use mastercast::passes::PASSES;

/// Arguments of `explain`.
#[derive(Args)]
pub struct Explain {
    /// The code, as a finding shows it (`stale-master`); without one, all codes are listed
    code: Option<String>,
}

impl Explain {
    pub fn run(self) -> Outcome {
        let Some(text) = self.code else {
            let row = |c: &Code| format!("{:22} {:8} {}\n", c.as_str(), c.severity().as_str(), c.summary());
            let rows: String = Code::ALL.iter().map(row).collect();
            return print_out(rows.as_bytes());
        };
        let Some(code) = Code::parse(text.trim()) else {
            let known: Vec<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
            let near =
                known.iter().filter(|k| k.contains(text.trim()) || text.contains(**k)).copied().collect::<Vec<_>>();
            let help = if near.is_empty() { known } else { near };
            return Err(Failure::new(format!("no finding has the code `{text}`")).help(help.join(", ")));
        };
        print_out(format!("{}[{code}]\n\n{}", code.severity().as_str(), code.explanation()).as_bytes())
    }
}

/// Arguments of `passes`.
#[derive(Args)]
pub struct Passes {
    /// Print the op lists that `precision` uses with the options below, as JSON
    #[arg(long)]
    lists: bool,
    #[command(flatten)]
    options: AmpOptions,
}

impl Passes {
    pub fn run(self) -> Outcome {
        if self.lists {
            return print_out(format!("{:#}\n", self.options.show()?).as_bytes());
        }
        let rows: String = PASSES.iter().map(|p| format!("{:14} {}\n", p.name, p.summary)).collect();
        print_out(rows.as_bytes())
    }
}
