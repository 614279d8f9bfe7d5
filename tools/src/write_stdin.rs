//! `write_stdin`: feeds a process.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use codespace_runner::Runner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Tool, tool::process_id};

/// Arguments of `write_stdin`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The handle exec_command answered.
    process_id: String,
    /// The text to write, line breaks included.
    data: String,
    /// Close stdin afterwards; on a terminal, type the end of input (Ctrl-D) instead.
    #[serde(default)]
    close: bool,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Process(&self.process_id)
    }
}

/// Result of `write_stdin`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// True: the bytes counted by `written` were taken.
    ok: bool,
    /// Bytes taken; fewer than given when stdin stayed full for five seconds.
    written: usize,
}

/// Writes to stdin.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct WriteStdin(pub Arc<dyn Runner>);

impl Tool for WriteStdin {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "write_stdin";
    const TITLE: &'static str = "Write to a command's stdin";
    const DESCRIPTION: &'static str = "Write text to a running command's stdin, and close it with `close: true` (many \
programs wait for that). Programs read lines: end each with a newline, and an indented block of a REPL with an empty \
line. On a terminal this is typing: \\u0003 is Ctrl-C, \\u001a Ctrl-Z, \\u001b Escape; what you write is echoed; a line \
above 4095 bytes is cut; `close` types Ctrl-D for who reads now and leaves the terminal open. On pipes control \
characters are plain data; stop a command with terminate_process. If stdin stays full for five seconds, `written` says \
how many bytes were taken: read the output, then send the rest.";
    const CLASS: AccessClass = AccessClass::Running;
    const ANNOTATIONS: Annotations = Annotations {
        read_only: false,
        destructive: true,
        idempotent: false,
        open_world: true,
    };

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let args = call.into_args();
        let written = self
            .0
            .write_stdin(
                &process_id(&args.process_id)?,
                args.data.as_bytes(),
                args.close,
            )
            .await?;
        ToolReply::from_result(&Out { ok: true, written })
    }
}
