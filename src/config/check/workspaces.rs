//! The registered folders, from the file and from the command line.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use codespace_patch::normalize;
use codespace_router::{Profile, WorkspaceId};

use super::{
    Checked, ConfigFault, Overrides, SandboxMode, WorkspaceConfig, file::File, one_of, seconds,
};

pub(super) fn workspaces(
    file: &File,
    overrides: &Overrides,
    process_time: Duration,
    sandbox: SandboxMode,
) -> Checked<Vec<WorkspaceConfig>> {
    let paths = |kind: &str, own: Option<&[String]>, own_key: &str| {
        let all = match kind {
            "read" => &file.sandbox.read,
            _ => &file.sandbox.write,
        };
        super::sandbox::paths(&format!("sandbox.{kind}"), all.as_deref(), own_key, own)
    };
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
            read: paths("read", entry.read.as_deref(), &key("read"))?,
            write: paths("write", entry.write.as_deref(), &key("write"))?,
            network: super::sandbox::network(name, &key, entry, sandbox)?,
            debug: entry.debug.unwrap_or(false),
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
            read: paths("read", None, "")?,
            write: paths("write", None, "")?,
            network: None,
            debug: false,
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
        && !name.bytes().all(|byte| byte == b'.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !fits {
        return Err(ConfigFault::new(
            key,
            format!(
                "{name:?} is not a workspace name: 1 to 64 letters, digits, '-', '_' or '.', and not dots alone"
            ),
        ));
    }
    Ok(WorkspaceId::new(name))
}

fn root_folder(key: &str, root: &Path) -> Checked<PathBuf> {
    let root =
        std::path::absolute(root).map_err(|error| ConfigFault::new(key, error.to_string()))?;
    // With a slash at its end a link is followed before it can be seen.
    let root: PathBuf = root.components().collect();
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
