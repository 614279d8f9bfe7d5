//! From what was written to what holds: every rule, and the remedy in its words.

use std::{
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use codespace_layers::Token;
use codespace_patch::normalize;
use codespace_router::{Profile, Scope, Scopes, WorkspaceId};
use sha2::{Digest, Sha256};

use super::{
    Auth, Config, ConfigFault, Limits, Listen, Overrides, Public, StorePlace, WorkspaceConfig,
    file::{self, File, Source},
    state_folder,
};

type Checked<T> = Result<T, ConfigFault>;

pub(super) fn check(file: File, source: &Source, overrides: &Overrides) -> Checked<Config> {
    check_all(file, source, overrides).map_err(|fault| source.locate(fault))
}

fn check_all(file: File, source: &Source, overrides: &Overrides) -> Checked<Config> {
    refuse_unbuilt(&file)?;
    let limits = limits(&file.limits)?;
    let process_time = seconds("limits.process_seconds", file.limits.process_seconds, 600)?;
    let workspaces = workspaces(&file, overrides, process_time)?;
    let listen = listen(
        overrides
            .listen
            .as_deref()
            .or(file.server.listen.as_deref()),
    )?;
    let admin = admin(file.admin.listen.as_deref())?;
    let public = public(&file.server)?;
    let (auth, token_files) = auth(&file.auth, &workspaces)?;
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
    let store = store(file.store.path.as_deref(), &workspaces);
    let full_durability = one_of(
        "store.durability",
        file.store.durability.as_deref(),
        &["process", "full"],
    )? == "full";
    let keep_days = file.store.keep_days.unwrap_or(30);
    if keep_days == 0 {
        return Err(ConfigFault::new("store.keep_days", "must be at least 1"));
    }
    let config = Config {
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
        workspaces,
    };
    refuse_roots_with_secrets(&config, source, &token_files)?;
    Ok(config)
}

/// A setting whose part is not built is refused, never ignored.
fn refuse_unbuilt(file: &File) -> Checked<()> {
    let unbuilt = |key: &str, what: &str| {
        Err(ConfigFault::new(
            key,
            format!("{what} is not built into this version; remove the key"),
        ))
    };
    let auth = &file.auth;
    match auth.mode.as_deref() {
        None | Some("none" | "bearer") => {}
        Some(mode @ ("jwt" | "proxy")) => {
            return Err(ConfigFault::new(
                "auth.mode",
                format!("{mode:?} is not built into this version; use \"none\" or \"bearer\""),
            ));
        }
        Some(mode) => {
            return Err(ConfigFault::new(
                "auth.mode",
                format!("{mode:?} is not one of \"none\", \"bearer\""),
            ));
        }
    }
    let auth_keys = [
        ("auth.grants", auth.grants.is_some()),
        ("auth.issuer", auth.issuer.is_some()),
        ("auth.audience", auth.audience.is_some()),
        ("auth.jwks_url", auth.jwks_url.is_some()),
        ("auth.jwks_file", auth.jwks_file.is_some()),
        ("auth.scope_claim", auth.scope_claim.is_some()),
        ("auth.group_claim", auth.group_claim.is_some()),
        ("auth.clock_skew_seconds", auth.clock_skew_seconds.is_some()),
        ("auth.user_header", auth.user_header.is_some()),
        ("auth.group_header", auth.group_header.is_some()),
    ];
    if let Some((key, _)) = auth_keys.iter().find(|(_, set)| *set) {
        return unbuilt(key, "login by JWT or by a proxy's headers");
    }
    if file
        .server
        .trusted_proxies
        .as_ref()
        .is_some_and(|list| !list.is_empty())
    {
        return unbuilt("server.trusted_proxies", "believing forwarded headers");
    }
    match file.runner.kind.as_deref() {
        None | Some("in-process") => {}
        Some(kind) => {
            return Err(ConfigFault::new(
                "runner.kind",
                format!("{kind:?} is not built into this version; use \"in-process\""),
            ));
        }
    }
    match file.sandbox.mode.as_deref() {
        None | Some("off") => {}
        Some(mode) => {
            return Err(ConfigFault::new(
                "sandbox.mode",
                format!(
                    "{mode:?} is not built into this version; use \"off\" and run the server itself in a container or as its own user"
                ),
            ));
        }
    }
    let sandbox = [
        ("sandbox.read", file.sandbox.read.is_some()),
        ("sandbox.write", file.sandbox.write.is_some()),
        ("sandbox.tmp_bytes", file.sandbox.tmp_bytes.is_some()),
        ("limits.tasks", file.limits.tasks.is_some()),
        ("limits.memory_bytes", file.limits.memory_bytes.is_some()),
    ];
    if let Some((key, _)) = sandbox.iter().find(|(_, set)| *set) {
        return unbuilt(key, "the command sandbox");
    }
    if file.limits.hold_seconds.is_some() {
        return unbuilt("limits.hold_seconds", "approval holds");
    }
    if file
        .audit
        .path
        .as_deref()
        .is_some_and(|path| !path.is_empty())
    {
        return unbuilt("audit.path", "the audit log");
    }
    for (name, workspace) in &file.workspaces {
        let key = |field: &str| format!("workspaces.{name}.{field}");
        if workspace
            .approvals
            .as_deref()
            .is_some_and(|mode| mode != "off")
        {
            return Err(ConfigFault::new(
                key("approvals"),
                "approval holds are not built into this version; use \"off\"",
            ));
        }
        if workspace
            .network
            .as_deref()
            .is_some_and(|policy| policy != "restricted")
        {
            return Err(ConfigFault::new(
                key("network"),
                "the managed proxy is not built into this version; use \"restricted\" or leave it out",
            ));
        }
        let lists = [
            ("allow_domains", workspace.allow_domains.is_some()),
            ("allow_private", workspace.allow_private.is_some()),
            ("debug", workspace.debug.is_some()),
            ("read", workspace.read.is_some()),
            ("write", workspace.write.is_some()),
        ];
        if let Some((field, _)) = lists.iter().find(|(_, set)| *set) {
            return unbuilt(&key(field), "the command sandbox");
        }
    }
    Ok(())
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

fn listen(text: Option<&str>) -> Checked<Listen> {
    let text = text.unwrap_or("127.0.0.1:8787");
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err(ConfigFault::new(
                "server.listen",
                "the path after unix: must be absolute",
            ));
        }
        return Ok(Listen::Unix(path));
    }
    text.parse().map(Listen::Tcp).map_err(|_| {
        ConfigFault::new(
            "server.listen",
            format!("{text:?} is neither ADDRESS:PORT (as 127.0.0.1:8787) nor unix:/PATH"),
        )
    })
}

