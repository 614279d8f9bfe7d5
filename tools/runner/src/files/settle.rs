//! Recovery at start: every journal that is left is an operation that did not end.
//!
//! Each path is known by its hash: all new is applied, all old is rolled back, a mixture
//! is put back, and where another writer's bytes stand nothing is touched.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use codespace_router::{BoxFuture, OperationId, OperationStatus, Undo};

use super::{
    journal::{self, Decoded, Journal},
    kept::{self, Kept},
    load::Folders,
    path,
    restore::{self, State},
    root::FileRoot,
    transaction::{Fault, rows_of},
};
use crate::Change;

const INTERRUPTED: &str = "interrupted";
const OTHER_FOLDER: &str = "interrupted in another folder that stood at the root's path";
const OTHER_VERSION: &str = "interrupted under another version of the server";

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
    /// Names, from the root, that keep old bytes which could not be put back.
    pub kept: Vec<String>,
    /// The store that has the record, as the journal names it.
    pub ledger: Option<String>,
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
    /// it may be killed and called again. `ended` is what the server's own ledger has
    /// recorded of these operations; what is only left to be removed goes when it is
    /// older than `keep`.
    ///
    /// # Errors
    /// The journal folder cannot be read.
    pub fn settle(
        self: &Arc<Self>,
        ended: &BTreeMap<OperationId, OperationStatus>,
        keep: Duration,
    ) -> io::Result<Vec<Settled>> {
        let Some(journals) = self.journals() else {
            return Ok(Vec::new());
        };
        let killed = |_| io::Error::from(io::ErrorKind::Interrupted);
        let mut settled = Vec::new();
        for operation in journals.operations()? {
            match journals.journal(&operation)? {
                Decoded::Journal(journal) if !self.is_named_by(&journal) => {
                    tracing::error!(%operation, "a patch was interrupted in another folder that stood at this root's path; its journal is left, and nothing here was touched");
                    settled.push(self.left_alone(operation, Some(*journal), OTHER_FOLDER));
                }
                Decoded::Journal(journal) => {
                    let known = ended.get(&operation).copied();
                    settled.extend(self.settle_one(*journal, known, keep).map_err(killed)?);
                }
                Decoded::Torn => settled.push(self.torn(operation)),
                Decoded::Strange => {
                    tracing::error!(%operation, "a journal of another version of this server was left alone; run that version to settle it");
                    settled.push(self.left_alone(operation, None, OTHER_VERSION));
                }
            }
        }
        Ok(settled)
    }

    fn settle_one(
        self: &Arc<Self>,
        mut journal: Journal,
        known: Option<OperationStatus>,
        keep: Duration,
    ) -> Result<Option<Settled>, Fault> {
        let mut folders = Folders::default();
        folders.sure();
        match (journal.ended, known) {
            (Some(_), _) if self.is_past(&journal, keep) => {
                tracing::warn!(operation = %journal.operation, "what an old patch left beside its files is not looked after any more");
                self.forget(&journal);
                Ok(None)
            }
            // Recorded as failed: what could not be put back then is tried again, once
            // nothing of another writer stands in the way of any of it.
            (Some(status @ (OperationStatus::Unknown | OperationStatus::FailedPartial)), _) => {
                let ours = journal.effects.iter().all(|effect| {
                    let state = restore::inspect(self, &mut folders, effect);
                    matches!(state, State::Old | State::New(_))
                });
                if ours
                    && restore::put_back(self, &mut folders, &journal, |_| true)?
                        .stuck
                        .is_empty()
                {
                    let status = OperationStatus::FailedRolledBack;
                    return Ok(Some(self.settled(
                        journal,
                        folders,
                        status,
                        INTERRUPTED,
                        &[],
                    )));
                }
                kept::clear(self, &mut folders, &mut journal, status)?;
                Ok(None)
            }
            (Some(status), _) => {
                kept::clear(self, &mut folders, &mut journal, status)?;
                Ok(None)
            }
            (None, Some(OperationStatus::Applied)) => {
                let status = OperationStatus::Applied;
                kept::clear(self, &mut folders, &mut journal, status)?;
                Ok(None)
            }
            (None, Some(OperationStatus::FailedRolledBack | OperationStatus::Rejected)) => {
                let status = OperationStatus::FailedRolledBack;
                kept::clear(self, &mut folders, &mut journal, status)?;
                Ok(None)
            }
            (None, _) => self.settle_open(journal, folders).map(Some),
        }
    }

    // Each path is known by its hash.
    fn settle_open(
        self: &Arc<Self>,
        journal: Journal,
        mut folders: Folders,
    ) -> Result<Settled, Fault> {
        let states: Vec<State> = journal
            .effects
            .iter()
            .map(|effect| restore::inspect(self, &mut folders, effect))
            .collect();
        if let Some(errno) = states.iter().find_map(|state| match state {
            State::Unseen(errno) => Some(*errno),
            _ => None,
        }) {
            tracing::error!(operation = %journal.operation, reason = path::reason(errno), "the files of an interrupted patch cannot be read; the next start tries again");
            let why = format!("its files cannot be read: {}", path::reason(errno));
            return Ok(self.left_alone(journal.operation.clone(), Some(journal), &why));
        }
        let not_old: Vec<usize> = (0..states.len())
            .filter(|at| states[*at] != State::Old)
            .collect();
        let is_foreign = |state: &State| matches!(state, State::Foreign(_));
        Ok(if states.iter().any(is_foreign) {
            let status = OperationStatus::Unknown;
            self.settled(journal, folders, status, "unknown", &not_old)
        } else if not_old.is_empty() {
            let status = OperationStatus::FailedRolledBack;
            self.settled(journal, folders, status, INTERRUPTED, &[])
        } else if not_old.len() == states.len() {
            self.settled(journal, folders, OperationStatus::Applied, "", &not_old)
        } else {
            let back = restore::put_back(self, &mut folders, &journal, |_| true)?;
            let status = match (back.stuck.is_empty(), back.unseen) {
                (true, _) => OperationStatus::FailedRolledBack,
                (false, false) => OperationStatus::FailedPartial,
                (false, true) => OperationStatus::Unknown,
            };
            self.settled(journal, folders, status, INTERRUPTED, &back.stuck)
        })
    }

    fn settled(
        self: &Arc<Self>,
        journal: Journal,
        mut folders: Folders,
        status: OperationStatus,
        reason: &str,
        changed: &[usize],
    ) -> Settled {
        let kept = match status {
            OperationStatus::Unknown | OperationStatus::FailedPartial => {
                kept::kept(self, &mut folders, &journal)
            }
            _ => Vec::new(),
        };
        Settled {
            operation: journal.operation.clone(),
            status,
            reason: (status != OperationStatus::Applied).then(|| reason.to_owned()),
            changes: if status == OperationStatus::Applied {
                journal.changes.clone()
            } else {
                rows_of(&journal, changed)
            },
            files: journal.files.clone(),
            kept,
            ledger: journal.ledger.clone(),
            undo: Box::new(Kept {
                root: Arc::clone(self),
                folders,
                journal,
                status,
            }),
        }
    }

    fn is_past(&self, journal: &Journal, keep: Duration) -> bool {
        self.journals()
            .is_some_and(|journals| journals.is_older(journal.operation.as_str(), keep))
    }

    fn forget(&self, journal: &Journal) {
        if let Some(journals) = self.journals() {
            let _ = journal::remove(&journals.dir(), journal.operation.as_str(), self.durable);
        }
    }

    // Nothing is known and nothing is touched; the journal stays for a later start.
    fn left_alone(&self, operation: OperationId, journal: Option<Journal>, why: &str) -> Settled {
        let (files, ledger) =
            journal.map_or_else(Default::default, |journal| (journal.files, journal.ledger));
        Settled {
            operation,
            status: OperationStatus::Unknown,
            reason: Some(why.to_owned()),
            changes: Vec::new(),
            files,
            kept: Vec::new(),
            ledger,
            undo: Box::new(Nothing),
        }
    }

    fn torn(self: &Arc<Self>, operation: OperationId) -> Settled {
        Settled {
            status: OperationStatus::FailedRolledBack,
            reason: Some(INTERRUPTED.to_owned()),
            changes: Vec::new(),
            files: Vec::new(),
            kept: Vec::new(),
            ledger: None,
            undo: Box::new(Torn {
                root: Arc::clone(self),
                operation: operation.clone(),
            }),
            operation,
        }
    }
}

struct Nothing;

impl Undo for Nothing {
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async { false })
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
                let _ =
                    journal::remove(&journals.dir(), self.operation.as_str(), self.root.durable);
            }
        })
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async { true })
    }
}
