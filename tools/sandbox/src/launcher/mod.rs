//! The server's side: a launcher per workspace, commands started through it.
//!
//! The launcher is the same executable, started by posix_spawn with one end of a socket
//! pair as its stdin. It owns what is dear to make (namespaces, the new root, the
//! listening socket's network) and ends, with every tree, when the other end is closed.
//! Calls here are synchronous and take about as long as starting a program; the pidfd and
//! the status pipe of a command are for the caller's event loop.

pub(crate) mod prepared;
pub(crate) mod serve;
mod spawned;
mod wire;

use std::{
    ffi::{CString, OsString},
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{FileType, Gid, Uid, fchown, fstat},
    net::{
        AddressFamily, SocketFlags, SocketType, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::{Pid, PidfdFlags, pidfd_open},
    termios::isatty,
};
pub use spawned::{Ended, LimitHit, SpawnError, Spawned};

use crate::{
    cgroup::Cgroup,
    fault::Fault,
    mounts,
    plan::{Isolation, Plan},
};

// For a machine under load; an answer takes a millisecond.
const PATIENCE: Duration = Duration::from_secs(20);
const FAREWELL: Duration = Duration::from_secs(5);

/// A command to start.
#[derive(Debug)]
pub struct Command<'a> {
    /// The program, found by the `PATH` of its environment, and its arguments.
    pub argv: &'a [CString],
    /// `NAME=value`, over those of the plan. HOME and TMPDIR are set to private places
    /// unless named here.
    pub env: &'a [CString],
    /// Below the root; empty for the root itself.
    pub cwd: &'a Path,
    /// For a terminal, its slave, three times.
    pub stdio: [BorrowedFd<'a>; 3],
    /// The name of the slave (`/dev/pts/N`): it becomes the controlling terminal.
    pub terminal: Option<&'a Path>,
}

/// A running launcher. Dropping the last handle ends it, and every tree with it.
#[derive(Clone, Debug)]
pub struct Launcher(Arc<Link>);

#[derive(Debug)]
struct Link {
    root: PathBuf,
    root_id: Option<(u64, u64)>,
    owner: Option<(u32, u32)>,
    // Whether the end of a first process is the end of its tree.
    certain: bool,
    cgroup: Cgroup,
    // One request and its answer at a time.
    socket: Mutex<Line>,
    child: Mutex<Child>,
}

#[derive(Debug)]
struct Line {
    socket: Option<OwnedFd>,
    next: u64,
}

impl Launcher {
    /// Starts one. Takes some ten milliseconds; `exe` is this program.
    ///
    /// # Errors
    /// When it cannot be started or the plan cannot be carried out here. The text names
    /// the step; nothing is left running.
    pub fn start(exe: &Path, plan: &Plan) -> io::Result<Self> {
        plan.check()?;
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(PATIENCE))?;
        }
        let cgroup = Cgroup::create(&plan.limits);
        let child = Program::new(exe)
            .args(["sandbox", "launcher"])
            .env_clear()
            .current_dir("/")
            // Not in the terminal's foreground group, whose Ctrl-C is not for it.
            .process_group(0)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let held = cgroup.join(child.id());
        let link = Link {
            root: plan.root.clone(),
            root_id: plan.root_id,
            owner: rustix::process::geteuid()
                .is_root()
                .then_some((plan.uid, plan.gid)),
            certain: plan.isolation == Isolation::Full,
            cgroup,
            socket: Mutex::new(Line {
                socket: Some(socket),
                next: 1,
            }),
            child: Mutex::new(child),
        };
        let mut body = vec![held.to_byte()];
        body.extend(serde_json::to_vec(plan)?);
        link.request(wire::PLAN, &body, &[])?;
        Ok(Self(Arc::new(link)))
    }

    /// Starts a command and waits until its exec has succeeded or failed.
    ///
    /// # Errors
    /// Nothing runs then. After [`SpawnError::Launcher`] start another launcher.
    pub fn spawn(&self, command: &Command<'_>) -> Result<Spawned, SpawnError> {
        let link = &self.0;
        if let Some(id) = link.root_id
            && !mounts::command::is_same(&link.root, id)
        {
            return Err(SpawnError::Root);
        }
        if command.argv.is_empty() {
            return Err(SpawnError::Exec(io::ErrorKind::NotFound.into()));
        }
        if let Some((uid, gid)) = link.owner {
            // A command may open its own output by name (/dev/stderr, its terminal).
            for fd in command.stdio {
                give(fd, uid, gid).map_err(SpawnError::Launcher)?;
            }
        }
        spawned::spawn(link, command)
    }

    /// A listening socket on the loopback that this workspace's commands see, which the
    /// caller accepts on from outside. Port 0: any.
    ///
    /// # Errors
    /// When the port is taken or the launcher is gone.
    pub fn listener(&self, port: u16) -> io::Result<OwnedFd> {
        let (_, mut descriptors) = self.0.request(wire::LISTEN, &port.to_le_bytes(), &[])?;
        descriptors
            .pop()
            .ok_or_else(|| io::Error::other("the launcher sent no socket"))
    }

    /// The launcher's own process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }
}

impl Link {
    fn request(
        &self,
        kind: u8,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.request_numbered(kind, |_| body.to_vec(), descriptors)
    }

    fn request_numbered(
        &self,
        kind: u8,
        body: impl FnOnce(u64) -> Vec<u8>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut line = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let id = line.next;
        line.next += 1;
        let Some(socket) = &line.socket else {
            return Err(gone());
        };
        let answer =
            wire::send(socket, kind, &body(id), descriptors).and_then(|()| wire::receive(socket));
        match answer {
            Ok(Some(message)) if message.kind == wire::DONE => {
                Ok((message.body, message.descriptors))
            }
            Ok(Some(message)) => {
                Err(Fault::from_line(&String::from_utf8_lossy(&message.body)).into())
            }
            // A late answer would be taken for another's, so this line is never used again.
            Ok(None) => {
                line.socket = None;
                Err(gone())
            }
            Err(error) => {
                line.socket = None;
                Err(io::Error::new(
                    error.kind(),
                    format!("the sandbox launcher does not answer: {error}"),
                ))
            }
        }
    }
}

/// Makes a pipe or a terminal another user's; a file stays whose it is.
pub(crate) fn give(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    let found = fstat(fd)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let terminal = kind == FileType::CharacterDevice && isatty(fd);
    if found.st_uid != uid && (terminal || kind == FileType::Fifo) {
        fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the sandbox launcher is gone; another has to be started",
    )
}

impl Drop for Link {
    fn drop(&mut self) {
        self.socket
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .socket = None;
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = Pid::from_raw(child.id() as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .is_some_and(|pidfd| spawned::readable(&pidfd, Some(FAREWELL.as_secs() as i64)));
        if !ended {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// A `NAME=value` entry.
///
/// # Errors
/// When it holds a NUL.
pub fn env_entry(name: &OsString, value: &OsString) -> io::Result<CString> {
    Ok(CString::new(
        [name.as_bytes(), b"=", value.as_bytes()].concat(),
    )?)
}

fn words(command: &Command<'_>, id: u64) -> io::Result<wire::Words> {
    Ok(wire::Words {
        id,
        argv: command.argv.to_vec(),
        env: command.env.to_vec(),
        cwd: CString::new(command.cwd.as_os_str().as_bytes())?,
        terminal: match command.terminal {
            Some(path) => CString::new(path.as_os_str().as_bytes())?,
            None => CString::default(),
        },
    })
}
