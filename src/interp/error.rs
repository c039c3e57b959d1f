//! What can go wrong while a program runs? A fault, and the op at which it happened.

use crate::ckpt::CkptError;
use crate::diag::Place;
use crate::ir::DType;
use std::path::PathBuf;

/// Why a run stopped, without its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// no kernel is registered for this kind
    #[error("no kernel for op `{kind}`")]
    UnknownOp {
        /// the op's kind
        kind: String,
    },
    /// an op lacks an argument that its kernel needs
    #[error("slot `{slot}` has no argument")]
    MissingSlot {
        /// the slot
        slot: String,
    },
    /// a variable is read before it has a value
    #[error("variable `{name}` (slot `{slot}`) has no value")]
    MissingValue {
        /// the slot that reads it
        slot: String,
        /// the variable
        name: String,
    },
    /// an attribute that the kernel needs is absent
    #[error("attribute `{name}` is missing")]
    MissingAttr {
        /// the attribute
        name: String,
    },
    /// an attribute holds what the kernel cannot use
    #[error("attribute `{name}`: {what}")]
    BadAttr {
        /// the attribute
        name: String,
        /// what is wrong with it
        what: String,
    },
    /// shapes that do not fit together
    #[error("slot `{slot}`: shape {shape:?} {what}")]
    Shape {
        /// the slot
        slot: String,
        /// the shape seen
        shape: Vec<usize>,
        /// what was needed
        what: String,
    },
    /// an element type that the kernel cannot use here
    #[error("slot `{slot}`: dtype {dtype} {what}")]
    DType {
        /// the slot
        slot: String,
        /// the type seen
        dtype: DType,
        /// what was needed
        what: String,
    },
    /// the elements of a tensor do not fit its shape, or the type cannot be held
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// the run has executed as many ops as it may
    #[error("out of fuel: {limit} ops were executed")]
    Fuel {
        /// the limit
        limit: u64,
    },
    /// a value does not fit in the memory that the run may use
    #[error("memory limit: {wanted} more bytes wanted, {used} of {limit} in use")]
    Memory {
        /// bytes asked for
        wanted: u64,
        /// bytes held by variables
        used: u64,
        /// the limit
        limit: u64,
    },
    /// sub-blocks that run one another too deeply (or in a cycle)
    #[error("sub-blocks nest deeper than {limit}")]
    Depth {
        /// the limit
        limit: usize,
    },
    /// a sub-block that the section does not have
    #[error("sub-block {index} does not exist")]
    NoBlock {
        /// its index
        index: i32,
    },
    /// a checkpoint could not be read or written
    #[error(transparent)]
    Ckpt(#[from] CkptError),
    /// a checkpoint lacks a key
    #[error("{path}: no key `{key}`{}", nearest(.near))]
    MissingKey {
        /// the file
        path: PathBuf,
        /// the key that was wanted
        key: String,
        /// keys that resemble it, best first
        near: Vec<String>,
    },
    /// a stored tensor does not have the shape that the program declares; nothing was written
    #[error("{path}: `{key}` is {stored:?}, but `{name}` is declared {declared:?}")]
    LoadShape {
        /// the file
        path: PathBuf,
        /// the key in it
        key: String,
        /// the variable
        name: String,
        /// dimensions in the file
        stored: Vec<u64>,
        /// dimensions in the program
        declared: Vec<i64>,
    },
    /// a stored tensor does not have a dtype that the op or the cell can take; nothing was written
    #[error("{path}: `{key}` is {stored}, but {wanted}")]
    LoadDType {
        /// the file
        path: PathBuf,
        /// the key in it
        key: String,
        /// its element type
        stored: DType,
        /// what was wanted
        wanted: String,
    },
    /// a parameter and a master were both loaded, and disagree
    #[error("`{param}` and `{master}` were both loaded and differ by up to {largest:e}")]
    Conflict {
        /// the parameter
        param: String,
        /// its master
        master: String,
        /// the largest difference between the parameter and the narrowed master
        largest: f32,
    },
    /// a feed that does not fit the program
    #[error("feed `{name}`: {what}")]
    Feed {
        /// the variable
        name: String,
        /// what is wrong
        what: String,
    },
    /// a variable to fetch has no value after the run
    #[error("fetch `{name}`: no value after the run")]
    Fetch {
        /// the variable
        name: String,
    },
    /// an index (of a gather, an embedding, a class) that is out of range
    #[error("slot `{slot}`: index {index} is not below {limit}")]
    Index {
        /// the slot
        slot: String,
        /// the index
        index: i64,
        /// how many there are
        limit: usize,
    },
    /// a parameter is not its narrowed master where it should be
    #[error("`{param}` is not the narrowed `{master}` {when}: element {index} is {got}, and {want} by the master")]
    OutOfStep {
        /// the parameter
        param: String,
        /// its master
        master: String,
        /// at which point of the step
        when: String,
        /// the first element that differs
        index: usize,
        /// what it is
        got: f32,
        /// what it should be
        want: f32,
    },
    /// an observer stopped the run
    #[error("{what}")]
    Stopped {
        /// why
        what: String,
    },
    /// arithmetic that has no result (integer division by zero)
    #[error("{what}")]
    Arithmetic {
        /// what happened
        what: String,
    },
    /// something that the kernel cannot do, found by the kernel itself
    #[error("{what}")]
    Unsupported {
        /// what
        what: String,
    },
}

