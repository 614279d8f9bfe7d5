//! What goes wrong while the server lives: other writers, refusals of the system.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Arc,
};

use codespace_router::{Code, OperationStatus};
use rustix::io::Errno;

use super::{Bench, apply, block_on, job, keep, settle};
use crate::files::{read::version, transaction::Fault};

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

// Does something right before the nth commit of a file.
fn before_commit(bench: &Bench, nth: usize, act: impl Fn() -> Result<(), Fault> + Send + 'static) {
    let mut seen = 0;
    bench.files.steps.probe(Some(Box::new(move |step| {
        if step != "commit a file" {
            return Ok(());
        }
        seen += 1;
        if seen == nth { act() } else { Ok(()) }
    })));
}

#[test]
fn a_refusal_before_the_commit_changes_nothing() {
    for step in [
        "write the journal",
        "create a staged file",
        "write a staged file",
        "commit a file",
    ] {
        let bench = bench();
        let old = bench.tree();
        bench.files.steps.probe(Some(Box::new(move |now| {
            if now == step {
                Err(Fault::Os(Errno::NOSPC, "a.txt".into()))
            } else {
                Ok(())
            }
        })));
        let error = apply(&bench, TWO).unwrap_err();
        assert_eq!(error.code(), Code::FileOperationFailed, "{step}");
        assert!(error.message().contains("no space left"), "{error}");
        bench.files.steps.probe(None);
        assert_eq!(bench.tree(), old, "{step}");
        assert_eq!(bench.journal_count(), 0, "{step}");
    }
}

#[test]
fn a_refusal_during_the_commit_puts_everything_back() {
    for (step, nth) in [("commit a file", 2), ("committed", 1), ("verified", 1)] {
        let bench = bench();
        let old = bench.tree();
        let mut seen = 0;
        bench.files.steps.probe(Some(Box::new(move |now| {
            seen += usize::from(now == step);
            if now == step && seen == nth {
                Err(Fault::Os(Errno::IO, "a.txt".into()))
            } else {
                Ok(())
            }
        })));
        let applied = apply(&bench, TWO).unwrap();
        assert_eq!(applied.status, OperationStatus::FailedRolledBack, "{step}");
        assert_eq!(applied.reason.as_deref(), Some("input/output error"));
        assert!(applied.changes.is_empty());
        keep(applied);
        assert_eq!(bench.tree(), old);
        assert_eq!(bench.journal_count(), 0);
    }
}

#[test]
fn a_folder_removed_under_the_second_target_rolls_back() {
    let bench = bench();
    let gone = bench.root.join("sub");
    before_commit(&bench, 2, move || {
        std::fs::remove_dir_all(&gone).unwrap();
        Ok(())
    });
    let applied = apply(&bench, TWO).unwrap();
    assert_eq!(applied.status, OperationStatus::FailedRolledBack);
    keep(applied);
    assert_eq!(std::fs::read(bench.root.join("a.txt")).unwrap(), b"one\n");
    assert_eq!(bench.tree().len(), 1);
}

#[test]
fn another_writer_first_is_a_conflict_and_keeps_its_bytes() {
    let bench = bench();
    let path = bench.root.join("a.txt");
    before_commit(&bench, 1, move || {
        std::fs::write(&path, "mine, and longer\n").unwrap();
        Ok(())
    });
    let error = apply(&bench, TWO).unwrap_err();
    assert_eq!(error.code(), Code::VersionConflict);
    assert_eq!(error.details()["expected"], version(b"one\n"));
    assert_eq!(error.details()["current"], version(b"mine, and longer\n"));
    assert_eq!(
        std::fs::read(bench.root.join("a.txt")).unwrap(),
        b"mine, and longer\n"
    );
    assert_eq!(bench.tree().len(), 3);
}

#[test]
fn another_writer_at_the_second_file_rolls_the_first_back() {
    let bench = bench();
    let path = bench.root.join("sub/b.txt");
    before_commit(&bench, 2, move || {
        std::fs::write(&path, "mine, and longer\n").unwrap();
        Ok(())
    });
    let applied = apply(&bench, TWO).unwrap();
    assert_eq!(applied.status, OperationStatus::FailedRolledBack);
    assert_eq!(applied.reason.as_deref(), Some("changed by another writer"));
    keep(applied);
    assert_eq!(std::fs::read(bench.root.join("a.txt")).unwrap(), b"one\n");
    assert_eq!(
        std::fs::read(bench.root.join("sub/b.txt")).unwrap(),
        b"mine, and longer\n"
    );
    assert_eq!(bench.tree().len(), 3);
}

