//! What a workspace's commands may see and use: the one input of the helper.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};

use crate::{fault::Fault, limits::Limits};

/// Readable for every command, as far as they exist.
pub(crate) const SYSTEM: [&str; 11] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/sys",
];

/// Never readable, even where uid 0 owns them.
const HIDDEN: [&str; 8] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/security/opasswd",
];

/// Where HOME is, in a new root.
pub(crate) const HOME: &str = "/home/codespace";

/// How much of the sandbox a plan asks for. There is no falling back from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A new root, own processes, own IPC, own network, Landlock and seccomp.
    #[default]
    Full,
    /// Landlock and seccomp only: no sockets, and what is protected is put back, not kept.
    Partial,
}

/// The plan of one workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The workspace: writable, at its own path, and where commands start.
    pub root: PathBuf,
    /// Device and inode the root must have, so that a folder put in its place is refused.
    #[serde(default)]
    pub root_id: Option<(u64, u64)>,
    /// More readable files and folders, besides the system's and those on the PATH of `env`. Those that are missing are
    /// left out, as are those within something writable.
    #[serde(default)]
    pub readable: Vec<PathBuf>,
    /// More writable files and folders.
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Never readable, though inside something that is.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Paths below the root that cannot be written, besides what protects git.
    #[serde(default)]
    pub protect: Vec<PathBuf>,
    /// A folder of this workspace for HOME, /tmp and /dev/shm. `None`: memory, for as
    /// long as the launcher lives ([`Isolation::Partial`] always needs a folder).
    #[serde(default)]
    pub scratch: Option<PathBuf>,
    /// How much HOME, /tmp and /dev/shm hold together when they are memory.
    #[serde(default = "default_tmp_bytes")]
    pub tmp_bytes: u64,
    /// How much of the sandbox.
    #[serde(default)]
    pub isolation: Isolation,
    /// What a command may use.
    #[serde(default)]
    pub limits: Limits,
    /// ptrace within a command's own tree.
    #[serde(default)]
    pub debug: bool,
    /// The user commands run as; anyone but root can only name themselves.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// The environment all commands start from.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn default_tmp_bytes() -> u64 {
    1 << 30
}

impl Plan {
    /// The plan of a folder with everything else as it is by default. Commands run as
    /// this process's user, or as the folder's owner when that is root.
    ///
    /// # Errors
    /// When the folder cannot be looked at.
    pub fn for_root(root: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(root)?;
        let (uid, gid) = if geteuid().is_root() {
            (found.uid(), found.gid())
        } else {
            (geteuid().as_raw(), getegid().as_raw())
        };
        Ok(Self {
            root: root.to_owned(),
            root_id: Some((found.dev(), found.ino())),
            readable: Vec::new(),
            writable: Vec::new(),
            hidden: Vec::new(),
            protect: Vec::new(),
            scratch: None,
            tmp_bytes: default_tmp_bytes(),
            isolation: Isolation::Full,
            limits: Limits::default(),
            debug: false,
            uid,
            gid,
            env: BTreeMap::new(),
        })
    }

