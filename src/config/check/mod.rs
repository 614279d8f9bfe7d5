//! From what was written to what holds: every rule, and the remedy in its words.

mod auth;
mod edge;
mod places;
mod sandbox;
mod unbuilt;
mod workspaces;

use std::time::Duration;

use super::{
    Auth, Config, ConfigFault, Limits, Listen, NetworkConfig, Overrides, Public, RunnerKind,
    SandboxConfig, SandboxMode, StorePlace, WorkspaceConfig,
    file::{self, File, Source},
    state_folder,
};

type Checked<T> = Result<T, ConfigFault>;

pub(super) fn check(file: File, source: &Source, overrides: &Overrides) -> Checked<Config> {
    check_all(file, source, overrides).map_err(|fault| source.locate(fault))
}

fn check_all(file: File, source: &Source, overrides: &Overrides) -> Checked<Config> {
    unbuilt::refuse_unbuilt(&file)?;
    let limits = limits(&file.limits)?;
    let process_time = seconds("limits.process_seconds", file.limits.process_seconds, 600)?;
    let sandbox = sandbox::sandbox(&file)?;
    let workspaces = workspaces::workspaces(&file, overrides, process_time, sandbox.mode)?;
    let listen = edge::listen(
        overrides
            .listen
            .as_deref()
            .or(file.server.listen.as_deref()),
    )?;
    let admin = edge::admin(file.admin.listen.as_deref())?;
    let public = edge::public(&file.server)?;
    let (auth, token_files) = auth::auth(&file.auth, &workspaces)?;
    if overrides.http
        && matches!(auth, Auth::None)
        && let Listen::Tcp(address) = &listen
        && !address.ip().is_loopback()
    {
        return Err(ConfigFault::new(
            "auth.mode",
            format!(
                "\"none\" would let anyone who reaches {address} run commands; use \"bearer\", or listen on loopback"
            ),
        ));
    }
    let store = places::store(file.store.path.as_deref(), &workspaces);
    let full_durability = one_of(
        "store.durability",
        file.store.durability.as_deref(),
        &["process", "full"],
    )? == "full";
    let runner = match one_of(
        "runner.kind",
        file.runner.kind.as_deref(),
        &["in-process", "uds"],
    )? {
        "uds" => RunnerKind::Uds,
        _ => RunnerKind::InProcess,
    };
    let keep_days = file.store.keep_days.unwrap_or(30);
    if keep_days == 0 {
        return Err(ConfigFault::new("store.keep_days", "must be at least 1"));
    }
    let mut config = Config {
        listen,
        public,
        sessions: file.server.sessions.unwrap_or(false),
        body_bytes: positive("server.body_bytes", file.server.body_bytes, 4 * 1024 * 1024)?,
        admin,
        auth,
        store,
        full_durability,
        keep: Duration::from_secs(keep_days.saturating_mul(86_400)),
        limits,
        runner,
        sandbox,
        secrets: Vec::new(),
        workspaces,
    };
    config.secrets = places::secrets(&config, source, &token_files)?;
    Ok(config)
}

fn limits(limits: &file::Limits) -> Checked<Limits> {
    Ok(Limits {
        read_bytes: positive("limits.read_bytes", limits.read_bytes, 1 << 20)?,
        find_paths: positive("limits.find_paths", limits.find_paths, 1_000)?,
        patch_file_bytes: positive("limits.patch_file_bytes", limits.patch_file_bytes, 64 << 20)?,
        output_bytes: positive("limits.output_bytes", limits.output_bytes, 256 << 10)?,
        processes: positive("limits.processes", limits.processes, 32)?,
        handles: positive("limits.handles", limits.handles, 256)?,
        handle_time: seconds("limits.handle_seconds", limits.handle_seconds, 900)?,
    })
}

fn positive<T: PartialEq + Default>(key: &str, value: Option<T>, default: T) -> Checked<T> {
    match value {
        Some(value) if value == T::default() => Err(ConfigFault::new(key, "must be at least 1")),
        value => Ok(value.unwrap_or(default)),
    }
}

/// A century is as good as for ever, and cannot overflow a clock.
fn seconds(key: &str, value: Option<u64>, default: u64) -> Checked<Duration> {
    let value = positive(key, value, default)?;
    if value > 3_155_760_000 {
        return Err(ConfigFault::new(
            key,
            "must be at most 3155760000 (a hundred years)",
        ));
    }
    Ok(Duration::from_secs(value))
}

fn one_of<'a>(key: &str, value: Option<&'a str>, allowed: &[&'a str]) -> Checked<&'a str> {
    let value = value.unwrap_or(allowed.first().copied().unwrap_or_default());
    if allowed.contains(&value) {
        return Ok(value);
    }
    Err(ConfigFault::new(
        key,
        format!("{value:?} is not one of {allowed:?}"),
    ))
}
