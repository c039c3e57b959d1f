//! How is a program written as text? One statement a line, in the order of the IR; see the grammar in `text`.

use super::lexer::{write_name, write_quoted};
use super::number::{write_f32, write_f64, write_hex};
use crate::ir::{
    Attr, AttrValue, BlockData, BlockId, DType, Entity, Extra, OpId, OpRef, Program, Scalar, Section, Slot, VarData,
    VarFlag, VarId, VarKind,
};
use crate::names::{Name, Symbol, sym};
use std::fmt::Write;

/// Writes a whole program. A section that holds nothing at all is left out.
pub fn print(program: &Program) -> String {
    let mut p = Printer::new(program);
    p.program();
    p.out
}

/// [`print()`] without the table of op versions and without attributes that frameworks write on every op and
/// that change nothing here (`op_role`, `use_mkldnn` …): for reading. It parses, to a program that lacks them.
pub fn print_brief(program: &Program) -> String {
    let mut p = Printer::new(program);
    p.brief = true;
    p.program();
    p.out
}

/// Attributes that [`print_brief`] leaves out.
const NOISE: [&str; 14] = [
    "op_role",
    "op_role_var",
    "op_namescope",
    "op_device",
    "op_callstack",
    "with_quant_attr",
    "use_mkldnn",
    "use_cudnn",
    "use_quantizer",
    "mkldnn_data_type",
    "Scale_x",
    "Scale_y",
    "Scale_out",
    "force_cpu",
];

/// Writes one section, which [`super::parse`] takes as it is.
pub fn print_section(program: &Program, section: Section) -> String {
    let mut p = Printer::new(program);
    p.section(section, 0);
    p.out
}

/// Writes one op on a line of its own, without the line end.
pub fn print_op(program: &Program, op: OpId) -> String {
    let mut p = Printer::new(program);
    p.op(program.op(op));
    p.out
}

/// Writes one declaration on a line of its own, without the line end.
pub fn print_var(program: &Program, var: VarId) -> String {
    let mut p = Printer::new(program);
    p.var(var);
    p.out
}

/// The word for a kind of variable, `None` when it is written by number.
pub(crate) fn kind_word(kind: VarKind) -> Option<&'static str> {
    KIND_WORDS.iter().find(|(k, _)| *k == kind).map(|(_, w)| *w)
}

/// The kind of a word.
pub(crate) fn kind_of_word(word: &str) -> Option<VarKind> {
    KIND_WORDS.iter().find(|(_, w)| *w == word).map(|(k, _)| *k)
}

/// Words for the kinds of variables.
const KIND_WORDS: &[(VarKind, &str)] = &[
    (VarKind::LOD_TENSOR, "lod_tensor"),
    (VarKind::SELECTED_ROWS, "selected_rows"),
    (VarKind::FEED_MINIBATCH, "feed_minibatch"),
    (VarKind::FETCH_LIST, "fetch_list"),
    (VarKind::STEP_SCOPES, "step_scopes"),
    (VarKind::LOD_TENSOR_ARRAY, "lod_tensor_array"),
    (VarKind::READER, "reader"),
    (VarKind::RAW, "raw"),
];

/// Words for the flags, and the value that goes without saying.
pub(super) const FLAG_WORDS: [(VarFlag, &str, Option<bool>); 4] = [
    (VarFlag::Persistable, "persistable", Some(false)),
    (VarFlag::NeedCheckFeed, "need_check_feed", None),
    (VarFlag::IsParameter, "is_parameter", None),
    (VarFlag::StopGradient, "stop_gradient", Some(false)),
];

/// The element type of a variable without a type, as the importers fill it in.
pub(super) const NO_DTYPE: DType = DType::Other(-1);

/// The LoD level that goes without saying: what Paddle 2.6.2 writes for such a variable.
pub(super) fn plain_lod(kind: VarKind, persistable: bool) -> Option<i32> {
    (kind.has_lod() && !persistable).then_some(0)
}

