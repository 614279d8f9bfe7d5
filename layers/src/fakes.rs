//! A world of one workspace, for tests and examples.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use codespace_router::{
    AccessClass, Annotations, BoxFuture, Caller, Code, Lease, LeaseOwner, Leases, Ledger, Lookup,
    Minted, NewOperation, OperationId, OperationRecord, OperationStatus, Profile, Resolve,
    Settlement, Subject, ToolError, ToolSpec, Workspace, WorkspaceId,
};

/// The one workspace, `demo`.
#[must_use]
pub fn workspace() -> Arc<Workspace> {
    let protect = Arc::from(Vec::new());
    Arc::new(Workspace {
        id: WorkspaceId::new("demo"),
        profile: Profile::WorkspaceWrite,
        protect,
    })
}

/// A tool's words, with empty schemas.
#[must_use]
pub fn spec(name: &'static str, class: AccessClass) -> Arc<ToolSpec> {
    let annotations = Annotations {
        read_only: false,
        destructive: false,
        idempotent: false,
        open_world: false,
    };
    let (input, output) = (Arc::default(), Arc::default());
    Arc::new(ToolSpec {
        name,
        title: name,
        description: name,
        class,
        annotations,
        input,
        output,
    })
}

/// Finds [`workspace`] by its id, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneWorkspace;

impl Resolve for OneWorkspace {
    fn workspace<'a>(
        &'a self,
        subject: Subject<'a>,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Arc<Workspace>>, ToolError>> {
        let found = (subject == Subject::Workspace("demo")).then(workspace);
        Box::pin(std::future::ready(Ok(found)))
    }
}

/// Leases in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryLeases(Arc<Mutex<HashSet<WorkspaceId>>>);

struct Held(MemoryLeases, WorkspaceId);

impl MemoryLeases {
    /// Whether the workspace is held.
    #[must_use]
    pub fn is_held(&self, workspace: &Workspace) -> bool {
        lock(&self.0).contains(&workspace.id)
    }
}

impl Leases for MemoryLeases {
    fn try_hold(&self, workspace: &Workspace, _: LeaseOwner) -> Result<Lease, ToolError> {
        if lock(&self.0).insert(workspace.id.clone()) {
            return Ok(Box::new(Held(self.clone(), workspace.id.clone())));
        }
        Err(ToolError::new(
            Code::WorkspaceBusy,
            "another call holds the workspace",
        ))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.0.0).remove(&self.1);
    }
}

/// A ledger in memory, which can be made to fail.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    entries: Mutex<Vec<(NewOperation, OperationRecord)>>,
    broken: AtomicBool,
}

impl MemoryLedger {
    /// From now on nothing can be finished, or again everything can.
    pub fn break_finish(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }

    /// Every record, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<OperationRecord> {
        lock(&self.entries)
            .iter()
            .map(|(_, record)| record.clone())
            .collect()
    }

    fn by_key(&self, caller: &str, key: Option<&str>) -> Option<OperationRecord> {
        let entries = lock(&self.entries);
        let found = entries
            .iter()
            .find(|(new, _)| key.is_some() && new.caller == caller && new.key.as_deref() == key);
        found.map(|(_, record)| record.clone())
    }
}

impl Ledger for MemoryLedger {
    fn find(&self, lookup: Lookup) -> BoxFuture<'_, Result<Option<OperationRecord>, ToolError>> {
        let found = match lookup {
            Lookup::Id(id) => self
                .records()
                .into_iter()
                .find(|record| record.operation_id == id),
            Lookup::Key { caller, key } => self.by_key(&caller, Some(&key)),
        };
        Box::pin(std::future::ready(Ok(found)))
    }

    fn mint(&self, operation: NewOperation) -> BoxFuture<'_, Result<Minted, ToolError>> {
        if let Some(taken) = self.by_key(&operation.caller, operation.key.as_deref()) {
            return Box::pin(std::future::ready(Ok(Minted::Taken(Box::new(taken)))));
        }
        let id = OperationId::mint();
        let record = OperationRecord {
            operation_id: id.clone(),
            workspace: operation.workspace.clone(),
            fingerprint: operation.fingerprint,
            status: OperationStatus::Running,
            created_at: "2026-01-01T00:00:00Z".to_owned(),
            finished_at: None,
            files: operation.files.clone(),
            result: None,
            events: Vec::new(),
        };
        lock(&self.entries).push((operation, record));
        Box::pin(std::future::ready(Ok(Minted::New(id))))
    }

    fn finish(
        &self,
        operation: OperationId,
        settlement: Settlement,
    ) -> BoxFuture<'_, Result<(), ToolError>> {
        if self.broken.load(Ordering::SeqCst) {
            let error = ToolError::new(Code::StoreUnavailable, "the ledger cannot be written");
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut entries = lock(&self.entries);
        if let Some((_, record)) = entries
            .iter_mut()
            .find(|(_, record)| record.operation_id == operation)
            && record.status == OperationStatus::Running
        {
            record.status = settlement.status;
            record.result = Some(settlement.result);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
