//! What do the parity tests share? Cases of a corpus, and the comparison of two rewritten programs.

pub mod cases;
pub mod compare;
