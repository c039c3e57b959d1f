//! verify (stub)
