//! What clients see of one process: its output, its stdin, its end.

use std::{
    io,
    num::NonZeroU16,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use codespace_router::{Code, ToolError, WorkspaceId};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::{Instant, timeout_at},
};

use super::{ring::Ring, streams::Input, terminal::Terminal};
use crate::{Chunk, ProcessState, ProcessStatus, Termination};

// Contract, section 7: a full stdin is waited for this long.
const STDIN_WAIT: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) termination: Termination,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
}

pub(super) struct Managed {
    pub(super) workspace: WorkspaceId,
    seen: Mutex<Seen>,
    // Two, so that a flood does not wake those who wait for the exit.
    more: Notify,
    gone: Notify,
    stop: Notify,
    stdin: AsyncMutex<Option<Input>>,
    // Beside stdin, whose lock a writer may hold for long.
    window: Option<Mutex<Option<Arc<Terminal>>>>,
}

// One lock: whoever sees the end sees the closed ring too.
struct Seen {
    ring: Ring,
    end: Option<End>,
}

impl Managed {
    pub(super) fn new(workspace: WorkspaceId, output_bytes: usize, input: Input) -> Self {
        let window = match &input {
            Input::Pipe(_) => None,
            Input::Terminal(terminal) => Some(Mutex::new(Some(terminal.clone()))),
        };
        Self {
            workspace,
            seen: Mutex::new(Seen {
                ring: Ring::new(output_bytes),
                end: None,
            }),
            more: Notify::new(),
            gone: Notify::new(),
            stop: Notify::new(),
            stdin: AsyncMutex::new(Some(input)),
            window,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.seen().end.is_some()
    }

    /// Takes in output.
    pub(super) fn push(&self, data: &[u8]) {
        let dropped = self.seen().ring.push(data);
        metrics::counter!("codespace_process_output_bytes_total").increment(data.len() as u64);
        if dropped > 0 {
            metrics::counter!("codespace_process_output_dropped_bytes_total")
                .increment(dropped as u64);
        }
        self.more.notify_waiters();
    }

    /// Shows the end to everybody.
    pub(super) async fn finish(&self, end: End) {
        {
            let mut seen = self.seen();
            seen.ring.close();
            seen.end = Some(end);
        }
        self.gone.notify_waiters();
        self.more.notify_waiters();
        if let Some(window) = &self.window {
            *window.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        // A writer that still waits was woken just now, and lets go.
        *self.stdin.lock().await = None;
    }

    /// Asks the supervisor to end the tree; it may be asked at any time and again.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }

    pub(super) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// Waits for the end; returns at once when it has come.
    pub(super) async fn ended(&self) {
        let mut gone = std::pin::pin!(self.gone.notified());
        // Listening before looking: an end in between is not missed.
        gone.as_mut().enable();
        if !self.has_ended() {
            gone.await;
        }
    }

    /// The output at `cursor`, waiting for something new.
    pub(super) async fn output(&self, cursor: u64, wait: Duration) -> Chunk {
        let deadline = Instant::now() + wait;
        loop {
            let mut more = std::pin::pin!(self.more.notified());
            more.as_mut().enable();
            let chunk = self.seen().ring.chunk(cursor);
            if chunk.eof || !chunk.chunk.is_empty() || chunk.output_lost || wait.is_zero() {
                return chunk;
            }
            if timeout_at(deadline, more).await.is_err() {
                return self.seen().ring.chunk(cursor);
            }
        }
    }

    pub(super) async fn status(&self, wait: Duration) -> ProcessStatus {
        if !wait.is_zero() {
            let _ = timeout_at(Instant::now() + wait, self.ended()).await;
        }
        let seen = self.seen();
        ProcessStatus {
            state: if seen.end.is_some() {
                ProcessState::Exited
            } else {
                ProcessState::Running
            },
            termination: seen.end.map(|end| end.termination),
            exit_code: seen.end.and_then(|end| end.exit_code),
            signal: seen.end.and_then(|end| end.signal),
            output_total: seen.ring.total(),
            output_retained_from: seen.ring.retained_from(),
            eof: seen.ring.is_closed(),
        }
    }

    /// Sets the terminal's size.
    pub(super) fn resize(&self, rows: NonZeroU16, cols: NonZeroU16) -> Result<(), ToolError> {
        let Some(window) = &self.window else {
            return Err(ToolError::new(
                Code::ProcessNotTty,
                "the process runs on pipes and has no terminal; start it with tty: true to have one",
            ));
        };
        let terminal = window
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(terminal) = terminal.filter(|_| !self.has_ended()) else {
            return Err(ToolError::new(
                Code::ProcessNotRunning,
                "the process has exited, and its terminal with it. Its output and status can still be read",
            ));
        };
        terminal
            .resize(rows.get(), cols.get())
            .map_err(ToolError::internal)
    }

    /// Writes to stdin, one writer at a time. It is closed only when all was taken: the
    /// rest of a cut write could never be sent otherwise. A terminal stays open: its
    /// reader is told the end, and the next one reads on.
    pub(super) async fn write_stdin(&self, data: &[u8], close: bool) -> Result<usize, ToolError> {
        let deadline = Instant::now() + STDIN_WAIT;
        let Ok(mut stdin) = timeout_at(deadline, self.stdin.lock()).await else {
            return Ok(0);
        };
        if self.has_ended() {
            return Err(has_exited());
        }
        let Some(input) = stdin.as_ref() else {
            return Err(is_closed());
        };
        let Ok(taken) = self.feed(input, data, deadline).await else {
            *stdin = None;
            return Err(self.dead_stdin());
        };
        if taken == 0 && !data.is_empty() && self.has_ended() {
            return Err(has_exited());
        }
        if close && taken == data.len() {
            match input {
                Input::Pipe(_) => *stdin = None,
                Input::Terminal(terminal) => {
                    let end = terminal.end_of_input();
                    let typed = self.feed(input, &end, deadline).await;
                    if !typed.is_ok_and(|typed| typed == end.len()) && !self.has_ended() {
                        return Err(no_end(taken));
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Writes until all is taken, the deadline, or the exit. An error means that nobody
    /// reads it any more and that nothing was taken.
    async fn feed(&self, input: &Input, data: &[u8], deadline: Instant) -> io::Result<usize> {
        let mut taken = 0;
        while taken < data.len() {
            match input.try_write(&data[taken..]) {
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = tokio::select! {
                        ready = timeout_at(deadline, input.writable()) => ready,
                        () = self.ended() => break,
                    };
                    if ready.is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if taken == 0 => return Err(error),
                // The next write is told.
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn dead_stdin(&self) -> ToolError {
        if self.has_ended() {
            has_exited()
        } else {
            is_closed()
        }
    }
}

fn has_exited() -> ToolError {
    ToolError::new(
        Code::ProcessNotFound,
        "the process has exited, so its stdin is closed; nothing was written. Its output and status can still be read",
    )
}

fn is_closed() -> ToolError {
    ToolError::new(
        Code::ProcessNotFound,
        "the stdin of this process is closed, or the process is about to exit; nothing was written. Its output and status can still be read",
    )
}

fn no_end(taken: usize) -> ToolError {
    ToolError::new(
        Code::Timeout,
        format!(
            "all {taken} bytes were taken, but the terminal then stayed full for five seconds, so the end of input could not be typed; read the output, then send empty data with close: true"
        ),
    )
}
