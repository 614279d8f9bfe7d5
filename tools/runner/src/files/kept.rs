//! What a patch leaves beside its targets: removed once the record is stored, except the
//! last copy of bytes that could not be put back.
//!
//! A name that cannot be removed does not keep the others: the journal stays, cut down to
//! what is left, and later patches and starts try again.

use rustix::{
    fs::{AtFlags, unlinkat},
    io::Errno,
};

use std::sync::{Arc, PoisonError};

use codespace_router::{BoxFuture, OperationStatus, Undo};

use super::{
    journal::{self, Effect, Journal},
    load::Folders,
    path,
    restore::{self, Look, State},
    root::FileRoot,
    transaction::Fault,
};

// A few unlinks are cheaper than a hop to another thread.
const INLINE: usize = 4;

// So many journals are tried again beside a patch; more would be a burden on each.
const RETRIES: usize = 8;

/// The names of an effect that may stand beside its target.
fn names(effect: &Effect) -> impl Iterator<Item = &str> {
    let staged = effect.after.is_some().then_some(effect.staged.as_str());
    let backup = effect.before.is_some().then_some(effect.backup.as_str());
    staged.into_iter().chain(backup)
}

/// Whether a status leaves paths that are neither old nor new for certain.
fn is_open(status: OperationStatus) -> bool {
    matches!(
        status,
        OperationStatus::Unknown | OperationStatus::FailedPartial
    )
}

/// The names of an effect that may hold the last copy of somebody's bytes.
fn last_copies(root: &FileRoot, held: &mut Folders, effect: &Effect, state: State) -> Vec<String> {
    match state {
        State::Old | State::Foreign(false) => return Vec::new(),
        State::New(_) | State::Foreign(true) | State::Unseen(_) => {}
    }
    let Ok(folder) = held.get(root, path::split(&effect.path).0) else {
        return names(effect).map(str::to_owned).collect();
    };
    let last = |name: &&str| match restore::look(root, &folder, name, restore::sizes(effect)) {
        Ok(Look::Absent) => false,
        // The new bytes are in the patch.
        Ok(look) => !look.is(effect.after.as_ref()),
        Err(_) => true,
    };
    names(effect).filter(last).map(str::to_owned).collect()
}

/// The paths, from the root, of what must be kept.
pub(super) fn kept(root: &FileRoot, held: &mut Folders, journal: &Journal) -> Vec<String> {
    let mut kept = Vec::new();
    for effect in &journal.effects {
        let parent = path::split(&effect.path).0;
        let state = restore::inspect(root, held, effect);
        for name in last_copies(root, held, effect, state) {
            kept.push(if parent.is_empty() {
                name
            } else {
                format!("{parent}/{name}")
            });
        }
    }
    kept
}

/// How a reason goes on about what is kept.
pub(super) fn told(kept: &[String]) -> String {
    const NAMED: usize = 3;
    if kept.is_empty() {
        return String::new();
    }
    let named: Vec<_> = kept
        .iter()
        .take(NAMED)
        .map(|path| path::shown(path))
        .collect();
    let more = if kept.len() > NAMED {
        format!(" and {} more beside their files", kept.len() - NAMED)
    } else {
        String::new()
    };
    format!("; old bytes are kept in {}{more}", named.join(", "))
}

