//! The runner's interface: what a tool may ask of it, and what it answers.

use std::{collections::BTreeMap, num::NonZeroU16, time::Duration};

use codespace_patch::Patch;
use codespace_router::{
    BoxFuture, OperationId, OperationStatus, ProcessId, ToolError, Undo, WorkspaceId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

type Answer<'a, T> = BoxFuture<'a, Result<T, ToolError>>;

/// Does what the tools ask, in the workspaces it was given. Errors are the contract's
/// own codes; a workspace it does not know is `INTERNAL`, since authorization found it.
pub trait Runner: Send + Sync + 'static {
    /// Reads one file, at most the configured number of raw bytes of it.
    fn read<'a>(&'a self, workspace: &'a WorkspaceId, path: &'a str) -> Answer<'a, FileContent>;

    /// Lists the files a glob matches, in byte order.
    fn find<'a>(&'a self, workspace: &'a WorkspaceId, glob: Option<&'a str>) -> Answer<'a, Found>;

    /// Plans and (unless the job only checks) commits a patch. An error means that
    /// nothing was written.
    fn apply<'a>(&'a self, workspace: &'a WorkspaceId, job: PatchJob) -> Answer<'a, Applied>;

    /// Starts a command. `keep` is dropped when its process tree is known to be gone,
    /// or before this answers when none was started.
    fn exec<'a>(
        &'a self,
        workspace: &'a WorkspaceId,
        spec: ExecSpec,
        keep: Box<dyn Send + Sync>,
    ) -> Answer<'a, Started>;

    /// The workspace a process runs in; `None` for an unknown or expired handle.
    fn workspace_of(&self, process: &ProcessId) -> Option<WorkspaceId>;

    /// Reads output from a byte offset, waiting up to `wait` for something new.
    fn output<'a>(
        &'a self,
        process: &'a ProcessId,
        cursor: u64,
        wait: Duration,
    ) -> Answer<'a, Chunk>;

    /// Writes to stdin, waiting up to five seconds while it is full; then closes it (or
    /// tells a terminal's reader the end of input) if asked to. Answers the number of
    /// bytes taken.
    fn write_stdin<'a>(
        &'a self,
        process: &'a ProcessId,
        data: &'a [u8],
        close: bool,
    ) -> Answer<'a, usize>;

    /// Sets the size of a process's terminal.
    fn resize<'a>(
        &'a self,
        process: &'a ProcessId,
        rows: NonZeroU16,
        cols: NonZeroU16,
    ) -> Answer<'a, ()>;

    /// What is known of a process, waiting up to `wait` for its exit.
    fn status<'a>(&'a self, process: &'a ProcessId, wait: Duration) -> Answer<'a, ProcessStatus>;

    /// Ends the whole tree: SIGTERM, two seconds, SIGKILL. Returns when it is gone or
    /// after the grace period; ending an ended one is a no-op.
    fn terminate<'a>(&'a self, process: &'a ProcessId) -> Answer<'a, ()>;

    /// Ends every process and waits for their trees. The server's last call.
    fn shut_down(&self) -> BoxFuture<'_, ()>;
}

/// How `content` holds a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Encoding {
    /// The text itself; the whole file is UTF-8.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Standard base64 with padding; some of the file is not UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

/// A file as read.
#[derive(Clone, Debug, PartialEq)]
pub struct FileContent {
    /// The content, or its start when `truncated`.
    pub content: String,
    /// How to read `content`.
    pub encoding: Encoding,
    /// `sha256:` and 64 hex digits over the whole file.
    pub version: String,
    /// The whole file's size in bytes.
    pub size: u64,
    /// Whether `content` is only the start.
    pub truncated: bool,
}

/// What a glob matched.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Paths relative to the root, in byte order.
    pub paths: Vec<String>,
    /// Whether there are more.
    pub truncated: bool,
}

/// A patch to plan and commit.
#[derive(Clone, Debug)]
pub struct PatchJob {
    /// What it is recorded as; names the journal.
    pub operation: OperationId,
    /// The parsed patch.
    pub patch: std::sync::Arc<Patch>,
    /// The text it was parsed from: how it travels to another process.
    pub text: String,
    /// Versions that paths must have now: `sha256:…` or `absent`. Keys are normalised.
    pub expected: BTreeMap<String, String>,
    /// Plan only.
    pub check_only: bool,
}

