//! `workspace_info`: who serves, where one may work, and what is in force there.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use futures_util::future::{BoxFuture, Shared};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Tool, tool::LOOKS};

/// Arguments of `workspace_info`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// One workspace, for its whole contract. Left out: the workspaces you may use.
    #[serde(default)]
    #[schemars(with = "String", extend("x-mcp-header" = "Workspace-Id"))]
    workspace_id: Option<String>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        self.workspace_id
            .as_deref()
            .map_or(Subject::Server, Subject::Workspace)
    }
}

/// What the program knows of itself, gathered once at start.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The version of the program.
    pub version: &'static str,
    /// Every tool's name.
    pub tools: Vec<&'static str>,
    /// `stdio` or `streamable-http`.
    pub transports: Vec<&'static str>,
    /// The workspaces, in the order of the config.
    pub workspaces: Vec<WorkspaceFacts>,
}

/// Result of `workspace_info`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// Always `codespace`.
    server: &'static str,
    /// Its version.
    version: &'static str,
    /// Always false: the server never calls a model.
    internal_model_calls: bool,
    /// Every tool's name.
    tools_exposed: Vec<&'static str>,
    /// How clients are served.
    transports: Vec<&'static str>,
    /// The workspaces this caller may use, or the one asked for.
    workspaces: Vec<WorkspaceFacts>,
}

/// A workspace and what is in force in it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WorkspaceFacts {
    /// Its id; it selects and does not authenticate.
    pub workspace_id: String,
    /// Always false.
    pub workspace_id_is_credential: bool,
    /// `read-only` or `workspace-write`.
    pub profile: &'static str,
    /// What is in force; only when one workspace was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Execution")]
    pub execution: Option<Execution>,
}

macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])* #[derive(Clone, Debug, Serialize, JsonSchema)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* })*
    };
}

facts! {
    /// What is in force in a workspace.
    Execution {
        /// Where calls run.
        environment: Environment,
        /// What policy allows.
        permissions: Permissions,
        /// Which file tools work.
        files: Files,
        /// What processes can do.
        process: Process,
        /// What excludes what.
        serialization: Serialization,
        /// What commands are kept from.
        isolation: Isolation,
        /// What commands can reach.
        network: Network,
        /// `off`, `confirm` or `separate`.
        approvals: &'static str,
    }
    /// Where calls run.
    Environment {
        /// Always `host`.
        kind: &'static str,
        /// Always false.
        client_selectable: bool,
        /// Whether commands can run.
        exec_supported: bool,
        /// Whether files can be read.
        file_read_supported: bool,
        /// Whether files can be written.
        file_write_supported: bool,
    }
    /// What policy allows this workspace's callers.
    Permissions {
        /// Look at files.
        read: bool,
        /// Patch files.
        write: bool,
        /// Run commands.
        exec: bool,
    }
    /// A tool's availability: permission and backend, not occupancy.
    Available {
        /// Whether it can be used.
        available: bool,
    }
    /// Which file tools work.
    Files {
        /// The `read` tool.
        read: Available,
        /// The `find` tool.
        find: Available,
        /// The `apply_patch` tool.
        patch: Available,
    }
    /// What a terminal can do.
    Tty {
        /// Whether `tty: true` works.
        supported: bool,
        /// Always false: pipes unless asked for.
        default: bool,
        /// Rows of a new terminal.
        initial_rows: u16,
        /// Columns of a new terminal.
        initial_cols: u16,
        /// Whether it can be resized.
        resize_supported: bool,
    }
    /// What a process handle can do.
    ProcessCapabilities {
        /// Commands are followed by handle.
        handles: bool,
        /// A process outlives the request that started it.
        survives_request_end: bool,
        /// stdin can be written.
        write_stdin: bool,
        /// Output can be read as it comes.
        incremental_read: bool,
        /// It can be ended.
        terminate: bool,
        /// Its terminal can be resized.
        resize: bool,
        /// stdout and stderr are merged.
        output_combined: bool,
        /// Always `runner_instance`: handles end with the server.
        lifetime: &'static str,
        /// Its terminal.
        tty: Tty,
    }
    /// What excludes what.
    Serialization {
        /// A live command holds the workspace.
        live_process_holds_mutation_lease: bool,
        /// Always false: one command at a time.
        parallel_exec: bool,
        /// Reading goes on beside a command.
        read_while_process_live: bool,
        /// Finding goes on beside a command.
        find_while_process_live: bool,
        /// Always false: a patch waits for the command's end.
        patch_while_process_live: bool,
        /// Always `WORKSPACE_BUSY`.
        conflict_error: &'static str,
    }
    /// What commands are kept from.
    Isolation {
        /// File tools cannot leave the root.
        file_tools_workspace_scoped: bool,
        /// `linux-sandbox`, `partial` or `none`.
        command_sandbox: &'static str,
        /// What is in force, feature by feature.
        features: Features,
    }
    /// What the kernel enforces on commands now.
    Features {
        /// Landlock's ABI in force; 0: none.
        landlock_abi: u32,
        /// A system-call filter.
        seccomp: bool,
        /// An own user namespace.
        user_ns: bool,
        /// An own mount namespace.
        mount_ns: bool,
        /// An own PID namespace.
        pid_ns: bool,
        /// An own network namespace.
        net_ns: bool,
        /// A private /tmp.
        private_tmp: bool,
        /// Protected paths hold against commands.
        protect: bool,
        /// `certain` or `best-effort`.
        tree_kill: &'static str,
        /// A task limit by cgroup.
        cgroup_tasks: bool,
        /// A memory limit by cgroup.
        cgroup_memory: bool,
    }
    /// What commands can reach.
    Network {
        /// `restricted` or `enabled`: what the config wants.
        policy: &'static str,
        /// `enforced` or `none`: what holds now.
        enforcement: &'static str,
        /// Always false.
        client_may_escalate: bool,
    }
}

/// Whether and how processes run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Process {
    /// Whether commands can be run here.
    pub available: bool,
    /// What a handle can do; absent when none can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ProcessCapabilities")]
    pub capabilities: Option<ProcessCapabilities>,
}

/// The facts, once they are known: finding out what the kernel enforces takes a moment, which
/// nothing else should wait for.
pub type FactsToCome = Shared<BoxFuture<'static, Arc<Facts>>>;

/// Tells what is in force.
#[derive(Clone, Debug)]
pub struct WorkspaceInfo(pub FactsToCome);

impl Tool for WorkspaceInfo {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "workspace_info";
    const TITLE: &'static str = "What you may work on";
    const DESCRIPTION: &'static str = "Start here: without arguments, the workspaces you may use; with a workspace_id, \
what is allowed and enforced there right now (profile, tools, processes, sandbox, network, approvals).";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let asked = call.args().workspace_id.as_deref();
        let caller = call.caller();
        let facts = self.0.clone().await;
        let workspaces = facts
            .workspaces
            .iter()
            .filter(|facts| caller.sees(&facts.workspace_id))
            .filter(|facts| asked.is_none_or(|id| id == facts.workspace_id))
            .map(|facts| WorkspaceFacts {
                execution: facts.execution.clone().filter(|_| asked.is_some()),
                ..facts.clone()
            })
            .collect();
        ToolReply::from_result(&Out {
            server: "codespace",
            version: facts.version,
            internal_model_calls: false,
            tools_exposed: facts.tools.clone(),
            transports: facts.transports.clone(),
            workspaces,
        })
    }
}
