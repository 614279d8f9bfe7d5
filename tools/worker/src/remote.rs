//! The runner whose work is done by a worker.
//!
//! What a loss means for a call depends on what it may have done. One that only looks is
//! made once more, of the next worker. One that the worker never saw is made there too. A
//! patch is told what its journal and the files show; a command that may have been started
//! is `unknown`; a process of a lost worker is gone.

use std::{
    collections::HashMap,
    io,
    num::NonZeroU16,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use codespace_router::{BoxFuture, Code, ProcessId, Subject, ToolError, WorkspaceId};
use codespace_runner::{
    Applied, Chunk, Dispatch, ExecSpec, FileContent, FileRoot, Found, PatchJob, ProcessStatus,
    Runner, Started,
};
use tonic::{Response, Status};

use crate::{
    connection::{Client, Connection, Lost},
    convert::{Answer, id, millis},
    handles::{self, Handles},
    setup::Setup,
    undo::{self, RemoteUndo},
    wire,
};

/// See the [module docs](self). Needs a tokio runtime with I/O and time.
pub struct Remote(Arc<Shared>);

struct Shared {
    exe: PathBuf,
    setup: Arc<Setup>,
    roots: HashMap<WorkspaceId, Arc<FileRoot>>,
    handles: Arc<Handles>,
    latest: Mutex<Option<Arc<Connection>>>,
    /// Held while a worker starts; counts them.
    starts: Arc<tokio::sync::Mutex<u64>>,
    closing: AtomicBool,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Starts the first worker. `exe` is a program whose `worker` command is
    /// [`worker_main`](crate::worker_main).
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub async fn start(exe: PathBuf, setup: Setup) -> io::Result<Self> {
        let roots = setup.homes.iter().map(|home| {
            let workspace = home.launch.workspace.clone();
            (workspace, Arc::clone(&home.files))
        });
        let limits = &setup.limits;
        let shared = Arc::new(Shared {
            exe,
            roots: roots.collect(),
            handles: Arc::new(Handles::new(limits.handles, limits.handle_time)),
            latest: Mutex::new(None),
            starts: Arc::default(),
            closing: AtomicBool::new(false),
            setup: Arc::new(setup),
        });
        Shared::connection(&shared).await?;
        Ok(Self(shared))
    }

    /// Ends the worker, after [`Runner::shut_down`] and when no call is in flight.
    pub async fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        let starting = self.0.starts.lock().await;
        let latest = self.0.latest().clone();
        if let Some(connection) = latest {
            connection.close().await;
        }
        drop(starting);
    }

    async fn connection(&self) -> io::Result<Arc<Connection>> {
        Shared::connection(&self.0).await
    }

    fn root(&self, workspace: &WorkspaceId) -> Result<Arc<FileRoot>, ToolError> {
        let root = self.0.roots.get(workspace).cloned();
        root.ok_or_else(|| ToolError::internal("the runner does not know this workspace"))
    }

    /// A call without an effect: of the next worker too, if the first is lost.
    async fn look<A: Answer, F>(&self, call: impl Fn(Client) -> F) -> Result<A::Ok, ToolError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        for _ in 0..2 {
            let connection = self.connection().await.map_err(no_worker)?;
            if let Ok(answer) = connection.call(&call).await {
                return answer;
            }
        }
        Err(ToolError::new(
            Code::FileOperationFailed,
            "the worker that was to do this was lost, and so was the next one; nothing was changed. Its operator finds the reason in the log",
        ))
    }

    /// A call to the worker that has this process.
    async fn drive<A: Answer, F>(
        &self,
        process: &ProcessId,
        call: impl FnOnce(Client) -> F,
    ) -> Result<A::Ok, ToolError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let latest = self.0.latest().clone();
        let Some(connection) = latest else {
            return Err(Subject::Process(process.as_str()).not_found());
        };
        let known = self.0.handles.worker_of(process);
        if matches!(known, Ok(worker) if worker == connection.number())
            && let Ok(answer) = connection.call(call).await
        {
            return answer;
        }
        // Whoever is told of a loss finds the workspace free.
        if !connection.is_up() {
            connection.ended().await;
        }
        Err(known.err().unwrap_or_else(handles::lost))
    }
}

