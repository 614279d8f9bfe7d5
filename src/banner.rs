//! The first lines on stderr, for the person who started the program.

use std::fmt::Write;

use anyhow::{Context, Result};
use codespace_router::Profile;
use codespace_store::{OpenFault, Store};

use crate::{
    config::{Auth, Config, Listen, StorePlace},
    facts,
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

fn enforced() -> &'static str {
    "  enforced   file tools stay inside their workspace; commands run WITHOUT a sandbox, with your rights and network\n"
}

/// What `serve` says when it is ready.
pub fn serve(config: &Config, listen: &str, admin: Option<&str>, store: &str) {
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
    text.push_str(enforced());
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
    eprint!("{text}");
}

/// What `stdio` says on stderr.
pub fn stdio(config: &Config, store: &str) {
    eprint!(
        "codespace {} on stdio\n{}{}  store      {store}\n",
        env!("CARGO_PKG_VERSION"),
        workspaces(config),
        enforced()
    );
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
    let listen = match &config.listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    };
    println!(
        "the configuration is valid\n{}{}  store      {store}\n  listen     {listen}",
        workspaces(config),
        enforced(),
    );
    for workspace in facts::gather(config, vec!["streamable-http"]).workspaces {
        if let Ok(json) = serde_json::to_string_pretty(&workspace) {
            println!("{json}");
        }
    }
    Ok(())
}
