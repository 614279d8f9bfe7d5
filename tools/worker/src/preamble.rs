//! What passes over the socket before HTTP/2 begins: the setup, and the descriptors of the
//! roots, which no RPC can carry. Both sides block here, with a limit to their patience.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::setup::Setup;

// For a machine under load; a start takes some ten milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
// One message carries up to SCM_MAX_FD (253) of them: unix(7).
const AT_ONCE: usize = 64;
const READY: u8 = 1;

/// The gateway's side: tells the setup and waits until the worker is ready.
///
/// # Errors
/// The worker ended, or does not answer.
pub(crate) fn tell(socket: &UnixStream, setup: &Setup) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let (text, descriptors) = setup.parts();
    let mut stream = socket;
    stream.write_all(&(text.len() as u64).to_le_bytes())?;
    stream.write_all(text)?;
    stream.write_all(&(descriptors.len() as u64).to_le_bytes())?;
    for some in descriptors.chunks(AT_ONCE) {
        send(socket, some)?;
    }
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer != [READY] {
        return Err(io::Error::other("the worker cannot use its setup"));
    }
    Ok(())
}

/// The worker's side.
///
/// # Errors
/// The gateway is gone.
pub(crate) fn hear(socket: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let stream = socket;
    let mut text = Vec::new();
    let length = number(socket)?;
    stream.take(length).read_to_end(&mut text)?;
    if text.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let count = usize::try_from(number(socket)?).unwrap_or(usize::MAX);
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        let before = descriptors.len();
        receive(socket, &mut descriptors)?;
        if descriptors.len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((text, descriptors))
}

/// The worker's last word before HTTP/2.
///
/// # Errors
/// The gateway is gone.
pub(crate) fn ready(mut socket: &UnixStream) -> io::Result<()> {
    socket.write_all(&[READY])
}

fn number(mut socket: &UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn send(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    // Descriptors travel with a byte.
    let byte = [IoSlice::new(&[0])];
    if sendmsg(socket, &byte, &mut ancillary, SendFlags::NOSIGNAL)? == 1 {
        return Ok(());
    }
    Err(io::ErrorKind::WriteZero.into())
}

fn receive(socket: &UnixStream, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(())
}
