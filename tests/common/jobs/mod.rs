//! How are random training jobs made? Startup and main as a small tree of steps, from a seed; they shrink.
//!
//! A job is a list of [`Step`]s a section, over a fixed set of cells. Any sublist is a job again, so
//! [`shrink`] drops steps as long as the fault stays. [`Job::program`] writes the job as a program;
//! files of a run are held in memory ([`Store`]). What must hold of every job is in [`laws`].
//!
//! Used by `tests/props.rs`; another target includes it with `#[path]`. One file, because the weights of the
//! steps only make sense side by side.

pub mod laws;
mod make;
mod shrink;
mod write;

use make::number;

pub use shrink::shrink;
pub use write::Store;

use mastercast::interp::{Data, Tensor};
use mastercast::ir::{DType, Program};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True this many times in a hundred.
    pub fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A storage cell of a job.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    pub startup: DType,
    pub main: DType,
    pub persistable: bool,
    /// twice the rows of the others: what a concatenation writes
    pub tall: bool,
}

/// A parameter, its master, and how main updates it.
#[derive(Clone, Debug)]
pub struct Pair {
    /// indices of cells
    pub param: usize,
    pub master: usize,
    pub low: DType,
}

/// An index into [`Job::cells`].
pub type C = usize;

/// One step of a section.
#[derive(Clone, Debug)]
pub enum Step {
    Init {
        out: C,
        dtype: DType,
        random: bool,
        value: f32,
    },
    Cast {
        x: C,
        out: C,
        to: DType,
    },
    Copy {
        x: C,
        out: C,
    },
    /// transpose2, scale, reshape2
    Pure {
        kind: u8,
        x: C,
        out: C,
        by: f32,
    },
    Concat {
        x: C,
        y: C,
        out: C,
    },
    Slice {
        x: C,
        out: C,
        second: bool,
    },
    /// from a file: cells and the cells whose keys they take
    Load {
        file: u8,
        outs: Vec<(C, C)>,
        annotate: bool,
        pinned: bool,
        as_fp16: bool,
    },
    /// two cells from a file of unnamed tensors
    LoadCombine {
        outs: [C; 2],
    },
    Save {
        file: u8,
        cells: Vec<C>,
    },
    AmpInit {
        cells: Vec<C>,
        rewrite: Vec<usize>,
        dtype: DType,
    },
    Resync {
        pair: usize,
        direction: &'static str,
        policy: &'static str,
    },
    /// tanh: not a pure function to the analysis
    Math {
        x: C,
        out: C,
    },
    /// an op of unknown kind, and which of what it names it really writes
    Unknown {
        ins: Vec<C>,
        outs: Vec<C>,
        writes: u32,
        value: f32,
    },
    /// sgd, momentum, adam, adamw
    Update {
        kind: u8,
        pair: usize,
        master: bool,
        skip: Option<u8>,
    },
    /// a conditional block, or the block of an unknown op; `twice`: a second op runs the same block
    Cond {
        flag: u8,
        unknown: bool,
        locals: Vec<C>,
        redeclare: bool,
        twice: Option<u8>,
        body: Vec<Step>,
    },
    Loop {
        times: u8,
        locals: Vec<C>,
        body: Vec<Step>,
    },
}

/// A job: the whole of it follows from these fields.
#[derive(Clone, Debug)]
pub struct Job {
    pub seed: u64,
    /// whether anything may stand anywhere in it
    pub wild: bool,
    pub cells: Vec<Cell>,
    pub pairs: Vec<Pair>,
    pub startup: Vec<Step>,
    pub main: Vec<Step>,
    /// by file and cell: what is stored under the cell's name
    pub stored: Vec<Vec<DType>>,
    /// startup's flags; main's become true at this step
    pub flags: [bool; FLAGS],
    pub limits: [u8; FLAGS],
    /// control ops list what their blocks touch
    pub lists: bool,
}

pub const FLAGS: usize = 3;
/// Files that a job loads and saves; there is one more, with values that nothing else has.
pub const FILES: usize = 3;

/// What kind of job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// a usual job with anything put anywhere
    Wild,
    /// one pair, one file, a temporary, and many steps on these few: loads and saves in branches and loops
    Dense,
    /// straight-line startup of initialisers, casts, loads and `amp_init`
    Plain,
}

impl Job {
    /// Number of steps, those of bodies included.
    pub fn size(&self) -> usize {
        fn count(steps: &[Step]) -> usize {
            steps.iter().map(|s| 1 + s.body().map_or(0, |b| count(b))).sum()
        }
        count(&self.startup) + count(&self.main)
    }

    /// Whether any step of either section is one.
    pub fn any(&self, f: impl Fn(&Step) -> bool + Copy) -> bool {
        any(&self.startup, f) || any(&self.main, f)
    }

    /// The value stored in a file under the name of a cell.
    pub fn entry(&self, file: usize, key: C) -> Tensor {
        let mut rng = Rng::new(self.seed ^ ((file as u64) << 32) ^ ((key as u64) << 40) ^ 0x5EED);
        let n = if self.cells[key].tall { 8 } else { 4 };
        let values: Vec<f32> = (0..n).map(|_| number(&mut rng)).collect();
        tensor(self.cells[key].tall, values).cast(self.stored[file][key], Default::default()).unwrap()
    }

    /// The job as a program.
    pub fn program(&self) -> Program {
        write::program(self)
    }
}

/// Whether any of the steps, or of their bodies', is one.
pub fn any(steps: &[Step], f: impl Fn(&Step) -> bool + Copy) -> bool {
    steps.iter().any(|s| f(s) || s.body().is_some_and(|b| any(b, f)))
}

impl Step {
    pub fn body(&self) -> Option<&Vec<Step>> {
        match self {
            Step::Cond { body, .. } | Step::Loop { body, .. } => Some(body),
            _ => None,
        }
    }

    /// Whether it has a block that declares variables of its own.
    pub fn hides(&self) -> bool {
        matches!(self, Step::Cond { locals, .. } | Step::Loop { locals, .. } if !locals.is_empty())
    }

    fn body_mut(&mut self) -> Option<&mut Vec<Step>> {
        match self {
            Step::Cond { body, .. } | Step::Loop { body, .. } => Some(body),
            _ => None,
        }
    }
}

/// The path of a file.
pub fn path(file: u8) -> String {
    format!("ckpt_{file}")
}

fn tensor(tall: bool, values: Vec<f32>) -> Tensor {
    Tensor::new(&[if tall { 4 } else { 2 }, 2], Data::F32(values)).unwrap()
}
