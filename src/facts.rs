//! What `workspace_info` and `codespace check` tell: what is in force, not what was hoped for.

use codespace_router::Profile;
use codespace_tools::{
    Available, Environment, Execution, Facts, Features, Files, Isolation, Network, Permissions,
    Process, ProcessCapabilities, Serialization, Tty, WorkspaceFacts,
};

use crate::{catalogue, config::Config};

/// The facts of a server with this config on these transports.
pub fn gather(config: &Config, transports: Vec<&'static str>) -> Facts {
    let workspaces = config
        .workspaces
        .iter()
        .map(|workspace| WorkspaceFacts {
            workspace_id: workspace.id.as_str().to_owned(),
            workspace_id_is_credential: false,
            profile: workspace.profile.as_str(),
            execution: Some(execution(workspace.profile == Profile::WorkspaceWrite)),
        })
        .collect();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        tools: catalogue::NAMES.to_vec(),
        transports,
        workspaces,
    }
}

fn execution(writable: bool) -> Execution {
    let available = |available| Available { available };
    Execution {
        environment: Environment {
            kind: "host",
            client_selectable: false,
            exec_supported: true,
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
            available: writable,
            capabilities: writable.then_some(ProcessCapabilities {
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
            command_sandbox: "none",
            features: Features {
                landlock_abi: 0,
                seccomp: false,
                user_ns: false,
                mount_ns: false,
                pid_ns: false,
                net_ns: false,
                private_tmp: false,
                protect: false,
                tree_kill: "best-effort",
                cgroup_tasks: false,
                cgroup_memory: false,
            },
        },
        network: Network {
            policy: "restricted",
            enforcement: "none",
            client_may_escalate: false,
        },
        approvals: "off",
    }
}
