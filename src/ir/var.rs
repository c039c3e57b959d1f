//! What does a declaration say? Name, kind, dtype, shape and flags, each of which may be absent.

use crate::ir::{BlockId, DType, OriginId};
use crate::names::Name;

/// What a variable holds (Paddle 2.6.2 `VarType.Type`, the part that is not an element type).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VarKind(pub i32);

impl VarKind {
    /// A dense tensor.
    pub const LOD_TENSOR: VarKind = VarKind(7);
    /// Sparse rows.
    pub const SELECTED_ROWS: VarKind = VarKind(8);
    /// The feed list.
    pub const FEED_MINIBATCH: VarKind = VarKind(9);
    /// The fetch list.
    pub const FETCH_LIST: VarKind = VarKind(10);
    /// Scopes of a control-flow op.
    pub const STEP_SCOPES: VarKind = VarKind(11);
    /// An array of tensors.
    pub const LOD_TENSOR_ARRAY: VarKind = VarKind(13);
    /// A reader.
    pub const READER: VarKind = VarKind(15);
    /// Anything else the framework keeps in a variable.
    pub const RAW: VarKind = VarKind(17);

    /// Whether a declaration of this kind has an element type and a shape.
    pub const fn has_tensor(self) -> bool {
        matches!(self, VarKind::LOD_TENSOR | VarKind::SELECTED_ROWS | VarKind::LOD_TENSOR_ARRAY)
    }

    /// Whether a declaration of this kind has a LoD level.
    pub const fn has_lod(self) -> bool {
        matches!(self, VarKind::LOD_TENSOR | VarKind::LOD_TENSOR_ARRAY)
    }
}

/// A flag of a declaration; absent differs from false.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum VarFlag {
    /// outlives a run
    Persistable = 0,
    /// a fed value is checked against the declaration
    NeedCheckFeed = 2,
    /// is a parameter
    IsParameter = 4,
    /// no gradient flows through it
    StopGradient = 6,
}

/// All flags of a declaration, two bits each: present, value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VarFlags(u8);

impl VarFlags {
    /// Every flag, in file order.
    pub const ALL: [VarFlag; 4] =
        [VarFlag::Persistable, VarFlag::NeedCheckFeed, VarFlag::IsParameter, VarFlag::StopGradient];

    /// The flag's value, `None` when it is absent.
    pub const fn get(self, flag: VarFlag) -> Option<bool> {
        let bits = self.0 >> flag as u8;
        if bits & 1 == 0 { None } else { Some(bits & 2 != 0) }
    }

    /// The same flags with this one set, or absent.
    #[must_use]
    pub const fn with(self, flag: VarFlag, value: Option<bool>) -> VarFlags {
        let bits = match value {
            None => 0,
            Some(false) => 1,
            Some(true) => 3,
        };
        VarFlags(self.0 & !(3 << flag as u8) | bits << flag as u8)
    }

    /// Whether the flag is present and true.
    pub const fn is(self, flag: VarFlag) -> bool {
        (self.0 >> flag as u8) & 2 != 0
    }
}

impl std::fmt::Debug for VarFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(VarFlags::ALL.iter().filter_map(|&g| self.get(g).map(|v| (g, v)))).finish()
    }
}

/// A half-open range of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// One declaration. Shape: see [`crate::ir::Program::shape`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VarData {
    /// the storage cell that it declares
    pub name: Name,
    /// the declaring block
    pub block: BlockId,
    /// where it comes from
    pub origin: OriginId,
    pub(crate) shape: Span,
    /// what the variable holds
    pub kind: VarKind,
    /// element type; meaningful when the kind has one
    pub dtype: DType,
    /// LoD level, `None` when the file does not say
    pub lod_level: Option<i32>,
    /// flags
    pub flags: VarFlags,
}

impl VarData {
    /// Whether the variable outlives a run.
    pub fn persistable(&self) -> bool {
        self.flags.is(VarFlag::Persistable)
    }

    /// Whether the declaration calls it a parameter.
    pub fn is_parameter(&self) -> bool {
        self.flags.is(VarFlag::IsParameter)
    }
}

/// A declaration to be made; owned, with its shape.
#[derive(Clone, PartialEq, Debug)]
pub struct VarDef {
    /// the storage cell
    pub name: Name,
    /// what the variable holds
    pub kind: VarKind,
    /// element type
    pub dtype: DType,
    /// dimensions, -1 when unknown
    pub shape: Vec<i64>,
    /// LoD level
    pub lod_level: Option<i32>,
    /// flags
    pub flags: VarFlags,
}

impl VarDef {
    /// A temporary: a dense tensor with the flags that Paddle 2.6.2 writes for one (`persistable` and
    /// `stop_gradient` present and false).
    pub fn tensor(name: Name, dtype: DType, shape: impl Into<Vec<i64>>) -> Self {
        VarDef {
            name,
            kind: VarKind::LOD_TENSOR,
            dtype,
            shape: shape.into(),
            lod_level: Some(0),
            flags: VarFlags::default().with(VarFlag::Persistable, Some(false)).with(VarFlag::StopGradient, Some(false)),
        }
    }

    /// A persistable dense tensor as Paddle 2.6.2 writes one: without a LoD level.
    pub fn persistable(name: Name, dtype: DType, shape: impl Into<Vec<i64>>) -> Self {
        VarDef { lod_level: None, ..VarDef::tensor(name, dtype, shape) }.with(VarFlag::Persistable, true)
    }

    /// The same with a flag set.
    #[must_use]
    pub fn with(mut self, flag: VarFlag, value: bool) -> Self {
        self.flags = self.flags.with(flag, Some(value));
        self
    }
}
