//! How does the parser take tokens, and say what it wanted instead?

use super::lexer::{Tok, Token};
use super::number::{Number, parse_hex, parse_number};
use super::parser::{Parsed, Parser, Reported};
use crate::diag::{Code, Diagnostic, Place};
use crate::ir::Program;
use crate::names::{Name, Symbol};
use std::ops::Range;

impl<'s> Parser<'s> {
    /// Takes the current token.
    pub(super) fn bump(&mut self) -> Token<'s> {
        self.end = self.tok.end;
        let next = self.lexer.next();
        std::mem::replace(&mut self.tok, next)
    }

    pub(super) fn finding(&mut self, message: String, range: Range<usize>) {
        let place = Place::Text { file: self.file.clone(), range };
        self.findings.push(Diagnostic::new(Code::SyntaxError, message, place));
    }

    /// Reports a mistake at a range.
    pub(super) fn fail<T>(&mut self, message: impl Into<String>, range: Range<usize>) -> Parsed<T> {
        self.finding(message.into(), range);
        Err(Reported)
    }

    /// Reports that the current token is not what should stand here.
    pub(super) fn unexpected<T>(&mut self, wanted: &str) -> Parsed<T> {
        let message = match &self.tok.tok {
            Tok::Bad(why) => (*why).to_owned(),
            Tok::Newline => format!("expected {wanted}, found the end of the line"),
            Tok::Eof => format!("expected {wanted}, found the end of the text"),
            Tok::Word(w) => format!("expected {wanted}, found `{}`", shorten(w)),
            Tok::Num(n) => format!("expected {wanted}, found `{}`", shorten(n)),
            Tok::Quoted(_) => format!("expected {wanted}, found a string"),
            Tok::Hex(_) => format!("expected {wanted}, found hex bytes"),
            Tok::Punct(b) => format!("expected {wanted}, found `{}`", *b as char),
        };
        self.fail(message, self.tok.start..self.tok.end)
    }

    /// Takes this punctuation if it stands here.
    pub(super) fn eat(&mut self, punct: u8) -> bool {
        let hit = self.tok.tok == Tok::Punct(punct);
        if hit {
            self.bump();
        }
        hit
    }

    pub(super) fn expect(&mut self, punct: u8) -> Parsed<()> {
        if self.eat(punct) { Ok(()) } else { self.unexpected(&format!("`{}`", punct as char)) }
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let hit = self.tok.tok == Tok::Word(word);
        if hit {
            self.bump();
        }
        hit
    }

    fn with_name<T>(&mut self, what: &str, make: impl FnOnce(&mut Program, &str) -> T) -> Parsed<T> {
        match &self.tok.tok {
            Tok::Word(w) => {
                let made = make(&mut self.program, w);
                self.bump();
                Ok(made)
            }
            Tok::Quoted(_) => {
                let Token { tok: Tok::Quoted(text), .. } = self.bump() else { unreachable!("just seen") };
                Ok(make(&mut self.program, &text))
            }
            _ => self.unexpected(what),
        }
    }

    pub(super) fn name(&mut self, what: &str) -> Parsed<Name> {
        self.with_name(what, Program::intern)
    }

    pub(super) fn symbol(&mut self, what: &str) -> Parsed<Symbol> {
        self.with_name(what, Program::symbol)
    }

    pub(super) fn hex(&mut self) -> Parsed<Box<[u8]>> {
        match self.tok.tok {
            Tok::Hex(digits) => match parse_hex(digits) {
                Some(bytes) => {
                    self.bump();
                    Ok(bytes)
                }
                None => self.unexpected("hex bytes like x\"0aff\""),
            },
            _ => self.unexpected("hex bytes like x\"0aff\""),
        }
    }

    pub(super) fn number(&mut self, what: &str) -> Parsed<Number> {
        let Tok::Num(text) = self.tok.tok else { return self.unexpected(what) };
        match parse_number(text) {
            Ok(n) => {
                self.bump();
                Ok(n)
            }
            Err(why) => self.fail(why, self.tok.start..self.tok.end),
        }
    }

    /// A plain integer that fits `T`.
    pub(super) fn int<T: TryFrom<i64>>(&mut self, what: &str) -> Parsed<T> {
        let range = self.tok.start..self.tok.end;
        match self.number(what)? {
            Number::Int(v) => match T::try_from(v) {
                Ok(v) => Ok(v),
                Err(_) => self.fail(format!("{what} does not fit in {} bits", 8 * size_of::<T>()), range),
            },
            _ => self.fail(format!("expected {what}, which is an integer without suffix"), range),
        }
    }
}

fn shorten(text: &str) -> String {
    const MOST: usize = 40;
    if text.len() <= MOST { text.to_owned() } else { format!("{}…", &text[..MOST]) }
}
