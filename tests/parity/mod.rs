//! What do the parity tests share? Cases of a corpus, the comparison of two rewritten programs, and the proof
//! that Paddle's is unsound where they differ.

pub mod cases;
pub mod compare;
pub mod explain;
