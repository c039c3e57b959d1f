//! What do the tests of training programs share? Cases of a corpus, and the comparison of two programs.

pub mod cases;
pub mod compare;
