//! One `posix_spawn`: the only place that starts a command.
//!
//! std's `Command` cannot undo signals the server was started with as ignored (nohup
//! ignores SIGHUP), cannot start a session and cannot close descriptors it does not
//! know of, unless with `pre_exec`, which forks the whole server. glibc's
//! `posix_spawn` (2.34 or later) does all of it without a fork.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::Arc,
};

use rustix::process::Pid;
use tokio::io::{Interest, unix::AsyncFd};

use super::terminal::Master;

/// What to start. All descriptors must be 3 or above, as they are in a Rust
/// program: its runtime opens what is missing below.
pub(super) struct Start<'a> {
    pub(super) program: &'a CStr,
    pub(super) argv: &'a [CString],
    pub(super) env: &'a [CString],
    pub(super) cwd: BorrowedFd<'a>,
    pub(super) streams: Streams<'a>,
}

/// What becomes descriptors 0, 1 and 2.
pub(super) enum Streams<'a> {
    Pipes {
        stdin: BorrowedFd<'a>,
        output: BorrowedFd<'a>,
    },
    /// A terminal's path. Opened by the child, whose controlling terminal it becomes:
    /// it leads a session that has none (tty_ioctl(2), TIOCSCTTY, and open(2), O_NOCTTY).
    Terminal(&'a CStr),
}

/// Makes sure that ended children wait to be reaped: with SIGCHLD ignored, as a parent
/// may have left it, the kernel throws their status away.
pub(super) fn keep_statuses() {
    // SAFETY: both calls take no pointer but a valid out-parameter, and a handler that
    // someone installed is left alone.
    unsafe {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        if libc::sigaction(libc::SIGCHLD, ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
        {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

/// Watches a pidfd: readable when its process has exited.
pub(super) fn watch(pidfd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an `OwnedFd` always gives the same descriptor, and the `Arc` inside the
    // result keeps it open for as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?)
}

/// Watches a terminal's master, to read and to write.
pub(super) fn watch_master(master: Master) -> io::Result<AsyncFd<Master>> {
    // SAFETY: a `Master` gives the descriptor it owns, always the same, and closes it only
    // when it is dropped, which the result does after the registration has ended.
    Ok(unsafe { AsyncFd::register(master) }?)
}

/// Starts a program as the leader of a new session and group, with default signals and
/// three descriptors.
///
/// An error is the child's own up to and including `execve`; nothing runs then.
pub(super) fn spawn(start: &Start<'_>) -> io::Result<Pid> {
    let attributes = Attributes::new()?;
    let actions = Actions::new(start)?;
    let argv = pointers(start.argv);
    let env = pointers(start.env);
    let mut pid = 0;
    // SAFETY: every pointer is to a live, initialised object; both arrays end with null
    // and their strings with NUL; posix_spawn does not write to them (POSIX.1-2024).
    check(unsafe {
        libc::posix_spawn(
            &mut pid,
            start.program.as_ptr(),
            &actions.0,
            &attributes.0,
            argv.as_ptr(),
            env.as_ptr(),
        )
    })?;
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("posix_spawn answered no process id"))
}

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings
        .iter()
        .map(|text| text.as_ptr().cast_mut())
        .chain([ptr::null_mut()])
        .collect()
}

// The posix_spawn family returns the error instead of setting errno.
fn check(code: libc::c_int) -> io::Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(code))
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the out-parameter has the right type.
        check(unsafe { libc::posix_spawnattr_init(raw.as_mut_ptr()) })?;
        // SAFETY: init succeeded.
        let mut this = Self(unsafe { raw.assume_init() });
        let flags = libc::POSIX_SPAWN_SETSIGDEF as libc::c_short
            | libc::POSIX_SPAWN_SETSIGMASK as libc::c_short
            | libc::POSIX_SPAWN_SETSID;
        let (mut all, mut none) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: a sigset_t is plain bits; both sets are initialised before they are
        // read, and `this.0` is an initialised attribute object.
        unsafe {
            // Not sigfillset: it leaves out glibc's own signals 32 and 33, and those the
            // child would get ignored.
            ptr::write_bytes(all.as_mut_ptr(), 0xFF, 1);
            libc::sigemptyset(none.as_mut_ptr());
            check(libc::posix_spawnattr_setsigdefault(
                &mut this.0,
                all.as_ptr(),
            ))?;
            check(libc::posix_spawnattr_setsigmask(&mut this.0, none.as_ptr()))?;
            check(libc::posix_spawnattr_setflags(&mut this.0, flags))?;
        }
        Ok(this)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new(start: &Start<'_>) -> io::Result<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the out-parameter has the right type.
        check(unsafe { libc::posix_spawn_file_actions_init(raw.as_mut_ptr()) })?;
        // SAFETY: init succeeded.
        let mut this = Self(unsafe { raw.assume_init() });
        // SAFETY: `this.0` is an initialised object; the descriptors are borrowed for
        // longer than the spawn, and glibc copies the path. The actions run in this
        // order in the child, after POSIX_SPAWN_SETSID.
        unsafe {
            let raw = &mut this.0;
            let stdin = match start.streams {
                Streams::Pipes { stdin, .. } => stdin.as_raw_fd(),
                Streams::Terminal(path) => {
                    let flags = libc::O_RDWR;
                    check(libc::posix_spawn_file_actions_addopen(
                        raw,
                        0,
                        path.as_ptr(),
                        flags,
                        0,
                    ))?;
                    0
                }
            };
            let output = match start.streams {
                Streams::Pipes { output, .. } => output.as_raw_fd(),
                Streams::Terminal(_) => 0,
            };
            let cwd = start.cwd.as_raw_fd();
            check(libc::posix_spawn_file_actions_addfchdir_np(raw, cwd))?;
            check(libc::posix_spawn_file_actions_adddup2(raw, stdin, 0))?;
            check(libc::posix_spawn_file_actions_adddup2(raw, output, 1))?;
            check(libc::posix_spawn_file_actions_adddup2(raw, output, 2))?;
            check(libc::posix_spawn_file_actions_addclosefrom_np(raw, 3))?;
        }
        Ok(this)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}
