//! One task per process: reads its output, watches for its end, ends its tree, and only
//! then lets the workspace go and tells those who wait, in this order: who sees the
//! exit can start the next command at once.

use std::{convert::Infallible, future::pending, os::fd::OwnedFd, sync::Arc, time::Duration};

use codespace_router::ProcessId;
use codespace_sandbox::Ended;
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
};

use super::{
    managed::{End, Managed},
    streams::Output,
    table::{Slot, Table},
    tree::{self, Exit, Gone, Status, Tree},
};
use crate::{LimitHit, Termination};

// For what survivors like that may still write.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 * 1024;
// An ended orphan costs an id, a look for it costs the server a list of its children.
const REAP_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    pub(super) id: ProcessId,
    pub(super) table: Arc<Table>,
    pub(super) process: Arc<Managed>,
    pub(super) tree: Tree,
    pub(super) exit: Exit,
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
            mut tree,
            exit,
            output,
            slave,
            time_limit,
            started,
            keep,
            slot,
        } = self;
        let mut reader = tokio::spawn(read_all(output, process.clone()));
        let cause = wait(&process, &tree, &exit, time_limit)
            .await
            .filter(|_| !tree.has_exited());
        let Gone { status, found } = tree.end(&exit, cause.is_some()).await;
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
            limit_hit: limit_hit(status, &found),
            protected: found.protected.into(),
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

// A limit on a file's size is told by the signal alone (setrlimit(2)).
fn limit_hit(status: Option<Status>, found: &Ended) -> Option<LimitHit> {
    let signal = status.and_then(|status| status.signal);
    let too_large = signal == Some(Signal::XFSZ.as_raw());
    let seen = found.limit_hit.map(LimitHit::from);
    seen.or(too_large.then_some(LimitHit::FileSize))
}

/// Waits for the leader's own end, or answers why to end it.
async fn wait(
    process: &Managed,
    tree: &Tree,
    exit: &Exit,
    time_limit: Duration,
) -> Option<Termination> {
    tokio::select! {
        biased;
        _ = exit.readable() => None,
        () = process.stopped() => Some(Termination::Terminated),
        () = sleep(time_limit) => Some(Termination::Timeout),
        never = reap_orphans(tree) => match never {},
    }
}

/// Reaps orphans that end while the command goes on; costs nothing while no child of the
/// server ends.
async fn reap_orphans(tree: &Tree) -> Infallible {
    // Inside a PID namespace they are left to its init.
    if let Tree::Bare(_) = tree
        && let Ok(mut ended) = signal(SignalKind::child())
    {
        while ended.recv().await.is_some() {
            tree::reap_orphans();
            sleep(REAP_EVERY).await;
        }
    }
    pending().await
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
