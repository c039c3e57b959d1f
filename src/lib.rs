//! mastercast: proves and repairs parameter/master-weight coherence in mixed-precision
//! static-graph training programs.
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
pub mod text;
pub mod verify;

/// The README's example is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