impl Shared {
    // One assignment or one look at a time.
    fn latest(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> Option<Arc<Connection>> {
        self.latest()
            .clone()
            .filter(|connection| connection.is_up())
    }

    /// The worker, or a new one when it was lost and nothing of it is left.
    async fn connection(this: &Arc<Self>) -> io::Result<Arc<Connection>> {
        if let Some(connection) = this.up() {
            return Ok(connection);
        }
        let mut starts = Arc::clone(&this.starts).lock_owned().await;
        if let Some(connection) = this.up() {
            return Ok(connection);
        }
        let this = Arc::clone(this);
        // In a task of its own: a start is not left halfway by a caller that goes.
        let started = tokio::spawn(async move {
            let last = this.latest().clone();
            if let Some(last) = last {
                last.ended().await;
            }
            if this.closing.load(Ordering::Acquire) {
                return Err(io::Error::other("the server is shutting down"));
            }
            let mut start = async || {
                *starts += 1;
                Connection::start(&this.exe, &this.setup, &this.handles, *starts).await
            };
            let connection = match start().await {
                Ok(connection) => connection,
                // It may have been killed as it started, like the one before.
                Err(error) => {
                    tracing::warn!(%error, "a worker did not start; another is tried");
                    start().await?
                }
            };
            *this.latest() = Some(Arc::clone(&connection));
            Ok(connection)
        });
        started.await?
    }
}

fn no_worker(cause: io::Error) -> ToolError {
    ToolError::new(
        Code::FileOperationFailed,
        "the worker that reads and writes files cannot be started; nothing was done. Its operator finds the reason in the log; repeat the call later",
    )
    .with_source(cause)
}

fn not_started(cause: impl Into<codespace_router::BoxError>) -> ToolError {
    ToolError::new(
        Code::ProcessSpawnFailed,
        "the worker that runs commands cannot be started, or the server is shutting down; nothing was started. Its operator finds the reason in the log; repeat the call later",
    )
    .with_source(cause)
}

type Reply<'a, T> = BoxFuture<'a, Result<T, ToolError>>;

impl Runner for Remote {
    fn read<'a>(&'a self, workspace: &'a WorkspaceId, path: &'a str) -> Reply<'a, FileContent> {
        Box::pin(async move {
            let file = self.look(|mut client| {
                let request = wire::ReadRequest {
                    workspace: workspace.as_str().to_owned(),
                    path: path.to_owned(),
                };
                async move { client.read(request).await }
            });
            file.await?.try_into()
        })
    }

    fn find<'a>(&'a self, workspace: &'a WorkspaceId, glob: Option<&'a str>) -> Reply<'a, Found> {
        Box::pin(async move {
            let found = self.look(|mut client| {
                let request = wire::FindRequest {
                    workspace: workspace.as_str().to_owned(),
                    glob: glob.map(str::to_owned),
                };
                async move { client.find(request).await }
            });
            Ok(found.await?.into())
        })
    }

    fn apply<'a>(&'a self, workspace: &'a WorkspaceId, job: PatchJob) -> Reply<'a, Applied> {
        Box::pin(async move {
            let root = self.root(workspace)?;
            let request = wire::ApplyRequest {
                workspace: workspace.as_str().to_owned(),
                operation: job.operation.as_str().to_owned(),
                patch: job.text,
                expected: job.expected.into_iter().collect(),
                check_only: job.check_only,
            };
            if job.check_only {
                let answer = self.look(|mut client| {
                    let request = request.clone();
                    async move { client.apply(request).await }
                });
                return answer.await?.try_into();
            }
            let mut connection = self.connection().await.map_err(no_worker)?;
            let call = |connection: Arc<Connection>, request: wire::ApplyRequest| async move {
                let call = connection.call(|mut client| async move { client.apply(request).await });
                call.await
            };
            let mut answer = call(Arc::clone(&connection), request.clone()).await;
            if matches!(answer, Err(Lost::Unsent)) {
                connection = self.connection().await.map_err(no_worker)?;
                answer = call(Arc::clone(&connection), request).await;
            }
            let Ok(answer) = answer else {
                // Nothing writes any more, and the call's lease keeps everybody else out.
                connection.ended().await;
                return Ok(undo::settle(root, job.operation).await);
            };
            let answer = answer?;
            let keeps = answer.undo;
            let mut applied = Applied::try_from(answer)?;
            if keeps {
                applied.undo = Some(Box::new(RemoteUndo {
                    connection,
                    root,
                    operation: job.operation,
                    status: applied.status,
                }));
            }
            Ok(applied)
        })
    }

    fn exec<'a>(
        &'a self,
        workspace: &'a WorkspaceId,
        spec: ExecSpec,
        keep: Box<dyn Send + Sync>,
    ) -> Reply<'a, Started> {
        Box::pin(async move {
            let mut keep = keep;
            for _ in 0..2 {
                let connection = self.connection().await.map_err(not_started)?;
                let number = match connection.hold(keep) {
                    Ok(number) => number,
                    Err(back) => {
                        keep = back;
                        continue;
                    }
                };
                let request = wire::ExecRequest {
                    workspace: workspace.as_str().to_owned(),
                    keep: number,
                    command: spec.command.clone(),
                    tty: spec.tty,
                };
                let call = connection.call(|mut client| async move { client.exec(request).await });
                match call.await {
                    Ok(answer) => {
                        let process: ProcessId = id(&answer?.process)?;
                        connection.started(number, &process, workspace);
                        return Ok(Started {
                            process,
                            dispatch: Dispatch::Confirmed,
                        });
                    }
                    Err(Lost::Unsent) => match connection.give_back(number) {
                        Some(back) => keep = back,
                        // The workspace is not held any more.
                        None => break,
                    },
                    Err(Lost::Sent) => {
                        connection.ended().await;
                        let process = ProcessId::mint();
                        connection.started(number, &process, workspace);
                        return Ok(Started {
                            process,
                            dispatch: Dispatch::Unknown,
                        });
                    }
                }
            }
            Err(not_started("workers are lost as fast as they start"))
        })
    }

    fn workspace_of(&self, process: &ProcessId) -> Option<WorkspaceId> {
        self.0.handles.workspace_of(process)
    }

    fn output<'a>(
        &'a self,
        process: &'a ProcessId,
        cursor: u64,
        wait: Duration,
    ) -> Reply<'a, Chunk> {
        Box::pin(async move {
            let request = wire::OutputRequest {
                process: process.as_str().to_owned(),
                cursor,
                wait_ms: millis(wait),
            };
            let chunk = self.drive(
                process,
                |mut client| async move { client.output(request).await },
            );
            chunk.await?.try_into()
        })
    }

    fn write_stdin<'a>(
        &'a self,
        process: &'a ProcessId,
        data: &'a [u8],
        close: bool,
    ) -> Reply<'a, usize> {
        Box::pin(async move {
            let request = wire::WriteStdinRequest {
                process: process.as_str().to_owned(),
                data: data.to_vec().into(),
                close,
            };
            let written = self.drive(process, |mut client| async move {
                client.write_stdin(request).await
            });
            Ok(usize::try_from(written.await?.bytes).unwrap_or(usize::MAX))
        })
    }

    fn resize<'a>(
        &'a self,
        process: &'a ProcessId,
        rows: NonZeroU16,
        cols: NonZeroU16,
    ) -> Reply<'a, ()> {
        Box::pin(async move {
            let request = wire::ResizeRequest {
                process: process.as_str().to_owned(),
                rows: rows.get().into(),
                cols: cols.get().into(),
            };
            let done = self.drive(
                process,
                |mut client| async move { client.resize(request).await },
            );
            done.await.map(drop)
        })
    }

    fn status<'a>(&'a self, process: &'a ProcessId, wait: Duration) -> Reply<'a, ProcessStatus> {
        Box::pin(async move {
            let request = wire::StatusRequest {
                process: process.as_str().to_owned(),
                wait_ms: millis(wait),
            };
            let status = self.drive(
                process,
                |mut client| async move { client.status(request).await },
            );
            status.await?.try_into()
        })
    }

    fn terminate<'a>(&'a self, process: &'a ProcessId) -> Reply<'a, ()> {
        Box::pin(async move {
            let request = wire::TerminateRequest {
                process: process.as_str().to_owned(),
            };
            let done = self.drive(process, |mut client| async move {
                client.terminate(request).await
            });
            done.await.map(drop)
        })
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.closing.store(true, Ordering::Release);
            let Some(connection) = self.0.up() else {
                return;
            };
            let call = connection
                .call(|mut client| async move { client.shut_down(wire::ShutDownRequest {}).await });
            let _ = call.await;
        })
    }
}