/// Removes every name the journal holds beside the targets, then the journal. What may
/// be a last copy stays, and so does the journal of what could not be removed.
///
/// # Errors
/// Only a test's kill.
pub(super) fn clear(
    root: &FileRoot,
    held: &mut Folders,
    journal: &mut Journal,
    status: OperationStatus,
) -> Result<(), Fault> {
    let (mut left, mut foreign, mut again) = (Vec::new(), Vec::new(), None);
    for (at, effect) in journal.effects.iter().enumerate() {
        let mut last = Vec::new();
        if is_open(status) {
            let state = restore::inspect(root, held, effect);
            if matches!(state, State::Foreign(_)) {
                foreign.push(at);
            }
            last = last_copies(root, held, effect, state);
        }
        let mut stays = !last.is_empty();
        match held.get(root, path::split(&effect.path).0) {
            Ok(folder) => {
                for name in names(effect).filter(|name| !last.iter().any(|last| last == name)) {
                    root.steps.pass("clear")?;
                    match unlinkat(&*folder, name, AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(errno) => {
                            stays = true;
                            again = Some(errno);
                        }
                    }
                }
            }
            // A folder for this new file alone, which never came to be, or is gone with it.
            Err(Errno::NOENT) if effect.before.is_none() => {}
            // Moved away, it may come back, with our names in it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => stays = true,
            Err(errno) => {
                stays = true;
                again = Some(errno);
            }
        }
        if stays {
            left.push(at);
        }
    }
    let rolled_back = status == OperationStatus::FailedRolledBack;
    for path in journal.folders.iter().rev().filter(|_| rolled_back) {
        let (parent, name) = path::split(path);
        root.steps.pass("remove a folder")?;
        if let Ok(parent) = held.get(root, parent) {
            // Not empty, or gone: then it is someone else's by now.
            let _ = unlinkat(&*parent, name, AtFlags::REMOVEDIR);
        }
    }
    root.steps.pass("remove the journal")?;
    let Some(journals) = root.journals() else {
        return Ok(());
    };
    if left.is_empty() {
        if let Err(errno) =
            journal::remove(&journals.dir(), journal.operation.as_str(), root.durable)
        {
            tracing::warn!(operation = %journal.operation, reason = path::reason(errno), "the journal of a settled patch was not removed");
        }
        return Ok(());
    }
    // While something is kept, so is the memory of what stood in its way.
    left.append(&mut foreign);
    let mut at = 0;
    journal.effects.retain(|_| {
        at += 1;
        left.contains(&(at - 1))
    });
    journal.ended = Some(status);
    let reduced = journal.encode().map_err(|_| Errno::INVAL);
    if let Err(errno) =
        reduced.and_then(|bytes| journals.replace(journal.operation.as_str(), &bytes, root.durable))
    {
        // The whole one stays; the ledger knows that its operation ended.
        tracing::warn!(operation = %journal.operation, reason = path::reason(errno), "the journal of a settled patch was not cut down");
    }
    if let Some(errno) = again {
        tracing::warn!(operation = %journal.operation, reason = path::reason(errno), "old bytes of a patch were not removed; later patches and starts try again");
        root.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((journal.clone(), status));
    }
    Ok(())
}

impl FileRoot {
    /// Tries again to remove what earlier patches could not. Call it under the lease.
    pub(super) fn sweep(&self) {
        let waiting = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let few = left.len().min(RETRIES);
            left.drain(..few).collect::<Vec<_>>()
        };
        for (mut journal, status) in waiting {
            let _ = clear(self, &mut Folders::default(), &mut journal, status);
        }
    }
}

/// The old state of a patch, until its record is stored.
pub(super) struct Kept {
    pub(super) root: Arc<FileRoot>,
    pub(super) folders: Folders,
    pub(super) journal: Journal,
    pub(super) status: OperationStatus,
}

impl Kept {
    pub(super) fn clear(mut self) {
        // Only a test's kill is an error here.
        let _ = clear(
            &self.root,
            &mut self.folders,
            &mut self.journal,
            self.status,
        );
    }

    pub(super) fn put_back(mut self) -> bool {
        if is_open(self.status) {
            return false;
        }
        match restore::put_back(&self.root, &mut self.folders, &self.journal, |_| true) {
            Ok(back) if back.stuck.is_empty() => {
                self.status = OperationStatus::FailedRolledBack;
                self.clear();
                true
            }
            _ => false,
        }
    }
}

impl Undo for Kept {
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if self.journal.effects.len() <= INLINE && !is_open(self.status) {
                self.clear();
            } else if tokio::task::spawn_blocking(move || self.clear())
                .await
                .is_err()
            {
                tracing::warn!("removing the old bytes of a patch did not end");
            }
        })
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async move {
            tokio::task::spawn_blocking(move || self.put_back())
                .await
                .unwrap_or(false)
        })
    }
}
