//! `exec_command`: starts a managed process.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, Code, OnSubject, ProcessId, Subject, ToolError,
    ToolReply, Validate, Workspace,
};
use codespace_runner::{Dispatch, ExecSpec, Runner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Tool, tool::refuse_work};

/// Linux's MAX_ARG_STRLEN (`execve(2)`): one argument, its NUL included.
const ARGUMENT_BYTES: usize = 128 * 1024;
/// Below Linux's smallest limit for arguments and environment together (6 MiB at most, 2 MiB
/// with the usual 8 MiB stack), with room for the environment.
const VECTOR_BYTES: usize = 1024 * 1024;

/// Arguments of `exec_command`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The workspace, as workspace_info lists it.
    #[schemars(extend("x-mcp-header" = "Workspace-Id"))]
    workspace_id: String,
    /// The argument vector: program first. No shell unless you name one, as in `["sh", "-c", "…"]`.
    command: Vec<String>,
    /// A terminal of 24×80 instead of pipes: for REPLs, editors, pagers, job control and whatever asks for a password.
    #[serde(default)]
    tty: bool,
    /// The work this call belongs to, if any.
    #[serde(default)]
    #[schemars(with = "String")]
    work_id: Option<String>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Workspace(&self.workspace_id)
    }
}

impl Validate for Args {
    fn validate(&mut self, _: &Workspace) -> Result<(), ToolError> {
        refuse_work(self.work_id.as_deref())?;
        let refuse = |why: &str| {
            Err(ToolError::new(
                Code::InvalidCommand,
                format!("command: {why}; nothing was run"),
            ))
        };
        match self.command.first() {
            None => return refuse("must hold a program and its arguments, this one is empty"),
            Some(program) if program.is_empty() => {
                return refuse("its first element must name a program");
            }
            Some(_) => {}
        }
        if self.command.iter().any(|argument| argument.contains('\0')) {
            return refuse("no element may hold a NUL character");
        }
        if self
            .command
            .iter()
            .any(|argument| argument.len() >= ARGUMENT_BYTES)
        {
            return refuse(
                "every element must be shorter than 131072 bytes; write long input to stdin or a file",
            );
        }
        // Each element also costs a pointer.
        if self
            .command
            .iter()
            .map(|argument| argument.len() + 9)
            .sum::<usize>()
            > VECTOR_BYTES
        {
            return refuse(
                "all elements together must stay below 1 MiB; write long input to stdin or a file",
            );
        }
        Ok(())
    }
}

/// Result of `exec_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// The handle for read_process, write_stdin, process_status, process_resize and terminate_process.
    process_id: ProcessId,
    /// `confirmed`: the process was started. `unknown`: its runner was lost at that moment; it may have
    /// run for a while and is gone now. Look at what it would have changed before you start it again.
    dispatch_status: Dispatch,
}

/// Starts a command.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct ExecCommand(pub Arc<dyn Runner>);

impl Tool for ExecCommand {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "exec_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str = "Start a command in the workspace root and answer at once with a process_id. It \
runs on pipes, stdout and stderr merged, with stdin open; with `tty: true` on a terminal (TERM=xterm-256color), whose \
output has control sequences and CR LF line ends, and which echoes what you write. Follow it with read_process (use wait_ms instead of polling) \
until eof, then process_status for the exit code: eof alone is not success. The handle outlives this connection. One \
command or patch at a time per workspace: WORKSPACE_BUSY until the whole process tree has ended. When the command's own \
process exits, what it left in the background is ended too, so keep a server in the foreground. terminate_process stops \
it; a time limit does in the end.";
    const CLASS: AccessClass = AccessClass::Running;
    const ANNOTATIONS: Annotations = Annotations {
        read_only: false,
        destructive: true,
        idempotent: false,
        open_world: true,
    };

    async fn run(&self, mut call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let workspace = Arc::clone(call.workspace()?);
        let lease = call
            .take_lease()
            .ok_or_else(|| ToolError::internal("a command reached its tool without a lease"))?;
        let Args { command, tty, .. } = call.into_args();
        let spec = ExecSpec { command, tty };
        let started = self.0.exec(&workspace.id, spec, lease).await?;
        ToolReply::from_result(&Out {
            process_id: started.process,
            dispatch_status: started.dispatch,
        })
    }
}
