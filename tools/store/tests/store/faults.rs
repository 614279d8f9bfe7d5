//! Files that must be refused, a full disk, a killed process.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use codespace_router::{Code, Ledger, Lookup, OperationId, Settlement};
use codespace_store::{OpenFault, Store};
use rusqlite::Connection;
use serde_json::json;

use crate::{applied, mint, open, operation, options};

fn refused(path: &Path) -> OpenFault {
    let before = fs::read(path).expect("there");
    let fault = Store::open(path, options()).expect_err("refused");
    assert_eq!(
        fs::read(path).expect("there"),
        before,
        "a refused file was changed"
    );
    fault
}

#[test]
fn a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    drop(open(&path));
    let conn = Connection::open(&path).expect("open");
    conn.pragma_update(None, "user_version", 99)
        .expect("version");
    drop(conn);
    let fault = refused(&path);
    assert!(
        matches!(fault, OpenFault::NewerSchema { found: 99, .. }),
        "{fault}"
    );
    assert!(
        fault.to_string().contains("run the newer server"),
        "{fault}"
    );
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, [b'x'; 8192]).expect("write");
    assert!(matches!(refused(&garbage), OpenFault::Damaged { .. }));

    let foreign = dir.path().join("foreign");
    Connection::open(&foreign)
        .and_then(|conn| conn.execute_batch("CREATE TABLE bookmarks (url TEXT)"))
        .expect("another program's");
    assert!(matches!(refused(&foreign), OpenFault::Foreign { .. }));

    assert!(matches!(
        Store::open(dir.path(), options()).expect_err("a folder"),
        OpenFault::Io { .. } | OpenFault::Sqlite { .. }
    ));
    let empty = dir.path().join("empty");
    fs::write(&empty, []).expect("write");
    open(&empty);
}

/// A small file system, unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: &Path) -> Option<Self> {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir)
            .stderr(Stdio::null())
            .status();
        done.is_ok_and(|status| status.success())
            .then(|| Self(dir.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_over_once_there_is_space() {
    let dir = tempfile::tempdir().expect("dir");
    let Some(_mounted) = Tmpfs::mount(dir.path()) else {
        eprintln!(
            "NOT RUN: a_full_disk_is_an_error_and_over_once_there_is_space: no right to mount a tmpfs"
        );
        return;
    };
    let store = open(&dir.path().join("s.sqlite"));
    let first = mint(&store, Some("first")).await;
    let ballast = dir.path().join("ballast");
    // Fails when the disk is full, having filled it.
    let _ = fs::write(&ballast, vec![0; 2 << 20]);
    let error = loop {
        // What SQLite still has room for may succeed; soon nothing does.
        if let Err(error) = store.mint(operation(None)).await {
            break error;
        }
    };
    assert_eq!(error.code(), Code::StoreUnavailable);
    assert!(error.message().contains("free some space"), "{error}");
    let large = Settlement {
        result: json!("x".repeat(1 << 20)),
        ..applied()
    };
    let error = store
        .finish(first.clone(), large)
        .await
        .expect_err("no space");
    assert!(!error.message().contains("nothing was done"), "{error}");
    // Reading needs no space, and shows nothing of what failed.
    let record = store
        .find(Lookup::Id(first.clone()))
        .await
        .expect("find")
        .expect("there");
    assert!(record.finished_at.is_none());
    let before = store.unfinished().await.expect("unfinished").len();

    fs::remove_file(&ballast).expect("free");
    mint(&store, Some("after")).await;
    store.finish(first, applied()).await.expect("finish");
    assert_eq!(store.unfinished().await.expect("unfinished").len(), before);
    drop(store);
    healthy(&dir.path().join("s.sqlite"));
}

fn healthy(path: &Path) {
    let conn = Connection::open(path).expect("open");
    let verdict: String = conn
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("check");
    assert_eq!(verdict, "ok");
}

const CHILD: &str = "CODESPACE_STORE_TEST_CHILD";

/// Not a test of its own: the process that is killed runs it. Prints every promise it was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let store = open(Path::new(&path));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            loop {
                let id = mint(&store, None).await;
                // On a line of its own: the harness leaves its own line open.
                println!("\npromise minted {id}");
                store.finish(id.clone(), applied()).await.expect("finish");
                println!("\npromise ended {id}");
            }
        }));
    }
    // None of them ever returns.
    for task in tasks {
        let _: Result<(), _> = task.await;
    }
}

