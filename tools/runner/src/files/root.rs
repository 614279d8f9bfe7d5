//! The held root: the one capability through which files are reached.
//!
//! Every open starts at a held descriptor and goes through `openat2(2)` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so the kernel keeps the answer beneath the
//! root even while a command swaps a folder for a link.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use codespace_router::{Code, ToolError};
use rustix::{
    fs::{
        CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, openat2,
        stat,
    },
    io::Errno,
};

use super::{path, steps::Steps};

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
    journals: Option<OwnedFd>,
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
            Self::Gone => f.write_str("the workspace root is gone"),
            Self::Os(error) => write!(f, "the workspace root cannot be locked: {error}"),
        }
    }
}

impl std::error::Error for LockFault {}

const NEVER_LEAVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
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
            Err(Errno::NOTDIR) if flags.contains(OFlags::PATH) && is_link(&dir, path) => {
                return Err(Errno::LOOP);
            }
            answer => return answer,
        }
    }
}

// O_PATH opens a link at the end of a path itself, whatever the way may not lead over, and
// O_DIRECTORY then only says that it is no folder: openat2(2).
fn is_link(dir: &impl AsFd, path: &str) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir.as_fd(), path, flags, Mode::empty(), NEVER_LEAVE)
        .and_then(fstat)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
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
        let journals = match journal_dir {
            None => None,
            Some(dir) => {
                std::fs::create_dir_all(dir)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Some(openat2(
                    CWD,
                    dir,
                    flags,
                    Mode::empty(),
                    ResolveFlags::empty(),
                )?)
            }
        };
        Ok(Self {
            identity: identity(&fstat(&held)?),
            path: std::path::absolute(root)?,
            root: held,
            journals,
            limits,
            durable: full_durability,
            steps: Steps::default(),
        })
    }

    /// Locks the root against other servers on this host, at once or not at all.
    ///
    /// # Errors
    /// [`LockFault`].
    pub fn try_lock(&self) -> Result<RootLock, LockFault> {
        // A lock belongs to an open file description, so each taker needs its own.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fresh = openat2(CWD, &self.path, flags, Mode::empty(), ResolveFlags::empty()).map_err(
            |errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => LockFault::Gone,
                other => LockFault::Os(other.into()),
            },
        )?;
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

    /// The root's own descriptor; only good as a start for other opens.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The folder of this root's journals.
    pub(super) fn journals(&self) -> Option<BorrowedFd<'_>> {
        self.journals.as_ref().map(AsFd::as_fd)
    }

    /// Whether the root was removed, moved away or replaced.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // A removed folder has no name, so its path leads elsewhere or nowhere.
        !stat(&self.path).is_ok_and(|now| identity(&now) == self.identity)
    }

    /// What a failed look-up of `path` means, which may be that the root is gone.
    pub(super) fn refusal(&self, path: &str, errno: Errno) -> ToolError {
        if errno == Errno::NOENT && self.is_gone() {
            gone()
        } else {
            path::refusal(path, errno)
        }
    }
}

/// The answer when the root is gone.
pub(super) fn gone() -> ToolError {
    ToolError::new(
        Code::FileOperationFailed,
        "the workspace root is gone: it was removed, moved or replaced while the server ran. Its operator must bring it back and restart",
    )
}
