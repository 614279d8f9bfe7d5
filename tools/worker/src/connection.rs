//! One worker, from its start to the end of everything it left.
//!
//! A worker is lost when its connection ends, for whatever reason: it is then killed, reaped,
//! and everything it left below is ended, before a lease it stood for is given back and
//! before another worker may start. Until that is done nobody is told of the loss, so that
//! what they are told is true.

use std::{
    collections::HashMap,
    error::Error,
    io,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use codespace_router::{ProcessId, ToolError, WorkspaceId};
use codespace_runner::Heir;
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::{sleep, timeout},
};
use tonic::{Response, Status, Streaming};

use crate::{
    convert::Answer,
    handles::Handles,
    inbox::Counts,
    link::{Driver, Link, LinkFault},
    preamble,
    setup::Setup,
    wire::{self, worker_client::WorkerClient},
};

// Beyond what a worker takes to end its trees and its last patch.
const FAREWELL: Duration = Duration::from_secs(20);
// What a dead worker said last is still in the socket, and is read at once.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(crate) type Client = WorkerClient<Link>;

/// Why a call has no answer. The worker is lost, or about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It never saw the call.
    Unsent,
    /// It may have done some or all of it.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Up,
    /// No answer will come any more.
    Lost,
    /// Nothing it started is left.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Run,
    Close,
    Kill,
}

pub(crate) struct Connection {
    number: u64,
    client: Client,
    keeps: Mutex<Keeps>,
    handles: Arc<Handles>,
    // How many events have been taken in.
    seen: watch::Sender<u64>,
    phase: watch::Sender<Phase>,
    wish: watch::Sender<Wish>,
}

/// What is held for trees of this worker.
#[derive(Default)]
struct Keeps {
    next: u64,
    held: HashMap<u64, Kept>,
    closed: bool,
}

struct Kept {
    guard: Box<dyn Send + Sync>,
    process: Option<ProcessId>,
}

impl Connection {
    /// Starts a worker of this number and tells it its setup.
    pub(crate) async fn start(
        exe: &Path,
        setup: &Arc<Setup>,
        handles: &Arc<Handles>,
        number: u64,
    ) -> io::Result<Arc<Self>> {
        let (ours, theirs) = UnixStream::pair()?;
        Heir::prepare();
        let mut child = Command::new(exe)
            .arg("worker")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let heir = Heir::of(child.id().unwrap_or(0));
        // hyper keeps the socket for as long as a request may be sent or an event come.
        let door = ours.try_clone();
        let begun = begin(ours, setup).await;
        let ((client, driver, events), door) = match begun.and_then(|begun| Ok((begun, door?))) {
            Ok(begun) => begun,
            Err(error) => {
                let _ = child.kill().await;
                inherit(heir).await;
                return Err(error);
            }
        };
        let connection = Arc::new(Self {
            number,
            client,
            keeps: Mutex::default(),
            handles: Arc::clone(handles),
            seen: watch::Sender::new(0),
            phase: watch::Sender::new(Phase::Up),
            wish: watch::Sender::new(Wish::Run),
        });
        tokio::spawn(Arc::clone(&connection).attend(driver, events, door, child, heir));
        Ok(connection)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether calls may still be answered.
    pub(crate) fn is_up(&self) -> bool {
        *self.phase.borrow() == Phase::Up && *self.wish.borrow() == Wish::Run
    }

    /// Waits until nothing that the worker started is left.
    pub(crate) async fn ended(&self) {
        // An error would mean that this value is gone.
        let _ = self
            .phase
            .subscribe()
            .wait_for(|phase| *phase == Phase::Ended)
            .await;
    }

    /// Ends the worker in order, and waits for that.
    pub(crate) async fn close(&self) {
        self.wish.send_replace(Wish::Close);
        self.ended().await;
    }

    /// Makes one call. An answer is given when the events before it have been taken in.
    ///
    /// # Errors
    /// The worker gave no answer, and is ended if it has not ended by itself.
    pub(crate) async fn call<A: Answer, F>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Result<Result<A::Ok, ToolError>, Lost>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        match call(self.client.clone()).await {
            Ok(answer) => {
                let (result, after) = answer.into_inner().open();
                self.catch_up(after).await;
                Ok(result)
            }
            Err(status) => {
                // A worker that answers something else is as bad as one that answers nothing.
                self.wish.send_if_modified(|wish| match wish {
                    Wish::Run => {
                        *wish = Wish::Kill;
                        true
                    }
                    Wish::Close | Wish::Kill => false,
                });
                tracing::debug!(%status, "a call to the worker failed");
                Err(why(&status))
            }
        }
    }

    async fn catch_up(&self, after: u64) {
        if *self.seen.borrow() >= after {
            return;
        }
        let mut seen = self.seen.subscribe();
        tokio::select! {
            _ = seen.wait_for(|seen| *seen >= after) => {}
            // They will not come any more.
            () = self.ended() => {}
        }
    }

