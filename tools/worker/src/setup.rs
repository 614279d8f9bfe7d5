//! What a worker is told before it answers calls: workspaces, limits, confinement, logs.
//!
//! It goes over the socket, so that nothing of it is in an argument vector or an
//! environment, which others of the machine may read.

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use codespace_router::WorkspaceId;
use codespace_runner::{
    Confinement, Demand, FileLimits, FileRoot, Held, Home, InProcess, Launch, Plan, Probe,
    ProcessLimits, Processes,
};
use serde::{Deserialize, Serialize};

/// How the worker logs to the stderr it shares with the gateway.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Logs {
    /// A name that the program gives a meaning.
    pub format: String,
    /// Which lines; `None` for the default.
    pub filter: Option<String>,
}

/// A workspace as the gateway knows it.
#[derive(Clone, Debug)]
pub struct WorkerHome {
    /// Its files, which both processes hold.
    pub files: Arc<FileRoot>,
    /// How its commands are started.
    pub launch: Launch,
}

/// Everything a worker needs. Every worker of a gateway gets the same.
#[derive(Debug)]
pub struct Setup {
    pub(crate) homes: Vec<WorkerHome>,
    pub(crate) limits: ProcessLimits,
    text: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Words {
    logs: Logs,
    output_bytes: usize,
    processes: usize,
    handles: usize,
    handle_time: Duration,
    homes: Vec<HomeWords>,
}

// Paths are `OsString`s here: serde cannot carry a `PathBuf` that is not UTF-8.
#[derive(Serialize, Deserialize)]
struct HomeWords {
    workspace: String,
    path: OsString,
    journals: bool,
    lock: bool,
    read_bytes: usize,
    find_paths: usize,
    patch_file_bytes: u64,
    durable: bool,
    root: OsString,
    env: Vec<(OsString, OsString)>,
    time_limit: Duration,
    confinement: Option<ConfinementWords>,
}

#[derive(Serialize, Deserialize)]
struct ConfinementWords {
    run_as: Option<(u32, u32)>,
    demand: Demand,
    plan: Plan,
}

impl Setup {
    /// A setup for these workspaces.
    ///
    /// # Errors
    /// A path in a confinement plan is not UTF-8.
    pub fn new(homes: Vec<WorkerHome>, limits: ProcessLimits, logs: Logs) -> io::Result<Self> {
        let words = Words {
            logs,
            output_bytes: limits.output_bytes,
            processes: limits.processes,
            handles: limits.handles,
            handle_time: limits.handle_time,
            homes: homes.iter().map(HomeWords::new).collect(),
        };
        Ok(Self {
            text: serde_json::to_vec(&words)?,
            homes,
            limits,
        })
    }

    /// The text, and the descriptors that belong to it.
    pub(crate) fn parts(&self) -> (&[u8], Vec<BorrowedFd<'_>>) {
        let descriptors = self.homes.iter().flat_map(|home| {
            let held = home.files.held();
            [Some(held.root), held.journals, held.lock]
                .into_iter()
                .flatten()
        });
        (&self.text, descriptors.collect())
    }
}

impl HomeWords {
    fn new(home: &WorkerHome) -> Self {
        let held = home.files.held();
        let limits = home.files.limits();
        let launch = &home.launch;
        let confinement = launch.confinement.as_deref().map(|confinement| {
            let (probe, demand, plan) = confinement.parts();
            ConfinementWords {
                run_as: probe.run_as(),
                demand,
                plan: plan.clone(),
            }
        });
        Self {
            workspace: launch.workspace.as_str().to_owned(),
            path: home.files.path().into(),
            journals: held.journals.is_some(),
            lock: held.lock.is_some(),
            read_bytes: limits.read_bytes,
            find_paths: limits.find_paths,
            patch_file_bytes: limits.patch_file_bytes,
            durable: home.files.is_durable(),
            root: launch.root.clone().into(),
            env: launch.env.clone(),
            time_limit: launch.time_limit,
            confinement,
        }
    }
}

/// The worker's side: what was said becomes a runner.
pub(crate) struct Told(Words);

impl Told {
    pub(crate) fn parse(text: &[u8]) -> io::Result<Self> {
        Ok(Self(serde_json::from_slice(text)?))
    }

    pub(crate) fn logs(&self) -> &Logs {
        &self.0.logs
    }

