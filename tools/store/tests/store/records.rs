//! What is recorded is what is found.

use codespace_router::{Code, Ledger, Lookup, Minted, OperationId, OperationStatus, Settlement};
use codespace_store::Store;
use serde_json::json;

use crate::{applied, mint, open, operation, options};

fn by_key(caller: &str, key: &str) -> Lookup {
    Lookup::Key {
        caller: caller.to_owned(),
        key: key.to_owned(),
    }
}

#[tokio::test]
async fn an_operation_is_found_running_and_then_ended() {
    let store = Store::in_memory(options()).expect("open");
    let id = mint(&store, Some("k")).await;
    let running = store
        .find(Lookup::Id(id.clone()))
        .await
        .expect("find")
        .expect("there");
    assert_eq!(running.operation_id, id);
    assert_eq!(running.status, OperationStatus::Running);
    assert_eq!(
        (running.finished_at.as_ref(), running.result.as_ref()),
        (None, None)
    );
    assert_eq!(running.files, operation(None).files);
    assert_eq!(running.fingerprint, operation(None).fingerprint);
    assert_eq!(running.workspace.as_str(), "demo");
    assert_eq!(running.events.len(), 1);
    assert_eq!(store.unfinished().await.expect("unfinished").len(), 1);

    let settlement = Settlement {
        status: OperationStatus::FailedRolledBack,
        reason: Some("write failed".to_owned()),
        result: json!({ "n": 1.5, "s": "\u{0}ü" }),
    };
    store
        .finish(id.clone(), settlement.clone())
        .await
        .expect("finish");
    let ended = store
        .find(by_key("ann", "k"))
        .await
        .expect("find")
        .expect("there");
    assert_eq!(ended.operation_id, id);
    assert_eq!(ended.status, OperationStatus::FailedRolledBack);
    assert_eq!(ended.result, Some(settlement.result));
    assert_eq!(ended.events.len(), 2);
    assert_eq!(ended.events[0].name, "minted");
    assert_eq!(ended.events[0].at, ended.created_at);
    assert_eq!(ended.events[1].name, "finished");
    assert_eq!(Some(&ended.events[1].at), ended.finished_at.as_ref());
    assert_eq!(
        ended.events[1].status,
        Some(OperationStatus::FailedRolledBack)
    );
    assert_eq!(ended.events[1].reason.as_deref(), Some("write failed"));
    assert!(store.unfinished().await.expect("unfinished").is_empty());
}

#[tokio::test]
async fn a_key_is_taken_once_and_by_one_caller() {
    let store = Store::in_memory(options()).expect("open");
    let id = mint(&store, Some("k")).await;
    match store.mint(operation(Some("k"))).await.expect("mint") {
        Minted::Taken(record) => assert_eq!(record.operation_id, id),
        Minted::New(id) => panic!("a second {id}"),
    }
    let mut other = operation(Some("k"));
    other.caller = "bob".to_owned();
    assert!(matches!(
        store.mint(other).await.expect("mint"),
        Minted::New(_)
    ));
    assert!(
        store
            .find(by_key("eve", "k"))
            .await
            .expect("find")
            .is_none()
    );
    // Without a key every call is its own.
    assert_ne!(mint(&store, None).await, mint(&store, None).await);
}

#[tokio::test]
async fn the_first_end_stays() {
    let store = Store::in_memory(options()).expect("open");
    let id = mint(&store, None).await;
    store.finish(id.clone(), applied()).await.expect("finish");
    let later = Settlement {
        status: OperationStatus::Unknown,
        ..applied()
    };
    store
        .finish(id.clone(), later)
        .await
        .expect("a second end is no error");
    let record = store
        .find(Lookup::Id(id))
        .await
        .expect("find")
        .expect("there");
    assert_eq!(record.status, OperationStatus::Applied);
}

#[tokio::test]
async fn what_cannot_be_is_an_internal_fault() {
    let store = Store::in_memory(options()).expect("open");
    let error = store
        .finish(OperationId::mint(), applied())
        .await
        .expect_err("never minted");
    assert_eq!(error.code(), Code::Internal);
    let id = mint(&store, None).await;
    let running = Settlement {
        status: OperationStatus::Running,
        ..applied()
    };
    assert_eq!(
        store.finish(id, running).await.expect_err("no end").code(),
        Code::Internal
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_calls_with_one_key_one_is_new() {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(&dir.path().join("s.sqlite"));
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.mint(operation(Some("same"))).await.expect("mint") })
        })
        .collect();
    let mut new = Vec::new();
    let mut taken = Vec::new();
    for call in calls {
        match call.await.expect("task") {
            Minted::New(id) => new.push(id),
            Minted::Taken(record) => taken.push(record.operation_id),
        }
    }
    assert_eq!((new.len(), taken.len()), (1, 49));
    assert!(taken.iter().all(|id| *id == new[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_calls_at_once_all_end() {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(&dir.path().join("s.sqlite"));
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let id = mint(&store, Some(&format!("key {n}"))).await;
                store.finish(id.clone(), applied()).await.expect("finish");
                store
                    .find(Lookup::Id(id))
                    .await
                    .expect("find")
                    .expect("there")
                    .status
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.expect("task"), OperationStatus::Applied);
    }
}

#[tokio::test]
async fn a_dropped_mint_leaves_nothing_or_a_running_operation() {
    let store = Store::in_memory(options()).expect("open");
    for n in 0..200 {
        let mut call = store.mint(operation(Some(&format!("{n}"))));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = call.as_mut().poll(&mut context);
    }
    let running = store.unfinished().await.expect("unfinished");
    assert!(
        running
            .iter()
            .all(|record| record.status == OperationStatus::Running)
    );
}
