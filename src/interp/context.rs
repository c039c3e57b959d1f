//! What does a kernel see? The op, its arguments' values, its attributes, and where to write.

use super::error::{Fault, InterpError};
use super::machine::{Machine, Options, RunWarning};
use super::scope::{Locals, Value};
use super::tensor::{Tensor, count};
use crate::diag::Place;
use crate::ir::{AttrValue, BlockId, DType, OpRef, Program, VarId};
use crate::names::Name;

/// The name that stands for an argument that is not there.
const EMPTY: &str = "@EMPTY@";

/// One op in execution.
///
/// Slots and attributes are found by text among the op's own few (no hashing). An argument named
/// `@EMPTY@` counts as absent.
pub struct OpCx<'a, 'r> {
    pub(super) machine: &'a mut Machine<'r>,
    pub(super) op: OpRef<'r>,
}

type Result<T> = std::result::Result<T, InterpError>;

impl<'r> OpCx<'_, 'r> {
    /// The op.
    pub fn op(&self) -> OpRef<'r> {
        self.op
    }

    /// The program.
    pub fn program(&self) -> &'r Program {
        self.machine.program
    }

    /// The options of the run.
    pub fn options(&self) -> &'r Options {
        self.machine.options
    }

    /// The text of a name.
    pub fn text(&self, name: Name) -> &'r str {
        self.machine.program.name(name)
    }

    /// Records something that the user should know.
    ///
    /// Of very many warnings, as of a loop, the first ones are kept.
    pub fn warn(&mut self, message: String) {
        const KEPT: usize = 1000;
        let warnings = &mut self.machine.stats.warnings;
        let message = match warnings.len() {
            ..KEPT => message,
            KEPT => format!("more than {KEPT} warnings: later ones are not shown"),
            _ => return,
        };
        warnings.push(RunWarning { place: Place::op(self.machine.program, self.op.id), message });
    }

    // ---- inputs

    /// Names in an input slot; empty when there is no such slot.
    pub fn input_names(&self, slot: &str) -> &'r [Name] {
        let p = self.machine.program;
        self.op.inputs().find(|s| p.sym(s.name) == slot).map_or(&[], |s| s.args)
    }

    /// Names in an output slot; empty when there is no such slot.
    pub fn output_names(&self, slot: &str) -> &'r [Name] {
        let p = self.machine.program;
        self.op.outputs().find(|s| p.sym(s.name) == slot).map_or(&[], |s| s.args)
    }

    pub(super) fn present(&self, name: Name) -> bool {
        self.text(name) != EMPTY
    }

    /// The value of a variable, if it has one that is a tensor. Cheap: shares the data.
    pub fn value(&self, name: Name) -> Option<Tensor> {
        match &self.machine.cell(name)?.value {
            Value::Tensor(t) => Some(t.clone()),
            _ => None,
        }
    }

    pub(super) fn read(&self, slot: &str, name: Name) -> Result<Tensor> {
        self.value(name)
            .ok_or_else(|| Fault::MissingValue { slot: slot.to_owned(), name: self.text(name).to_owned() }.into())
    }

    /// The first value of an input slot.
    pub fn input(&self, slot: &str) -> Result<Tensor> {
        self.opt_input(slot)?.ok_or_else(|| Fault::MissingSlot { slot: slot.to_owned() }.into())
    }

    /// The first value of an input slot, `None` when the slot has no argument.
    pub fn opt_input(&self, slot: &str) -> Result<Option<Tensor>> {
        match self.input_names(slot).first() {
            Some(&name) if self.present(name) => self.read(slot, name).map(Some),
            _ => Ok(None),
        }
    }

    /// All values of an input slot.
    pub fn inputs(&self, slot: &str) -> Result<Vec<Tensor>> {
        self.input_names(slot).iter().map(|&name| self.read(slot, name)).collect()
    }

    // ---- outputs

    /// Whether an output slot has an argument to write.
    pub fn wants(&self, slot: &str) -> bool {
        self.output_names(slot).first().is_some_and(|&n| self.present(n))
    }

    /// Writes the first argument of an output slot.
    pub fn set(&mut self, slot: &str, value: Tensor) -> Result<()> {
        match self.output_names(slot).first() {
            Some(&name) if self.present(name) => self.write(name, value),
            _ => Err(Fault::MissingSlot { slot: slot.to_owned() }.into()),
        }
    }

    /// Writes the first argument of an output slot, if there is one.
    pub fn set_opt(&mut self, slot: &str, value: Tensor) -> Result<()> {
        if self.wants(slot) { self.set(slot, value) } else { Ok(()) }
    }

    /// Writes all arguments of an output slot, as many as there are values.
    pub fn set_all(&mut self, slot: &str, values: Vec<Tensor>) -> Result<()> {
        let names = self.output_names(slot);
        if names.len() != values.len() {
            let what = format!("slot `{slot}` has {} arguments for {} values", names.len(), values.len());
            return Err(Fault::Unsupported { what }.into());
        }
        for (&name, value) in names.iter().zip(values) {
            if self.present(name) {
                self.write(name, value)?;
            }
        }
        Ok(())
    }

    /// Writes a variable.
    pub fn write(&mut self, name: Name, value: Tensor) -> Result<()> {
        self.machine.write(name, Value::Tensor(value))
    }

    /// Writes a variable with what a file holds: `resync` with direction `auto` goes by this.
    pub fn write_loaded(&mut self, name: Name, value: Tensor) -> Result<()> {
        self.write(name, value)?;
        if let Some(slot) = self.machine.slot(name) {
            self.machine.scope.stamp_loaded(slot);
        }
        Ok(())
    }

    /// Writes a variable that need not be a tensor.
    pub fn write_value(&mut self, name: Name, value: Value) -> Result<()> {
        self.machine.write(name, value)
    }

    /// Number of elements of a value that is about to be made; refuses what would not fit in memory.
    pub fn room(&self, dtype: DType, shape: &[usize]) -> Result<usize> {
        let n = count(shape)?;
        self.machine.room(n as u64 * dtype.size().unwrap_or(16) as u64)?;
        Ok(n)
    }

    /// The declaration that a name has for this op: of its block, a parent, this section, the other.
    pub fn declaration(&self, name: Name) -> Option<VarId> {
        let p = self.machine.program;
        let mut at = Some(self.op.block());
        // Parents may form a cycle in a bad file; no chain is longer than the number of blocks.
        for _ in 0..p.block_rows() {
            let Some(block) = at.filter(|&b| p.block(b).index != 0) else { break };
            if let Some(id) = self.machine.declared_in(block, name) {
                return Some(id);
            }
            at = p.parent(block);
        }
        self.machine.declaration(name)
    }

    // ---- attributes

    /// An attribute.
    pub fn attr(&self, name: &str) -> Option<&'r AttrValue> {
        let p = self.machine.program;
        self.op.attrs().iter().find(|a| p.sym(a.name) == name).map(|a| &a.value)
    }

    fn attr_as<T>(&self, name: &str, want: &str, of: impl FnOnce(&'r AttrValue) -> Option<T>) -> Result<Option<T>> {
        match self.attr(name) {
            None => Ok(None),
            Some(value) => match of(value) {
                Some(v) => Ok(Some(v)),
                None => Err(Fault::BadAttr { name: name.to_owned(), what: format!("{want} wanted") }.into()),
            },
        }
    }

    /// A number, or the default when the attribute is absent.
    pub fn attr_f32(&self, name: &str, default: f32) -> Result<f32> {
        let of = |a: &AttrValue| a.as_float().or_else(|| a.as_int().map(|i| i as f32));
        Ok(self.attr_as(name, "a number", of)?.unwrap_or(default))
    }

    /// An integer, or the default when the attribute is absent.
    pub fn attr_i64(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.attr_as(name, "an integer", AttrValue::as_int)?.unwrap_or(default))
    }

    /// A boolean, or the default when the attribute is absent.
    pub fn attr_bool(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.attr_as(name, "a boolean", AttrValue::as_bool)?.unwrap_or(default))
    }

    /// A string; `None` when the attribute is absent.
    pub fn attr_str(&self, name: &str) -> Result<Option<&'r str>> {
        self.attr_as(name, "a string", AttrValue::as_str)
    }

    /// A list of integers; `None` when the attribute is absent.
    pub fn attr_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        self.attr_as(name, "a list of integers", |a| match a {
            // A list without items keeps no trace of its item type.
            AttrValue::Floats(v) if v.is_empty() => Some(Vec::new()),
            a => a.to_ints().or_else(|| a.as_int().map(|i| vec![i])),
        })
    }

    /// A dtype; `None` when the attribute is absent or -1.
    pub fn attr_dtype(&self, name: &str) -> Result<Option<DType>> {
        Ok(match self.attr_i64(name, -1)? {
            -1 => None,
            code => Some(DType::from_code(code as i32)),
        })
    }

    /// An attribute that must be there.
    pub fn need<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Fault::MissingAttr { name: name.to_owned() }.into())
    }

    // ---- sub-blocks

    /// The sub-block in an attribute.
    pub fn sub_block(&self, name: &str) -> Result<BlockId> {
        let index = self.attr_as(name, "a block", |a| match a {
            AttrValue::Block(i) => Some(*i),
            _ => None,
        })?;
        let index = self.need(name, index)?;
        self.machine.program.block_at(self.op.section(), index).ok_or_else(|| Fault::NoBlock { index }.into())
    }

    /// Runs a block with fresh local variables, and gives them back. Hand them to
    /// [`Self::store_scopes`] or [`Self::drop_locals`]: their bytes stay counted until then.
    pub fn run_block(&mut self, block: BlockId) -> Result<Locals> {
        let locals = self.machine.new_locals()?;
        self.machine.run_frame(block, locals)
    }

    /// Runs a block with some of its variables given, as [`Self::run_block`] does.
    pub fn run_block_with(&mut self, block: BlockId, given: Vec<(Name, Tensor)>) -> Result<Locals> {
        let mut own = self.machine.new_locals()?;
        for (name, value) in given {
            self.machine.give(&mut own, name, value)?;
        }
        self.machine.run_frame(block, own)
    }

    /// Runs a gradient block over the local variables that its forward block left behind (which are let
    /// go), with some of its own given values, and gives its locals back as [`Self::run_block`] does.
    pub fn run_block_over(&mut self, block: BlockId, left: Locals, given: Vec<(Name, Tensor)>) -> Result<Locals> {
        let mut own = self.machine.new_locals()?;
        for (name, value) in given {
            self.machine.give(&mut own, name, value)?;
        }
        let p = self.machine.program;
        let forward = p.block(block).forward.and_then(|i| p.block_at(self.op.section(), i)).unwrap_or(block);
        self.machine.push_frame(forward, left)?;
        let ran = self.machine.run_frame(block, own);
        let left = self.machine.pop_frame();
        self.machine.release(&left);
        ran
    }

    /// Gives local variables that are not running one more, which hides a variable of the parents.
    pub fn give(&mut self, locals: &mut Locals, name: Name, value: Tensor) -> Result<()> {
        self.machine.give(locals, name, value)
    }

    /// Takes what [`Self::store_scopes`] left in an input slot's variable; empty when nothing was.
    pub fn take_scopes(&mut self, slot: &str) -> Vec<Locals> {
        self.input_names(slot).first().map(|&name| self.machine.take_scopes(name)).unwrap_or_default()
    }

    /// Counts one unit of work, as executing an op does: for kernels that repeat something.
    pub fn spend(&mut self) -> Result<()> {
        self.machine.spend()
    }

    /// Lets go of local variables.
    pub fn drop_locals(&mut self, locals: Locals) {
        self.machine.release(&locals);
    }

    /// Whether an op reads what is stored in this output slot with [`Self::store_scopes`].
    pub fn keeps_scopes(&self, slot: &str) -> bool {
        self.output_names(slot).first().is_some_and(|&n| self.machine.scopes_read(n))
    }

    /// Leaves local variables behind for a gradient op.
    pub fn store_scopes(&mut self, slot: &str, frames: Vec<Locals>) -> Result<()> {
        frames.iter().for_each(|f| self.machine.release(f));
        match self.output_names(slot).first() {
            Some(&name) => self.machine.write(name, Value::Scopes(frames)),
            None => Ok(()),
        }
    }
}

/// A fault about a slot's shape.
pub(super) fn shape_fault(slot: &str, t: &Tensor, what: impl Into<String>) -> InterpError {
    Fault::Shape { slot: slot.to_owned(), shape: t.shape().to_vec(), what: what.into() }.into()
}

/// A fault about a slot's element type.
pub(super) fn dtype_fault(slot: &str, t: &Tensor, what: impl Into<String>) -> InterpError {
    Fault::DType { slot: slot.to_owned(), dtype: t.dtype(), what: what.into() }.into()
}
