//! What keeps a command inside its workspace: Landlock, seccomp and namespaces, as a
//! library for the server's side and as the helper that does the work.
//!
//! A server has threads and must not fork, so everything that forks, unshares and mounts
//! is done by the helper: the same executable, called as `codespace sandbox …`, which
//! branches off in [`helper_main`] before any runtime starts and has a single thread.
//!
//! ```no_run
//! use std::{ffi::CString, os::fd::AsFd, path::Path};
//! use codespace_sandbox::{Command, Features, Launcher, Level, Plan, SpawnError};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let exe = std::env::current_exe()?;
//! let mut plan = Plan::for_root(Path::new("/srv/demo"))?;
//! plan.env.insert("PATH".into(), "/usr/bin:/bin".into());
//! assert_eq!(Features::probe(&exe, Some((plan.uid, plan.gid)))?.level(), Level::Full);
//!
//! // Once per workspace, kept while it is in use.
//! let launcher = Launcher::start(&exe, &plan)?;
//!
//! // Once per command.
//! let (stdin, input) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
//! let (output, stdout) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
//! let spawned = match launcher.spawn(&Command {
//!     argv: &[CString::new("make")?],
//!     env: &[],
//!     cwd: Path::new(""),
//!     stdio: [stdin.as_fd(), stdout.as_fd(), stdout.as_fd()],
//!     terminal: None,
//! }) {
//!     Ok(spawned) => spawned,
//!     Err(SpawnError::Launcher(_)) => return Ok(()), // start another launcher
//!     Err(other) => return Err(other.into()),        // nothing was started
//! };
//! drop((stdin, stdout));
//! // Wait for `spawned.pidfd()` to become readable: the whole tree is gone then, and
//! // `output` has come to its end.
//! let raw_status = spawned.wait_status(); // as wait(2) gives it; None: the tree was killed
//! let ended = spawned.finish()?; // before the workspace is given to somebody else
//! # let _ = (input, output, raw_status, ended.protected);
//! # Ok(())
//! # }
//! ```

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
