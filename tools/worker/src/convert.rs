//! The wire form of what a runner is asked and answers. Enumerations travel by the names
//! they have in the contract; a message that makes no sense is a fault, never a panic.

use std::{borrow::Cow, str::FromStr, time::Duration};

use bytes::Bytes;
use codespace_router::{Code, OperationStatus, ToolError};
use codespace_runner::{
    Applied, Change, ChangeKind, Chunk, Encoding, FileContent, Found, Hunk, LimitHit, ProcessState,
    ProcessStatus, Termination,
};
use serde_json::Value;

use crate::wire;

/// A message that this build does not send.
pub(crate) fn nonsense(what: &str) -> ToolError {
    ToolError::internal(format!(
        "gateway and worker do not understand each other: {what}"
    ))
}

/// An id of the wire.
pub(crate) fn id<T: FromStr>(text: &str) -> Result<T, ToolError> {
    text.parse().map_err(|_| nonsense("an id"))
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn text(bytes: Bytes) -> Result<String, ToolError> {
    String::from_utf8(bytes.into()).map_err(|_| nonsense("a text that is not UTF-8"))
}

impl From<&ToolError> for wire::Fault {
    fn from(error: &ToolError) -> Self {
        let details = match error.details() {
            none if none.is_empty() => Vec::new(),
            some => serde_json::to_vec(some).unwrap_or_default(),
        };
        let cause = std::error::Error::source(error).map(ToString::to_string);
        Self {
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
            details: details.into(),
            cause: cause.unwrap_or_default(),
        }
    }
}

impl From<wire::Fault> for ToolError {
    fn from(fault: wire::Fault) -> Self {
        let Some(code) = Code::from_wire(&fault.code) else {
            return nonsense("an error's code");
        };
        let mut error = Self::new(code, fault.message);
        if let Ok(Value::Object(details)) = serde_json::from_slice(&fault.details) {
            error = error.with_details(details);
        }
        if !fault.cause.is_empty() {
            error = error.with_source(fault.cause);
        }
        error
    }
}

impl From<FileContent> for wire::FileContent {
    fn from(file: FileContent) -> Self {
        Self {
            content: file.content.into(),
            base64: file.encoding == Encoding::Base64,
            version: file.version,
            size: file.size,
            truncated: file.truncated,
        }
    }
}

impl TryFrom<wire::FileContent> for FileContent {
    type Error = ToolError;

    fn try_from(file: wire::FileContent) -> Result<Self, ToolError> {
        Ok(Self {
            content: text(file.content)?,
            encoding: if file.base64 {
                Encoding::Base64
            } else {
                Encoding::Utf8
            },
            version: file.version,
            size: file.size,
            truncated: file.truncated,
        })
    }
}

impl From<Found> for wire::Found {
    fn from(found: Found) -> Self {
        Self {
            paths: found.paths,
            truncated: found.truncated,
        }
    }
}

impl From<wire::Found> for Found {
    fn from(found: wire::Found) -> Self {
        Self {
            paths: found.paths,
            truncated: found.truncated,
        }
    }
}

impl From<&Applied> for wire::Applied {
    fn from(applied: &Applied) -> Self {
        let hunk = |hunk: &Hunk| wire::Hunk {
            line: hunk.line,
            matched: hunk.matched.clone(),
            candidates: hunk.candidates,
        };
        let change = |change: &Change| wire::Change {
            path: change.path.clone(),
            kind: change.kind.as_str().to_owned(),
            before_version: change.before_version.clone(),
            after_version: change.after_version.clone(),
            moved_to: change.moved_to.clone(),
            hunks: change.hunks.iter().map(hunk).collect(),
        };
        Self {
            status: applied.status.as_str().to_owned(),
            reason: applied.reason.clone(),
            changes: applied.changes.iter().map(change).collect(),
            undo: applied.undo.is_some(),
        }
    }
}

impl TryFrom<wire::Applied> for Applied {
    type Error = ToolError;

    /// Without its undo, which is not a message.
    fn try_from(applied: wire::Applied) -> Result<Self, ToolError> {
        Ok(Self {
            status: OperationStatus::from_name(&applied.status)
                .ok_or_else(|| nonsense("a status"))?,
            reason: applied.reason,
            changes: applied
                .changes
                .into_iter()
                .map(Change::try_from)
                .collect::<Result<_, _>>()?,
            undo: None,
        })
    }
}

impl TryFrom<wire::Change> for Change {
    type Error = ToolError;

    fn try_from(change: wire::Change) -> Result<Self, ToolError> {
        let kinds = [
            ChangeKind::Add,
            ChangeKind::Update,
            ChangeKind::Delete,
            ChangeKind::Move,
        ];
        let hunk = |hunk: wire::Hunk| Hunk {
            line: hunk.line,
            matched: hunk.matched,
            candidates: hunk.candidates,
        };
        Ok(Self {
            kind: named(kinds, ChangeKind::as_str, &change.kind)?,
            path: change.path,
            before_version: change.before_version,
            after_version: change.after_version,
            moved_to: change.moved_to,
            hunks: change.hunks.into_iter().map(hunk).collect(),
        })
    }
}

impl From<Chunk> for wire::Chunk {
    fn from(chunk: Chunk) -> Self {
        Self {
            cursor: chunk.cursor,
            chunk: chunk.chunk.into(),
            eof: chunk.eof,
            output_lost: chunk.output_lost,
            retained_from: chunk.retained_from,
        }
    }
}

impl TryFrom<wire::Chunk> for Chunk {
    type Error = ToolError;

    fn try_from(chunk: wire::Chunk) -> Result<Self, ToolError> {
        Ok(Self {
            cursor: chunk.cursor,
            chunk: text(chunk.chunk)?,
            eof: chunk.eof,
            output_lost: chunk.output_lost,
            retained_from: chunk.retained_from,
        })
    }
}

const TERMINATIONS: [Termination; 4] = [
    Termination::Exited,
    Termination::Timeout,
    Termination::Terminated,
    Termination::Unknown,
];
const LIMITS: [LimitHit; 3] = [LimitHit::Tasks, LimitHit::Memory, LimitHit::FileSize];

fn limit_name(limit: LimitHit) -> &'static str {
    match limit {
        LimitHit::Tasks => "tasks",
        LimitHit::Memory => "memory",
        LimitHit::FileSize => "file_size",
    }
}

