//! analysis (stub)
