//! Messages between the server's side and the launcher: one letter and a body, in one
//! packet, with descriptors. A body too large for a packet travels in a memory file.

use std::{
    ffi::CString,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

const INLINE: usize = 32 * 1024;
const MOST_DESCRIPTORS: usize = 8;

/// To the launcher: the plan, once, at the start.
pub(super) const PLAN: u8 = b'P';
/// To the launcher: start a command.
pub(super) const SPAWN: u8 = b'S';
/// To the launcher: a command's tree is gone; settle.
pub(super) const FINISH: u8 = b'F';
/// To the launcher: make a listening socket.
pub(super) const LISTEN: u8 = b'L';
/// From the launcher.
pub(super) const DONE: u8 = b'K';
/// From the launcher: a fault, as a line.
pub(super) const FAILED: u8 = b'E';

const IN_FILE: u8 = 0x80;

/// A message as it came in.
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

pub(super) fn send(
    socket: &OwnedFd,
    kind: u8,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut all = descriptors.to_vec();
    let file;
    let (kind, body) = if body.len() > INLINE {
        let mut memory = File::from(memfd_create("plan", MemfdFlags::CLOEXEC)?);
        memory.write_all(body)?;
        file = memory;
        all.push(file.as_fd());
        (kind | IN_FILE, [].as_slice())
    } else {
        (kind, body)
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    let letter = [kind];
    let parts = [IoSlice::new(&letter), IoSlice::new(body)];
    loop {
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return result.map(drop).map_err(io::Error::from),
        }
    }
}

/// `None` when the other side is gone.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = vec![0; INLINE + 1];
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // What a peer that died with unread messages leaves.
            Err(Errno::CONNRESET) => return Ok(None),
            result => break result?,
        }
    };
    let mut descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(list) => Some(list),
            _ => None,
        })
        .flatten()
        .collect();
    buffer.truncate(received.bytes);
    let Some(kind) = buffer.first().copied() else {
        return Ok(None);
    };
    let body = if kind & IN_FILE == 0 {
        buffer.split_off(1)
    } else {
        let memory = descriptors
            .pop()
            .ok_or_else(|| io::Error::other("a message without its body"))?;
        let mut body = Vec::new();
        let mut file = File::from(memory);
        file.rewind()?;
        file.read_to_end(&mut body)?;
        body
    };
    Ok(Some(Message {
        kind: kind & !IN_FILE,
        body,
        descriptors,
    }))
}

/// The words of a spawn message: `id`, the counts, then every string with its NUL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) id: u64,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    /// Relative to the root; empty for the root.
    pub(super) cwd: CString,
    /// Empty for none.
    pub(super) terminal: CString,
}

impl Words {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.id.to_le_bytes());
        bytes.extend((self.argv.len() as u32).to_le_bytes());
        bytes.extend((self.env.len() as u32).to_le_bytes());
        let strings = self.argv.iter().chain(&self.env);
        for text in strings.chain([&self.cwd, &self.terminal]) {
            bytes.extend(text.as_bytes_with_nul());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let id = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let argc = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
        let envc = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?) as usize;
        let mut strings = bytes
            .get(16..)?
            .split_inclusive(|byte| *byte == 0)
            .map_while(|text| CString::from_vec_with_nul(text.to_vec()).ok());
        let argv: Vec<_> = strings.by_ref().take(argc).collect();
        let env: Vec<_> = strings.by_ref().take(envc).collect();
        if argv.len() != argc || env.len() != envc {
            return None;
        }
        Some(Self {
            id,
            argv,
            env,
            cwd: strings.next()?,
            terminal: strings.next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        Words {
            id: 7,
            argv: vec![c"a".to_owned(), c"".to_owned()],
            env: vec![c"X=\xFF".to_owned()],
            cwd: c"".to_owned(),
            terminal: c"/dev/pts/3".to_owned(),
        }
    }

    #[test]
    fn words_survive() {
        assert_eq!(Words::parse(&words().to_bytes()), Some(words()));
    }

    #[test]
    fn torn_words_are_refused() {
        let bytes = words().to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(Words::parse(&bytes[..length]), None, "{length}");
        }
        let mut many = bytes.clone();
        many[8..12].fill(0xFF);
        assert_eq!(Words::parse(&many), None);
    }

    #[test]
    fn large_bodies_and_descriptors_arrive() {
        let (one, two) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let body = vec![7; 3 << 20];
        send(&one, SPAWN, &body, &[one.as_fd(), two.as_fd()]).unwrap();
        let message = receive(&two).unwrap().unwrap();
        assert_eq!((message.kind, message.descriptors.len()), (SPAWN, 2));
        assert!(message.body == body);
        drop((one, message));
        assert!(receive(&two).unwrap().is_none());
    }
}
