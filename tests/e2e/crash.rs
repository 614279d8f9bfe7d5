//! Kill -9 at random points of real patches: after the restart every file is whole, the
//! set is all old or all new, the ledger says which, and nothing staged is left.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use serde_json::json;

use crate::support::Server;

pub(crate) type Files = BTreeMap<String, String>;

pub(crate) fn old_files(count: usize) -> Files {
    let mut files = Files::new();
    for n in 0..count {
        files.insert(
            format!("src/dir{}/f{n}.txt", n % 7),
            format!("line one\nvalue {n}\nline three\n"),
        );
    }
    files.insert("moved.txt".into(), "to be moved\n".into());
    files.insert("gone.txt".into(), "to be deleted\n".into());
    files
}

pub(crate) fn patch_and_new_files(old: &Files, count: usize) -> (String, Files) {
    let mut new = old.clone();
    let mut patch = String::from("*** Begin Patch\n");
    for n in 0..count {
        let path = format!("src/dir{}/f{n}.txt", n % 7);
        patch.push_str(&format!(
            "*** Update File: {path}\n@@\n line one\n-value {n}\n+changed {n}\n"
        ));
        new.insert(path, format!("line one\nchanged {n}\nline three\n"));
    }
    patch.push_str("*** Update File: moved.txt\n*** Move to: new/place/moved.txt\n*** Delete File: gone.txt\n*** Add File: added/deep/file.txt\n+fresh\n*** End Patch\n");
    let moved = new.remove("moved.txt").expect("it is there");
    new.insert("new/place/moved.txt".into(), moved);
    new.remove("gone.txt");
    new.insert("added/deep/file.txt".into(), "fresh\n".into());
    (patch, new)
}

pub(crate) fn write(root: &Path, files: &Files) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }
}

/// Every file below the root, staged and hidden ones too.
pub(crate) fn on_disk(root: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path
                    .strip_prefix(root)
                    .expect("below")
                    .to_string_lossy()
                    .into_owned();
                files.insert(name, fs::read_to_string(&path).expect("text"));
            }
        }
    }
    files
}

fn rounds(count: usize, rounds: u64, spread_us: u64) {
    let mut seen = BTreeMap::<String, usize>::new();
    for round in 0..rounds {
        let place = tempfile::tempdir().expect("a folder");
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        fs::create_dir(&root).expect("a root");
        let old = old_files(count);
        write(&root, &old);
        let (patch, new) = patch_and_new_files(&old, count);
        let mut server = Server::start(&root, &state);
        server.send_call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": patch, "operation_key": "k" }),
        );
        // Points spread evenly over the call's length; which instruction each hits is chance.
        std::thread::sleep(Duration::from_micros(round * spread_us / rounds));
        server.kill();

        let mut server = Server::start(&root, &state);
        let told = server.call("operation_status", json!({ "operation_key": "k" }));
        let status = told["status"]
            .as_str()
            .or(told["code"].as_str())
            .expect("an answer")
            .to_owned();
        let files = on_disk(&root);
        match status.as_str() {
            "applied" => assert_eq!(files, new, "round {round}: {told}"),
            "failed_rolled_back" | "OPERATION_NOT_FOUND" => {
                assert_eq!(files, old, "round {round}: {told}")
            }
            other => panic!("round {round}: {other}: {told}"),
        }
        *seen.entry(status).or_default() += 1;
        // The workspace is free again, and works.
        let again = server.call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": "*** Begin Patch\n*** Add File: after.txt\n+ok\n*** End Patch\n" }),
        );
        assert_eq!(again["status"], "applied", "round {round}: {again}");
    }
    println!("{count} files: {seen:?}");
}

#[test]
fn a_killed_server_leaves_fifty_files_all_old_or_all_new() {
    rounds(50, 40, 60_000);
}

#[test]
fn a_killed_server_leaves_one_file_whole() {
    rounds(1, 40, 15_000);
}
