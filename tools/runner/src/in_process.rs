//! The runner that works in the server's own process.

use std::{collections::HashMap, num::NonZeroU16, sync::Arc, time::Duration};

use codespace_router::{BoxFuture, Code, OperationStatus, ProcessId, ToolError, WorkspaceId};

use crate::{
    Applied, Chunk, Confinement, ExecSpec, FileContent, FileRoot, Found, Launch, PatchJob,
    ProcessStatus, Processes, Runner, Started, runner::Dispatch,
};

/// A file up to this size is read where the call runs: less than a hop to another thread costs.
const INLINE_BYTES: u64 = 256 * 1024;

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
}

impl InProcess {
    /// A runner over these workspaces.
    #[must_use]
    pub fn new(homes: HashMap<WorkspaceId, Home>, processes: Processes) -> Self {
        Self {
            homes: Arc::new(homes),
            processes,
        }
    }

    /// What keeps the commands of each workspace in, as far as something does.
    pub fn confinements(&self) -> impl Iterator<Item = &Arc<Confinement>> {
        self.homes
            .values()
            .filter_map(|home| home.launch.confinement.as_ref())
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
                file.read()
            } else {
                blocking(move || file.read()).await
            }
        })
    }

    fn find<'a>(&'a self, workspace: &'a WorkspaceId, glob: Option<&'a str>) -> Answer<'a, Found> {
        Box::pin(async move {
            let files = Arc::clone(&self.home(workspace)?.files);
            let glob = glob.map(str::to_owned);
            blocking(move || files.find(glob.as_deref())).await
        })
    }

    fn apply<'a>(&'a self, workspace: &'a WorkspaceId, job: PatchJob) -> Answer<'a, Applied> {
        Box::pin(async move {
            let files = Arc::clone(&self.home(workspace)?.files);
            let applied = blocking(move || files.apply(job)).await?;
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
    ) -> Answer<'a, Started> {
        Box::pin(async move {
            let home = self.home(workspace)?;
            if !home.files.is_there() {
                return Err(ToolError::new(
                    Code::ProcessSpawnFailed,
                    format!(
                        "the root of workspace {workspace} is gone; its operator must put it back. Nothing was run"
                    ),
                ));
            }
            let process = self.processes.exec(&home.launch, spec, keep).await?;
            Ok(Started {
                process,
                dispatch: Dispatch::Confirmed,
            })
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
