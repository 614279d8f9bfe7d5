//! The loopback of a network namespace of our own.
//!
//! It is up, since programs that talk to themselves (test servers, node, go test) would
//! fail otherwise; the host's ports answer ECONNREFUSED at once, other addresses are
//! unreachable at once.

#![allow(unsafe_code)]

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::fault::{Fault, Step};

/// Brings `lo` up in the network namespace of this thread.
pub(crate) fn loopback_up() -> Result<(), Fault> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .step("making a socket for the loopback")?;
    // SAFETY: ifreq is plain bytes, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq (netdevice(7)), which outlives the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error()).step("bringing the loopback up");
    }
    Ok(())
}

/// A listening socket on the loopback of this network namespace.
pub(crate) fn listener(port: u16) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}
