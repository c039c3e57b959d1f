//! How does the target framework run `load`, `amp_init` and `resync`? As its own ops.
//!
//! *Before*: a program in which these ops may stand anywhere. *After*: only ops that Paddle 2.6.2
//! registers and that PIR has a form for: one `load` an output, `cast` into the master, and for a narrowing in
//! place `assign` into a temporary and `cast` back (a cast must not read and write one variable). Casts into
//! masters say the dtype that their operand really has. *Preserves*: the values of all cells. *Cost*: one
//! symbolic sweep of both sections.
//!
//! What has no form there is an error, not a guess: a `resync` whose direction is decided at run time,
//! or that must stop on a conflict, or that believes the parameter if the two disagree (if they agree, the
//! master must stay). The caller decides those beforehand (the CLI compares the checkpoint's entries).

use super::{Pass, PassCx, PassError};
use crate::analysis::cells::Cells;
use crate::analysis::exec::{Exec, ExecOptions, Observer};
use crate::analysis::facts::Facts;
use crate::diag::Place;
use crate::ir::{At, Attr, AttrValue, BlockId, DType, Edit, EditSummary, NewOp, OpId, OpRef, Program, Section, VarDef};
use crate::names::{Name, SeededMap, sym};
use crate::ops::Effect;
use crate::passes::master_casts::cast;
use indexmap::IndexMap;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The pass.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lower {
    /// For each `file_path` of a load: the directory in which the target finds one file a variable,
    /// named by the variable. A load whose path is not listed keeps it, if the target can read it so.
    pub load_dirs: IndexMap<String, String>,
}

impl Pass for Lower {
    fn name(&self) -> &'static str {
        "lower"
    }

    fn options(&self) -> serde_json::Value {
        match self.load_dirs.is_empty() {
            true => serde_json::json!({}),
            false => serde_json::to_value(self).expect("plain options"),
        }
    }

    fn run(&self, program: &mut Program, cx: &mut PassCx<'_>) -> Result<EditSummary, PassError> {
        let facts = Facts::new(program, cx.ops, &cx.declared);
        let Facts { effects, .. } = &facts;
        let mut exec = Exec::new(&facts, ExecOptions::default());
        let mut seen = Seen::default();
        for section in Section::ALL {
            if section == Section::Main {
                exec.enter_step(&[]);
            }
            exec.run(section, &mut seen);
        }
        drop(exec);

        let todo: Vec<(OpId, Effect)> = Section::ALL
            .into_iter()
            .flat_map(|s| program.section_blocks(s))
            .flat_map(|b| program.ops(b))
            .filter(|op| matches!(effects.effect(*op), Effect::Load | Effect::AmpInit | Effect::Resync))
            .map(|op| (op.id, effects.effect(op)))
            .collect();
        let cells = facts.cells;
        let mut edit = Edit::new();
        for (&op, &dtype) in &seen.master_casts {
            let says = program.op(op).attr(sym::IN_DTYPE).and_then(AttrValue::as_int);
            if says != Some(i64::from(dtype.code())) {
                edit.set_attr(op, Attr::new(sym::IN_DTYPE, dtype), "the operand's dtype at this place");
            }
        }
        let mut cx = Cx {
            program,
            cells: &cells,
            dtypes: &seen.dtypes,
            edit: &mut edit,
            declared: SeededMap::default(),
            next: FxHashMap::default(),
            entries: SeededMap::default(),
        };
        for (id, effect) in todo {
            match effect {
                Effect::Load => self.load(&mut cx, id)?,
                Effect::AmpInit => cx.amp_init(id)?,
                _ => cx.resync(id)?,
            }
        }
        Ok(edit.commit(program, self.name()))
    }
}

/// Run-time dtypes before the ops to be lowered.
#[derive(Default)]
struct Seen {
    /// of an input cell, `None` when not known
    dtypes: SeededMap<(OpId, Name), Option<DType>>,
    /// of the operand of casts into masters, where known
    master_casts: IndexMap<OpId, DType>,
}

