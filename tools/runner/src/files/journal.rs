//! What a patch is about to do, written down before any of its names appears in the root.
//!
//! One file per operation, in one write, with its own hash at the end: a journal that
//! does not parse was cut by a crash, and then nothing had happened yet.

use std::os::fd::BorrowedFd;

use codespace_router::OperationId;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fsync, unlinkat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{read::version, root::open_beneath};
use crate::Change;

const FORMAT: u32 = 1;

/// Everything recovery needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    format: u32,
    pub(super) operation: OperationId,
    /// Every path the patch names, sorted.
    pub(super) files: Vec<String>,
    /// What the client is told if it succeeds.
    pub(super) changes: Vec<Change>,
    /// One per path that ends different, in the order of the commit.
    pub(super) effects: Vec<Effect>,
    /// Folders that will be made, outermost first.
    pub(super) folders: Vec<String>,
}

/// What happens to one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Effect {
    pub(super) path: String,
    /// The bytes before; `None` when the path did not exist.
    pub(super) before: Option<Print>,
    /// The bytes after; `None` when the path will not exist.
    pub(super) after: Option<Print>,
    /// The name beside it that holds the new bytes, and after an exchange the old ones.
    pub(super) staged: String,
    /// The name beside it that keeps the old bytes when they are not exchanged.
    pub(super) backup: String,
}

/// By what bytes are known again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Print {
    pub(super) version: String,
    pub(super) size: u64,
}

impl Effect {
    pub(super) fn new(
        operation: &OperationId,
        number: usize,
        path: String,
        before: Option<Print>,
        after: Option<Print>,
    ) -> Self {
        let id = operation.as_str().trim_start_matches("op_");
        Self {
            staged: format!(".codespace-{id}-{number}.new"),
            backup: format!(".codespace-{id}-{number}.old"),
            path,
            before,
            after,
        }
    }
}

impl Journal {
    pub(super) fn new(
        operation: OperationId,
        files: Vec<String>,
        changes: Vec<Change>,
        effects: Vec<Effect>,
        folders: Vec<String>,
    ) -> Self {
        Self {
            format: FORMAT,
            operation,
            files,
            changes,
            effects,
            folders,
        }
    }

    /// The file's bytes: the record, a line feed, and the record's hash.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        let seal = version(&bytes);
        bytes.push(b'\n');
        bytes.extend_from_slice(seal.as_bytes());
        Ok(bytes)
    }

    /// Reads it back; `None` when it is torn or of another format.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().rposition(|byte| *byte == b'\n')?;
        let (record, seal) = (&bytes[..at], &bytes[at + 1..]);
        if version(record).as_bytes() != seal {
            return None;
        }
        serde_json::from_slice::<Self>(record)
            .ok()
            .filter(|journal| journal.format == FORMAT)
    }
}

/// Writes a journal's bytes under its operation's name.
pub(super) fn write(
    dir: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    durable: bool,
) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_beneath(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    write_all(&file, bytes)?;
    if durable {
        fsync(&file)?;
        fsync(dir)?;
    }
    Ok(())
}

/// Removes a journal: the operation is settled.
pub(super) fn remove(dir: BorrowedFd<'_>, name: &str, durable: bool) -> Result<(), Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(other) => return Err(other),
    }
    if durable { fsync(dir) } else { Ok(()) }
}

/// Writes every byte.
pub(super) fn write_all(file: &impl std::os::fd::AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(taken) => bytes = &bytes[taken..],
            Err(Errno::INTR) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_cut_anywhere_is_torn() {
        let operation = OperationId::mint();
        let print = Print {
            version: version(b"x"),
            size: 1,
        };
        let effect = Effect::new(&operation, 0, "a\nb".into(), Some(print), None);
        let journal = Journal::new(
            operation,
            vec!["a".into()],
            Vec::new(),
            vec![effect],
            Vec::new(),
        );
        let bytes = journal.encode().unwrap();
        assert_eq!(Journal::decode(&bytes), Some(journal));
        for end in 0..bytes.len() {
            assert_eq!(Journal::decode(&bytes[..end]), None, "{end}");
        }
    }
}
