//! How commands are kept in, and what they may reach.

use std::path::{Path, PathBuf};

use codespace_proxy::Policy;

use super::{
    Checked, ConfigFault, NetworkConfig, SandboxConfig, SandboxMode,
    file::{self, File},
    one_of, positive,
};

pub(super) fn sandbox(file: &File) -> Checked<SandboxConfig> {
    let mode = match one_of(
        "sandbox.mode",
        file.sandbox.mode.as_deref(),
        &["required", "preferred", "off"],
    )? {
        "off" => SandboxMode::Off,
        "preferred" => SandboxMode::Preferred,
        _ => SandboxMode::Required,
    };
    let tasks = file.limits.tasks.unwrap_or(512);
    Ok(SandboxConfig {
        mode,
        tmp_bytes: positive("sandbox.tmp_bytes", file.sandbox.tmp_bytes, 1 << 30)?,
        tasks: tasks
            .try_into()
            .map_err(|_| ConfigFault::new("limits.tasks", "must be at most 4294967295"))?,
        memory_bytes: file.limits.memory_bytes.unwrap_or(0),
    })
}

/// Paths for every workspace, then those of one.
pub(super) fn paths(
    key: &str,
    all: Option<&[String]>,
    own_key: &str,
    own: Option<&[String]>,
) -> Checked<Vec<PathBuf>> {
    let both = [(key, all), (own_key, own)];
    let named = both
        .into_iter()
        .flat_map(|(key, list)| list.unwrap_or_default().iter().map(move |path| (key, path)));
    named
        .map(|(key, path)| {
            let path = Path::new(path);
            if path.is_absolute() {
                Ok(path.to_owned())
            } else {
                Err(ConfigFault::new(
                    key,
                    format!("{path:?} must be an absolute path"),
                ))
            }
        })
        .collect()
}

pub(super) fn network(
    name: &str,
    key: &dyn Fn(&str) -> String,
    entry: &file::Workspace,
    mode: SandboxMode,
) -> Checked<Option<NetworkConfig>> {
    let policy = one_of(
        &key("network"),
        entry.network.as_deref(),
        &["restricted", "enabled"],
    )?;
    if policy == "restricted" {
        return Ok(None);
    }
    if mode == SandboxMode::Off {
        return Err(ConfigFault::new(
            key("network"),
            "\"enabled\" cannot be enforced with sandbox.mode = \"off\": commands have the whole network anyway; turn the sandbox on, or remove the key",
        ));
    }
    let config = NetworkConfig {
        allow: entry.allow_domains.clone().unwrap_or_default(),
        private: entry.allow_private.clone().unwrap_or_default(),
    };
    // Said here with its key; the proxy reads the rules again when it starts.
    Policy::parse(name, &config.allow, &config.private)
        .map_err(|fault| ConfigFault::new(key(fault.key()), fault.to_string()))?;
    Ok(Some(config))
}
