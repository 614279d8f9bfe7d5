//! What a process that ran commands leaves behind when it is killed, and its end.
//!
//! A worker is such a process. Its sandbox launchers notice by themselves and end their
//! trees; commands without a sandbox notice nothing. This process is made the subreaper
//! before the worker starts, so everything that loses its parent below the worker becomes
//! its own child, and can be found without a list: a child of a foreign session which is
//! not older than the worker. Nothing else here starts sessions.

use std::{thread, time::Duration};

use rustix::process::Signal;
use tokio::time::Instant;

use super::{
    bare::{Stat, become_reaper, children},
    spawn,
};

// Launchers put protected paths back after the last process; a large tree takes a while.
const LAUNCHER_TIME: Duration = Duration::from_secs(5);
// What SIGKILL has not ended by then hangs in the kernel.
const KILL_TIME: Duration = Duration::from_secs(10);

/// Inherits what one lost child leaves. See the [module docs](self).
#[derive(Debug)]
pub struct Heir {
    child: i32,
    since: u64,
}

impl Heir {
    /// Makes this process the reaper of orphans below it. To be called before the child
    /// starts: what it leaves goes to the reaper there is at that moment.
    pub fn prepare() {
        spawn::keep_statuses();
        become_reaper();
    }

    /// The heir of this child, which leads (or will lead) a session of its own and is not
    /// reaped yet.
    #[must_use]
    pub fn of(child: u32) -> Self {
        let child = i32::try_from(child).unwrap_or(0);
        Self {
            child,
            since: Stat::read(child).map_or(0, |stat| stat.started),
        }
    }

    /// Ends and reaps everything the child left, once it is reaped itself and before
    /// another is started. Blocks until nothing is left; `false` when something could not
    /// be ended.
    #[must_use]
    pub fn end_all(&self) -> bool {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut empty = 0;
        loop {
            let left = self.left();
            // The kernel's list of children may skip one when another goes while it is read.
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if empty == 2 {
                return true;
            }
            if began.elapsed() > KILL_TIME {
                return false;
            }
            let mut waits = false;
            for stat in &left {
                if stat.zombie {
                    stat.reap();
                } else if stat.session == self.child && began.elapsed() < LAUNCHER_TIME {
                    waits = true;
                } else {
                    stat.signal(Signal::KILL);
                    waits = true;
                }
            }
            if waits {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    fn left(&self) -> Vec<Stat> {
        let own = std::process::id().cast_signed();
        let Some(session) = Stat::read(own).map(|stat| stat.session) else {
            return Vec::new();
        };
        children(own)
            .into_iter()
            .filter_map(Stat::read)
            .filter(|stat| {
                stat.parent == own && stat.session != session && stat.started >= self.since
            })
            .collect()
    }
}
