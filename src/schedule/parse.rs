//! How is a schedule read? By hand, one step at a time; the first mistake ends it, with its place and help.

use super::{Only, Schedule, Step};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// What is wrong with a schedule's text.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScheduleErrorKind {
    /// there is no step
    Empty,
    /// a limit of [`Schedule`] is passed
    TooLong,
    /// no step has this name
    UnknownStep(String),
    /// the step has no such option
    UnknownOption(String),
    /// the option stands twice
    RepeatedOption(String),
    /// `load` without a path
    MissingPath,
    /// a quote or parenthesis is not closed
    Unclosed(char),
    /// this text cannot stand here
    Unexpected(String),
    /// there is no `startup`
    NoStartup,
    /// there are two
    SecondStartup,
    /// `amp_init` stands before `startup`
    AmpInitFirst,
    /// a step stands after `main`
    AfterMain(String),
}

impl fmt::Display for ScheduleErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ScheduleErrorKind::*;
        match self {
            Empty => f.write_str("the schedule has no step"),
            TooLong => {
                write!(f, "the schedule is longer than {} bytes or {} steps", Schedule::MAX_TEXT, Schedule::MAX_STEPS)
            }
            UnknownStep(name) => write!(f, "there is no step `{name}`"),
            UnknownOption(name) => write!(f, "there is no option `{name}` here"),
            RepeatedOption(name) => write!(f, "the option `{name}` stands twice"),
            MissingPath => f.write_str("`load` needs a path"),
            Unclosed(c) => write!(f, "this `{c}` is not closed"),
            Unexpected(text) => write!(f, "`{text}` cannot stand here"),
            NoStartup => f.write_str("the schedule does not run `startup`"),
            SecondStartup => f.write_str("`startup` runs twice"),
            AmpInitFirst => f.write_str("`amp_init` runs before `startup`, when there is nothing to narrow"),
            AfterMain(name) => write!(f, "`{name}` stands after `main`"),
        }
    }
}

/// A schedule that cannot be read: what is wrong, where, and what would be right.
///
/// `Display` prints the line with a caret under the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleError {
    /// what is wrong
    pub kind: ScheduleErrorKind,
    /// the bytes of the text that it is about
    pub range: Range<usize>,
    /// what to write instead
    pub help: String,
    /// the whole text
    pub text: String,
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Control characters would move the caret.
        let clean = |s: &str| s.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        let before = clean(&self.text[..self.range.start]);
        let width = self.text[self.range.clone()].chars().count().max(1);
        writeln!(f, "in the schedule: {}", self.kind)?;
        writeln!(f, "  | {}{}", before, clean(&self.text[self.range.start..]))?;
        writeln!(f, "  | {}{}", " ".repeat(before.chars().count()), "^".repeat(width))?;
        write!(f, "  = help: {}", self.help)
    }
}

impl std::error::Error for ScheduleError {}

impl FromStr for Schedule {
    type Err = ScheduleError;
    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        Schedule::parse(text)
    }
}

const STEPS: &str = "the steps are `startup`, `load(PATH)`, `amp_init`, `amp_init(rewrite_master)` and `main`";

