//! What are the tokens of the text format? Words, strings, numbers, hex, punctuation, line ends.

use std::borrow::Cow;

/// A token.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Tok<'s> {
    /// a bare name or keyword
    Word(&'s str),
    /// a quoted string, unescaped
    Quoted(Cow<'s, str>),
    /// the digits of `x"…"`
    Hex(&'s str),
    /// a number, not yet decoded
    Num(&'s str),
    /// one of `( ) { } [ ] : ; , = ! ?`
    Punct(u8),
    /// the end of a line
    Newline,
    /// the end of the text
    Eof,
    /// not a token, and why
    Bad(&'static str),
}

/// A token with its byte range.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Token<'s> {
    pub tok: Tok<'s>,
    pub start: usize,
    pub end: usize,
}

/// Splits a text into tokens, one at a time; linear, never fails.
pub(crate) struct Lexer<'s> {
    text: &'s str,
    at: usize,
}

/// Whether a bare word may start with this byte.
fn starts_word(b: u8) -> bool {
    b.is_ascii_alphabetic() || matches!(b, b'_' | b'@' | b'$')
}

fn in_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'@' | b'$' | b'.')
}

/// Whether a name needs no quotes.
pub(crate) fn is_bare(name: &str) -> bool {
    name.as_bytes().first().is_some_and(|&b| starts_word(b)) && name.bytes().all(in_word)
}

/// Appends a string in quotes. Escaped are the quote, the backslash and what would not show.
pub(crate) fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{feff}') => {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends a name, quoted when it must be.
pub(crate) fn write_name(out: &mut String, name: &str) {
    if is_bare(name) {
        out.push_str(name);
    } else {
        write_quoted(out, name);
    }
}

impl<'s> Lexer<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        let at = if text.starts_with('\u{feff}') { 3 } else { 0 };
        Lexer { text, at }
    }

    /// The byte at an offset that a token has covered.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.text.as_bytes()[at]
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> &'s str {
        let rest = &self.text[self.at..];
        let len = rest.bytes().position(|b| !keep(b)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// The next token.
    pub(crate) fn next(&mut self) -> Token<'s> {
        loop {
            self.take_while(|b| matches!(b, b' ' | b'\t' | b'\r'));
            if self.peek(0) == b'/' && self.peek(1) == b'/' {
                self.take_while(|b| b != b'\n');
                continue;
            }
            break;
        }
        let start = self.at;
        let tok = self.token();
        Token { tok, start, end: self.at }
    }

    fn token(&mut self) -> Tok<'s> {
        if self.at >= self.text.len() {
            return Tok::Eof;
        }
        match self.peek(0) {
            b'\n' => {
                self.at += 1;
                Tok::Newline
            }
            b'"' => self.quoted(),
            b'x' if self.peek(1) == b'"' => self.hex(),
            b if starts_word(b) => Tok::Word(self.take_while(in_word)),
            b if b.is_ascii_digit() || b == b'-' => self.number(),
            b @ (b'(' | b')' | b'{' | b'}' | b'[' | b']' | b':' | b';' | b',' | b'=' | b'!' | b'?') => {
                self.at += 1;
                Tok::Punct(b)
            }
            _ => {
                self.at += self.text[self.at..].chars().next().map_or(1, char::len_utf8);
                Tok::Bad("this character has no meaning here; odd names are written in quotes")
            }
        }
    }

    fn number(&mut self) -> Tok<'s> {
        let start = self.at;
        self.at += 1;
        let hex = self.text[start..].starts_with("0x");
        loop {
            self.take_while(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_');
            let after_e = matches!(self.text.as_bytes()[self.at - 1], b'e' | b'E');
            if after_e && !hex && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
            } else {
                return Tok::Num(&self.text[start..self.at]);
            }
        }
    }

    fn hex(&mut self) -> Tok<'s> {
        self.at += 2;
        let digits = self.take_while(|b| b.is_ascii_hexdigit());
        if self.peek(0) != b'"' {
            return Tok::Bad("hex bytes are written x\"0aff\"");
        }
        self.at += 1;
        if digits.len() % 2 == 1 {
            return Tok::Bad("a byte has two hex digits; one is missing");
        }
        Tok::Hex(digits)
    }

    fn quoted(&mut self) -> Tok<'s> {
        self.at += 1;
        let plain = self.take_while(|b| !matches!(b, b'"' | b'\\' | b'\n'));
        if self.peek(0) == b'"' {
            self.at += 1;
            return Tok::Quoted(Cow::Borrowed(plain));
        }
        let mut text = plain.to_owned();
        let mut bad = None;
        loop {
            text.push_str(self.take_while(|b| !matches!(b, b'"' | b'\\' | b'\n')));
            match self.peek(0) {
                b'"' => {
                    self.at += 1;
                    return bad.map_or(Tok::Quoted(Cow::Owned(text)), Tok::Bad);
                }
                b'\\' => match self.escape() {
                    Some(c) => text.push(c),
                    None => bad = Some(r#"escapes are \" \\ \n \r \t and \u{1f600}"#),
                },
                _ => return Tok::Bad("this string does not end on its line"),
            }
        }
    }

    /// Reads an escape; on a bad one stands after its backslash and letter.
    fn escape(&mut self) -> Option<char> {
        let letter = self.peek(1);
        self.at += 1;
        if letter == b'\n' || !letter.is_ascii() || self.at >= self.text.len() {
            return None;
        }
        self.at += 1;
        Some(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' if self.peek(0) == b'{' => {
                self.at += 1;
                let digits = self.take_while(|b| b.is_ascii_hexdigit());
                if self.peek(0) != b'}' {
                    return None;
                }
                self.at += 1;
                return u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Tok<'_>> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| Some(lexer.next().tok).filter(|t| *t != Tok::Eof)).collect()
    }

    #[test]
    fn tokens_of_a_line() {
        assert_eq!(
            all("w@GRAD -1e-7f x\"0a\" \"a\\n\" // c\n"),
            [Tok::Word("w@GRAD"), Tok::Num("-1e-7f"), Tok::Hex("0a"), Tok::Quoted("a\n".into()), Tok::Newline]
        );
    }

    #[test]
    fn quoting_is_undone() {
        for text in ["", "a b", "\u{0}\u{7f}\u{85}\u{2028}\u{feff}", "\"\\\n\r\t", "é中😀", "// x"] {
            let mut out = String::new();
            write_quoted(&mut out, text);
            assert_eq!(all(&out), [Tok::Quoted(text.into())]);
        }
    }

    #[test]
    fn bad_tokens_stop_where_they_end() {
        for (text, rest) in [("\"a\nb", 2), ("\"\\q\" b", 1), ("\"\\u{110000}\" b", 1), ("x\"0\" b", 1), ("é b", 1)] {
            let toks = all(text);
            assert!(matches!(toks[0], Tok::Bad(_)), "{text}: {toks:?}");
            assert_eq!(toks.len(), rest + 1, "{text}: {toks:?}");
        }
    }
}
