//! The durable record of operations, in one SQLite file that belongs to one server.
//!
//! [`Store`] is a handle to a thread that owns the connection; it implements
//! [`Ledger`]. The thread commits what waits together in one transaction, and answers
//! after the commit: an answer is a promise that the record survives the process, and
//! with [`Durability::Full`] power loss. A failed transaction leaves nothing, and the
//! next call starts afresh, so a full disk is over once there is space again.
//!
//! Emits `codespace_store_transaction_seconds{kind}`: what a caller waits, queue included.

mod ledger;
mod migrate;
mod open;
mod worker;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use codespace_router::{
    BoxFuture, Code, Ledger, Lookup, Minted, NewOperation, OperationId, OperationRecord,
    OperationStatus, Settlement, ToolError,
};
use rusqlite::ErrorCode;
use tokio::{sync::oneshot, time::Instant};

pub use open::OpenFault;

use ledger::End;
use open::Opened;
use worker::{Read, Reply, Request, Write};

/// The histogram of what a ledger call takes, in seconds, by `kind`: `mint`, `finish`, `find`.
pub const TRANSACTION_SECONDS: &str = "codespace_store_transaction_seconds";

/// What a record survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process, by any signal.
    Process,
    /// Also power loss: each commit is synced to the disk.
    Full,
}

/// How a store is kept.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// What a record survives.
    pub durability: Durability,
    /// How long a record stays after its operation ended. A running one always stays.
    pub keep: Duration,
}

/// A handle to the store. Clones share one thread and one file.
///
/// The drop of the last handle closes the file and waits for that, so that it can be
/// opened again at once; [`close`](Self::close) does the same without blocking.
#[derive(Clone, Debug)]
pub struct Store {
    thread: Arc<Thread>,
}

#[derive(Debug)]
struct Thread {
    /// `None` only while dropping: the thread ends when no sender is left.
    requests: Option<Sender<Request>>,
    join: Mutex<Option<JoinHandle<()>>>,
    id: Option<String>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.requests.take());
        let join = self
            .join
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Err(_)) = join.map(JoinHandle::join) {
            tracing::error!("the store's thread had panicked");
        }
    }
}

/// What a caller is told when the store fails it.
#[derive(Clone, Copy)]
enum Kind {
    Mint,
    Finish,
    Find,
    Other,
}

