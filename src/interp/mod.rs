//! interp (stub)
