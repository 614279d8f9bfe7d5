//! A command's tree, with or without a sandbox around it: what the supervisor needs of it.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use codespace_sandbox::Ended;
use rustix::process::Signal;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep, timeout},
};

pub(super) use super::bare::{Status, become_reaper, reap_orphans};
use super::{bare::Leader, confined::Confined};

// Contract, section 7.
const GRACE: Duration = Duration::from_secs(2);
// What SIGKILL has not ended by then hangs in the kernel or is another user's.
const KILL_TIME: Duration = Duration::from_secs(5);

/// Readable when the command's own process (or, confined, its whole tree) is gone.
pub(super) type Exit = AsyncFd<Arc<OwnedFd>>;

pub(super) enum Tree {
    Bare(Leader),
    Confined(Confined),
}

/// What is known of a tree that is gone.
#[derive(Default)]
pub(super) struct Gone {
    /// Of the command's own process; `None` when it is lost.
    pub(super) status: Option<Status>,
    pub(super) found: Ended,
}

impl Tree {
    pub(super) fn pidfd(&self) -> Arc<OwnedFd> {
        match self {
            Self::Bare(leader) => leader.pidfd(),
            Self::Confined(confined) => confined.pidfd(),
        }
    }

    /// Whether the command's own process has ended.
    pub(super) fn has_exited(&self) -> bool {
        match self {
            Self::Bare(leader) => leader.has_exited(),
            Self::Confined(confined) => confined.status().is_some(),
        }
    }

    /// Ends the whole tree, with two seconds to do so by itself if it is `asked` to.
    /// Returns when nothing is left.
    pub(super) async fn end(&mut self, exit: &Exit, asked: bool) -> Gone {
        match self {
            Self::Bare(leader) => {
                leader.begin_end();
                if asked {
                    ask_to_end(leader, exit).await;
                }
                force_end(leader, exit).await;
                Gone {
                    status: leader.reap(),
                    found: Ended::default(),
                }
            }
            Self::Confined(confined) => {
                if asked {
                    confined.terminate();
                    if timeout(GRACE, exit.readable()).await.is_err() {
                        confined.kill();
                    }
                }
                // Its first process ends the rest when the command's own has ended; the
                // kernel does when that one is killed. What hangs in the kernel is waited
                // for without end: its workspace is not free.
                let _ = exit.readable().await;
                let killed = asked.then_some(Status {
                    code: None,
                    signal: Some(Signal::KILL.as_raw()),
                });
                Gone {
                    status: confined.status().or(killed),
                    found: confined.finish().await,
                }
            }
        }
    }
}

/// SIGTERM, and up to two seconds for the whole tree. SIGCONT, since a stopped process
/// gets no other signal.
async fn ask_to_end(leader: &Leader, exit: &Exit) {
    leader.signal(Signal::TERM);
    leader.signal(Signal::CONT);
    let _ = timeout(GRACE, async {
        let _ = exit.readable().await;
        while !leader.orphans().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// SIGKILL, until nothing is left. A leader that does not die (another user's, or
/// stuck in the kernel) is waited for without end: its workspace is not free.
async fn force_end(leader: &Leader, exit: &Exit) {
    let mut pause = Duration::from_millis(1);
    let mut until = None;
    loop {
        leader.kill_group();
        if leader.has_exited() {
            // The short way of nearly every command.
            if leader.orphans().is_empty() {
                return;
            }
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + KILL_TIME) {
                tracing::warn!("processes of a command could not be ended");
                return;
            }
            leader.signal(Signal::KILL);
            sleep(pause).await;
        } else {
            leader.signal(Signal::KILL);
            let _ = timeout(pause, exit.readable()).await;
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
