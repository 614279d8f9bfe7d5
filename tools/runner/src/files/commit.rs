//! The renames. Each target is looked at right before its rename and again after it, and
//! what another writer put there meanwhile is never lost: it is exchanged back.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{AtFlags, OFlags, RenameFlags, linkat, renameat, renameat_with, statat, unlinkat},
    io::Errno,
};

use super::{
    journal::Effect,
    load::Seen,
    path,
    root::FileRoot,
    transaction::{Fault, Transaction},
};

impl Transaction {
    /// Puts every staged file in its place and every deleted one aside.
    pub(super) fn commit(&mut self) -> Result<(), Fault> {
        for index in 0..self.works.len() {
            self.root.steps.pass("commit a file")?;
            let (seen, new) = (self.works[index].seen, self.works[index].after.is_some());
            let (folder, effect) = self.at(index)?;
            let result = match (seen, new) {
                (Some(seen), true) => exchange(&folder, effect, seen),
                (None, _) => publish(&folder, &effect.staged, path::split(&effect.path).1),
                (Some(seen), false) => set_aside(&folder, effect, seen),
            };
            let path = effect.path.clone();
            match result {
                Ok(()) => self.done[index] = true,
                Err(Stop::Changed) => return Err(Fault::Changed(path)),
                Err(Stop::Stuck) => {
                    self.done[index] = true;
                    return Err(Fault::Changed(path));
                }
                Err(Stop::Os(errno)) => return Err(Fault::Os(errno, path)),
            }
        }
        self.root.steps.pass("committed")?;
        if self.root.durable {
            self.sync_folders()
        } else {
            Ok(())
        }
    }

    /// Reads every path back and compares it with the plan, byte for byte: what the
    /// hashes in the answer say is then true of the disk.
    pub(super) fn verify(&mut self) -> Result<(), Fault> {
        let mut buffer = Vec::new();
        let root = Arc::clone(&self.root);
        for index in 0..self.works.len() {
            let after = self.works[index].after.clone();
            let (folder, effect) = self.at(index)?;
            let name = path::split(&effect.path).1;
            let good = match after {
                Some(after) => holds(&root, &folder, name, &after, &mut buffer),
                None => match statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Ok(false),
                    Err(Errno::NOENT) => Ok(true),
                    Err(errno) => Err(errno),
                },
            };
            match good {
                Ok(true) => {}
                // Gone, or something else stands there.
                Ok(false) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => {
                    return Err(Fault::Unverified(effect.path.clone()));
                }
                Err(errno) => return Err(Fault::Os(errno, effect.path.clone())),
            }
        }
        self.root.steps.pass("verified")
    }
}

/// Read at once when a file is compared with the plan.
const PIECE: usize = 128 * 1024;

enum Stop {
    /// Another writer was there first; its file is as it was.
    Changed,
    /// Another writer was there first, and its file could not be put back.
    Stuck,
    Os(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EXIST | Errno::NOENT => Stop::Changed,
            other => Stop::Os(other),
        }
    }
}

fn seen_at(folder: &OwnedFd, name: &str) -> Result<Seen, Errno> {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Seen::of(&stat))
}

// Swaps new and old; the old bytes then lie under the staged name, which is the backup.
fn exchange(folder: &OwnedFd, effect: &Effect, seen: Seen) -> Result<(), Stop> {
    let name = path::split(&effect.path).1;
    let staged = effect.staged.as_str();
    if seen_at(folder, name)? != seen {
        return Err(Stop::Changed);
    }
    match renameat_with(folder, staged, folder, name, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        // This file system cannot: renameat2(2).
        Err(Errno::INVAL | Errno::NOSYS) => return replace(folder, effect, seen),
        Err(errno) => return Err(errno.into()),
    }
    if seen_at(folder, staged).is_ok_and(|now| seen.is_renamed(&now)) {
        return Ok(());
    }
    match renameat_with(folder, staged, folder, name, RenameFlags::EXCHANGE) {
        Ok(()) => Err(Stop::Changed),
        Err(_) => Err(Stop::Stuck),
    }
}

// The same without exchange: a second name for the old file, then a rename over it.
fn replace(folder: &OwnedFd, effect: &Effect, seen: Seen) -> Result<(), Stop> {
    let name = path::split(&effect.path).1;
    linkat(
        folder,
        name,
        folder,
        effect.backup.as_str(),
        AtFlags::empty(),
    )?;
    if !seen_at(folder, &effect.backup).is_ok_and(|now| seen.is_renamed(&now)) {
        return Err(Stop::Changed);
    }
    renameat(folder, effect.staged.as_str(), folder, name).map_err(Stop::Os)
}

/// Gives a file a name that nothing may have yet.
pub(super) fn rename_free(folder: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
    match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            linkat(folder, from, folder, to, AtFlags::empty())?;
            unlinkat(folder, from, AtFlags::empty())
        }
        answer => answer,
    }
}

fn publish(folder: &OwnedFd, staged: &str, name: &str) -> Result<(), Stop> {
    rename_free(folder, staged, name).map_err(Stop::from)
}

fn set_aside(folder: &OwnedFd, effect: &Effect, seen: Seen) -> Result<(), Stop> {
    let name = path::split(&effect.path).1;
    if seen_at(folder, name)? != seen {
        return Err(Stop::Changed);
    }
    rename_free(folder, name, &effect.backup)?;
    if seen_at(folder, &effect.backup).is_ok_and(|now| seen.is_renamed(&now)) {
        return Ok(());
    }
    match rename_free(folder, &effect.backup, name) {
        Ok(()) => Err(Stop::Changed),
        Err(_) => Err(Stop::Stuck),
    }
}

fn holds(
    root: &FileRoot,
    folder: &OwnedFd,
    name: &str,
    bytes: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<bool, Errno> {
    let file = root.open_sure(folder, name, OFlags::RDONLY)?;
    // Piece by piece: a buffer that stays in the cache, and no fresh memory for a large file.
    let mut rest = bytes;
    loop {
        buffer.clear();
        buffer.reserve(PIECE.min(rest.len() + 1));
        match rustix::io::read(&file, rustix::buffer::spare_capacity(buffer)) {
            Ok(0) => return Ok(rest.is_empty()),
            Ok(_) => match rest.strip_prefix(buffer.as_slice()) {
                // A read that leaves room at the expected end has seen the file's end.
                Some([]) if buffer.len() < buffer.capacity() => return Ok(true),
                Some(after) => rest = after,
                None => return Ok(false),
            },
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
