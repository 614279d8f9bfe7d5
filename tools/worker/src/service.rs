//! The worker's answers: each call becomes one call of its own runner.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU16,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use codespace_patch::Patch;
use codespace_router::{OperationId, ToolError, Undo, WorkspaceId};
use codespace_runner::{ExecSpec, PatchJob, Runner, patch_refusal};
use futures_util::{FutureExt, Stream};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::{
    convert::{Answer, id, nonsense, panic_text},
    outbox::Outbox,
    wire::{self, worker_server::Worker},
};

type Events = mpsc::UnboundedReceiver<wire::Event>;

/// What the worker serves.
pub(crate) struct Service {
    runner: Arc<dyn Runner>,
    outbox: Outbox,
    events: Mutex<Option<Events>>,
    // Old states of patches whose records are not stored yet.
    undo: Mutex<HashMap<OperationId, Box<dyn Undo>>>,
}

impl Service {
    pub(crate) fn new(runner: Arc<dyn Runner>, outbox: Outbox, events: Events) -> Self {
        Self {
            runner,
            outbox,
            events: Mutex::new(Some(events)),
            undo: Mutex::default(),
        }
    }

    /// Runs one call; a panic in it is a fault like another.
    async fn answer<A: Answer>(
        &self,
        work: impl Future<Output = Result<A::Ok, ToolError>>,
    ) -> Result<Response<A>, Status> {
        let result = AssertUnwindSafe(work)
            .catch_unwind()
            .await
            .unwrap_or_else(|payload| Err(ToolError::internal(panic_text(&*payload))));
        let result = result.map_err(|error| wire::Fault::from(&error));
        Ok(Response::new(A::new(result, self.outbox.flush())))
    }

    fn take_undo(&self, operation: &OperationId) -> Option<Box<dyn Undo>> {
        self.undo
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(operation)
    }
}

fn size(rows: u32) -> Result<NonZeroU16, ToolError> {
    u16::try_from(rows)
        .ok()
        .and_then(NonZeroU16::new)
        .ok_or_else(|| nonsense("a terminal's size"))
}

/// The events, in their order.
pub(crate) struct EventStream(Events);

impl Stream for EventStream {
    type Item = Result<wire::Event, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| event.map(Ok))
    }
}

#[tonic::async_trait]
impl Worker for Service {
    type EventsStream = EventStream;

    async fn read(
        &self,
        request: Request<wire::ReadRequest>,
    ) -> Result<Response<wire::ReadAnswer>, Status> {
        let request = request.into_inner();
        let workspace = WorkspaceId::new(&request.workspace);
        self.answer(async {
            let file = self.runner.read(&workspace, &request.path).await?;
            Ok(file.into())
        })
        .await
    }

    async fn find(
        &self,
        request: Request<wire::FindRequest>,
    ) -> Result<Response<wire::FindAnswer>, Status> {
        let request = request.into_inner();
        let workspace = WorkspaceId::new(&request.workspace);
        self.answer(async {
            let found = self
                .runner
                .find(&workspace, request.glob.as_deref())
                .await?;
            Ok(found.into())
        })
        .await
    }

    async fn apply(
        &self,
        request: Request<wire::ApplyRequest>,
    ) -> Result<Response<wire::ApplyAnswer>, Status> {
        let request = request.into_inner();
        let workspace = WorkspaceId::new(&request.workspace);
        self.answer(async {
            let operation: OperationId = id(&request.operation)?;
            let patch = Patch::parse(&request.patch).map_err(|error| patch_refusal(&error))?;
            let job = PatchJob {
                operation: operation.clone(),
                patch: Arc::new(patch),
                text: request.patch,
                expected: request.expected.into_iter().collect::<BTreeMap<_, _>>(),
                check_only: request.check_only,
            };
            // A drop here leaves the journal, from which the gateway settles the operation.
            let mut applied = self.runner.apply(&workspace, job).await?;
            let answer = wire::Applied::from(&applied);
            if let Some(undo) = applied.undo.take() {
                let mut kept = self.undo.lock().unwrap_or_else(PoisonError::into_inner);
                kept.insert(operation, undo);
            }
            Ok(answer)
        })
        .await
    }

    async fn undo(
        &self,
        request: Request<wire::UndoRequest>,
    ) -> Result<Response<wire::UndoAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            let undo = self.take_undo(&id(&request.operation)?);
            let undo = undo.ok_or_else(|| nonsense("an operation that keeps nothing"))?;
            let done = if request.keep {
                undo.keep().await;
                true
            } else {
                undo.restore().await
            };
            Ok(wire::Undone { done })
        })
        .await
    }

    async fn exec(
        &self,
        request: Request<wire::ExecRequest>,
    ) -> Result<Response<wire::ExecAnswer>, Status> {
        let request = request.into_inner();
        let workspace = WorkspaceId::new(&request.workspace);
        // First of all, so that whatever happens below says that nothing is left.
        let guard = self.outbox.guard(request.keep);
        self.answer(async {
            let spec = ExecSpec {
                command: request.command,
                tty: request.tty,
            };
            let started = self.runner.exec(&workspace, spec, guard).await?;
            Ok(wire::Started {
                process: started.process.into(),
            })
        })
        .await
    }

    async fn output(
        &self,
        request: Request<wire::OutputRequest>,
    ) -> Result<Response<wire::OutputAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            let process = id(&request.process)?;
            let wait = Duration::from_millis(request.wait_ms);
            let chunk = self.runner.output(&process, request.cursor, wait).await?;
            Ok(chunk.into())
        })
        .await
    }

    async fn write_stdin(
        &self,
        request: Request<wire::WriteStdinRequest>,
    ) -> Result<Response<wire::WriteStdinAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            let process = id(&request.process)?;
            let taken = self
                .runner
                .write_stdin(&process, &request.data, request.close)
                .await?;
            Ok(wire::Written {
                bytes: taken as u64,
            })
        })
        .await
    }

    async fn resize(
        &self,
        request: Request<wire::ResizeRequest>,
    ) -> Result<Response<wire::DoneAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            let (process, rows, cols) = (
                id(&request.process)?,
                size(request.rows)?,
                size(request.cols)?,
            );
            self.runner.resize(&process, rows, cols).await?;
            Ok(wire::Done {})
        })
        .await
    }

    async fn status(
        &self,
        request: Request<wire::StatusRequest>,
    ) -> Result<Response<wire::StatusAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            let process = id(&request.process)?;
            let wait = Duration::from_millis(request.wait_ms);
            Ok(self.runner.status(&process, wait).await?.into())
        })
        .await
    }

    async fn terminate(
        &self,
        request: Request<wire::TerminateRequest>,
    ) -> Result<Response<wire::DoneAnswer>, Status> {
        let request = request.into_inner();
        self.answer(async {
            self.runner.terminate(&id(&request.process)?).await?;
            Ok(wire::Done {})
        })
        .await
    }

    async fn shut_down(
        &self,
        _: Request<wire::ShutDownRequest>,
    ) -> Result<Response<wire::DoneAnswer>, Status> {
        self.answer(async {
            self.runner.shut_down().await;
            Ok(wire::Done {})
        })
        .await
    }

    async fn events(
        &self,
        _: Request<wire::EventsRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let events = self
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let events = events.ok_or_else(|| Status::failed_precondition("asked for already"))?;
        Ok(Response::new(EventStream(events)))
    }
}
