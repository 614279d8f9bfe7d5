//! What goes into the new root, taken from the host's tree before it is left.

use std::{
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::fstat;

use crate::{
    fault::{Fault, Step},
    plan::{HOME, Plan, SYSTEM},
};

/// One thing to put in place.
pub(super) struct Item {
    pub(super) path: PathBuf,
    pub(super) what: What,
}

pub(super) enum What {
    /// The same symlink as on the host.
    Link(PathBuf),
    /// A detached copy, and whether it is read-only.
    Folder(OwnedFd, bool),
    File(OwnedFd, bool),
    /// A part of the private scratch.
    Scratch,
    /// An empty folder that something is mounted on later.
    Mountpoint,
}

/// Takes everything, in the order it is to be attached: what lies below comes after.
pub(super) fn collect(plan: &Plan) -> Result<Vec<Item>, Fault> {
    let mut items = Vec::new();
    for path in ["/tmp", "/dev/shm", HOME] {
        items.push(Item {
            path: PathBuf::from(path),
            what: What::Scratch,
        });
    }
    let mut writable = vec![(&plan.root, true)];
    writable.extend(plan.writable.iter().map(|path| (path, false)));
    for (path, is_root) in writable {
        let what = take(path, false).step(format!("taking {}", path.display()))?;
        if is_root {
            same_folder(plan, &what)?;
        }
        items.push(Item {
            path: path.clone(),
            what,
        });
    }
    for path in SYSTEM {
        readable(plan, Path::new(path), &mut items);
    }
    for path in plan.readable_paths() {
        readable(plan, &path, &mut items);
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items.dedup_by(|later, earlier| later.path == earlier.path);
    Ok(items)
}

fn same_folder(plan: &Plan, root: &What) -> Result<(), Fault> {
    let (What::Folder(tree, _), Some(wanted)) = (root, plan.root_id) else {
        return Ok(());
    };
    let found = fstat(tree).step("looking at the root")?;
    if (found.st_dev, found.st_ino) == wanted {
        return Ok(());
    }
    Err(Fault::plain(
        "the root is no longer the folder the plan was made for",
    ))
}

fn take(path: &Path, read_only: bool) -> std::io::Result<What> {
    let folder = fs::metadata(path)?.is_dir();
    let tree = super::take(path)?;
    Ok(if folder {
        What::Folder(tree, read_only)
    } else {
        What::File(tree, read_only)
    })
}

/// Adds something readable, unless it is there already or within something writable,
/// which it would make read-only. What is missing or out of this user's reach is left out.
fn readable(plan: &Plan, path: &Path, items: &mut Vec<Item>) {
    if path == Path::new("/sys") {
        let what =
            match super::new_file_system("sysfs", &[], rustix::mount::MountAttrFlags::empty()) {
                Ok(_) => What::Mountpoint,
                Err(_) => match take(path, true) {
                    Ok(what) => what,
                    Err(_) => return,
                },
            };
        items.push(Item {
            path: path.to_owned(),
            what,
        });
        return;
    }
    let Ok(found) = fs::symlink_metadata(path) else {
        return;
    };
    let covered = |path: &Path| {
        let mut writable = plan.writable.iter().chain([&plan.root]);
        writable.any(|parent| path.starts_with(parent))
    };
    if covered(path) {
        return;
    }
    let Ok(real) = fs::canonicalize(path) else {
        return;
    };
    if real != path {
        // As it is on the host when it is a link itself; a link further up is resolved.
        let target = if found.is_symlink()
            && fs::canonicalize(path.parent().unwrap_or(path))
                .is_ok_and(|parent| Some(parent.as_path()) == path.parent())
        {
            fs::read_link(path).unwrap_or_else(|_| real.clone())
        } else {
            real.clone()
        };
        items.push(Item {
            path: path.to_owned(),
            what: What::Link(target),
        });
    }
    if ["/proc", "/dev", "/run", "/tmp"]
        .iter()
        .any(|own| real == Path::new(own))
        || real == Path::new("/")
        || covered(&real)
    {
        return;
    }
    let there = |item: &Item| matches!(item.what, What::Folder(..)) && real.starts_with(&item.path);
    if items.iter().any(there) {
        return;
    }
    if let Ok(what) = take(&real, true) {
        items.push(Item { path: real, what });
    }
}

/// Device and inode of a folder.
pub(crate) fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
