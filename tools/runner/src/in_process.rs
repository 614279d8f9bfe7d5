//! The runner that works in the server's own process.

use std::{collections::HashMap, num::NonZeroU16, sync::Arc, time::Duration};

use codespace_router::{BoxFuture, Code, OperationStatus, ProcessId, ToolError, WorkspaceId};

use crate::{
    Applied, Chunk, ExecSpec, FileContent, FileRoot, Found, Launch, PatchJob, ProcessStatus,
    Processes, Runner,
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

    fn home(&self, workspace: &WorkspaceId) -> Result<&Home, ToolError> {
        self.homes
            .get(workspace)
            .ok_or_else(|| ToolError::internal("the runner does not know this workspace"))
    }

    /// The files of a workspace whose root still stands where it was opened. The held root
    /// alone would go on showing a folder that was moved away.
    fn files(&self, workspace: &WorkspaceId) -> Result<&Arc<FileRoot>, ToolError> {
        let files = &self.home(workspace)?.files;
        if files.is_gone() {
            return Err(root_gone(workspace, Code::FileOperationFailed));
        }
        Ok(files)
    }
}

/// Says which workspace it is: a client may use several.
pub(crate) fn root_gone(workspace: &WorkspaceId, code: Code) -> ToolError {
    ToolError::new(
        code,
        format!(
            "the root of workspace {workspace} is gone: it was removed, moved or replaced. Nothing was done; its operator must put it back, or restart the server on a new one"
        ),
    )
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
            let file = self.files(workspace)?.open_file(path)?;
            if file.size() <= INLINE_BYTES {
                file.read()
            } else {
                blocking(move || file.read()).await
            }
        })
    }

    fn find<'a>(&'a self, workspace: &'a WorkspaceId, glob: Option<&'a str>) -> Answer<'a, Found> {
        Box::pin(async move {
            let files = Arc::clone(self.files(workspace)?);
            let glob = glob.map(str::to_owned);
            blocking(move || files.find(glob.as_deref())).await
        })
    }

    fn apply<'a>(&'a self, workspace: &'a WorkspaceId, job: PatchJob) -> Answer<'a, Applied> {
        Box::pin(async move {
            let files = Arc::clone(self.files(workspace)?);
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
    ) -> Answer<'a, ProcessId> {
        Box::pin(async move {
            let home = self.home(workspace)?;
            if home.files.is_gone() {
                return Err(root_gone(workspace, Code::ProcessSpawnFailed));
            }
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

#[cfg(test)]
mod tests {
    use codespace_router::{LeaseOwner, Leases, Profile, Workspace};

    use super::*;
    use crate::{FileLimits, ProcessLimits, RootLeases};

    #[tokio::test]
    async fn a_root_that_was_moved_away_is_named_and_found_again() {
        let place = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (place.path().join("root"), place.path().join("elsewhere"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("a"), "x").unwrap();
        let limits = FileLimits {
            read_bytes: 10,
            find_paths: 10,
            patch_file_bytes: 10,
        };
        let files = Arc::new(FileRoot::open(&root, None, limits, false).unwrap());
        let id = WorkspaceId::new("demo");
        let launch = Launch {
            workspace: id.clone(),
            root: root.clone(),
            env: Vec::new(),
            time_limit: Duration::from_secs(1),
            confinement: None,
        };
        let roots = HashMap::from([(id.clone(), Arc::clone(&files))]);
        let leases = RootLeases::new(Arc::new(roots));
        let workspace = Workspace {
            id: id.clone(),
            profile: Profile::WorkspaceWrite,
            protect: Arc::new([]),
        };
        let processes = Processes::new(ProcessLimits {
            output_bytes: 10,
            processes: 1,
            handles: 1,
            handle_time: Duration::from_secs(1),
        });
        let runner = InProcess::new(
            HashMap::from([(id.clone(), Home { files, launch })]),
            processes,
        );
        let spec = ExecSpec {
            command: vec!["true".to_owned()],
            tty: false,
        };

        std::fs::rename(&root, &elsewhere).unwrap();
        for (error, code) in [
            (
                runner.read(&id, "a").await.unwrap_err(),
                Code::FileOperationFailed,
            ),
            (
                runner.find(&id, None).await.unwrap_err(),
                Code::FileOperationFailed,
            ),
            (
                runner.exec(&id, spec, Box::new(())).await.unwrap_err(),
                Code::ProcessSpawnFailed,
            ),
            (
                leases
                    .try_hold(&workspace, LeaseOwner::Patch)
                    .err()
                    .unwrap(),
                Code::FileOperationFailed,
            ),
            (
                leases
                    .try_hold(&workspace, LeaseOwner::Process)
                    .err()
                    .unwrap(),
                Code::ProcessSpawnFailed,
            ),
        ] {
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains("workspace demo"), "{error}");
        }
        std::fs::rename(&elsewhere, &root).unwrap();
        assert_eq!(runner.read(&id, "a").await.unwrap().content, "x");
        assert!(leases.try_hold(&workspace, LeaseOwner::Patch).is_ok());
    }
}