struct Printer<'p> {
    program: &'p Program,
    out: String,
    brief: bool,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program) -> Self {
        Printer { program, out: String::new(), brief: false }
    }

    fn indent(&mut self, level: usize) {
        for _ in 0..level {
            self.out.push_str("  ");
        }
    }

    fn name(&mut self, name: Name) {
        write_name(&mut self.out, self.program.name(name));
    }

    fn sym(&mut self, symbol: Symbol) {
        write_name(&mut self.out, self.program.sym(symbol));
    }

    fn hex(&mut self, bytes: &[u8]) {
        self.out.push_str("x\"");
        write_hex(&mut self.out, bytes);
        self.out.push('"');
    }

    /// ` word x"…"` or a line `word x"…"` for a side table row.
    fn extra(&mut self, entity: Entity, prefix: &str, line: Option<usize>) {
        let program = self.program;
        let Some(Extra { unknown, verbatim }) = program.extra(entity) else { return };
        let unknown = (!unknown.is_empty()).then_some(unknown);
        for (word, bytes) in [("unknown", unknown), ("verbatim", verbatim.as_ref())] {
            let Some(bytes) = bytes else { continue };
            match line {
                Some(level) => self.indent(level),
                None => self.out.push(' '),
            }
            self.out.push_str(prefix);
            self.out.push_str(word);
            self.out.push(' ');
            self.hex(bytes);
            if line.is_some() {
                self.out.push('\n');
            }
        }
    }

    fn program(&mut self) {
        self.out.push_str("program {\n");
        for section in Section::ALL {
            if !self.program.is_blank(section) {
                self.section(section, 1);
            }
        }
        self.out.push_str("}\n");
    }

    fn section(&mut self, section: Section, level: usize) {
        let program = self.program;
        let s = program.section(section);
        self.indent(level);
        self.out.push_str(section.as_str());
        match s.blocks.first() {
            None => self.out.push_str(" blockless"),
            Some(&b) => {
                let BlockData { parent, forward, .. } = *program.block(b);
                if parent != -1 {
                    let _ = write!(self.out, " in {parent}");
                }
                self.forward(forward);
            }
        }
        self.out.push_str(" {\n");
        if let Some(version) = s.version {
            self.indent(level + 1);
            let _ = writeln!(self.out, "version {version}");
        }
        if let Some(bytes) = s.op_versions.as_ref().filter(|_| !self.brief) {
            self.indent(level + 1);
            self.out.push_str("op_versions ");
            self.hex(bytes);
            self.out.push('\n');
        }
        self.extra(Entity::Section(section), "", Some(level + 1));
        for (i, &b) in s.blocks.iter().enumerate() {
            if i == 0 {
                self.block(b, level + 1);
                continue;
            }
            self.indent(level + 1);
            let BlockData { index, parent, forward, .. } = *program.block(b);
            let _ = write!(self.out, "block {index} in {parent}");
            self.forward(forward);
            self.out.push_str(" {\n");
            self.block(b, level + 2);
            self.indent(level + 1);
            self.out.push_str("}\n");
        }
        self.indent(level);
        self.out.push_str("}\n");
    }

    fn forward(&mut self, forward: Option<i32>) {
        if let Some(f) = forward {
            let _ = write!(self.out, " forward {f}");
        }
    }

    fn block(&mut self, block: BlockId, level: usize) {
        let program = self.program;
        self.extra(Entity::Block(block), "block_", Some(level));
        for &v in &program.block(block).vars {
            self.indent(level);
            self.var(v);
            self.out.push('\n');
        }
        for op in program.ops(block) {
            self.indent(level);
            self.op(op);
            self.out.push('\n');
        }
    }

    fn var(&mut self, id: VarId) {
        let VarData { name, kind, dtype, lod_level, flags, .. } = *self.program.var(id);
        let shape = self.program.shape(id);
        let is_param = flags.get(VarFlag::IsParameter) == Some(true);
        self.out.push_str(if is_param { "param " } else { "var " });
        self.name(name);
        self.out.push_str(" :");
        match kind_word(kind) {
            _ if kind == VarKind::LOD_TENSOR => {}
            Some(word) => {
                let _ = write!(self.out, " {word}");
            }
            None => {
                let _ = write!(self.out, " kind({})", kind.0);
            }
        }
        if kind.has_tensor() || dtype != NO_DTYPE || !shape.is_empty() {
            let _ = write!(self.out, " {dtype}[");
            for (i, d) in shape.iter().enumerate() {
                let _ = write!(self.out, "{}{d}", if i == 0 { "" } else { ", " });
            }
            self.out.push(']');
        }
        for (flag, word, plain) in FLAG_WORDS {
            let value = flags.get(flag);
            if value == plain || is_param && flag == VarFlag::IsParameter {
                continue;
            }
            let mark = match value {
                Some(true) => "",
                Some(false) => "!",
                None => "?",
            };
            let _ = write!(self.out, " {mark}{word}");
        }
        if lod_level != plain_lod(kind, flags.is(VarFlag::Persistable)) {
            let _ = match lod_level {
                Some(level) => write!(self.out, " lod {level}"),
                None => write!(self.out, " ?lod"),
            };
        }
        self.extra(Entity::Var(id), "", None);
    }

    fn op(&mut self, op: OpRef<'p>) {
        if op.data().outputs > 0 {
            self.slots(op.outputs());
            self.out.push_str(" = ");
        }
        self.sym(op.kind());
        self.slots(op.inputs());
        let (program, brief) = (self.program, self.brief);
        let mut attrs = op.attrs().iter().filter(|a| !brief || !NOISE.contains(&program.sym(a.name))).peekable();
        if attrs.peek().is_some() {
            self.out.push_str(" {");
            for (i, attr) in attrs.enumerate() {
                if i > 0 {
                    self.out.push_str(", ");
                }
                self.attr(attr);
            }
            self.out.push('}');
        }
        match op.is_target() {
            None => {}
            Some(true) => self.out.push_str(" target"),
            Some(false) => self.out.push_str(" !target"),
        }
        self.extra(Entity::Op(op.id), "", None);
    }

    fn slots(&mut self, slots: impl Iterator<Item = Slot<'p>>) {
        self.out.push('(');
        for (i, slot) in slots.enumerate() {
            if i > 0 {
                self.out.push_str("; ");
            }
            self.sym(slot.name);
            self.out.push(':');
            for (j, &arg) in slot.args.iter().enumerate() {
                self.out.push_str(if j == 0 { " " } else { ", " });
                self.name(arg);
            }
        }
        self.out.push(')');
    }

    fn attr(&mut self, attr: &Attr) {
        self.sym(attr.name);
        self.out.push_str(": ");
        match (&attr.value, attr.name) {
            (AttrValue::Int(code), sym::DTYPE | sym::IN_DTYPE | sym::OUT_DTYPE) => self.dtype_code(*code),
            (AttrValue::Ints(codes), sym::STORED_DTYPES) => self.list("", codes, |p, &c| p.dtype_code(c)),
            (value, _) => self.value(value),
        }
        if let Some(raw) = &attr.raw {
            self.out.push_str(" raw ");
            self.hex(raw);
        }
    }

    fn dtype_code(&mut self, code: i32) {
        match DType::from_code(code).short() {
            Some(word) => self.out.push_str(word),
            None => self.int(code),
        }
    }

    fn int(&mut self, v: impl std::fmt::Display) {
        let _ = write!(self.out, "{v}");
    }

    fn list<T>(&mut self, word: &str, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.out.push_str(word);
        self.out.push('[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            each(self, item);
        }
        self.out.push(']');
    }

    fn value(&mut self, value: &AttrValue) {
        // A list whose first element shows its kind goes without the word.
        fn word<T>(items: &[T], word: &'static str) -> &'static str {
            if items.is_empty() { word } else { "" }
        }
        match value {
            AttrValue::Int(v) => self.int(v),
            AttrValue::Long(v) => {
                let _ = write!(self.out, "{v}L");
            }
            AttrValue::Float(v) => write_f32(&mut self.out, *v),
            AttrValue::F64(v) => write_f64(&mut self.out, *v),
            AttrValue::String(v) => write_quoted(&mut self.out, v),
            AttrValue::Bool(v) => self.int(v),
            AttrValue::Ints(v) => self.list("", v, |p, i| p.int(i)),
            AttrValue::Longs(v) => self.list("longs", v, |p, i| p.int(i)),
            AttrValue::Floats(v) => self.list(word(v, "floats"), v, |p, i| write_f32(&mut p.out, *i)),
            AttrValue::F64s(v) => self.list(word(v, "f64s"), v, |p, i| write_f64(&mut p.out, *i)),
            AttrValue::Strings(v) => self.list(word(v, "strings"), v, |p, i| write_quoted(&mut p.out, i)),
            AttrValue::Bools(v) => self.list(word(v, "bools"), v, |p, i| p.int(i)),
            AttrValue::Blocks(v) => self.list("blocks", v, |p, i| p.int(i)),
            AttrValue::Vars(v) => self.list("vars", v, |p, &i| p.name(i)),
            AttrValue::Scalars(v) => self.list("scalars", v, |p, i| p.scalar(*i)),
            AttrValue::Block(v) => {
                let _ = write!(self.out, "block({v})");
            }
            AttrValue::Var(v) => {
                self.out.push_str("var(");
                self.name(*v);
                self.out.push(')');
            }
            AttrValue::Scalar(v) => {
                self.out.push_str("scalar(");
                self.scalar(*v);
                self.out.push(')');
            }
            AttrValue::Unknown { tag, raw } => {
                let _ = write!(self.out, "unknown({tag}, ");
                self.hex(raw);
                self.out.push(')');
            }
        }
    }

    fn scalar(&mut self, v: Scalar) {
        match v {
            Scalar::Bool(v) => self.int(v),
            Scalar::Long(v) => {
                let _ = write!(self.out, "{v}L");
            }
            Scalar::F64(v) => write_f64(&mut self.out, v),
            Scalar::C128(re, im) => {
                self.out.push_str("complex(");
                write_f64(&mut self.out, re);
                self.out.push_str(", ");
                write_f64(&mut self.out, im);
                self.out.push(')');
            }
        }
    }
}
