//! What does a program compute? An interpreter that runs startup, loads and training steps over a [`Scope`].
//!
//! ```
//! use mastercast::interp::{Interpreter, Scope};
//! use mastercast::ir::{DType, ProgramBuilder, Section};
//! let mut b = ProgramBuilder::new();
//! let mut s = b.section(Section::Startup);
//! s.param("w", DType::F32, [2]);
//! s.op("fill_constant")
//!     .out("Out", ["w"])
//!     .attr("value", 0.5f32)
//!     .attr("dtype", DType::F32)
//!     .attr("shape", mastercast::ir::AttrValue::Longs([2].into()))
//!     .done();
//! let program = b.finish();
//! let mut scope = Scope::new();
//! Interpreter::new(&program).run(Section::Startup, &mut scope).unwrap();
//! assert_eq!(scope.get("w").unwrap().to_f32_vec(), [0.5, 0.5]);
//! ```
//!
//! # What is promised
//! - *Dtypes are those of values.* A cell has the dtype of the last value written, whatever the program
//!   declares; a kernel that is given types it cannot combine says so (`Fault::DType`).
//! - *Rounding.* Arithmetic on float16 and bfloat16 is done in float32 and rounded once, to nearest even,
//!   when the output is written. [`Narrowing::Truncate`] changes only what Paddle 2.6.2 does differently
//!   on a CPU: the `cast` op (and `load_as_fp16`, `save_as_fp16`, `resync`, which stand for a cast)
//!   narrows towards zero, and `amp_init` does so for bfloat16 (float16 goes through NumPy there, which
//!   rounds to nearest even). Proofs of coherence are about [`Narrowing::NearestEven`].
//!   Every kernel of a floating type does so: products of matrices and convolutions add in float32, as GPUs
//!   do; sums, means, norms and gradients of stretched operands add in float64; state of optimizers is
//!   updated in float32. float64 is computed in float64.
//! - *Bits.* Equal program, scope, options and order of runs give equal bits on one machine: reductions run
//!   in index order (in float64), one thread multiplies matrices. On another machine products may differ in
//!   their last bits: the library that multiplies (`faer`) picks its kernel by the processor. Elementary
//!   functions are those of the platform's Rust `std`, and `erf` that of `libm`.
//! - *Randomness.* The random initialisers draw from a stream of this crate's own, see
//!   [`kernels`](self::Kernels); it is not Paddle's, so values differ from a Paddle run of the same seed.
//! - *Memory.* A temporary goes after the last op that uses it, and an optimizer updates in place what it
//!   reads and writes under one name; [`RunStats::peak_bytes`] tells the most that was held.
//! - *Bounds.* A run executes at most [`Options::fuel`] ops, holds at most [`Options::memory_limit`] bytes
//!   in cells, and nests sub-blocks at most [`MAX_DEPTH`] deep. No input makes it panic or run on.
//! - *Unknown is an error.* An op without a kernel stops the run with its place.
//!
//! A run that fails leaves persistables as they were when it stopped, and no temporaries.
//!
//! # Map
//! [`run`](Interpreter) run loop, `scope` cells, `tensor` values, `error`, `files` what load and save
//! reach, `observe` what watches a run, `kernels/` one family per file. A new kernel is a function over [`OpCx`], entered in its
//! family's table or by [`Kernels::register`].

mod context;
mod error;
mod files;
mod kernels;
mod machine;
mod observe;
mod run;
mod scope;
mod tensor;

pub use crate::convert::Narrowing;
pub use context::OpCx;
pub use error::{Fault, InterpError, TensorError};
pub use files::{DiskFiles, Files, MemoryCheckpoint, SaveFormat};
pub use kernels::{Kernel, Kernels};
pub use machine::{MAX_DEPTH, Options, RunStats, RunWarning};
pub use observe::{Cost, Observer, PairCheck, Profile, Seen};
pub use run::{Interpreter, Outputs};
pub use scope::{Locals, Scope, Value};
pub use tensor::{Data, Tensor, count};
