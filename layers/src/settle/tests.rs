use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio_test::{assert_ready_ok, task};
use tower_test::mock;

use crate::fakes::MemoryLedger;

use super::*;
use crate::testing;

struct Old(bool, Arc<AtomicBool>);

impl Undo for Old {
    fn keep(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.1.store(true, SeqCst);
        Box::pin(async {})
    }

    fn restore(self: Box<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async move { self.0 })
    }
}

fn applied(restores: bool, kept: &Arc<AtomicBool>) -> ToolReply {
    let undo: Box<dyn Undo> = Box::new(Old(restores, kept.clone()));
    let recorded = Recorded {
        status: OperationStatus::Applied,
        reason: None,
        undo: Some(undo),
    };
    ToolReply {
        recorded: Some(recorded),
        ..testing::reply()
    }
}

// One call through the layer, answered by `answer`; `None` panics the tool.
async fn settle(
    ledger: &Arc<MemoryLedger>,
    print: u8,
    answer: Option<Result<ToolReply, ToolError>>,
) -> Result<ToolReply, ToolError> {
    let (mut service, mut handle) = mock::spawn_layer(SettleLayer::new(ledger.clone()));
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    let mut call = task::spawn(service.call(testing::authorized(Some("k"), print).await));
    if let Poll::Ready(early) = call.poll() {
        return early;
    }
    let (seen, send) = testing::next(&mut handle).await;
    assert!(seen.operation().is_some());
    match answer.expect("an answer") {
        Ok(reply) => send.send_response(reply),
        Err(error) => send.send_error(error),
    }
    call.await
}

#[tokio::test]
async fn a_result_is_stored_and_its_key_taken() {
    let (ledger, kept) = (Arc::new(MemoryLedger::default()), Arc::default());
    settle(&ledger, 0, Some(Ok(applied(true, &kept))))
        .await
        .expect("applied");
    assert!(kept.load(SeqCst));
    assert_eq!(ledger.records()[0].status, OperationStatus::Applied);
    assert!(settle(&ledger, 0, None).await.expect("replayed").replayed);
    let other = settle(&ledger, 1, None).await.expect_err("conflict");
    assert_eq!(
        (other.code(), other.operation_id()),
        (Code::OperationKeyConflict, None)
    );
}

#[tokio::test]
async fn an_error_is_rejected_and_replayed() {
    let ledger = Arc::new(MemoryLedger::default());
    let stale = ToolError::new(Code::VersionConflict, "changed");
    let first = settle(&ledger, 0, Some(Err(stale)))
        .await
        .expect_err("rejected");
    assert_eq!(ledger.records()[0].status, OperationStatus::Rejected);
    let again = settle(&ledger, 0, None).await.expect_err("replayed");
    assert!(again.is_replayed());
    assert_eq!(again.operation_id(), first.operation_id());
}

#[tokio::test]
async fn a_fault_is_unknown() {
    let ledger = Arc::new(MemoryLedger::default());
    settle(&ledger, 0, Some(Err(ToolError::internal("x"))))
        .await
        .expect_err("fault");
    assert_eq!(ledger.records()[0].status, OperationStatus::Unknown);
}

#[tokio::test]
async fn without_a_record_the_old_state_comes_back() {
    for restores in [true, false] {
        let (ledger, kept) = (Arc::new(MemoryLedger::default()), Arc::default());
        ledger.break_finish(true);
        let error = settle(&ledger, 0, Some(Ok(applied(restores, &kept))))
            .await
            .expect_err("not stored");
        assert_eq!(error.code(), Code::StoreUnavailable);
        assert_eq!(error.message().contains("nothing was done"), restores);
        assert!(!kept.load(SeqCst));
        let busy = settle(&ledger, 0, None).await.expect_err("running");
        assert_eq!(busy.code(), Code::WorkspaceBusy);
    }
}
