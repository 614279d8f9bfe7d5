//! `process_status`: whether a command runs, or how it ended.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, ProcessId, Subject, ToolError, ToolReply,
};
use codespace_runner::{LimitHit, ProcessState, Runner, Termination};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Tool,
    tool::{LOOKS, process_id, wait},
};

/// Arguments of `process_status`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The handle exec_command answered.
    process_id: String,
    /// Wait up to this many milliseconds (30,000 at most) for the end.
    #[serde(default)]
    #[schemars(with = "u64")]
    wait_ms: Option<u64>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Process(&self.process_id)
    }
}

/// Result of `process_status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// The handle.
    process_id: ProcessId,
    /// `exited` once the whole process tree is gone.
    state: ProcessState,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Termination")]
    termination: Option<Termination>,
    /// Its exit code; 0 is success. Only with `termination: exited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    signal: Option<i32>,
    /// The limit that the kernel enforced on it: processes, memory or the size of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LimitHit")]
    limit_hit: Option<LimitHit>,
    /// Protected paths it changed; they were put back.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    protected: Vec<String>,
    /// Bytes it has printed in all.
    output_total: u64,
    /// The offset of the oldest byte still kept.
    output_retained_from: u64,
    /// Whether no more output will come.
    eof: bool,
}

/// Tells a process's state.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct ProcessStatusTool(pub Arc<dyn Runner>);

impl Tool for ProcessStatusTool {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "process_status";
    const TITLE: &'static str = "How a command is doing";
    const DESCRIPTION: &'static str = "Tell whether a command still runs or how it ended: exit_code when it exited by \
itself, signal when one killed it, `timeout` or `terminated` when the server ended it. With wait_ms the call answers at \
the end of the command or of the wait. Does not read output: that is read_process.";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let args = call.into_args();
        let process_id = process_id(&args.process_id)?;
        let status = self.0.status(&process_id, wait(args.wait_ms)).await?;
        ToolReply::from_result(&Out {
            process_id,
            state: status.state,
            termination: status.termination,
            exit_code: status.exit_code,
            signal: status.signal,
            limit_hit: status.limit_hit,
            protected: status.protected.to_vec(),
            output_total: status.output_total,
            output_retained_from: status.output_retained_from,
            eof: status.eof,
        })
    }
}
