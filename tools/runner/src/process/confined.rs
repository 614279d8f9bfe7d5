//! Commands behind the sandbox: a workspace's launcher, and a tree that the launcher started.
//!
//! What a machine can enforce is found out by trying, once, when it is first asked for. What
//! a workspace does with that is a [`Verdict`]; there is no falling back to less while
//! commands run.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use codespace_sandbox::{
    Command, Ended, Features, Isolation, Launcher, Level, LimitHit as Hit, Limits, Plan,
    SpawnError, Spawned,
};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::tree::Status;
use crate::LimitHit;

/// Whether commands run with less than the whole sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// They do not run at all.
    Required,
    /// They run with what there is.
    Preferred,
}

/// What is in force for the commands of a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it.
    Full,
    /// Landlock and system call filter only.
    Partial,
    /// Commands run without.
    None,
    /// Commands are refused; why, and what to do about it.
    Refused(String),
}

/// What this machine can do for commands that run as one user, tried once.
#[derive(Debug)]
pub struct Probe {
    exe: PathBuf,
    run_as: Option<(u32, u32)>,
    found: OnceLock<Result<Features, String>>,
}

impl Probe {
    /// A probe by this helper program, for commands of `run_as` or of the server's own user.
    #[must_use]
    pub fn new(exe: PathBuf, run_as: Option<(u32, u32)>) -> Self {
        Self {
            exe,
            run_as,
            found: OnceLock::new(),
        }
    }

    /// Whose commands it is about, when not the server's own user's.
    #[must_use]
    pub fn run_as(&self) -> Option<(u32, u32)> {
        self.run_as
    }

    /// What was found. Blocks for some 20 ms the first time.
    ///
    /// # Errors
    /// Why the helper did not run.
    pub fn features(&self) -> Result<&Features, &str> {
        self.found
            .get_or_init(|| {
                Features::probe(&self.exe, self.run_as).map_err(|error| error.to_string())
            })
            .as_ref()
            .map_err(String::as_str)
    }
}

/// How a workspace's commands are confined, and its launcher while there is one.
pub struct Confinement {
    probe: Arc<Probe>,
    demand: Demand,
    plan: Plan,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    launcher: Option<Launcher>,
    /// HOME and TMPDIR when there is no namespace to have them in.
    scratch: Option<TempDir>,
}

impl fmt::Debug for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confinement")
            .field("demand", &self.demand)
            .finish_non_exhaustive()
    }
}

impl Confinement {
    /// A confinement by this plan, whose isolation is decided by what the probe finds.
    #[must_use]
    pub fn new(probe: Arc<Probe>, demand: Demand, plan: Plan) -> Self {
        Self {
            probe,
            demand,
            plan,
            running: Mutex::default(),
        }
    }

    /// What it was made of.
    #[must_use]
    pub fn parts(&self) -> (&Probe, Demand, &Plan) {
        (&self.probe, self.demand, &self.plan)
    }

    /// What the machine can do. Blocks the first time.
    ///
    /// # Errors
    /// Why it could not be found out.
    pub fn features(&self) -> Result<&Features, &str> {
        self.probe.features()
    }

