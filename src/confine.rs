//! From the config to what confines a workspace's commands.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result};
use codespace_runner::{Confinement, Demand, Probe, plan};

use crate::{
    config::{Config, SandboxMode, WorkspaceConfig},
    facts::Confined,
};

/// This program, also when its file was replaced by an update meanwhile (proc_pid_exe(5)).
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// Every workspace with its confinement; `None` with `sandbox.mode = "off"`. Nothing is
/// probed or started yet.
///
/// # Errors
/// A root that cannot be looked at.
pub fn all(config: &Config) -> Result<Vec<Confined>> {
    // What a machine can do differs by user, not by workspace.
    let mut probes = HashMap::new();
    config
        .workspaces
        .iter()
        .map(|workspace| {
            let confinement = one(config, workspace, &mut probes)
                .with_context(|| format!("workspace {}", workspace.id))?;
            Ok((workspace.clone(), confinement))
        })
        .collect()
}

type Probes = HashMap<Option<(u32, u32)>, Arc<Probe>>;

fn one(
    config: &Config,
    workspace: &WorkspaceConfig,
    probes: &mut Probes,
) -> Result<Option<Arc<Confinement>>> {
    let sandbox = &config.sandbox;
    let demand = match sandbox.mode {
        SandboxMode::Off => return Ok(None),
        SandboxMode::Preferred => Demand::Preferred,
        SandboxMode::Required => Demand::Required,
    };
    let mut plan = plan(
        &workspace.root,
        sandbox.tasks,
        sandbox.memory_bytes,
        sandbox.tmp_bytes,
    )
    .context("its root cannot be looked at")?;
    let search = environment(workspace, true);
    let search = search.iter().find(|(name, _)| name == "PATH");
    let folders = search.map(|(_, value)| std::env::split_paths(value));
    plan.readable = folders
        .into_iter()
        .flatten()
        .filter(|folder| folder.is_absolute())
        .chain(workspace.read.iter().cloned())
        .collect();
    plan.writable.clone_from(&workspace.write);
    plan.hidden.clone_from(&config.secrets);
    plan.protect = workspace.protect.iter().map(PathBuf::from).collect();
    plan.debug = workspace.debug;
    let own = nix::unistd::geteuid().as_raw();
    let run_as = (plan.uid != own).then_some((plan.uid, plan.gid));
    let probe = probes
        .entry(run_as)
        .or_insert_with(|| Arc::new(Probe::new(OWN_PROGRAM.into(), run_as)));
    Ok(Some(Arc::new(Confinement::new(
        Arc::clone(probe),
        demand,
        plan,
    ))))
}

/// What a command gets besides the workspace's own variables: nothing of the server's. A
/// confined one has a HOME of its own.
pub fn environment(workspace: &WorkspaceConfig, confined: bool) -> Vec<(OsString, OsString)> {
    let own = |name: &str, default: &str| {
        let value = std::env::var_os(name).unwrap_or_else(|| default.into());
        (OsString::from(name), value)
    };
    let mut env = vec![
        own(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ),
        own("LANG", "C.UTF-8"),
    ];
    if !confined {
        env.push(own("HOME", "/"));
    }
    for (name, value) in &workspace.env {
        env.retain(|(known, _)| known.as_os_str() != OsStr::new(name));
        env.push((name.into(), value.into()));
    }
    env
}
