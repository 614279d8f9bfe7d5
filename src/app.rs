//! The composition root: a checked config becomes a running stack.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use codespace_router::{Ledger, Profile, Resolve, ToolRouter, Workspace};
use codespace_runner::{
    Confinement, FileLimits, FileRoot, Home, InProcess, Launch, ProcessLimits, Processes,
    RootLeases, Runner,
};
use codespace_store::{Durability, OpenFault, Store, StoreOptions};
use codespace_tools::{Facts, FactsToCome};
use futures_util::FutureExt;
use tokio_util::task::TaskTracker;

use crate::{
    catalogue,
    config::{Config, StorePlace, state_folder},
    confine,
    facts::{self, Confined},
    handler::Handler,
    recovery::settle,
    resolve::Directory,
    stack::{self, Classes},
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
    in_flight: TaskTracker,
    detached: TaskTracker,
}

impl App {
    /// Opens the store and the roots, settles what a crash left, and builds the stack.
    ///
    /// # Errors
    /// What stands in the way of a start, for the operator.
    pub async fn build(config: &Config, transports: Vec<&'static str>) -> Result<Self> {
        let (store, store_note) = open_store(config)?;
        let journals = state_folder().join("journals");
        let mut homes = HashMap::new();
        let mut roots = HashMap::new();
        let mut workspaces = HashMap::new();
        let confined = confine::all(config)?;
        for (workspace, confinement) in &confined {
            let journal = FileRoot::journal_folder(&journals, &workspace.root);
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
            let files = Arc::new(files.serving(workspace.id.as_str(), store.id()));
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
        settle(&store, &roots, &journals, config.keep).await?;

        let processes = Processes::new(ProcessLimits {
            output_bytes: config.limits.output_bytes,
            processes: config.limits.processes,
            handles: config.limits.handles,
            handle_time: config.limits.handle_time,
        });
        let runner: Arc<dyn Runner> = Arc::new(InProcess::new(homes, processes));
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

/// Opens a store, giving a server that was killed just now a moment to let go of it: a child
/// it was about to start holds its descriptors until that child is another program.
fn open_patiently(path: &Path, options: StoreOptions) -> Result<Store, OpenFault> {
    for _ in 0..10 {
        match Store::open(path, options) {
            Err(OpenFault::InUse { .. }) => std::thread::sleep(Duration::from_millis(50)),
            answer => return answer,
        }
    }
    Store::open(path, options)
}

/// The store, and a note for the person who starts it.
fn open_store(config: &Config) -> Result<(Store, String)> {
    let durability = if config.full_durability {
        Durability::Full
    } else {
        Durability::Process
    };
    let options = StoreOptions {
        durability,
        keep: config.keep,
    };
    let in_memory = |note: &str| -> Result<(Store, String)> {
        Ok((Store::in_memory(options)?, note.to_owned()))
    };
    match &config.store {
        StorePlace::Memory => {
            in_memory("in memory, as configured: operations are forgotten at the end")
        }
        StorePlace::Given(path) => {
            let store = open_patiently(path, options)
                .with_context(|| format!("store.path {}", path.display()))?;
            Ok((store, path.display().to_string()))
        }
        StorePlace::Derived(path) => match open_patiently(path, options) {
            Ok(store) => Ok((store, path.display().to_string())),
            Err(OpenFault::InUse { .. }) => in_memory(
                "IN MEMORY: another server on these folders has the store open; operations are forgotten at the end",
            ),
            Err(fault) => Err(fault).with_context(|| format!("store {}", path.display())),
        },
    }
}
