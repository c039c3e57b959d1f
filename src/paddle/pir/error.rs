//! Why can a PIR file not be read, or a program not be written as one?

/// A failure, and where: a JSON path into the file, or an op of the program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{kind}", if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) })]
pub struct PirError {
    /// as `program.regions[0].blocks[0].ops[3].I[1]`
    pub path: String,
    /// what is wrong there
    pub kind: PirErrorKind,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PirErrorKind {
    /// not JSON
    #[error("not JSON at byte {offset}: {what}")]
    Json {
        /// place in the file
        offset: usize,
        /// what was expected
        what: &'static str,
    },
    /// longer than [`super::MAX_FILE`]
    #[error("the file is too large")]
    TooLarge,
    /// nested deeper than [`super::MAX_DEPTH`], or blocks deeper than [`super::MAX_BLOCKS`]
    #[error("nested too deep")]
    TooDeep,
    /// JSON, but no PIR program
    #[error("not a PIR program: {0}")]
    NotPir(&'static str),
    /// a version that is not [`super::VERSION`]
    #[error("PIR version {0} is not known (version 4 is, of Paddle 3.3)")]
    Version(String),
    /// a value of another kind, or none
    #[error("expected {0}")]
    Expected(&'static str),
    /// a key twice in one object
    #[error("the key `{0}` is given twice")]
    DuplicateKey(String),
    /// two results, or block arguments, with one id
    #[error("value id {0} is defined twice")]
    DuplicateId(i64),
    /// an operand that nothing defined before
    #[error("value id {0} is used before it is defined")]
    UnknownId(i64),
    /// a cell whose name is one that this crate gives to values
    #[error("`{0}` cannot be the name of a cell")]
    BadName(String),
    /// more than the IR can hold
    #[error("too many {0}")]
    TooMany(&'static str),
    /// the section of the program is not empty
    #[error("the section already holds a program")]
    Occupied,
    /// the op has no PIR form
    #[error("{0}")]
    NoForm(String),
}

impl PirError {
    pub(super) fn new(kind: PirErrorKind) -> Self {
        PirError { path: String::new(), kind }
    }

    /// The same, seen from further out.
    pub(super) fn within(mut self, outer: &str) -> Self {
        self.path.insert_str(0, outer);
        self
    }
}
