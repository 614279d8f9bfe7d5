//! Records an operation before its work begins and settles it when the work has ended.
//!
//! Innermost, under the lease: the key is looked at once more, in one transaction with
//! the minting of the operation, and nothing else can happen in the workspace until the
//! end is recorded. The lease is dropped last. Whatever happens below settles the
//! operation: a result, an error (`rejected`), a fault or a panic (`unknown`). When the
//! end cannot be stored, the old state is put back and the call fails with
//! `STORE_UNAVAILABLE`. It never retries the work. It stands below detach, so only the end
//! of the runtime drops it; what each `.await` leaves then is said beside it. Emits
//! `codespace_patch_operations_total`, and replay's counters.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
};

use codespace_router::{
    AuthorizedCall, BoxFuture, Code, Keyed, Ledger, Lookup, Minted, NewOperation, OperationId,
    OperationStatus, Recorded, Settlement, ToolError, ToolReply, Undo,
};
use futures_util::FutureExt;
use tower_layer::Layer;
use tower_service::Service;

use crate::{names, panics, record};

/// Wraps a service in [`Settle`]. See the [module docs](self).
#[derive(Clone)]
pub struct SettleLayer {
    ledger: Arc<dyn Ledger>,
}

/// Records what each call did. See the [module docs](self).
#[derive(Clone)]
pub struct Settle<S> {
    inner: S,
    ledger: Arc<dyn Ledger>,
}

// === impl SettleLayer ===

impl SettleLayer {
    /// Records in `ledger`.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger }
    }
}

impl<S> Layer<S> for SettleLayer {
    type Service = Settle<S>;

    fn layer(&self, inner: S) -> Settle<S> {
        Settle {
            inner,
            ledger: self.ledger.clone(),
        }
    }
}

impl fmt::Debug for SettleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettleLayer")
    }
}

// === impl Settle ===

impl<A, S> Service<AuthorizedCall<A>> for Settle<S>
where
    A: Keyed + Send + Sync + 'static,
    S: Service<AuthorizedCall<A>, Response = ToolReply> + Clone + Send + 'static,
    S::Error: Into<ToolError>,
    S::Future: Send,
{
    type Response = ToolReply;
    type Error = ToolError;
    type Future = BoxFuture<'static, Result<ToolReply, ToolError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: AuthorizedCall<A>) -> Self::Future {
        let unready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, unready);
        let ledger = self.ledger.clone();
        Box::pin(async move {
            // Held to the end of this block, so that the record is stored under it.
            let lease = call.take_lease();
            let answer = run(ready, call, &*ledger).await;
            drop(lease);
            answer
        })
    }
}

impl<S> fmt::Debug for Settle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settle")
    }
}

async fn run<A, S>(
    mut ready: S,
    mut call: AuthorizedCall<A>,
    ledger: &dyn Ledger,
) -> Result<ToolReply, ToolError>
where
    A: Keyed,
    S: Service<AuthorizedCall<A>, Response = ToolReply>,
    S::Error: Into<ToolError>,
{
    let fingerprint = call.args().fingerprint();
    let operation = NewOperation {
        caller: call.caller().subject().to_owned(),
        key: call.args().operation_key().map(str::to_owned),
        fingerprint,
        workspace: call.workspace()?.id.clone(),
        files: call.args().files(),
    };
    // A drop here leaves nothing, or an operation that recovery settles.
    let id = match ledger.mint(operation).await? {
        Minted::New(id) => id,
        Minted::Taken(record) => {
            return record::answer(*record, fingerprint).unwrap_or_else(|| Err(unsettled()));
        }
    };
    call.record_as(id.clone());
    // A drop here leaves the runner's journal, from which recovery settles the operation.
    let work = AssertUnwindSafe(async move { ready.call(call).await.map_err(Into::into) });
    let answer = work
        .catch_unwind()
        .await
        .unwrap_or_else(|payload| Err(panics::into_error(&*payload)));
    match answer {
        Ok(reply) => settle_reply(ledger, id, reply).await,
        Err(error) => Err(settle_error(ledger, id, error).await),
    }
}

