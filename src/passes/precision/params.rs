//! Which parameters are declared in 16 bits, and why do the others stay float32?
//!
//! At O2 every float32 parameter is narrowed unless an op that must compute in float32 whatever the lists
//! say (no kernel, a learning rate, outside the guard) reads it, or a slot that stays float32 does. One
//! decision a parameter, also when several ops share it. Ops on the black list do not count
//! (PaddlePaddle 2.6.2: `set_param_dtype`).

use super::decide::{Lookup, Reason};
use super::{Level, Precision};
use crate::entity::EntityId;
use crate::ir::{DType, OpId, Section, VarId};
use crate::names::Name;

/// Why a parameter stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// it is narrowed
    No,
    /// the level narrows no parameter
    Level,
    /// it is not float32
    NotFloat32,
    /// this op, which must compute in float32, reads it
    Op(OpId, Reason),
    /// a slot of this op reads it that stays float32
    Slot(OpId),
}

/// What the parameters of main become.
#[derive(Clone, Debug)]
pub struct Params {
    /// each declaration that is a parameter, with its name, in order of declaration
    pub all: Vec<(VarId, Name, Kept)>,
    /// by name: an op asks that it stay float32 (also of names that are no parameters)
    pub(super) must_stay: Vec<bool>,
}

impl Params {
    pub(super) fn new(look: &mut Lookup<'_>, options: &Precision) -> Params {
        let program = look.program;
        let n = program.names().len();
        let mut must_stay = Vec::new();
        let mut why: Vec<Option<Kept>> = Vec::new();
        if options.level == Level::O2 {
            (must_stay, why) = (vec![false; n], vec![None; n]);
            for block in program.section_blocks(Section::Main) {
                for op in program.ops(block) {
                    let facts = look.kinds.get(op.kind());
                    if facts.black {
                        continue;
                    }
                    if let Some((reason, _)) = look.forced(op) {
                        for name in op.input_args() {
                            must_stay[name.index()] = true;
                            why[name.index()].get_or_insert(Kept::Op(op.id, reason));
                        }
                        continue;
                    }
                    for slot in op.inputs().filter(|s| look.kinds.keeps_input(facts, s.name)) {
                        for name in slot.args {
                            must_stay[name.index()] = true;
                            why[name.index()].get_or_insert(Kept::Slot(op.id));
                        }
                    }
                }
            }
        }
        let vars = program.section_blocks(Section::Main).flat_map(|b| &program.block(b).vars);
        let all = vars
            .filter(|&&v| program.var(v).is_parameter())
            .map(|&v| {
                let name = program.var(v).name;
                let kept = match why.get(name.index()) {
                    None => Kept::Level,
                    Some(Some(kept)) => *kept,
                    Some(None) if program.var(v).dtype == DType::F32 => Kept::No,
                    Some(None) if program.var(v).dtype == options.dtype.dtype() => Kept::No,
                    Some(None) => Kept::NotFloat32,
                };
                (v, name, kept)
            })
            .collect();
        Params { all, must_stay }
    }

    /// The parameters that are declared in 16 bits, in order of declaration: what `amp_init` must narrow.
    pub fn low(&self) -> impl Iterator<Item = Name> + '_ {
        self.all.iter().filter(|(_, _, kept)| *kept == Kept::No).map(|&(_, name, _)| name)
    }
}
