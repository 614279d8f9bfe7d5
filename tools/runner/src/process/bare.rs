//! The process trees of commands without a sandbox, and how they are ended.
//!
//! Without a PID namespace the kernel keeps no list of "everything this command
//! started". What stands in for it: a command leads its own session, and the server is
//! the subreaper, so that whatever loses its parent becomes the server's own child. Every
//! survivor is thus below a child of the server which nobody registered, and listing
//! the server's children (not all of /proc) finds it.
//!
//! Whose is such a child? Its session is the command's, unless it made its own. Then it
//! is the command's if it holds the command's pipes or terminal, or if no other command that is
//! older than it still runs. Else it is left alone until that other command ends: a
//! process is never ended for the wrong command, and at the latest ended with the last
//! one it could belong to. Not covered: a daemon of its own session, without the streams,
//! while an older command of another workspace runs; and the death of the server by
//! SIGKILL. The sandbox's PID namespace makes both certain.
//!
//! Children in the server's own session are its own helpers, and never touched.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};

// Subreaping is a property of the whole OS process, so what is known of leaders is too.
static LEADERS: Mutex<Option<HashMap<i32, Known>>> = Mutex::new(None);
// Held for reading from before a spawn until its leader is registered and while a leader
// is reaped, for writing while children are listed and reaped: no command is ever taken
// for a stranger, and no id is used again between look and reap.
static SPAWNING: RwLock<()> = RwLock::new(());

struct Known {
    streams: Vec<OsString>,
    ending: bool,
}

fn with_leaders<T>(work: impl FnOnce(&mut HashMap<i32, Known>) -> T) -> T {
    let mut leaders: MutexGuard<'_, _> = LEADERS.lock().unwrap_or_else(PoisonError::into_inner);
    work(leaders.get_or_insert_with(HashMap::new))
}

/// Makes the server inherit what loses its parent below it. Errors are of kernels
/// before 3.4, where only the process group is ended.
pub(super) fn become_reaper() {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        tracing::warn!(%error, "cannot become the reaper of orphans; daemons of commands may survive them");
    }
}

/// A command's own process, unreaped: its id stays taken until [`Leader::reap`].
pub(super) struct Leader {
    pid: Pid,
    pidfd: Arc<OwnedFd>,
    reaped: bool,
}

/// How a leader ended, as the kernel tells it.
#[derive(Clone, Copy)]
pub(super) struct Status {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
}

impl Status {
    /// From a raw status, as wait(2) gives it.
    pub(super) fn from_raw(raw: i32) -> Self {
        let status = std::process::ExitStatus::from_raw(raw);
        Self {
            code: status.code(),
            signal: status.signal(),
        }
    }
}

