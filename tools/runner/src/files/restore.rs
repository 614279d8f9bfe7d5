//! The way back. What happened to a path is read off the disk, never remembered: so the
//! same code serves a failed commit, a failed record and a crash, and may itself be
//! killed and run again.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, FileType, OFlags, RenameFlags, fstat, renameat, renameat_with, statat},
    io::Errno,
};
use sha2::{Digest, Sha256};

use super::{
    commit::rename_free,
    journal::{Effect, Journal, Print},
    load::Folders,
    path,
    read::label,
    root::{FileRoot, identity},
    transaction::Fault,
};

/// What stands under a name.
#[derive(Debug, PartialEq)]
pub(super) enum Look {
    Absent,
    File {
        version: String,
        size: u64,
        identity: (u64, u64),
    },
    /// Not a regular file, or one that cannot be the one asked for.
    Other,
}

impl Look {
    pub(super) fn is(&self, print: Option<&Print>) -> bool {
        match (self, print) {
            (Look::File { version, .. }, Some(print)) => *version == print.version,
            (Look::Absent, None) => true,
            _ => false,
        }
    }
}

/// Where a path stands between its old and its new state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Old,
    /// New; the old bytes are under this kind of name, or gone.
    New(Backup),
    /// Neither: another writer was here. `true` if the commit had been here before it.
    Foreign(bool),
    /// It could not be looked at, which says nothing about it.
    Unseen(Errno),
}

/// What came of putting back.
pub(super) struct Back {
    /// The effects that are not back.
    pub(super) stuck: Vec<usize>,
    /// Whether some of these could not even be looked at.
    pub(super) unseen: bool,
}

/// Where the old bytes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Backup {
    Staged,
    Aside,
    /// There were none: the path was added.
    NotNeeded,
    Gone,
}

/// The sizes that say a file may be the old or the new one.
pub(super) fn sizes(effect: &Effect) -> Option<[Option<u64>; 2]> {
    Some([
        effect.before.as_ref().map(|print| print.size),
        effect.after.as_ref().map(|print| print.size),
    ])
}

/// Looks at a name and hashes what is there. With `sizes`, a file of another size is not
/// read; nor is one that no patch may touch.
pub(super) fn look(
    root: &FileRoot,
    folder: &OwnedFd,
    name: &str,
    sizes: Option<[Option<u64>; 2]>,
) -> Result<Look, Errno> {
    let file = match root.open_sure(folder, name, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Look::Absent),
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(Look::Other),
        Err(errno) => return Err(errno),
    };
    let stat = fstat(&file)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let readable = size <= root.limits.patch_file_bytes || sizes.is_some();
    if !regular || !readable || sizes.is_some_and(|sizes| !sizes.contains(&Some(size))) {
        return Ok(Look::Other);
    }
    let mut hasher = Sha256::new();
    let mut buffer: Vec<u8> = Vec::with_capacity(64 * 1024);
    loop {
        buffer.clear();
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(0) => break,
            Ok(_) => hasher.update(&buffer),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(Look::File {
        version: label(&hasher.finalize().into()),
        size,
        identity: identity(&stat),
    })
}

/// Where one path stands.
pub(super) fn inspect(root: &FileRoot, folders: &mut Folders, effect: &Effect) -> State {
    let (parent, name) = path::split(&effect.path);
    match folders.get(root, parent) {
        Ok(folder) => inspect_in(root, &folder, name, effect).unwrap_or_else(State::Unseen),
        Err(Errno::NOENT) if effect.before.is_none() => State::Old,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => State::Foreign(true),
        Err(errno) => State::Unseen(errno),
    }
}

fn inspect_in(
    root: &FileRoot,
    folder: &OwnedFd,
    name: &str,
    effect: &Effect,
) -> Result<State, Errno> {
    let (before, after) = (effect.before.as_ref(), effect.after.as_ref());
    let sizes = sizes(effect);
    let target = look(root, folder, name, sizes)?;
    if target.is(before) {
        return Ok(State::Old);
    }
    let staged = look(root, folder, &effect.staged, sizes)?;
    let aside = look(root, folder, &effect.backup, sizes)?;
    let is_old = |look: &Look| before.is_some() && look.is(before);
    if !target.is(after) {
        let published = before.is_none() && staged == Look::Absent;
        return Ok(State::Foreign(
            published
                || is_old(&staged)
                || (is_old(&aside) && !(after.is_some() && staged.is(after))),
        ));
    }
    Ok(match before {
        None => match (&staged, &target) {
            (Look::Absent, _) => State::New(Backup::NotNeeded),
            // Two names of one file: killed between a link and its unlink.
            (
                Look::File { identity: one, .. },
                Look::File {
                    identity: other, ..
                },
            ) if one == other => State::New(Backup::NotNeeded),
            _ => State::Foreign(false),
        },
        Some(_) if is_old(&staged) => State::New(Backup::Staged),
        Some(_) if is_old(&aside) => State::New(Backup::Aside),
        Some(_) if staged == Look::Absent && aside == Look::Absent => State::New(Backup::Gone),
        Some(_) => State::Foreign(true),
    })
}

/// Puts back the effects that `wanted` names, last first. Answers those that are not
/// back; never overwrites what another writer put there.
///
/// # Errors
/// Only a test's kill.
pub(super) fn put_back(
    root: &FileRoot,
    folders: &mut Folders,
    journal: &Journal,
    wanted: impl Fn(usize) -> bool,
) -> Result<Back, Fault> {
    let (mut stuck, mut unseen) = (Vec::new(), false);
    for (index, effect) in journal
        .effects
        .iter()
        .enumerate()
        .rev()
        .filter(|(index, _)| wanted(*index))
    {
        let back = match inspect(root, folders, effect) {
            State::Old | State::Foreign(false) => true,
            State::New(Backup::Gone) | State::Foreign(true) => false,
            State::Unseen(_) => {
                unseen = true;
                false
            }
            State::New(backup) => {
                root.steps.pass("put a file back")?;
                let (parent, name) = path::split(&effect.path);
                let moved = folders
                    .get(root, parent)
                    .and_then(|folder| one_back(&folder, name, effect, backup));
                let now = inspect(root, folders, effect);
                unseen |= matches!(now, State::Unseen(_));
                moved.is_ok() && now == State::Old
            }
        };
        if !back {
            stuck.push(index);
        }
    }
    root.steps.pass("put back")?;
    Ok(Back { stuck, unseen })
}

fn one_back(folder: &OwnedFd, name: &str, effect: &Effect, backup: Backup) -> Result<(), Errno> {
    let (staged, aside) = (effect.staged.as_str(), effect.backup.as_str());
    match backup {
        Backup::Staged => {
            let ours = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match renameat_with(folder, staged, folder, name, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOSYS) => return renameat(folder, staged, folder, name),
                Err(errno) => return Err(errno),
            }
            let out = statat(folder, staged, AtFlags::SYMLINK_NOFOLLOW)?;
            if identity(&out) == identity(&ours) {
                return Ok(());
            }
            renameat_with(folder, staged, folder, name, RenameFlags::EXCHANGE)?;
            Err(Errno::BUSY)
        }
        Backup::Aside if effect.after.is_some() => renameat(folder, aside, folder, name),
        Backup::Aside => rename_free(folder, aside, name),
        Backup::NotNeeded => match rename_free(folder, name, staged) {
            // Both names are one file already.
            Err(Errno::EXIST) => rustix::fs::unlinkat(folder, name, AtFlags::empty()),
            answer => answer,
        },
        Backup::Gone => Err(Errno::NOENT),
    }
}
