//! Is a text JSON, and where are its parts? Checked once without recursion, then walked by slices.

use super::error::{PirError, PirErrorKind as Kind};
use std::borrow::Cow;

/// Deepest nesting of objects and lists that is read. A block in a block costs six levels.
pub const MAX_DEPTH: usize = 1024;

/// The text without white space between its parts, when it is JSON.
pub(super) fn compact(text: &str) -> Result<Cow<'_, str>, PirError> {
    let blanks = check(text.as_bytes())?;
    if !blanks {
        return Ok(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < bytes.len() {
        let end = match bytes[at] {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'"' => string_end(bytes, at),
            _ => at + 1 + bytes[at + 1..].iter().take_while(|b| !b" \t\n\r\"".contains(b)).count(),
        };
        out.push_str(&text[at..end]);
        at = end;
    }
    Ok(Cow::Owned(out))
}

/// Whether there is white space between parts.
fn check(bytes: &[u8]) -> Result<bool, PirError> {
    let fail = |offset: usize, what: &'static str| PirError::new(Kind::Json { offset, what });
    // What may come: a value, a value or `]`, a key, a key or `}`, what follows a value.
    #[derive(Clone, Copy, PartialEq)]
    enum Next {
        Value,
        ValueOrEnd,
        Key,
        KeyOrEnd,
        After,
    }
    let (mut stack, mut next, mut at, mut blanks) = (Vec::<u8>::new(), Next::Value, 0, false);
    loop {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
            (blanks, at) = (true, at + 1);
        }
        let Some(&b) = bytes.get(at) else {
            return match stack.is_empty() && next == Next::After {
                true => Ok(blanks),
                false => Err(fail(at, "it ends too early")),
            };
        };
        match (next, b) {
            (Next::After, b',') if !stack.is_empty() => {
                next = if stack.last() == Some(&b'{') { Next::Key } else { Next::Value };
                at += 1;
            }
            (Next::After | Next::KeyOrEnd, b'}') if stack.last() == Some(&b'{') => {
                stack.pop();
                (next, at) = (Next::After, at + 1);
            }
            (Next::After | Next::ValueOrEnd, b']') if stack.last() == Some(&b'[') => {
                stack.pop();
                (next, at) = (Next::After, at + 1);
            }
            (Next::After, _) => return Err(fail(at, "expected a comma or an end")),
            (Next::Key | Next::KeyOrEnd, b'"') => {
                at = check_string(bytes, at).map_err(|(o, w)| fail(o, w))?;
                while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
                    (blanks, at) = (true, at + 1);
                }
                if bytes.get(at) != Some(&b':') {
                    return Err(fail(at, "expected a colon"));
                }
                (next, at) = (Next::Value, at + 1);
            }
            (Next::Key | Next::KeyOrEnd, _) => return Err(fail(at, "expected a key")),
            (_, b'{' | b'[') => {
                if stack.len() == MAX_DEPTH {
                    return Err(PirError::new(Kind::TooDeep));
                }
                stack.push(b);
                (next, at) = (if b == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd }, at + 1);
            }
            (_, b'"') => (next, at) = (Next::After, check_string(bytes, at).map_err(|(o, w)| fail(o, w))?),
            (_, b'-' | b'0'..=b'9') => {
                (next, at) = (Next::After, check_number(bytes, at).map_err(|o| fail(o, "not a number"))?);
            }
            _ => {
                let word = [&b"true"[..], b"false", b"null"].into_iter().find(|w| bytes[at..].starts_with(w));
                let Some(word) = word else { return Err(fail(at, "expected a value")) };
                (next, at) = (Next::After, at + word.len());
            }
        }
    }
}

fn check_string(bytes: &[u8], start: usize) -> Result<usize, (usize, &'static str)> {
    let mut at = start + 1;
    loop {
        match bytes.get(at) {
            None => return Err((start, "a string without end")),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => match bytes.get(at + 1) {
                Some(b'u') => {
                    let hex = bytes.get(at + 2..at + 6).unwrap_or_default();
                    if hex.len() != 4 || !hex.iter().all(u8::is_ascii_hexdigit) {
                        return Err((at, "not an escape"));
                    }
                    at += 6;
                }
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                _ => return Err((at, "not an escape")),
            },
            Some(0..0x20) => return Err((at, "a control character in a string")),
            Some(_) => at += 1,
        }
    }
}

fn check_number(bytes: &[u8], start: usize) -> Result<usize, usize> {
    let digits = |at: usize| at + bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = start + usize::from(bytes[start] == b'-');
    let whole = digits(at);
    if whole == at || (bytes[at] == b'0' && whole > at + 1) {
        return Err(start);
    }
    at = whole;
    if bytes.get(at) == Some(&b'.') {
        let end = digits(at + 1);
        if end == at + 1 {
            return Err(start);
        }
        at = end;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let end = digits(at);
        if end == at {
            return Err(start);
        }
        at = end;
    }
    Ok(at)
}

