//! A kill after every step of a patch, and after every step of the recovery from it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use codespace_router::OperationStatus;

use super::{Bench, block_on, job, open, settle};
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
    let settled = settle(&files).unwrap();
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
            for one in settle(&files).unwrap_or_default() {
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
    let settled = settle(&bench.files).unwrap();
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
        for one in settle(&files).unwrap() {
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
        // What it had replaced is kept when it is the last copy, and nothing else is.
        let tree = bench.tree();
        let left: Vec<_> = tree
            .iter()
            .filter(|(path, _)| path.contains(".codespace-"))
            .collect();
        for (path, bytes) in &left {
            let old = ["one\n", "two\n", "four\n", "five\n", "six\n"].map(str::as_bytes);
            assert!(
                bytes.as_deref().is_some_and(|bytes| old.contains(&bytes)),
                "{at}: {path}"
            );
        }
        assert_eq!(bench.journal_count(), usize::from(!left.is_empty()), "{at}");
        // Another start finds the same, touches nothing, and loses nothing.
        assert!(settle(&files).unwrap().is_empty());
        assert_eq!(bench.tree(), tree, "{at}");
    }
}
