//! How do tests of the interpreter make small programs and run them?
#![allow(dead_code)]

use mastercast::convert::Narrowing;
use mastercast::interp::{InterpError, Interpreter, Options, RunStats, Scope, Tensor};
use mastercast::ir::{AttrValue, DType, Program, ProgramBuilder, Section, SectionBuilder};

pub fn f32s(v: &[f32]) -> Tensor {
    Tensor::new(&[v.len()], v.to_vec()).unwrap()
}

pub fn low(v: &[f32], dtype: DType) -> Tensor {
    f32s(v).cast(dtype, Narrowing::NearestEven).unwrap()
}

pub fn longs(v: &[i64]) -> AttrValue {
    AttrValue::Longs(v.into())
}

pub fn main_of(build: impl FnOnce(&mut SectionBuilder<'_>)) -> Program {
    let mut b = ProgramBuilder::new();
    build(&mut b.section(Section::Main));
    b.finish()
}

pub fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut o = Options::default();
    change(&mut o);
    o
}

pub fn run_with(program: &Program, scope: &mut Scope, options: Options) -> Result<RunStats, InterpError> {
    Interpreter::new(program).with_options(options).run(Section::Main, scope)
}

pub fn run(program: &Program, scope: &mut Scope) -> RunStats {
    run_with(program, scope, Options::default()).unwrap()
}

pub fn fault_of(program: &Program, scope: &mut Scope, options: Options) -> InterpError {
    run_with(program, scope, options).unwrap_err()
}