/// Prints a path, quoted when it would not read back as it is.
pub(super) fn write_path(f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
    let plain = !path.is_empty() && path.trim() == path && !path.contains([',', ')', '"', '\n', '\r']);
    if plain {
        return f.write_str(path);
    }
    f.write_str("\"")?;
    for c in path.chars() {
        if matches!(c, '"' | '\\') {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    f.write_str("\"")
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

type Parsed<T> = Result<T, ScheduleError>;

impl<'t> Parser<'t> {
    fn error<T>(&self, kind: ScheduleErrorKind, range: Range<usize>, help: impl Into<String>) -> Parsed<T> {
        Err(ScheduleError { kind, range, help: help.into(), text: self.text.to_owned() })
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        let hit = self.peek() == Some(c);
        if hit {
            self.at += c.len_utf8();
        }
        hit
    }

    /// A word of letters, digits, `_` and `-`; may be empty.
    fn word(&mut self) -> (&'t str, Range<usize>) {
        let start = self.at;
        let rest = &self.text[start..];
        let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len());
        self.at += len;
        (&rest[..len], start..self.at)
    }

    /// The next character as an error, or the end of the text.
    fn unexpected<T>(&self, help: impl Into<String>) -> Parsed<T> {
        match self.peek() {
            Some(c) => self.error(ScheduleErrorKind::Unexpected(c.to_string()), self.at..self.at + c.len_utf8(), help),
            None => self.error(ScheduleErrorKind::Unexpected("end of text".into()), self.at..self.at, help),
        }
    }

    fn step(&mut self) -> Parsed<(Step, Range<usize>)> {
        let (name, range) = self.word();
        let step = match name {
            "startup" => Step::Startup,
            "main" => Step::Main,
            "load" => self.load(range.clone())?,
            "amp_init" => self.amp_init()?,
            "" => return self.unexpected(STEPS),
            _ => return self.error(ScheduleErrorKind::UnknownStep(name.into()), range, STEPS),
        };
        Ok((step, range.start..self.at))
    }

    fn amp_init(&mut self) -> Parsed<Step> {
        const HELP: &str = "write `amp_init` or `amp_init(rewrite_master)`";
        self.skip_space();
        let open = self.at;
        if !self.eat('(') {
            return Ok(Step::AmpInit { rewrite_master: false });
        }
        self.skip_space();
        let (word, range) = self.word();
        let rewrite_master = match word {
            "" if self.peek() != Some(')') => return self.end_of_options(open, HELP),
            "" => false,
            "rewrite_master" => true,
            _ => return self.error(ScheduleErrorKind::UnknownOption(word.into()), range, HELP),
        };
        self.skip_space();
        if !self.eat(')') {
            return self.end_of_options(open, HELP);
        }
        Ok(Step::AmpInit { rewrite_master })
    }

    fn end_of_options<T>(&self, open: usize, help: &str) -> Parsed<T> {
        match self.peek() {
            None => self.error(ScheduleErrorKind::Unclosed('('), open..open + 1, help),
            Some(_) => self.unexpected(help),
        }
    }

    fn load(&mut self, name: Range<usize>) -> Parsed<Step> {
        const HELP: &str = "write `load(PATH)`, with quotes around a path that holds a comma or a parenthesis";
        const OPTION: &str = "the option of `load` is `only=params` or `only=masters`, after the path";
        self.skip_space();
        let open = self.at;
        if !self.eat('(') {
            return self.error(ScheduleErrorKind::MissingPath, name, HELP);
        }
        self.skip_space();
        let path = self.path(open, HELP)?;
        self.skip_space();
        let mut only = None;
        while self.eat(',') {
            self.skip_space();
            let (word, range) = self.word();
            match word {
                "only" => {}
                "" => return self.end_of_options(open, OPTION),
                _ => return self.error(ScheduleErrorKind::UnknownOption(word.into()), range, OPTION),
            }
            if only.is_some() {
                return self.error(ScheduleErrorKind::RepeatedOption(word.into()), range, OPTION);
            }
            self.skip_space();
            if !self.eat('=') {
                return self.end_of_options(open, OPTION);
            }
            self.skip_space();
            let (word, range) = self.word();
            only = Some(match word {
                "params" => Only::Params,
                "masters" => Only::Masters,
                "" => return self.end_of_options(open, OPTION),
                _ => return self.error(ScheduleErrorKind::UnknownOption(format!("only={word}")), range, OPTION),
            });
            self.skip_space();
        }
        if !self.eat(')') {
            return self.end_of_options(open, HELP);
        }
        Ok(Step::Load { path, only: only.unwrap_or_default() })
    }

    fn path(&mut self, open: usize, help: &str) -> Parsed<String> {
        let start = self.at;
        let path = if self.eat('"') {
            self.quoted(start, help)?
        } else {
            let rest = &self.text[start..];
            let Some(len) = rest.find([',', ')']) else {
                return self.error(ScheduleErrorKind::Unclosed('('), open..open + 1, help);
            };
            let path = rest[..len].trim_end();
            if let Some(i) = path.find(['"', '\n', '\r']) {
                self.at = start + i;
                return self.unexpected(help);
            }
            self.at += len;
            path.to_owned()
        };
        if path.is_empty() {
            return self.error(ScheduleErrorKind::MissingPath, start..(start + 1).max(self.at), help);
        }
        Ok(path)
    }

    fn quoted(&mut self, start: usize, help: &str) -> Parsed<String> {
        let mut path = String::new();
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(path),
                '\\' => match self.peek() {
                    Some(c @ ('"' | '\\')) => {
                        self.at += 1;
                        path.push(c);
                    }
                    _ => path.push('\\'),
                },
                c => path.push(c),
            }
        }
        self.error(ScheduleErrorKind::Unclosed('"'), start..start + 1, help)
    }
}

impl Schedule {
    /// Reads a schedule: steps between commas, spaces and line ends free. A path runs to the next comma
    /// or parenthesis, or stands in double quotes (in which `\"` and `\\` are a quote and a backslash).
    pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
        let mut p = Parser { text, at: 0 };
        let limit = "split the work, or check the text: this is likely not a schedule";
        if text.len() > Schedule::MAX_TEXT {
            return Err(ScheduleError {
                kind: ScheduleErrorKind::TooLong,
                range: 0..0,
                help: limit.into(),
                text: String::new(),
            });
        }
        let mut steps: Vec<Step> = Vec::new();
        p.skip_space();
        if p.peek().is_none() {
            return p.error(ScheduleErrorKind::Empty, 0..text.len(), "write for instance `startup, main`");
        }
        loop {
            let (step, range) = p.step()?;
            p.admit(&steps, &step, range.clone())?;
            if steps.len() == Schedule::MAX_STEPS {
                return p.error(ScheduleErrorKind::TooLong, range, limit);
            }
            steps.push(step);
            p.skip_space();
            if p.peek().is_none() {
                break;
            }
            if !p.eat(',') {
                return p.unexpected("steps are separated by commas");
            }
            p.skip_space();
        }
        if !steps.contains(&Step::Startup) {
            let end = text.trim_end().len();
            return p.error(ScheduleErrorKind::NoStartup, 0..end, "put `startup` where the startup program runs");
        }
        Ok(Schedule { steps })
    }
}

impl Parser<'_> {
    /// Whether a step may follow the steps before it.
    fn admit(&self, before: &[Step], step: &Step, range: Range<usize>) -> Parsed<()> {
        let started = before.contains(&Step::Startup);
        if before.last() == Some(&Step::Main) {
            let name = match step {
                Step::Startup => "startup",
                Step::Load { .. } => "load",
                Step::AmpInit { .. } => "amp_init",
                Step::Main => "main",
            };
            let help = "`main` is the last step; what runs between steps of training is a program of its own \
                        (see `resync.pb` and `renarrow.pb`)";
            return self.error(ScheduleErrorKind::AfterMain(name.into()), range, help);
        }
        match step {
            Step::Startup if started => {
                self.error(ScheduleErrorKind::SecondStartup, range, "a second `startup` would undo the loads before it")
            }
            Step::AmpInit { .. } if !started => {
                self.error(ScheduleErrorKind::AmpInitFirst, range, "put `amp_init` after `startup`")
            }
            Step::Main if !started => self.error(ScheduleErrorKind::NoStartup, range, "put `startup` before `main`"),
            _ => Ok(()),
        }
    }
}
