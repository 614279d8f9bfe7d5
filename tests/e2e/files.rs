//! Files as clients meet them: stale versions, encodings, links, and the right folder.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Server;

struct Bench {
    place: TempDir,
    root: PathBuf,
    server: Server,
}

fn bench() -> Bench {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    let server = Server::start(&root, &place.path().join("state"));
    Bench {
        place,
        root,
        server,
    }
}

impl Bench {
    fn read(&mut self, path: &str) -> Value {
        let arguments = json!({ "workspace_id": "w", "path": path });
        self.server.call("read", arguments)
    }

    fn find(&mut self, glob: &str) -> Value {
        let arguments = json!({ "workspace_id": "w", "glob": glob });
        self.server.call("find", arguments)
    }

    fn patch(&mut self, sections: &str, more: Value) -> Value {
        let mut arguments = more;
        arguments["workspace_id"] = "w".into();
        arguments["patch"] = format!("*** Begin Patch\n{sections}*** End Patch\n").into();
        self.server.call("apply_patch", arguments)
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

#[test]
fn a_file_that_changed_after_the_preview_is_a_conflict() {
    let mut bench = bench();
    let path = bench.root.join("a");
    fs::write(&path, "one\ntwo\n").expect("a file");
    let seen = bench.read("a")["version"].clone();
    let section = "*** Update File: a\n@@\n-one\n+1\n";
    let with = |key: &str, check: bool| json!({ "operation_key": key, "check_only": check, "expected_versions": { "a": seen } });
    assert_eq!(
        bench.patch(section, with("check", true))["status"],
        "checked"
    );
    // Its own line is as it was, so without the version the patch would fit.
    fs::write(&path, "one\ntwo\nthree\n").expect("another writer");
    let stale = bench.patch(section, with("apply", false));
    assert_eq!(stale["code"], "VERSION_CONFLICT", "{stale}");
    assert_eq!(stale["details"]["path"], "a", "{stale}");
    let now = bench.read("a")["version"].clone();
    assert_eq!(stale["details"]["current"], now, "{stale}");
    assert_eq!(text(&path), "one\ntwo\nthree\n");
    // The key of the check is the check's.
    let same_key = bench.patch(section, with("check", false));
    assert_eq!(same_key["code"], "OPERATION_KEY_CONFLICT", "{same_key}");
    let fresh = json!({ "operation_key": "again", "expected_versions": { "a": now } });
    assert_eq!(bench.patch(section, fresh)["status"], "applied");
    assert_eq!(text(&path), "1\ntwo\nthree\n");
}

#[test]
fn only_the_workspace_counts_wherever_the_server_was_started() {
    let place = tempfile::tempdir().expect("a folder");
    let (root, other) = (place.path().join("root"), place.path().join("other"));
    for folder in [&root, &other] {
        fs::create_dir(folder).expect("a folder");
        let name = folder.file_name().expect("a name").to_string_lossy();
        fs::write(folder.join("f.txt"), format!("{name}\n")).expect("a file");
    }
    // Given relative to another folder, too.
    let mut server = Server::start_with(&root, &place.path().join("state"), |command| {
        command
            .current_dir(&other)
            .args(["--workspace", "x=../other"]);
    });
    let mut check = |workspace: &str, name: &str| {
        let read = json!({ "workspace_id": workspace, "path": "f.txt" });
        assert_eq!(server.call("read", read)["content"], format!("{name}\n"));
        let patch = format!(
            "*** Begin Patch\n*** Update File: f.txt\n@@\n-{name}\n+{name} new\n*** End Patch\n"
        );
        let arguments = json!({ "workspace_id": workspace, "patch": patch });
        assert_eq!(server.call("apply_patch", arguments)["status"], "applied");
    };
    check("w", "root");
    assert_eq!(text(&root.join("f.txt")), "root new\n");
    assert_eq!(text(&other.join("f.txt")), "other\n");
    check("x", "other");
    assert_eq!(text(&root.join("f.txt")), "root new\n");
    let run = server.run(&["cat", "f.txt"]);
    assert_eq!(run, "root new\n");
}

#[test]
fn bytes_that_are_no_utf8_are_answered_as_base64_and_stay_as_they_are() {
    let mut bench = bench();
    // "Hangul" in CP949, "café" in Latin-1, and bytes from nowhere.
    let noise: Vec<u8> = (0..2048_u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for (name, bytes) in [
        ("cp949", &b"# \xc7\xd1\xb1\xdb\nprint(1)\n"[..]),
        ("latin1", b"caf\xe9\nline\n"),
        ("noise", &noise),
    ] {
        fs::write(bench.root.join(name), bytes).expect("a file");
        let read = bench.read(name);
        assert_eq!(read["encoding"], "base64", "{read}");
        assert_eq!(read["size"], bytes.len(), "{read}");
        assert!(!read.to_string().contains('\u{fffd}'), "{read}");
    }
    let applied = bench.patch(
        "*** Update File: cp949\n@@\n-print(1)\n+print(2)\n*** Update File: latin1\n@@\n-line\n+other\n",
        json!({}),
    );
    assert_eq!(applied["status"], "applied", "{applied}");
    let bytes = |name: &str| fs::read(bench.root.join(name)).expect("a file");
    assert_eq!(bytes("cp949"), b"# \xc7\xd1\xb1\xdb\nprint(2)\n");
    assert_eq!(bytes("latin1"), b"caf\xe9\nother\n");
}

#[test]
fn a_patch_made_from_what_was_read_fits_a_file_with_a_mark() {
    let mut bench = bench();
    let path = bench.root.join("bom.txt");
    for text_of_line in ["first", "zweite → Zeile"] {
        fs::write(&path, format!("\u{feff}{text_of_line}\r\nsecond\r\n")).expect("a file");
        let read = bench.read("bom.txt");
        let content = read["content"].as_str().expect("text").to_owned();
        let line = content.lines().next().expect("a line").to_owned();
        let section = format!("*** Update File: bom.txt\n@@\n-{line}\n+changed\n second\n");
        let more = json!({ "expected_versions": { "bom.txt": read["version"] } });
        let applied = bench.patch(&section, more);
        assert_eq!(applied["status"], "applied", "{applied}");
        assert_eq!(text(&path), "\u{feff}changed\r\nsecond\r\n");
    }
}

#[test]
fn links_lead_nowhere_for_reads_lists_and_patches() {
    let mut bench = bench();
    let outside = bench.place.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("secret"), "s\n").expect("a file");
    fs::create_dir(bench.place.path().join("root-old")).expect("a folder");
    fs::write(bench.place.path().join("root-old/secret"), "s\n").expect("a file");
    fs::write(bench.root.join("plain"), "p\n").expect("a file");
    symlink("/proc", bench.root.join("proc")).expect("a link");
    symlink("/etc/passwd", bench.root.join("passwd")).expect("a link");
    symlink(&outside, bench.root.join("out")).expect("a link");
    symlink(outside.join("new"), bench.root.join("dangling")).expect("a link");
    symlink(".", bench.root.join("loop")).expect("a link");
    for glob in [
        "**",
        "**/*",
        "*",
        "proc/**",
        "out/*",
        "loop/**",
        "{plain,out/*}",
    ] {
        let found = bench.find(glob);
        let listed = found["paths"].as_array().expect("paths");
        assert!(
            listed.iter().all(|path| path == "plain") && found["truncated"] == false,
            "{glob}: {found}"
        );
    }
    for (path, code) in [
        ("passwd", "SYMLINK_REJECTED"),
        ("proc/self/environ", "SYMLINK_REJECTED"),
        ("out/secret", "SYMLINK_REJECTED"),
        ("loop/plain", "SYMLINK_REJECTED"),
        ("../root-old/secret", "PATH_ESCAPE"),
        ("../outside/secret", "PATH_ESCAPE"),
        ("/etc/passwd", "PATH_ESCAPE"),
    ] {
        let read = bench.read(path);
        assert_eq!(read["code"], code, "{path}: {read}");
        let patches = [
            format!("*** Update File: {path}\n@@\n-s\n+t\n"),
            format!("*** Delete File: {path}\n"),
            format!("*** Add File: {path}\n+t\n"),
            format!("*** Update File: plain\n*** Move to: {path}\n"),
        ];
        for section in patches {
            let patched = bench.patch(&section, json!({}));
            assert_eq!(patched["code"], code, "{section}: {patched}");
            let place = bench.place.path().to_str().expect("a path");
            assert!(!patched.to_string().contains(place), "{patched}");
        }
    }
    let dangling = bench.patch("*** Add File: dangling\n+t\n", json!({}));
    assert_eq!(dangling["code"], "SYMLINK_REJECTED", "{dangling}");
    assert_eq!(fs::read_dir(&outside).expect("a folder").count(), 1);
    assert_eq!(text(&outside.join("secret")), "s\n");
    assert_eq!(text(&bench.root.join("plain")), "p\n");
}
