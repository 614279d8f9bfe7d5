//! The patch transaction as a whole: what it holds, and what a fault in it leads to.
//!
//! Before the first name is exchanged a fault is a refusal and everything staged goes.
//! After it, a fault is a result: every file is put back, as far as that is possible.

use std::{os::fd::OwnedFd, rc::Rc, sync::Arc};

use codespace_router::{Code, OperationStatus, ToolError};
use rustix::{
    fs::{Mode, OFlags, fsync},
    io::Errno,
};

use super::{
    apply::conflict,
    journal::{Effect, Journal},
    kept::{self, Kept},
    load::{FileSeen, Folders, Seen},
    path,
    restore::{self, Look},
    root::{FileRoot, open_beneath},
};
use crate::{Applied, Change};

/// Why a step was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// The system refused, at this path.
    Os(Errno, String),
    /// The journal could not be written.
    Journal(Errno),
    /// Something else changed this path meanwhile.
    Changed(String),
    /// The bytes on disk are not the planned ones.
    Unverified(String),
    /// A test ends the work here, as a kill would.
    #[cfg(test)]
    Killed,
}

impl Fault {
    /// The record's short phrase.
    fn reason(&self) -> String {
        match self {
            Fault::Os(errno, _) | Fault::Journal(errno) => path::reason(*errno),
            Fault::Changed(_) => "changed by another writer".to_owned(),
            Fault::Unverified(_) => "verification failed".to_owned(),
            #[cfg(test)]
            Fault::Killed => "killed".to_owned(),
        }
    }

    fn is_kill(&self) -> bool {
        #[cfg(test)]
        return matches!(self, Fault::Killed);
        #[cfg(not(test))]
        false
    }
}

/// What to do at one path, beside what its journalled [`Effect`] says.
#[derive(Debug)]
pub(super) struct Work {
    /// How the file looked that is replaced or removed.
    pub(super) seen: Option<Seen>,
    /// The new bytes.
    pub(super) after: Option<Arc<Vec<u8>>>,
    /// Whose attributes the new file takes.
    pub(super) like: Option<Rc<FileSeen>>,
}

/// A patch being committed.
pub(super) struct Transaction {
    pub(super) root: Arc<FileRoot>,
    pub(super) folders: Folders,
    pub(super) journal: Journal,
    pub(super) works: Vec<Work>,
    /// Which effects are on disk, or may be.
    pub(super) done: Vec<bool>,
    /// Which folders of the journal this transaction made.
    pub(super) made: Vec<String>,
}

