//! What part of a training step does an op belong to? Paddle's `op_role` bits.

use std::fmt;

/// The value of an op's `op_role` attribute (Paddle 2.6.2 `OpRole`: bits, of which several may be set).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role(pub i32);

impl Role {
    /// Forward computation.
    pub const FORWARD: Role = Role(0);
    /// Gradient computation.
    pub const BACKWARD: Role = Role(1);
    /// Parameter update and what belongs to it (unscale, clip, regularisation).
    pub const OPTIMIZE: Role = Role(2);
    /// Remote call.
    pub const RPC: Role = Role(4);
    /// Distribution of variables.
    pub const DIST: Role = Role(8);
    /// Learning-rate schedule.
    pub const LR_SCHED: Role = Role(16);
    /// Computes the loss, or its gradient when combined with backward.
    pub const LOSS: Role = Role(256);

    /// Whether all bits of `bits` are set.
    pub const fn has(self, bits: Role) -> bool {
        self.0 & bits.0 == bits.0
    }
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Role({})", self.0)
    }
}
