//! `terminate_process`: ends a command and all it started.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use codespace_runner::Runner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Tool, tool::process_id};

/// Arguments of `terminate_process`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The handle exec_command answered.
    process_id: String,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Process(&self.process_id)
    }
}

/// Result of `terminate_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// True: it was told to end, or had ended; process_status says how.
    ok: bool,
}

/// Ends a process tree.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct TerminateProcess(pub Arc<dyn Runner>);

impl Tool for TerminateProcess {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "terminate_process";
    const TITLE: &'static str = "Stop a command";
    const DESCRIPTION: &'static str = "End a command and everything it started: SIGTERM, two seconds of grace, then \
SIGKILL. Answers when the tree is gone. Ending one that has ended does nothing. Its last output stays readable with \
read_process.";
    const CLASS: AccessClass = AccessClass::Running;
    const ANNOTATIONS: Annotations = Annotations {
        read_only: false,
        destructive: true,
        idempotent: true,
        open_world: false,
    };

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        self.0
            .terminate(&process_id(&call.args().process_id)?)
            .await?;
        ToolReply::from_result(&Out { ok: true })
    }
}