#[tokio::test]
async fn a_killed_process_loses_no_promise_and_leaves_a_sound_file() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    for round in 0..8_usize {
        let mut child = Command::new(std::env::current_exe().expect("exe"))
            .args([
                "--exact",
                "faults::child_that_writes_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut promises = Vec::new();
        // A different moment in each round, in the log's life as well.
        while promises.len() < 50 + 333 * round {
            let line = lines.next().expect("the child lives").expect("text");
            promises.extend(promise(&line));
        }
        child.kill().expect("kill -9");
        promises.extend(
            lines
                .map_while(Result::ok)
                .filter_map(|line| promise(&line)),
        );
        child.wait().expect("reap");

        let store = open(&path);
        for (ended, id) in promises {
            let record = store
                .find(Lookup::Id(id))
                .await
                .expect("find")
                .expect("promised");
            assert!(!ended || record.finished_at.is_some(), "an end was lost");
        }
        for record in store.unfinished().await.expect("unfinished") {
            store
                .finish(record.operation_id, applied())
                .await
                .expect("settled");
        }
        store.close().await;
        healthy(&path);
    }
}

/// A cut-off last line is no promise.
fn promise(line: &str) -> Option<(bool, OperationId)> {
    let (verb, id) = line.strip_prefix("promise ")?.split_once(' ')?;
    Some((verb == "ended", id.parse().ok()?))
}

#[tokio::test]
async fn a_file_removed_or_replaced_under_the_store_is_noticed() {
    for victim in ["s.sqlite", "s.sqlite-wal", "s.sqlite.lock"] {
        for replaced in [false, true] {
            let dir = tempfile::tempdir().expect("dir");
            let store = open(&dir.path().join("s.sqlite"));
            mint(&store, Some("one")).await;
            let path = dir.path().join(victim);
            fs::rename(&path, dir.path().join("away")).expect("moved");
            if replaced {
                fs::copy(dir.path().join("away"), &path).expect("another file");
            }
            let refused = store
                .mint(operation(Some("two")))
                .await
                .expect_err("the record would be lost");
            assert_eq!(refused.code(), Code::StoreUnavailable, "{victim}");
            assert!(refused.message().contains("nothing was done"), "{refused}");
            assert!(store.probe().await.is_err(), "{victim}");
            fs::rename(dir.path().join("away"), &path).expect("moved back");
            store
                .mint(operation(Some("two")))
                .await
                .expect("it is there again");
        }
    }
}

#[tokio::test]
async fn only_an_open_end_is_revised_and_a_store_keeps_its_id() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("s.sqlite");
    let store = open(&path);
    let end = |status| Settlement {
        status,
        reason: None,
        result: json!({}),
    };
    use codespace_router::OperationStatus::{Applied, FailedRolledBack, Unknown};
    let id = mint(&store, None).await;
    for (status, now) in [
        (Unknown, Unknown),
        (FailedRolledBack, FailedRolledBack),
        (Applied, FailedRolledBack),
    ] {
        store
            .revise(id.clone(), end(status))
            .await
            .expect("revised");
        let record = store.find(Lookup::Id(id.clone())).await.expect("found");
        assert_eq!(record.expect("it is there").status, now);
    }
    let known = store.id().expect("on disk").to_owned();
    drop(store);
    assert_eq!(open(&path).id(), Some(known.as_str()));
    assert_eq!(Store::in_memory(options()).expect("memory").id(), None);
}
