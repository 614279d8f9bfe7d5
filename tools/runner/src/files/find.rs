//! Listing files by glob, in byte order, stopping as soon as enough are known.
//!
//! Folders are walked in the order of their full paths, so the first matches found are
//! the first there are: nothing is collected to be thrown away. Memory is one folder's
//! names per level. A name that is not UTF-8 is left out, since no tool could be told it
//! back; so is a folder that may not be listed, and one that vanishes meanwhile.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use codespace_router::{Code, ToolError};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, statat},
    io::Errno,
};

use super::{
    glob::{Glob, State},
    journal::is_ours,
    path,
    root::{FileRoot, open_beneath},
};
use crate::Found;

// Below this depth folders are opened from the root again instead of being held.
const HELD_DEPTH: usize = 64;
const LISTING: usize = 32 * 1024;
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

struct Level {
    fd: Option<OwnedFd>,
    /// Sorted so that the next entry is last. A folder's name ends in `/`.
    entries: Vec<String>,
    state: State,
    /// How much of the path belongs to this folder.
    prefix: usize,
}

impl FileRoot {
    /// Lists the regular files a glob matches, the first `limits.find_paths` in byte order.
    /// Symlinks are neither listed nor followed.
    ///
    /// # Errors
    /// `INVALID_ARGUMENTS` for a glob that cannot be read; `FILE_OPERATION_FAILED`.
    pub fn find(&self, glob: Option<&str>) -> Result<Found, ToolError> {
        self.find_while(glob, &AtomicBool::new(false))
    }

    /// The same, until `stop` is set; what it answers then nobody hears.
    pub(crate) fn find_while(
        &self,
        glob: Option<&str>,
        stop: &AtomicBool,
    ) -> Result<Found, ToolError> {
        let glob = match glob {
            None => Glob::everything(),
            Some(text) => Glob::parse(text).map_err(|why| {
                ToolError::new(
                    Code::InvalidArguments,
                    format!("glob cannot be read: {why}"),
                )
                .with_detail("argument", "glob")
            })?,
        };
        self.stands().map_err(|fault| self.missing(&fault))?;
        let failed = |errno| path::refusal(".", errno);
        let top = open_beneath(self.fd(), ".", LIST, Mode::empty()).map_err(failed)?;
        let mut walk = Walk {
            root: self,
            stop,
            glob: &glob,
            listing: Vec::with_capacity(LISTING),
            levels: Vec::new(),
        };
        walk.descend(top, glob.start(), 0).map_err(failed)?;
        walk.run(self.limits.find_paths).map_err(failed)
    }
}

struct Walk<'a> {
    root: &'a FileRoot,
    stop: &'a AtomicBool,
    glob: &'a Glob,
    listing: Vec<u8>,
    levels: Vec<Level>,
}

impl Walk<'_> {
    fn run(&mut self, most: usize) -> Result<Found, Errno> {
        let mut found = Found {
            paths: Vec::new(),
            truncated: false,
        };
        let mut path = String::new();
        while let Some(level) = self.levels.last_mut() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Errno::CANCELED);
            }
            path.truncate(level.prefix);
            let Some(name) = level.entries.pop() else {
                self.levels.pop();
                continue;
            };
            path.push_str(&name);
            let Some(folder) = name.strip_suffix('/') else {
                if found.paths.len() == most {
                    found.truncated = true;
                    break;
                }
                found.paths.push(path.clone());
                continue;
            };
            let Some(state) = self.glob.enter(&level.state, folder) else {
                continue;
            };
            let opened = match &level.fd {
                Some(parent) => open_beneath(parent, folder, LIST, Mode::empty()),
                None => open_beneath(self.root.fd(), &path, LIST, Mode::empty()),
            };
            match opened.and_then(|fd| self.descend(fd, state, path.len())) {
                Ok(())
                | Err(
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG,
                ) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }

    fn descend(&mut self, fd: OwnedFd, state: State, prefix: usize) -> Result<(), Errno> {
        let mut entries = Vec::new();
        let mut names = RawDir::new(&fd, self.listing.spare_capacity_mut());
        while let Some(entry) = names.next() {
            let entry = entry?;
            if self.stop.load(Ordering::Relaxed) {
                return Err(Errno::CANCELED);
            }
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            // What a patch under way has beside its files is nobody's file.
            if name == "." || name == ".." || is_ours(name) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                known => known,
            };
            if kind == FileType::Directory && self.glob.enter(&state, name).is_some() {
                entries.push(format!("{name}/"));
            } else if kind == FileType::RegularFile && self.glob.matches(&state, name) {
                entries.push(name.to_owned());
            }
        }
        entries.sort_unstable_by(|a, b| b.cmp(a));
        let fd = (self.levels.len() < HELD_DEPTH).then_some(fd);
        self.levels.push(Level {
            fd,
            entries,
            state,
            prefix,
        });
        Ok(())
    }
}
