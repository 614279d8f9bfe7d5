//! The metrics of this crate: names and help texts, in one place.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Calls by `tool`, `outcome` and `code`.
pub const TOOL_CALLS: &str = "codespace_tool_calls_total";
/// How long calls took, by `tool` and `outcome`.
pub const TOOL_CALL_DURATION: &str = "codespace_tool_call_duration_seconds";
/// Calls begun and not ended, by `tool`.
pub const TOOL_CALLS_IN_FLIGHT: &str = "codespace_tool_calls_in_flight";
/// Requests without a known caller, by `reason`.
pub const AUTH_FAILURES: &str = "codespace_auth_failures_total";
/// Calls refused because their workspace was held, by `tool`.
pub const WORKSPACE_BUSY: &str = "codespace_workspace_busy_total";
/// Calls answered from an earlier call's record.
pub const REPLAYS: &str = "codespace_idempotent_replays_total";
/// Keys used again with other arguments.
pub const KEY_CONFLICTS: &str = "codespace_operation_key_conflicts_total";
/// Recorded patches by the `status` they ended with.
pub const PATCH_OPERATIONS: &str = "codespace_patch_operations_total";

/// Gives every metric its help text and one series, so that it is there from the first
/// scrape. `tool` is a label of a registered tool.
pub fn register(tool: &'static str) {
    describe_counter!(TOOL_CALLS, "Tool calls by outcome and error code.");
    describe_histogram!(
        TOOL_CALL_DURATION,
        Unit::Seconds,
        "Time from a tool call's arrival to its answer."
    );
    describe_gauge!(TOOL_CALLS_IN_FLIGHT, "Tool calls begun and not answered.");
    describe_counter!(
        AUTH_FAILURES,
        "HTTP requests refused for want of a known caller."
    );
    describe_counter!(
        WORKSPACE_BUSY,
        "Calls refused because another held the workspace."
    );
    describe_counter!(
        REPLAYS,
        "Calls answered from the record of an earlier call."
    );
    describe_counter!(
        KEY_CONFLICTS,
        "Operation keys used again with other arguments."
    );
    describe_counter!(
        PATCH_OPERATIONS,
        "Recorded patches by the status they ended with."
    );

    metrics::counter!(TOOL_CALLS, "tool" => tool, "outcome" => "ok", "code" => "none").absolute(0);
    let _ = metrics::histogram!(TOOL_CALL_DURATION, "tool" => tool, "outcome" => "ok");
    metrics::gauge!(TOOL_CALLS_IN_FLIGHT, "tool" => tool).increment(0.0);
    metrics::counter!(AUTH_FAILURES, "reason" => "missing").absolute(0);
    metrics::counter!(WORKSPACE_BUSY, "tool" => tool).absolute(0);
    metrics::counter!(REPLAYS).absolute(0);
    metrics::counter!(KEY_CONFLICTS).absolute(0);
    metrics::counter!(PATCH_OPERATIONS, "status" => "applied").absolute(0);
}
