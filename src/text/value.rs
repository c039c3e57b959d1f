//! How is an attribute's value read? Its kind follows from its spelling: suffix, word or first element.

use super::lexer::{Tok, Token};
use super::number::{Number, parse_bits};
use super::parser::{Parsed, Parser};
use crate::ir::{AttrValue, F32, F64, Scalar};

/// An element of a list that shows its own kind.
enum Item {
    Int(i64),
    Long(i64),
    Float(F32),
    F64(F64),
    String(Box<str>),
    Bool(bool),
}

impl Item {
    fn kind(&self) -> &'static str {
        match self {
            Item::Int(_) => "32-bit integers",
            Item::Long(_) => "64-bit integers",
            Item::Float(_) => "32-bit floats",
            Item::F64(_) => "64-bit floats",
            Item::String(_) => "strings",
            Item::Bool(_) => "booleans",
        }
    }
}

impl Parser<'_> {
    /// An attribute's value.
    pub(super) fn value(&mut self) -> Parsed<AttrValue> {
        if let Tok::Word(word) = self.tok.tok {
            match word {
                "ints" | "longs" | "floats" | "f64s" | "strings" | "bools" => {
                    self.bump();
                    return self.list(Some(word));
                }
                "blocks" => {
                    self.bump();
                    return Ok(AttrValue::Blocks(self.items(|p| p.int("the index of a block"))?.into()));
                }
                "vars" => {
                    self.bump();
                    return Ok(AttrValue::Vars(self.items(|p| p.name("a variable's name"))?.into()));
                }
                "scalars" => {
                    self.bump();
                    return Ok(AttrValue::Scalars(self.items(Self::scalar)?.into()));
                }
                "block" => return self.wrapped(|p| p.int("the index of a block").map(AttrValue::Block)),
                "var" => return self.wrapped(|p| p.name("a variable's name").map(AttrValue::Var)),
                "scalar" => return self.wrapped(|p| p.scalar().map(AttrValue::Scalar)),
                "unknown" => {
                    return self.wrapped(|p| {
                        let tag = p.int("a kind's number")?;
                        p.expect(b',')?;
                        Ok(AttrValue::Unknown { tag, raw: p.hex()? })
                    });
                }
                _ => {}
            }
        }
        if self.tok.tok == Tok::Punct(b'[') {
            return self.list(None);
        }
        let range = self.tok.start..self.tok.end;
        Ok(match self.item()? {
            Item::Int(v) => match i32::try_from(v) {
                Ok(v) => AttrValue::Int(v),
                Err(_) => return self.fail(format!("this does not fit in 32 bits; a 64-bit integer is `{v}L`"), range),
            },
            Item::Long(v) => AttrValue::Long(v),
            Item::Float(v) => AttrValue::Float(v),
            Item::F64(v) => AttrValue::F64(v),
            Item::String(v) => AttrValue::String(v),
            Item::Bool(v) => AttrValue::Bool(v),
        })
    }

    /// `word ( … )`.
    fn wrapped<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.bump();
        self.expect(b'(')?;
        let v = inner(self)?;
        self.expect(b')')?;
        Ok(v)
    }

    /// `[ …, … ]`.
    fn items<T>(&mut self, mut each: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        while !self.eat(b']') {
            if !items.is_empty() {
                self.expect(b',')?;
            }
            items.push(each(self)?);
        }
        Ok(items)
    }

    fn item(&mut self) -> Parsed<Item> {
        match self.tok.tok {
            Tok::Num(_) => Ok(match self.number("a value")? {
                Number::Int(v) => Item::Int(v),
                Number::Long(v) => Item::Long(v),
                Number::Float(v) => Item::Float(v),
                Number::F64(v) => Item::F64(v),
            }),
            Tok::Quoted(_) => {
                let Token { tok: Tok::Quoted(text), .. } = self.bump() else { unreachable!("just seen") };
                Ok(Item::String(text.into()))
            }
            Tok::Word("true") => {
                self.bump();
                Ok(Item::Bool(true))
            }
            Tok::Word("false") => {
                self.bump();
                Ok(Item::Bool(false))
            }
            Tok::Word("nan32" | "inf32") => self.f32().map(Item::Float),
            Tok::Word("nan64" | "inf64") => self.f64().map(Item::F64),
            Tok::Word(word) => match self.dtype_word(word)? {
                Some(dtype) => Ok(Item::Int(dtype.code().into())),
                None => self.unexpected("a value (a string is written in quotes)"),
            },
            _ => self.unexpected("a value"),
        }
    }

    fn f32(&mut self) -> Parsed<F32> {
        if self.tok.tok == Tok::Word("inf32") {
            self.bump();
            return Ok(f32::INFINITY.into());
        }
        let range = self.tok.start..self.tok.end;
        let bits = self.wrapped(Self::bits)?;
        match u32::try_from(bits).map(F32) {
            Ok(v) if v.get().is_nan() => Ok(v),
            _ => self.fail("these are not the bits of a 32-bit NaN", range),
        }
    }

    /// A binary64 in any spelling.
    fn f64(&mut self) -> Parsed<F64> {
        let range = self.tok.start..self.tok.end;
        match self.tok.tok {
            Tok::Word("inf64") => {
                self.bump();
                Ok(f64::INFINITY.into())
            }
            Tok::Word("nan64") => {
                let v = F64(self.wrapped(Self::bits)?);
                if v.get().is_nan() { Ok(v) } else { self.fail("these are not the bits of a 64-bit NaN", range) }
            }
            _ => match self.number("a 64-bit float")? {
                Number::F64(v) => Ok(v),
                _ => self.fail("expected a 64-bit float, as 0.5 or 1.0", range),
            },
        }
    }

    fn bits(&mut self) -> Parsed<u64> {
        match self.tok.tok {
            Tok::Num(text) => match parse_bits(text) {
                Some(bits) => {
                    self.bump();
                    Ok(bits)
                }
                None => self.unexpected("bits, as 0x7fc00000"),
            },
            _ => self.unexpected("bits, as 0x7fc00000"),
        }
    }

    fn scalar(&mut self) -> Parsed<Scalar> {
        match self.tok.tok {
            Tok::Word("complex") => self.wrapped(|p| {
                let re = p.f64()?;
                p.expect(b',')?;
                Ok(Scalar::C128(re, p.f64()?))
            }),
            _ => {
                let range = self.tok.start..self.tok.end;
                match self.item()? {
                    Item::Bool(v) => Ok(Scalar::Bool(v)),
                    Item::Int(v) | Item::Long(v) => Ok(Scalar::Long(v)),
                    Item::F64(v) => Ok(Scalar::F64(v)),
                    _ => self.fail("a scalar is a boolean, an integer, a 64-bit float or a complex", range),
                }
            }
        }
    }

    /// A list: of the kind of its word, else of its first element.
    fn list(&mut self, word: Option<&str>) -> Parsed<AttrValue> {
        let mut list = match word {
            Some("longs") => Some(List::Longs(Vec::new())),
            Some("floats") => Some(List::Floats(Vec::new())),
            Some("f64s") => Some(List::F64s(Vec::new())),
            Some("strings") => Some(List::Strings(Vec::new())),
            Some("bools") => Some(List::Bools(Vec::new())),
            Some(_) => Some(List::Ints(Vec::new())),
            None => None,
        };
        self.items(|p| {
            let range = p.tok.start..p.tok.end;
            let item = p.item()?;
            let list = list.get_or_insert_with(|| List::for_item(&item));
            let (kind, wanted) = (item.kind(), list.kind());
            if list.push(item) {
                Ok(())
            } else if kind == wanted {
                p.fail("this does not fit in 32 bits; 64-bit integers are written `longs[…]`", range)
            } else {
                p.fail(format!("expected {wanted}, found {kind}"), range)
            }
        })?;
        Ok(match list {
            None => AttrValue::Ints(Box::default()),
            Some(List::Ints(v)) => AttrValue::Ints(v.into()),
            Some(List::Longs(v)) => AttrValue::Longs(v.into()),
            Some(List::Floats(v)) => AttrValue::Floats(v.into()),
            Some(List::F64s(v)) => AttrValue::F64s(v.into()),
            Some(List::Strings(v)) => AttrValue::Strings(v.into()),
            Some(List::Bools(v)) => AttrValue::Bools(v.into()),
        })
    }
}

