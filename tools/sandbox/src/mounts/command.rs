//! What each command adds to its copy of the new root: its own /proc and terminals, and
//! read-only places in the workspace.

use std::{
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
    mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree},
};

use super::{EMPTY, attach, take};
use crate::{
    fault::{Fault, Step},
    sys,
};

/// A place below the root that is made a mount of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// Relative to the root.
    pub(crate) path: std::path::PathBuf,
    /// Else only kept from being moved or removed.
    pub(crate) read_only: bool,
}

/// Mounts what belongs to one command. In its own mount and PID namespaces, before it is
/// confined. `as_root`: files of uid 0 in /proc would be its own.
pub(crate) fn prepare(
    root: &Path,
    pins: &[Pin],
    terminal: Option<(&Path, BorrowedFd<'_>)>,
    as_root: bool,
) -> Result<(), Fault> {
    own_proc(as_root)?;
    if let Some((path, slave)) = terminal {
        bind_terminal(path, slave)?;
    }
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=620",
    )
    .step("mounting /dev/pts")?;
    if pins.is_empty() {
        return Ok(());
    }
    let root = rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening the root")?;
    pins.iter().try_for_each(|place| pin(&root, place))
}

fn own_proc(as_root: bool) -> Result<(), Fault> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount("proc", "/proc", "proc", flags, None) {
        Ok(()) => {}
        // Where the visible one is partly covered, as in containers. Better none than
        // the host's.
        Err(Errno::PERM) => {
            return mount(
                "tmpfs",
                "/proc",
                "tmpfs",
                flags | MountFlags::RDONLY,
                c"size=4k,mode=555",
            )
            .step("covering /proc");
        }
        Err(error) => return Err(error).step("mounting /proc"),
    }
    if as_root {
        for part in [
            "/proc/sys",
            "/proc/sysrq-trigger",
            "/proc/irq",
            "/proc/bus",
            "/proc/fs",
        ] {
            let Ok(tree) = take(Path::new(part)) else {
                continue;
            };
            sys::add_mount_attributes(tree.as_fd(), EMPTY, libc::MOUNT_ATTR_RDONLY, true)
                .step(format!("making {part} read-only"))?;
            attach(&tree, part).step(format!("attaching {part}"))?;
        }
    }
    Ok(())
}

/// Binds a terminal of the host's /dev/pts, still visible here, to /dev/console. The
/// descriptor proves that it is the caller's and not just any name.
fn bind_terminal(path: &Path, slave: BorrowedFd<'_>) -> Result<(), Fault> {
    let tree = take(path).step("taking the terminal")?;
    let (named, held) = (
        fstat(&tree).step("looking at the terminal")?,
        fstat(slave).step("looking at the terminal")?,
    );
    if (named.st_rdev, named.st_ino) != (held.st_rdev, held.st_ino) {
        return Err(Fault::plain("the terminal is not the one its name says"));
    }
    attach(&tree, "/dev/console").step("attaching the terminal")
}

fn pin(root: &OwnedFd, place: &Pin) -> Result<(), Fault> {
    let name = place.path.display().to_string();
    let open = || {
        openat2(
            root,
            &place.path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )
    };
    let target = match open() {
        Ok(target) => target,
        // Gone since it was listed, or replaced by a link: there is nothing to keep.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(error) => return Err(error).step(format!("opening {name}")),
    };
    let tree = open_tree(
        &target,
        EMPTY,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE,
    )
    .step(format!("taking {name}"))?;
    if place.read_only {
        sys::add_mount_attributes(tree.as_fd(), EMPTY, libc::MOUNT_ATTR_RDONLY, true)
            .step(format!("making {name} read-only"))?;
    }
    move_mount(
        &tree,
        EMPTY,
        &target,
        EMPTY,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .step(format!("protecting {name}"))
}

/// Whether a folder is still the one a plan was made for.
pub(crate) fn is_same(path: &Path, id: (u64, u64)) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == id)
}
