//! Whose journal it is, and what is kept when something could not be put back.

use std::{collections::BTreeMap, sync::Arc};

use codespace_router::{Code, OperationStatus};
use rustix::io::Errno;

use super::{Bench, KEEP, apply, block_on, job, keep, open, settle};
use crate::{FileRoot, files::transaction::Fault};

const TWO: &str = "*** Begin Patch
*** Update File: a.txt
@@
-one
+ONE
*** Update File: sub/b.txt
@@
-two
+TWO
*** End Patch
";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.put("a.txt", "one\n");
    bench.put("sub/b.txt", "two\n");
    bench
}

// Fails from the nth passing of a step on, as `fault` says.
fn fail_at(bench: &Bench, step: &'static str, nth: usize, fault: fn() -> Fault) {
    let mut seen = 0;
    bench.files.steps.probe(Some(Box::new(move |now| {
        seen += usize::from(now == step);
        if now == step && seen >= nth {
            Err(fault())
        } else {
            Ok(())
        }
    })));
}

fn half_way(bench: &Bench) {
    fail_at(bench, "commit a file", 2, || Fault::Killed);
    assert!(apply(bench, TWO).is_err());
    bench.files.steps.probe(None);
}

#[test]
fn another_folder_at_the_same_path_is_not_touched() {
    let bench = bench();
    half_way(&bench);
    let away = bench.root.with_file_name("away");
    std::fs::rename(&bench.root, &away).unwrap();
    std::fs::create_dir(&bench.root).unwrap();
    // The very bytes that recovery would take for its own.
    bench.put("a.txt", "ONE\n");
    bench.put("sub/b.txt", "two\n");
    let stranger = bench.tree();
    let files = open(&bench.root, &bench.journals);
    let settled = settle(&files).unwrap();
    assert_eq!(settled[0].status, OperationStatus::Unknown);
    for one in settled {
        block_on(one.undo.keep());
    }
    assert_eq!(bench.tree(), stranger);
    assert_eq!(bench.journal_count(), 1, "it waits for its own folder");
    let patch = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n";
    keep(files.apply(job(patch)).unwrap());

    std::fs::remove_dir_all(&bench.root).unwrap();
    std::fs::rename(&away, &bench.root).unwrap();
    let files = open(&bench.root, &bench.journals);
    let settled = settle(&files).unwrap();
    assert_eq!(settled[0].status, OperationStatus::FailedRolledBack);
    for one in settled {
        block_on(one.undo.keep());
    }
    assert_eq!(std::fs::read(bench.root.join("a.txt")).unwrap(), b"one\n");
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn another_ledger_is_told_and_only_that_one() {
    let bench = bench();
    let limits = bench.files.limits;
    let serving = |ledger: Option<&str>| {
        let files = FileRoot::open(&bench.root, Some(&bench.journals), limits, false).unwrap();
        Arc::new(files.serving("w", ledger))
    };
    let first = serving(Some("first"));
    let operation = job(TWO);
    let id = operation.operation.clone();
    drop(first.apply(operation).unwrap());
    let second = serving(Some("second"));
    for one in settle(&second).unwrap() {
        second.leave_word(&one).unwrap();
        block_on(one.undo.keep());
    }
    assert!(second.journalled().unwrap().is_empty());
    assert!(FileRoot::is_journalled(
        bench.journals.parent().unwrap(),
        &id
    ));
    assert!(second.words(Some("second"), KEEP).unwrap().is_empty());
    let words = first.words(Some("first"), KEEP).unwrap();
    assert_eq!(
        (&words[0].operation, words[0].status),
        (&id, OperationStatus::Applied)
    );
    assert_eq!(words[0].changes.len(), 2);
    first.forget_word(&id);
    assert_eq!(bench.journal_count(), 0);
    // A ledger in memory is gone with its server: no word for it.
    let third = serving(None);
    let patch = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n";
    drop(third.apply(job(patch)).unwrap());
    for one in settle(&second).unwrap() {
        second.leave_word(&one).unwrap();
        block_on(one.undo.keep());
    }
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn the_last_copy_of_old_bytes_is_kept_and_put_back_later() {
    let bench = bench();
    // The second commit fails, and so does putting the first one back.
    let mut seen = 0;
    let root = bench.root.clone();
    bench.files.steps.probe(Some(Box::new(move |step| {
        seen += usize::from(step == "commit a file");
        if step == "commit a file" && seen == 2 {
            std::fs::write(root.join("a.txt"), "mine\n").unwrap();
            return Err(Fault::Os(Errno::IO, "sub/b.txt".into()));
        }
        Ok(())
    })));
    let applied = apply(&bench, TWO).unwrap();
    bench.files.steps.probe(None);
    assert_eq!(applied.status, OperationStatus::FailedPartial);
    let reason = applied.reason.clone().unwrap();
    keep(applied);
    let tree = bench.tree();
    let (name, bytes) = tree
        .iter()
        .find(|(path, _)| path.contains(".codespace-"))
        .expect("kept");
    assert_eq!(bytes.as_deref(), Some(b"one\n".as_slice()));
    assert!(reason.contains(name), "{reason}");
    assert_eq!(bench.journal_count(), 1);
    assert!(!bench.files.find(None).unwrap().paths.contains(name));
    assert_eq!(bench.files.read(name).unwrap().content, "one\n");
    // Still another writer's: nothing happens, nothing is lost.
    assert!(settle(&bench.files).unwrap().is_empty());
    assert_eq!(bench.tree(), tree);
    // Ours again: now it goes back.
    std::fs::write(bench.root.join("a.txt"), "ONE\n").unwrap();
    let settled = settle(&bench.files).unwrap();
    assert_eq!(settled[0].status, OperationStatus::FailedRolledBack);
    for one in settled {
        block_on(one.undo.keep());
    }
    assert_eq!(std::fs::read(bench.root.join("a.txt")).unwrap(), b"one\n");
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn a_name_that_cannot_be_removed_keeps_only_itself_and_is_tried_again() {
    let bench = bench();
    let applied = apply(&bench, TWO).unwrap();
    // A folder in its place: the one thing that not even root can unlink.
    let tree = bench.tree();
    let name = tree
        .keys()
        .find(|path| path.starts_with(".codespace-"))
        .unwrap();
    let stuck = bench.root.join(name);
    std::fs::remove_file(&stuck).unwrap();
    std::fs::create_dir(&stuck).unwrap();
    keep(applied);
    let ours = || {
        let tree = bench.tree();
        tree.into_keys()
            .filter(|path| path.contains(".codespace-"))
            .collect::<Vec<_>>()
    };
    assert_eq!(ours(), std::slice::from_ref(name), "the others went");
    assert_eq!(bench.journal_count(), 1);
    // A start that knows of nothing else does not take later changes for a crash's.
    std::fs::write(bench.root.join("a.txt"), "one\n").unwrap();
    assert!(settle(&bench.files).unwrap().is_empty());
    assert_eq!(bench.journal_count(), 1);
    std::fs::remove_dir(&stuck).unwrap();
    let patch = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n";
    keep(apply(&bench, patch).unwrap());
    assert_eq!(bench.journal_count(), 0);
    assert_eq!(
        std::fs::read(bench.root.join("sub/b.txt")).unwrap(),
        b"TWO\n"
    );
}

#[test]
fn a_folder_that_was_moved_keeps_its_journal() {
    let bench = bench();
    half_way(&bench);
    let (here, there) = (bench.root.join("sub"), bench.root.join("elsewhere"));
    std::fs::rename(&here, &there).unwrap();
    let files = open(&bench.root, &bench.journals);
    for one in settle(&files).unwrap() {
        assert_eq!(one.status, OperationStatus::Unknown);
        block_on(one.undo.keep());
    }
    assert_eq!(bench.journal_count(), 1);
    assert!(
        !files
            .find(None)
            .unwrap()
            .paths
            .iter()
            .any(|path| path.contains("codespace"))
    );
    std::fs::rename(&there, &here).unwrap();
    for one in settle(&files).unwrap() {
        assert_eq!(one.status, OperationStatus::FailedRolledBack);
        block_on(one.undo.keep());
    }
    assert!(!bench.tree().keys().any(|path| path.contains("codespace")));
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn what_the_ledger_knows_to_have_ended_is_only_cleared() {
    let bench = bench();
    let first = job(TWO);
    let id = first.operation.clone();
    drop(bench.files.apply(first).unwrap());
    // The record was stored, the kill came before the clearing; somebody undid one file.
    std::fs::write(bench.root.join("a.txt"), "one\n").unwrap();
    let ended = BTreeMap::from([(id, OperationStatus::Applied)]);
    assert!(bench.files.settle(&ended, KEEP).unwrap().is_empty());
    assert_eq!(
        std::fs::read(bench.root.join("sub/b.txt")).unwrap(),
        b"TWO\n"
    );
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn a_journal_folder_that_went_away_is_made_again() {
    let bench = bench();
    std::fs::rename(&bench.journals, bench.journals.with_file_name("moved")).unwrap();
    let applied = apply(&bench, TWO).unwrap();
    assert_eq!(bench.journal_count(), 1);
    keep(applied);
    assert_eq!(bench.journal_count(), 0);
    std::fs::remove_dir(&bench.journals).unwrap();
    std::fs::write(&bench.journals, "in the way").unwrap();
    let patch = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch\n";
    let error = apply(&bench, patch).unwrap_err();
    assert_eq!(error.code(), Code::StoreUnavailable, "{error}");
}

#[test]
fn descriptors_that_run_out_after_the_commit_end_in_no_guess() {
    for (opens, status) in [
        (3, OperationStatus::Applied),
        (usize::MAX, OperationStatus::Unknown),
    ] {
        let bench = bench();
        let old = bench.tree();
        let none_left = Arc::clone(&bench.files.steps.1);
        let counter = Arc::clone(&none_left);
        bench.files.steps.probe(Some(Box::new(move |step| {
            if step == "committed" {
                counter.store(opens, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        })));
        let applied = apply(&bench, TWO).unwrap();
        bench.files.steps.probe(None);
        assert_eq!(applied.status, status);
        if status == OperationStatus::Unknown {
            let reason = applied.reason.clone().unwrap();
            assert!(reason.contains("too many open files"), "{reason}");
            assert!(reason.contains(".codespace-"), "{reason}");
            assert_eq!(applied.changes.len(), 2);
        }
        keep(applied);
        none_left.store(0, std::sync::atomic::Ordering::Relaxed);
        if status == OperationStatus::Unknown {
            assert_eq!(bench.journal_count(), 1);
            for one in settle(&bench.files).unwrap() {
                assert_eq!(one.status, OperationStatus::FailedRolledBack);
                block_on(one.undo.keep());
            }
            assert_eq!(bench.tree(), old);
        }
        assert_eq!(bench.journal_count(), 0);
    }
}
