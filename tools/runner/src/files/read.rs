//! Reading a file: its start for the client, all of it for the version.
//!
//! A small file is one open, one `fstat`, one buffer. A large one streams through a
//! fixed buffer, so that a sparse file of gigabytes costs time but no memory.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use base64::Engine as _;
use codespace_router::ToolError;
use rustix::{
    buffer::spare_capacity,
    fs::{FileType, Mode, OFlags, fstat},
    io::Errno,
};
use sha2::{Digest, Sha256};

use super::{
    path,
    root::{FileRoot, open_beneath},
};
use crate::{Encoding, FileContent};

const STREAM: usize = 256 * 1024;

/// A regular file, open and not yet read. Its size tells the caller where to read it.
#[derive(Debug)]
pub struct OpenFile {
    file: OwnedFd,
    path: String,
    size: u64,
    cap: usize,
}

impl FileRoot {
    /// Opens one regular file for reading.
    ///
    /// # Errors
    /// `PATH_ESCAPE`, `SYMLINK_REJECTED`, `SPECIAL_FILE_REJECTED`, `FILE_NOT_FOUND`,
    /// `PATH_NOT_DIRECTORY`; `FILE_OPERATION_FAILED` with the system's reason.
    pub fn open_file(&self, path: &str) -> Result<OpenFile, ToolError> {
        path::check(path)?;
        // A held root goes on serving the folder it was opened at, wherever that is now.
        self.stands().map_err(|fault| self.missing(&fault))?;
        let asked = if path.is_empty() { "." } else { path };
        // A device would be opened before `fstat` tells what it is. Workspaces hold none
        // (making one needs root), O_NONBLOCK | O_NOCTTY keep the open harmless for those
        // that could stand there, and a second look-up would cost every read of a file.
        let file = open_beneath(self.fd(), asked, OFlags::RDONLY, Mode::empty())
            .map_err(|errno| self.refusal(path, errno))?;
        let stat = fstat(&file).map_err(|errno| path::refusal(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(path::special(path));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(OpenFile {
            file,
            path: path.to_owned(),
            size,
            cap: self.limits.read_bytes,
        })
    }

    /// Opens and reads one file: see [`open_file`](Self::open_file) and [`OpenFile::read`].
    ///
    /// # Errors
    /// Those of both.
    pub fn read(&self, path: &str) -> Result<FileContent, ToolError> {
        self.open_file(path)?.read()
    }
}

impl OpenFile {
    /// Its size in bytes when it was opened.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads it: the hash of all of it, and at most `limits.read_bytes` of content.
    ///
    /// # Errors
    /// `FILE_OPERATION_FAILED` with the system's reason.
    pub fn read(&self) -> Result<FileContent, ToolError> {
        self.read_while(&AtomicBool::new(false))
    }

    /// The same, until `stop` is set: a sparse file may have terabytes to hash. What it
    /// answers then nobody hears.
    pub(crate) fn read_while(&self, stop: &AtomicBool) -> Result<FileContent, ToolError> {
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        read_all(&self.file, size, self.cap, stop).map_err(|errno| path::refusal(&self.path, errno))
    }
}

fn read_all(
    file: &OwnedFd,
    size: usize,
    cap: usize,
    stop: &AtomicBool,
) -> Result<FileContent, Errno> {
    // One byte more than expected: a read that leaves it free has seen the end.
    let mut kept: Vec<u8> = Vec::with_capacity(size.min(cap).saturating_add(1));
    if fill(file, &mut kept)? && kept.len() <= cap {
        let version = version(&kept);
        let size = kept.len() as u64;
        return Ok(content(kept, None, version, size, false));
    }
    let mut hasher = Sha256::new();
    let mut text = Utf8::default();
    hasher.update(&kept);
    text.push(&kept);
    let mut total = kept.len() as u64;
    let mut chunk: Vec<u8> = Vec::with_capacity(STREAM);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        chunk.clear();
        let ended = fill(file, &mut chunk)?;
        hasher.update(&chunk);
        text.push(&chunk);
        total += chunk.len() as u64;
        let room = cap.saturating_sub(kept.len()).min(chunk.len());
        kept.extend_from_slice(&chunk[..room]);
        if ended {
            break;
        }
    }
    let truncated = total > cap as u64;
    kept.truncate(cap);
    Ok(content(
        kept,
        Some(text.is_valid()),
        label(&hasher.finalize().into()),
        total,
        truncated,
    ))
}

// Reads until the capacity is used up (false) or the file ends (true).
fn fill(file: &OwnedFd, buffer: &mut Vec<u8>) -> Result<bool, Errno> {
    while buffer.len() < buffer.capacity() {
        let room = buffer.capacity() - buffer.len();
        match rustix::io::read(file, spare_capacity(buffer)) {
            Ok(0) => return Ok(true),
            // A short read of a regular file is its end, except after a signal; the
            // large buffers go round once more to be sure, the exact one need not.
            Ok(got) if got < room && room <= STREAM / 2 => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(false)
}

fn content(
    mut kept: Vec<u8>,
    known: Option<bool>,
    version: String,
    size: u64,
    truncated: bool,
) -> FileContent {
    if known != Some(false) {
        if truncated && let Err(cut) = std::str::from_utf8(&kept) {
            kept.truncate(cut.valid_up_to());
        }
        match String::from_utf8(kept) {
            Ok(content) => {
                return FileContent {
                    content,
                    encoding: Encoding::Utf8,
                    version,
                    size,
                    truncated,
                };
            }
            Err(other) => kept = other.into_bytes(),
        }
    }
    let content = base64::engine::general_purpose::STANDARD.encode(&kept);
    FileContent {
        content,
        encoding: Encoding::Base64,
        version,
        size,
        truncated,
    }
}

/// The version of these bytes: `sha256:` and 64 hex digits.
pub(super) fn version(bytes: &[u8]) -> String {
    label(&Sha256::digest(bytes).into())
}

/// A hash as a version.
pub(super) fn label(hash: &[u8; 32]) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in hash {
        text.push(HEX[usize::from(byte >> 4)].into());
        text.push(HEX[usize::from(byte & 15)].into());
    }
    text
}

// Whether chunks are UTF-8 together: keeps the bytes of a character cut by a chunk's end.
#[derive(Default)]
struct Utf8 {
    broken: bool,
    open: Vec<u8>,
}

impl Utf8 {
    fn push(&mut self, mut chunk: &[u8]) {
        while !self.broken && !self.open.is_empty() && !chunk.is_empty() {
            self.open.push(chunk[0]);
            chunk = &chunk[1..];
            match std::str::from_utf8(&self.open) {
                Ok(_) => self.open.clear(),
                Err(fault) => self.broken = fault.error_len().is_some(),
            }
        }
        if self.broken {
            return;
        }
        if let Err(fault) = std::str::from_utf8(chunk) {
            self.broken = fault.error_len().is_some();
            self.open.extend_from_slice(&chunk[fault.valid_up_to()..]);
        }
    }

    fn is_valid(&self) -> bool {
        !self.broken && self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_judged_together() {
        let text = "aé→𝄞z".as_bytes();
        for size in 1..=text.len() {
            let mut whole = Utf8::default();
            text.chunks(size).for_each(|chunk| whole.push(chunk));
            assert!(whole.is_valid(), "{size}");
            let mut cut = Utf8::default();
            text[..text.len() - 2]
                .chunks(size)
                .for_each(|chunk| cut.push(chunk));
            assert!(!cut.is_valid(), "{size}");
            let mut bad = Utf8::default();
            [text, b"\xe2\x28\xa1", text]
                .concat()
                .chunks(size)
                .for_each(|chunk| bad.push(chunk));
            assert!(!bad.is_valid(), "{size}");
        }
    }
}
