//! How do the bytes of a file get here? By memory map, or by reads at an offset.
//!
//! A map costs nothing until a page is touched and lets [`Checkpoint::read`](super::Checkpoint::read)
//! borrow. Its price: if another process cuts the file short while it is mapped, touching a page
//! behind the new end raises `SIGBUS`, which ends the process, and if another process writes into
//! it, the bytes change under a `&[u8]`. Neither can be prevented from here. Writers that replace
//! a file by rename, as this crate and the usual libraries do, cause neither: the map keeps the old
//! file. Where that cannot be trusted, open with [`Access::Read`]: a file that shrank is then an
//! ordinary [`CkptError::Io`], at the price of a copy. Conversions between formats
//! (`read_into`) never touch the map.

// One block below maps a file, one gives advice about memory; their reasons stand there.
#![allow(unsafe_code)]

use super::error::CkptError;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// How a checkpoint's files are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// By memory map; tensors are borrowed. Nobody may cut or change the file meanwhile.
    #[default]
    Map,
    /// By reads; tensors are copied. Safe against a file that changes.
    Read,
}

/// An open regular file, the length it had when it was opened, and perhaps its map.
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    map: Option<memmap2::Mmap>,
    len: u64,
}

impl Source {
    /// Opens a regular file; refuses what is not one before opening it, because opening a pipe waits.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Source, CkptError> {
        let io = |e| CkptError::io(path, e);
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(CkptError::unsupported(path, "is not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let map = if access == Access::Map && len > 0 {
            // SAFETY: the map is read only and lives as long as every slice taken from it (`bytes`
            // borrows `self`). That nobody else cuts or writes the file meanwhile is outside the
            // reach of any program; the module's docs say what happens then and how to avoid it.
            // All ranges are checked against `len`, which the map has too.
            Some(unsafe { memmap2::MmapOptions::new().len(usize_of(path, len)?).map(&file) }.map_err(io)?)
        } else {
            None
        };
        Ok(Source { path: path.to_path_buf(), file, map, len })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// `count` bytes from `at`; an error names what lies there when the file ends before.
    pub(crate) fn bytes(&self, at: u64, count: u64, what: &str) -> Result<Cow<'_, [u8]>, CkptError> {
        let end = at.checked_add(count).filter(|&end| end <= self.len).ok_or_else(|| {
            let rest = self.len.saturating_sub(at);
            CkptError::malformed(&self.path, at, format!("{what} needs {count} bytes, the file has {rest} more"))
        })?;
        match &self.map {
            // `end <= len`, which fitted a usize when the file was mapped
            Some(map) => Ok(Cow::Borrowed(&map[at as usize..end as usize])),
            None => {
                let mut buffer = vec![0; usize_of(&self.path, count)?];
                self.read_into(at, &mut buffer)?;
                Ok(Cow::Owned(buffer))
            }
        }
    }

    /// `N` bytes from `at`.
    pub(crate) fn array<const N: usize>(&self, at: u64, what: &str) -> Result<[u8; N], CkptError> {
        let bytes = self.bytes(at, N as u64, what)?;
        Ok(bytes[..].try_into().expect("`bytes` returns as many bytes as asked for"))
    }

    /// Fills `buffer` from `at` by reading the file, mapped or not.
    pub(crate) fn read_into(&self, at: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        read_exact_at(&self.file, buffer, at).map_err(|e| CkptError::io(&self.path, e))
    }
}

/// Asks the system to back fresh memory with huge pages: a large tensor costs a fault every 2 MiB instead of every
/// 4 KiB. Advice only: where it is not taken, nothing changes.
pub(crate) fn prefer_huge_pages<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let bytes = std::mem::size_of_val(memory);
        let start = memory.as_mut_ptr() as usize;
        // Whole pages that hold a byte of it, the first and last included: an allocator's header at the front
        // must not keep the first huge page from being one.
        let (first, end) = (start / PAGE * PAGE, (start + bytes).next_multiple_of(PAGE));
        // Less than a huge page cannot be one.
        if bytes >= 2 << 20 {
            // SAFETY: every page of the range holds a byte of `memory` and so is mapped; this advice changes
            // neither content nor mapping, whoever owns the rest of a page; an error is of no consequence.
            let _ = unsafe {
                rustix::mm::madvise(first as *mut std::ffi::c_void, end - first, rustix::mm::Advice::LinuxHugepage)
            };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

fn usize_of(path: &Path, n: u64) -> Result<usize, CkptError> {
    usize::try_from(n).map_err(|_| CkptError::unsupported(path, format!("{n} bytes do not fit the address space")))
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                buffer = &mut buffer[n..];
                at += n as u64;
            }
        }
    }
    Ok(())
}
