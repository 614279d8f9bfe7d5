//! Which process runs where, as far as the gateway must know it without asking: to
//! authorize a call, and to tell what became of a process whose worker was lost.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use codespace_router::{Code, ProcessId, Subject, ToolError, WorkspaceId};
use tokio::time::Instant;

// How many lost processes are remembered.
const LOST: usize = 1024;

/// Handles of every worker. A worker forgets an exited process after a time or when
/// there are too many; so does this, by the same rule.
#[derive(Debug)]
pub(crate) struct Handles {
    keep: usize,
    keep_time: Duration,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    by_id: HashMap<ProcessId, Handle>,
    exited: VecDeque<(Instant, ProcessId)>,
    lost_order: VecDeque<ProcessId>,
    /// Workers up to this one are gone.
    gone: u64,
}

#[derive(Debug)]
struct Handle {
    workspace: WorkspaceId,
    worker: u64,
    lost: bool,
}

impl Handles {
    pub(crate) fn new(keep: usize, keep_time: Duration) -> Self {
        Self {
            keep,
            keep_time,
            rows: Mutex::default(),
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a process of this worker, which may be gone by now.
    pub(crate) fn insert(&self, process: ProcessId, workspace: WorkspaceId, worker: u64) {
        let mut rows = self.rows();
        let lost = worker <= rows.gone;
        let handle = Handle {
            workspace,
            worker,
            lost,
        };
        rows.by_id.insert(process.clone(), handle);
        if lost {
            rows.bury(process);
        }
    }

    /// Starts the time after which an exited process is forgotten.
    pub(crate) fn exited(&self, process: ProcessId) {
        let mut rows = self.rows();
        rows.exited.push_back((Instant::now(), process));
        self.sweep(&mut rows);
    }

    /// The workspace of a process that is known or was lost.
    pub(crate) fn workspace_of(&self, process: &ProcessId) -> Option<WorkspaceId> {
        let mut rows = self.rows();
        self.sweep(&mut rows);
        rows.by_id
            .get(process)
            .map(|handle| handle.workspace.clone())
    }

    /// The worker that has the process.
    ///
    /// # Errors
    /// `PROCESS_NOT_FOUND`, also when that worker was lost.
    pub(crate) fn worker_of(&self, process: &ProcessId) -> Result<u64, ToolError> {
        match self.rows().by_id.get(process) {
            None => Err(Subject::Process(process.as_str()).not_found()),
            Some(handle) if handle.lost => Err(lost()),
            Some(handle) => Ok(handle.worker),
        }
    }

    /// Marks everything of this worker, and of those before it, as lost.
    pub(crate) fn lose(&self, worker: u64) {
        let mut rows = self.rows();
        rows.gone = rows.gone.max(worker);
        rows.exited.clear();
        let mut buried = Vec::new();
        for (process, handle) in &mut rows.by_id {
            if !handle.lost && handle.worker <= worker {
                handle.lost = true;
                buried.push(process.clone());
            }
        }
        buried.into_iter().for_each(|process| rows.bury(process));
    }

    fn sweep(&self, rows: &mut Rows) {
        let now = Instant::now();
        while let Some((since, _)) = rows.exited.front() {
            let expired = now.duration_since(*since) >= self.keep_time;
            if !expired && rows.exited.len() <= self.keep {
                break;
            }
            if let Some((_, process)) = rows.exited.pop_front() {
                rows.by_id.remove(&process);
            }
        }
    }
}

impl Rows {
    fn bury(&mut self, process: ProcessId) {
        self.lost_order.push_back(process);
        if self.lost_order.len() > LOST
            && let Some(oldest) = self.lost_order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

/// What a call about a process of a lost worker is told.
pub(crate) fn lost() -> ToolError {
    ToolError::new(
        Code::ProcessNotFound,
        "the worker that ran this process was lost, and with it the process, its whole tree and its output; look at what it changed, then start it again with exec_command",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_process_is_told_from_an_unknown_one() {
        let handles = Handles::new(2, Duration::from_secs(60));
        let (known, late) = (ProcessId::mint(), ProcessId::mint());
        let unknown = handles.worker_of(&known).unwrap_err();
        handles.insert(known.clone(), WorkspaceId::new("w"), 1);
        assert_eq!(handles.worker_of(&known).unwrap(), 1);
        handles.lose(1);
        // Its start was acknowledged just before the loss was seen.
        handles.insert(late.clone(), WorkspaceId::new("w"), 1);
        for process in [known, late] {
            let told = handles.worker_of(&process).unwrap_err();
            assert_eq!(told.code(), Code::ProcessNotFound);
            assert_ne!(told.message(), unknown.message());
            assert_eq!(handles.workspace_of(&process), Some(WorkspaceId::new("w")));
        }
    }

    #[test]
    fn exited_handles_are_forgotten_when_there_are_too_many() {
        let handles = Handles::new(2, Duration::from_secs(60));
        let all: Vec<ProcessId> = (0..4).map(|_| ProcessId::mint()).collect();
        for process in &all {
            handles.insert(process.clone(), WorkspaceId::new("w"), 1);
            handles.exited(process.clone());
        }
        let known: Vec<bool> = all
            .iter()
            .map(|process| handles.workspace_of(process).is_some())
            .collect();
        assert_eq!(known, [false, false, true, true]);
    }
}