    /// Makes the runner. `exe` is the sandbox's helper program.
    pub(crate) fn runner(self, descriptors: Vec<OwnedFd>, exe: &Path) -> io::Result<InProcess> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(io::ErrorKind::UnexpectedEof);
        let mut probes = HashMap::new();
        let mut homes = HashMap::new();
        for words in self.0.homes {
            let held = Held {
                root: next()?,
                journals: words.journals.then(&mut next).transpose()?,
                lock: words.lock.then(&mut next).transpose()?,
            };
            let limits = FileLimits {
                read_bytes: words.read_bytes,
                find_paths: words.find_paths,
                patch_file_bytes: words.patch_file_bytes,
            };
            let files = FileRoot::from_held(held, words.path.as_ref(), limits, words.durable)?;
            let confinement = words.confinement.map(|confinement| {
                let probe = probes
                    .entry(confinement.run_as)
                    .or_insert_with(|| Arc::new(Probe::new(exe.to_owned(), confinement.run_as)));
                let probe = Arc::clone(probe);
                Arc::new(Confinement::new(
                    probe,
                    confinement.demand,
                    confinement.plan,
                ))
            });
            let workspace = WorkspaceId::new(&words.workspace);
            let launch = Launch {
                workspace: workspace.clone(),
                root: words.root.into(),
                env: words.env,
                time_limit: words.time_limit,
                confinement,
            };
            let files = Arc::new(files);
            homes.insert(workspace, Home { files, launch });
        }
        let processes = Processes::new(ProcessLimits {
            output_bytes: self.0.output_bytes,
            processes: self.0.processes,
            handles: self.0.handles,
            handle_time: self.0.handle_time,
        });
        Ok(InProcess::new(homes, processes))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn limits() -> ProcessLimits {
        ProcessLimits {
            output_bytes: 1,
            processes: 2,
            handles: 3,
            handle_time: Duration::from_secs(4),
        }
    }

    #[test]
    fn a_worker_holds_the_very_root_that_the_gateway_holds() {
        let place = tempfile::tempdir().unwrap();
        let (root, journals) = (place.path().join("root"), place.path().join("journals"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("f"), "old place").unwrap();
        let caps = FileLimits {
            read_bytes: 10,
            find_paths: 10,
            patch_file_bytes: 10,
        };
        let files = Arc::new(FileRoot::open(&root, Some(&journals), caps, true).unwrap());
        let launch = Launch {
            workspace: WorkspaceId::new("w"),
            root: root.clone(),
            env: vec![("A".into(), "b".into())],
            time_limit: Duration::from_secs(9),
            confinement: None,
        };
        let home = WorkerHome {
            files: Arc::clone(&files),
            launch,
        };
        let setup = Setup::new(vec![home], limits(), Logs::default()).unwrap();
        let (text, descriptors) = setup.parts();
        let descriptors: Vec<OwnedFd> = descriptors
            .iter()
            .map(|fd| fd.as_fd().try_clone_to_owned().unwrap())
            .collect();
        // A folder put in the root's place meanwhile is not taken for it.
        std::fs::rename(&root, place.path().join("away")).unwrap();
        std::fs::create_dir(&root).unwrap();
        {
            let told = Told::parse(text).unwrap();
            assert_eq!(told.0.homes[0].time_limit, Duration::from_secs(9));
            let held = Held {
                root: descriptors[0].try_clone().unwrap(),
                journals: None,
                lock: Some(descriptors[2].try_clone().unwrap()),
            };
            let theirs = FileRoot::from_held(held, &root, caps, true).unwrap();
            assert!(theirs.is_gone());
            std::fs::remove_dir(&root).unwrap();
            std::fs::rename(place.path().join("away"), &root).unwrap();
            assert!(theirs.is_there());
        }
        let taker = files.held().lock.unwrap().try_clone_to_owned().unwrap();
        flock(&taker, FlockOperation::NonBlockingLockExclusive).unwrap();
        // The lock lives on in the worker's copy of the descriptor when its taker is killed
        // (which unlocks nothing).
        drop((taker, setup, files));
        let other = FileRoot::open(&root, None, caps, false).unwrap();
        assert!(other.try_lock().is_err());
        drop(descriptors);
        assert!(other.try_lock().is_ok());
    }

    #[test]
    fn a_text_that_is_no_setup_is_refused() {
        assert!(Told::parse(b"{}").is_err());
        let empty = Setup::new(Vec::new(), limits(), Logs::default()).unwrap();
        let told = Told::parse(empty.parts().0).unwrap();
        assert_eq!(told.0.processes, 2);
    }
}
