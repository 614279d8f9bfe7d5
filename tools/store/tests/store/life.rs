//! Opening, closing, who may, how long records stay, how large the files get.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use codespace_router::{Code, Ledger, Lookup};
use codespace_store::{OpenFault, Store, StoreOptions};

use crate::{applied, mint, open, options};

#[tokio::test]
async fn records_outlive_the_handle_and_the_log_is_folded_in() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("new/deep/s.sqlite");
    let store = open(&path);
    let id = mint(&store, Some("k")).await;
    drop(store);
    assert!(!dir.path().join("new/deep/s.sqlite-wal").exists());

    let store = open(&path);
    assert_eq!(
        store.unfinished().await.expect("unfinished")[0].operation_id,
        id
    );
    store.finish(id.clone(), applied()).await.expect("finish");
    store.close().await;
    let again = open(&path);
    assert!(
        again
            .find(Lookup::Id(id))
            .await
            .expect("find")
            .expect("there")
            .result
            .is_some()
    );

    let mode =
        |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&dir.path().join("new/deep/s.sqlite-wal")), 0o600);
    assert_eq!(mode(&dir.path().join("new/deep/s.sqlite.lock")), 0o600);
    assert_eq!(mode(&dir.path().join("new/deep")), 0o700);
}

#[tokio::test]
async fn a_closed_store_refuses_and_does_not_hang() {
    let store = Store::in_memory(options()).expect("open");
    let clone = store.clone();
    store.probe().await.expect("alive");
    store.close().await;
    store.close().await;
    assert_eq!(
        clone.probe().await.expect_err("closed").code(),
        Code::StoreUnavailable
    );
    let error = clone
        .finish(codespace_router::OperationId::mint(), applied())
        .await;
    assert_eq!(error.expect_err("closed").code(), Code::StoreUnavailable);
}

#[test]
fn a_second_opener_is_refused_also_through_a_link() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    let link = dir.path().join("link.sqlite");
    let held = open(&path);
    std::os::unix::fs::symlink(&path, &link).expect("link");
    for name in [&path, &link] {
        let fault = Store::open(name, options()).expect_err("held");
        assert!(matches!(fault, OpenFault::InUse { .. }), "{fault}");
        assert!(fault.to_string().contains("another server"), "{fault}");
    }
    drop(held);
    open(&path);
}

#[tokio::test]
async fn old_records_go_and_running_ones_stay() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    let store = open(&path);
    let running = mint(&store, None).await;
    for n in 0..450 {
        let id = mint(&store, Some(&format!("{n}"))).await;
        store.finish(id, applied()).await.expect("finish");
    }
    drop(store);
    std::thread::sleep(Duration::from_millis(5));
    let store = Store::open(
        &path,
        StoreOptions {
            keep: Duration::ZERO,
            ..options()
        },
    )
    .expect("open");
    let last = || Lookup::Key {
        caller: "ann".to_owned(),
        key: "449".to_owned(),
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while store.find(last()).await.expect("find").is_some() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "nothing was deleted"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        store
            .find(Lookup::Id(running))
            .await
            .expect("find")
            .is_some()
    );
    store.close().await;
    let conn = rusqlite::Connection::open(&path).expect("open");
    let left: i64 = conn
        .query_row("SELECT count(*) FROM operations", [], |row| row.get(0))
        .expect("count");
    assert_eq!(left, 1);
}

#[tokio::test]
async fn ten_thousand_operations_keep_the_log_bounded() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    let store = open(&path);
    let mut largest = 0;
    for n in 0..10_000 {
        let id = mint(&store, Some(&format!("{n}"))).await;
        store.finish(id, applied()).await.expect("finish");
        if n % 100 == 0 {
            let log = dir
                .path()
                .join("s.sqlite-wal")
                .metadata()
                .expect("log")
                .len();
            largest = largest.max(log);
        }
    }
    assert!(largest < 8 << 20, "the log reached {largest} bytes");
}

#[tokio::test]
async fn a_slow_reader_blocks_nobody_and_the_log_shrinks_after_it() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    let store = open(&path);
    mint(&store, None).await;
    let reader = rusqlite::Connection::open(&path).expect("open");
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM operations")
        .expect("a snapshot");
    let count = || -> i64 {
        reader
            .query_row("SELECT count(*) FROM operations", [], |row| row.get(0))
            .expect("count")
    };
    assert_eq!(count(), 1);
    let log = || {
        dir.path()
            .join("s.sqlite-wal")
            .metadata()
            .expect("log")
            .len()
    };
    while log() < 12 << 20 {
        mint(&store, None).await;
    }
    assert_eq!(count(), 1);
    reader.execute_batch("COMMIT").expect("the reader leaves");
    for _ in 0..2_000 {
        mint(&store, None).await;
    }
    assert!(log() <= 8 << 20, "the log stays at {} bytes", log());
}
