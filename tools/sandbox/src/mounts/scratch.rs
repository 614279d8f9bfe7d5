//! HOME, /tmp and /dev/shm of a workspace: parts of one file system, whose size bounds
//! their sum, or of a folder that was given.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Gid, Uid, chown},
    mount::MountAttrFlags,
};

use super::{WORKSHOP, attach, folder, new_file_system, restrict, take};
use crate::{
    fault::{Fault, Step},
    plan::{HOME, Plan},
};

const SCRATCH: [(&str, &str, u32); 3] = [
    ("tmp", "/tmp", 0o1777),
    ("shm", "/dev/shm", 0o1777),
    ("home", HOME, 0o700),
];

/// Makes the parts of a scratch folder that are missing, and takes it.
pub(super) fn take_folder(path: &Path) -> Result<OwnedFd, Fault> {
    folder(path, 0o700)?;
    take(path).step("taking the scratch folder")
}

/// The three private places as detached copies of parts of one file system, which
/// bounds their sum.
pub(super) fn make(
    plan: &Plan,
    given: Option<OwnedFd>,
) -> Result<Vec<(&'static str, OwnedFd)>, Fault> {
    let tree = match given {
        Some(tree) => tree,
        None => new_file_system(
            "tmpfs",
            &[("size", &plan.tmp_bytes.to_string()), ("mode", "755")],
            MountAttrFlags::empty(),
        )?,
    };
    restrict(tree.as_fd(), false).step("restricting the scratch")?;
    let base = PathBuf::from(format!("{WORKSHOP}/scratch"));
    attach(&tree, &base).step("attaching the scratch")?;
    make_parts(plan, &base)?;
    SCRATCH
        .into_iter()
        .map(|(part, at, _)| {
            let part = take(&base.join(part)).step("taking a part of the scratch")?;
            Ok((at, part))
        })
        .collect()
}

/// Makes tmp, shm and home where they are missing, as the commands' user.
pub(crate) fn make_parts(plan: &Plan, base: &Path) -> Result<(), Fault> {
    for (part, _, mode) in SCRATCH {
        let path = base.join(part);
        let made = fs::DirBuilder::new().mode(mode).create(&path);
        match made {
            Ok(()) => {
                if rustix::process::geteuid().as_raw() != plan.uid {
                    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
                    chown(&path, Some(uid), Some(gid)).step("giving the scratch away")?;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).step("making a part of the scratch"),
        }
    }
    Ok(())
}
