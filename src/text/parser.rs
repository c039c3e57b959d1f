//! How is a text read? Statement by statement; a bad one gives one finding and is skipped to its line end.
//!
//! The parser never fails: it returns whatever could be read, with its findings. It keeps no stack
//! (sections and blocks nest two deep), so that no input makes it recurse, and it is linear.

use super::lexer::{Lexer, Tok, Token};
use super::printer::{FLAG_WORDS, NO_DTYPE, kind_of_word, plain_lod};
use crate::diag::{Code, Diagnostic, Diagnostics, Place};
use crate::ir::{
    Attr, BlockId, DType, Entity, Extra, Origin, OriginId, Program, Section, VarDef, VarFlag, VarFlags, VarKind,
};
use crate::names::{Name, Symbol};
use std::sync::Arc;

/// Longest text in bytes: places are 32-bit.
pub const MAX_TEXT: usize = u32::MAX as usize - 1;

/// Reads a program. `file` is how findings call the text.
///
/// Every mistake gives one finding of [`Code::SyntaxError`] with its byte range, and the statement it is in
/// is left out. Ops and variables have the origin [`Origin::Text`].
pub fn parse(text: &str, file: &str) -> (Program, Diagnostics) {
    let file: Arc<str> = file.into();
    let mut findings = Diagnostics::new();
    if text.len() > MAX_TEXT {
        let place = Place::Text { file, range: 0..0 };
        findings.push(Diagnostic::new(Code::SyntaxError, "the text is longer than 4 GiB", place));
        return (Program::new(), findings);
    }
    let mut lexer = Lexer::new(text);
    let tok = lexer.next();
    let mut parser = Parser {
        lexer,
        tok,
        end: 0,
        file,
        findings,
        program: Program::new(),
        seen: [false; 2],
        inputs: Slots::default(),
        outputs: Slots::default(),
    };
    parser.run();
    (parser.program, parser.findings)
}

/// A finding was made; skip the rest of the line.
pub(super) struct Reported;
pub(super) type Parsed<T> = Result<T, Reported>;

/// Slots of one direction, each with the end of its arguments; the vectors are kept between ops.
#[derive(Default)]
struct Slots {
    names: Vec<(Symbol, usize)>,
    args: Vec<Name>,
}

impl Slots {
    fn iter(&self) -> impl Iterator<Item = (Symbol, &[Name])> {
        let mut from = 0;
        self.names.iter().map(move |&(slot, to)| {
            let args = &self.args[from..to];
            from = to;
            (slot, args)
        })
    }
}

/// What the statement at hand is in.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    Top,
    Section(Section),
    Block(Section, BlockId),
}

pub(super) struct Parser<'s> {
    pub(super) lexer: Lexer<'s>,
    pub(super) tok: Token<'s>,
    /// end of the token before `tok`
    pub(super) end: usize,
    pub(super) file: Arc<str>,
    pub(super) findings: Diagnostics,
    pub(super) program: Program,
    seen: [bool; 2],
    inputs: Slots,
    outputs: Slots,
}

impl<'s> Parser<'s> {
    // ---- statements

    fn run(&mut self) {
        let mut scope = Scope::Top;
        let mut wrapped = None;
        loop {
            match self.tok.tok {
                Tok::Newline => {
                    self.bump();
                    continue;
                }
                Tok::Eof => break,
                Tok::Punct(b'}') => {
                    let range = self.tok.start..self.tok.end;
                    self.bump();
                    scope = match scope {
                        Scope::Block(section, _) => Scope::Section(section),
                        Scope::Section(_) => Scope::Top,
                        Scope::Top => {
                            if wrapped.take().is_none() {
                                self.finding("this `}` closes nothing".into(), range);
                            }
                            Scope::Top
                        }
                    };
                    self.line_end();
                    continue;
                }
                _ => {}
            }
            let start = self.tok.start;
            let done = match scope {
                Scope::Top => self.top(&mut wrapped, &mut scope),
                Scope::Section(section) => self.in_section(section, &mut scope),
                Scope::Block(_, block) => self.in_block(block),
            };
            match done {
                // A header goes on behind its `{`.
                Ok(Line::Open) => {}
                Ok(Line::Done) => self.line_end(),
                Err(Reported) => self.recover(start),
            }
        }
        if scope != Scope::Top || wrapped.is_some() {
            self.finding("a `}` is missing at the end of the text".into(), self.tok.start..self.tok.end);
        }
    }