    /// Looks for what could not be carried out, without doing any of it.
    ///
    /// # Errors
    /// The first problem, naming the field.
    pub fn check(&self) -> Result<(), Fault> {
        for (field, path) in self.named_paths() {
            absolute(field, path)?;
        }
        for (field, path) in [("root", &self.root)]
            .into_iter()
            .chain(self.writable.iter().map(|path| ("writable", path)))
            .chain(self.readable.iter().map(|path| ("readable", path)))
        {
            allowed(field, path)?;
        }
        for path in &self.protect {
            let plain = path
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            if !plain || path.as_os_str().is_empty() {
                return Err(Fault::plain(format!(
                    "protect names {}, which is no path below the root",
                    path.display()
                )));
            }
        }
        if SYSTEM.iter().any(|system| self.root == Path::new(system)) {
            return Err(Fault::plain("the root is a folder of the system"));
        }
        let root = fs::symlink_metadata(&self.root).map_err(|error| Fault {
            step: "looking at the root".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        if !root.is_dir() {
            return Err(Fault::plain("the root is not a folder"));
        }
        if self
            .root_id
            .is_some_and(|id| id != (root.dev(), root.ino()))
        {
            return Err(Fault::plain(
                "the root is no longer the folder the plan was made for",
            ));
        }
        if !geteuid().is_root() && geteuid().as_raw() != self.uid {
            return Err(Fault::plain(
                "the plan names another user, which only root can become",
            ));
        }
        if self.isolation == Isolation::Partial && self.scratch.is_none() {
            return Err(Fault::plain(
                "without namespaces a plan needs a scratch folder for HOME and TMPDIR",
            ));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Fault::plain(format!(
                    "env has a name or value no program can get: {name:?}"
                )));
            }
        }
        Ok(())
    }

    fn named_paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        [("root", self.root.as_path())]
            .into_iter()
            .chain(
                self.readable
                    .iter()
                    .map(|path| ("readable", path.as_path())),
            )
            .chain(
                self.writable
                    .iter()
                    .map(|path| ("writable", path.as_path())),
            )
            .chain(self.hidden.iter().map(|path| ("hidden", path.as_path())))
            .chain(self.scratch.iter().map(|path| ("scratch", path.as_path())))
    }

    /// What is readable besides the system: as asked for, and the folders on PATH.
    pub(crate) fn readable_paths(&self) -> Vec<PathBuf> {
        let path = self.env.get("PATH").map(String::as_str).unwrap_or_default();
        let folders = std::env::split_paths(path).filter(|folder| {
            absolute("PATH", folder).is_ok() && allowed("readable", folder).is_ok()
        });
        self.readable.iter().cloned().chain(folders).collect()
    }

    /// What must not be readable, the system's secrets included. Before the root changes.
    pub(crate) fn hidden_paths(&self) -> Vec<PathBuf> {
        let keys = fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
        HIDDEN
            .iter()
            .map(PathBuf::from)
            .chain(
                keys.map(|entry| entry.path())
                    .filter(|path| path.as_os_str().as_encoded_bytes().ends_with(b"_key")),
            )
            .chain(self.hidden.iter().cloned())
            .collect()
    }

    /// HOME and, where it is not /tmp, TMPDIR.
    pub(crate) fn own_env(&self) -> Vec<(&'static str, PathBuf)> {
        match (self.isolation, &self.scratch) {
            (Isolation::Partial, Some(scratch)) => vec![
                ("HOME", scratch.join("home")),
                ("TMPDIR", scratch.join("tmp")),
            ],
            _ => vec![("HOME", PathBuf::from(HOME))],
        }
    }
}

/// Refuses places that are a command's own or would give it the host.
fn allowed(field: &str, path: &Path) -> Result<(), Fault> {
    if ["/", "/home", "/tmp", "/dev/shm", HOME]
        .iter()
        .any(|own| path == Path::new(own))
    {
        return Err(Fault::plain(format!(
            "{field} names {}, where commands have their own; name a folder below it",
            path.display()
        )));
    }
    if ["/proc", "/dev", "/run"]
        .iter()
        .any(|own| path == Path::new(own))
        || path.starts_with("/proc")
        || (field != "readable" && path.starts_with("/sys"))
    {
        return Err(Fault::plain(format!(
            "{field} names {}, which would let commands reach the host",
            path.display()
        )));
    }
    Ok(())
}

fn absolute(field: &str, path: &Path) -> Result<(), Fault> {
    let plain = path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && !path.as_os_str().as_encoded_bytes().contains(&0) {
        return Ok(());
    }
    Err(Fault::plain(format!(
        "{field} names {}, which is not an absolute path without ..",
        path.display()
    )))
}
