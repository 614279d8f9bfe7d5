//! One mutation at a time per workspace: a table within this server, an advisory lock
//! on the root against other servers of this host.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use codespace_router::{Code, Lease, LeaseOwner, Leases, ToolError, Workspace, WorkspaceId};

use crate::{
    files::{FileRoot, LockFault, RootLock},
    in_process::root_gone,
};

/// The lease table over the workspaces' roots. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct RootLeases {
    roots: Arc<HashMap<WorkspaceId, Arc<FileRoot>>>,
    held: Arc<Mutex<HashSet<WorkspaceId>>>,
}

impl RootLeases {
    /// No lease held yet.
    #[must_use]
    pub fn new(roots: Arc<HashMap<WorkspaceId, Arc<FileRoot>>>) -> Self {
        Self {
            roots,
            held: Arc::default(),
        }
    }
}

/// Frees the workspace when dropped: first the lock, then the table, so that whoever
/// takes the table's place finds the lock free.
struct Held {
    table: Arc<Mutex<HashSet<WorkspaceId>>>,
    workspace: WorkspaceId,
    owner: &'static str,
    lock: Option<RootLock>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.lock.take().is_some() {
            metrics::gauge!("codespace_workspace_leases", "owner" => self.owner).decrement(1.0);
        }
        held(&self.table).remove(&self.workspace);
    }
}

// A panic elsewhere leaves the set whole: each use is one call.
fn held(table: &Mutex<HashSet<WorkspaceId>>) -> MutexGuard<'_, HashSet<WorkspaceId>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn busy(message: &str) -> ToolError {
    ToolError::new(Code::WorkspaceBusy, message.to_owned())
}

impl Leases for RootLeases {
    fn try_hold(&self, workspace: &Workspace, owner: LeaseOwner) -> Result<Lease, ToolError> {
        let root = self
            .roots
            .get(&workspace.id)
            .ok_or_else(|| ToolError::internal("a lease on an unknown workspace"))?;
        if !held(&self.held).insert(workspace.id.clone()) {
            return Err(busy(
                "another patch or a live command holds this workspace; wait for it (process_status with wait_ms) or end it (terminate_process), then repeat this call",
            ));
        }
        // Without its root a patch fails on files, and a command was not started.
        let (owner, code) = match owner {
            LeaseOwner::Patch => ("patch", Code::FileOperationFailed),
            LeaseOwner::Process => ("process", Code::ProcessSpawnFailed),
        };
        // From here on the guard's drop clears the table, whatever happens.
        let mut lease = Held {
            table: Arc::clone(&self.held),
            workspace: workspace.id.clone(),
            owner,
            lock: None,
        };
        match root.try_lock() {
            Ok(lock) => lease.lock = Some(lock),
            Err(LockFault::Busy) => {
                return Err(busy(
                    "another server on this host holds this folder; wait for its patch or command to end, then repeat this call",
                ));
            }
            Err(fault @ LockFault::Gone) => {
                return Err(root_gone(&workspace.id, code).with_source(fault));
            }
            Err(fault @ LockFault::Os(_)) => {
                return Err(ToolError::new(
                    code,
                    format!("the root of workspace {} cannot be locked. Nothing was done; the server's operator must see to it", workspace.id),
                )
                .with_source(fault));
            }
        }
        metrics::gauge!("codespace_workspace_leases", "owner" => owner).increment(1.0);
        Ok(Box::new(lease))
    }
}
