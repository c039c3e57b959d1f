//! Proves and repairs the agreement of parameters and their float32 masters in mixed-precision
//! static-graph training programs.
//!
//! # The semantics in one page
//! A framework describes training as two programs: **startup** (run once: initialise) and **main** (run every
//! step). Both speak of **storage cells**, names in one scope. At level O2 a **parameter** is float16 or
//! bfloat16, and an optimizer op updates a float32 **master** and writes `parameter = narrow(master)`.
//! Startup makes the master by a cast from the parameter; `amp_init` narrows the parameter in place; a load
//! overwrites cells from a checkpoint. Whoever overwrites one cell of a **pair** and not the other leaves it
//! out of step, and the next step writes the old value back.
//!
//! This crate holds both programs in one [`ir::Program`], proves for each pair whether it agrees
//! when main starts and after every step ([`analysis::coherence()`]), and rewrites the program so that it does
//! ([`passes`]). The claims can be tested: [`interp`] runs the programs.
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | parameter, master, pair | a 16-bit persistable, its float32 copy, and the two together |
//! | derived copy | a persistable that is a pure function (cast, assign, transpose …) of others |
//! | in step | `narrow(parameter) = narrow(master)`, bit for bit |
//! | stale | the two descend from different sources: evidence of disagreement, not proof |
//! | lossy | the master went through 16 bits although a float32 value was at hand |
//! | section | startup or main, inside one [`ir::Program`] |
//! | schedule | the order in which a script runs startup, loads, `amp_init` and main |
//! | obligation | a fact that the program does not tell and that would settle a claim |
//!
//! # Code map, in reading order
//! 1. [`names`], [`entity`]: interned strings and dense ids.
//! 2. [`ir`]: rows, pools, and edits that are queued and committed once.
//! 3. [`ops`]: what each op kind does to storage cells.
//! 4. [`text`], [`paddle`]: front ends; each reads and prints without loss.
//! 5. [`diag`], [`verify`]: findings about the user's program; numbered invariants.
//! 6. [`analysis`]: effects, dependences, pairs, symbolic values, the proof.
//! 7. [`passes`]: `precision`, `train-precision`, `master-casts`, `load-order`, `resync`, `lower`, and the manager.
//! 8. [`ckpt`], [`convert`]: checkpoints, and float conversions at memory speed.
//! 9. [`schedule`]: the order of a script, written into the program as ops.
//! 10. [`interp`]: what the programs compute.
//! 11. [`state`]: state dicts, and loads of checkpoints into a scope.
//!
//! # Invariants
//! - The IR holds only what a file can hold; everything else is derived on demand.
//! - The library prints nothing. Only [`ckpt`] and the load and save ops of [`interp`] touch files.
//! - Nothing that was read is lost: unknown ops, attributes and fields survive a round trip byte for byte.
//! - Unknown is conservative: an op without a schema may write all that it names, and then nothing is proved.
//! - No pass inserts by position. Every pass is idempotent and linear.
//! - Output never depends on the order of a hash map.
//! - A finding about the user's program is a [`diag::Diagnostic`], an operation that could not be done is a
//!   typed error, and a panic is a fault of this crate.
//!
//! # What is proved, and what is not
//! See [`analysis::coherence`](mod@analysis::coherence) for the claims, and its limits in the README.

pub mod analysis;
pub mod ckpt;
pub mod convert;
pub mod diag;
pub mod entity;
pub mod interp;
pub mod ir;
pub mod names;
pub mod ops;
pub mod paddle;
pub mod passes;
pub mod schedule;
pub mod state;
pub mod text;
pub mod verify;

/// The README's example is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
