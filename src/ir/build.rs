//! How does a library user write a program? With a builder that takes strings and short calls.

use crate::ir::{AttrValue, BlockId, DType, OpId, Origin, Program, Section, VarDef, VarFlag, VarId};
use crate::names::{Name, Symbol};

/// Builds a [`Program`].
///
/// ```
/// use mastercast::ir::{DType, ProgramBuilder, Section};
/// let mut b = ProgramBuilder::new();
/// let mut s = b.section(Section::Startup);
/// s.param("w", DType::F32, [4]);
/// s.op("fill_constant").out("Out", ["w"]).attr("value", 0.5f32).attr("dtype", DType::F32).done();
/// let program = b.finish();
/// assert_eq!(program.ops(program.global_block(Section::Startup).unwrap()).len(), 1);
/// ```
#[derive(Default)]
pub struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes into the global block of a section.
    pub fn section(&mut self, section: Section) -> SectionBuilder<'_> {
        let block = self.program.ensure_global_block(section);
        SectionBuilder { program: &mut self.program, block, tag: 0 }
    }

    /// Adds a sub-block of `parent` (an index in the section) and writes into it. The block's
    /// index, for the `sub_block` attribute, is [`SectionBuilder::index`].
    pub fn sub_block(&mut self, section: Section, parent: i32) -> SectionBuilder<'_> {
        let block = self.program.push_block(section, parent, None);
        SectionBuilder { program: &mut self.program, block, tag: 0 }
    }

    /// The program.
    pub fn finish(self) -> Program {
        self.program
    }
}

/// Writes into one block.
pub struct SectionBuilder<'b> {
    program: &'b mut Program,
    block: BlockId,
    tag: u32,
}

impl SectionBuilder<'_> {
    /// The block's index in its section.
    pub fn index(&self) -> i32 {
        self.program.block(self.block).index as i32
    }

    /// Sets the caller's own number for the place of what follows ([`Origin::Built`]).
    pub fn at(&mut self, tag: u32) -> &mut Self {
        self.tag = tag;
        self
    }

    fn declare(&mut self, name: &str, dtype: DType, shape: Vec<i64>, flags: &[VarFlag]) -> VarId {
        let name = self.program.intern(name);
        let persistable = flags.contains(&VarFlag::Persistable);
        let mut def = if persistable { VarDef::persistable } else { VarDef::tensor }(name, dtype, shape);
        for &flag in flags {
            def = def.with(flag, true);
        }
        let origin = self.program.push_origin(Origin::Built { tag: self.tag });
        self.program.push_var(self.block, &def, origin)
    }

    /// Declares a parameter: persistable, trainable.
    pub fn param(&mut self, name: &str, dtype: DType, shape: impl Into<Vec<i64>>) -> VarId {
        self.declare(name, dtype, shape.into(), &[VarFlag::Persistable, VarFlag::IsParameter])
    }

    /// Declares a persistable that is not a parameter: a master, an accumulator.
    pub fn persistable(&mut self, name: &str, dtype: DType, shape: impl Into<Vec<i64>>) -> VarId {
        self.declare(name, dtype, shape.into(), &[VarFlag::Persistable])
    }

    /// Declares a temporary.
    pub fn var(&mut self, name: &str, dtype: DType, shape: impl Into<Vec<i64>>) -> VarId {
        self.declare(name, dtype, shape.into(), &[])
    }

    /// Begins an op; [`OpBuild::done`] appends it.
    pub fn op(&mut self, kind: &str) -> OpBuild<'_> {
        let kind = self.program.symbol(kind);
        OpBuild {
            program: self.program,
            block: self.block,
            tag: self.tag,
            kind,
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: Vec::new(),
        }
    }
}

/// An op that is being written.
#[must_use = "an op is appended by `done`"]
pub struct OpBuild<'b> {
    program: &'b mut Program,
    block: BlockId,
    tag: u32,
    kind: Symbol,
    inputs: Vec<(Symbol, Vec<Name>)>,
    outputs: Vec<(Symbol, Vec<Name>)>,
    attrs: Vec<crate::ir::Attr>,
}

impl OpBuild<'_> {
    fn names<'s>(&mut self, args: impl IntoIterator<Item = &'s str>) -> Vec<Name> {
        args.into_iter().map(|a| self.program.intern(a)).collect()
    }

    /// An input slot.
    pub fn arg<'s>(mut self, slot: &str, args: impl IntoIterator<Item = &'s str>) -> Self {
        let args = self.names(args);
        let slot = self.program.symbol(slot);
        self.inputs.push((slot, args));
        self
    }

    /// An output slot.
    pub fn out<'s>(mut self, slot: &str, args: impl IntoIterator<Item = &'s str>) -> Self {
        let args = self.names(args);
        let slot = self.program.symbol(slot);
        self.outputs.push((slot, args));
        self
    }

    /// An attribute.
    pub fn attr(mut self, name: &str, value: impl Into<AttrValue>) -> Self {
        let name = self.program.symbol(name);
        self.attrs.push(crate::ir::Attr::new(name, value));
        self
    }

    /// Appends the op.
    pub fn done(self) -> OpId {
        let origin = self.program.push_origin(Origin::Built { tag: self.tag });
        let attrs = self.program.intern_attrs(self.attrs);
        let id = self.program.push_op(self.block, self.kind, attrs, origin);
        for (slot, args) in self.inputs {
            self.program.push_input(id, slot, args);
        }
        for (slot, args) in self.outputs {
            self.program.push_output(id, slot, args);
        }
        id
    }
}