    /// A statement is complete; the line must be too.
    fn line_end(&mut self) {
        match self.tok.tok {
            Tok::Newline => {
                self.bump();
            }
            Tok::Eof | Tok::Punct(b'}') => {}
            _ => {
                let start = self.tok.start;
                let _ = self.unexpected::<()>("the end of the line");
                self.recover(start);
            }
        }
    }

    /// Skips to the next line. A line that ends in `{` was meant as the header of a block: then all
    /// of that block is skipped, so that one mistake stays one finding.
    fn recover(&mut self, start: usize) {
        if self.skip_line(start) != b'{' {
            return;
        }
        let mut depth = 1usize;
        while depth > 0 && self.tok.tok != Tok::Eof {
            let closes = self.tok.tok == Tok::Punct(b'}');
            let start = self.tok.start;
            let last = self.skip_line(start);
            if closes {
                depth -= 1;
            }
            if last == b'{' {
                depth += 1;
            }
        }
    }

    /// Skips the line and its end; returns the last punctuation when that is its last token.
    fn skip_line(&mut self, start: usize) -> u8 {
        // The mistake may have been noticed at the `{` itself, or behind it.
        let mut last = if self.end > start { self.last_byte() } else { 0 };
        loop {
            match self.tok.tok {
                Tok::Newline => {
                    self.bump();
                    return last;
                }
                Tok::Eof => return last,
                Tok::Punct(b) => last = b,
                _ => last = 0,
            }
            self.bump();
        }
    }

    fn last_byte(&self) -> u8 {
        self.lexer.byte(self.end - 1)
    }

    fn top(&mut self, wrapped: &mut Option<()>, scope: &mut Scope) -> Parsed<Line> {
        if wrapped.is_none() && self.eat_word("program") {
            self.expect(b'{')?;
            *wrapped = Some(());
            return Ok(Line::Open);
        }
        let at = self.tok.start..self.tok.end;
        let section = if self.eat_word("startup") {
            Section::Startup
        } else if self.eat_word("main") {
            Section::Main
        } else {
            return self.unexpected("`startup {` or `main {`");
        };
        if self.seen[section as usize] {
            return self.fail(format!("a second `{}`", section.as_str()), at);
        }
        let header = if self.eat_word("blockless") { None } else { Some((self.parent(-1)?, self.forward()?)) };
        self.expect(b'{')?;
        self.seen[section as usize] = true;
        if let Some((parent, forward)) = header {
            self.program.push_block(section, parent, forward);
        }
        *scope = Scope::Section(section);
        Ok(Line::Open)
    }

    fn parent(&mut self, default: i32) -> Parsed<i32> {
        if self.eat_word("in") { self.int("the index of a block") } else { Ok(default) }
    }

    fn forward(&mut self) -> Parsed<Option<i32>> {
        if self.eat_word("forward") { self.int("the index of a block").map(Some) } else { Ok(None) }
    }

    fn in_section(&mut self, section: Section, scope: &mut Scope) -> Parsed<Line> {
        let at = self.tok.start..self.tok.end;
        let Tok::Word(word @ ("version" | "op_versions" | "unknown" | "verbatim" | "block")) = self.tok.tok else {
            let Some(block) = self.program.global_block(section) else {
                return self.fail("a blockless section has no variables and ops", at);
            };
            return self.in_block(block);
        };
        self.bump();
        if self.tok.tok == Tok::Punct(b'(') {
            let Some(block) = self.program.global_block(section) else {
                return self.fail("a blockless section has no variables and ops", at);
            };
            let kind = self.program.symbol(word);
            return self.op_from_kind(block, kind, at.start);
        }
        let entity = Entity::Section(section);
        match word {
            "version" => {
                let version = self.int("a version")?;
                let op_versions = self.program.section(section).op_versions.clone();
                self.program.set_section_info(section, Some(version), op_versions);
            }
            "op_versions" => {
                let bytes = self.hex()?;
                let version = self.program.section(section).version;
                self.program.set_section_info(section, version, Some(bytes));
            }
            "unknown" => self.set_unknown(entity)?,
            "verbatim" => self.set_verbatim(entity)?,
            _ => {
                let Some(global) = self.program.global_block(section) else {
                    return self.fail("a blockless section has no blocks", at);
                };
                let next = self.program.section(section).blocks.len();
                let at = self.tok.start..self.tok.end;
                let index: u32 = self.int("the index of a block")?;
                if index as usize != next {
                    return self.fail(format!("blocks are numbered in order; this one is {next}"), at);
                }
                debug_assert_eq!(self.program.block(global).index, 0);
                if self.tok.tok != Tok::Word("in") {
                    return self.unexpected("`in` and the index of the parent block");
                }
                let (parent, forward) = (self.parent(0)?, self.forward()?);
                self.expect(b'{')?;
                let block = self.program.push_block(section, parent, forward);
                *scope = Scope::Block(section, block);
                return Ok(Line::Open);
            }
        }
        Ok(Line::Done)
    }

