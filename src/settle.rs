//! At start: what became of the operations that a crash interrupted.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use codespace_router::{Ledger, Lookup, OperationStatus, Settlement, WorkspaceId};
use codespace_runner::{FileRoot, LockFault, RootLock};
use codespace_store::Store;
use serde_json::json;
use tokio::time::Instant;

/// How long a killed server's worker may take to end its commands and itself.
const WORKER_END: Duration = Duration::from_secs(15);

/// The lock on a root, waited for when there is something to settle: a killed server's
/// worker keeps it until it has ended.
async fn lock_to_settle(root: &FileRoot, unfinished: bool) -> Option<RootLock> {
    let until = Instant::now() + WORKER_END;
    loop {
        match root.try_lock() {
            Ok(lock) => return Some(lock),
            Err(LockFault::Busy)
                if (unfinished || root.has_journals().unwrap_or(false))
                    && Instant::now() < until =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(_) => return None,
        }
    }
}

/// Settles what a crash left: journals first, then operations that never had one.
///
/// # Errors
/// The store cannot be used, or a journal cannot be read.
pub async fn all(store: &Store, roots: &HashMap<WorkspaceId, Arc<FileRoot>>) -> Result<()> {
    let unfinished: HashSet<WorkspaceId> = store
        .unfinished()
        .await?
        .into_iter()
        .map(|operation| operation.workspace)
        .collect();
    for (workspace, root) in roots {
        // Another server may be in the middle of a patch: then its journals are its own affair.
        let Some(lock) = lock_to_settle(root, unfinished.contains(workspace)).await else {
            tracing::warn!(%workspace, "the folder is held by another server; what a crash may have left is settled at the next start");
            continue;
        };
        let files = Arc::clone(root);
        let settled = tokio::task::spawn_blocking(move || files.settle())
            .await?
            .with_context(|| format!("workspace {workspace}: its journals cannot be read"))?;
        for patch in settled {
            tracing::warn!(operation = %patch.operation, status = patch.status.as_str(), "settled a patch that a crash interrupted");
            // A server without a store leaves journals that no ledger knows of.
            if store
                .find(Lookup::Id(patch.operation.clone()))
                .await?
                .is_none()
            {
                patch.undo.keep().await;
                continue;
            }
            let result = json!({
                "status": patch.status, "operation_id": patch.operation, "replayed": false,
                "files": patch.files, "changes": patch.changes, "reason": patch.reason,
            });
            let settlement = Settlement {
                status: patch.status,
                reason: patch.reason,
                result,
            };
            store.finish(patch.operation, settlement).await?;
            // A drop before this leaves the journal, and the next start finds the record finished.
            patch.undo.keep().await;
        }
        drop(lock);
    }
    for operation in store.unfinished().await? {
        let Some(root) = roots.get(&operation.workspace) else {
            continue;
        };
        let Ok(_lock) = root.try_lock() else { continue };
        let reason = "interrupted before anything was written".to_owned();
        let status = OperationStatus::FailedRolledBack;
        let result = json!({
            "status": status, "operation_id": operation.operation_id, "replayed": false,
            "files": operation.files, "changes": [], "reason": reason,
        });
        store
            .finish(
                operation.operation_id,
                Settlement {
                    status,
                    reason: Some(reason),
                    result,
                },
            )
            .await?;
    }
    Ok(())
}