impl Observer for Seen {
    fn before(&mut self, exec: &mut Exec<'_>, op: OpRef<'_>) {
        match exec.effects.effect(op) {
            Effect::AmpInit | Effect::Resync => {
                for name in op.input_args() {
                    let v = exec.value(name);
                    let dtype = exec.values.known(v).exact();
                    // A loop body may be seen twice; what differs is not known.
                    let slot = self.dtypes.entry((op.id, name)).or_insert(dtype);
                    if *slot != dtype {
                        *slot = None;
                    }
                }
            }
            Effect::Cast if op.section() == Section::Startup => {
                if let (&[x], &[m]) = (op.input(sym::X), op.output(sym::OUT))
                    && exec.pairs.of(m).any(|i| exec.pairs.rows()[i].master == m)
                {
                    let v = exec.value(x);
                    if let Some(dtype) = exec.values.known(v).exact() {
                        self.master_casts.insert(op.id, dtype);
                    }
                }
            }
            _ => {}
        }
    }
}

struct Cx<'a> {
    program: &'a mut Program,
    cells: &'a Cells,
    dtypes: &'a SeededMap<(OpId, Name), Option<DType>>,
    edit: &'a mut Edit,
    /// temporaries that are declared, by block and cell
    declared: SeededMap<(BlockId, Name), Name>,
    /// by cell: the number that its next temporary gets, if that name is free
    next: FxHashMap<Name, u64>,
    /// by file of one variable: the entry that it holds
    entries: SeededMap<String, String>,
}

impl Cx<'_> {
    fn no_form(&self, op: OpId, what: impl Into<String>) -> PassError {
        PassError::NoForm { pass: "lower", what: what.into(), place: Place::op(self.program, op).to_string() }
    }

    fn dtype(&self, op: OpId, name: Name) -> Option<DType> {
        self.dtypes.get(&(op, name)).copied().flatten()
    }

    fn low(&self, op: OpId) -> Result<DType, PassError> {
        match self.program.op(op).attr(sym::DTYPE) {
            Some(&AttrValue::Int(code)) => Ok(DType::from_code(code)),
            _ => Err(self.no_form(op, "the op has no `dtype`")),
        }
    }

    /// A name that no variable has yet. One cell may be narrowed in many blocks, so that a search that
    /// starts anew each time would be long.
    fn fresh(&mut self, cell: Name) -> Name {
        let base = format!("{}.wide", self.program.name(cell));
        let next = self.next.entry(cell).or_insert(0);
        loop {
            let text = if *next == 0 { base.clone() } else { format!("{base}.{next}") };
            *next += 1;
            if self.program.names().lookup(&text).is_none() {
                return self.program.intern(&text);
            }
        }
    }

    /// Casts a cell in place, before the op `at`; nothing when it is known to have the dtype.
    fn cast_in_place(&mut self, at: OpId, cell: Name, to: DType) {
        if self.dtype(at, cell) == Some(to) {
            return;
        }
        let block = self.program.op(at).block();
        let has = self.dtype(at, cell).unwrap_or(DType::F32);
        let tmp = match self.declared.get(&(block, cell)) {
            Some(&tmp) => tmp,
            None => {
                let tmp = self.fresh(cell);
                let shape = self.cells.declaration(cell).map(|v| self.program.shape(v).to_vec()).unwrap_or_default();
                let def = VarDef::tensor(tmp, has, shape);
                let origin = self.program.op(at).origin();
                self.edit.declare(block, def, origin, "holds the value while it is cast in place");
                self.declared.insert((block, cell), tmp);
                tmp
            }
        };
        let assign = NewOp::new(sym::ASSIGN).input(sym::X, [cell]).output(sym::OUT, [tmp]).attr(sym::OP_ROLE, 0);
        self.edit.insert(At::Before(at), assign, "cast in place: the value aside");
        self.edit.insert(At::Before(at), cast(tmp, cell, has, to), "cast in place: and back");
    }

    fn widen(&mut self, at: OpId, from: Name, to: Name) {
        let dtype = self.dtype(at, from).unwrap_or(DType::F32);
        self.edit.insert(At::Before(at), cast(from, to, dtype, DType::F32), "the master from the parameter");
    }

    fn amp_init(&mut self, id: OpId) -> Result<(), PassError> {
        let low = self.low(id)?;
        let op = self.program.op(id);
        let (xs, outs) = (op.input(sym::X).to_vec(), op.output(sym::OUT).to_vec());
        if xs != outs {
            return Err(self.no_form(id, "the op does not narrow in place"));
        }
        let rewrites: Vec<_> =
            op.input(sym::MASTER_OF).iter().copied().zip(op.output(sym::MASTER_PARAM_OUT).iter().copied()).collect();
        for x in xs {
            self.cast_in_place(id, x, low);
        }
        for (p, m) in rewrites {
            self.edit.insert(At::Before(id), cast(p, m, low, DType::F32), "the master from the narrowed parameter");
        }
        self.edit.remove(id, "lowered");
        Ok(())
    }

    fn resync(&mut self, id: OpId) -> Result<(), PassError> {
        let low = self.low(id)?;
        let op = self.program.op(id);
        let (&[p], &[m]) = (op.input(sym::PARAM), op.input(sym::MASTER_PARAM)) else {
            return Err(self.no_form(id, "the op does not name one pair"));
        };
        if op.output(sym::PARAM_OUT) != [p] || op.output(sym::MASTER_PARAM_OUT) != [m] {
            return Err(self.no_form(id, "the op does not write the pair that it reads"));
        }
        let text = |name, default| op.attr(name).and_then(AttrValue::as_str).unwrap_or(default);
        match (text(sym::DIRECTION, "auto"), text(sym::ON_CONFLICT, "master")) {
            ("param", _) => {
                self.widen(id, p, m);
                self.cast_in_place(id, p, low);
            }
            ("master", _) | ("both", "master") => {
                // Also a master that was loaded from 16 bits is float32 afterwards.
                self.cast_in_place(id, m, DType::F32);
                self.edit.insert(At::Before(id), cast(m, p, DType::F32, low), "the parameter from its master");
            }
            ("both", "param") => {
                return Err(self.no_form(
                    id,
                    "whether parameter or master is believed depends on the loaded values; \
                     compare them and give the direction `param` or `master`",
                ));
            }
            ("both", _) => {
                return Err(self.no_form(
                    id,
                    "a conflict between a loaded parameter and its master cannot stop the target program; \
                     choose `master` or `param`",
                ));
            }
            (other, _) => {
                return Err(self.no_form(id, format!("direction `{other}` is decided at run time")));
            }
        }
        self.edit.remove(id, "lowered");
        Ok(())
    }
}

