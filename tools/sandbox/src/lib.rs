//! What keeps a command inside its workspace: Landlock, seccomp and namespaces, as a
//! library for the server's side and as the helper that does the work.
//!
//! A server has threads and must not fork, so everything that forks, unshares and mounts
//! is done by the helper: the same executable, called as `codespace sandbox …`, which
//! branches off in [`helper_main`] before any runtime starts and has a single thread.

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    target_pointer_width = "64"
)))]
compile_error!("the sandbox is written for 64-bit little-endian Linux");

mod cgroup;
mod cli;
mod fault;
mod features;
mod identity;
mod init;
mod landlock;
mod launcher;
mod limits;
mod mounts;
mod network;
mod plan;
mod probe;
mod protect;
mod report;
mod seccomp;
mod sys;

pub use cli::helper_main;
pub use fault::Fault;
pub use features::{Features, Level, Missing, TreeKill};
pub use launcher::{Command, Ended, Launcher, LimitHit, SpawnError, Spawned, env_entry};
pub use limits::Limits;
pub use plan::{Isolation, Plan};
pub use report::Report;
