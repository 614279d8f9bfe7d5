//! What `workspace_info` and `codespace check` tell: what is in force, not what was hoped for.

use std::sync::Arc;

use codespace_router::Profile;
use codespace_runner::{Confinement, TreeKill, Verdict};
use codespace_tools::{
    Available, Environment, Execution, Facts, Features, Files, Isolation, Network, Permissions,
    Process, ProcessCapabilities, Serialization, Tty, WorkspaceFacts,
};

use crate::{catalogue, config::WorkspaceConfig};

/// A workspace and what its commands are confined by.
pub type Confined = (WorkspaceConfig, Option<Arc<Confinement>>);

/// The facts of a server with these workspaces on these transports. Blocks while the sandbox
/// is probed.
pub fn gather(workspaces: &[Confined], transports: Vec<&'static str>) -> Facts {
    let workspaces = workspaces
        .iter()
        .map(|(workspace, confinement)| WorkspaceFacts {
            workspace_id: workspace.id.as_str().to_owned(),
            workspace_id_is_credential: false,
            profile: workspace.profile.as_str(),
            execution: Some(execution(workspace, confinement.as_deref())),
        })
        .collect();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        tools: catalogue::NAMES.to_vec(),
        transports,
        workspaces,
    }
}

/// What is around this workspace's commands.
pub fn verdict(confinement: Option<&Confinement>) -> Verdict {
    confinement.map_or(Verdict::None, Confinement::verdict)
}

fn features(confinement: Option<&Confinement>, verdict: &Verdict) -> Features {
    let found = confinement.and_then(|confinement| confinement.features().ok());
    let full = *verdict == Verdict::Full;
    let some = full || *verdict == Verdict::Partial;
    let has = |feature: fn(&codespace_runner::Features) -> bool| found.is_some_and(feature);
    Features {
        landlock_abi: found.filter(|_| some).map_or(0, |found| found.landlock_abi),
        seccomp: some && has(|found| found.seccomp),
        user_ns: full && has(|found| found.user_ns),
        mount_ns: full && has(|found| found.mount_ns),
        pid_ns: full && has(|found| found.pid_ns),
        net_ns: full && has(|found| found.net_ns),
        private_tmp: full && has(|found| found.private_tmp),
        protect: full && has(|found| found.protect),
        tree_kill: if full && has(|found| found.tree_kill == TreeKill::Certain) {
            "certain"
        } else {
            "best-effort"
        },
        cgroup_tasks: some && has(|found| found.cgroup_tasks),
        cgroup_memory: some && has(|found| found.cgroup_memory),
    }
}

fn execution(workspace: &WorkspaceConfig, confinement: Option<&Confinement>) -> Execution {
    let available = |available| Available { available };
    let writable = workspace.profile == Profile::WorkspaceWrite;
    let verdict = verdict(confinement);
    let runs = writable && !matches!(verdict, Verdict::Refused(_));
    let features = features(confinement, &verdict);
    Execution {
        environment: Environment {
            kind: "host",
            client_selectable: false,
            exec_supported: runs,
            file_read_supported: true,
            file_write_supported: true,
        },
        permissions: Permissions {
            read: true,
            write: writable,
            exec: writable,
        },
        files: Files {
            read: available(true),
            find: available(true),
            patch: available(writable),
        },
        process: Process {
            available: runs,
            capabilities: runs.then_some(ProcessCapabilities {
                handles: true,
                survives_request_end: true,
                write_stdin: true,
                incremental_read: true,
                terminate: true,
                resize: true,
                output_combined: true,
                lifetime: "runner_instance",
                tty: Tty {
                    supported: true,
                    default: false,
                    initial_rows: 24,
                    initial_cols: 80,
                    resize_supported: true,
                },
            }),
        },
        serialization: Serialization {
            live_process_holds_mutation_lease: true,
            parallel_exec: false,
            read_while_process_live: true,
            find_while_process_live: true,
            patch_while_process_live: false,
            conflict_error: "WORKSPACE_BUSY",
        },
        isolation: Isolation {
            file_tools_workspace_scoped: true,
            command_sandbox: match verdict {
                Verdict::Full => "linux-sandbox",
                Verdict::Partial => "partial",
                Verdict::None | Verdict::Refused(_) => "none",
            },
            features,
        },
        network: Network {
            policy: match workspace.network {
                None => "restricted",
                Some(_) => "enabled",
            },
            enforcement: match verdict {
                Verdict::Full | Verdict::Partial => "enforced",
                Verdict::None | Verdict::Refused(_) => "none",
            },
            client_may_escalate: false,
        },
        approvals: "off",
    }
}
