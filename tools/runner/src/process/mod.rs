//! Managed processes.
//!
//! [`Processes`] is the table of handles. A command is started by `launch` (through
//! `spawn`, the one unsafe file), watched and ended by its `supervisor` with the help of
//! `tree` (`bare`, or `confined` by the sandbox), and seen by clients through its `managed` half, whose output is a `ring`. Its
//! `streams` are pipes or a `terminal`.

mod bare;
mod confined;
mod heir;
mod launch;
mod managed;
mod ring;
mod spawn;
mod streams;
mod supervisor;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod tree;

use std::{fmt, io, num::NonZeroU16, os::fd::OwnedFd, sync::Arc, time::Duration};

use codespace_router::{ProcessId, Subject, ToolError, WorkspaceId};
use tokio::{
    net::unix::pipe,
    time::{Instant, timeout},
};

pub use self::{
    confined::{Confinement, Demand, Probe, Verdict, plan},
    heir::Heir,
    launch::Launch,
    table::ProcessLimits,
};
use self::{
    launch::Ends,
    managed::Managed,
    streams::{Input, Output},
    supervisor::Supervisor,
    table::Table,
    terminal::Terminal,
};
use crate::{Chunk, ExecSpec, ProcessStatus};

// SIGTERM's two seconds, SIGKILL's five, and the last second of the output pipe.
const END_TIME: Duration = Duration::from_secs(8);

/// Every process of this runner. Cheap to clone; needs a tokio runtime with I/O and time.
#[derive(Clone)]
pub struct Processes(Arc<Table>);

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

impl Processes {
    /// An empty table. Makes this whole OS process the reaper of orphans below it
    /// (prctl(2), `PR_SET_CHILD_SUBREAPER`).
    #[must_use]
    pub fn new(limits: ProcessLimits) -> Self {
        spawn::keep_statuses();
        tree::become_reaper();
        Self(Arc::new(Table::new(limits)))
    }

    /// How many processes live.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.live()
    }

    /// Starts a command in the workspace's root. `keep` is dropped when its tree is
    /// gone, or before an error is returned.
    ///
    /// # Errors
    /// `LIMIT_EXCEEDED`, `INVALID_COMMAND` or `PROCESS_SPAWN_FAILED`; nothing runs then.
    pub async fn exec(
        &self,
        home: &Launch,
        spec: ExecSpec,
        keep: Box<dyn Send + Sync>,
    ) -> Result<ProcessId, ToolError> {
        let slot = self.0.reserve(spec.tty)?;
        let started = Instant::now();
        let launched = match &home.confinement {
            None => launch::launch(home, &spec)?,
            // A drop here drops what was started, which ends it.
            Some(_) => {
                let home = home.clone();
                tokio::task::spawn_blocking(move || launch::launch(&home, &spec))
                    .await
                    .map_err(ToolError::internal)??
            }
        };
        metrics::histogram!("codespace_process_spawn_seconds", "sandbox" => launched.sandbox)
            .record(started.elapsed().as_secs_f64());
        // From here an error drops the tree, which ends it.
        let (input, output, slave) = open(launched.ends).map_err(ToolError::internal)?;
        let exit = spawn::watch(launched.tree.pidfd()).map_err(ToolError::internal)?;
        let id = ProcessId::mint();
        let process = Arc::new(Managed::new(
            home.workspace.clone(),
            self.0.output_bytes(),
            input,
        ));
        self.0.insert(id.clone(), process.clone());
        let supervisor = Supervisor {
            id: id.clone(),
            table: self.0.clone(),
            process,
            tree: launched.tree,
            exit,
            output,
            slave,
            time_limit: home.time_limit,
            started,
            keep,
            slot,
        };
        tokio::spawn(supervisor.run());
        Ok(id)
    }

    fn get(&self, process: &ProcessId) -> Result<Arc<Managed>, ToolError> {
        self.0
            .get(process)
            .ok_or_else(|| Subject::Process(process.as_str()).not_found())
    }

    /// The workspace a process runs in; `None` for an unknown or expired handle.
    #[must_use]
    pub fn workspace_of(&self, process: &ProcessId) -> Option<WorkspaceId> {
        self.0.get(process).map(|process| process.workspace.clone())
    }

    /// Reads output from a byte offset, waiting up to `wait` for something new.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`.
    pub async fn output(
        &self,
        process: &ProcessId,
        cursor: u64,
        wait: Duration,
    ) -> Result<Chunk, ToolError> {
        Ok(self.get(process)?.output(cursor, wait).await)
    }

    /// Writes to stdin, waiting up to five seconds while it is full, and answers how many
    /// bytes were taken. `close` closes it once all of `data` was taken; a terminal stays
    /// open, and who reads it is told the end of its input.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`, also when stdin is closed or the process has exited.
    pub async fn write_stdin(
        &self,
        process: &ProcessId,
        data: &[u8],
        close: bool,
    ) -> Result<usize, ToolError> {
        self.get(process)?.write_stdin(data, close).await
    }

    /// Sets the size of a process's terminal.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`, `PROCESS_NOT_TTY`, `PROCESS_NOT_RUNNING`.
    pub async fn resize(
        &self,
        process: &ProcessId,
        rows: NonZeroU16,
        cols: NonZeroU16,
    ) -> Result<(), ToolError> {
        self.get(process)?.resize(rows, cols)
    }

    /// What is known of a process, waiting up to `wait` for its exit.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`.
    pub async fn status(
        &self,
        process: &ProcessId,
        wait: Duration,
    ) -> Result<ProcessStatus, ToolError> {
        Ok(self.get(process)?.status(wait).await)
    }

    /// Ends the whole tree: SIGTERM, two seconds, SIGKILL. Returns when it is gone, or
    /// after at most eight seconds; ending an ended one is a no-op.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`.
    pub async fn terminate(&self, process: &ProcessId) -> Result<(), ToolError> {
        let process = self.get(process)?;
        process.stop();
        let _ = timeout(END_TIME, process.ended()).await;
        Ok(())
    }

    /// Ends every process and waits for their trees, at most eight seconds. Nothing
    /// can be started afterwards. SIGKILL of the server skips this: then pipes break
    /// and terminals hang up, but what does not care lives on.
    pub async fn shut_down(&self) {
        let all = self.0.close();
        all.iter().for_each(|process| process.stop());
        let ended = async {
            for process in &all {
                process.ended().await;
            }
        };
        let _ = timeout(END_TIME, ended).await;
    }
}

fn open(ends: Ends) -> io::Result<(Input, Output, Option<OwnedFd>)> {
    Ok(match ends {
        Ends::Pipes { stdin, output } => (
            Input::Pipe(pipe::Sender::from_owned_fd(stdin)?),
            Output::Pipe(pipe::Receiver::from_owned_fd(output)?),
            None,
        ),
        Ends::Terminal { master, slave } => {
            let terminal = Arc::new(Terminal::new(master)?);
            (
                Input::Terminal(terminal.clone()),
                Output::Terminal(terminal),
                Some(slave),
            )
        }
    })
}
