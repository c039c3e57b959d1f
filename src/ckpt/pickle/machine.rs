//! What does a pickle say, without doing what it says? A machine for the opcodes of protocols 2 to 5 that
//! CPython writes, and the names of an allow-list.
//!
//! Nothing is imported and nothing is called: each allowed name has a meaning of its own here (`heap.rs`), and
//! any other name, opcode or combination is a typed error. Payloads of arrays are not read, only placed.
//! Memo indices must be dense, as CPython makes them, so that a number in the file cannot ask for memory.
//! Sources: pickletools of CPython 3.11 for the opcodes; files by Paddle 2.6.2 and 3.3.1 for the names.

use super::super::byte_len;
use super::super::error::CkptError;
use super::super::limits::{MAX_NAME, MAX_RANK};
use super::super::map::Source;
use super::heap::{Built, Element, Global, Heap, Span, Value};
use super::reader::Reader;

/// What a pickle holds.
pub(in super::super) struct Unpickled {
    pub heap: Heap,
    pub root: Value,
}

/// Runs the pickle at the beginning of a file. What stands behind its STOP is an error.
pub(in super::super) fn unpickle(source: &Source) -> Result<Unpickled, CkptError> {
    let mut heap = Heap::default();
    // Address space, not memory: without it, metadata is copied again and again while it grows.
    heap.items.reserve((source.len() / 4).min(1 << 22) as usize);
    let mut machine = Machine { reader: Reader::new(source), heap, stack: Vec::new(), memo: Vec::new() };
    let root = machine.run()?;
    let rest = source.len() - machine.reader.pos();
    if rest > 0 {
        return Err(machine.reader.bad(format!("{rest} bytes after the end of the pickle")));
    }
    Ok(Unpickled { heap: machine.heap, root })
}

struct Machine<'s> {
    reader: Reader<'s>,
    heap: Heap,
    stack: Vec<Value>,
    memo: Vec<Value>,
}

type Step<T = ()> = Result<T, CkptError>;