    fn set_unknown(&mut self, entity: Entity) -> Parsed<()> {
        let unknown = self.hex()?;
        let extra = Extra { unknown, ..self.program.take_extra(entity) };
        self.program.set_extra(entity, extra);
        Ok(())
    }

    fn set_verbatim(&mut self, entity: Entity) -> Parsed<()> {
        let verbatim = Some(self.hex()?);
        let extra = Extra { verbatim, ..self.program.take_extra(entity) };
        self.program.set_extra(entity, extra);
        Ok(())
    }

    fn in_block(&mut self, block: BlockId) -> Parsed<Line> {
        let start = self.tok.start;
        if self.tok.tok == Tok::Punct(b'(') {
            return self.op(block, start);
        }
        if let Tok::Word(word @ ("var" | "param" | "block_unknown" | "block_verbatim")) = self.tok.tok {
            self.bump();
            if self.tok.tok == Tok::Punct(b'(') {
                let kind = self.program.symbol(word);
                return self.op_from_kind(block, kind, start);
            }
            match word {
                "block_unknown" => self.set_unknown(Entity::Block(block))?,
                "block_verbatim" => self.set_verbatim(Entity::Block(block))?,
                _ => self.var(block, word == "param", start)?,
            }
            return Ok(Line::Done);
        }
        let kind = self.symbol("a variable, an op or a block")?;
        self.op_from_kind(block, kind, start)
    }

    fn origin(&mut self, start: usize) -> OriginId {
        // MAX_TEXT makes both fit.
        self.program.push_origin(Origin::Text { start: start as u32, end: self.end as u32 })
    }

    fn extra(&mut self) -> Parsed<Extra> {
        let unknown = if self.eat_word("unknown") { self.hex()? } else { Box::default() };
        let verbatim = if self.eat_word("verbatim") { Some(self.hex()?) } else { None };
        Ok(Extra { unknown, verbatim })
    }

    /// Checks that the statement ends here, before anything of it is kept.
    fn complete(&mut self) -> Parsed<()> {
        match self.tok.tok {
            Tok::Newline | Tok::Eof | Tok::Punct(b'}') => Ok(()),
            _ => self.unexpected("the end of the line"),
        }
    }

    fn var(&mut self, block: BlockId, param: bool, start: usize) -> Parsed<()> {
        let name = self.name("a variable's name")?;
        self.expect(b':')?;
        let (kind, dtype, shape) = self.var_type()?;
        let mut flags = FLAG_WORDS.iter().fold(VarFlags::default(), |f, &(flag, _, plain)| f.with(flag, plain));
        if param {
            flags = flags.with(VarFlag::IsParameter, Some(true));
        }
        let mut lod = None;
        loop {
            let value = match self.tok.tok {
                Tok::Punct(b'!') => Some(false),
                Tok::Punct(b'?') => None,
                Tok::Word("unknown" | "verbatim") => break,
                Tok::Word(_) => Some(true),
                _ => break,
            };
            if value != Some(true) {
                self.bump();
            }
            if value != Some(false) && self.eat_word("lod") {
                lod = Some(if value.is_none() { None } else { Some(self.int("a LoD level")?) });
                continue;
            }
            let Some((flag, word, _)) = FLAG_WORDS.iter().find(|(_, word, _)| self.tok.tok == Tok::Word(word)) else {
                return self.unexpected("a flag");
            };
            self.eat_word(word);
            flags = flags.with(*flag, value);
        }
        let extra = self.extra()?;
        self.complete()?;
        let lod_level = lod.unwrap_or_else(|| plain_lod(kind, flags.is(VarFlag::Persistable)));
        let origin = self.origin(start);
        let var = self.program.push_var(block, &VarDef { name, kind, dtype, shape, lod_level, flags }, origin);
        self.program.set_extra(Entity::Var(var), extra);
        Ok(())
    }

