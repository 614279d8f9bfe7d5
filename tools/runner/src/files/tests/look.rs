//! Reading, listing and locking.

use std::os::unix::fs::symlink;

use codespace_router::Code;

use super::{Bench, open};
use crate::{
    Encoding,
    files::{FileLimits, FileRoot, LockFault, read::version},
};

#[test]
fn paths_that_are_refused() {
    let bench = Bench::new();
    bench.put("a/f.txt", "x");
    symlink("/etc/passwd", bench.root.join("ln")).unwrap();
    symlink("a", bench.root.join("dir")).unwrap();
    symlink("nowhere", bench.root.join("dangling")).unwrap();
    let fifo = bench.root.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.root.join("sock")).unwrap();
    for (path, code) in [
        ("/etc/passwd", Code::PathEscape),
        ("../x", Code::PathEscape),
        ("a/../../x", Code::PathEscape),
        ("a\0b", Code::PathEscape),
        ("ln", Code::SymlinkRejected),
        ("dir/f.txt", Code::SymlinkRejected),
        ("dangling", Code::SymlinkRejected),
        ("fifo", Code::SpecialFileRejected),
        ("sock", Code::SpecialFileRejected),
        ("a", Code::SpecialFileRejected),
        ("", Code::SpecialFileRejected),
        (".", Code::SpecialFileRejected),
        ("a/f.txt/g", Code::PathNotDirectory),
        ("none", Code::FileNotFound),
        ("a\\f.txt", Code::FileNotFound),
        ("~", Code::FileNotFound),
        (&"x".repeat(300), Code::FileOperationFailed),
        (&"x/".repeat(2_048), Code::FileOperationFailed),
    ] {
        let error = bench.files.read(path).unwrap_err();
        assert_eq!(error.code(), code, "{path}: {error}");
        assert!(!error.message().contains(bench.root.to_str().unwrap()));
        assert!(!error.message().contains("/etc"));
        // A path longer than any there may be is not repeated.
        assert!(error.message().len() < 500, "{}", error.message());
    }
}

#[test]
fn content_is_cut_on_a_character_and_the_version_is_of_the_whole() {
    let bench = Bench::new();
    let limits = FileLimits {
        read_bytes: 10,
        find_paths: 3,
        patch_file_bytes: 100,
    };
    let files = FileRoot::open(&bench.root, None, limits, false).unwrap();
    for (bytes, content, encoding, truncated) in [
        (&b""[..], "", Encoding::Utf8, false),
        (b"0123456789", "0123456789", Encoding::Utf8, false),
        (b"0123456789a", "0123456789", Encoding::Utf8, true),
        ("012345678é".as_bytes(), "012345678", Encoding::Utf8, true),
        (
            "\u{feff}bom".as_bytes(),
            "\u{feff}bom",
            Encoding::Utf8,
            false,
        ),
        (b"\xff", "/w==", Encoding::Base64, false),
        (
            b"0123456789a\xff",
            "MDEyMzQ1Njc4OQ==",
            Encoding::Base64,
            true,
        ),
        (
            b"012345678\xc3",
            "MDEyMzQ1Njc4ww==",
            Encoding::Base64,
            false,
        ),
        (
            b"0123456789\xc3",
            "MDEyMzQ1Njc4OQ==",
            Encoding::Base64,
            true,
        ),
    ] {
        std::fs::write(bench.root.join("f"), bytes).unwrap();
        let read = files.read("f").unwrap();
        assert_eq!(
            (read.content.as_str(), read.encoding, read.truncated),
            (content, encoding, truncated)
        );
        assert_eq!(
            (read.version, read.size),
            (version(bytes), bytes.len() as u64)
        );
    }
}

#[test]
fn a_large_file_is_hashed_whole() {
    let bench = Bench::new();
    let text = "é".repeat(1 << 20) + "end";
    bench.put("f", &text);
    let read = bench.files.read("f").unwrap();
    assert_eq!(
        (read.version, read.size),
        (version(text.as_bytes()), text.len() as u64)
    );
    assert_eq!(
        (read.content.len(), read.truncated, read.encoding),
        (1 << 20, true, Encoding::Utf8)
    );
}

#[test]
fn a_removed_or_replaced_root_is_told() {
    for replaced in [false, true] {
        let bench = Bench::new();
        bench.put("f", "x");
        let lock = bench.files.try_lock().unwrap();
        std::fs::remove_dir_all(&bench.root).unwrap();
        if replaced {
            std::fs::create_dir(&bench.root).unwrap();
        }
        for error in [
            bench.files.read("f").unwrap_err(),
            bench.files.find(None).unwrap_err(),
        ] {
            assert_eq!(error.code(), Code::FileOperationFailed);
            assert!(error.message().contains("root is gone"), "{error}");
        }
        let error = super::apply(
            &bench,
            "*** Begin Patch\n*** Add File: f\n+x\n*** End Patch\n",
        )
        .unwrap_err();
        assert!(error.message().contains("root is gone"), "{error}");
        assert!(bench.files.is_gone());
        drop(lock);
        assert!(matches!(bench.files.try_lock(), Err(LockFault::Gone)));
    }
}

