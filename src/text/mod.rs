//! text (stub)
