//! Every tool, a line each: what it is, and which list of layers it stands behind.

use std::sync::Arc;

use codespace_router::{Ledger, Registration};
use codespace_runner::Runner;
use codespace_tools::{
    ApplyPatch, ExecCommand, Facts, Find, OperationStatusTool, ProcessResize, ProcessStatusTool,
    Read, ReadProcess, TerminateProcess, Tool, WorkspaceInfo, WriteStdin,
};

use crate::stack::Classes;

/// The names of all tools, in the order clients see them.
pub const NAMES: [&str; 11] = [
    WorkspaceInfo::NAME,
    Read::NAME,
    Find::NAME,
    ApplyPatch::NAME,
    OperationStatusTool::NAME,
    ExecCommand::NAME,
    ReadProcess::NAME,
    WriteStdin::NAME,
    ProcessStatusTool::NAME,
    ProcessResize::NAME,
    TerminateProcess::NAME,
];

/// All tools behind their layers.
pub fn tools(
    classes: &Classes,
    runner: &Arc<dyn Runner>,
    ledger: &Arc<dyn Ledger>,
    facts: Arc<Facts>,
) -> Vec<Registration> {
    let runner = || Arc::clone(runner);
    vec![
        classes.reading(WorkspaceInfo(facts)),
        classes.reading(Read(runner())),
        classes.reading(Find(runner())),
        classes.writing(ApplyPatch(runner())),
        classes.reading(OperationStatusTool(Arc::clone(ledger))),
        classes.running(ExecCommand(runner())),
        classes.reading(ReadProcess(runner())),
        classes.driving(WriteStdin(runner())),
        classes.reading(ProcessStatusTool(runner())),
        classes.driving(ProcessResize(runner())),
        classes.driving(TerminateProcess(runner())),
    ]
}