/// How a patch ended.
pub struct Applied {
    /// `Checked`, `Applied`, `FailedRolledBack`, `FailedPartial` or `Unknown`.
    pub status: OperationStatus,
    /// Why, when it is not a success.
    pub reason: Option<String>,
    /// One row per path that ends (or, for a check, would end) different.
    pub changes: Vec<Change>,
    /// The old state, kept until the record is stored; `None` when nothing is kept.
    pub undo: Option<Box<dyn Undo>>,
}

impl std::fmt::Debug for Applied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applied")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// What became of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The path; of a move, the old one.
    pub path: String,
    /// What happened to it.
    pub kind: ChangeKind,
    /// The version it had; absent for an added file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_version: Option<String>,
    /// The version it has now; absent for a deleted file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_version: Option<String>,
    /// Where a moved file is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    /// Where each hunk matched, and how.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hunks: Vec<Hunk>,
}

/// What happened to a path, comparing the start with the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It did not exist.
    Add,
    /// Its content is other than it was.
    Update,
    /// It does not exist any more.
    Delete,
    /// It is under another path now.
    Move,
}

impl ChangeKind {
    /// The name on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Move => "move",
        }
    }
}

/// Where a hunk matched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hunk {
    /// The first line it matched, from 1, in the file as it was before that update.
    pub line: u64,
    /// `exact`, `trailing_space`, `space` or `unicode`: the pass that matched.
    #[serde(rename = "match")]
    pub matched: String,
    /// How many places this pass matched; the first was taken.
    pub candidates: u64,
}

/// A command to start.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    /// The argument vector; not empty, no NUL.
    pub command: Vec<String>,
    /// Whether it runs on a terminal of 24 rows and 80 columns instead of pipes.
    pub tty: bool,
}

/// Whether a start is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dispatch {
    /// The spawn was acknowledged; not that the command succeeded.
    Confirmed,
    /// Whoever was to start it was lost before it said so: it may have run, for a while. Its
    /// whole tree is gone.
    Unknown,
}

/// A started command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its handle.
    pub process: ProcessId,
    /// Whether the start is known.
    pub dispatch: Dispatch,
}

/// A piece of a process's output.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Where to go on: the offset after this chunk in the whole output.
    pub cursor: u64,
    /// The text; bytes that are not UTF-8 are U+FFFD.
    pub chunk: String,
    /// Whether nothing more will come.
    pub eof: bool,
    /// Whether bytes between the asked cursor and `retained_from` are gone.
    pub output_lost: bool,
    /// The offset of the oldest byte still kept.
    pub retained_from: u64,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It, or something of its tree, is alive.
    Running,
    /// Its whole tree is gone.
    Exited,
}

/// How a process came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Termination {
    /// By itself, or by a signal the server did not send.
    Exited,
    /// The server ended it at its time limit.
    Timeout,
    /// The server ended it on request or at shutdown.
    Terminated,
    /// Its status was lost.
    Unknown,
}

impl Termination {
    /// The name on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Timeout => "timeout",
            Self::Terminated => "terminated",
            Self::Unknown => "unknown",
        }
    }
}

/// A limit that the kernel enforced on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    /// A process or thread was refused (`limits.tasks`).
    Tasks,
    /// Something was killed for the memory it used (`limits.memory_bytes`).
    Memory,
    /// A file would have grown too large.
    FileSize,
}

/// What is known of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessStatus {
    /// Whether it runs.
    pub state: ProcessState,
    /// How it ended; `None` while it runs.
    pub termination: Option<Termination>,
    /// Its exit code; only with `Termination::Exited`.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Which limit the kernel had to enforce, as far as it tells.
    pub limit_hit: Option<LimitHit>,
    /// Protected paths that the command changed and that were put back.
    pub protected: std::sync::Arc<[String]>,
    /// Bytes it has written in all.
    pub output_total: u64,
    /// The offset of the oldest byte still kept.
    pub output_retained_from: u64,
    /// Whether nothing more will come.
    pub eof: bool,
}