impl Lower {
    /// One `load` an output.
    fn load(&self, cx: &mut Cx<'_>, id: OpId) -> Result<(), PassError> {
        let op = cx.program.op(id);
        let path = op.attr(sym::FILE_PATH).and_then(AttrValue::as_str).unwrap_or("").to_owned();
        let outs: Vec<Name> = op.output(sym::OUT).to_vec();
        let Some(dir) = self.load_dirs.get(&path) else {
            let plain = op.attr(sym::KEYS).is_none() && (op.kind() != sym::LOAD || outs.len() == 1);
            return match plain {
                true => Ok(()),
                false => Err(cx.no_form(id, format!("the target cannot read {path} as it is; convert it first"))),
            };
        };
        let stored = op.attr(sym::STORED_DTYPES).and_then(AttrValue::to_ints).unwrap_or_default();
        let keys = op.attr(sym::KEYS).and_then(AttrValue::as_strs).unwrap_or(&[]).to_vec();
        let as_fp16 = op.attr(sym::LOAD_AS_FP16).cloned();
        // A cell that is named twice keeps the last entry.
        let last: FxHashMap<Name, usize> = outs.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        for (i, out) in outs.into_iter().enumerate().filter(|(i, n)| last[n] == *i) {
            let name = cx.program.name(out);
            if name.contains(['\\', '\0']) || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
                return Err(cx.no_form(id, format!("`{name}` cannot be a file name")));
            }
            let file = format!("{}/{name}", dir.trim_end_matches('/'));
            let key = keys.get(i).map_or(name, |k| k).to_owned();
            if cx.entries.entry(file.clone()).or_insert_with(|| key.clone()) != &key {
                return Err(
                    cx.no_form(id, format!("two entries of {path} are loaded into `{name}`, which has one file"))
                );
            }
            let mut load =
                NewOp::new(sym::LOAD).output(sym::OUT, [out]).attr(sym::FILE_PATH, file.as_str()).attr(sym::OP_ROLE, 0);
            // Paddle ignores attributes that it does not know; with this one the result can be proved.
            if let Some(&dtype) = stored.get(i) {
                load = load.attr(sym::STORED_DTYPES, AttrValue::Ints([dtype as i32].into()));
            }
            if let Some(as_fp16) = &as_fp16 {
                load = load.attr(sym::LOAD_AS_FP16, as_fp16.clone());
            }
            cx.edit.insert(At::Before(id), load, "one file a variable");
        }
        cx.edit.remove(id, "lowered");
        Ok(())
    }
}