fn nearest(near: &[String]) -> String {
    match near {
        [] => String::new(),
        _ => format!("; nearest: {}", near.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// Why a tensor could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// the product of the dimensions, or the bytes, overflow
    #[error("shape {shape:?} has too many elements")]
    TooLarge {
        /// the shape
        shape: Vec<usize>,
    },
    /// more dimensions than a tensor may have
    #[error("a shape of {rank} dimensions, at most {} are possible", crate::ckpt::limits::MAX_RANK)]
    Rank {
        /// how many
        rank: usize,
    },
    /// element count and shape disagree
    #[error("shape {shape:?} wants {wanted} elements, {got} given")]
    Count {
        /// the shape
        shape: Vec<usize>,
        /// product of the dimensions
        wanted: usize,
        /// elements given
        got: usize,
    },
    /// bytes and shape disagree
    #[error("shape {shape:?} of {dtype} wants {wanted} bytes, {got} given")]
    Bytes {
        /// the shape
        shape: Vec<usize>,
        /// the element type
        dtype: DType,
        /// bytes wanted
        wanted: usize,
        /// bytes given
        got: usize,
    },
    /// tensors of this type cannot be held
    #[error("tensors of dtype {dtype} are not supported")]
    DType {
        /// the type
        dtype: DType,
    },
}

/// Why a run stopped, and where.
#[derive(Debug)]
pub struct InterpError(Box<(Place, Fault)>);

impl InterpError {
    /// An error at a place.
    pub fn new(place: Place, fault: Fault) -> Self {
        InterpError(Box::new((place, fault)))
    }

    /// The op; [`Place::Nowhere`] when the fault is not an op's (a feed, a fetch).
    pub fn place(&self) -> &Place {
        &self.0.0
    }

    /// What happened.
    pub fn fault(&self) -> &Fault {
        &self.0.1
    }

    /// The same error at `place`, unless it has a place already (an op of a sub-block).
    pub(super) fn at(mut self, place: impl FnOnce() -> Place) -> Self {
        if self.0.0 == Place::Nowhere {
            self.0.0 = place();
        }
        self
    }
}

impl std::fmt::Display for InterpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place() {
            Place::Nowhere => write!(f, "{}", self.fault()),
            place => write!(f, "{place}: {}", self.fault()),
        }
    }
}

impl std::error::Error for InterpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.fault())
    }
}

impl From<Fault> for InterpError {
    fn from(fault: Fault) -> Self {
        InterpError::new(Place::Nowhere, fault)
    }
}

impl From<TensorError> for InterpError {
    fn from(e: TensorError) -> Self {
        Fault::Tensor(e).into()
    }
}

impl From<CkptError> for InterpError {
    fn from(e: CkptError) -> Self {
        Fault::Ckpt(e).into()
    }
}