fn admin(text: Option<&str>) -> Checked<Option<SocketAddr>> {
    match text.unwrap_or("127.0.0.1:9464") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ConfigFault::new(
                "admin.listen",
                format!("{text:?} is neither ADDRESS:PORT (as 127.0.0.1:9464) nor \"\" for none"),
            )
        }),
    }
}

fn public(server: &file::Server) -> Checked<Public> {
    let mut public = Public {
        hosts: server.allowed_hosts.clone().unwrap_or_default(),
        ..Public::default()
    };
    if let Some(host) = public
        .hosts
        .iter()
        .find(|host| host.is_empty() || host.contains(['/', '*', ' ']))
    {
        return Err(ConfigFault::new(
            "server.allowed_hosts",
            format!("{host:?} is not a host name or host:port; wildcards are not allowed"),
        ));
    }
    if let Some(url) = &server.public_url {
        let bad = |why: &str| ConfigFault::new("server.public_url", format!("{url:?} {why}"));
        let uri: http::Uri = url.parse().map_err(|_| bad("is not a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad("must be absolute, as https://code.example.com/tools"));
        };
        if !matches!(scheme, "http" | "https")
            || uri.query().is_some()
            || authority.as_str().contains('@')
        {
            return Err(bad("must be http or https, without user and query"));
        }
        public.hosts.push(authority.as_str().to_owned());
        public.origins.push(format!("{scheme}://{authority}"));
        public.prefix = uri.path().trim_end_matches('/').to_owned();
    }
    Ok(public)
}

fn auth(auth: &file::Auth, workspaces: &[WorkspaceConfig]) -> Checked<(Auth, Vec<PathBuf>)> {
    let shared = std::env::var("CODESPACE_HTTP_TOKEN")
        .ok()
        .filter(|token| !token.is_empty());
    let mode = auth
        .mode
        .as_deref()
        .unwrap_or(if shared.is_some() { "bearer" } else { "none" });
    let entries = auth.tokens.as_deref().unwrap_or_default();
    if mode == "none" {
        if shared.is_some() || !entries.is_empty() {
            return Err(ConfigFault::new(
                "auth.mode",
                "is \"none\" although tokens are given; use \"bearer\" or remove them",
            ));
        }
        return Ok((Auth::None, Vec::new()));
    }
    let mut tokens = Vec::new();
    let mut files = Vec::new();
    if let Some(token) = shared {
        tokens.push(Token::new(
            "default",
            Sha256::digest(token.as_bytes()).into(),
            Scopes::all_but_admin(),
            None,
        ));
    }
    for entry in entries {
        let fault = |why: String| ConfigFault::new("auth.tokens", format!("{}: {why}", entry.name));
        if entry.name.is_empty()
            || entries
                .iter()
                .filter(|other| other.name == entry.name)
                .count()
                > 1
        {
            return Err(fault("every token needs a name of its own".to_owned()));
        }
        let digest = match (&entry.token, &entry.token_sha256, &entry.token_file) {
            (Some(token), None, None) => digest(token).map_err(fault)?,
            (None, Some(hex), None) => {
                unhex(hex).ok_or_else(|| fault("token_sha256 must be 64 hex digits".to_owned()))?
            }
            (None, None, Some(path)) => {
                let path = std::path::absolute(path)
                    .map_err(|error| fault(format!("token_file: {error}")))?;
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| fault(format!("token_file: {error}")))?;
                files.push(path);
                digest(text.trim_end()).map_err(fault)?
            }
            _ => {
                return Err(fault(
                    "give exactly one of token, token_sha256 and token_file".to_owned(),
                ));
            }
        };
        let scopes = entry.scopes.iter().map(|name| {
            Scope::from_name(name).ok_or_else(|| {
                fault(format!(
                    "{name:?} is not a scope; they are read, write, exec, approve, steer, admin"
                ))
            })
        });
        let scopes: Scopes = scopes.collect::<Checked<Vec<_>>>()?.into_iter().collect();
        if let Some(id) = entry
            .workspaces
            .iter()
            .flatten()
            .find(|id| !workspaces.iter().any(|known| known.id.as_str() == *id))
        {
            return Err(fault(format!("{id:?} is not a workspace of this config")));
        }
        tokens.push(Token::new(
            &entry.name,
            digest,
            scopes,
            entry.workspaces.clone(),
        ));
    }
    if tokens.is_empty() {
        return Err(ConfigFault::new(
            "auth.tokens",
            "auth.mode = \"bearer\" needs a token, here or in CODESPACE_HTTP_TOKEN",
        ));
    }
    Ok((Auth::Bearer(tokens), files))
}