impl Store {
    /// Opens the file, creating it (mode 0600) and its folder (0700) as needed. Blocks.
    ///
    /// # Errors
    /// When another server has the file, or it cannot be or must not be used.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, OpenFault> {
        Self::start(open::file(path, options.durability)?, path, options.keep)
    }

    /// Finds out what would stand in the way of [`Store::open`], and changes nothing.
    ///
    /// # Errors
    /// What `open` would answer about a file that exists.
    pub fn check(path: &Path) -> Result<(), OpenFault> {
        open::check(path)
    }

    /// A store that is gone with its last handle.
    ///
    /// # Errors
    /// When SQLite or the system has no memory or thread left.
    pub fn in_memory(options: StoreOptions) -> Result<Self, OpenFault> {
        Self::start(open::memory()?, Path::new(":memory:"), options.keep)
    }

    fn start(opened: Opened, path: &Path, keep: Duration) -> Result<Self, OpenFault> {
        let (requests, inbox) = mpsc::channel();
        let id = opened.id.clone();
        let join = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || worker::serve(opened, inbox, keep))
            .map_err(|source| OpenFault::Io {
                path: path.to_owned(),
                source,
            })?;
        let join = Mutex::new(Some(join));
        Ok(Self {
            thread: Arc::new(Thread {
                requests: Some(requests),
                join,
                id,
            }),
        })
    }

    /// By what journals know this store, also when its file has moved; `None` in memory.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.thread.id.as_deref()
    }

    /// Records how recovery found an operation to have ended: like
    /// [`finish`](Ledger::finish), but an end that left the outcome open (`unknown`,
    /// `failed_partial`) gives way. An operation that is not there is nothing.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`.
    pub async fn revise(
        &self,
        operation: OperationId,
        settlement: Settlement,
    ) -> Result<(), ToolError> {
        self.end(operation, settlement, true).await.map(|_| ())
    }

    async fn end(
        &self,
        operation: OperationId,
        settlement: Settlement,
        revises: bool,
    ) -> Result<bool, ToolError> {
        let Settlement {
            status,
            reason,
            result,
        } = settlement;
        if status == OperationStatus::Running {
            return Err(ToolError::internal("an operation cannot end as running"));
        }
        let end = End {
            id: operation,
            status,
            reason,
            result: result.to_string(),
            revises,
        };
        // A drop here leaves the end recorded: the thread has it.
        self.ask(Kind::Finish, |reply| {
            Request::Write(Write::Finish {
                end,
                outcome: false,
                reply,
            })
        })
        .await
    }

    /// Every operation that was begun and not ended, oldest first: what recovery settles.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`.
    pub async fn unfinished(&self) -> Result<Vec<OperationRecord>, ToolError> {
        self.ask(Kind::Other, |reply| Request::Read(Read::Unfinished(reply)))
            .await
    }

    /// Whether the store answers a trivial query.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`.
    pub async fn probe(&self) -> Result<(), ToolError> {
        self.ask(Kind::Other, |reply| Request::Read(Read::Probe(reply)))
            .await
    }

    /// Ends what waits, folds the log into the file, and gives the file up. Later calls
    /// on any handle are refused. A second close does nothing.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.send(Request::Close(done)) {
            // An error is a thread that is gone already.
            drop(closed.await);
        }
    }

    fn send(&self, request: Request) -> bool {
        self.thread
            .requests
            .as_ref()
            .is_some_and(|requests| requests.send(request).is_ok())
    }

    /// Never hangs: a thread that dies drops every reply it had.
    async fn ask<T>(
        &self,
        kind: Kind,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ToolError> {
        let begun = Instant::now();
        let (reply, answer) = oneshot::channel();
        let sent = self.send(request(reply));
        let answer = if sent { answer.await.ok() } else { None };
        if let Some(name) = kind.label() {
            metrics::histogram!(TRANSACTION_SECONDS, "kind" => name)
                .record(begun.elapsed().as_secs_f64());
        }
        match answer {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(kind.refusal(error.sqlite_error_code()).with_source(error)),
            None => Err(kind
                .refusal(None)
                .with_source("the store's thread has ended")),
        }
    }
}

impl Kind {
    fn label(self) -> Option<&'static str> {
        match self {
            Kind::Mint => Some("mint"),
            Kind::Finish => Some("finish"),
            Kind::Find => Some("find"),
            Kind::Other => None,
        }
    }

    fn refusal(self, code: Option<ErrorCode>) -> ToolError {
        let done = match self {
            // Between an effect and its record "nothing was done" would be a lie.
            Kind::Finish => {
                "the outcome could not be recorded; inspect the files, the server settles the operation at its next start"
            }
            Kind::Mint | Kind::Find | Kind::Other => "nothing was done",
        };
        let remedy = match code {
            Some(ErrorCode::DiskFull) => {
                "the disk that holds the store is full: free some space, then repeat the call"
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another program has the store locked: end it, then repeat the call"
            }
            Some(ErrorCode::ReadOnly) => {
                "the store's file was removed, replaced or made read-only: its operator must put it back and restart the server"
            }
            _ => "the store cannot be used: the server's log has the reason",
        };
        ToolError::new(Code::StoreUnavailable, format!("{done}; {remedy}"))
    }
}

impl Ledger for Store {
    fn find(&self, lookup: Lookup) -> BoxFuture<'_, Result<Option<OperationRecord>, ToolError>> {
        Box::pin(self.ask(Kind::Find, |reply| Request::Read(Read::Find(lookup, reply))))
    }

    fn mint(&self, operation: NewOperation) -> BoxFuture<'_, Result<Minted, ToolError>> {
        Box::pin(async move {
            let files = serde_json::to_string(&operation.files).map_err(ToolError::internal)?;
            // A drop here leaves nothing, or a running operation that recovery settles.
            self.ask(Kind::Mint, |reply| {
                Request::Write(Write::Mint {
                    operation,
                    files,
                    outcome: None,
                    reply,
                })
            })
            .await
        })
    }

    fn finish(
        &self,
        operation: OperationId,
        settlement: Settlement,
    ) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let known = self.end(operation, settlement, false).await?;
            if known {
                Ok(())
            } else {
                Err(ToolError::internal("the operation was never minted"))
            }
        })
    }
}
