//! The composition root: a checked config becomes a running stack.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use codespace_router::{Ledger, Profile, Resolve, ToolRouter, Workspace, WorkspaceId};
use codespace_runner::{
    Confinement, FileLimits, FileRoot, Home, InProcess, Launch, ProcessLimits, Processes,
    RootLeases, Runner,
};
use codespace_store::{Durability, OpenFault, Store, StoreOptions};
use codespace_tools::{Facts, FactsToCome};
use codespace_worker::{Remote, Setup, WorkerHome};
use futures_util::FutureExt;
use tokio_util::task::TaskTracker;

use crate::{
    catalogue,
    config::{Config, RunnerKind, StorePlace, state_folder},
    confine,
    facts::{self, Confined},
    handler::Handler,
    resolve::Directory,
    settle,
    stack::{self, Classes},
    telemetry::{self, LogFormat},
};

/// How long calls in flight may take at shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// Everything that runs.
pub struct App {
    /// Serves MCP.
    pub handler: Handler,
    /// The record of operations; readiness asks it.
    pub store: Store,
    /// Where operations are recorded, for a person.
    pub store_note: String,
    /// What is enforced.
    pub facts: FactsToCome,
    confinements: Vec<Arc<Confinement>>,
    runner: Arc<dyn Runner>,
    worker: Option<Arc<Remote>>,
    in_flight: TaskTracker,
    detached: TaskTracker,
}

impl App {
    /// Opens the store and the roots, settles what a crash left, and builds the stack.
    ///
    /// # Errors
    /// What stands in the way of a start, for the operator.
    pub async fn build(
        config: &Config,
        transports: Vec<&'static str>,
        log_format: LogFormat,
    ) -> Result<Self> {
        let (store, journals, store_note) = open_store(config)?;
        let mut homes = HashMap::new();
        let mut roots = HashMap::new();
        let mut workspaces = HashMap::new();
        let confined = confine::all(config)?;
        for (workspace, confinement) in &confined {
            let journal = journals.join(workspace.id.as_str());
            let limits = FileLimits {
                read_bytes: config.limits.read_bytes,
                find_paths: config.limits.find_paths,
                patch_file_bytes: config.limits.patch_file_bytes,
            };
            let writable = workspace.profile == Profile::WorkspaceWrite;
            let files = FileRoot::open(
                &workspace.root,
                writable.then_some(journal.as_path()),
                limits,
                config.full_durability,
            )
            .with_context(|| {
                format!(
                    "workspace {}: its root or its journal cannot be opened",
                    workspace.id
                )
            })?;
            let files = Arc::new(files);
            let launch = Launch {
                workspace: workspace.id.clone(),
                root: workspace.root.clone(),
                env: confine::environment(workspace, confinement.is_some()),
                time_limit: workspace.process_time,
                confinement: confinement.clone(),
            };
            roots.insert(workspace.id.clone(), Arc::clone(&files));
            homes.insert(workspace.id.clone(), Home { files, launch });
            let facts = Workspace {
                id: workspace.id.clone(),
                profile: workspace.profile,
                protect: Arc::clone(&workspace.protect),
            };
            workspaces.insert(workspace.id.clone(), Arc::new(facts));
        }
        settle::all(&store, &roots).await?;

        let (runner, worker) = runner(config, homes, log_format).await?;
        let ledger: Arc<dyn Ledger> = Arc::new(store.clone());
        let resolve: Arc<dyn Resolve> = Arc::new(Directory {
            workspaces,
            runner: Arc::clone(&runner),
            ledger: Arc::clone(&ledger),
        });
        let detached = TaskTracker::new();
        let classes = Classes {
            resolve,
            ledger: Arc::clone(&ledger),
            leases: Arc::new(RootLeases::new(Arc::new(roots))),
            detached: detached.clone(),
        };
        let confinements = confined
            .iter()
            .filter_map(|(_, confinement)| confinement.clone())
            .collect();
        let facts = facts_to_come(confined, transports);
        let router = ToolRouter::new(catalogue::tools(&classes, &runner, &ledger, facts.clone()))?;
        let in_flight = TaskTracker::new();
        let handler = Handler::new(stack::calls(router.clone()), &router, in_flight.clone());
        Ok(Self {
            handler,
            store,
            store_note,
            facts,
            confinements,
            runner,
            worker,
            in_flight,
            detached,
        })
    }

