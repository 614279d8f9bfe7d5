//! The first lines on stderr, for the person who started the program.

use std::fmt::Write;

use anyhow::{Context, Result};
use codespace_router::Profile;
use codespace_runner::Verdict;
use codespace_store::{OpenFault, Store};
use codespace_tools::Facts;

use crate::{
    config::{Auth, Config, Listen, StorePlace},
    confine, facts,
};

fn workspaces(config: &Config) -> String {
    let mut text = String::new();
    for workspace in &config.workspaces {
        let rights = match workspace.profile {
            Profile::ReadOnly => "read only",
            Profile::WorkspaceWrite => "read, patch, run",
        };
        let _ = writeln!(
            text,
            "  workspace  {} = {} ({rights})",
            workspace.id,
            workspace.root.display()
        );
    }
    text
}

/// What keeps each workspace's commands in, as it was found. Told after the rest, which need
/// not wait for the finding out.
pub fn enforced(facts: &Facts) -> String {
    let mut text = "  enforced   file tools stay inside their workspace\n".to_owned();
    for workspace in &facts.workspaces {
        let Some(execution) = &workspace.execution else {
            continue;
        };
        let says = match execution.isolation.command_sandbox {
            _ if !execution.permissions.exec => continue,
            _ if !execution.process.available => {
                "commands are REFUSED: this machine cannot give the whole sandbox; `codespace check` tells why"
            }
            "linux-sandbox" => "commands see the system read-only, the root, and no network",
            "partial" => {
                "commands run in PART of the sandbox (Landlock and system call filter); `codespace check` tells what is missing"
            }
            _ => "commands run WITHOUT a sandbox, with your rights and network",
        };
        let _ = writeln!(text, "             {}: {says}", workspace.workspace_id);
    }
    text
}

/// What `serve` says when it is ready.
pub fn serve(config: &Config, listen: &str, admin: Option<&str>, store: &str) -> String {
    let mut text = format!("codespace {}\n", env!("CARGO_PKG_VERSION"));
    let url = match &config.listen {
        Listen::Tcp(_) => format!("http://{listen}/mcp"),
        Listen::Unix(_) => listen.to_owned(),
    };
    let _ = writeln!(text, "  listening  {url}");
    let _ = writeln!(
        text,
        "  admin      {}",
        admin.map_or("none".to_owned(), |name| format!(
            "http://{name} (/metrics /livez /readyz)"
        ))
    );
    text.push_str(&workspaces(config));
    let _ = writeln!(text, "  store      {store}");
    match (&config.auth, &config.listen) {
        (Auth::Bearer(tokens), _) => {
            let _ = writeln!(text, "  auth       bearer ({} tokens)", tokens.len());
        }
        (Auth::None, Listen::Tcp(_)) => text.push_str(
            "  auth       NONE: every user and program of this machine that reaches the port can run commands as you.\n             The closed door: --listen unix:/PATH, a socket with mode 0600; or auth.mode = \"bearer\".\n",
        ),
        (Auth::None, Listen::Unix(_)) => text.push_str("  auth       none; the socket has mode 0600: you and root\n"),
    }
    if let Listen::Tcp(_) = &config.listen {
        let headers = match &config.auth {
            Auth::None => "",
            Auth::Bearer(_) => r#", "headers": { "Authorization": "Bearer TOKEN" }"#,
        };
        let _ = writeln!(
            text,
            "\n  client config:\n  {{ \"mcpServers\": {{ \"codespace\": {{ \"type\": \"http\", \"url\": \"{url}\"{headers} }} }} }}\n"
        );
    }
    text
}

/// What `stdio` says on stderr.
pub fn stdio(config: &Config, store: &str) -> String {
    format!(
        "codespace {} on stdio\n{}  store      {store}\n",
        env!("CARGO_PKG_VERSION"),
        workspaces(config),
    )
}

/// What `check` prints: the effective contract of every workspace, on stdout.
///
/// # Errors
/// The store that the config names cannot be used.
pub fn check(config: &Config) -> Result<()> {
    let store = match &config.store {
        StorePlace::Memory => "in memory".to_owned(),
        StorePlace::Given(path) => {
            Store::check(path).with_context(|| format!("store.path {}", path.display()))?;
            path.display().to_string()
        }
        StorePlace::Derived(path) => match Store::check(path) {
            Ok(()) => path.display().to_string(),
            Err(fault @ OpenFault::InUse { .. }) => format!("in memory: {fault}"),
            Err(fault) => return Err(fault.into()),
        },
    };
    let confined = confine::all(config)?;
    let facts = facts::gather(&confined, vec!["streamable-http"]);
    let listen = &config.listen;
    println!(
        "the configuration is valid\n{}{}  store      {store}\n  listen     {listen}",
        workspaces(config),
        enforced(&facts),
    );
    for (workspace, confinement) in &confined {
        if let Some(Ok(features)) = confinement
            .as_ref()
            .map(|confinement| confinement.features())
        {
            println!("\nsandbox of {}\n{}", workspace.id, features.describe());
        }
        if let Verdict::Refused(why) = facts::verdict(confinement.as_deref()) {
            println!("commands of {} are refused: {why}\n", workspace.id);
        }
    }
    for workspace in facts.workspaces {
        if let Ok(json) = serde_json::to_string_pretty(&workspace) {
            println!("{json}");
        }
    }
    Ok(())
}
