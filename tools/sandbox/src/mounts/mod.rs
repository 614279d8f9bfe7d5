//! The new root: the system read-only, the workspace, private /tmp, /dev/shm and HOME, a
//! small /dev. What is not granted does not exist in it.
//!
//! It is made once per workspace, in the launcher's own mount namespace, and copied by the
//! kernel for each command, which only adds what must be its own ([`command`]): /proc,
//! /dev/pts and what protects git.
//!
//! Everything is taken as a detached copy first (`open_tree`), so that a workspace below
//! /tmp is not lost behind the private one; then the old root is left, and only then the
//! copies are attached: no path is resolved in the host's tree any more, and a symlink in
//! a granted folder leads nowhere.

pub(crate) mod command;
mod scratch;
mod sources;

pub(crate) use scratch::make_parts as make_scratch_parts;
pub(crate) use sources::identity;

use std::{
    ffi::CStr,
    fs,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, symlink},
    },
    path::Path,
};

use rustix::{
    fs::{CWD, Mode},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
        OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
        mount_change, move_mount, open_tree, unmount,
    },
    process::{pivot_root, umask},
};
use sources::{Item, What};

use crate::{
    fault::{Fault, Step},
    plan::Plan,
    sys,
};

const EMPTY: &CStr = c"";
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("fd/0", "/dev/stdin"),
    ("fd/1", "/dev/stdout"),
    ("fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];
/// What is needed while the root is made and gone afterwards.
const WORKSHOP: &str = "/.making";

/// Makes the new root and moves this process, in a mount namespace of its own, into it.
pub(crate) fn build(plan: &Plan) -> Result<(), Fault> {
    umask(Mode::empty());
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("making mounts private")?;
    let items = sources::collect(plan)?;
    let devices = take_devices();
    // Kept beneath the command's own ones: the kernel mounts a new /proc only where one
    // can be seen already, and a terminal is bound from the host's /dev/pts.
    let proc = take(Path::new("/proc")).step("taking /proc")?;
    let terminals = take(Path::new("/dev/pts")).ok();
    let system = new_file_system("sysfs", &[], MountAttrFlags::MOUNT_ATTR_RDONLY).ok();
    let scratch = match &plan.scratch {
        Some(folder) => Some(scratch::take_folder(folder)?),
        None => None,
    };
    let hidden = plan.hidden_paths();
    leave_old_root()?;

    folder("/proc", 0o755)?;
    attach(&proc, "/proc").step("attaching /proc")?;
    make_devices(devices, terminals)?;
    let scratch = scratch::make(plan, scratch)?;
    for item in items {
        place(item, &scratch)?;
    }
    if let Some(system) = system {
        // Shows this network namespace's devices, and has no cgroups below it.
        attach(&system, "/sys").step("attaching /sys")?;
    } else {
        hide_system_parts()?;
    }
    for path in &hidden {
        hide(path)?;
    }
    unmount(format!("{WORKSHOP}/scratch"), UnmountFlags::DETACH).step("leaving the workshop")?;
    fs::remove_dir_all(WORKSHOP).step("removing the workshop")?;
    sys::add_mount_attributes(
        CWD,
        c"/",
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        false,
    )
    .step("making the new root read-only")?;
    umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// A detached copy of the mounts at a path and below it.
fn take(path: &Path) -> rustix::io::Result<OwnedFd> {
    open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE,
    )
}

fn attach(tree: &OwnedFd, at: impl AsRef<Path>) -> rustix::io::Result<()> {
    move_mount(
        tree,
        EMPTY,
        CWD,
        at.as_ref(),
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}

fn restrict(tree: BorrowedFd<'_>, read_only: bool) -> std::io::Result<()> {
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if read_only {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    sys::add_mount_attributes(tree, EMPTY, attributes, true)
}

fn new_file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Fault> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(format!("opening a {kind}"))?;
    for (name, value) in options {
        fsconfig_set_string(context.as_fd(), *name, *value)
            .step(format!("setting {name} of a {kind}"))?;
    }
    fsconfig_create(context.as_fd()).step(format!("making a {kind}"))?;
    fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
    .step(format!("mounting a {kind}"))
}

/// An empty root instead of the host's. The old one is gone afterwards.
fn leave_old_root() -> Result<(), Fault> {
    // The attributes come at the end: a read-only root could not be filled.
    let root = new_file_system(
        "tmpfs",
        &[("size", "1m"), ("mode", "755")],
        MountAttrFlags::empty(),
    )?;
    let at = ["/tmp", "/usr", "/proc"]
        .into_iter()
        .find(|at| Path::new(at).is_dir())
        .ok_or_else(|| Fault::plain("there is no folder to mount the new root on"))?;
    attach(&root, at).step("attaching the new root")?;
    rustix::process::fchdir(&root).step("entering the new root")?;
    pivot_root(".", ".").step("changing the root")?;
    // The old root now lies over the new one, at the same place.
    unmount(".", UnmountFlags::DETACH).step("leaving the old root")?;
    rustix::process::chdir("/").step("entering the new root")?;
    folder(WORKSHOP, 0o700)?;
    folder(format!("{WORKSHOP}/folder"), 0o555)?;
    fs::write(format!("{WORKSHOP}/file"), "").step("making an empty file")?;
    folder(format!("{WORKSHOP}/scratch"), 0o700)
}

fn folder(path: impl AsRef<Path>, mode: u32) -> Result<(), Fault> {
    let path = path.as_ref();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .step(format!("making {}", path.display()))
}

fn file(path: &Path) -> Result<(), Fault> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        folder(parent, 0o755)?;
    }
    fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .step(format!("making {}", path.display()))
}

