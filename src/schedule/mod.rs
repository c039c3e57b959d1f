//! In which order do startup, load, amp_init and main run? A line of text, and the ops it stands for.
//!
//! ```text
//! startup, load("ckpt dir"), load(masters.safetensors, only=masters), amp_init(rewrite_master), main
//! ```
//!
//! A user's training script runs loads and `amp_init` between the startup and the main program; the
//! files do not show them. [`Schedule::apply`] writes them into the startup program as ops, so that
//! one program holds the whole story and the analyses need no second notion of order.
//!
//! | step | becomes |
//! |---|---|
//! | `startup` | the ops of the startup program, where they stand; exactly once |
//! | `load(PATH)` | a `load` op for the cells whose names are keys of the checkpoint; before `startup` if it stands there |
//! | `load(PATH, only=params)`, `only=masters` | the same for the parameters, or the masters, alone |
//! | `amp_init` | an `amp_init` op for each 16-bit type, over the parameters that main declares so and that are float32 until then |
//! | `amp_init(rewrite_master)` | the same, which also rewrites the masters (Paddle's `rewrite_master_weight`) |
//! | `main` | nothing; optional, last |

mod apply;
mod check;
mod combined;

mod parse;
mod report;
pub(crate) mod targets;

pub use apply::ApplyError;
pub use combined::{CombinedNames, combined_names};
pub use parse::{ScheduleError, ScheduleErrorKind};
pub use report::{Applied, Lists, LoadReport};

use std::fmt;

/// Which cells a load may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Only {
    /// every persistable cell that the checkpoint brings
    #[default]
    All,
    /// parameters
    Params,
    /// float32 masters of 16-bit parameters
    Masters,
}

/// One step of a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Step {
    /// the startup program
    Startup,
    /// a checkpoint is loaded
    Load {
        /// the path, as written
        path: String,
        /// which cells it may write
        only: Only,
    },
    /// parameters are narrowed in place
    AmpInit {
        /// masters are set to the widened narrowed values
        rewrite_master: bool,
    },
    /// the main program
    Main,
}

/// The order in which a training script runs things. `Display` prints text that parses to the same.
///
/// ```
/// use mastercast::schedule::Schedule;
/// let schedule: Schedule = "startup,load( w.safetensors ),amp_init,main".parse().unwrap();
/// assert_eq!(schedule.to_string(), "startup, load(w.safetensors), amp_init, main");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Schedule {
    steps: Vec<Step>,
}

impl Schedule {
    /// Longest text that is read, in bytes.
    pub const MAX_TEXT: usize = 64 * 1024;
    /// Most steps of a schedule.
    pub const MAX_STEPS: usize = 1024;

    /// The schedule without loads: `startup, main`.
    pub fn plain() -> Schedule {
        Schedule { steps: vec![Step::Startup, Step::Main] }
    }

    /// The steps in order. Exactly one is [`Step::Startup`]; [`Step::Main`] can only be the last.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The paths of all loads, in order; a path that is loaded twice stands twice.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|s| match s {
            Step::Load { path, .. } => Some(path.as_str()),
            _ => None,
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Startup => f.write_str("startup"),
            Step::Load { path, only } => {
                f.write_str("load(")?;
                parse::write_path(f, path)?;
                match only {
                    Only::All => f.write_str(")"),
                    Only::Params => f.write_str(", only=params)"),
                    Only::Masters => f.write_str(", only=masters)"),
                }
            }
            Step::AmpInit { rewrite_master: false } => f.write_str("amp_init"),
            Step::AmpInit { rewrite_master: true } => f.write_str("amp_init(rewrite_master)"),
            Step::Main => f.write_str("main"),
        }
    }
}