enum List {
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<F32>),
    F64s(Vec<F64>),
    Strings(Vec<Box<str>>),
    Bools(Vec<bool>),
}

impl List {
    fn for_item(item: &Item) -> List {
        match item {
            Item::Int(_) => List::Ints(Vec::new()),
            Item::Long(_) => List::Longs(Vec::new()),
            Item::Float(_) => List::Floats(Vec::new()),
            Item::F64(_) => List::F64s(Vec::new()),
            Item::String(_) => List::Strings(Vec::new()),
            Item::Bool(_) => List::Bools(Vec::new()),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            List::Ints(_) => "32-bit integers",
            List::Longs(_) => "64-bit integers",
            List::Floats(_) => "32-bit floats",
            List::F64s(_) => "64-bit floats",
            List::Strings(_) => "strings",
            List::Bools(_) => "booleans",
        }
    }

    /// Whether the item was of the list's kind.
    fn push(&mut self, item: Item) -> bool {
        match (self, item) {
            (List::Ints(v), Item::Int(i)) => match i32::try_from(i) {
                Ok(i) => v.push(i),
                Err(_) => return false,
            },
            (List::Longs(v), Item::Int(i) | Item::Long(i)) => v.push(i),
            (List::Floats(v), Item::Float(i)) => v.push(i),
            (List::F64s(v), Item::F64(i)) => v.push(i),
            (List::Strings(v), Item::String(i)) => v.push(i),
            (List::Bools(v), Item::Bool(i)) => v.push(i),
            _ => return false,
        }
        true
    }
}