/// One past the quote that ends the string at `at`.
#[inline]
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    loop {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Walks the members of an object or the elements of a list, of compact JSON that was checked.
#[derive(Clone, Copy)]
pub(super) struct Walk<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Walk<'t> {
    /// Into a value; `None` when it does not begin with `open`.
    pub fn into(value: &'t str, open: u8) -> Option<Self> {
        (value.as_bytes().first() == Some(&open)).then_some(Walk { text: value, at: 1 })
    }

    /// Whether another element comes; its value is next.
    pub fn element(&mut self) -> bool {
        match self.text.as_bytes()[self.at] {
            b']' | b'}' => false,
            b',' => {
                self.at += 1;
                true
            }
            _ => true,
        }
    }

    /// The next key of an object; its value is next.
    pub fn key(&mut self) -> Option<&'t str> {
        if !self.element() {
            return None;
        }
        let end = string_end(self.text.as_bytes(), self.at);
        let key = &self.text[self.at + 1..end - 1];
        self.at = end + 1;
        Some(key)
    }

    /// The next value, skipped.
    pub fn value(&mut self) -> &'t str {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let mut at = start;
        let mut depth = 0usize;
        loop {
            match bytes[at] {
                b'"' => at = string_end(bytes, at),
                b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
                b'}' | b']' => (depth, at) = (depth - 1, at + 1),
                b',' | b':' => at += 1,
                _ => at += bytes[at..].iter().take_while(|b| !matches!(b, b',' | b'}' | b']')).count(),
            }
            if depth == 0 {
                self.at = at;
                return &self.text[start..at];
            }
        }
    }
}

/// The elements of a list.
pub(super) fn list(value: &str) -> Option<impl Iterator<Item = &str>> {
    let mut walk = Walk::into(value, b'[')?;
    Some(std::iter::from_fn(move || walk.element().then(|| walk.value())))
}

/// The members of an object.
pub(super) fn object(value: &str) -> Option<impl Iterator<Item = (&str, &str)>> {
    let mut walk = Walk::into(value, b'{')?;
    Some(std::iter::from_fn(move || walk.key().map(|k| (k, walk.value()))))
}

/// The text of a string; `None` for another value, or a lone surrogate.
pub(super) fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<String>(value).ok().map(Cow::Owned)
}

/// A string as the file's writer quotes it.
pub(super) fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

/// A number as the file's writer (nlohmann's JSON for C++) spells it: shortest digits that read back, a
/// point always, an exponent below 1e-4 and from 1e15 on. `None` for what JSON cannot say.
pub(super) fn float(v: f64) -> Option<String> {
    if !v.is_finite() {
        return None;
    }
    if v == 0.0 {
        return Some(if v.is_sign_negative() { "-0.0" } else { "0.0" }.to_owned());
    }
    let text = format!("{:e}", v.abs());
    let (digits, exponent) = text.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let digits: String = digits.chars().filter(|c| *c != '.').collect();
    // The place of the point, counted from the first digit.
    let (k, n) = (digits.len() as i32, exponent + 1);
    let sign = if v < 0.0 { "-" } else { "" };
    Some(if k <= n && n <= 15 {
        format!("{sign}{digits}{}.0", "0".repeat((n - k) as usize))
    } else if 0 < n && n <= 15 {
        format!("{sign}{}.{}", &digits[..n as usize], &digits[n as usize..])
    } else if -4 < n && n <= 0 {
        format!("{sign}0.{}{digits}", "0".repeat(-n as usize))
    } else {
        let e = format!("{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
        match k {
            1 => format!("{sign}{digits}e{e}"),
            _ => format!("{sign}{}.{}e{e}", &digits[..1], &digits[1..]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_json_takes_is_taken_and_the_rest_not() {
        let texts = [
            "",
            "1",
            "01",
            "-",
            "-0",
            "1.",
            "1.5e",
            "1e+5",
            "[",
            "[]",
            "[1,]",
            "[1 2]",
            "{}",
            "{,}",
            "{\"a\"}",
            "}",
            "{\"a\":1,}",
            "{\"a\":1}",
            "\"\\u12g4\"",
            "\"\\x\"",
            "\"a\nb\"",
            "nul",
            "null",
            "[1]]",
            "[1}",
            "{1:2}",
            " [ 1 , {\"a b\" : \" \\\" \" } ] ",
            "\"",
            "\"\\",
            "[\"a\",true,false]",
            "{\"a\":[{}]}",
            "[,1]",
            "1 1",
        ];
        for text in texts {
            let theirs = serde_json::from_str::<serde_json::Value>(text);
            let ours = compact(text);
            assert_eq!(ours.is_ok(), theirs.is_ok(), "{text:?} {:?}", ours.err());
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                assert_eq!(serde_json::from_str::<serde_json::Value>(&ours).unwrap(), theirs);
                assert_eq!(ours.matches(' ').count(), theirs.to_string().matches(' ').count(), "{text:?}");
            }
        }
    }

    #[test]
    fn deep_text_is_refused_without_recursion() {
        assert!(compact(&"[".repeat(100_000)).is_err());
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(compact(&deep(MAX_DEPTH)).is_ok() && compact(&deep(MAX_DEPTH + 1)).is_err());
    }

    #[test]
    fn floats_are_spelt_as_the_writer_does() {
        let cases = [
            (0.0, "0.0"),
            (3.0, "3.0"),
            (-0.547722578048706, "-0.547722578048706"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1e+15"),
            (123456789012345.0, "123456789012345.0"),
            (1e100, "1e+100"),
            (0.10000000149011612, "0.10000000149011612"),
            (100.0, "100.0"),
            (1234.5, "1234.5"),
            (-0.0, "-0.0"),
        ];
        for (v, text) in cases {
            assert_eq!(float(v).as_deref(), Some(text));
        }
        assert_eq!(float(f64::NAN), None);
    }
}
