//! What can be wrong with a ProgramDesc file? A typed error with its byte and its place in the message.

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoErrorKind {
    /// A field, or a length that it states, runs past the end of its message.
    #[error("the field runs past the end of its message")]
    Cut,
    /// A varint of more than ten bytes, or of more than 64 bits.
    #[error("a varint is longer than 64 bits")]
    VarintTooLong,
    /// A tag with field number zero, or one above 2^29 - 1.
    #[error("a field number is zero or too large")]
    FieldNumber,
    /// Wire type 6 or 7, which protobuf does not define.
    #[error("wire type {0} does not exist")]
    WireType(u8),
    /// An end of a group that was not begun, or was begun with another number.
    #[error("a group ends that was not begun")]
    EndGroup,
    /// Groups nested deeper than [`MAX_GROUP_DEPTH`](super::MAX_GROUP_DEPTH).
    #[error("groups are nested deeper than {} levels", super::MAX_GROUP_DEPTH)]
    GroupDepth,
    /// A field that the schema requires is absent.
    #[error("the required field `{0}` is missing")]
    Missing(&'static str),
    /// A name is not UTF-8.
    #[error("the {0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The file is longer than [`MAX_FILE`](super::MAX_FILE).
    #[error("the file is longer than 2 GiB, the limit of protobuf")]
    TooLarge,
    /// More than [`MAX_SLOTS`](super::MAX_SLOTS) input or output slots on one op.
    #[error("more than {} slots in one direction", super::MAX_SLOTS)]
    TooManySlots,
    /// The section that would be filled is not empty.
    #[error("the section already has blocks")]
    Occupied,
}

/// A step down the message, outermost first when displayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// an element of a repeated field
    At(&'static str, usize),
    /// a singular field
    In(&'static str),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inner {
    kind: ProtoErrorKind,
    offset: usize,
    /// innermost first
    steps: Vec<Step>,
}

/// Why bytes are not a ProgramDesc: the fault, its byte, and the message that holds it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct ProtoError(Box<Inner>);

impl ProtoError {
    pub(crate) fn new(kind: ProtoErrorKind, offset: usize) -> Self {
        ProtoError(Box::new(Inner { kind, offset, steps: Vec::new() }))
    }

    /// The same error, one level further out.
    #[cold]
    pub(crate) fn within(mut self, step: Step) -> Self {
        self.0.steps.push(step);
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> ProtoErrorKind {
        self.0.kind
    }

    /// The byte at which it was noticed, counted from the start of the file.
    pub fn offset(&self) -> usize {
        self.0.offset
    }

    /// The message that is at fault, such as `blocks[0].ops[398].attrs[3]`; empty for the file as a whole.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for step in self.0.steps.iter().rev() {
            if !path.is_empty() {
                path.push('.');
            }
            match step {
                Step::At(field, index) => path.push_str(&format!("{field}[{index}]")),
                Step::In(field) => path.push_str(field),
            }
        }
        path
    }

    fn text(&self) -> String {
        let (path, Inner { kind, offset, .. }) = (self.path(), &*self.0);
        if path.is_empty() { format!("byte {offset}: {kind}") } else { format!("{path} (byte {offset}): {kind}") }
    }
}
