//! Where the store lies, and that no root contains what rules it.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    Checked, Config, ConfigFault, Listen, StorePlace, WorkspaceConfig, file::Source, state_folder,
};

pub(super) fn store(path: Option<&str>, workspaces: &[WorkspaceConfig]) -> StorePlace {
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

/// What rules the server, which no command may see. A folder that commands can write and
/// that contains any of it is refused.
pub(super) fn secrets(
    config: &Config,
    source: &Source,
    token_files: &[PathBuf],
) -> Checked<Vec<PathBuf>> {
    let mut kept: Vec<(&str, PathBuf)> = token_files
        .iter()
        .map(|path| ("a token file", path.clone()))
        .collect();
    kept.extend(source.path.clone().map(|path| ("the config", path)));
    if let StorePlace::Given(path) | StorePlace::Derived(path) = &config.store {
        kept.push(("the store", path.clone()));
    }
    // Whatever the store is, journals lie here; one that a command can write settles as it likes.
    kept.push(("the server's journals", state_folder().join("journals")));
    if let Listen::Unix(path) = &config.listen {
        kept.push(("the listening socket", path.clone()));
    }
    let mut secrets = Vec::new();
    for (what, path) in kept {
        let path = resolved(&path);
        for workspace in &config.workspaces {
            let own = [("root", &workspace.root)];
            let more = workspace.write.iter().map(|folder| ("write", folder));
            for (field, folder) in own.into_iter().chain(more) {
                if path.starts_with(resolved(folder)) {
                    return Err(ConfigFault::new(
                        format!("workspaces.{}.{field}", workspace.id),
                        format!(
                            "{} contains {what} ({}), which a command could change; move one of them",
                            folder.display(),
                            path.display()
                        ),
                    ));
                }
            }
        }
        secrets.push(path);
    }
    Ok(secrets)
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
