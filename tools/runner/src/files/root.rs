//! The held root: the one capability through which files are reached.
//!
//! Every open starts at a held descriptor and goes through `openat2(2)` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so the kernel keeps the answer beneath the
//! root even while a command swaps a folder for a link.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use codespace_router::{Code, OperationStatus, ToolError};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, openat2, stat},
    io::Errno,
};

use super::{
    journal::{Journal, RootId},
    journals::Journals,
    path,
    steps::Steps,
};

/// Caps on what one call reads or lists.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// The most raw bytes of a file that `read` answers.
    pub read_bytes: usize,
    /// The most paths that `find` answers.
    pub find_paths: usize,
    /// The largest file a patch may name, in bytes.
    pub patch_file_bytes: u64,
}

/// A workspace's root, held open: the capability for every file beneath it.
#[derive(Debug)]
pub struct FileRoot {
    root: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
    journals: Option<Journals>,
    name: String,
    ledger: Option<String>,
    /// Let go of when the process has no descriptor left in the middle of a commit.
    spare: Mutex<Vec<OwnedFd>>,
    /// Ended patches some of whose names could not be removed.
    pub(super) left: Mutex<Vec<(Journal, OperationStatus)>>,
    pub(super) limits: FileLimits,
    pub(super) durable: bool,
    pub(super) steps: Steps,
}

/// The advisory lock on a root; dropping it unlocks.
#[derive(Debug)]
pub struct RootLock {
    _held: OwnedFd,
}

/// Why a root was not locked.
#[derive(Debug)]
pub enum LockFault {
    /// Another server on this host holds it.
    Busy,
    /// The root was removed, moved away or replaced.
    Gone,
    /// The system refused.
    Os(io::Error),
}

impl std::fmt::Display for LockFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy => f.write_str("another server holds the workspace root"),
            Self::Gone => f.write_str(
                "the workspace root is gone: it was removed, moved or replaced while the server ran",
            ),
            Self::Os(error) => {
                let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
                write!(f, "the workspace root cannot be reached: {}", path::reason(errno))
            }
        }
    }
}

impl std::error::Error for LockFault {}

impl LockFault {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Self::Gone,
            other => Self::Os(other.into()),
        }
    }
}

const NEVER_LEAVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
/// Descriptors kept for verifying and putting back, and how often an open is tried.
const SPARE: usize = 4;
const TRIES: u32 = 6;
const ALWAYS: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// Opens `path` beneath a held directory. The only way this crate opens a file.
pub(super) fn open_beneath(
    dir: impl AsFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // openat2(2) refuses flags that mean nothing to O_PATH, which opens nothing anyway.
    let always = if flags.contains(OFlags::PATH) {
        OFlags::NOFOLLOW | OFlags::CLOEXEC
    } else {
        ALWAYS
    };
    let mut tries = 0;
    loop {
        match openat2(dir.as_fd(), path, flags | always, mode, NEVER_LEAVE) {
            // The kernel could not tell because of a rename at the same time: openat2(2).
            Err(Errno::AGAIN | Errno::INTR) if tries < 64 => tries += 1,
            answer => return answer,
        }
    }
}

