//! What a file has besides its bytes, carried to the file that takes its place.
//!
//! Everything is kept where the system lets us; what it refuses is left, since an edit
//! must not fail over an attribute. Set-user-id, set-group-id and file capabilities are
//! never carried: they were given to other bytes.

use std::os::fd::OwnedFd;

use rustix::{
    buffer::spare_capacity,
    fs::{
        Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr, fgetxattr_query, flistxattr,
        flistxattr_query, fremovexattr, fsetxattr,
    },
};

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const CAPABILITIES: &[u8] = b"security.capability";

/// Mode, owner, group and extended attributes (access lists among them).
#[derive(Debug)]
pub(super) struct Attributes {
    mode: Mode,
    owner: u32,
    group: u32,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Those of an open file.
    pub(super) fn of(file: &OwnedFd, stat: &Stat) -> Self {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o1777);
        Self {
            mode,
            owner: stat.st_uid,
            group: stat.st_gid,
            extended: extended(file),
        }
    }

    /// Gives them to a new file.
    pub(super) fn give(&self, file: &OwnedFd) {
        let group = Some(Gid::from_raw(self.group));
        if fchown(file, Some(Uid::from_raw(self.owner)), group).is_err() {
            let _ = fchown(file, None, group);
        }
        let has_list = self.extended.iter().any(|(name, _)| name == ACCESS_LIST);
        if !has_list {
            // The new file may have inherited one from its folder's default list.
            let _ = fremovexattr(file, ACCESS_LIST);
        }
        let _ = fchmod(file, self.mode);
        for (name, value) in &self.extended {
            let _ = fsetxattr(file, name.as_slice(), value, XattrFlags::empty());
        }
    }
}

fn extended(file: &OwnedFd) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Ok(size @ 1..) = flistxattr_query(file) else {
        return Vec::new();
    };
    let mut names = Vec::with_capacity(size);
    if flistxattr(file, spare_capacity(&mut names)).is_err() {
        return Vec::new();
    }
    let wanted = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && *name != CAPABILITIES);
    wanted
        .filter_map(|name| Some((name.to_vec(), value(file, name)?)))
        .collect()
}

fn value(file: &OwnedFd, name: &[u8]) -> Option<Vec<u8>> {
    let size = fgetxattr_query(file, name).ok()?;
    let mut value = Vec::with_capacity(size);
    if size > 0 {
        fgetxattr(file, name, spare_capacity(&mut value)).ok()?;
    }
    Some(value)
}
