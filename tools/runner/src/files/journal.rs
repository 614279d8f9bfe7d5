//! What a patch is about to do, written down before any of its names appears in the root.
//!
//! One file per operation, in one write, with its own hash at the end: a journal that
//! does not parse was cut by a crash, and then nothing had happened yet. It names the
//! root by device and inode, so that no other folder is ever settled from it, and the
//! ledger that has the operation, so that whoever settles it can leave word there.

use std::os::fd::{BorrowedFd, OwnedFd};

use codespace_router::{OperationId, OperationStatus};
use rustix::{
    fs::{AtFlags, Mode, OFlags, fsync, unlinkat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{read::version, root::open_beneath};
use crate::Change;

const FORMAT: u32 = 2;

/// Everything recovery needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    format: u32,
    pub(super) operation: OperationId,
    /// The folder it is about.
    pub(super) root: RootId,
    /// The store that has the record; `None` for one that ended with its server.
    pub(super) ledger: Option<String>,
    /// How it ended, once that is recorded: then only names are left to be removed or kept.
    pub(super) ended: Option<OperationStatus>,
    /// Every path the patch names, sorted.
    pub(super) files: Vec<String>,
    /// What the client is told if it succeeds.
    pub(super) changes: Vec<Change>,
    /// One per path that ends different, in the order of the commit.
    pub(super) effects: Vec<Effect>,
    /// Folders that will be made, outermost first.
    pub(super) folders: Vec<String>,
}

/// By what a root is known again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RootId {
    /// For a person; may be lossy.
    pub(super) path: String,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// What a journal's file holds.
#[derive(Debug, PartialEq)]
pub(super) enum Decoded {
    Journal(Box<Journal>),
    /// Cut by a crash while it was written: nothing had happened yet.
    Torn,
    /// Whole, but of another version of this program.
    Strange,
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
        (root, ledger): (RootId, Option<String>),
        files: Vec<String>,
        changes: Vec<Change>,
        effects: Vec<Effect>,
        folders: Vec<String>,
    ) -> Self {
        Self {
            format: FORMAT,
            operation,
            root,
            ledger,
            ended: None,
            files,
            changes,
            effects,
            folders,
        }
    }

    /// The file's bytes: the record, a line feed, and the record's hash.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        seal(self)
    }

    /// Reads it back.
    pub(super) fn decode(bytes: &[u8]) -> Decoded {
        let Some(record) = sealed(bytes) else {
            return Decoded::Torn;
        };
        match serde_json::from_slice::<Self>(record) {
            Ok(journal) if journal.format == FORMAT => Decoded::Journal(Box::new(journal)),
            _ => Decoded::Strange,
        }
    }
}

/// A record, a line feed, and the record's hash.
pub(super) fn seal(record: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(record)?;
    let seal = version(&bytes);
    bytes.push(b'\n');
    bytes.extend_from_slice(seal.as_bytes());
    Ok(bytes)
}

/// The record of sealed bytes; `None` when they were cut.
pub(super) fn sealed(bytes: &[u8]) -> Option<&[u8]> {
    let at = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let (record, seal) = (&bytes[..at], &bytes[at + 1..]);
    (version(record).as_bytes() == seal).then_some(record)
}

/// Whether a name is one that a journal mints: only such a name is ever hidden or removed.
pub(super) fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(".codespace-") else {
        return false;
    };
    let Some(rest) = rest
        .strip_suffix(".new")
        .or_else(|| rest.strip_suffix(".old"))
    else {
        return false;
    };
    rest.split_once('-').is_some_and(|(id, number)| {
        format!("op_{id}").parse::<OperationId>().is_ok()
            && number
                .parse::<usize>()
                .is_ok_and(|n| n.to_string() == number)
    })
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
pub(super) fn remove(dir: &OwnedFd, name: &str, durable: bool) -> Result<(), Errno> {
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
        let root = RootId {
            path: "/r".into(),
            device: 1,
            inode: 2,
        };
        let name = effect.staged.clone();
        let journal = Journal::new(
            operation,
            (root, None),
            vec!["a".into()],
            Vec::new(),
            vec![effect],
            Vec::new(),
        );
        let bytes = journal.encode().unwrap();
        assert_eq!(
            Journal::decode(&bytes),
            Decoded::Journal(Box::new(journal.clone()))
        );
        for end in 0..bytes.len() {
            assert_eq!(Journal::decode(&bytes[..end]), Decoded::Torn, "{end}");
        }
        // A whole one of another version is not torn: it may be all that is left of old bytes.
        let newer = Journal {
            format: FORMAT + 1,
            ..journal
        };
        assert_eq!(Journal::decode(&newer.encode().unwrap()), Decoded::Strange);
        assert!(is_ours(&name) && is_ours(&name.replace(".new", ".old")));
        for other in [
            ".codespace-x",
            ".codespace-1-0.new",
            &name[1..],
            &format!("{name}x"),
            &name.replace("-0.", "-00."),
            &name.replace("-0.", "-."),
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
