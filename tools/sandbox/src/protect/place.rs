//! One watched place: what it is now, whether that is the same, and putting it back.
//!
//! Everything is resolved beneath the root without following a symlink, since the folders
//! on the way belong to the command that has just run.

use std::{
    ffi::{CString, OsString},
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat,
        mkdirat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

// Hooks and configuration are small. What is larger is compared, but cannot be put back.
const MOST_BYTES: u64 = 1 << 20;
const MOST_ENTRIES: usize = 1000;
// A command can make a folder as large as it likes.
const MOST_NAMES: usize = 65_536;
const DEEPEST: usize = 8;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// What kind of thing is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File,
    Link,
}

/// A place as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    /// Mode, identity and, if it is small, the content.
    File(u32, Stamp, Option<Vec<u8>>),
    Link(CString),
    Folder(u32, Vec<(OsString, State)>),
    /// A device, FIFO or socket.
    Other,
}

/// Tells a file that was not touched without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: i64,
    changed: (i64, u64),
}

impl State {
    pub(super) fn read(root: &OwnedFd, path: &Path) -> Self {
        match parent(root, path) {
            Some((folder, name)) => read_at(&folder, &name, 0),
            None => Self::Absent,
        }
    }

    /// Whether nothing that counts is different: a file with another time but the same
    /// bytes is the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(mode, stamp, bytes), Self::File(mode2, stamp2, bytes2)) => {
                mode == mode2 && (stamp == stamp2 || (bytes.is_some() && bytes == bytes2))
            }
            (Self::Folder(mode, entries), Self::Folder(mode2, entries2)) => {
                mode == mode2
                    && entries.len() == entries2.len()
                    && entries
                        .iter()
                        .zip(entries2)
                        .all(|((name, state), (name2, state2))| {
                            name == name2 && state.is_same(state2)
                        })
            }
            _ => self == other,
        }
    }

    pub(super) fn is_text(&self, text: &[u8]) -> bool {
        matches!(self, Self::File(_, _, Some(bytes)) if bytes == text)
    }

    /// Makes a place what it was. Whether that worked.
    pub(super) fn restore(&self, root: &OwnedFd, path: &Path) -> bool {
        let Some((folder, name)) = parent(root, path) else {
            // Without its parent the place is gone; so must it have been.
            return *self == Self::Absent;
        };
        if remove(&folder, &name, 0).is_err() {
            // Nested past all reason, say. Under another name it does no harm.
            let mut aside = OsString::from(".codespace-aside-");
            aside.push(&name);
            let _ = remove(&folder, &aside, 0);
            if renameat(&folder, &name, &folder, &aside).is_err() {
                return false;
            }
        }
        write_at(&folder, &name, self).is_ok()
    }
}

/// Opens the folder a path is in.
fn parent(root: &OwnedFd, path: &Path) -> Option<(OwnedFd, OsString)> {
    let name = path.file_name()?.to_owned();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat2(
        root,
        folder.unwrap_or(Path::new(".")),
        flags,
        Mode::empty(),
        BENEATH,
    );
    Some((folder.ok()?, name))
}

pub(super) fn kind(root: &OwnedFd, path: &Path) -> Option<Kind> {
    let (folder, name) = parent(root, path)?;
    let found = statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Some(Kind::Folder),
        FileType::RegularFile => Some(Kind::File),
        FileType::Symlink => Some(Kind::Link),
        _ => None,
    }
}

