//! A kill after every step of a patch, and after every step of the recovery from it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use codespace_router::OperationStatus;

use super::{Bench, block_on, job, open};
use crate::files::{steps::Probe, transaction::Fault};

const PATCH: &str = "*** Begin Patch
*** Update File: a.txt
@@
-one
+ONE
*** Update File: sub/b.txt
@@
-two
+TWO
*** Add File: new/deep/c.txt
+three
*** Delete File: d.txt
*** Update File: sub/e.txt
*** Move to: moved/e.txt
@@
-five
+FIVE
*** Update File: f.txt
*** Move to: sub/f.txt
*** End Patch
";

fn bench() -> Bench {
    let bench = Bench::new();
    for (path, text) in [
        ("a.txt", "one\n"),
        ("sub/b.txt", "two\n"),
        ("d.txt", "four\n"),
        ("sub/e.txt", "five\n"),
        ("f.txt", "six\n"),
    ] {
        bench.put(path, text);
    }
    bench
}

// Kills at step `at`, counting from 0; `count` tells how many steps there were.
fn killer(at: usize, count: &Arc<AtomicUsize>) -> Probe {
    let count = Arc::clone(count);
    Box::new(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) == at {
            Err(Fault::Killed)
        } else {
            Ok(())
        }
    })
}

type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn old_and_new() -> (Tree, Tree, usize) {
    let bench = bench();
    let old = bench.tree();
    let count = Arc::new(AtomicUsize::new(0));
    bench.files.steps.probe(Some(killer(usize::MAX, &count)));
    let applied = bench.files.apply(job(PATCH)).unwrap();
    assert_eq!(applied.status, OperationStatus::Applied);
    block_on(applied.undo.unwrap().keep());
    assert_eq!(bench.journal_count(), 0);
    (old, bench.tree(), count.load(Ordering::Relaxed))
}

fn settle_and_check(bench: &Bench, old: &Tree, new: &Tree, what: &str) {
    let files = open(&bench.root, &bench.journals);
    let settled = files.settle().unwrap();
    assert!(settled.len() <= 1, "{what}");
    let mut status = None;
    for one in settled {
        status = Some(one.status);
        block_on(one.undo.keep());
    }
    let tree = bench.tree();
    match status {
        Some(OperationStatus::Applied) => assert_eq!(tree, *new, "{what}"),
        Some(OperationStatus::FailedRolledBack) => assert_eq!(tree, *old, "{what}"),
        // No journal: not begun, or ended.
        None => assert!(tree == *old || tree == *new, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(bench.journal_count(), 0, "{what}");
}

#[test]
fn a_kill_at_any_step_leaves_all_old_or_all_new() {
    let (old, new, steps) = old_and_new();
    assert!(steps > 25, "{steps}");
    for at in 0..steps {
        let bench = bench();
        bench.files.steps.probe(Some(killer(at, &Arc::default())));
        if let Ok(applied) = bench.files.apply(job(PATCH)) {
            block_on(applied.undo.unwrap().keep());
        }
        settle_and_check(&bench, &old, &new, &format!("killed at {at}"));
    }
}

#[test]
fn a_kill_during_recovery_is_recovered_from() {
    let (old, new, steps) = old_and_new();
    for at in 0..steps {
        for again in 0.. {
            let bench = bench();
            bench.files.steps.probe(Some(killer(at, &Arc::default())));
            if let Ok(applied) = bench.files.apply(job(PATCH)) {
                block_on(applied.undo.unwrap().keep());
            }
            let files = open(&bench.root, &bench.journals);
            let count = Arc::new(AtomicUsize::new(0));
            files.steps.probe(Some(killer(again, &count)));
            for one in files.settle().unwrap_or_default() {
                block_on(one.undo.keep());
            }
            settle_and_check(
                &bench,
                &old,
                &new,
                &format!("killed at {at}, then at {again}"),
            );
            if count.load(Ordering::Relaxed) <= again {
                break;
            }
        }
    }
}

#[test]
fn a_torn_journal_is_a_patch_that_never_began() {
    let bench = bench();
    let old = bench.tree();
    let operation = codespace_router::OperationId::mint();
    std::fs::write(
        bench.journals.join(operation.as_str()),
        "{\"format\":1,\"oper",
    )
    .unwrap();
    std::fs::write(bench.journals.join("not a journal"), "x").unwrap();
    let settled = bench.files.settle().unwrap();
    assert_eq!(settled.len(), 1);
    assert_eq!(
        (&settled[0].operation, settled[0].status),
        (&operation, OperationStatus::FailedRolledBack)
    );
    for one in settled {
        block_on(one.undo.keep());
    }
    assert_eq!(bench.tree(), old);
    assert_eq!(bench.journal_count(), 1);
}

#[test]
fn what_another_writer_left_is_unknown_and_stays() {
    let (_, _, steps) = old_and_new();
    for at in 3..steps {
        let bench = bench();
        bench.files.steps.probe(Some(killer(at, &Arc::default())));
        if let Ok(applied) = bench.files.apply(job(PATCH)) {
            drop(applied);
        }
        std::fs::write(bench.root.join("sub/b.txt"), "mine\n").unwrap();
        let files = open(&bench.root, &bench.journals);
        for one in files.settle().unwrap() {
            assert_eq!(
                (one.status, one.reason.as_deref()),
                (OperationStatus::Unknown, Some("unknown")),
                "{at}"
            );
            block_on(one.undo.keep());
        }
        assert_eq!(
            std::fs::read(bench.root.join("sub/b.txt")).unwrap(),
            b"mine\n",
            "{at}"
        );
        assert!(
            !bench.tree().keys().any(|path| path.contains(".codespace-")),
            "{at}"
        );
        assert_eq!(bench.journal_count(), 0);
    }
}

#[test]
fn what_a_lost_runner_kept_is_found_again_by_its_operation() {
    for keep in [true, false] {
        let (old, new, _) = old_and_new();
        let bench = bench();
        let job = job(PATCH);
        let operation = job.operation.clone();
        // Whoever holds the undo is lost with it.
        drop(bench.files.apply(job).unwrap().undo);
        let files = open(&bench.root, &bench.journals);
        assert!(files.has_journals().unwrap());
        let found = files.undo_of(&operation, OperationStatus::Applied);
        let undo = found.unwrap().expect("its journal is there");
        if keep {
            block_on(undo.keep());
            assert_eq!(bench.tree(), new);
        } else {
            assert!(block_on(undo.restore()));
            assert_eq!(bench.tree(), old);
        }
        assert!(!files.has_journals().unwrap());
        let again = files.undo_of(&operation, OperationStatus::Applied);
        assert!(again.unwrap().is_none());
    }
}

#[test]
fn one_operation_is_settled_alone() {
    let (old, _, _) = old_and_new();
    let bench = bench();
    bench.files.steps.probe(Some(killer(12, &Arc::default())));
    let first = job(PATCH);
    let operation = first.operation.clone();
    assert!(bench.files.apply(first).is_err());
    let files = open(&bench.root, &bench.journals);
    let other = files.settle_operation(&codespace_router::OperationId::mint());
    assert!(other.unwrap().is_none());
    let settled = files
        .settle_operation(&operation)
        .unwrap()
        .expect("a journal");
    assert_eq!(settled.operation, operation);
    assert_eq!(settled.status, OperationStatus::FailedRolledBack);
    block_on(settled.undo.keep());
    assert_eq!(bench.tree(), old);
    assert!(!files.has_journals().unwrap());
}