fn take_devices() -> Vec<(&'static str, OwnedFd)> {
    DEVICES
        .into_iter()
        .filter_map(|name| Some((name, take(&Path::new("/dev").join(name)).ok()?)))
        .collect()
}

fn make_devices(
    devices: Vec<(&'static str, OwnedFd)>,
    terminals: Option<OwnedFd>,
) -> Result<(), Fault> {
    folder("/dev/pts", 0o755)?;
    folder("/dev/shm", 0o755)?;
    for (name, device) in devices {
        let path = Path::new("/dev").join(name);
        file(&path)?;
        attach(&device, &path).step(format!("attaching /dev/{name}"))?;
    }
    // A command's terminal is bound here: ttyname(3) finds it below /dev only.
    file(Path::new("/dev/console"))?;
    for (target, link) in DEVICE_LINKS {
        symlink(target, link).step("linking in /dev")?;
    }
    match terminals {
        Some(terminals) => attach(&terminals, "/dev/pts").step("attaching /dev/pts"),
        None => Ok(()),
    }
}

fn place(item: Item, scratch: &[(&'static str, OwnedFd)]) -> Result<(), Fault> {
    let at = item.path.display().to_string();
    match item.what {
        What::Link(target) => {
            if let Some(parent) = item.path.parent() {
                folder(parent, 0o755)?;
            }
            // Something already there is what the link leads to, or better.
            let _ = symlink(target, &item.path);
            Ok(())
        }
        What::Folder(tree, read_only) => {
            folder(&item.path, 0o755)?;
            attach(&tree, &item.path).step(format!("attaching {at}"))?;
            restrict(tree.as_fd(), read_only).step(format!("restricting {at}"))
        }
        What::File(tree, read_only) => {
            file(&item.path)?;
            attach(&tree, &item.path).step(format!("attaching {at}"))?;
            restrict(tree.as_fd(), read_only).step(format!("restricting {at}"))
        }
        What::Scratch => {
            folder(&item.path, 0o755)?;
            let part = scratch
                .iter()
                .find(|(path, _)| Path::new(path) == item.path);
            match part {
                Some((_, tree)) => attach(tree, &item.path).step(format!("attaching {at}")),
                None => Err(Fault::plain("there is no such part of the scratch")),
            }
        }
        What::Mountpoint => folder(&item.path, 0o755),
    }
}

/// Puts something empty over a path, if there is anything to be read there.
fn hide(path: &Path) -> Result<(), Fault> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let cover = if found.is_dir() {
        if fs::read_dir(path).is_err() {
            return Ok(());
        }
        "folder"
    } else if found.is_file() && fs::File::open(path).is_ok() {
        "file"
    } else {
        return Ok(());
    };
    let tree = take(&Path::new(WORKSHOP).join(cover)).step("taking the cover")?;
    restrict(tree.as_fd(), true).step("restricting the cover")?;
    attach(&tree, path).step(format!("hiding {}", path.display()))
}

/// Without a sysfs of our own, what other file systems show below the host's.
fn hide_system_parts() -> Result<(), Fault> {
    for part in [
        "fs/cgroup",
        "fs/bpf",
        "fs/pstore",
        "kernel/debug",
        "kernel/tracing",
        "kernel/security",
    ] {
        hide(&Path::new("/sys").join(part))?;
    }
    Ok(())
}
