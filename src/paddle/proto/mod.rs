//! ProgramDesc (stub)
