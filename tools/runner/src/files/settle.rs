//! Recovery at start: every journal that is left is an operation that did not end.
//!
//! Each path is known by its hash: all new is applied, all old is rolled back, a mixture
//! is put back, and where another writer's bytes stand nothing is touched.

use std::{io, sync::Arc};

use codespace_router::{BoxFuture, OperationId, OperationStatus, Undo};
use rustix::{
    fs::{Mode, OFlags, RawDir},
    io::Errno,
};

use super::{
    journal::{self, Journal},
    load::Folders,
    restore::{self, State},
    root::{FileRoot, open_beneath},
    transaction::{Fault, Kept, rows_of},
};
use crate::Change;

const INTERRUPTED: &str = "interrupted";

/// An operation that a crash left, and what became of it.
pub struct Settled {
    /// Which operation.
    pub operation: OperationId,
    /// `Applied`, `FailedRolledBack`, `FailedPartial` or `Unknown`.
    pub status: OperationStatus,
    /// Why, when it is not a success.
    pub reason: Option<String>,
    /// One row per path that is, or may be, different.
    pub changes: Vec<Change>,
    /// Every path the patch named, sorted; empty when the crash came before the journal.
    pub files: Vec<String>,
    /// What to tell when the record is stored: `keep` removes old bytes and journal.
    pub undo: Box<dyn Undo>,
}

impl std::fmt::Debug for Settled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settled")
            .field("operation", &self.operation)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl FileRoot {
    /// Settles every operation whose journal is left. Call it at start, under the lease;
    /// it may be killed and called again.
    ///
    /// # Errors
    /// The journal folder cannot be read.
    pub fn settle(self: &Arc<Self>) -> io::Result<Vec<Settled>> {
        let mut settled = Vec::new();
        for operation in self.journalled()? {
            settled.push(match self.journal(&operation)? {
                Some(journal) => self
                    .settle_one(journal)
                    .map_err(|_| io::Error::from(io::ErrorKind::Interrupted))?,
                None => self.torn(operation),
            });
        }
        Ok(settled)
    }

    /// Whether a journal is left, of a patch that runs now or of one that did not end.
    ///
    /// # Errors
    /// The journal folder cannot be read.
    pub fn has_journals(&self) -> io::Result<bool> {
        Ok(!self.journalled()?.is_empty())
    }

    /// Settles one operation; `None` when it left no journal, and so nothing else. Call it
    /// under the lease, when whoever ran it is gone.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn settle_operation(
        self: &Arc<Self>,
        operation: &OperationId,
    ) -> io::Result<Option<Settled>> {
        match self.journal(operation) {
            Ok(Some(journal)) => self
                .settle_one(journal)
                .map(Some)
                .map_err(|_| io::ErrorKind::Interrupted.into()),
            Ok(None) if self.journals().is_none() => Ok(None),
            Ok(None) => Ok(Some(self.torn(operation.clone()))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What a recorded operation that ended with `status` keeps, from its journal; `None`
    /// when nothing is left of it. For when whoever kept it is gone.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn undo_of(
        self: &Arc<Self>,
        operation: &OperationId,
        status: OperationStatus,
    ) -> io::Result<Option<Box<dyn Undo>>> {
        match self.journal(operation) {
            Ok(Some(journal)) => Ok(Some(Box::new(Kept {
                root: Arc::clone(self),
                folders: Folders::default(),
                journal,
                status,
            }))),
            Ok(None) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn journalled(&self) -> Result<Vec<OperationId>, Errno> {
        let Some(journals) = self.journals() else {
            return Ok(Vec::new());
        };
        let dir = open_beneath(
            journals,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut names = RawDir::new(&dir, buffer.spare_capacity_mut());
        let mut found = Vec::new();
        while let Some(entry) = names.next() {
            if let Ok(Ok(operation)) = entry?.file_name().to_str().map(str::parse::<OperationId>) {
                found.push(operation);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn journal(&self, operation: &OperationId) -> Result<Option<Journal>, Errno> {
        let Some(journals) = self.journals() else {
            return Ok(None);
        };
        let file = open_beneath(journals, operation.as_str(), OFlags::RDONLY, Mode::empty())?;
        let mut bytes = Vec::new();
        loop {
            bytes.reserve(64 * 1024);
            match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Journal::decode(&bytes).filter(|journal| journal.operation == *operation))
    }

    fn settle_one(self: &Arc<Self>, journal: Journal) -> Result<Settled, Fault> {
        let mut folders = Folders::default();
        let states: Vec<State> = journal
            .effects
            .iter()
            .map(|effect| restore::inspect(self, &mut folders, effect))
            .collect();
        let not_old: Vec<usize> = (0..states.len())
            .filter(|at| states[*at] != State::Old)
            .collect();
        let (status, reason, changes) = if states
            .iter()
            .any(|state| matches!(state, State::Foreign(_)))
        {
            (
                OperationStatus::Unknown,
                Some("unknown"),
                rows_of(&journal, &not_old),
            )
        } else if not_old.is_empty() {
            (
                OperationStatus::FailedRolledBack,
                Some(INTERRUPTED),
                Vec::new(),
            )
        } else if not_old.len() == states.len() {
            (OperationStatus::Applied, None, journal.changes.clone())
        } else {
            let stuck = restore::put_back(self, &mut folders, &journal, |_| true)?;
            let status = if stuck.is_empty() {
                OperationStatus::FailedRolledBack
            } else {
                OperationStatus::FailedPartial
            };
            (status, Some(INTERRUPTED), rows_of(&journal, &stuck))
        };
        Ok(Settled {
            operation: journal.operation.clone(),
            status,
            reason: reason.map(str::to_owned),
            changes,
            files: journal.files.clone(),
            undo: Box::new(Kept {
                root: Arc::clone(self),
                folders,
                journal,
                status,
            }),
        })
    }

    fn torn(self: &Arc<Self>, operation: OperationId) -> Settled {
        Settled {
            status: OperationStatus::FailedRolledBack,
            reason: Some(INTERRUPTED.to_owned()),
            changes: Vec::new(),
            files: Vec::new(),
            undo: Box::new(Torn {
                root: Arc::clone(self),
                operation: operation.clone(),
            }),
            operation,
        }
    }
}

// A journal that was never finished: only its own file is left.
struct Torn {
    root: Arc<FileRoot>,
    operation: OperationId,
}

impl Undo for Torn {
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(journals) = self.root.journals() {
                let _ = journal::remove(journals, self.operation.as_str(), self.root.durable);
            }
        })
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async { true })
    }
}