impl Leader {
    /// Runs `spawn` and registers what it started. `streams` are its pipes or its
    /// terminal, as the links in /proc/PID/fd name them.
    pub(super) fn start(
        streams: Vec<OsString>,
        spawn: impl FnOnce() -> std::io::Result<Pid>,
    ) -> std::io::Result<Self> {
        let _guard = SPAWNING.read().unwrap_or_else(PoisonError::into_inner);
        let pid = spawn()?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // It is our unreaped child, so its id is still its own.
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
                return Err(error.into());
            }
        };
        with_leaders(|leaders| {
            leaders.insert(
                pid.as_raw_pid(),
                Known {
                    streams,
                    ending: false,
                },
            )
        });
        Ok(Self {
            pid,
            pidfd: pidfd.into(),
            reaped: false,
        })
    }

    /// Readable when the leader has exited.
    pub(super) fn pidfd(&self) -> Arc<OwnedFd> {
        self.pidfd.clone()
    }

    /// Whether it has exited; it stays unreaped.
    pub(super) fn has_exited(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), look), Ok(None))
    }

    /// Says that this command is being ended, so it protects no stranger any more.
    pub(super) fn begin_end(&self) {
        with_leaders(|leaders| {
            if let Some(known) = leaders.get_mut(&self.pid.as_raw_pid()) {
                known.ending = true;
            }
        });
    }

    /// Sends a signal to all of the tree that is known.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
        let mut others = descendants(self.pid.as_raw_pid());
        for orphan in self.orphans() {
            others.extend(descendants(orphan.pid));
            others.push(orphan);
        }
        for other in others
            .iter()
            .filter(|other| other.group != self.pid.as_raw_pid())
        {
            other.signal(signal);
        }
    }

    /// SIGKILL to the group alone: what is left of most commands.
    pub(super) fn kill_group(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// What is left besides the leader; reaps what has ended.
    pub(super) fn orphans(&self) -> Vec<Stat> {
        let me = self.pid.as_raw_pid();
        scan()
            .into_iter()
            .filter(|orphan| with_leaders(|leaders| is_of(me, orphan, leaders)))
            .collect()
    }

    /// Takes the status; the id is free afterwards. `None` when the leader has not
    /// exited, or when its status is lost.
    pub(super) fn reap(&mut self) -> Option<Status> {
        if self.reaped {
            return None;
        }
        // The kernel's list of children skips some when one goes while it is read.
        let _guard = SPAWNING.read().unwrap_or_else(PoisonError::into_inner);
        let status = waitid(
            WaitId::PidFd(self.pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        )
        .ok()
        .flatten();
        self.reaped = true;
        with_leaders(|leaders| leaders.remove(&self.pid.as_raw_pid()));
        status.map(|status| Status {
            code: status.exit_status(),
            signal: status.terminating_signal(),
        })
    }
}

impl Drop for Leader {
    // Only when the runtime went down under the supervisor.
    fn drop(&mut self) {
        if !self.reaped {
            self.begin_end();
            self.signal(Signal::KILL);
            let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
            self.reaped = true;
            with_leaders(|leaders| leaders.remove(&self.pid.as_raw_pid()));
        }
    }
}

/// Reaps ended orphans of running commands.
pub(super) fn reap_orphans() {
    scan();
}

/// The server's children of foreign sessions that nobody registered, without those
/// that have ended: these are reaped.
fn scan() -> Vec<Stat> {
    let _guard = SPAWNING.write().unwrap_or_else(PoisonError::into_inner);
    let server = getpid().as_raw_pid();
    loop {
        let mut strangers = children(server);
        with_leaders(|leaders| strangers.retain(|pid| !leaders.contains_key(pid)));
        if strangers.is_empty() {
            return Vec::new();
        }
        let Some(own) = Stat::read(server) else {
            return Vec::new();
        };
        let mut found: Vec<_> = strangers.into_iter().filter_map(Stat::read).collect();
        found.retain(|stat| stat.parent == server && stat.session != own.session);
        let (ended, alive): (Vec<_>, Vec<_>) = found.into_iter().partition(|stat| stat.zombie);
        let reaped = ended.iter().filter(|stat| stat.reap()).count();
        // One that ended after the children were listed left its own to the server then,
        // and those are in no list yet.
        if reaped == 0 {
            return alive;
        }
    }
}

fn is_of(me: i32, orphan: &Stat, leaders: &HashMap<i32, Known>) -> bool {
    if orphan.session == me {
        return true;
    }
    if leaders.contains_key(&orphan.session) {
        return false;
    }
    let others = leaders
        .iter()
        .filter(|(pid, known)| **pid != me && !known.ending);
    let mut older = others
        .filter(|(pid, _)| Stat::read(**pid).is_none_or(|leader| leader.started <= orphan.started))
        .peekable();
    if older.peek().is_none() {
        // A daemon of the operator's that a container's PID 1 inherited is older.
        return Stat::read(me).is_none_or(|leader| leader.started <= orphan.started);
    }
    leaders
        .get(&me)
        .is_some_and(|known| orphan.holds(&known.streams))
}

/// What `/proc/PID/stat` says (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub(super) pid: i32,
    pub(super) zombie: bool,
    pub(super) parent: i32,
    group: i32,
    pub(super) session: i32,
    pub(super) started: u64,
}

impl Stat {
    pub(super) fn read(pid: i32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything; the fields go on after its last parenthesis.
        let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
        let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let zombie = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // Fields 7 to 21 lie between session and starttime.
        let started = fields.nth(15)?.parse().ok()?;
        Some(Self {
            pid,
            zombie,
            parent,
            group,
            session,
            started,
        })
    }

    /// Reaps it, if it is an ended child of the server.
    pub(super) fn reap(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        Pid::from_raw(self.pid)
            .is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), look), Ok(Some(_))))
    }

    /// Signals exactly the process that was looked at.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(Ok(pidfd)) =
            Pid::from_raw(self.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            return;
        };
        // Between look and open the id may have gone to another process, not after it.
        if Self::read(self.pid).is_some_and(|now| now.started == self.started) {
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }

    fn holds(&self, streams: &[OsString]) -> bool {
        (0..3).any(|fd| {
            fs::read_link(format!("/proc/{}/fd/{fd}", self.pid))
                .is_ok_and(|target| streams.iter().any(|stream| target.as_os_str() == stream))
        })
    }
}

fn descendants(pid: i32) -> Vec<Stat> {
    let mut found: Vec<Stat> = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        for child in children(parent) {
            let Some(stat) = Stat::read(child) else {
                continue;
            };
            // An id may be used again while we look; never go in circles.
            if stat.parent == parent && !found.iter().any(|seen| seen.pid == child) {
                next.push(child);
                found.push(stat);
            }
        }
    }
    found
}

pub(super) fn children(pid: i32) -> Vec<i32> {
    // CONFIG_PROC_CHILDREN; every distribution's kernel has it.
    static LISTED: OnceLock<bool> = OnceLock::new();
    if !LISTED.get_or_init(|| Path::new("/proc/thread-self/children").exists()) {
        return numbers("/proc")
            .filter_map(Stat::read)
            .filter(|stat| stat.parent == pid)
            .map(|stat| stat.pid)
            .collect();
    }
    let mut all = Vec::new();
    for thread in numbers(&format!("/proc/{pid}/task")) {
        let list =
            fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
        all.extend(
            list.split_ascii_whitespace()
                .filter_map(|text| text.parse::<i32>().ok()),
        );
    }
    all
}

fn numbers(folder: &str) -> impl Iterator<Item = i32> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