    // Each use leaves it whole.
    fn keeps(&self) -> MutexGuard<'_, Keeps> {
        self.keeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds this until the tree that is told by the answered number is gone.
    ///
    /// # Errors
    /// It is given back: nothing can be started any more.
    pub(crate) fn hold(&self, guard: Box<dyn Send + Sync>) -> Result<u64, Box<dyn Send + Sync>> {
        let mut keeps = self.keeps();
        if keeps.closed {
            return Err(guard);
        }
        keeps.next += 1;
        let number = keeps.next;
        let kept = Kept {
            guard,
            process: None,
        };
        keeps.held.insert(number, kept);
        Ok(number)
    }

    /// Gives back what is held for a call that the worker never saw.
    pub(crate) fn give_back(&self, number: u64) -> Option<Box<dyn Send + Sync>> {
        let kept = self.keeps().held.remove(&number);
        kept.map(|kept| kept.guard)
    }

    /// Takes in the start of the process for which this number is held.
    pub(crate) fn started(&self, number: u64, process: &ProcessId, workspace: &WorkspaceId) {
        self.handles
            .insert(process.clone(), workspace.clone(), self.number);
        let mut keeps = self.keeps();
        match keeps.held.get_mut(&number) {
            Some(kept) => kept.process = Some(process.clone()),
            // It was fast.
            None => self.handles.exited(process.clone()),
        }
    }

    fn gone(&self, number: u64) {
        let kept = self.keeps().held.remove(&number);
        if let Some(process) = kept.and_then(|kept| kept.process) {
            self.handles.exited(process);
        }
    }

    async fn take_in(self: Arc<Self>, mut events: Streaming<wire::Event>) {
        let mut counts = Counts::default();
        while let Ok(Some(event)) = events.message().await {
            match event.event {
                Some(wire::event::Event::Gone(number)) => self.gone(number),
                Some(wire::event::Event::Metrics(metrics)) => counts.add(metrics),
                None => {}
            }
            self.seen.send_modify(|seen| *seen += 1);
        }
        counts.level();
    }

    /// Drives the connection to its end, then ends the worker and what it left.
    async fn attend(
        self: Arc<Self>,
        driver: Driver,
        events: Streaming<wire::Event>,
        door: UnixStream,
        mut child: Child,
        heir: Heir,
    ) {
        let taking_in = tokio::spawn(Arc::clone(&self).take_in(events));
        let mut wish = self.wish.subscribe();
        tokio::select! {
            _ = driver => {}
            () = async {
                let _ = child.wait().await;
                sleep(LAST_WORDS).await;
            } => {}
            _ = wish.wait_for(|wish| *wish != Wish::Run) => {}
        }
        // What the worker ends at, if it still lives; and every call here.
        let _ = door.shutdown(Shutdown::Both);
        self.phase.send_replace(Phase::Lost);
        self.handles.lose(self.number);
        let asked = *self.wish.borrow() == Wish::Close;
        let in_order = asked && timeout(FAREWELL, child.wait()).await.is_ok();
        if !in_order {
            let _ = child.start_kill();
        }
        let status = child.wait().await;
        let told = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        if in_order {
            tracing::debug!(status = told, "the worker has ended");
        } else {
            tracing::error!(
                status = told,
                "the worker was lost; its processes are ended, and the next call starts another"
            );
        }
        inherit(heir).await;
        let _ = taking_in.await;
        let held = {
            let mut keeps = self.keeps();
            keeps.closed = true;
            std::mem::take(&mut keeps.held)
        };
        drop(held);
        self.phase.send_replace(Phase::Ended);
    }
}

async fn begin(
    socket: UnixStream,
    setup: &Arc<Setup>,
) -> io::Result<(Client, Driver, Streaming<wire::Event>)> {
    let setup = Arc::clone(setup);
    let told = tokio::task::spawn_blocking(move || {
        preamble::tell(&socket, &setup)?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    });
    let socket = tokio::net::UnixStream::from_std(told.await??)?;
    let (link, mut driver) = Link::new(socket).await.map_err(io::Error::other)?;
    // HTTP/2 wants a name; nobody looks at it.
    let origin = http::Uri::from_static("http://worker");
    let client = WorkerClient::with_origin(link, origin)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let mut asking = client.clone();
    let events = tokio::select! {
        events = asking.events(wire::EventsRequest {}) => events.map_err(io::Error::other)?,
        _ = &mut driver => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    Ok((client, driver, events.into_inner()))
}

async fn inherit(heir: Heir) {
    let all = tokio::task::spawn_blocking(move || heir.end_all()).await;
    if !matches!(all, Ok(true)) {
        tracing::error!("something that a lost worker left could not be ended");
    }
}

fn why(status: &Status) -> Lost {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(fault) = error.downcast_ref::<LinkFault>() {
            return if fault.sent { Lost::Sent } else { Lost::Unsent };
        }
        cause = error.source();
    }
    Lost::Sent
}
