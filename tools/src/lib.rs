//! The tools, one file each: arguments, result, words for a model, and a service that
//! makes exactly one runner or ledger call.

mod apply_patch;
mod exec_command;
mod find;
mod operation_status;
mod process_resize;
mod process_status;
mod read;
mod read_process;
mod terminate_process;
mod tool;
mod workspace_info;
mod write_stdin;

pub use apply_patch::ApplyPatch;
pub use exec_command::ExecCommand;
pub use find::Find;
pub use operation_status::OperationStatusTool;
pub use process_resize::ProcessResize;
pub use process_status::ProcessStatusTool;
pub use read::Read;
pub use read_process::ReadProcess;
pub use terminate_process::TerminateProcess;
pub use tool::{Tool, ToolService};
pub use workspace_info::{
    Available, Environment, Execution, Facts, Features, Files, Isolation, Network, Permissions,
    Process, ProcessCapabilities, Serialization, Tty, WorkspaceFacts, WorkspaceInfo,
};
pub use write_stdin::WriteStdin;
