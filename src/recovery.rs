//! What a crash left is settled before the first call: journals first, then what other
//! servers say of this ledger's operations, then operations that never had a journal.
//!
//! A journal belongs to a folder and its record to a ledger, and the two need not meet in
//! one server. So the files are settled by whoever serves the folder, and word is left for
//! the ledger when it is another one.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use codespace_router::{Ledger, Lookup, OperationId, OperationStatus, Settlement, WorkspaceId};
use codespace_runner::{FileRoot, LockFault, RootLock, Settled};
use codespace_store::Store;
use serde_json::json;

type Roots = HashMap<WorkspaceId, Arc<FileRoot>>;

/// Settles everything that can be settled now. `journals` is the folder of all journals.
pub(crate) async fn settle(
    store: &Store,
    roots: &Roots,
    journals: &Path,
    keep: Duration,
) -> Result<()> {
    for (workspace, root) in roots {
        let unreadable = || format!("workspace {workspace}: its journals cannot be read");
        for word in root.words(store.id(), keep).with_context(unreadable)? {
            let end = settlement(
                &word.operation,
                word.status,
                word.reason,
                (&word.files, &json!(word.changes), &word.kept),
            );
            store.revise(word.operation.clone(), end).await?;
            // A drop before this leaves the word, and the next start finds the record ended.
            root.forget_word(&word.operation);
        }
        // Another server may be in the middle of a patch: then its journals are its own affair.
        let waits = !root.journalled().with_context(unreadable)?.is_empty();
        let Some(lock) = lock(root, waits).await else {
            tracing::warn!(%workspace, "the folder is held by another server; what a crash may have left is settled at the next start");
            continue;
        };
        let mut ended = BTreeMap::new();
        for operation in root.journalled().with_context(unreadable)? {
            if let Some(record) = store.find(Lookup::Id(operation.clone())).await?
                && record.finished_at.is_some()
            {
                ended.insert(operation, record.status);
            }
        }
        let files = Arc::clone(root);
        let settled = tokio::task::spawn_blocking(move || files.settle(&ended, keep))
            .await?
            .with_context(unreadable)?;
        for patch in settled {
            record(store, root, patch).await?;
        }
        drop(lock);
    }
    for operation in store.unfinished().await? {
        let Some(root) = roots.get(&operation.workspace) else {
            continue;
        };
        let Some(_lock) = lock(root, true).await else {
            continue;
        };
        let id = operation.operation_id;
        // The workspace's name may stand for another folder by now, and the journal lie there.
        let (status, reason) = if FileRoot::is_journalled(journals, &id) {
            tracing::warn!(operation = %id, "an interrupted patch belongs to a folder that is not registered now; serve that folder again to settle it");
            (
                OperationStatus::Unknown,
                "interrupted in a folder that is not registered now",
            )
        } else {
            (
                OperationStatus::FailedRolledBack,
                "interrupted before anything was written",
            )
        };
        let reason = Some(reason.to_owned());
        let end = settlement(&id, status, reason, (&operation.files, &json!([]), &[]));
        store.finish(id, end).await?;
    }
    Ok(())
}

async fn record(store: &Store, root: &FileRoot, patch: Settled) -> Result<()> {
    tracing::warn!(operation = %patch.operation, status = patch.status.as_str(), kept = patch.kept.len(), "settled a patch that a crash interrupted");
    // An id cannot be guessed: a ledger that has the operation is the one it belongs to.
    let known = store.find(Lookup::Id(patch.operation.clone())).await?;
    if known.is_some() {
        let end = settlement(
            &patch.operation,
            patch.status,
            patch.reason,
            (&patch.files, &json!(patch.changes), &patch.kept),
        );
        store.revise(patch.operation, end).await?;
    } else if let Err(error) = root.leave_word(&patch) {
        // The journal stays, and the next start tries again.
        tracing::error!(operation = %patch.operation, %error, "the ledger of an interrupted patch could not be told how it ended");
        return Ok(());
    }
    // A drop before this leaves the journal, and the next start finds the record finished.
    patch.undo.keep().await;
    Ok(())
}

fn settlement(
    operation: &OperationId,
    status: OperationStatus,
    reason: Option<String>,
    (files, changes, kept): (&[String], &serde_json::Value, &[String]),
) -> Settlement {
    let mut result = json!({
        "status": status, "operation_id": operation, "replayed": false,
        "files": files, "changes": changes, "reason": reason,
    });
    if !kept.is_empty() {
        result["kept"] = json!(kept);
    }
    Settlement {
        status,
        reason,
        result,
    }
}

/// Locks a root. With `waits`, a server that was killed just now gets a moment to let go of it:
/// a child it was about to start holds its descriptors until that child is another program.
async fn lock(root: &FileRoot, waits: bool) -> Option<RootLock> {
    for _ in 0..if waits { 10 } else { 0 } {
        match root.try_lock() {
            Err(LockFault::Busy) => tokio::time::sleep(Duration::from_millis(50)).await,
            answer => return answer.ok(),
        }
    }
    root.try_lock().ok()
}
