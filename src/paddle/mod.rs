//! How do Paddle's own files become a program, and back? One front end a format.

pub mod pir;
pub mod proto;
