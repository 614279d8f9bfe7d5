//! Starting the command's own process, from its init.
//!
//! With namespaces: one `posix_spawn`, which is a vfork, of a process that inherits a
//! confined init. Without: the command is confined and its init is not, so that it
//! cannot signal the one who has to end it; that takes a fork.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use rustix::{
    fs::{Access, AtFlags, CWD, FileType, accessat, statat},
    io::Errno,
};

/// What to start, in the current folder.
pub(crate) struct Start<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) argv: &'a [CString],
    pub(crate) env: &'a [CString],
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Opened by the session leader and thereby its controlling terminal; it takes the
    /// place of `stdio`.
    pub(crate) terminal: Option<&'a CStr>,
}

/// The file to execute: as execvp(3) finds it, with the command's own `PATH`.
pub(crate) fn find(name: &CStr, env: &[CString]) -> Result<CString, Errno> {
    if name.is_empty() {
        return Err(Errno::NOENT);
    }
    if name.to_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    let path = env
        .iter()
        .find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="))
        .unwrap_or(b"/bin:/usr/bin");
    let mut fault = Errno::NOENT;
    for folder in path.split(|byte| *byte == b':') {
        let folder = if folder.is_empty() {
            b".".as_slice()
        } else {
            folder
        };
        let Ok(candidate) = CString::new([folder, b"/", name.to_bytes()].concat()) else {
            continue;
        };
        match accessat(CWD, &candidate, Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => {
                let found = statat(CWD, &candidate, AtFlags::empty());
                if found.is_ok_and(|found| {
                    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                }) {
                    return Ok(candidate);
                }
                fault = Errno::ACCESS;
            }
            Err(Errno::ACCESS) => fault = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(fault)
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

/// Starts the command as the leader of a new session, with default signals and three
/// descriptors. An error is the child's own up to and including `execve`.
pub(crate) fn spawn(start: &Start<'_>) -> io::Result<i32> {
    let mut attributes = Attributes::new()?;
    attributes.set()?;
    let mut actions = Actions::new()?;
    actions.set(start)?;
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
    Ok(pid)
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the out-parameter has the right type.
        check(unsafe { libc::posix_spawnattr_init(raw.as_mut_ptr()) })?;
        // SAFETY: init succeeded.
        Ok(Self(unsafe { raw.assume_init() }))
    }

    fn set(&mut self) -> io::Result<()> {
        let flags = libc::POSIX_SPAWN_SETSIGDEF as libc::c_short
            | libc::POSIX_SPAWN_SETSIGMASK as libc::c_short
            | libc::POSIX_SPAWN_SETSID;
        let (mut all, mut none) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: a sigset_t is plain bits; both sets are initialised before they are
        // read, and `self.0` is an initialised attribute object.
        unsafe {
            // Not sigfillset: it leaves out glibc's own signals 32 and 33.
            ptr::write_bytes(all.as_mut_ptr(), 0xFF, 1);
            libc::sigemptyset(none.as_mut_ptr());
            check(libc::posix_spawnattr_setsigdefault(
                &mut self.0,
                all.as_ptr(),
            ))?;
            check(libc::posix_spawnattr_setsigmask(&mut self.0, none.as_ptr()))?;
            check(libc::posix_spawnattr_setflags(&mut self.0, flags))
        }
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
    fn new() -> io::Result<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the out-parameter has the right type.
        check(unsafe { libc::posix_spawn_file_actions_init(raw.as_mut_ptr()) })?;
        // SAFETY: init succeeded.
        Ok(Self(unsafe { raw.assume_init() }))
    }

    fn set(&mut self, start: &Start<'_>) -> io::Result<()> {
        // SAFETY: `self.0` is an initialised object, the strings are copied and the
        // descriptors borrowed for longer than the spawn. The actions run in this order
        // in the child; the descriptors are 3 or above, so none is overwritten.
        unsafe {
            match start.terminal {
                Some(path) => {
                    // Without O_NOCTTY, by a session leader that has none.
                    check(libc::posix_spawn_file_actions_addopen(
                        &mut self.0,
                        0,
                        path.as_ptr(),
                        libc::O_RDWR,
                        0,
                    ))?;
                    for onto in [1, 2] {
                        check(libc::posix_spawn_file_actions_adddup2(&mut self.0, 0, onto))?;
                    }
                }
                None => {
                    for (onto, fd) in start.stdio.iter().enumerate() {
                        check(libc::posix_spawn_file_actions_adddup2(
                            &mut self.0,
                            fd.as_raw_fd(),
                            onto as libc::c_int,
                        ))?;
                    }
                }
            }
            check(libc::posix_spawn_file_actions_addclosefrom_np(
                &mut self.0,
                3,
            ))
        }
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

/// Becomes the command: the same as [`spawn`] in this process, which then is it. Returns
/// only to say why not.
pub(crate) fn become_command(start: &Start<'_>) -> io::Error {
    match prepare_to_become(start) {
        Ok(()) => {}
        Err(error) => return error,
    }
    let argv = pointers(start.argv);
    let env = pointers(start.env);
    // SAFETY: both arrays end with null and their strings with NUL; what is open from 3
    // up is marked to be closed by a successful exec, so a failed one can still be told.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        libc::execve(
            start.program.as_ptr(),
            argv.as_ptr().cast(),
            env.as_ptr().cast(),
        );
    }
    io::Error::last_os_error()
}

fn prepare_to_become(start: &Start<'_>) -> io::Result<()> {
    crate::sys::default_signals();
    rustix::process::setsid()?;
    if let Some(path) = start.terminal {
        let terminal = rustix::fs::open(
            path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        for onto in 0..3 {
            crate::sys::duplicate_onto(std::os::fd::AsFd::as_fd(&terminal), onto)?;
        }
    } else {
        for (onto, fd) in start.stdio.iter().enumerate() {
            crate::sys::duplicate_onto(*fd, onto as i32)?;
        }
    }
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
    Ok(())
}
