//! Which function runs which op kind? One table, filled by the families, open to the outside.

mod activation;
mod batch_norm;
mod control;
mod conv;
mod gemm;
mod grad;
mod init;
mod io;
mod join;
mod lanes;
mod loss;
mod math;
mod matmul;
mod norm;
mod optimizer;
mod optimizer_more;
mod pick;
mod pir;
mod pool;
mod real;
mod reduce;
mod rnn;
mod scaling;
mod shape;
mod sync;
mod transfer;
mod walk;
mod window;

use super::context::OpCx;
use super::error::InterpError;
use crate::ir::Program;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Runs one op: reads inputs and attributes of the context, writes outputs.
pub type Kernel = fn(&mut OpCx<'_, '_>) -> Result<(), InterpError>;

/// Kernels by op kind.
///
/// The random ops (`uniform_random`, `gaussian_random`, `dropout`) draw from this crate's own stream:
/// SplitMix64, seeded from the run's seed, the op's `seed` attribute, the FNV-1a hash of the output's
/// name, and how often this interpreter has drawn for that name. So a value depends on what is
/// initialised and not on where the op stands, and a pass that moves ops changes nothing.
#[derive(Clone, Default)]
pub struct Kernels {
    by_kind: FxHashMap<String, Kernel>,
}

impl Kernels {
    /// No kernels: every op is unknown.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The kernels of this crate. Clone it to add to it.
    pub fn standard() -> &'static Kernels {
        static TABLE: OnceLock<Kernels> = OnceLock::new();
        TABLE.get_or_init(|| {
            let mut kernels = Kernels::empty();
            for family in [
                init::KERNELS,
                transfer::KERNELS,
                math::KERNELS,
                grad::KERNELS,
                reduce::KERNELS,
                matmul::KERNELS,
                loss::KERNELS,
                shape::KERNELS,
                join::KERNELS,
                pick::KERNELS,
                activation::KERNELS,
                norm::KERNELS,
                batch_norm::KERNELS,
                conv::KERNELS,
                pool::KERNELS,
                rnn::KERNELS,
                optimizer::KERNELS,
                optimizer_more::KERNELS,
                scaling::KERNELS,
                io::KERNELS,
                sync::KERNELS,
                control::KERNELS,
                pir::KERNELS,
            ] {
                for &(kind, kernel) in family {
                    kernels.register(kind, kernel);
                }
            }
            kernels
        })
    }

    /// Adds or replaces a kernel.
    pub fn register(&mut self, kind: &str, kernel: Kernel) {
        self.by_kind.insert(kind.to_owned(), kernel);
    }

    /// The kernel of a kind.
    pub fn get(&self, kind: &str) -> Option<Kernel> {
        self.by_kind.get(kind).copied()
    }

    /// All kinds that have a kernel, sorted.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<_> = self.by_kind.keys().map(String::as_str).collect();
        kinds.sort_unstable();
        kinds
    }

    /// Kernels by a program's symbols, so that the run loop never hashes a string.
    pub(super) fn resolve(&self, program: &Program) -> Vec<Option<Kernel>> {
        program.symbols().iter().map(|(_, text)| self.get(text)).collect()
    }
}
