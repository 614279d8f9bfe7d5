//! The system call filter: which calls ([`policy`]), as a program ([`emit`]), installed.

#![allow(unsafe_code)]

mod emit;
mod policy;
#[cfg(test)]
mod tests;

use std::{io, ptr};

use emit::Instruction;
pub(crate) use policy::Mode;

use crate::fault::{Fault, Step};

/// A filter, made once per workspace and installed at each launch.
#[derive(Clone, Debug)]
pub(crate) struct Filter(Vec<Instruction>);

impl Filter {
    pub(crate) fn new(mode: Mode) -> Self {
        Self(emit::program(
            policy::ARCHITECTURE,
            policy::NEWEST,
            |number| policy::rule(mode, number),
        ))
    }

    /// Installs it for this process and what it starts. Needs no_new_privs.
    pub(crate) fn install(&self) -> Result<(), Fault> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.0.len()).unwrap_or(u16::MAX),
            filter: self.0.as_ptr().cast::<libc::sock_filter>().cast_mut(),
        };
        // SAFETY: `Instruction` has the layout of sock_filter, `len` of them are alive,
        // and the kernel only reads them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const program,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error()).step("installing the system call filter");
        }
        Ok(())
    }
}

/// Whether the kernel has filters, and the kinds of answer used here.
pub(crate) fn available() -> bool {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the operation reads one u32 (seccomp(2)).
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            ptr::from_ref(&action),
        ) == 0
    }
}
