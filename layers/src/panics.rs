//! What a caught panic said.

use std::any::Any;

use codespace_router::ToolError;

/// The panic as an error. Its message goes to the log only.
pub(crate) fn into_error(payload: &(dyn Any + Send)) -> ToolError {
    let said = payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    ToolError::internal(format!("panicked: {said}"))
}
