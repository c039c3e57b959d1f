//! How do tests run the command-line tool? As a user does: exit code, standard output, standard error.

#![allow(dead_code, reason = "each test uses a part")]

use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A run that has ended.
pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

/// Runs the tool in a folder, with this standard input.
pub fn fed_in(dir: &Path, stdin: &[u8], args: &[&str]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mastercast"))
        .args(args)
        .current_dir(dir)
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    // A tool that does not read its input closes the pipe.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    let done = child.wait_with_output().expect("the tool ends");
    let err = String::from_utf8(done.stderr).expect("text on standard error");
    Ran { code: done.status.code().expect("an exit code"), out: done.stdout, err }
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text on standard output")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).expect("JSON on standard output")
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "\n{}\n{}", String::from_utf8_lossy(&self.out), self.err);
        self
    }

    /// That standard output has each text.
    #[track_caller]
    pub fn prints(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.text().contains(text), "no `{text}` in\n{}", self.text());
        }
        self
    }

    /// That standard error has each text.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.err.contains(text), "no `{text}` in\n{}", self.err);
        }
        self
    }

    /// That standard error lacks each text.
    #[track_caller]
    pub fn silent_on(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(!self.err.contains(text), "`{text}` in\n{}", self.err);
        }
        self
    }
}
