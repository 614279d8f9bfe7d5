//! What fate does to a server: full disks, folders that go away, other servers.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Server, http::Http, program};

/// A small file system in memory, unmounted in the end.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path, size: &str) -> Self {
        fs::create_dir_all(at).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .status()
            .expect("mount(8) is there");
        assert!(mounted.success(), "these tests run as root and may mount");
        Self(at)
    }

    /// Takes all the room there is, but for `spare` bytes.
    fn fill(&self, spare: u64) -> std::path::PathBuf {
        let path = self.0.join("ballast");
        let room = nix::sys::statvfs::statvfs(self.0).expect("a file system");
        let free = room.blocks_available() * room.fragment_size();
        fs::write(
            &path,
            vec![0; usize::try_from(free - spare).expect("small")],
        )
        .expect("room");
        path
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    names
}

fn replace(file: &str, old: &str, new: &str) -> Value {
    let patch =
        format!("*** Begin Patch\n*** Update File: {file}\n@@\n-{old}\n+{new}\n*** End Patch\n");
    json!({ "workspace_id": "w", "patch": patch })
}

#[test]
fn a_full_disk_while_staging_leaves_everything_as_it_was() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    let small = Small::mount(&root, "1m");
    let line = "x".repeat(1_000);
    let large = format!("old\n{}", format!("{line}\n").repeat(300));
    fs::write(root.join("large"), &large).expect("a file");
    fs::write(root.join("small"), "old\n").expect("a file");
    let ballast = small.fill(64 * 1024);
    let mut server = Server::start(&root, &place.path().join("state"));
    let before = names(&root);
    // Alone, and after others that could be staged.
    let others = "*** Begin Patch\n*** Update File: small\n@@\n-old\n+new\n*** Add File: deep/down/new\n+x\n*** Update File: large\n@@\n-old\n+new\n*** End Patch\n";
    let answer = server.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": others }),
    );
    assert_eq!(answer["code"], "FILE_OPERATION_FAILED", "{answer}");
    assert_eq!(names(&root), before);
    assert_eq!(fs::read_to_string(root.join("small")).expect("it"), "old\n");
    let answer = server.call("apply_patch", replace("large", "old", "new"));
    assert_eq!(answer["code"], "FILE_OPERATION_FAILED", "{answer}");
    assert!(
        answer["message"].as_str().expect("words").contains("space"),
        "{answer}"
    );
    assert_eq!(names(&root), before);
    assert_eq!(fs::read_to_string(root.join("large")).expect("it"), large);
    let record = server.call(
        "operation_status",
        json!({ "operation_id": answer["operation_id"] }),
    );
    assert_eq!(record["status"], "rejected", "{record}");
    fs::remove_file(ballast).expect("removed");
    let answer = server.call("apply_patch", replace("large", "old", "new"));
    assert_eq!(answer["status"], "applied", "{answer}");
}

#[test]
fn a_full_disk_under_the_ledger_refuses_patches_until_there_is_room() {
    let place = tempfile::tempdir().expect("a folder");
    let (root, state) = (place.path().join("root"), place.path().join("state"));
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("a"), "0\n").expect("a file");
    let small = Small::mount(&state, "4m");
    let mut server = Server::start(&root, &state);
    let applied = server.call("apply_patch", replace("a", "0", "1"));
    assert_eq!(applied["status"], "applied", "{applied}");
    let ballast = small.fill(0);
    let mut at = 1;
    let step = |at: usize| {
        let mut arguments = replace("a", &at.to_string(), &(at + 1).to_string());
        arguments["operation_key"] = at.to_string().into();
        arguments
    };
    // The log has some room of its own; it is used up before long.
    let refused = loop {
        let answer = server.call("apply_patch", step(at));
        if answer["status"] != "applied" {
            break answer;
        }
        at += 1;
        assert!(at < 10_000, "the disk is never full");
    };
    assert!(
        ["STORE_UNAVAILABLE", "FILE_OPERATION_FAILED"]
            .contains(&refused["code"].as_str().expect("a code")),
        "{refused}"
    );
    let now = format!("{at}\n");
    assert_eq!(fs::read_to_string(root.join("a")).expect("it"), now);
    assert_eq!(names(&root), ["a"]);
    let read = server.call("read", json!({ "workspace_id": "w", "path": "a" }));
    assert_eq!(read["content"], now, "reading needs no ledger");
    fs::remove_file(ballast).expect("removed");
    let answer = server.call("apply_patch", replace("a", &at.to_string(), "end"));
    assert_eq!(answer["status"], "applied", "{answer}");
    server.kill();

    // Every effect has its record, and what was refused is not told as done.
    let mut server = Server::start(&root, &state);
    for key in 1..=at {
        let record = server.call(
            "operation_status",
            json!({ "operation_key": key.to_string() }),
        );
        assert_eq!(record["status"] == "applied", key < at, "{key}: {record}");
    }
    let answer = server.call("apply_patch", replace("a", "end", "0"));
    assert_eq!(answer["status"], "applied", "{answer}");
    assert_eq!(names(&root), ["a"]);
}