impl Transaction {
    pub(super) fn new(
        root: Arc<FileRoot>,
        folders: Folders,
        journal: Journal,
        works: Vec<Work>,
    ) -> Self {
        let done = vec![false; works.len()];
        Self {
            root,
            folders,
            journal,
            works,
            done,
            made: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Applied, ToolError> {
        if self.root.journals().is_none() {
            return Err(ToolError::internal(
                "a patch reached a root without a journal folder",
            ));
        }
        self.root.sweep();
        let outcome = self
            .prepare()
            .and_then(|()| self.reserve())
            .and_then(|()| self.commit())
            .and_then(|()| self.verify());
        match outcome {
            Ok(()) => {
                let changes = self.journal.changes.clone();
                let undo = self.into_kept(OperationStatus::Applied);
                Ok(Applied {
                    status: OperationStatus::Applied,
                    reason: None,
                    changes,
                    undo: Some(Box::new(undo)),
                })
            }
            Err(fault) if fault.is_kill() => Err(ToolError::internal("killed")),
            Err(fault) if self.done.contains(&true) => Ok(self.roll_back(&fault)),
            Err(fault) => Err(self.withdraw(fault)),
        }
    }

    /// From the first exchange on, running out of descriptors must not end in a guess.
    fn reserve(&mut self) -> Result<(), Fault> {
        self.folders.sure();
        self.root
            .reserve()
            .map_err(|errno| Fault::Os(errno, ".".to_owned()))
    }

    fn roll_back(mut self, fault: &Fault) -> Applied {
        let mut reason = fault.reason();
        let done = std::mem::take(&mut self.done);
        self.folders.sure();
        let back = restore::put_back(&self.root, &mut self.folders, &self.journal, |at| done[at]);
        // Only a test's kill is an error; what it left is for `settle`.
        let Ok(back) = back else {
            return Applied {
                status: OperationStatus::Unknown,
                reason: Some(reason),
                changes: Vec::new(),
                undo: None,
            };
        };
        let changes = rows_of(&self.journal, &back.stuck);
        let status = match (back.stuck.is_empty(), back.unseen) {
            (true, _) => OperationStatus::FailedRolledBack,
            (false, false) => OperationStatus::FailedPartial,
            (false, true) => OperationStatus::Unknown,
        };
        if status != OperationStatus::FailedRolledBack {
            let kept = kept::kept(&self.root, &mut self.folders, &self.journal);
            reason.push_str(&kept::told(&kept));
        }
        let reason = Some(reason);
        Applied {
            status,
            reason,
            changes,
            undo: Some(Box::new(self.into_kept(status))),
        }
    }

    // Nothing was exchanged: removes what was staged and answers why.
    fn withdraw(mut self, fault: Fault) -> ToolError {
        let error = match fault {
            Fault::Os(errno, path) => self.root.refusal(&path, errno),
            Fault::Journal(errno) => ToolError::new(
                Code::StoreUnavailable,
                format!(
                    "nothing was done; the server's journal cannot be written: {}. Its operator must see to its state folder",
                    path::reason(errno)
                ),
            ),
            Fault::Changed(path) | Fault::Unverified(path) => self.conflict(&path),
            #[cfg(test)]
            Fault::Killed => return ToolError::internal("killed"),
        };
        let made = std::mem::take(&mut self.made);
        self.journal.folders = made;
        let _ = kept::clear(
            &self.root,
            &mut self.folders,
            &mut self.journal,
            OperationStatus::FailedRolledBack,
        );
        error
    }

    fn conflict(&mut self, path: &str) -> ToolError {
        let print = self
            .journal
            .effects
            .iter()
            .find(|effect| effect.path == path)
            .and_then(|effect| effect.before.as_ref());
        let expected = print
            .map_or("absent", |print| print.version.as_str())
            .to_owned();
        let (parent, name) = path::split(path);
        let current = match self.folders.get(&self.root, parent) {
            Ok(folder) => restore::look(&self.root, &folder, name, None),
            Err(_) => Ok(Look::Absent),
        };
        match current {
            Ok(Look::File { version, .. }) => conflict(path, &expected, &version),
            Ok(Look::Absent) => conflict(path, &expected, "absent"),
            Ok(Look::Other) | Err(_) => conflict(path, &expected, "not a readable file"),
        }
    }

    fn into_kept(self, status: OperationStatus) -> Kept {
        Kept {
            root: self.root,
            folders: self.folders,
            journal: self.journal,
            status,
        }
    }

    /// The folder a journalled effect is in, and the effect.
    pub(super) fn at(&mut self, index: usize) -> Result<(Arc<OwnedFd>, &Effect), Fault> {
        let effect = &self.journal.effects[index];
        let folder = self.folders.get(&self.root, path::split(&effect.path).0);
        Ok((
            folder.map_err(|errno| Fault::Os(errno, effect.path.clone()))?,
            effect,
        ))
    }

    /// Makes the names in every folder the patch touched survive power loss.
    pub(super) fn sync_folders(&mut self) -> Result<(), Fault> {
        let mut touched: Vec<String> = self
            .journal
            .effects
            .iter()
            .map(|effect| &effect.path)
            .chain(&self.journal.folders)
            .map(|path| path::split(path).0.to_owned())
            .collect();
        touched.sort_unstable();
        touched.dedup();
        for path in touched {
            let asked = if path.is_empty() { "." } else { &path };
            open_beneath(
                self.root.fd(),
                asked,
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )
            .and_then(fsync)
            .map_err(|errno| Fault::Os(errno, path.clone()))?;
        }
        Ok(())
    }
}

/// The rows whose paths are among these effects.
pub(super) fn rows_of(journal: &Journal, stuck: &[usize]) -> Vec<Change> {
    let is_stuck = |path: &str| stuck.iter().any(|at| journal.effects[*at].path == path);
    let affected =
        |row: &&Change| is_stuck(&row.path) || row.moved_to.as_deref().is_some_and(is_stuck);
    journal.changes.iter().filter(affected).cloned().collect()
}
