//! How do tests take a ProgramDesc apart and put it together wrongly on purpose? As a tree of raw fields.

/// A message of framework.proto, as far as nesting goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Program,
    Version,
    Block,
    Var,
    VarType,
    LodTensor,
    Tensor,
    Op,
    Slot,
    Attr,
    Scalar,
    Complex,
}

impl Kind {
    /// The message type of a field, if it is a message that the IR takes apart.
    pub fn child(self, field: u32) -> Option<Kind> {
        Some(match (self, field) {
            (Kind::Program, 1) => Kind::Block,
            (Kind::Program, 4) => Kind::Version,
            (Kind::Block, 3) => Kind::Var,
            (Kind::Block, 4) => Kind::Op,
            (Kind::Var, 2) => Kind::VarType,
            (Kind::VarType, 2) => Kind::Tensor,
            (Kind::VarType, 3 | 4) => Kind::LodTensor,
            (Kind::LodTensor, 1) => Kind::Tensor,
            (Kind::Op, 1 | 2) => Kind::Slot,
            (Kind::Op, 4) => Kind::Attr,
            (Kind::Attr, 20 | 21) => Kind::Scalar,
            (Kind::Scalar, 5) => Kind::Complex,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    /// the bytes after the tag (and after the length, of a counted field)
    Bytes(Vec<u8>),
    Message(Message),
}

#[derive(Clone, Debug)]
pub struct Field {
    pub number: u32,
    pub wire: u32,
    pub body: Body,
    /// extra bytes in the tag and in the length
    pub pad: (usize, usize),
}

#[derive(Clone, Debug)]
pub struct Message {
    pub kind: Kind,
    pub fields: Vec<Field>,
}

fn read_varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let b = bytes[*at];
        *at += 1;
        value |= u64::from(b & 0x7F) << shift;
        shift += 7;
        if b < 0x80 {
            return value;
        }
    }
}

/// A varint with `pad` bytes more than it needs.
pub fn varint(mut value: u64, pad: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    if pad == 0 {
        return out.push(value as u8);
    }
    out.push(value as u8 | 0x80);
    out.extend(std::iter::repeat_n(0x80, pad - 1));
    out.push(0);
}

impl Field {
    pub fn bytes(number: u32, bytes: impl Into<Vec<u8>>) -> Field {
        Field { number, wire: 2, body: Body::Bytes(bytes.into()), pad: (0, 0) }
    }

    pub fn int(number: u32, value: u64) -> Field {
        let mut bytes = Vec::new();
        varint(value, 0, &mut bytes);
        Field { number, wire: 0, body: Body::Bytes(bytes), pad: (0, 0) }
    }

    pub fn message(number: u32, message: Message) -> Field {
        Field { number, wire: 2, body: Body::Message(message), pad: (0, 0) }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        varint(u64::from(self.number << 3 | self.wire), self.pad.0, out);
        let bytes = match &self.body {
            Body::Bytes(b) => b.clone(),
            Body::Message(m) => m.encode(),
        };
        if self.wire == 2 {
            varint(bytes.len() as u64, self.pad.1, out);
        }
        out.extend_from_slice(&bytes);
    }
}

impl Message {
    pub fn new(kind: Kind, fields: impl Into<Vec<Field>>) -> Message {
        Message { kind, fields: fields.into() }
    }

    /// Takes a well-formed file apart; no groups.
    pub fn parse(kind: Kind, bytes: &[u8]) -> Message {
        let (mut fields, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let tag = read_varint(bytes, &mut at) as u32;
            let (number, wire) = (tag >> 3, tag & 7);
            let start = at;
            let body = match wire {
                0 => {
                    read_varint(bytes, &mut at);
                    Body::Bytes(bytes[start..at].to_vec())
                }
                2 => {
                    let len = read_varint(bytes, &mut at) as usize;
                    at += len;
                    let inner = &bytes[at - len..at];
                    match kind.child(number) {
                        Some(child) => Body::Message(Message::parse(child, inner)),
                        None => Body::Bytes(inner.to_vec()),
                    }
                }
                1 | 5 => {
                    at += if wire == 1 { 8 } else { 4 };
                    Body::Bytes(bytes[start..at].to_vec())
                }
                _ => panic!("wire type {wire}"),
            };
            fields.push(Field { number, wire, body, pad: (0, 0) });
        }
        Message { kind, fields }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for f in &self.fields {
            f.encode(&mut out);
        }
        out
    }

    /// Number of messages in the tree, this one included.
    pub fn count(&self) -> usize {
        1 + self.children().map(Message::count).sum::<usize>()
    }

    pub fn children(&self) -> impl Iterator<Item = &Message> {
        self.fields.iter().filter_map(|f| match &f.body {
            Body::Message(m) => Some(m),
            Body::Bytes(_) => None,
        })
    }

    /// The `n`-th message of the tree, in preorder.
    pub fn nth(&mut self, n: &mut usize) -> Option<&mut Message> {
        if *n == 0 {
            return Some(self);
        }
        *n -= 1;
        for f in &mut self.fields {
            if let Body::Message(m) = &mut f.body {
                let size = m.count();
                if *n < size {
                    return m.nth(n);
                }
                *n -= size;
            }
        }
        None
    }

    /// The first message below this one, or itself, of a kind.
    pub fn first(&mut self, kind: Kind) -> &mut Message {
        let total = self.count();
        let found = (0..total).find(|&i| self.nth(&mut { i }).is_some_and(|m| m.kind == kind));
        self.nth(&mut found.unwrap_or_else(|| panic!("no {kind:?}"))).unwrap()
    }
}
