//! The thread that owns the connection: SQLite blocks, and async workers must not.
//!
//! Requests that wait in the channel together are committed together, so mutations in
//! different workspaces share one commit (and one sync, with full durability). An answer
//! is sent only after its commit. Reads are answered before the writes beside them, from
//! what is committed: a caller that was told of a write finds it.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    time::Duration,
};

use codespace_router::{Lookup, Minted, NewOperation, OperationRecord};
use rusqlite::{Connection, TransactionBehavior};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    ledger::{self, End},
    open::{BUSY, Opened, Standing, moved},
};

/// Requests taken into one round: bounds how long the first of them waits for the last.
const ROUND: usize = 128;

/// How often old records are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(60 * 60);

/// Where an answer goes. A failed send is a caller that left: nothing to do about it.
pub(crate) type Reply<T> = oneshot::Sender<rusqlite::Result<T>>;

/// What the handle asks of the thread.
pub(crate) enum Request {
    Read(Read),
    Write(Write),
    /// Answered when the file is closed and its lock given up.
    Close(oneshot::Sender<()>),
}

/// Looks at what is committed.
pub(crate) enum Read {
    Find(Lookup, Reply<Option<OperationRecord>>),
    Unfinished(Reply<Vec<OperationRecord>>),
    Probe(Reply<()>),
}

impl Read {
    fn answer(self, conn: &Connection, standing: &Standing) {
        match self {
            Read::Find(lookup, reply) => drop(reply.send(ledger::find(conn, &lookup))),
            Read::Unfinished(reply) => drop(reply.send(ledger::unfinished(conn))),
            Read::Probe(reply) => {
                let answer = match standing.lost() {
                    Some(lost) => Err(moved(lost)),
                    None => ledger::probe(conn),
                };
                drop(reply.send(answer));
            }
        }
    }
}

/// A change, with its outcome once it was made and before it is committed.
pub(crate) enum Write {
    Mint {
        operation: NewOperation,
        files: String,
        outcome: Option<Minted>,
        reply: Reply<Minted>,
    },
    /// Answers whether the operation exists.
    Finish {
        end: End,
        outcome: bool,
        reply: Reply<bool>,
    },
}

impl Write {
    fn apply(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        match self {
            // Its caller left before anything was recorded, so nothing is.
            Write::Mint { reply, .. } if reply.is_closed() => {}
            Write::Mint {
                operation,
                files,
                outcome,
                ..
            } => {
                *outcome = Some(ledger::mint(conn, operation, files)?);
            }
            // An end is recorded whoever still listens: the effect is there.
            Write::Finish { end, outcome, .. } => *outcome = ledger::finish(conn, end)?,
        }
        Ok(())
    }

    fn committed(self) {
        match self {
            Write::Mint {
                outcome: Some(minted),
                reply,
                ..
            } => drop(reply.send(Ok(minted))),
            // Skipped: its reply is closed.
            Write::Mint { outcome: None, .. } => {}
            Write::Finish { outcome, reply, .. } => drop(reply.send(Ok(outcome))),
        }
    }