#[test]
fn a_lock_keeps_another_server_out() {
    let bench = Bench::new();
    let other = open(&bench.root, &bench.journals);
    let lock = bench.files.try_lock().unwrap();
    assert!(matches!(other.try_lock(), Err(LockFault::Busy)));
    drop(lock);
    assert!(other.try_lock().is_ok());
}

#[test]
fn the_first_paths_in_byte_order() {
    let bench = Bench::new();
    for path in [
        "a.b",
        "a/x",
        "a0",
        "b/c/d",
        "B",
        ".hid/e",
        ".git/config",
        "sub/.git",
        "é",
        "a/y.rs",
    ] {
        bench.put(path, "");
    }
    symlink("a", bench.root.join("ln")).unwrap();
    symlink("a.b", bench.root.join("lnf")).unwrap();
    let find = |glob| bench.files.find(glob).unwrap().paths;
    assert_eq!(
        find(None),
        [".hid/e", "B", "a.b", "a/x", "a/y.rs", "a0", "b/c/d", "é"]
    );
    assert_eq!(find(Some("**/.git")), ["sub/.git"]);
    assert_eq!(find(Some(".git/*")), [".git/config"]);
    assert_eq!(find(Some("*.rs")), ["a/y.rs"]);
    assert!(find(Some("/a")).is_empty());
    assert_eq!(
        bench.files.find(Some("[")).unwrap_err().code(),
        Code::InvalidArguments
    );
    for most in 0..9 {
        let limits = FileLimits {
            read_bytes: 1,
            find_paths: most,
            patch_file_bytes: 1,
        };
        let files = FileRoot::open(&bench.root, None, limits, false).unwrap();
        let found = files.find(None).unwrap();
        assert_eq!(found.paths, find(None)[..most.min(8)]);
        assert_eq!(found.truncated, most < 8);
    }
}

#[test]
fn a_deep_tree_does_not_run_out_of_descriptors() {
    let bench = Bench::new();
    let deep = "d/".repeat(1500) + "f";
    let mut at = rustix::fs::open(&bench.root, rustix::fs::OFlags::PATH, 0.into()).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&at, "d", 0o755.into()).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::PATH, 0.into()).unwrap();
    }
    rustix::fs::openat(
        &at,
        "f",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        0o644.into(),
    )
    .unwrap();
    assert_eq!(bench.files.find(Some("**/f")).unwrap().paths, [deep]);
}

#[test]
fn a_file_over_the_limit_of_patches_names_the_limit() {
    let bench = Bench::new();
    let limits = FileLimits {
        read_bytes: 10,
        find_paths: 3,
        patch_file_bytes: 10,
    };
    let files = FileRoot::open(&bench.root, Some(&bench.journals), limits, false).unwrap();
    let files = std::sync::Arc::new(files);
    bench.put("f", "12345678901");
    for section in [
        "*** Update File: f\n@@\n-a\n+b\n",
        "*** Update File: f\n*** Move to: g\n",
        "*** Delete File: f\n",
    ] {
        let patch = format!("*** Begin Patch\n{section}*** End Patch\n");
        let error = files.apply(super::job(&patch)).unwrap_err();
        assert_eq!(error.code(), Code::FileOperationFailed, "{section}");
        assert!(
            error
                .message()
                .contains("10 bytes, limits.patch_file_bytes"),
            "{section}: {error}"
        );
        assert_eq!(error.body()["details"]["path"], "f", "{section}");
    }
    assert_eq!(bench.tree().len(), 1);
}

#[test]
fn a_patch_tells_a_linked_folder_from_a_file_in_its_place() {
    let bench = Bench::new();
    bench.put("real/f", "x\n");
    bench.put("file", "x\n");
    symlink("real", bench.root.join("link")).unwrap();
    symlink("nowhere", bench.root.join("dangling")).unwrap();
    symlink("file", bench.root.join("to-file")).unwrap();
    for (folder, code) in [
        ("link", Code::SymlinkRejected),
        ("link/deeper", Code::SymlinkRejected),
        ("real/../link", Code::PathEscape),
        ("dangling", Code::SymlinkRejected),
        ("to-file", Code::SymlinkRejected),
        ("file", Code::PathNotDirectory),
        ("file/deeper", Code::PathNotDirectory),
    ] {
        for section in [
            format!("*** Update File: {folder}/f\n@@\n-x\n+y\n"),
            format!("*** Delete File: {folder}/f\n"),
            format!("*** Add File: {folder}/f\n+y\n"),
            format!("*** Update File: file\n*** Move to: {folder}/f\n"),
        ] {
            let patch = format!("*** Begin Patch\n{section}*** End Patch\n");
            let Ok(patch) = codespace_patch::Patch::parse(&patch) else {
                assert_eq!(code, Code::PathEscape, "{section}");
                continue;
            };
            let job = crate::PatchJob {
                patch: std::sync::Arc::new(patch),
                ..super::job("*** Begin Patch\n*** Delete File: x\n*** End Patch\n")
            };
            let error = bench.files.apply(job).unwrap_err();
            assert_eq!(error.code(), code, "{section}: {error}");
        }
    }
    assert_eq!(std::fs::read(bench.root.join("real/f")).unwrap(), b"x\n");
}