fn unsettled() -> ToolError {
    ToolError::new(
        Code::WorkspaceBusy,
        "an earlier call with this operation_key is not settled yet; repeat this call later, or ask operation_status",
    )
}

async fn settle_reply(
    ledger: &dyn Ledger,
    id: OperationId,
    mut reply: ToolReply,
) -> Result<ToolReply, ToolError> {
    let Some(Recorded {
        status,
        reason,
        undo,
    }) = reply.recorded.take()
    else {
        let fault = ToolError::internal("a recorded tool did not say how its operation ended");
        return Err(settle_error(ledger, id, fault).await);
    };
    let settlement = Settlement {
        status,
        reason,
        result: reply.value.clone(),
    };
    // A drop here leaves the journal beside a record that is running or finished; recovery
    // settles the one and clears up after the other.
    match finish(ledger, &id, settlement).await {
        Ok(()) => {
            if let Some(undo) = undo {
                // A drop here leaves old bytes that recovery clears away.
                undo.keep().await;
            }
            Ok(reply)
        }
        Err(cause) => Err(take_back(ledger, id, status, undo, cause).await),
    }
}

// The answer is the error, named by its operation; what it says is stored first.
async fn settle_error(ledger: &dyn Ledger, id: OperationId, error: ToolError) -> ToolError {
    let (status, reason) = match error.code() {
        Code::Internal => (OperationStatus::Unknown, "server fault"),
        _ => (OperationStatus::Rejected, "rejected"),
    };
    let error = error.with_operation(id.clone());
    let settlement = Settlement {
        status,
        reason: Some(reason.to_owned()),
        result: error.body(),
    };
    // A drop here leaves a running operation without a trace on disk; recovery settles it.
    match finish(ledger, &id, settlement).await {
        Ok(()) => error,
        Err(_) if status == OperationStatus::Unknown => error,
        Err(cause) => {
            let refusal = error.code().as_str();
            let message = format!(
                "the call was refused ({refusal}) and changed nothing, but its record could not be stored"
            );
            ToolError::new(Code::StoreUnavailable, message)
                .with_operation(id)
                .with_source(cause)
        }
    }
}

async fn finish(
    ledger: &dyn Ledger,
    id: &OperationId,
    settlement: Settlement,
) -> Result<(), ToolError> {
    let status = settlement.status;
    if let Err(cause) = ledger.finish(id.clone(), settlement).await {
        // A commit may have gone through although its answer was lost: then the old state must not come back.
        let found = ledger.find(Lookup::Id(id.clone())).await;
        if !matches!(found, Ok(Some(record)) if record.status == status) {
            return Err(cause);
        }
    }
    metrics::counter!(names::PATCH_OPERATIONS, "status" => status.as_str()).increment(1);
    Ok(())
}

async fn take_back(
    ledger: &dyn Ledger,
    id: OperationId,
    ended: OperationStatus,
    undo: Option<Box<dyn Undo>>,
    cause: ToolError,
) -> ToolError {
    let untouched = matches!(
        ended,
        OperationStatus::Checked | OperationStatus::Rejected | OperationStatus::FailedRolledBack
    );
    let restored = match undo {
        // A drop here leaves the journal, which recovery carries on from.
        Some(undo) => undo
            .restore()
            .await
            .then_some(OperationStatus::FailedRolledBack),
        None => untouched.then_some(ended),
    };
    let message = match restored {
        Some(_) => {
            "the record could not be stored, so nothing was done: the files have their old bytes. \
             Repeat the call when the store is back, under a new key"
        }
        None => {
            "the record could not be stored, and not all old bytes could be put back; \
             read the files before you go on, and ask operation_status later"
        }
    };
    let status = restored.unwrap_or(OperationStatus::Unknown);
    let error = ToolError::new(Code::StoreUnavailable, message)
        .with_operation(id.clone())
        .with_source(cause);
    let reason = Some("the record could not be stored".to_owned());
    // Best effort: while the store is away the operation stays running and recovery settles it.
    let _ = finish(
        ledger,
        &id,
        Settlement {
            status,
            reason,
            result: error.body(),
        },
    )
    .await;
    error
}

#[cfg(test)]
mod tests;
