//! One task per process: reads its output, watches for its end, ends its tree, and only
//! then lets the workspace go and tells those who wait, in this order: who sees the
//! exit can start the next command at once.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use codespace_router::ProcessId;
use rustix::process::Signal;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, MissedTickBehavior, interval_at, sleep, timeout},
};

use super::{
    managed::{End, Managed},
    streams::Output,
    table::{Slot, Table},
    tree::{self, Leader},
};
use crate::Termination;

// Contract, section 7.
const GRACE: Duration = Duration::from_secs(2);
// What SIGKILL has not ended by then hangs in the kernel or is another user's.
const KILL_TIME: Duration = Duration::from_secs(5);
// For what survivors like that may still write.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 * 1024;

pub(super) struct Supervisor {
    pub(super) id: ProcessId,
    pub(super) table: Arc<Table>,
    pub(super) process: Arc<Managed>,
    pub(super) leader: Leader,
    pub(super) exit: AsyncFd<Arc<OwnedFd>>,
    pub(super) output: Output,
    /// Of a terminal: what keeps its output open, see `terminal`.
    pub(super) slave: Option<OwnedFd>,
    pub(super) time_limit: Duration,
    pub(super) started: Instant,
    pub(super) keep: Box<dyn Send + Sync>,
    pub(super) slot: Slot,
}

impl Supervisor {
    pub(super) async fn run(self) {
        let Self {
            id,
            table,
            process,
            mut leader,
            exit,
            output,
            slave,
            time_limit,
            started,
            keep,
            slot,
        } = self;
        let mut reader = tokio::spawn(read_all(output, process.clone()));
        let cause = wait(&process, &exit, time_limit)
            .await
            .filter(|_| !leader.has_exited());
        leader.begin_end();
        if cause.is_some() {
            ask_to_end(&leader, &exit).await;
        }
        force_end(&leader, &exit).await;
        let status = leader.reap();
        drop(slave);
        if timeout(DRAIN_TIME, &mut reader).await.is_err() {
            tracing::warn!(process = %id, "something that could not be ended still holds the output");
            reader.abort();
            let _ = reader.await;
        }
        let termination = match status {
            None => Termination::Unknown,
            Some(_) => cause.unwrap_or(Termination::Exited),
        };
        let end = End {
            termination,
            exit_code: status
                .and_then(|status| status.code)
                .filter(|_| termination == Termination::Exited),
            signal: status.and_then(|status| status.signal),
        };
        metrics::counter!("codespace_process_exits_total", "termination" => termination.as_str())
            .increment(1);
        metrics::histogram!("codespace_process_duration_seconds", "termination" => termination.as_str())
            .record(started.elapsed().as_secs_f64());
        drop(keep);
        drop(slot);
        table.exited(id);
        process.finish(end).await;
    }
}

/// Waits for the leader's own end, or answers why to end it.
async fn wait(
    process: &Managed,
    exit: &AsyncFd<Arc<OwnedFd>>,
    time_limit: Duration,
) -> Option<Termination> {
    let mut limit = std::pin::pin!(sleep(time_limit));
    let second = Duration::from_secs(1);
    let mut tick = interval_at(Instant::now() + second, second);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = exit.readable() => return None,
            () = process.stopped() => return Some(Termination::Terminated),
            () = &mut limit => return Some(Termination::Timeout),
            // Orphans that ended while the command goes on.
            _ = tick.tick() => tree::reap_orphans(),
        }
    }
}

/// SIGTERM, and up to two seconds for the whole tree. SIGCONT, since a stopped process
/// gets no other signal.
async fn ask_to_end(leader: &Leader, exit: &AsyncFd<Arc<OwnedFd>>) {
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
async fn force_end(leader: &Leader, exit: &AsyncFd<Arc<OwnedFd>>) {
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

async fn read_all(mut output: Output, process: Arc<Managed>) {
    let mut buffer = Vec::new();
    loop {
        match output.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                process.push(&buffer[..count]);
                if count == buffer.len() && count < READ_BYTES {
                    buffer.resize(READ_BYTES, 0);
                }
            }
        }
    }
}