fn digest(token: &str) -> Result<[u8; 32], String> {
    if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a token must have at least 16 visible ASCII characters".to_owned());
    }
    Ok(Sha256::digest(token.as_bytes()).into())
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn workspaces(
    file: &File,
    overrides: &Overrides,
    process_time: Duration,
) -> Checked<Vec<WorkspaceConfig>> {
    let mut workspaces = Vec::new();
    for (name, entry) in &file.workspaces {
        let key = |field: &str| format!("workspaces.{name}.{field}");
        let root = entry.root.as_deref().ok_or_else(|| {
            ConfigFault::new(
                format!("workspaces.{name}"),
                "has no root; add root = \"/absolute/folder\"",
            )
        })?;
        let profile = match one_of(
            &key("profile"),
            entry.profile.as_deref(),
            &["read-only", "workspace-write"],
        )? {
            "workspace-write" => Profile::WorkspaceWrite,
            _ => Profile::ReadOnly,
        };
        let protect = entry.protect.as_deref().unwrap_or_default().iter().map(|path| {
            normalize(path).map_err(|_| ConfigFault::new(key("protect"), format!("{path:?} must be a path relative to the root, without .. and trailing /")))
        });
        let env = entry.env.clone().unwrap_or_default();
        if let Some(name) = env
            .keys()
            .find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return Err(ConfigFault::new(
                key("env"),
                format!("{name:?} cannot be the name of a variable"),
            ));
        }
        workspaces.push(WorkspaceConfig {
            id: id(&format!("workspaces.{name}"), name)?,
            root: root_folder(&key("root"), Path::new(root))?,
            profile,
            protect: protect.collect::<Checked<Vec<_>>>()?.into(),
            env,
            process_time: seconds(
                &key("process_seconds"),
                entry.process_seconds,
                process_time.as_secs(),
            )?,
        });
    }
    for argument in &overrides.workspaces {
        let key = "--workspace";
        let bad = || ConfigFault::new(key, format!("{argument:?} must be NAME=DIR or NAME=DIR:ro"));
        let (name, folder) = argument.split_once('=').ok_or_else(bad)?;
        let (folder, profile) = match folder.strip_suffix(":ro") {
            Some(folder) => (folder, Profile::ReadOnly),
            None => (folder, Profile::WorkspaceWrite),
        };
        if folder.is_empty() {
            return Err(bad());
        }
        let workspace = WorkspaceConfig {
            id: id(key, name)?,
            root: root_folder(key, Path::new(folder))?,
            profile,
            protect: [].into(),
            env: std::collections::BTreeMap::new(),
            process_time,
        };
        if workspaces.iter().any(|known| known.id == workspace.id) {
            return Err(ConfigFault::new(
                key,
                format!("the name {name:?} is taken; give each workspace its own"),
            ));
        }
        workspaces.push(workspace);
    }
    if workspaces.is_empty() {
        return Err(ConfigFault::new(
            "",
            "no workspace is registered; add --workspace NAME=DIR, or [workspaces.NAME] to the config",
        ));
    }
    workspaces.sort_by(|a, b| a.id.cmp(&b.id));
    refuse_nested(&workspaces)?;
    Ok(workspaces)
}

