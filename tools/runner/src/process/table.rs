//! Which processes there are, and how many there may be.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use codespace_router::{Code, ProcessId, ToolError};
use tokio::time::Instant;

use super::managed::Managed;

/// How much a runner keeps.
#[derive(Clone, Debug)]
pub struct ProcessLimits {
    /// Bytes of output kept for each process.
    pub output_bytes: usize,
    /// Live processes at most.
    pub processes: usize,
    /// Exited processes that stay readable, at most.
    pub handles: usize,
    /// How long an exited process stays readable.
    pub handle_time: Duration,
}

pub(super) struct Table {
    limits: ProcessLimits,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    by_id: HashMap<ProcessId, Arc<Managed>>,
    // Oldest first; time only moves forward.
    exited: VecDeque<(Instant, ProcessId)>,
    live: usize,
    closed: bool,
}

/// A counted place for a live process.
pub(super) struct Slot {
    table: Arc<Table>,
    tty: &'static str,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.table.rows().live -= 1;
        metrics::gauge!("codespace_processes", "tty" => self.tty).decrement(1.0);
    }
}

impl Table {
    pub(super) fn new(limits: ProcessLimits) -> Self {
        Self {
            limits,
            rows: Mutex::default(),
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.limits.output_bytes
    }

    pub(super) fn live(&self) -> usize {
        self.rows().live
    }

    /// Takes a place before anything is spawned.
    pub(super) fn reserve(self: &Arc<Self>, tty: bool) -> Result<Slot, ToolError> {
        let mut rows = self.rows();
        if rows.closed {
            return Err(ToolError::new(
                Code::ProcessSpawnFailed,
                "the server is shutting down; nothing was started",
            ));
        }
        if rows.live >= self.limits.processes {
            return Err(ToolError::new(
                Code::LimitExceeded,
                format!(
                    "{} processes are alive, as many as may be; nothing was started. Wait for one to exit, or end one",
                    rows.live
                ),
            ));
        }
        rows.live += 1;
        let tty = if tty { "true" } else { "false" };
        metrics::gauge!("codespace_processes", "tty" => tty).increment(1.0);
        Ok(Slot {
            table: self.clone(),
            tty,
        })
    }

    pub(super) fn insert(&self, id: ProcessId, process: Arc<Managed>) {
        self.rows().by_id.insert(id, process);
    }

    /// The process, unless its handle is unknown or expired.
    pub(super) fn get(&self, id: &ProcessId) -> Option<Arc<Managed>> {
        let mut rows = self.rows();
        self.sweep(&mut rows);
        rows.by_id.get(id).cloned()
    }

    /// Starts the time after which the handle expires.
    pub(super) fn exited(&self, id: ProcessId) {
        let mut rows = self.rows();
        rows.exited.push_back((Instant::now(), id));
        self.sweep(&mut rows);
    }

    /// Refuses new processes from now on, and answers all there are.
    pub(super) fn close(&self) -> Vec<Arc<Managed>> {
        let mut rows = self.rows();
        rows.closed = true;
        rows.by_id.values().cloned().collect()
    }

    fn sweep(&self, rows: &mut Rows) {
        let now = Instant::now();
        while let Some((since, _)) = rows.exited.front() {
            let expired = now.duration_since(*since) >= self.limits.handle_time;
            if !expired && rows.exited.len() <= self.limits.handles {
                break;
            }
            if let Some((_, id)) = rows.exited.pop_front() {
                rows.by_id.remove(&id);
            }
        }
    }
}
