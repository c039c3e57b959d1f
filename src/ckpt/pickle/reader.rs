//! How does the pickle machine read its file? Forward, through a small window; payloads are stepped over.

use super::super::error::CkptError;
use super::super::map::Source;

/// Bytes read at once after a jump; what lies between two tensors is shorter.
const FIRST: usize = 4 << 10;
/// Bytes read at once when everything is looked at, as in metadata.
const MOST: usize = 256 << 10;

/// A position in a file, and the bytes around it.
pub(super) struct Reader<'s> {
    source: &'s Source,
    window: Vec<u8>,
    /// where the window begins in the file
    start: u64,
    /// the position, in the window
    at: usize,
    /// what the next refill asks for
    ask: usize,
}

impl<'s> Reader<'s> {
    pub fn new(source: &'s Source) -> Reader<'s> {
        Reader { source, window: Vec::new(), start: 0, at: 0, ask: FIRST }
    }

    /// The position in the file.
    pub fn pos(&self) -> u64 {
        self.start + self.at as u64
    }

    pub fn source(&self) -> &'s Source {
        self.source
    }

    /// An error at the position.
    pub fn bad(&self, what: impl Into<String>) -> CkptError {
        CkptError::malformed(self.source.path(), self.pos(), what)
    }

    /// The next `count` bytes, which must not pass [`FIRST`].
    pub fn take(&mut self, count: usize, what: &str) -> Result<&[u8], CkptError> {
        debug_assert!(count <= FIRST);
        if self.window.len() - self.at < count {
            self.refill(count, what)?;
        }
        self.at += count;
        Ok(&self.window[self.at - count..self.at])
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CkptError> {
        Ok(self.take(N, what)?.try_into().expect("`take` returns as many bytes as asked for"))
    }

    pub fn byte(&mut self, what: &str) -> Result<u8, CkptError> {
        match self.window.get(self.at) {
            Some(&b) => {
                self.at += 1;
                Ok(b)
            }
            None => Ok(self.array::<1>(what)?[0]),
        }
    }

    #[cold]
    fn refill(&mut self, count: usize, what: &str) -> Result<(), CkptError> {
        let (at, rest) = (self.pos(), self.source.len() - self.pos());
        if rest < count as u64 {
            return Err(self.bad(format!("{what} needs {count} bytes, the file has {rest} more")));
        }
        let len = rest.min(self.ask as u64) as usize;
        self.ask = (self.ask * 2).min(MOST);
        self.window.resize(len, 0);
        (self.start, self.at) = (at, 0);
        self.source.read_into(at, &mut self.window)
    }

    /// Steps over `count` bytes, which the file must have.
    pub fn skip(&mut self, count: u64, what: &str) -> Result<(), CkptError> {
        let rest = self.source.len() - self.pos();
        if count > rest {
            return Err(self.bad(format!("{what} needs {count} bytes, the file has {rest} more")));
        }
        if count <= (self.window.len() - self.at) as u64 {
            self.at += count as usize;
        } else {
            self.start = self.pos() + count;
            self.at = 0;
            self.window.clear();
            self.ask = FIRST;
        }
        Ok(())
    }

    /// Text up to a newline, which is stepped over; at most 255 bytes.
    pub fn line(&mut self, what: &str) -> Result<String, CkptError> {
        let mut out = Vec::new();
        loop {
            match self.byte(what)? {
                b'\n' => break,
                b if out.len() < 255 => out.push(b),
                _ => return Err(self.bad(format!("{what} without an end"))),
            }
        }
        String::from_utf8(out).map_err(|_| self.bad(format!("{what} that is not UTF-8")))
    }
}