    fn var_type(&mut self) -> Parsed<(VarKind, DType, Vec<i64>)> {
        let mut kind = None;
        if let Tok::Word(word) = self.tok.tok {
            kind = kind_of_word(word);
            if kind.is_some() {
                self.bump();
            } else if self.eat_word("kind") {
                self.expect(b'(')?;
                kind = Some(VarKind(self.int("a kind's number")?));
                self.expect(b')')?;
            }
        }
        let dtype = match self.tok.tok {
            Tok::Word(word) => self.dtype_word(word)?,
            _ => None,
        };
        let Some(dtype) = dtype else {
            return match kind {
                Some(kind) if !kind.has_tensor() => Ok((kind, NO_DTYPE, Vec::new())),
                _ => self.unexpected("an element type, as in `f32[784, 10]`"),
            };
        };
        self.expect(b'[')?;
        let mut shape = Vec::new();
        while !self.eat(b']') {
            if !shape.is_empty() {
                self.expect(b',')?;
            }
            shape.push(self.int("a dimension")?);
        }
        Ok((kind.unwrap_or(VarKind::LOD_TENSOR), dtype, shape))
    }

    /// Takes a dtype if one stands here.
    pub(super) fn dtype_word(&mut self, word: &str) -> Parsed<Option<DType>> {
        if word == "dtype" {
            self.bump();
            self.expect(b'(')?;
            let code = self.int("a dtype's number")?;
            self.expect(b')')?;
            return Ok(Some(DType::from_code(code)));
        }
        let dtype = DType::parse(word);
        if dtype.is_some() {
            self.bump();
        }
        Ok(dtype)
    }

    fn op(&mut self, block: BlockId, start: usize) -> Parsed<Line> {
        let mut outputs = std::mem::take(&mut self.outputs);
        let done = self.slots(&mut outputs);
        self.outputs = outputs;
        done?;
        self.expect(b'=')?;
        let kind = self.symbol("an op's kind")?;
        self.op_rest(block, kind, start)
    }

    fn op_from_kind(&mut self, block: BlockId, kind: Symbol, start: usize) -> Parsed<Line> {
        self.outputs.names.clear();
        self.outputs.args.clear();
        self.op_rest(block, kind, start)
    }

    fn op_rest(&mut self, block: BlockId, kind: Symbol, start: usize) -> Parsed<Line> {
        let mut inputs = std::mem::take(&mut self.inputs);
        let done = self.slots(&mut inputs);
        self.inputs = inputs;
        done?;
        let attrs = self.attrs()?;
        let target = if self.eat_word("target") {
            Some(true)
        } else if self.eat(b'!') {
            if !self.eat_word("target") {
                return self.unexpected("`target`");
            }
            Some(false)
        } else {
            None
        };
        let extra = self.extra()?;
        self.complete()?;
        let origin = self.origin(start);
        let attrs = self.program.intern_attrs(attrs);
        let id = self.program.push_op(block, kind, attrs, origin);
        self.program.set_is_target(id, target);
        for (slot, args) in self.inputs.iter() {
            self.program.push_input(id, slot, args.iter().copied());
        }
        for (slot, args) in self.outputs.iter() {
            self.program.push_output(id, slot, args.iter().copied());
        }
        self.program.set_extra(Entity::Op(id), extra);
        Ok(Line::Done)
    }

    fn slots(&mut self, slots: &mut Slots) -> Parsed<()> {
        slots.names.clear();
        slots.args.clear();
        self.expect(b'(')?;
        while !self.eat(b')') {
            if !slots.names.is_empty() {
                self.expect(b';')?;
            }
            if slots.names.len() == usize::from(u16::MAX) {
                return self.unexpected("at most 65,535 slots");
            }
            let slot = self.symbol("a slot's name")?;
            self.expect(b':')?;
            let first = slots.args.len();
            while !matches!(self.tok.tok, Tok::Punct(b';' | b')')) {
                if slots.args.len() > first {
                    self.expect(b',')?;
                }
                slots.args.push(self.name("a variable's name")?);
            }
            slots.names.push((slot, slots.args.len()));
        }
        Ok(())
    }

    fn attrs(&mut self) -> Parsed<Vec<Attr>> {
        let mut attrs = Vec::new();
        if !self.eat(b'{') {
            return Ok(attrs);
        }
        while !self.eat(b'}') {
            if !attrs.is_empty() {
                self.expect(b',')?;
            }
            let name = self.symbol("an attribute's name")?;
            self.expect(b':')?;
            let value = self.value()?;
            let raw = if self.eat_word("raw") { Some(self.hex()?.into()) } else { None };
            attrs.push(Attr { name, value, raw });
        }
        Ok(attrs)
    }
}

/// How a statement ended.
enum Line {
    /// with its line
    Done,
    /// behind a `{`
    Open,
}