    /// Waits for calls in flight (bounded), ends every process, closes the store.
    pub async fn shut_down(&self) {
        self.in_flight.close();
        self.detached.close();
        // Ending the processes is what lets their long polls answer.
        let work = async {
            tokio::join!(
                self.in_flight.wait(),
                self.detached.wait(),
                self.runner.shut_down()
            )
        };
        if tokio::time::timeout(GRACE, work).await.is_err() {
            tracing::warn!(
                "calls were still running after the grace period; recovery settles them at the next start"
            );
        }
        // A call may have started a process after the first sweep.
        self.runner.shut_down().await;
        if let Some(worker) = &self.worker {
            worker.close().await;
        }
        let confinements = self.confinements.clone();
        let ended = tokio::task::spawn_blocking(move || {
            confinements
                .iter()
                .for_each(|confinement| confinement.shut_down());
        });
        let _ = ended.await;
        self.store.close().await;
    }
}

type Chosen = (Arc<dyn Runner>, Option<Arc<Remote>>);

/// The runner the config asks for, and the worker behind it if there is one.
async fn runner(
    config: &Config,
    homes: HashMap<WorkspaceId, Home>,
    log_format: LogFormat,
) -> Result<Chosen> {
    let limits = ProcessLimits {
        output_bytes: config.limits.output_bytes,
        processes: config.limits.processes,
        handles: config.limits.handles,
        handle_time: config.limits.handle_time,
    };
    match config.runner {
        RunnerKind::InProcess => {
            let runner = InProcess::new(homes, Processes::new(limits));
            Ok((Arc::new(runner), None))
        }
        RunnerKind::Uds => {
            let homes = homes
                .into_values()
                .map(|Home { files, launch }| WorkerHome { files, launch })
                .collect();
            let setup = Setup::new(homes, limits, telemetry::worker_logs(log_format))
                .context("runner.kind = \"uds\" needs paths in UTF-8")?;
            let worker = Remote::start(confine::OWN_PROGRAM.into(), setup)
                .await
                .context("the worker (runner.kind = \"uds\") cannot be started")?;
            let worker = Arc::new(worker);
            Ok((Arc::clone(&worker) as Arc<dyn Runner>, Some(worker)))
        }
    }
}

/// Starts to find out what is enforced, beside everything else.
fn facts_to_come(confined: Vec<Confined>, transports: Vec<&'static str>) -> FactsToCome {
    let gathered = tokio::task::spawn_blocking(move || facts::gather(&confined, transports));
    async move {
        match gathered.await {
            Ok(facts) => Arc::new(facts),
            // Only at the end of the runtime, when nobody asks any more.
            Err(_) => Arc::new(Facts::default()),
        }
    }
    .boxed()
    .shared()
}

/// The store, where journals lie beside it, and a note for the person who starts it.
fn open_store(config: &Config) -> Result<(Store, PathBuf, String)> {
    let durability = if config.full_durability {
        Durability::Full
    } else {
        Durability::Process
    };
    let options = StoreOptions {
        durability,
        keep: config.keep,
    };
    let in_memory = |note: &str| -> Result<(Store, PathBuf, String)> {
        // Shared by every server without a store: whoever holds a root's lock settles its journals.
        Ok((
            Store::in_memory(options)?,
            state_folder().join("journals"),
            note.to_owned(),
        ))
    };
    match &config.store {
        StorePlace::Memory => {
            in_memory("in memory, as configured: operations are forgotten at the end")
        }
        StorePlace::Given(path) => {
            let store = Store::open(path, options)
                .with_context(|| format!("store.path {}", path.display()))?;
            Ok((store, beside(path), path.display().to_string()))
        }
        StorePlace::Derived(path) => match Store::open(path, options) {
            Ok(store) => Ok((store, beside(path), path.display().to_string())),
            Err(OpenFault::InUse { .. }) => in_memory(
                "IN MEMORY: another server on these folders has the store open; operations are forgotten at the end",
            ),
            Err(fault) => Err(fault).with_context(|| format!("store {}", path.display())),
        },
    }
}

fn beside(store: &std::path::Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".journals");
    name.into()
}
