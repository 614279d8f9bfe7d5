//! What a record of an earlier call answers to a call under the same key. Shared by
//! replay, which looks without a lease, and settle, which looks again under it.

use codespace_router::{Code, Fingerprint, OperationRecord, OperationStatus, ToolError, ToolReply};
use serde_json::{Value, json};

use crate::names;

/// The answer `record` gives; `None` while its call has not ended.
pub(crate) fn answer(
    record: OperationRecord,
    fingerprint: Fingerprint,
) -> Option<Result<ToolReply, ToolError>> {
    if record.fingerprint != fingerprint {
        metrics::counter!(names::KEY_CONFLICTS).increment(1);
        return Some(Err(conflict()));
    }
    if record.status == OperationStatus::Running {
        return None;
    }
    metrics::counter!(names::REPLAYS).increment(1);
    Some(stored(record))
}

// No operation id: this call is not the one that was recorded.
fn conflict() -> ToolError {
    ToolError::new(
        Code::OperationKeyConflict,
        "this operation_key was used with different arguments; nothing was done. Use a new key for a new change",
    )
}

fn stored(record: OperationRecord) -> Result<ToolReply, ToolError> {
    let OperationRecord {
        operation_id,
        status,
        result,
        ..
    } = record;
    // An error is stored for what was rejected, and for what failed before it had a result.
    if !matches!(status, OperationStatus::Applied | OperationStatus::Checked)
        && let Some(error) = result.as_ref().and_then(ToolError::from_body)
    {
        return Err(error.with_operation(operation_id).into_replayed());
    }
    let mut value = match result {
        Some(Value::Object(result)) => result,
        // Settled by recovery, which knows the end and not the answer.
        _ => Default::default(),
    };
    value
        .entry("operation_id")
        .or_insert_with(|| json!(operation_id.as_str()));
    value.insert("status".to_owned(), json!(status.as_str()));
    value.insert("replayed".to_owned(), Value::Bool(true));
    Ok(ToolReply {
        value: Value::Object(value),
        replayed: true,
        recorded: None,
    })
}
