//! What do the tests of several areas share?

pub mod r#gen;
