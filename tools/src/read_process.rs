//! `read_process`: a process's output from a byte offset.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, ProcessId, Subject, ToolError, ToolReply,
};
use codespace_runner::Runner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Tool,
    tool::{LOOKS, process_id, wait},
};

/// Arguments of `read_process`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The handle exec_command answered.
    process_id: String,
    /// Byte offset in the whole output: 0 at first, then the cursor of the last answer.
    #[serde(default)]
    cursor: u64,
    /// Wait up to this many milliseconds (30,000 at most) for something new.
    #[serde(default)]
    #[schemars(with = "u64")]
    wait_ms: Option<u64>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Process(&self.process_id)
    }
}

/// Result of `read_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// The handle.
    process_id: ProcessId,
    /// Where to go on.
    cursor: u64,
    /// The text; bytes that are not UTF-8 are U+FFFD.
    chunk: String,
    /// Whether nothing more will come.
    eof: bool,
    /// Whether bytes between the asked cursor and `retained_from` are gone.
    output_lost: bool,
    /// The offset of the oldest byte still kept.
    retained_from: u64,
}

/// Reads output.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct ReadProcess(pub Arc<dyn Runner>);

impl Tool for ReadProcess {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "read_process";
    const TITLE: &'static str = "Read a command's output";
    const DESCRIPTION: &'static str = "Read what a command has printed since `cursor` (stdout and stderr merged), at \
most 64 KiB a call; pass the cursor of the answer to the next call. With wait_ms the call answers as soon as there is \
something new. Repeat until eof, then ask process_status how it ended. Only the last 256 KiB are kept: output_lost tells \
that older output is gone. The output stays readable for a while after the end, from any connection.";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let args = call.into_args();
        let process_id = process_id(&args.process_id)?;
        let chunk = self
            .0
            .output(&process_id, args.cursor, wait(args.wait_ms))
            .await?;
        ToolReply::from_result(&Out {
            process_id,
            cursor: chunk.cursor,
            chunk: chunk.chunk,
            eof: chunk.eof,
            output_lost: chunk.output_lost,
            retained_from: chunk.retained_from,
        })
    }
}