#[test]
fn a_file_changed_after_its_commit_is_partial_and_named() {
    let bench = bench();
    let path = bench.root.join("a.txt");
    before_commit(&bench, 2, move || {
        std::fs::write(&path, "mine\n").unwrap();
        Err(Fault::Os(Errno::IO, "sub/b.txt".into()))
    });
    let applied = apply(&bench, TWO).unwrap();
    assert_eq!(applied.status, OperationStatus::FailedPartial);
    assert_eq!(
        applied
            .changes
            .iter()
            .map(|row| row.path.as_str())
            .collect::<Vec<_>>(),
        ["a.txt"]
    );
    keep(applied);
    assert_eq!(std::fs::read(bench.root.join("a.txt")).unwrap(), b"mine\n");
}

#[test]
fn a_record_that_cannot_be_stored_takes_the_patch_back() {
    let bench = bench();
    let old = bench.tree();
    let applied = apply(&bench, TWO).unwrap();
    assert_ne!(bench.tree(), old);
    assert!(block_on(applied.undo.unwrap().restore()));
    assert_eq!(bench.tree(), old);
    assert_eq!(bench.journal_count(), 0);
}

#[test]
fn an_unanswered_undo_is_settled_later() {
    let bench = bench();
    drop(apply(&bench, TWO).unwrap());
    let settled = settle(&bench.files).unwrap();
    assert_eq!(settled[0].status, OperationStatus::Applied);
    assert_eq!(settled[0].files, ["a.txt", "sub/b.txt"]);
    assert_eq!(settled[0].changes.len(), 2);
}

#[test]
fn expected_versions_are_checked_and_a_check_writes_nothing() {
    let bench = bench();
    let mut wrong = job(TWO);
    wrong.expected.insert("a.txt".into(), version(b"else"));
    let error = bench.files.apply(wrong).unwrap_err();
    assert_eq!(
        (error.code(), &error.details()["current"]),
        (Code::VersionConflict, &version(b"one\n").into())
    );
    let mut right = job(TWO);
    right.expected.insert("a.txt".into(), version(b"one\n"));
    right.expected.insert("none".into(), "absent".into());
    right.check_only = true;
    let old = bench.tree();
    let checked = bench.files.apply(right).unwrap();
    assert_eq!(
        (checked.status, checked.changes.len()),
        (OperationStatus::Checked, 2)
    );
    assert_eq!((bench.tree(), bench.journal_count()), (old, 0));
}

#[test]
fn attributes_stay_and_hard_links_break() {
    let bench = bench();
    let path = bench.root.join("a.txt");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4751)).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let kept =
        rustix::fs::fsetxattr(&file, "user.test", b"v", rustix::fs::XattrFlags::empty()).is_ok();
    let owned = std::os::unix::fs::chown(&path, Some(1234), Some(5678)).is_ok();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4751)).unwrap();
    std::fs::hard_link(&path, bench.root.join("other")).unwrap();
    keep(apply(&bench, TWO).unwrap());
    let now = std::fs::metadata(&path).unwrap();
    assert_eq!(now.mode() & 0o7777, 0o751);
    if owned {
        assert_eq!((now.uid(), now.gid()), (1234, 5678));
    }
    if kept {
        let mut value = [0; 8];
        assert_eq!(
            rustix::fs::getxattr(&path, "user.test", &mut value[..]),
            Ok(1)
        );
    }
    assert_eq!(std::fs::read(bench.root.join("other")).unwrap(), b"one\n");
}

#[test]
fn a_folder_swapped_for_a_link_leads_nowhere() {
    let bench = bench();
    let outside = bench.root.parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("b.txt"), "two\n").unwrap();
    bench.put("away", "");
    std::fs::remove_file(bench.root.join("away")).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = {
        let (root, outside, stop) = (bench.root.clone(), outside.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(root.join("sub"), root.join("away")).unwrap();
                std::os::unix::fs::symlink(&outside, root.join("sub")).unwrap();
                std::fs::remove_file(root.join("sub")).unwrap();
                std::fs::rename(root.join("away"), root.join("sub")).unwrap();
                std::thread::yield_now();
            }
        })
    };
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let there = "*** Begin Patch\n*** Update File: sub/b.txt\n@@\n-two\n+TWO\n*** End Patch\n";
    let back = "*** Begin Patch\n*** Update File: sub/b.txt\n@@\n-TWO\n+two\n*** End Patch\n";
    let mut applied = 0;
    for round in 0..100_000 {
        assert!(bench.files.read("sub/secret").is_err());
        for patch in [there, back] {
            if let Ok(done) = apply(&bench, patch) {
                applied += 1;
                keep(done);
            }
        }
        if round > 1000 && applied > 10 {
            break;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(applied > 0);
    assert_eq!(std::fs::read(outside.join("b.txt")).unwrap(), b"two\n");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 2);
    assert!(
        !bench.tree().keys().any(|path| path.contains(".codespace-")),
        "{:?}",
        bench.tree().keys()
    );
}
