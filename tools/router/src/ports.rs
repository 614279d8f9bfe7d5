//! What a layer needs of the world, as small traits. `store`, `runner` and the
//! program implement them; no layer knows SQL or a file system.

use std::{future::Future, pin::Pin, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Caller, OperationId, Subject, ToolError, Workspace, WorkspaceId,
    call::{Answer, Lease},
};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds the workspace behind a subject.
pub trait Resolve: Send + Sync {
    /// The workspace, or `None` when the subject does not exist. Visibility is not
    /// decided here, but an operation key is looked up among `caller`'s own.
    fn workspace<'a>(
        &'a self,
        subject: Subject<'a>,
        caller: &'a Caller,
    ) -> Answer<'a, Option<Arc<Workspace>>>;
}

/// Who holds a lease: the label of a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwner {
    /// A patch, for the length of its call.
    Patch,
    /// A command, until its process tree is gone.
    Process,
}

/// One mutation at a time per workspace.
pub trait Leases: Send + Sync {
    /// Takes the lease, or says at once who is in the way. Never waits.
    ///
    /// # Errors
    /// `WORKSPACE_BUSY`; `FILE_OPERATION_FAILED` when the root is gone.
    fn try_hold(&self, workspace: &Workspace, owner: LeaseOwner) -> Result<Lease, ToolError>;
}

/// What an operation key stands for: SHA-256 over the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

/// What became of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationStatus {
    /// Begun and not ended.
    Running,
    /// A preview passed; nothing was written.
    Checked,
    /// Written, and the hashes on disk equal the planned ones.
    Applied,
    /// Refused by the runner; nothing was written.
    Rejected,
    /// Writing failed, and every file has its old bytes again.
    FailedRolledBack,
    /// Writing failed, and some file could not be restored.
    FailedPartial,
    /// The outcome is not known; inspect the files.
    Unknown,
}

impl OperationStatus {
    /// Every status.
    pub const ALL: [OperationStatus; 7] = [
        Self::Running,
        Self::Checked,
        Self::Applied,
        Self::Rejected,
        Self::FailedRolledBack,
        Self::FailedPartial,
        Self::Unknown,
    ];

    /// The name on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Checked => "checked",
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::FailedRolledBack => "failed_rolled_back",
            Self::FailedPartial => "failed_partial",
            Self::Unknown => "unknown",
        }
    }

    /// The status with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// What is recorded before anything happens.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// The caller's subject, which scopes the key.
    pub caller: String,
    /// The caller's key.
    pub key: Option<String>,
    /// What the key stands for.
    pub fingerprint: Fingerprint,
    /// Where it happens.
    pub workspace: WorkspaceId,
    /// Every path the call names, sorted.
    pub files: Vec<String>,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Its status; never `Running`.
    pub status: OperationStatus,
    /// Why, when it is not a plain success: a short fixed phrase.
    pub reason: Option<String>,
    /// The tool's result, or the error's body when `status` is `Rejected`.
    pub result: Value,
}

/// A line of an operation's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    /// When, RFC 3339 UTC.
    pub at: String,
    /// `minted` or `finished`.
    pub name: String,
    /// The status it ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<OperationStatus>,
    /// Why, when it was not a plain success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An operation as the ledger has it.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    /// Its id.
    pub operation_id: OperationId,
    /// Where it happened.
    pub workspace: WorkspaceId,
    /// What the key stood for.
    pub fingerprint: Fingerprint,
    /// What became of it.
    pub status: OperationStatus,
    /// When it was minted, RFC 3339 UTC.
    pub created_at: String,
    /// When it ended.
    pub finished_at: Option<String>,
    /// Every path the call named, sorted.
    pub files: Vec<String>,
    /// The stored result, or the error's body; `None` while running.
    pub result: Option<Value>,
    /// Its history, oldest first.
    pub events: Vec<Event>,
}

/// Which operation.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// By its id.
    Id(OperationId),
    /// By the key of a caller.
    Key {
        /// The caller's subject.
        caller: String,
        /// Its key.
        key: String,
    },
}

/// What minting under a key found.
#[derive(Clone, Debug)]
pub enum Minted {
    /// A new operation, now `running`.
    New(OperationId),
    /// The key is taken by this operation; whether it is the same one is the caller's question.
    Taken(Box<OperationRecord>),
}

/// The durable record of operations.
pub trait Ledger: Send + Sync {
    /// The operation, if there is one. Writes nothing.
    fn find(&self, lookup: Lookup) -> Answer<'_, Option<OperationRecord>>;

    /// Records the start of an operation, in one transaction with the check of its key.
    /// A drop of this future leaves either nothing or an operation that recovery settles.
    fn mint(&self, operation: NewOperation) -> Answer<'_, Minted>;

    /// Records how an operation ended. Ending it twice keeps the first end.
    fn finish(&self, operation: OperationId, settlement: Settlement) -> Answer<'_, ()>;
}
