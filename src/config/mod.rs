//! One typed configuration, validated whole before anything starts.
//!
//! [`file`] is what an operator may write, [`check`] turns it into [`Config`], which
//! the rest of the program takes at its word.

mod check;
mod env;
mod fault;
mod file;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use codespace_layers::Token;
use codespace_router::{Profile, WorkspaceId};

pub use fault::ConfigFault;

/// Everything the program needs to know, checked.
#[derive(Debug)]
pub struct Config {
    /// Where `serve` listens.
    pub listen: Listen,
    /// What Host and Origin may say, and below which path the routes also answer.
    pub public: Public,
    /// `Mcp-Session-Id` for revisions before 2026-07-28.
    pub sessions: bool,
    /// The largest request body, in bytes.
    pub body_bytes: usize,
    /// Where /metrics, /livez and /readyz are; `None` for nowhere.
    pub admin: Option<std::net::SocketAddr>,
    /// Who may call.
    pub auth: Auth,
    /// Where operations are recorded.
    pub store: StorePlace,
    /// Whether records survive power loss.
    pub full_durability: bool,
    /// How long records are kept.
    pub keep: Duration,
    /// What a client can grow.
    pub limits: Limits,
    /// Where files are changed and commands started.
    pub runner: RunnerKind,
    /// How commands are kept in their workspace.
    pub sandbox: SandboxConfig,
    /// Files no command may see: the config, tokens, the store.
    pub secrets: Vec<PathBuf>,
    /// The workspaces, in byte order of their ids.
    pub workspaces: Vec<WorkspaceConfig>,
}

/// A listener's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(std::net::SocketAddr),
    /// A Unix socket, mode 0600.
    Unix(PathBuf),
}

/// How the server is named from outside.
#[derive(Clone, Debug, Default)]
pub struct Public {
    /// Hosts besides loopback names; one without a port allows any port.
    pub hosts: Vec<String>,
    /// Origins besides loopback ones.
    pub origins: Vec<String>,
    /// `public_url`'s path, without a trailing slash; empty for none.
    pub prefix: String,
}

/// Who may call.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Whoever reaches the (loopback) listener.
    None,
    /// Whoever holds one of these tokens.
    Bearer(Vec<Token>),
}

/// Where operations are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// The operator named the file: another server on it stops the start.
    Given(PathBuf),
    /// One file per set of roots; held by another server, this one records in memory.
    Derived(PathBuf),
    /// `:memory:`.
    Memory,
}

/// What a client can grow.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Raw bytes `read` returns at most.
    pub read_bytes: usize,
    /// Paths `find` returns at most.
    pub find_paths: usize,
    /// The largest file a patch may touch, in bytes.
    pub patch_file_bytes: u64,
    /// Output kept per process, in bytes.
    pub output_bytes: usize,
    /// Live processes in all.
    pub processes: usize,
    /// Exited handles in all.
    pub handles: usize,
    /// How long an exited handle stays readable.
    pub handle_time: Duration,
}

/// Where files are changed and commands started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerKind {
    /// In the server's own process.
    InProcess,
    /// In a worker, spoken to over a socket pair.
    Uds,
}

/// How commands are kept in their workspace.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// What happens where the sandbox cannot be had.
    pub mode: SandboxMode,
    /// How much HOME, /tmp and /dev/shm of a workspace hold, in bytes.
    pub tmp_bytes: u64,
    /// Processes and threads of a command at once; 0 for no limit.
    pub tasks: u32,
    /// Memory of a command, in bytes; 0 for no limit.
    pub memory_bytes: u64,
}

/// What happens where the sandbox cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxMode {
    /// Commands are refused.
    Required,
    /// Commands run with what there is.
    Preferred,
    /// There is none: commands run with the user's own rights and network.
    Off,
}

/// What commands may reach through the managed proxy; `None` of it when restricted.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Hosts, as `allow_domains` names them.
    pub allow: Vec<String>,
    /// Hosts that may have private addresses, as `allow_private` names them.
    pub private: Vec<String>,
}

/// A registered folder.
#[derive(Clone, Debug)]
pub struct WorkspaceConfig {
    /// Its id.
    pub id: WorkspaceId,
    /// Its root: absolute, a real directory when it was checked.
    pub root: PathBuf,
    /// What is allowed in it.
    pub profile: Profile,
    /// Protected paths besides `.git`.
    pub protect: Arc<[String]>,
    /// What its commands get besides PATH, HOME and LANG.
    pub env: BTreeMap<String, String>,
    /// How long a command may run.
    pub process_time: Duration,
    /// What its commands may read besides the system and the root.
    pub read: Vec<PathBuf>,
    /// What its commands may write besides the root.
    pub write: Vec<PathBuf>,
    /// What its commands may reach; `None` for nothing.
    pub network: Option<NetworkConfig>,
    /// ptrace within a command's own tree.
    pub debug: bool,
}

/// What the command line adds to the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--workspace NAME=DIR[:ro]`, in order.
    pub workspaces: Vec<String>,
    /// Whether an HTTP listener will be opened (`serve` and `check`).
    pub http: bool,
}

impl Config {
    /// Reads file, environment and command line, and checks the whole.
    ///
    /// # Errors
    /// The first fault, with its file, line and key where there is one.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigFault> {
        let path = overrides
            .config
            .clone()
            .or_else(|| std::env::var_os("CODESPACE_CONFIG").map(PathBuf::from));
        let source = file::Source::read(path.as_deref())?;
        let raw = source.parse()?;
        check::check(raw, &source, overrides)
    }
}

/// `$XDG_STATE_HOME/codespace`, or `~/.local/state/codespace`; else a folder below /tmp
/// that only this user has.
pub(crate) fn state_folder() -> PathBuf {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| Path::new("/tmp").join(format!("codespace-{}", nix::unistd::getuid())))
        .join("codespace")
}
