//! The held root: the one capability through which files are reached.
//!
//! Every open starts at a held descriptor and goes through `openat2(2)` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so the kernel keeps the answer beneath the
//! root even while a command swaps a folder for a link.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use codespace_router::{Code, ToolError};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, openat2, stat},
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
    lock: Arc<Lock>,
    pub(super) limits: FileLimits,
    pub(super) durable: bool,
    pub(super) steps: Steps,
}

/// The descriptors that make a root: with them another process can hold the very same one.
#[derive(Debug)]
pub struct Held<Fd> {
    /// The root itself.
    pub root: Fd,
    /// The folder of its patches' journals.
    pub journals: Option<Fd>,
    /// What [`FileRoot::try_lock`] locks. The lock belongs to the open file description
    /// (flock(2)): when its taker is killed it stays taken as long as another process has
    /// this descriptor, and so as long as that one may still write below the root.
    pub lock: Option<Fd>,
}

#[derive(Debug)]
struct Lock {
    file: Option<OwnedFd>,
    // The description is this server's own, so the kernel does not keep two takers here apart.
    taken: AtomicBool,
}

/// The advisory lock on a root; dropping it unlocks.
#[derive(Debug)]
pub struct RootLock(Arc<Lock>);

impl Drop for RootLock {
    fn drop(&mut self) {
        if let Some(file) = &self.0.file {
            let _ = flock(file, FlockOperation::Unlock);
        }
        self.0.taken.store(false, Ordering::Release);
    }
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

// A folder at its place, wherever that leads but through a link at its end.
const PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
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
        let held = openat2(CWD, root, PLACE, Mode::empty(), ResolveFlags::empty())?;
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
        // A root that cannot be listed can be read from; nothing in it can be locked.
        let lock = open_beneath(
            &held,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        );
        let held = Held {
            root: held,
            journals,
            lock: lock.ok(),
        };
        Self::from_held(held, root, limits, full_durability)
    }

    /// The root that another process holds, from its descriptors.
    ///
    /// # Errors
    /// The root cannot be looked at.
    pub fn from_held(
        held: Held<OwnedFd>,
        root: &Path,
        limits: FileLimits,
        full_durability: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            identity: identity(&fstat(&held.root)?),
            path: std::path::absolute(root)?,
            root: held.root,
            journals: held.journals,
            lock: Arc::new(Lock {
                file: held.lock,
                taken: AtomicBool::new(false),
            }),
            limits,
            durable: full_durability,
            steps: Steps::default(),
        })
    }

    /// What another process needs to hold this root, besides its path and limits.
    #[must_use]
    pub fn held(&self) -> Held<BorrowedFd<'_>> {
        Held {
            root: self.root.as_fd(),
            journals: self.journals(),
            lock: self.lock.file.as_ref().map(AsFd::as_fd),
        }
    }

    /// Where the root stands.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The caps it was opened with.
    #[must_use]
    pub fn limits(&self) -> FileLimits {
        self.limits
    }

    /// Whether patches survive power loss.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Locks the root against other servers on this host, at once or not at all.
    ///
    /// # Errors
    /// [`LockFault`].
    pub fn try_lock(&self) -> Result<RootLock, LockFault> {
        let there = openat2(CWD, &self.path, PLACE, Mode::empty(), ResolveFlags::empty())
            .and_then(fstat)
            .map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => LockFault::Gone,
                other => LockFault::Os(other.into()),
            })?;
        if identity(&there) != self.identity {
            return Err(LockFault::Gone);
        }
        let Some(file) = &self.lock.file else {
            return Err(LockFault::Os(Errno::ACCESS.into()));
        };
        if self.lock.taken.swap(true, Ordering::Acquire) {
            return Err(LockFault::Busy);
        }
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(RootLock(Arc::clone(&self.lock))),
            Err(errno) => {
                self.lock.taken.store(false, Ordering::Release);
                Err(match errno {
                    Errno::WOULDBLOCK => LockFault::Busy,
                    other => LockFault::Os(other.into()),
                })
            }
        }
    }

    /// Whether the root still stands where it was opened.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !self.is_gone()
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
        fstat(&self.root).is_ok_and(|now| now.st_nlink == 0)
            || !stat(&self.path).is_ok_and(|now| identity(&now) == self.identity)
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
