//! System calls that neither std nor rustix wraps, each as small and as safe as it gets.
//!
//! Those that make processes are sound only while this process has a single thread, as
//! the helper has: the child then owns a whole copy and may allocate and call anything.

#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::process::Pid;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Which side of a fork this is.
pub(crate) enum Side {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

/// clone3(2) with a pidfd and no shared memory: a fork into new namespaces.
pub(crate) fn clone3(flags: u64) -> io::Result<Side> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain integers, for which zero is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: the structure and the place for the pidfd outlive the call. Without
    // CLONE_VM and with no stack given the child goes on in its own copy of this memory;
    // the helper has no second thread whose locks that copy could miss.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            std::mem::size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Side::Child);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match Pid::from_raw(pid as i32) {
        Some(pid) => Ok(Side::Parent { pid, pidfd }),
        None => Err(io::Error::other("clone3 answered no process id")),
    }
}

/// Ends this process at once: no destructors, no exit handlers, which belong to the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `first` up.
pub(crate) fn close_from(first: RawFd) {
    close_between(first, RawFd::MAX);
}

/// Closes every descriptor but those named and 0, 1, 2. Only for a process that will not
/// use any other again.
pub(crate) fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<_> = keep.iter().copied().filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        if fd > from {
            close_between(from, fd - 1);
        }
        from = fd + 1;
    }
    close_from(from);
}

fn close_between(first: RawFd, last: RawFd) {
    // SAFETY: closing takes integers; that nobody uses the descriptors again is the
    // callers' promise, who own this whole process.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// mount_setattr(2): adds attributes to the mount a descriptor or path names.
pub(crate) fn add_mount_attributes(
    at: BorrowedFd<'_>,
    path: &CStr,
    attributes: u64,
    recursive: bool,
) -> io::Result<()> {
    // SAFETY: mount_attr is plain integers.
    let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
    attr.attr_set = attributes;
    let mut flags = libc::AT_SYMLINK_NOFOLLOW;
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: path and structure outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw const attr,
            std::mem::size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Leaves every supplementary group and becomes the given user and group for good.
pub(crate) fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: only integers, and an empty list.
    unsafe {
        // Not allowed in a user namespace made without it; nothing to leave, nothing lost.
        if libc::getgroups(0, std::ptr::null_mut()) != 0 {
            check(libc::setgroups(0, std::ptr::null()).into())?;
        }
        check(libc::setresgid(gid, gid, gid).into())?;
        check(libc::setresuid(uid, uid, uid).into())?;
    }
    Ok(())
}

/// unshare(2) of namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // Not by libc's function: it takes an int and hands the whole register to the kernel,
    // which reads a long. An optimised caller leaves anything in the upper half.
    // SAFETY: namespace flags touch no memory; descriptors stay shared.
    check(unsafe { libc::syscall(libc::SYS_unshare, libc::c_long::from(flags)) }).map(drop)
}

/// prctl(2) with one integer argument.
pub(crate) fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<libc::c_long> {
    // SAFETY: the options used here take an integer, no pointer.
    // Every argument is a long to the kernel, and a variadic one is what its type says.
    const NONE: libc::c_ulong = 0;
    check(unsafe { libc::prctl(option, argument, NONE, NONE, NONE) }.into())
}

/// Blocks SIGCHLD and SIGTERM and gives a descriptor that is readable when one is pending.
pub(crate) fn pending_signals() -> io::Result<OwnedFd> {
    // SAFETY: both sets are initialised before use; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigaddset(&mut set, libc::SIGTERM);
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()).into())?;
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(fd.into())?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes one pending signal's number from such a descriptor.
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<libc::c_int> {
    // signalfd_siginfo, whose first field is the number (signalfd(2)).
    let mut info = [0u8; 128];
    let count = rustix::io::read(signals, &mut info).ok()?;
    let number = info.get(..4).filter(|_| count == info.len())?;
    Some(u32::from_le_bytes(number.try_into().ok()?) as libc::c_int)
}

/// Puts every signal back to its default: a parent's ignored ones are inherited.
pub(crate) fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is no code of ours; numbers that cannot be set are refused.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// waitpid(2) for any child: its id and raw status. `None` when nobody has ended yet.
pub(crate) fn reap_any() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: the out-parameter is valid.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    match check(pid.into())? {
        0 => Ok(None),
        pid => Ok(Some((pid as i32, status))),
    }
}

/// kill(-1): every process this one may signal but itself; as PID 1 that is its namespace.
pub(crate) fn signal_all(signal: libc::c_int) {
    // SAFETY: two integers.
    unsafe { libc::kill(-1, signal) };
}

/// Duplicates a descriptor onto another number, closing what was there.
pub(crate) fn duplicate_onto(from: BorrowedFd<'_>, onto: RawFd) -> io::Result<()> {
    // SAFETY: `from` is open; the caller owns what `onto` names.
    check(unsafe { libc::dup2(from.as_raw_fd(), onto) }.into()).map(drop)
}

/// Descriptor 0, taken as owned: what the parent handed over.
pub(crate) fn take_stdin() -> OwnedFd {
    // SAFETY: descriptor 0 is open in any Rust program, whose runtime opens what is
    // missing, and the helper uses std's stdin nowhere else.
    unsafe { OwnedFd::from_raw_fd(0) }
}