    /// What is in force. Blocks the first time.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let features = match self.features() {
            Ok(features) => features,
            Err(why) => return Verdict::Refused(format!("the sandbox cannot be probed: {why}")),
        };
        match (features.level(), self.demand) {
            (Level::Full, _) => Verdict::Full,
            (Level::Partial, Demand::Preferred) => Verdict::Partial,
            (Level::None, Demand::Preferred) => Verdict::None,
            (_, Demand::Required) => {
                let lacks: Vec<String> = features
                    .missing
                    .iter()
                    .map(|missing| {
                        format!("{}: {}. {}", missing.feature, missing.why, missing.remedy)
                    })
                    .collect();
                Verdict::Refused(format!(
                    "this machine cannot give the whole sandbox ({}); or the operator sets sandbox.mode = \"preferred\"",
                    lacks.join(" ")
                ))
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command through the launcher, which is started first if there is none.
    /// Blocks for about as long as starting a program takes.
    pub(super) fn spawn(&self, command: &Command<'_>, full: bool) -> Result<Confined, SpawnError> {
        let launcher = self.launcher(full).map_err(SpawnError::Launcher)?;
        match launcher.spawn(command) {
            Ok(spawned) => Confined::new(spawned).map_err(SpawnError::Launcher),
            Err(error) => {
                // A launcher that is lost has ended with everything it started.
                if matches!(error, SpawnError::Launcher(_) | SpawnError::Root) {
                    self.running().launcher = None;
                }
                Err(error)
            }
        }
    }

    fn launcher(&self, full: bool) -> io::Result<Launcher> {
        let mut running = self.running();
        if let Some(launcher) = &running.launcher {
            return Ok(launcher.clone());
        }
        let mut plan = self.plan.clone();
        if !full {
            plan.isolation = Isolation::Partial;
            if running.scratch.is_none() {
                // Not in the server's own folders, which another user cannot walk through.
                let scratch = tempfile::Builder::new().prefix("codespace-").tempdir()?;
                std::os::unix::fs::chown(scratch.path(), Some(plan.uid), Some(plan.gid))?;
                running.scratch = Some(scratch);
            }
            plan.scratch = running
                .scratch
                .as_ref()
                .map(|scratch| scratch.path().to_owned());
        }
        let launcher = Launcher::start(&self.probe.exe, &plan)?;
        Ok(running.launcher.insert(launcher).clone())
    }

    /// Ends the launcher, and every tree with it. Blocks.
    pub fn shut_down(&self) {
        let running = std::mem::take(&mut *self.running());
        // The launcher first, in whose trees something may still write.
        drop(running.launcher);
        drop(running.scratch);
    }
}

/// A tree that the launcher started. Dropping it ends it.
pub(super) struct Confined {
    spawned: Arc<Spawned>,
    gone: Arc<OwnedFd>,
    status: OnceLock<Status>,
}

impl Confined {
    fn new(spawned: Spawned) -> io::Result<Self> {
        let gone = spawned.pidfd().try_clone_to_owned()?;
        Ok(Self {
            spawned: Arc::new(spawned),
            gone: Arc::new(gone),
            status: OnceLock::new(),
        })
    }

    /// Readable when the whole tree is gone.
    pub(super) fn pidfd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.gone)
    }

    /// The status of the command's own process, if it has ended and was heard of.
    pub(super) fn status(&self) -> Option<Status> {
        if self.status.get().is_none()
            && let Some(raw) = self.spawned.wait_status()
        {
            let _ = self.status.set(Status::from_raw(raw));
        }
        self.status.get().copied()
    }

    pub(super) fn terminate(&self) {
        self.spawned.terminate();
    }

    pub(super) fn kill(&self) {
        self.spawned.kill();
    }

    /// What the launcher found when the tree was gone. To be asked before the workspace
    /// goes to somebody else.
    pub(super) async fn finish(&self) -> Ended {
        let spawned = Arc::clone(&self.spawned);
        let found = tokio::task::spawn_blocking(move || spawned.finish()).await;
        match found {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => {
                tracing::warn!(%error, "what a command left in protected places is not known");
                Ended::default()
            }
            Err(_) => Ended::default(),
        }
    }
}

impl From<Hit> for LimitHit {
    fn from(hit: Hit) -> Self {
        match hit {
            Hit::Tasks => Self::Tasks,
            Hit::Memory => Self::Memory,
        }
    }
}

/// The plan's start: what every workspace has, before the operator's own wishes.
///
/// # Errors
/// The root cannot be looked at.
pub fn plan(root: &Path, tasks: u32, memory_bytes: u64, tmp_bytes: u64) -> io::Result<Plan> {
    let mut plan = Plan::for_root(root)?;
    plan.limits = Limits {
        tasks,
        memory_bytes,
        ..Limits::default()
    };
    plan.tmp_bytes = tmp_bytes;
    Ok(plan)
}
