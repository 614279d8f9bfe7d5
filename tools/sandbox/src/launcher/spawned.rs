//! A started command, seen from outside.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Signal, pidfd_send_signal},
};

use super::{Command, Link, PATIENCE, wire, words};
use crate::{cgroup::Counts, fault::Fault, report::Report};

/// Why no command was started.
#[derive(Debug)]
pub enum SpawnError {
    /// The program could not be executed, as execve(2) says.
    Exec(io::Error),
    /// The sandbox could not be put around it.
    Setup(Fault),
    /// The root is no longer the folder the launcher was started for.
    Root,
    /// The launcher is gone or does not answer.
    Launcher(io::Error),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exec(error) => write!(f, "the program could not be executed: {error}"),
            Self::Setup(fault) => write!(f, "the sandbox could not be set up: {fault}"),
            Self::Root => f.write_str("the root is gone or is another folder now"),
            Self::Launcher(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// Which limit the kernel had to enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitHit {
    /// A process or thread was refused.
    Tasks,
    /// Something was killed for the memory it used.
    Memory,
}

/// What is known when a tree is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Protected paths that appeared or changed and were put back.
    pub protected: Vec<String>,
    /// Seen by control groups only.
    pub limit_hit: Option<LimitHit>,
}

/// A command that runs. Dropping it ends the tree.
#[derive(Debug)]
pub struct Spawned {
    link: Arc<Link>,
    id: u64,
    pidfd: OwnedFd,
    status: OwnedFd,
    control: OwnedFd,
    before: Counts,
}

impl Spawned {
    /// Readable when the whole tree is gone.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Readable when the command's own process has ended ([`Report::Ended`], eight bytes),
    /// or at its end without one when the tree was killed. Non-blocking.
    #[must_use]
    pub fn status(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }

    /// The raw wait status, as soon as there is one.
    #[must_use]
    pub fn wait_status(&self) -> Option<i32> {
        let mut bytes = [0; Report::BYTES];
        match rustix::io::read(&self.status, &mut bytes) {
            Ok(Report::BYTES) => match Report::parse(&bytes) {
                Some(Report::Ended(status)) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// Asks every process of the tree to end (SIGTERM). Does not wait.
    pub fn terminate(&self) {
        let _ = rustix::io::write(&self.control, b"t");
    }

    /// Ends the tree with SIGKILL. Does not wait.
    pub fn kill(&self) {
        // Without a PID namespace it is the first process that knows the tree: ask it.
        if self.link.certain {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        } else {
            let _ = rustix::io::write(&self.control, b"k");
        }
    }

    /// Once the tree is gone: undoes what was done to protected paths and tells of it. To
    /// be called before the workspace is given to somebody else.
    ///
    /// # Errors
    /// `WouldBlock` while the tree lives; else the launcher is gone, and with it the
    /// knowledge of what was protected.
    pub fn finish(&self) -> io::Result<Ended> {
        if !readable(&self.pidfd, Some(0)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (body, _) = self
            .link
            .request(wire::FINISH, &self.id.to_le_bytes(), &[])?;
        let names = String::from_utf8_lossy(&body);
        let after = self.link.cgroup.counts();
        let limit_hit = if after.memory > self.before.memory {
            Some(LimitHit::Memory)
        } else {
            (after.tasks > self.before.tasks).then_some(LimitHit::Tasks)
        };
        Ok(Ended {
            protected: names
                .split('\0')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            limit_hit,
        })
    }
}

pub(super) fn spawn(link: &Arc<Link>, command: &Command<'_>) -> Result<Spawned, SpawnError> {
    let launcher = |error: io::Error| SpawnError::Launcher(error);
    let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (status, their_status) = pipe().map_err(|error| launcher(error.into()))?;
    let (their_control, control) = pipe().map_err(|error| launcher(error.into()))?;
    let before = link.cgroup.counts();
    let descriptors = [
        command.stdio[0],
        command.stdio[1],
        command.stdio[2],
        their_status.as_fd(),
        their_control.as_fd(),
    ];
    let body = words(command, 0).map_err(launcher)?;
    let mut used = 0;
    let answer = link.request_numbered(
        wire::SPAWN,
        |id| {
            used = id;
            wire::Words { id, ..body }.to_bytes()
        },
        &descriptors,
    );
    drop((their_status, their_control));
    let (_, mut descriptors) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return Err(
                match error
                    .get_ref()
                    .and_then(|inner| inner.downcast_ref::<Fault>())
                {
                    Some(fault) => SpawnError::Setup(fault.clone()),
                    None => launcher(error),
                },
            );
        }
    };
    let Some(pidfd) = descriptors.pop() else {
        return Err(launcher(io::Error::other(
            "the launcher sent no descriptor",
        )));
    };
    let spawned = Spawned {
        link: link.clone(),
        id: used,
        pidfd,
        status,
        control,
        before,
    };
    // On any error the drop ends what may be there.
    match first_report(&spawned.status)? {
        Report::Started => Ok(spawned),
        Report::ExecFailed(errno) => Err(SpawnError::Exec(io::Error::from_raw_os_error(errno))),
        Report::SetupFailed(errno) => {
            // Written together with its record.
            let mut text = [0; 1024];
            let count = rustix::io::read(&spawned.status, &mut text).unwrap_or(0);
            let step = String::from_utf8_lossy(&text[..count]).into_owned();
            Err(SpawnError::Setup(Fault { step, errno }))
        }
        Report::Ended(_) => Err(launcher(io::Error::other("a report out of order"))),
    }
}

fn first_report(status: &OwnedFd) -> Result<Report, SpawnError> {
    if !readable(status, Some(PATIENCE.as_secs() as i64)) {
        return Err(SpawnError::Launcher(io::ErrorKind::TimedOut.into()));
    }
    let mut bytes = [0; Report::BYTES];
    let count = rustix::io::read(status, &mut bytes).unwrap_or(0);
    Report::parse(&bytes[..count]).ok_or_else(|| {
        SpawnError::Setup(Fault::plain(
            "the command's first process ended before it could say why",
        ))
    })
}

/// Waits until there is something to read, or the other end is closed.
pub(super) fn readable(fd: &OwnedFd, seconds: Option<i64>) -> bool {
    let timeout = seconds.map(|tv_sec| Timespec { tv_sec, tv_nsec: 0 });
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) {
            // A signal of the server's; waiting anew is long enough for any of them.
            Err(Errno::INTR) => {}
            result => return matches!(result, Ok(1..)),
        }
    }
}