impl Machine<'_> {
    fn run(&mut self) -> Step<Value> {
        let head = self.reader.array::<2>("the protocol")?;
        if head[0] != 0x80 || !(2..=5).contains(&head[1]) {
            return Err(CkptError::malformed(self.reader.source().path(), 0, "not a pickle of protocol 2 to 5"));
        }
        loop {
            let op = self.reader.byte("an opcode")?;
            if op == b'.' {
                let root = self.pop()?;
                return if self.stack.is_empty() { Ok(root) } else { Err(self.bad("values left over at the end")) };
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Step {
        match op {
            // PROTO, again; FRAME: a length that a reader may use and this one does not
            0x80 => drop(self.reader.byte("a protocol")?),
            0x95 => {
                let len = u64::from_le_bytes(self.reader.array("a frame")?);
                let rest = self.reader.source().len() - self.reader.pos();
                if len > rest {
                    return Err(self.bad(format!("a frame of {len} bytes, the file has {rest} more")));
                }
            }
            b'(' => self.push(Value::Mark)?,
            b'0' => drop(self.stack.pop().ok_or_else(|| self.bad("POP of an empty stack"))?),
            b'1' => {
                let at = self.mark()?;
                self.stack.truncate(at);
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let n = i32::from_le_bytes(self.reader.array("an integer")?);
                self.push(Value::Int(n.into()))?;
            }
            b'K' => {
                let n = self.reader.byte("an integer")?;
                self.push(Value::Int(n.into()))?;
            }
            b'M' => {
                let n = u16::from_le_bytes(self.reader.array("an integer")?);
                self.push(Value::Int(n.into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                let x = f64::from_be_bytes(self.reader.array("a float")?);
                self.push(Value::Float(x))?;
            }
            0x8c => {
                let len = self.reader.byte("a text's length")?;
                self.text(len.into())?;
            }
            b'X' => {
                let len = u32::from_le_bytes(self.reader.array("a text's length")?);
                self.text(len)?;
            }
            b'C' => {
                let len = self.reader.byte("the length of bytes")?;
                self.bytes(len.into())?;
            }
            b'B' => {
                let len = u32::from_le_bytes(self.reader.array("the length of bytes")?);
                self.bytes(len.into())?;
            }
            0x8e => {
                let len = u64::from_le_bytes(self.reader.array("the length of bytes")?);
                self.bytes(len)?;
            }
            b')' => self.tuple(self.stack.len())?,
            0x85..=0x87 => {
                let n = usize::from(op - 0x84);
                let at = self.stack.len().checked_sub(n).ok_or_else(|| self.bad("a tuple of too few values"))?;
                self.tuple(at)?;
            }
            b't' => {
                let at = self.mark()?;
                self.tuple(at + 1)?;
                let tuple = self.pop()?;
                self.stack.truncate(at);
                self.push(tuple)?;
            }
            b']' => {
                let list = Value::List(self.heap.new_run());
                self.push(list)?;
            }
            b'}' => {
                let dict = self.new_dict();
                self.push(dict)?;
            }
            b'a' => {
                let at = self.stack.len().saturating_sub(1);
                self.append(at, at)?;
            }
            b'e' => {
                let at = self.mark()?;
                self.append(at + 1, at)?;
            }
            b's' => {
                let at = self.stack.len().saturating_sub(2);
                self.set_items(at, at)?;
            }
            b'u' => {
                let at = self.mark()?;
                self.set_items(at + 1, at)?;
            }
            b'q' => {
                let index = self.reader.byte("a memo index")?;
                self.put(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.reader.array("a memo index")?);
                self.put(index as usize)?;
            }
            0x94 => self.put(self.memo.len())?,
            b'h' => {
                let index = self.reader.byte("a memo index")?;
                self.get(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.reader.array("a memo index")?);
                self.get(index as usize)?;
            }
            b'c' => {
                let (module, name) = (self.reader.line("a module")?, self.reader.line("a name")?);
                self.global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |v| self.heap.str(v).map(str::to_owned);
                let (Some(module), Some(name)) = (text(module), text(name)) else {
                    return Err(self.bad("a global whose name is no text"));
                };
                self.global(&module, &name)?;
            }
            b'R' => self.reduce()?,
            0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                match (class, self.heap.sequence(args)) {
                    (Value::Global(Global::Class(class)), Some([])) => {
                        self.heap.records.push((class, None));
                        self.push(Value::Record(self.heap.records.len() as u32 - 1))?;
                    }
                    _ => return Err(self.no("makes an object of a class that is not known, or with arguments")),
                }
            }
            b'b' => self.build()?,
            _ => return Err(self.no(&format!("uses opcode {op:#04x}, which Paddle does not write"))),
        }
        Ok(())
    }

    fn bad(&self, what: impl Into<String>) -> CkptError {
        self.reader.bad(what)
    }

    /// What is legal in a pickle and not read here.
    fn no(&self, what: &str) -> CkptError {
        let what = format!("the pickle {what} (at byte {}); nothing in it was executed", self.reader.pos());
        CkptError::unsupported(self.reader.source().path(), what)
    }

    fn over(&self) -> impl Fn(String) -> CkptError + '_ {
        |what| self.bad(what)
    }

    fn push(&mut self, value: Value) -> Step {
        self.heap.count(1).map_err(|what| self.reader.bad(what))?;
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        match self.stack.pop() {
            Some(Value::Mark) => Err(self.bad("a mark where a value must be")),
            Some(value) => Ok(value),
            None => Err(self.bad("a value is taken from an empty stack")),
        }
    }

    /// Where the topmost mark is.
    fn mark(&self) -> Step<usize> {
        self.stack.iter().rposition(|v| *v == Value::Mark).ok_or_else(|| self.bad("there is no mark"))
    }

    fn new_dict(&mut self) -> Value {
        Value::Dict(self.heap.new_run())
    }

    /// LONG1: up to 8 bytes, two's complement.
    fn long(&mut self) -> Step {
        let len = usize::from(self.reader.byte("an integer's length")?);
        if len > 8 {
            return Err(self.no("holds an integer of more than 64 bits"));
        }
        let bytes = self.reader.take(len, "an integer")?;
        let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        wide[..len].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn text(&mut self, len: u32) -> Step {
        let at = self.reader.pos();
        let value = if len as usize <= MAX_NAME {
            let bytes = self.reader.take(len as usize, "a text")?;
            match std::str::from_utf8(bytes) {
                Ok(text) => self.heap.push_text(at, len, Some(text)),
                Err(_) => return Err(self.bad("a text that is not UTF-8")),
            }
        } else {
            self.reader.skip(len.into(), "a text")?;
            self.heap.push_text(at, len, None)
        };
        let value = value.map_err(self.over())?;
        self.push(value)
    }

    fn bytes(&mut self, stored: u64) -> Step {
        let at = self.reader.pos();
        self.reader.skip(stored, "the bytes of an array")?;
        self.span(Span { at, stored, latin1: false })
    }

    fn span(&mut self, span: Span) -> Step {
        self.heap.spans.push(span);
        self.push(Value::Bytes(self.heap.spans.len() as u32 - 1))
    }

    /// A tuple of the values from `at` on.
    fn tuple(&mut self, at: usize) -> Step {
        let values = &self.stack[at..];
        if values.contains(&Value::Mark) {
            return Err(self.bad("a mark inside a tuple"));
        }
        let (start, len) = (self.heap.items.len() as u32, values.len() as u32);
        self.heap.items.extend_from_slice(values);
        self.stack.truncate(at);
        self.heap.count(len as usize).map_err(|what| self.reader.bad(what))?;
        self.push(Value::Tuple { start, len })
    }

    /// Appends the values from `from` on to the list below `end`, and drops them.
    fn append(&mut self, from: usize, end: usize) -> Step {
        let Some(Value::List(id)) = end.checked_sub(1).map(|i| self.stack[i]) else {
            return Err(self.bad("items for what is no list"));
        };
        let values = &self.stack[from..];
        if values.contains(&Value::Mark) {
            return Err(self.bad("a mark inside a list"));
        }
        self.heap.extend_run(id, values).map_err(|what| self.reader.bad(what))?;
        self.stack.truncate(end);
        Ok(())
    }

    /// Adds the pairs from `from` on to the dict below `end`, and drops them.
    fn set_items(&mut self, from: usize, end: usize) -> Step {
        let Some(Value::Dict(id)) = end.checked_sub(1).map(|i| self.stack[i]) else {
            return Err(self.bad("items for what is no dict"));
        };
        let values = &self.stack[from..];
        if !values.len().is_multiple_of(2) || values.contains(&Value::Mark) {
            return Err(self.bad("a key without a value"));
        }
        self.heap.extend_run(id, values).map_err(|what| self.reader.bad(what))?;
        self.stack.truncate(end);
        Ok(())
    }

    fn put(&mut self, index: usize) -> Step {
        let Some(&value) = self.stack.last().filter(|v| **v != Value::Mark) else {
            return Err(self.bad("nothing to keep in the memo"));
        };
        match index.cmp(&self.memo.len()) {
            std::cmp::Ordering::Less => self.memo[index] = value,
            std::cmp::Ordering::Equal => {
                self.heap.count(1).map_err(|what| self.reader.bad(what))?;
                self.memo.push(value);
            }
            std::cmp::Ordering::Greater => return Err(self.bad(format!("memo index {index} is out of order"))),
        }
        Ok(())
    }

    fn get(&mut self, index: usize) -> Step {
        let value = *self.memo.get(index).ok_or_else(|| self.bad(format!("memo index {index} was never set")))?;
        self.push(value)
    }

    fn global(&mut self, module: &str, name: &str) -> Step {
        match Global::find(module, name) {
            Some(global) => self.push(Value::Global(global)),
            None => {
                let (module, name) = (module.escape_debug(), name.escape_debug());
                Err(self.no(&format!("names `{module}.{name}`, which is not on the list of what a checkpoint needs")))
            }
        }
    }

    fn reduce(&mut self) -> Step {
        let (args, callee) = (self.pop()?, self.pop()?);
        let Value::Global(callee) = callee else { return Err(self.no("calls what is no name")) };
        let Value::Tuple { start, len } = args else { return Err(self.bad("a call without a tuple of arguments")) };
        let mut copy = [Value::None; 4];
        let len = len as usize;
        if len > copy.len() {
            return Err(self.no("calls something with more than 4 arguments"));
        }
        copy[..len].copy_from_slice(&self.heap.items[start as usize..start as usize + len]);
        match (callee, &copy[..len]) {
            (Global::Reconstruct, [Value::Global(Global::NdArray), shape, _])
                if self.heap.sequence(*shape) == Some(&[Value::Int(0)]) =>
            {
                self.heap.arrays.push(None);
                self.push(Value::Array(self.heap.arrays.len() as u32 - 1))
            }
            (Global::DType, [code, _, _]) => {
                let Some(code) = self.heap.str(*code) else { return Err(self.bad("a dtype without a name")) };
                let Some(element) = Element::parse(code) else {
                    return Err(self.no(&format!("holds an array of NumPy type `{}`", code.escape_debug())));
                };
                self.heap.dtypes.push(element);
                self.push(Value::DType(self.heap.dtypes.len() as u32 - 1))
            }
            (Global::Encode, [Value::Text(id), codec]) if self.heap.str(*codec) == Some("latin1") => {
                let text = self.heap.texts[*id as usize];
                self.span(Span { at: text.at, stored: text.len.into(), latin1: true })
            }
            (Global::Bytes, []) => self.span(Span { at: 0, stored: 0, latin1: false }),
            (Global::Tuple, []) => self.tuple(self.stack.len()),
            (Global::Tuple, [tuple @ Value::Tuple { .. }]) => self.push(*tuple),
            (Global::Tuple, [list @ Value::List(_)]) => {
                let start = self.stack.len();
                let items = self.heap.sequence(*list).unwrap_or_default();
                self.stack.extend_from_slice(items);
                self.tuple(start)
            }
            (Global::Eval, [expression, env @ Value::Dict(_)]) if self.heap.str(*expression) == Some("data") => {
                match (self.heap.dict(*env), self.heap.get(*env, "data")) {
                    (Some([_]), Some(data @ Value::Array(_))) => self.push(data),
                    _ => Err(self.no("calls eval with something that is no tensor")),
                }
            }
            (Global::OrderedDict, []) => {
                let dict = self.new_dict();
                self.push(dict)
            }
            (Global::Scalar, [Value::DType(dtype), Value::Bytes(data)]) => {
                let (element, data) = (self.heap.dtypes[*dtype as usize], self.heap.spans[*data as usize]);
                self.check_length(element, u64::from(element.size), data)?;
                let built = Built { shape: (0, 0), element, bytes: element.size.into(), data };
                self.heap.arrays.push(Some(built));
                self.push(Value::Array(self.heap.arrays.len() as u32 - 1))
            }
            (callee, _) => Err(self.no(&format!("calls {callee:?} in a way that Paddle does not"))),
        }
    }

    fn check_length(&self, element: Element, bytes: u64, data: Span) -> Step {
        let most = if data.latin1 { bytes.saturating_mul(2) } else { bytes };
        if (bytes..=most).contains(&data.stored) {
            return Ok(());
        }
        let (name, stored) = (element.name, data.stored);
        Err(self.bad(format!("an array of {name} needs {bytes} bytes, {stored} are stored")))
    }

    fn build(&mut self) -> Step {
        let (state, object) = (self.pop()?, self.stack.last().copied());
        match object {
            Some(Value::Array(id)) => {
                let built = self.array(state)?;
                match &mut self.heap.arrays[id as usize] {
                    array @ None => *array = Some(built),
                    Some(_) => return Err(self.bad("an array that is built twice")),
                }
            }
            Some(Value::DType(_)) => match self.heap.sequence(state) {
                Some([Value::Int(3 | 4), order, Value::None, Value::None, Value::None, ..]) => {
                    if !matches!(self.heap.str(*order), Some("<" | "|" | "=")) {
                        return Err(self.no("holds big-endian numbers"));
                    }
                }
                _ => return Err(self.no("holds an array with fields, or of a dtype of another kind")),
            },
            Some(Value::Record(id)) => match (state, self.heap.records[id as usize].1) {
                (Value::Dict(fields), None) => self.heap.records[id as usize].1 = Some(fields),
                _ => return Err(self.bad("a record that is built twice, or from what is no dict")),
            },
            _ => return Err(self.no("changes an object that it may not")),
        }
        Ok(())
    }

    /// The state of an array: version, shape, dtype, Fortran order, data.
    fn array(&self, state: Value) -> Step<Built> {
        let Some(&[Value::Int(1), shape, Value::DType(dtype), Value::Bool(fortran), Value::Bytes(data)]) =
            self.heap.sequence(state)
        else {
            return Err(self.no("holds an array of another kind than plain numbers"));
        };
        let Value::Tuple { start, len } = shape else { return Err(self.bad("a shape that is no tuple")) };
        if len as usize > MAX_RANK {
            return Err(self.bad(format!("an array of {len} dimensions, at most {MAX_RANK} are read")));
        }
        let dims = self.heap.dims(shape).ok_or_else(|| self.bad("a dimension that is no length"))?;
        if fortran && dims.iter().filter(|&&d| d != 1).count() > 1 {
            return Err(self.no("holds an array in Fortran order: save numpy.ascontiguousarray of it"));
        }
        let (element, data) = (self.heap.dtypes[dtype as usize], self.heap.spans[data as usize]);
        let bytes = byte_len(&dims, u64::from(element.size) * 8)
            .ok_or_else(|| self.bad(format!("the dimensions {dims:?} are more than any file holds")))?;
        self.check_length(element, bytes, data)?;
        Ok(Built { shape: (start, len), element, bytes, data })
    }
}