#[test]
fn a_root_that_goes_away_is_named_and_comes_back() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("a"), "0\n").expect("a file");
    let mut server = Server::start(&root, &place.path().join("state"));
    assert_eq!(server.run(&["cat", "a"]), "0\n");
    fs::rename(&root, place.path().join("elsewhere")).expect("moved");
    let all = [
        ("read", json!({ "workspace_id": "w", "path": "a" })),
        ("find", json!({ "workspace_id": "w" })),
        ("apply_patch", replace("a", "0", "1")),
        (
            "exec_command",
            json!({ "workspace_id": "w", "command": ["true"] }),
        ),
    ];
    let assert_gone = |server: &mut Server| {
        for (tool, arguments) in &all {
            let answer = server.call(tool, arguments.clone());
            let code = match *tool {
                "exec_command" => "PROCESS_SPAWN_FAILED",
                _ => "FILE_OPERATION_FAILED",
            };
            assert_eq!(answer["code"], code, "{tool}: {answer}");
            let words = answer["message"].as_str().expect("words");
            assert!(words.contains("workspace w"), "{answer}");
            assert!(!words.contains('/'), "a host path: {answer}");
        }
    };
    assert_gone(&mut server);
    assert_eq!(
        fs::read_to_string(place.path().join("elsewhere/a")).expect("it"),
        "0\n"
    );
    fs::rename(place.path().join("elsewhere"), &root).expect("moved back");
    let answer = server.call("apply_patch", replace("a", "0", "1"));
    assert_eq!(answer["status"], "applied", "{answer}");
    assert_eq!(server.run(&["cat", "a"]), "1\n");
    fs::remove_dir_all(&root).expect("removed");
    assert_gone(&mut server);
    // Another folder in its place is not the one that was registered.
    fs::create_dir(&root).expect("another root");
    assert_gone(&mut server);
}

#[test]
fn two_servers_on_one_folder_exclude_each_other() {
    let place: TempDir = tempfile::tempdir().expect("a folder");
    let (root, state) = (place.path().join("root"), place.path().join("state"));
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("a"), "0\n").expect("a file");
    let mut one = Server::start(&root, &state);
    let (mut two, told) = Server::start_and_listen(&root, &state);
    let loud = told.iter().find(|line| line.contains("store"));
    assert!(
        loud.is_some_and(|line| line.contains("IN MEMORY") && line.contains("another server")),
        "{told:?}"
    );
    let running = one.call(
        "exec_command",
        json!({ "workspace_id": "w", "command": ["sleep", "600"] }),
    );
    assert!(running.get("code").is_none(), "{running}");
    let refused = two.call("apply_patch", replace("a", "0", "1"));
    assert_eq!(refused["code"], "WORKSPACE_BUSY", "{refused}");
    let refused = two.call(
        "exec_command",
        json!({ "workspace_id": "w", "command": ["true"] }),
    );
    assert_eq!(refused["code"], "WORKSPACE_BUSY", "{refused}");
    assert_eq!(
        two.call("read", json!({ "workspace_id": "w", "path": "a" }))["content"],
        "0\n"
    );
    one.call(
        "terminate_process",
        json!({ "process_id": running["process_id"] }),
    );
    let applied = two.call("apply_patch", replace("a", "0", "1"));
    assert_eq!(applied["status"], "applied", "{applied}");

    // A store that is named belongs to one server.
    let store = place.path().join("given.sqlite");
    let given = |command: &mut Command| {
        command.env("CODESPACE_STORE__PATH", &store);
    };
    let first = Http::start_with(given);
    let mut second = program();
    second
        .args(["serve", "--workspace"])
        .arg(format!("w={}", first.root().display()))
        .env("CODESPACE_SERVER__LISTEN", "127.0.0.1:0")
        .env("CODESPACE_ADMIN__LISTEN", "");
    given(&mut second);
    let output = second.output().expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("store.path") && said.contains("in use"),
        "{said}"
    );
}

#[test]
fn full_durability_keeps_records() {
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("root")).expect("a root");
    fs::write(place.path().join("root/a"), "0\n").expect("a file");
    let full = |command: &mut Command| {
        command.env("CODESPACE_STORE__DURABILITY", "full");
    };
    let mut http = Http::start_in(place, full);
    let mut arguments = replace("a", "0", "1");
    arguments["operation_key"] = "k".into();
    assert_eq!(http.call("apply_patch", arguments)["status"], "applied");
    http.child.kill().expect("killed");
    http.child.wait().expect("reaped");
    let place = std::mem::replace(&mut http.place, tempfile::tempdir().expect("another"));
    // The socket of the first may linger in the kernel; the second takes another port anyway.
    let again = Http::start_in(place, full);
    let record = again.call("operation_status", json!({ "operation_key": "k" }));
    assert_eq!(record["status"], "applied", "{record}");
}