fn named<T: Copy, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
    wanted: &str,
) -> Result<T, ToolError> {
    let found = all.into_iter().find(|one| name(*one) == wanted);
    found.ok_or_else(|| nonsense("a name"))
}

impl From<ProcessStatus> for wire::ProcessStatus {
    fn from(status: ProcessStatus) -> Self {
        Self {
            running: status.state == ProcessState::Running,
            termination: status.termination.map(|end| end.as_str().to_owned()),
            exit_code: status.exit_code,
            signal: status.signal,
            limit_hit: status.limit_hit.map(|limit| limit_name(limit).to_owned()),
            protected: status.protected.to_vec(),
            output_total: status.output_total,
            output_retained_from: status.output_retained_from,
            eof: status.eof,
        }
    }
}

impl TryFrom<wire::ProcessStatus> for ProcessStatus {
    type Error = ToolError;

    fn try_from(status: wire::ProcessStatus) -> Result<Self, ToolError> {
        let termination = |name: String| named(TERMINATIONS, Termination::as_str, &name);
        Ok(Self {
            state: if status.running {
                ProcessState::Running
            } else {
                ProcessState::Exited
            },
            termination: status.termination.map(termination).transpose()?,
            exit_code: status.exit_code,
            signal: status.signal,
            limit_hit: status
                .limit_hit
                .map(|name| named(LIMITS, limit_name, &name))
                .transpose()?,
            protected: status.protected.into(),
            output_total: status.output_total,
            output_retained_from: status.output_retained_from,
            eof: status.eof,
        })
    }
}

/// What every answer is: a result or a fault, and how many events came before it.
pub(crate) trait Answer: Sized {
    /// The result's message.
    type Ok;

    /// Makes one.
    fn new(result: Result<Self::Ok, wire::Fault>, after: u64) -> Self;

    /// Takes it apart. An answer without either is a fault.
    fn open(self) -> (Result<Self::Ok, ToolError>, u64);
}

macro_rules! answers {
    ($($answer:ident in $module:ident: $ok:ident,)*) => { $(
        impl Answer for wire::$answer {
            type Ok = wire::$ok;

            fn new(result: Result<Self::Ok, wire::Fault>, after: u64) -> Self {
                let answer = match result {
                    Ok(ok) => wire::$module::Answer::Ok(ok),
                    Err(fault) => wire::$module::Answer::Fault(fault),
                };
                Self { answer: Some(answer), after }
            }

            fn open(self) -> (Result<Self::Ok, ToolError>, u64) {
                let result = match self.answer {
                    Some(wire::$module::Answer::Ok(ok)) => Ok(ok),
                    Some(wire::$module::Answer::Fault(fault)) => Err(fault.into()),
                    None => Err(nonsense("an empty answer")),
                };
                (result, self.after)
            }
        }
    )* };
}

answers! {
    ReadAnswer in read_answer: FileContent,
    FindAnswer in find_answer: Found,
    ApplyAnswer in apply_answer: Applied,
    UndoAnswer in undo_answer: Undone,
    ExecAnswer in exec_answer: Started,
    OutputAnswer in output_answer: Chunk,
    WriteStdinAnswer in write_stdin_answer: Written,
    StatusAnswer in status_answer: ProcessStatus,
    DoneAnswer in done_answer: Done,
}

/// What a panic in the worker's own code said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> Cow<'static, str> {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return Cow::Owned((*text).to_owned());
    }
    match payload.downcast_ref::<String>() {
        Some(text) => Cow::Owned(text.clone()),
        None => Cow::Borrowed("a panic without words"),
    }
}

#[cfg(test)]
mod tests;