/// Device and inode: what makes a file this file.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl FileRoot {
    /// Opens a root. `journal_dir` is where this root's patches keep their journals: a
    /// folder of its own, outside the root; made if missing. Without one no patch can be
    /// written. `full_durability` makes a patch survive power loss too.
    ///
    /// # Errors
    /// A root that is missing, a file or a symlink; a journal folder that cannot be made.
    pub fn open(
        root: &Path,
        journal_dir: Option<&Path>,
        limits: FileLimits,
        full_durability: bool,
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat2(CWD, root, flags, Mode::empty(), ResolveFlags::empty())?;
        let journals = journal_dir.map(Journals::open).transpose()?;
        Ok(Self {
            identity: identity(&fstat(&held)?),
            path: std::path::absolute(root)?,
            root: held,
            journals,
            name: String::new(),
            ledger: None,
            spare: Mutex::default(),
            left: Mutex::default(),
            limits,
            durable: full_durability,
            steps: Steps::default(),
        })
    }

    /// What its journals and messages name: the workspace, and the store with its records
    /// (`None` for one that ends with this server).
    #[must_use]
    pub fn serving(mut self, workspace: &str, ledger: Option<&str>) -> Self {
        workspace.clone_into(&mut self.name);
        self.ledger = ledger.map(str::to_owned);
        self
    }

    /// What a journal of this root says of root and ledger.
    pub(super) fn names_itself(&self) -> (RootId, Option<String>) {
        let root = RootId {
            path: self.path.to_string_lossy().into_owned(),
            device: self.identity.0,
            inode: self.identity.1,
        };
        (root, self.ledger.clone())
    }

    /// Whether a journal is about this folder, and not about one that stood here before.
    pub(super) fn is_named_by(&self, journal: &Journal) -> bool {
        (journal.root.device, journal.root.inode) == self.identity
    }

    /// Locks the root against other servers on this host, at once or not at all.
    ///
    /// # Errors
    /// [`LockFault`].
    pub fn try_lock(&self) -> Result<RootLock, LockFault> {
        // A lock belongs to an open file description, so each taker needs its own.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fresh = openat2(CWD, &self.path, flags, Mode::empty(), ResolveFlags::empty())
            .map_err(LockFault::of)?;
        let now = fstat(&fresh).map_err(|errno| LockFault::Os(errno.into()))?;
        if identity(&now) != self.identity {
            return Err(LockFault::Gone);
        }
        match flock(&fresh, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(RootLock { _held: fresh }),
            Err(Errno::WOULDBLOCK) => Err(LockFault::Busy),
            Err(other) => Err(LockFault::Os(other.into())),
        }
    }

    /// Whether the root still stands where it was opened: one look at its path. A folder
    /// that was removed stands nowhere, so its links need not be counted.
    ///
    /// # Errors
    /// [`LockFault::Gone`] or [`LockFault::Os`].
    pub fn stands(&self) -> Result<(), LockFault> {
        match stat(&self.path) {
            Ok(now) if identity(&now) == self.identity => Ok(()),
            Ok(_) => Err(LockFault::Gone),
            Err(errno) => Err(LockFault::of(errno)),
        }
    }

    /// Opens what a commit, once begun, cannot do without: an exhausted table of
    /// descriptors or a passing fault is tried again, with the spare ones given up.
    pub(super) fn open_sure(
        &self,
        dir: impl AsFd,
        path: &str,
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let mut last = Errno::MFILE;
        for attempt in 0..TRIES {
            let answer = if self.steps.exhausted() {
                Err(Errno::MFILE)
            } else {
                open_beneath(dir.as_fd(), path, flags, Mode::empty())
            };
            match answer {
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO)) => {
                    last = errno;
                    self.spares().pop();
                    if attempt > 0 {
                        std::thread::sleep(Duration::from_millis(1 << attempt));
                    }
                }
                answer => return answer,
            }
        }
        Err(last)
    }

    /// Sees to it that there are spare descriptors; a commit that cannot have them does
    /// not begin.
    pub(super) fn reserve(&self) -> Result<(), Errno> {
        let mut spare = self.spares();
        while spare.len() < SPARE {
            spare.push(rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?);
        }
        Ok(())
    }

    fn spares(&self) -> std::sync::MutexGuard<'_, Vec<OwnedFd>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root's own descriptor; only good as a start for other opens.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The folder of this root's journals.
    pub(super) fn journals(&self) -> Option<&Journals> {
        self.journals.as_ref()
    }

    /// What a failed look-up of `path` means, which may be that the root is gone.
    pub(super) fn refusal(&self, path: &str, errno: Errno) -> ToolError {
        match self.stands() {
            Err(fault) if errno == Errno::NOENT => self.missing(&fault),
            _ => path::refusal(path, errno),
        }
    }

    /// The answer when the root does not stand, or cannot be reached.
    pub(super) fn missing(&self, fault: &LockFault) -> ToolError {
        ToolError::new(
            Code::FileOperationFailed,
            format!(
                "workspace {}: {fault}; nothing was done, and its operator must see to the folder",
                self.name
            ),
        )
    }
}
