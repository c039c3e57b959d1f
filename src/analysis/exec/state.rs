//! What does a cell hold, in four bytes? A term, or the promise of one: most cells are temporaries of which
//! nothing is known but the dtype.

use crate::analysis::values::{Known, ValueId};
use crate::ir::DType;

/// A term, or one that need not be made until it is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u32);

/// Before anything wrote the cell.
pub(super) const UNSET: State = State(u32::MAX);
/// From here on: an opaque term, made on demand; the dtype's code is added.
const OPAQUE: u32 = u32::MAX - 0xff;
const OPAQUE_UP_TO_F32: State = State(OPAQUE + 0x80);
const OPAQUE_UNKNOWN: State = State(OPAQUE + 0x81);
/// What an earlier step of main left in the cell.
pub(super) const STEP: State = State(OPAQUE + 0x82);

impl State {
    pub(super) fn of(v: ValueId) -> State {
        debug_assert!(v.0 < OPAQUE);
        State(v.0)
    }

    pub(super) fn opaque_of(known: Known) -> Option<State> {
        match known {
            Known::Is(d) => u32::try_from(d.code()).ok().filter(|&c| c < 0x80).map(|c| State(OPAQUE + c)),
            Known::UpToF32 => Some(OPAQUE_UP_TO_F32),
            Known::Unknown => Some(OPAQUE_UNKNOWN),
        }
    }

    #[inline]
    pub(super) fn value(self) -> Option<ValueId> {
        (self.0 < OPAQUE).then_some(ValueId(self.0))
    }

    pub(super) fn opaque(self) -> Option<Known> {
        match self {
            UNSET | STEP => None,
            OPAQUE_UP_TO_F32 => Some(Known::UpToF32),
            OPAQUE_UNKNOWN => Some(Known::Unknown),
            State(s) => s.checked_sub(OPAQUE).map(|code| Known::Is(DType::from_code(code as i32))),
        }
    }
}
