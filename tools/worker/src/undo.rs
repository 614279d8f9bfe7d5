//! The old state of a patch that a worker holds, and what is done about it when that
//! worker is lost: the journal says all that is needed.

use std::sync::Arc;

use codespace_router::{BoxFuture, OperationId, OperationStatus, Undo};
use codespace_runner::{Applied, FileRoot};

use crate::{connection::Connection, wire};

const LOST: &str = "the worker was lost before anything was written";

/// Tells the worker what to do with the old state it holds.
pub(crate) struct RemoteUndo {
    pub(crate) connection: Arc<Connection>,
    pub(crate) root: Arc<FileRoot>,
    pub(crate) operation: OperationId,
    pub(crate) status: OperationStatus,
}

impl RemoteUndo {
    async fn end(self, keep: bool) -> bool {
        let request = wire::UndoRequest {
            operation: self.operation.as_str().to_owned(),
            keep,
        };
        let answer = self
            .connection
            .call(|mut client| async move { client.undo(request).await })
            .await;
        match answer {
            Ok(Ok(undone)) => return undone.done,
            Ok(Err(error)) => {
                tracing::warn!(operation = %self.operation, %error, "the worker could not end what a patch kept");
                return false;
            }
            Err(_) => self.connection.ended().await,
        }
        // The call's lease still keeps everybody else out.
        let Self {
            root,
            operation,
            status,
            ..
        } = self;
        let name = operation.clone();
        let found = tokio::task::spawn_blocking(move || root.undo_of(&name, status)).await;
        match found {
            Ok(Ok(Some(undo))) if keep => {
                undo.keep().await;
                true
            }
            Ok(Ok(Some(undo))) => undo.restore().await,
            // Without a journal the worker had done it.
            Ok(Ok(None)) => true,
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(%operation, "the journal of a patch cannot be read; the next start tries again");
                false
            }
        }
    }
}

impl Undo for RemoteUndo {
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.end(true).await;
        })
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(self.end(false))
    }
}

/// What became of a patch whose worker was lost: what its journal and the files show.
pub(crate) async fn settle(root: Arc<FileRoot>, operation: OperationId) -> Applied {
    let name = operation.clone();
    let found = tokio::task::spawn_blocking(move || root.settle_operation(&name)).await;
    let (status, reason, changes, undo) = match found {
        Ok(Ok(Some(settled))) => (
            settled.status,
            settled.reason,
            settled.changes,
            Some(settled.undo),
        ),
        Ok(Ok(None)) => (
            OperationStatus::FailedRolledBack,
            Some(LOST.to_owned()),
            Vec::new(),
            None,
        ),
        Ok(Err(_)) | Err(_) => (
            OperationStatus::Unknown,
            Some("the worker was lost".to_owned()),
            Vec::new(),
            None,
        ),
    };
    tracing::warn!(%operation, status = status.as_str(), "settled a patch whose worker was lost");
    Applied {
        status,
        reason,
        changes,
        undo,
    }
}
