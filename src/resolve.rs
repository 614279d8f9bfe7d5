//! Finds the workspace behind a subject: config, runner and ledger together.

use std::{collections::HashMap, sync::Arc};

use codespace_router::{
    BoxFuture, Caller, Ledger, Lookup, Resolve, Subject, ToolError, Workspace, WorkspaceId,
};
use codespace_runner::Runner;

/// See the [module docs](self).
pub struct Directory {
    /// Every workspace.
    pub workspaces: HashMap<WorkspaceId, Arc<Workspace>>,
    /// Knows where a process runs.
    pub runner: Arc<dyn Runner>,
    /// Knows where an operation happened.
    pub ledger: Arc<dyn Ledger>,
}

impl Resolve for Directory {
    fn workspace<'a>(
        &'a self,
        subject: Subject<'a>,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Arc<Workspace>>, ToolError>> {
        Box::pin(async move {
            let id = match subject {
                Subject::Server | Subject::NoOperation => None,
                Subject::Workspace(id) => Some(WorkspaceId::new(id)),
                Subject::Process(id) => {
                    id.parse().ok().and_then(|id| self.runner.workspace_of(&id))
                }
                Subject::Operation(id) => match id.parse() {
                    Ok(id) => self
                        .ledger
                        .find(Lookup::Id(id))
                        .await?
                        .map(|record| record.workspace),
                    Err(_) => None,
                },
                Subject::OperationKey(key) => {
                    let lookup = Lookup::Key {
                        caller: caller.subject().to_owned(),
                        key: key.to_owned(),
                    };
                    self.ledger
                        .find(lookup)
                        .await?
                        .map(|record| record.workspace)
                }
            };
            Ok(id.and_then(|id| self.workspaces.get(&id).cloned()))
        })
    }
}
