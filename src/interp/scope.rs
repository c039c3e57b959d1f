//! Where do values live between ops and between runs? In cells, by name.
//!
//! A [`Scope`] is the global level: dense cells over its own names, so that several programs (startup,
//! main, a stand-alone resync) can run over one scope. Persistables stay after a run; a temporary is
//! dropped when the run that made it ends. What a sub-block declares lives in a [`Locals`].

use super::tensor::Tensor;
use crate::entity::EntityId;
use crate::names::{Name, Names};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a cell, or a list of them, counts for besides its elements.
pub(super) const ROW: u64 = 128;

/// What a cell can hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// a dense tensor
    Tensor(Tensor),
    /// a list of tensors (`LOD_TENSOR_ARRAY`)
    Array(Vec<Tensor>),
    /// what the sub-blocks of a control op left behind for its gradient op, one entry an iteration
    Scopes(Vec<Locals>),
}

impl Value {
    /// Bytes held: the elements, and [`ROW`] for each row of a list.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Value::Tensor(t) => t.bytes(),
            Value::Array(ts) => ts.iter().map(|t| t.bytes() + ROW).sum(),
            Value::Scopes(frames) => frames.iter().map(Locals::bytes).sum(),
        }
    }
}

/// A value, and when it was last loaded and last brought in step.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub value: Value,
    /// the scope's clock at the last write by a load; 0 is never
    pub loaded: u64,
    /// the scope's clock at the last resync of its pair; 0 is never
    pub synced: u64,
}

impl Cell {
    pub fn new(value: Value) -> Self {
        Cell { value, loaded: 0, synced: 0 }
    }

    /// Whether a load wrote it since its pair was last brought in step.
    pub fn fresh(&self) -> bool {
        self.loaded > self.synced
    }
}

/// The cells of one activation of a sub-block.
#[derive(Clone, Debug, Default)]
pub struct Locals {
    pub(super) cells: FxHashMap<Name, Cell>,
}

impl Locals {
    /// The tensor of a local variable.
    pub fn get(&self, name: Name) -> Option<&Tensor> {
        match &self.cells.get(&name)?.value {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Bytes of the elements, and what the rows themselves take: a loop may leave millions of empty ones.
    pub(super) fn bytes(&self) -> u64 {
        ROW + self.cells.values().map(|c| c.value.bytes() + ROW).sum::<u64>()
    }
}

/// Storage cells by name.
pub struct Scope {
    names: Names,
    cells: Vec<Option<Cell>>,
    bytes: u64,
    clock: u64,
    id: u64,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Self {
        Scope { names: Names::new(), cells: Vec::new(), bytes: 0, clock: 0, id: next_id() }
    }

    /// The tensor in a cell; `None` when it has no value, or one that is not a tensor.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let cell = self.cells.get(self.names.lookup(name)?.index())?.as_ref()?;
        match &cell.value {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Gives a cell a value, outside of any run.
    pub fn set(&mut self, name: &str, value: Tensor) {
        let slot = self.slot(name);
        self.put(slot, Value::Tensor(value));
    }

    /// The same, counted as a load by `resync` with direction `auto`.
    pub fn set_loaded(&mut self, name: &str, value: Tensor) {
        let slot = self.slot(name);
        self.put(slot, Value::Tensor(value));
        self.stamp_loaded(slot);
    }

    /// Takes a cell's value away.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let slot = self.names.lookup(name)?.index() as u32;
        match self.take(slot)? {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// All tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let mut all: Vec<_> = self
            .names
            .iter()
            .filter_map(|(n, text)| match &self.cells.get(n.index())?.as_ref()?.value {
                Value::Tensor(t) => Some((text, t)),
                _ => None,
            })
            .collect();
        all.sort_unstable_by_key(|&(text, _)| text);
        all.into_iter()
    }

    /// Number of cells that have a value.
    pub fn len(&self) -> usize {
        self.cells.iter().flatten().count()
    }

    /// Whether no cell has a value.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(Option::is_none)
    }

    /// Bytes of all elements held; a tensor that two cells share counts twice.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    // ---- by slot, for the run loop

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn slots(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn slot(&mut self, name: &str) -> u32 {
        let slot = self.names.intern(name).index();
        if slot >= self.cells.len() {
            self.cells.resize_with(slot + 1, || None);
        }
        slot as u32
    }

    pub(super) fn cell(&self, slot: u32) -> Option<&Cell> {
        self.cells[slot as usize].as_ref()
    }

    pub(super) fn put(&mut self, slot: u32, value: Value) {
        self.bytes += value.bytes();
        match &mut self.cells[slot as usize] {
            Some(cell) => {
                self.bytes -= cell.value.bytes();
                cell.value = value;
            }
            none => *none = Some(Cell::new(value)),
        }
    }

    pub(super) fn take(&mut self, slot: u32) -> Option<Value> {
        let cell = self.cells[slot as usize].take()?;
        self.bytes -= cell.value.bytes();
        Some(cell.value)
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn stamp_loaded(&mut self, slot: u32) {
        let now = self.tick();
        if let Some(cell) = &mut self.cells[slot as usize] {
            cell.loaded = now;
        }
    }

    pub(super) fn stamp_synced(&mut self, slot: u32, now: u64) {
        if let Some(cell) = &mut self.cells[slot as usize] {
            cell.synced = now;
        }
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Scope {
    /// The tensors share their data until one side writes.
    fn clone(&self) -> Self {
        Scope {
            names: self.names.clone(),
            cells: self.cells.clone(),
            bytes: self.bytes,
            clock: self.clock,
            // Slots of the two grow apart from here, and an interpreter remembers slots by scope.
            id: next_id(),
        }
    }
}