/// Whether there is anything at all.
pub(super) fn exists(root: &OwnedFd, path: &Path) -> bool {
    parent(root, path)
        .is_some_and(|(folder, name)| statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

/// The entries of a folder, none if it is none.
pub(super) fn names(root: &OwnedFd, path: &Path) -> Vec<OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(root, path, flags, Mode::empty(), BENEATH) {
        Ok(folder) => entries(&folder).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn entries(folder: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if names.len() >= MOST_NAMES {
            break;
        }
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Where a symlink leads, if that is beneath the root: relative to it, without symlinks.
pub(super) fn link_beneath(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let (folder, name) = parent(root, path)?;
    let text = readlinkat(&folder, &name, Vec::new()).ok()?;
    let text = PathBuf::from(OsString::from_vec(text.into_bytes()));
    let mut found = path.parent()?.to_owned();
    for part in text.components() {
        match part {
            std::path::Component::Normal(part) => found.push(part),
            std::path::Component::ParentDir => {
                if !found.pop() {
                    return None;
                }
            }
            std::path::Component::CurDir => {}
            _ => return None,
        }
    }
    Some(found).filter(|found| !found.as_os_str().is_empty())
}

fn read_at(folder: &OwnedFd, name: &OsString, depth: usize) -> State {
    let Ok(found) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return State::Absent;
    };
    let mode = found.st_mode & 0o7777;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => match readlinkat(folder, name, Vec::new()) {
            Ok(target) => State::Link(target),
            Err(_) => State::Other,
        },
        FileType::RegularFile => {
            let stamp = Stamp {
                inode: found.st_ino,
                size: found.st_size,
                changed: (found.st_ctime, found.st_ctime_nsec),
            };
            State::File(mode, stamp, content(folder, name))
        }
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let inner = openat2(folder, name, flags, Mode::empty(), BENEATH);
            let names = inner
                .as_ref()
                .map_or(Vec::new(), |inner| entries(inner).unwrap_or_default());
            if names.len() > MOST_ENTRIES || depth > DEEPEST {
                return State::Other;
            }
            let inner = inner.as_ref();
            let states = names
                .into_iter()
                .map(|name| {
                    let state =
                        inner.map_or(State::Absent, |inner| read_at(inner, &name, depth + 1));
                    (name, state)
                })
                .collect();
            State::Folder(mode, states)
        }
        _ => State::Other,
    }
}

fn content(folder: &OwnedFd, name: &OsString) -> Option<Vec<u8>> {
    // A FIFO put there between look and open must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat2(folder, name, flags, Mode::empty(), BENEATH).ok()?;
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    (bytes.len() as u64 <= MOST_BYTES).then_some(bytes)
}

fn remove(folder: &OwnedFd, name: &OsString, depth: usize) -> Result<(), Errno> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) if depth < 64 => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || openat2(folder, name, flags, Mode::empty(), BENEATH);
    let inner = match open() {
        Err(Errno::ACCESS) => {
            // Ours, with its bits taken away.
            let _ = rustix::fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty());
            open()?
        }
        other => other?,
    };
    let _ = fchmod(&inner, Mode::RWXU);
    let mut result = Ok(());
    for name in entries(&inner)? {
        // One that cannot be removed does not save the others.
        result = remove(&inner, &name, depth + 1).and(result);
    }
    result.and_then(|()| unlinkat(folder, name, AtFlags::REMOVEDIR))
}

fn write_at(folder: &OwnedFd, name: &OsString, state: &State) -> Result<(), Errno> {
    match state {
        State::Absent => Ok(()),
        State::Link(target) => symlinkat(target.as_c_str(), folder, name),
        State::File(mode, _, Some(bytes)) => {
            // Under another name first: a reader sees the old or the new, never half.
            let mut staged = OsString::from(".codespace-");
            staged.push(name);
            remove(folder, &staged, 0)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat2(folder, &staged, flags, Mode::RUSR | Mode::WUSR, BENEATH)?;
            let mut file = std::fs::File::from(file);
            file.write_all(bytes)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            own(folder, &file)?;
            fchmod(&file, Mode::from_raw_mode(*mode))?;
            renameat(folder, &staged, folder, name)
        }
        State::Folder(mode, entries) => {
            mkdirat(folder, name, Mode::RWXU)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let inner = openat2(folder, name, flags, Mode::empty(), BENEATH)?;
            own(folder, &inner)?;
            for (name, state) in entries {
                write_at(&inner, name, state)?;
            }
            fchmod(&inner, Mode::from_raw_mode(*mode))
        }
        State::File(_, _, None) | State::Other => Err(Errno::NOTSUP),
    }
}

/// What root puts back belongs to whoever the folder belongs to.
fn own(folder: &OwnedFd, made: impl AsFd) -> Result<(), Errno> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let found = fstat(folder)?;
    let (uid, gid) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
    fchown(made, Some(uid), Some(gid))
}

/// Opens the root to watch from.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}