fn id(key: &str, name: &str) -> Checked<WorkspaceId> {
    let fits = !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !fits {
        return Err(ConfigFault::new(
            key,
            format!("{name:?} is not a workspace name: 1 to 64 letters, digits, '-', '_' or '.'"),
        ));
    }
    Ok(WorkspaceId::new(name))
}

fn root_folder(key: &str, root: &Path) -> Checked<PathBuf> {
    let root =
        std::path::absolute(root).map_err(|error| ConfigFault::new(key, error.to_string()))?;
    let bad = |why: &str| ConfigFault::new(key, format!("{} {why}", root.display()));
    let meta = std::fs::symlink_metadata(&root)
        .map_err(|error| bad(&format!("cannot be used: {error}; name an existing folder")))?;
    if meta.is_symlink() {
        return Err(bad("is a symbolic link; name the folder it leads to"));
    }
    if !meta.is_dir() {
        return Err(bad("is not a folder"));
    }
    std::fs::canonicalize(&root).map_err(|error| bad(&format!("cannot be resolved: {error}")))
}

fn refuse_nested(workspaces: &[WorkspaceConfig]) -> Checked<()> {
    for inner in workspaces {
        if let Some(outer) = workspaces
            .iter()
            .find(|outer| outer.id != inner.id && inner.root.starts_with(&outer.root))
        {
            return Err(ConfigFault::new(
                format!("workspaces.{}.root", inner.id),
                format!(
                    "{} lies in the root of {}; roots may not contain each other",
                    inner.root.display(),
                    outer.id
                ),
            ));
        }
    }
    Ok(())
}

fn store(path: Option<&str>, workspaces: &[WorkspaceConfig]) -> StorePlace {
    match path {
        Some(":memory:") => StorePlace::Memory,
        Some(path) => StorePlace::Given(PathBuf::from(path)),
        None => {
            let mut hash = Sha256::new();
            for workspace in workspaces {
                hash.update(workspace.root.as_os_str().as_bytes());
                hash.update([0]);
            }
            let name: String = hash
                .finalize()
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect();
            StorePlace::Derived(state_folder().join(name).join("codespace.sqlite"))
        }
    }
}

/// A command could otherwise rewrite what rules it.
fn refuse_roots_with_secrets(
    config: &Config,
    source: &Source,
    token_files: &[PathBuf],
) -> Checked<()> {
    let mut kept: Vec<(&str, PathBuf)> = token_files
        .iter()
        .map(|path| ("a token file", path.clone()))
        .collect();
    kept.extend(source.path.clone().map(|path| ("the config", path)));
    if let StorePlace::Given(path) | StorePlace::Derived(path) = &config.store {
        kept.push(("the store", path.clone()));
    }
    if let Listen::Unix(path) = &config.listen {
        kept.push(("the listening socket", path.clone()));
    }
    for (what, path) in kept {
        let path = resolved(&path);
        if let Some(workspace) = config
            .workspaces
            .iter()
            .find(|workspace| path.starts_with(&workspace.root))
        {
            return Err(ConfigFault::new(
                format!("workspaces.{}.root", workspace.id),
                format!(
                    "contains {what} ({}), which a command could change; move one of them",
                    path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// The real place of a path whose last parts may not exist yet.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut missing = Vec::new();
    let mut known = path.as_path();
    loop {
        if let Ok(real) = std::fs::canonicalize(known) {
            return missing
                .iter()
                .rev()
                .fold(real, |real, part| real.join(part));
        }
        match (known.parent(), known.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name.to_owned());
                known = parent;
            }
            _ => return path,
        }
    }
}
