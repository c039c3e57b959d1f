//! Which fields has a ProgramDesc? The numbers of framework.proto in Paddle 2.6.2 (proto2, nothing packed).

/// `ProgramDesc`
pub(crate) mod program {
    pub const BLOCKS: u32 = 1;
    pub const VERSION: u32 = 4;
    pub const OP_VERSION_MAP: u32 = 5;
}

/// `Version`
pub(crate) mod version {
    pub const VERSION: u32 = 1;
}

/// `BlockDesc`
pub(crate) mod block {
    pub const IDX: u32 = 1;
    pub const PARENT_IDX: u32 = 2;
    pub const VARS: u32 = 3;
    pub const OPS: u32 = 4;
    pub const FORWARD_BLOCK_IDX: u32 = 5;
}

/// `OpDesc`
pub(crate) mod op {
    pub const INPUTS: u32 = 1;
    pub const OUTPUTS: u32 = 2;
    pub const TYPE: u32 = 3;
    pub const ATTRS: u32 = 4;
    pub const IS_TARGET: u32 = 5;
}

/// `OpDesc.Var`: a slot
pub(crate) mod slot {
    pub const PARAMETER: u32 = 1;
    pub const ARGUMENTS: u32 = 2;
}

/// `OpDesc.Attr`
pub(crate) mod attr {
    pub const NAME: u32 = 1;
    pub const TYPE: u32 = 2;
    pub const I: u32 = 3;
    pub const F: u32 = 4;
    pub const S: u32 = 5;
    pub const INTS: u32 = 6;
    pub const FLOATS: u32 = 7;
    pub const STRINGS: u32 = 8;
    pub const B: u32 = 10;
    pub const BOOLS: u32 = 11;
    pub const BLOCK_IDX: u32 = 12;
    pub const L: u32 = 13;
    pub const BLOCKS_IDX: u32 = 14;
    pub const LONGS: u32 = 15;
    pub const FLOAT64S: u32 = 16;
    pub const VAR_NAME: u32 = 17;
    pub const VARS_NAME: u32 = 18;
    pub const FLOAT64: u32 = 19;
    pub const SCALAR: u32 = 20;
    pub const SCALARS: u32 = 21;
}

/// `AttrType`
pub(crate) mod attr_type {
    pub const INT: i32 = 0;
    pub const FLOAT: i32 = 1;
    pub const STRING: i32 = 2;
    pub const INTS: i32 = 3;
    pub const FLOATS: i32 = 4;
    pub const STRINGS: i32 = 5;
    pub const BOOLEAN: i32 = 6;
    pub const BOOLEANS: i32 = 7;
    pub const BLOCK: i32 = 8;
    pub const LONG: i32 = 9;
    pub const BLOCKS: i32 = 10;
    pub const LONGS: i32 = 11;
    pub const FLOAT64S: i32 = 12;
    pub const VAR: i32 = 13;
    pub const VARS: i32 = 14;
    pub const FLOAT64: i32 = 15;
    pub const SCALAR: i32 = 16;
    pub const SCALARS: i32 = 17;
}

/// `Scalar`
pub(crate) mod scalar {
    pub const TYPE: u32 = 1;
    pub const B: u32 = 2;
    pub const I: u32 = 3;
    pub const R: u32 = 4;
    pub const C: u32 = 5;
    /// `Scalar.Type`
    pub const BOOLEAN: i32 = 1;
    pub const LONG: i32 = 2;
    pub const FLOAT64: i32 = 3;
    pub const COMPLEX128: i32 = 4;
}

/// `Complex`
pub(crate) mod complex {
    pub const R: u32 = 1;
    pub const I: u32 = 2;
}

/// `VarDesc`; its attributes (field 7) are kept as raw bytes
pub(crate) mod var {
    pub const NAME: u32 = 1;
    pub const TYPE: u32 = 2;
    pub const PERSISTABLE: u32 = 3;
    pub const NEED_CHECK_FEED: u32 = 4;
    pub const IS_PARAMETER: u32 = 5;
    pub const STOP_GRADIENT: u32 = 6;
}

/// `VarType`; readers, tuples, vocabularies and sparse tensors (5 and above) are kept as raw bytes
pub(crate) mod var_type {
    pub const TYPE: u32 = 1;
    pub const SELECTED_ROWS: u32 = 2;
    pub const LOD_TENSOR: u32 = 3;
    pub const TENSOR_ARRAY: u32 = 4;
}

/// `VarType.LoDTensorDesc` and `VarType.LoDTensorArrayDesc`
pub(crate) mod lod_tensor {
    pub const TENSOR: u32 = 1;
    pub const LOD_LEVEL: u32 = 2;
}

/// `VarType.TensorDesc`
pub(crate) mod tensor {
    pub const DATA_TYPE: u32 = 1;
    pub const DIMS: u32 = 2;
}
