//! The runner that works in the server's own process.

use std::{
    collections::HashMap,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use codespace_router::{BoxFuture, Code, OperationStatus, ProcessId, ToolError, WorkspaceId};
use tokio::sync::Semaphore;

use crate::{
    Applied, Chunk, ExecSpec, FileContent, FileRoot, Found, Launch, PatchJob, ProcessStatus,
    Processes, Runner,
};

/// A file up to this size is read where the call runs: less than a hop to another thread costs.
const INLINE_BYTES: u64 = 256 * 1024;
/// And so is a patch of so few files that are no larger than that together.
const INLINE_FILES: usize = 4;

/// Files above this size are read a few at a time, so that they leave threads for the rest.
const HEAVY_BYTES: u64 = 16 << 20;
const HEAVY_AT_ONCE: usize = 2;

/// Tells work on another thread that nobody waits for it any more.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A workspace as the runner knows it.
#[derive(Clone, Debug)]
pub struct Home {
    /// Its files.
    pub files: Arc<FileRoot>,
    /// How its commands are started.
    pub launch: Launch,
}

/// See the [module docs](self).
#[derive(Clone, Debug)]
pub struct InProcess {
    homes: Arc<HashMap<WorkspaceId, Home>>,
    processes: Processes,
    heavy: Arc<Semaphore>,
}

impl InProcess {
    /// A runner over these workspaces.
    #[must_use]
    pub fn new(homes: HashMap<WorkspaceId, Home>, processes: Processes) -> Self {
        Self {
            homes: Arc::new(homes),
            processes,
            heavy: Arc::new(Semaphore::new(HEAVY_AT_ONCE)),
        }
    }

    fn home(&self, workspace: &WorkspaceId) -> Result<&Home, ToolError> {
        self.homes
            .get(workspace)
            .ok_or_else(|| ToolError::internal("the runner does not know this workspace"))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(ToolError::internal)?
}

type Answer<'a, T> = BoxFuture<'a, Result<T, ToolError>>;

impl Runner for InProcess {
    fn read<'a>(&'a self, workspace: &'a WorkspaceId, path: &'a str) -> Answer<'a, FileContent> {
        Box::pin(async move {
            let file = self.home(workspace)?.files.open_file(path)?;
            if file.size() <= INLINE_BYTES {
                return file.read();
            }
            let place = if file.size() > HEAVY_BYTES {
                let place = Arc::clone(&self.heavy).acquire_owned().await;
                Some(place.map_err(ToolError::internal)?)
            } else {
                None
            };
            // A drop here stops the reading at its next block.
            let stop = StopOnDrop::default();
            let stopped = Arc::clone(&stop.0);
            blocking(move || {
                let _place = place;
                file.read_while(&stopped)
            })
            .await
        })
    }

    fn find<'a>(&'a self, workspace: &'a WorkspaceId, glob: Option<&'a str>) -> Answer<'a, Found> {
        Box::pin(async move {
            let files = Arc::clone(&self.home(workspace)?.files);
            let glob = glob.map(str::to_owned);
            // A drop here stops the walk at its next entry.
            let stop = StopOnDrop::default();
            let stopped = Arc::clone(&stop.0);
            blocking(move || files.find_while(glob.as_deref(), &stopped)).await
        })
    }

    fn apply<'a>(&'a self, workspace: &'a WorkspaceId, job: PatchJob) -> Answer<'a, Applied> {
        Box::pin(async move {
            let files = Arc::clone(&self.home(workspace)?.files);
            let applied = if files.is_light(&job.patch, INLINE_FILES, INLINE_BYTES) {
                files.apply(job)?
            } else {
                blocking(move || files.apply(job)).await?
            };
            if applied.status == OperationStatus::Applied {
                for change in &applied.changes {
                    metrics::counter!("codespace_patch_files_total", "kind" => change.kind.as_str()).increment(1);
                }
            }
            Ok(applied)
        })
    }

    fn exec<'a>(
        &'a self,
        workspace: &'a WorkspaceId,
        spec: ExecSpec,
        keep: Box<dyn Send + Sync>,
    ) -> Answer<'a, ProcessId> {
        Box::pin(async move {
            let home = self.home(workspace)?;
            home.files.stands().map_err(|fault| {
                ToolError::new(
                    Code::ProcessSpawnFailed,
                    format!(
                        "workspace {workspace}: {fault}; its operator must see to the folder. Nothing was run"
                    ),
                )
            })?;
            self.processes.exec(&home.launch, spec, keep).await
        })
    }

    fn workspace_of(&self, process: &ProcessId) -> Option<WorkspaceId> {
        self.processes.workspace_of(process)
    }

    fn output<'a>(
        &'a self,
        process: &'a ProcessId,
        cursor: u64,
        wait: Duration,
    ) -> Answer<'a, Chunk> {
        Box::pin(self.processes.output(process, cursor, wait))
    }

    fn write_stdin<'a>(
        &'a self,
        process: &'a ProcessId,
        data: &'a [u8],
        close: bool,
    ) -> Answer<'a, usize> {
        Box::pin(self.processes.write_stdin(process, data, close))
    }

    fn resize<'a>(
        &'a self,
        process: &'a ProcessId,
        rows: NonZeroU16,
        cols: NonZeroU16,
    ) -> Answer<'a, ()> {
        Box::pin(self.processes.resize(process, rows, cols))
    }

    fn status<'a>(&'a self, process: &'a ProcessId, wait: Duration) -> Answer<'a, ProcessStatus> {
        Box::pin(self.processes.status(process, wait))
    }

    fn terminate<'a>(&'a self, process: &'a ProcessId) -> Answer<'a, ()> {
        Box::pin(self.processes.terminate(process))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.processes.shut_down())
    }
}