    fn failed(self, error: rusqlite::Error) {
        tracing::error!(error = %error, "the store cannot be written");
        match self {
            Write::Mint { reply, .. } => drop(reply.send(Err(error))),
            Write::Finish { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// Serves requests until it is told to close or the last handle is gone.
pub(crate) fn serve(opened: Opened, requests: Receiver<Request>, keep: Duration) {
    let Opened {
        mut conn,
        lock,
        standing,
        ..
    } = opened;
    let mut tidy = Tidy::new(keep);
    let mut closers = Vec::new();
    while closers.is_empty() {
        match next(&requests, &mut tidy) {
            Next::Gone => break,
            Next::Idle => {}
            Next::Round(first) => {
                let round = round(first, &requests);
                closers = round.closers;
                for read in round.reads {
                    read.answer(&conn, &standing);
                }
                commit(&mut conn, &standing, round.writes);
            }
        }
        tidy.step(&mut conn);
    }
    // The last connection to close checkpoints and removes the write-ahead log.
    if let Err((_, error)) = conn.close() {
        tracing::warn!(error = %error, "the store was not closed cleanly; the next start reads its log");
    }
    drop(lock);
    // Whoever still waits in the channel learns now that the thread is gone.
    drop(requests);
    for closer in closers {
        let _ = closer.send(());
    }
}

enum Next {
    Round(Request),
    Idle,
    Gone,
}

fn next(requests: &Receiver<Request>, tidy: &mut Tidy) -> Next {
    if tidy.is_under_way() {
        // Old records go between calls, a few at a time, and no call waits for them all.
        return match requests.try_recv() {
            Ok(request) => Next::Round(request),
            Err(TryRecvError::Empty) => Next::Idle,
            Err(TryRecvError::Disconnected) => Next::Gone,
        };
    }
    match requests.recv_timeout(tidy.due_in()) {
        Ok(request) => Next::Round(request),
        Err(RecvTimeoutError::Timeout) => Next::Idle,
        Err(RecvTimeoutError::Disconnected) => Next::Gone,
    }
}

#[derive(Default)]
struct Round {
    reads: Vec<Read>,
    writes: Vec<Write>,
    closers: Vec<oneshot::Sender<()>>,
}

fn round(first: Request, requests: &Receiver<Request>) -> Round {
    let mut round = Round::default();
    for request in std::iter::once(first)
        .chain(requests.try_iter())
        .take(ROUND)
    {
        match request {
            Request::Read(read) => round.reads.push(read),
            Request::Write(write) => round.writes.push(write),
            Request::Close(done) => round.closers.push(done),
        }
    }
    round
}

/// Commits all writes together; if that fails, each alone, so that none fails for another's fault.
fn commit(conn: &mut Connection, standing: &Standing, mut writes: Vec<Write>) {
    if writes.is_empty() {
        return;
    }
    // Once for all of them: what is written into a file that has no name is lost.
    if let Some(lost) = standing.lost() {
        return writes
            .into_iter()
            .for_each(|write| write.failed(moved(lost)));
    }
    match transact(conn, &mut writes) {
        Ok(()) => writes.into_iter().for_each(Write::committed),
        Err(error) if writes.len() == 1 => {
            if let Some(write) = writes.pop() {
                write.failed(error);
            }
        }
        Err(_) => {
            for mut write in writes {
                match transact(conn, std::slice::from_mut(&mut write)) {
                    Ok(()) => write.committed(),
                    Err(error) => write.failed(error),
                }
            }
        }
    }
}

/// One transaction. An error leaves nothing of it: the guard rolls back what SQLite did not
/// roll back by itself, so the connection is ready for the next one.
fn transact(conn: &mut Connection, writes: &mut [Write]) -> rusqlite::Result<()> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for write in writes {
        write.apply(&transaction)?;
    }
    transaction.commit()
}

/// Deletes records past their time, at the start and every hour.
struct Tidy {
    keep: Duration,
    due: Instant,
    /// The row reached and the time before which records go; `None` between two walks.
    walk: Option<(i64, String)>,
}

impl Tidy {
    fn new(keep: Duration) -> Self {
        Self {
            keep,
            due: Instant::now(),
            walk: None,
        }
    }

    fn is_under_way(&self) -> bool {
        self.walk.is_some()
    }

    fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    fn step(&mut self, conn: &mut Connection) {
        if self.walk.is_none() && self.due_in().is_zero() {
            self.due = Instant::now() + TIDY_EVERY;
            // Row ids start at 1.
            self.walk = ledger::cutoff(self.keep).map(|cutoff| (0, cutoff));
            truncate(conn);
        }
        let Some((after, cutoff)) = self.walk.take() else {
            return;
        };
        match purge(conn, after, &cutoff) {
            Ok(Some(reached)) => self.walk = Some((reached, cutoff)),
            Ok(None) => {}
            // The next hour tries again.
            Err(error) => tracing::warn!(error = %error, "old records were not deleted"),
        }
    }
}

fn purge(conn: &mut Connection, after: i64, cutoff: &str) -> rusqlite::Result<Option<i64>> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let reached = ledger::purge(&transaction, after, cutoff)?;
    transaction.commit()?;
    Ok(reached)
}

/// Gives a log back that a crash or a slow reader left behind. The automatic checkpoints
/// bound it otherwise. Must not wait for a reader, or every call would.
fn truncate(conn: &Connection) {
    let checkpoint = || {
        conn.busy_timeout(Duration::ZERO)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = checkpoint() {
        tracing::debug!(error = %error, "the store's log was not truncated");
    }
    if let Err(error) = conn.busy_timeout(BUSY) {
        tracing::warn!(error = %error, "the store does not wait for other programs");
    }
}
