//! What a tool answers.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::{BoxFuture, OperationStatus, ToolError};

/// A structured value, always a JSON object, and what the layers add to it.
#[derive(Debug)]
pub struct ToolReply {
    /// The tool's result.
    pub value: Value,
    /// Whether it is the stored answer of an earlier call.
    pub replayed: bool,
    /// For a recorded call: how it ended, and the way back while the record is not stored.
    pub recorded: Option<Recorded>,
}

/// How a recorded call ended, told to the settling layer.
pub struct Recorded {
    /// The status.
    pub status: OperationStatus,
    /// Why, when it is not a plain success.
    pub reason: Option<String>,
    /// The old state, kept until the record is stored; `None` when nothing was written.
    pub undo: Option<Box<dyn Undo>>,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// An effect whose old state is still kept. Dropped without an answer (a crash of the
/// task), it leaves its journal for recovery.
pub trait Undo: Send + Sync {
    /// The record is stored: the old state may go.
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()>;
    /// The record could not be stored: puts the old state back. `true` when all of it is back.
    fn restore(self: Box<Self>) -> BoxFuture<'static, bool>;
}

impl ToolReply {
    /// The reply for a result.
    ///
    /// # Errors
    /// `INTERNAL` if the result does not serialize; none of ours fails to.
    pub fn from_result(result: &impl Serialize) -> Result<Self, ToolError> {
        let value = serde_json::to_value(result).map_err(ToolError::internal)?;
        Ok(Self {
            value,
            replayed: false,
            recorded: None,
        })
    }
}
