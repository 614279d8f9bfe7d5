//! The folder of a root's journals, and the word left in it for another server's ledger.
//!
//! It is found by the root alone, whatever the store and the workspace's name: so any
//! server that serves the root settles what another one left. Whose ledger has the
//! operation is told by a small file there, which that ledger takes at its next start.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use codespace_router::{OperationId, OperationStatus};
use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, fstat, openat2, renameat, stat, statat,
        unlinkat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    journal::{self, Decoded, Journal},
    root::{FileRoot, identity, open_beneath},
    settle::Settled,
};
use crate::Change;

const WORD: &str = ".ended";

/// A folder held open, and found again where it should stand.
#[derive(Debug)]
pub(super) struct Journals {
    path: PathBuf,
    held: Mutex<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    dir: Arc<OwnedFd>,
    identity: (u64, u64),
}

/// How an operation ended that another server settled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Word {
    /// The store that has its record.
    pub ledger: String,
    /// Which operation.
    pub operation: OperationId,
    /// Its end.
    pub status: OperationStatus,
    /// Why, when it is not a success.
    pub reason: Option<String>,
    /// Every path the patch named.
    pub files: Vec<String>,
    /// One row per path that is, or may be, different.
    pub changes: Vec<Change>,
    /// Names beside the targets that keep old bytes.
    pub kept: Vec<String>,
}

impl Journals {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            held: Mutex::new(make(path)?),
        })
    }

    /// The folder, held.
    pub(super) fn dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.lock().dir)
    }

    /// The folder that stands at its path now: a journal written into one that was
    /// removed or moved away would be found by nobody.
    pub(super) fn standing(&self) -> Result<Arc<OwnedFd>, Errno> {
        let mut held = self.lock();
        if !stat(&self.path).is_ok_and(|now| identity(&now) == held.identity) {
            *held = make(&self.path)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        Ok(Arc::clone(&held.dir))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a file whole or not at all, over one of the same name.
    pub(super) fn replace(&self, name: &str, bytes: &[u8], durable: bool) -> Result<(), Errno> {
        let dir = self.standing()?;
        let fresh = format!("{name}.fresh");
        match unlinkat(&*dir, &fresh, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        journal::write(dir.as_fd(), &fresh, bytes, durable)?;
        renameat(&*dir, &fresh, &*dir, name)?;
        if durable {
            rustix::fs::fsync(&*dir)
        } else {
            Ok(())
        }
    }

    /// Whether a file was written longer ago than `keep`.
    pub(super) fn is_older(&self, name: &str, keep: Duration) -> bool {
        let Ok(stat) = statat(&*self.dir(), name, AtFlags::SYMLINK_NOFOLLOW) else {
            return false;
        };
        let age = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |now| now.as_secs());
        u64::try_from(stat.st_mtime)
            .is_ok_and(|written| written.saturating_add(keep.as_secs()) < age)
    }

    fn names<T>(&self, each: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = open_beneath(&*self.standing()?, ".", flags, Mode::empty())?;
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut names = RawDir::new(&dir, buffer.spare_capacity_mut());
        let mut found = Vec::new();
        while let Some(entry) = names.next() {
            found.extend(entry?.file_name().to_str().ok().and_then(&each));
        }
        Ok(found)
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, Errno> {
        let file = open_beneath(&*self.dir(), name, OFlags::RDONLY, Mode::empty())?;
        let mut bytes = Vec::new();
        loop {
            bytes.reserve(64 * 1024);
            match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
                Ok(0) => return Ok(bytes),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    pub(super) fn operations(&self) -> Result<Vec<OperationId>, Errno> {
        let mut found = self.names(|name| name.parse().ok())?;
        found.sort_unstable();
        Ok(found)
    }

    pub(super) fn journal(&self, operation: &OperationId) -> Result<Decoded, Errno> {
        Ok(match Journal::decode(&self.bytes(operation.as_str())?) {
            Decoded::Journal(journal) if journal.operation != *operation => Decoded::Strange,
            other => other,
        })
    }
}

fn make(path: &Path) -> io::Result<Held> {
    // Paths of private files are told here.
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())?;
    let identity = identity(&fstat(&dir)?);
    Ok(Held {
        dir: Arc::new(dir),
        identity,
    })
}

impl FileRoot {
    /// The folder below `base` for the journals of `root`, which must be canonical.
    #[must_use]
    pub fn journal_folder(base: &Path, root: &Path) -> PathBuf {
        let hash = Sha256::digest(root.as_os_str().as_bytes());
        let name: String = hash
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        base.join(name)
    }

    /// Whether any folder below `base` holds a journal of, or word about, an operation.
    #[must_use]
    pub fn is_journalled(base: &Path, operation: &OperationId) -> bool {
        let Ok(folders) = std::fs::read_dir(base) else {
            return false;
        };
        folders.flatten().any(|folder| {
            let journal = folder.path().join(operation.as_str());
            journal.exists() || journal.with_extension(&WORD[1..]).exists()
        })
    }

    /// The operations whose journals are left here.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn journalled(&self) -> io::Result<Vec<OperationId>> {
        Ok(self
            .journals()
            .map_or(Ok(Vec::new()), Journals::operations)?)
    }

    /// Tells the ledger of another store how its operation ended. Nothing when that
    /// ledger ended with its server.
    ///
    /// # Errors
    /// It cannot be written; then the journal must stay.
    pub fn leave_word(&self, settled: &Settled) -> io::Result<()> {
        let (Some(journals), Some(ledger)) = (self.journals(), &settled.ledger) else {
            return Ok(());
        };
        let word = Word {
            ledger: ledger.clone(),
            operation: settled.operation.clone(),
            status: settled.status,
            reason: settled.reason.clone(),
            files: settled.files.clone(),
            changes: settled.changes.clone(),
            kept: settled.kept.clone(),
        };
        let name = format!("{}{WORD}", settled.operation.as_str());
        Ok(journals.replace(&name, &journal::seal(&word)?, self.durable)?)
    }

    /// The words left for `ledger`. Those for others go when they are older than `keep`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn words(&self, ledger: Option<&str>, keep: Duration) -> io::Result<Vec<Word>> {
        let Some(journals) = self.journals() else {
            return Ok(Vec::new());
        };
        let mut words = Vec::new();
        for name in journals.names(|name| name.ends_with(WORD).then(|| name.to_owned()))? {
            let bytes = journals.bytes(&name)?;
            let word = journal::sealed(&bytes)
                .and_then(|record| serde_json::from_slice::<Word>(record).ok());
            match word {
                Some(word) if ledger == Some(word.ledger.as_str()) => words.push(word),
                _ if journals.is_older(&name, keep) => {
                    let _ = unlinkat(&*journals.dir(), &name, AtFlags::empty());
                }
                _ => {}
            }
        }
        Ok(words)
    }

    /// Removes a word that its ledger has taken.
    pub fn forget_word(&self, operation: &OperationId) {
        if let Some(journals) = self.journals() {
            let name = format!("{}{WORD}", operation.as_str());
            let _ = unlinkat(&*journals.dir(), &name, AtFlags::empty());
        }
    }
}
