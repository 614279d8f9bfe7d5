//! Large files, large workspaces, large calls.

use std::fs::{self, File};

use serde_json::json;

use crate::support::http::Http;

/// The most memory the server ever had resident, in KiB (proc_pid_status(5)).
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

#[test]
fn a_file_of_two_gigabytes_is_cut_when_read_and_refused_when_patched() {
    let http = Http::start();
    let file = File::create(http.root().join("large")).expect("a file");
    file.set_len(2 << 30).expect("a hole");
    let before = peak(http.child.id());
    let read = http.call("read", json!({ "workspace_id": "w", "path": "large" }));
    assert_eq!(read["truncated"], true);
    assert_eq!(read["size"], 2_u64 << 30);
    assert_eq!(read["content"].as_str().expect("text").len(), 1 << 20);
    let patch = "*** Begin Patch\n*** Update File: large\n@@\n-a\n+b\n*** End Patch\n";
    let refused = http.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch }),
    );
    assert!(
        refused["message"]
            .as_str()
            .expect("words")
            .contains("patch_file_bytes"),
        "{refused}"
    );
    assert!(
        peak(http.child.id()) < before + 64 * 1024,
        "memory grew with the file"
    );
    assert_eq!(file.metadata().expect("it").len(), 2 << 30);
}

#[test]
fn a_workspace_of_a_hundred_thousand_files_is_listed_in_order_and_patched() {
    let http = Http::start();
    for folder in 0..100 {
        let folder = http.root().join(format!("d{folder:02}"));
        fs::create_dir(&folder).expect("a folder");
        for file in 0..1_000 {
            File::create(folder.join(format!("f{file:03}"))).expect("a file");
        }
    }
    let found = http.call("find", json!({ "workspace_id": "w" }));
    assert_eq!(found["truncated"], true);
    let paths = found["paths"].as_array().expect("paths");
    assert_eq!(paths.len(), 1_000);
    assert_eq!(
        (&paths[0], &paths[999]),
        (&json!("d00/f000"), &json!("d00/f999"))
    );
    let found = http.call("find", json!({ "workspace_id": "w", "glob": "f777" }));
    assert_eq!(found["truncated"], false);
    assert_eq!(found["paths"].as_array().expect("paths").len(), 100);
    let patch = "*** Begin Patch\n*** Add File: d99/new\n+x\n*** End Patch\n";
    let applied = http.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch }),
    );
    assert_eq!(applied["status"], "applied", "{applied}");
}
