//! Large files, large workspaces, large calls.

use std::fs::{self, File};

use serde_json::{Value, json};

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
    fs::write(http.root().join("small"), "text\n").expect("a file");
    let before = peak(http.child.id());
    // Others are answered while it is read to its end for its version.
    let mut answered = 0;
    let read = std::thread::scope(|scope| {
        let large =
            scope.spawn(|| http.call("read", json!({ "workspace_id": "w", "path": "large" })));
        while !large.is_finished() {
            let small = http.call("read", json!({ "workspace_id": "w", "path": "small" }));
            assert_eq!(small["content"], "text\n", "{small}");
            answered += 1;
        }
        large.join().expect("read")
    });
    assert!(answered > 1, "a small read waited for the large one");
    assert_eq!(read["truncated"], true);
    assert_eq!(read["size"], 2_u64 << 30);
    assert_eq!(read["content"].as_str().expect("text").len(), 1 << 20);
    for section in [
        "*** Update File: large\n@@\n-a\n+b\n",
        "*** Update File: large\n*** Move to: other\n",
        "*** Delete File: large\n",
    ] {
        let patch = format!("*** Begin Patch\n{section}*** End Patch\n");
        let refused = http.call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": patch }),
        );
        assert_eq!(refused["code"], "FILE_OPERATION_FAILED", "{refused}");
        let words = refused["message"].as_str().expect("words");
        assert!(words.contains("limits.patch_file_bytes"), "{refused}");
    }
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
    for (glob, count, first, last, truncated) in [
        ("f777", 100, "d00/f777", "d99/f777", false),
        ("d42/**", 1_000, "d42/f000", "d42/f999", false),
        ("d4[23]/*", 1_000, "d42/f000", "d42/f999", true),
        ("**/f99?", 1_000, "d00/f990", "d99/f999", false),
        ("**/f9??", 1_000, "d00/f900", "d09/f999", true),
        ("{d07,d03}/f00?", 20, "d03/f000", "d07/f009", false),
        ("none", 0, "", "", false),
    ] {
        let found = http.call("find", json!({ "workspace_id": "w", "glob": glob }));
        assert_eq!(found["truncated"], truncated, "{glob}");
        let paths = found["paths"].as_array().expect("paths");
        assert_eq!(paths.len(), count, "{glob}");
        let at = |path: Option<&Value>| path.and_then(Value::as_str).unwrap_or_default().to_owned();
        assert_eq!(
            (at(paths.first()), at(paths.last())),
            (first.to_owned(), last.to_owned()),
            "{glob}"
        );
        let text = |path: &Value| path.as_str().expect("text").to_owned();
        assert!(paths.is_sorted_by_key(text), "{glob}");
    }
    let patch = "*** Begin Patch\n*** Add File: d99/new\n+x\n*** End Patch\n";
    let applied = http.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch }),
    );
    assert_eq!(applied["status"], "applied", "{applied}");
}

fn apply(http: &Http, sections: &str) -> Value {
    let patch = format!("*** Begin Patch\n{sections}*** End Patch\n");
    http.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch }),
    )
}

#[test]
fn a_large_file_changes_by_its_edit_and_by_nothing_else() {
    let http = Http::start();
    let path = http.root().join("large");
    let line = format!("{}\r\n", "x".repeat(98));
    let old = format!("first\r\n{}last\r\n", line.repeat(100_000));
    fs::write(&path, &old).expect("a file");
    for (from, to) in [
        ("first", "changed at the start"),
        ("last", "and at the end"),
    ] {
        let section = format!("*** Update File: large\n@@\n-{from}\n+{to}\n");
        let applied = apply(&http, &section);
        assert_eq!(applied["status"], "applied", "{applied}");
    }
    let new = fs::read_to_string(&path).expect("it");
    let wanted = old.replacen("first", "changed at the start", 1).replacen(
        "last\r\n",
        "and at the end\r\n",
        1,
    );
    // Not assert_eq: nobody wants to read ten megabytes.
    assert!(
        new == wanted,
        "{} bytes, wanted {}",
        new.len(),
        wanted.len()
    );
}

#[test]
fn a_block_that_fits_everywhere_or_nowhere_is_answered() {
    let http = Http::start();
    let equal = "same\n".repeat(200_000);
    fs::write(http.root().join("equal"), &equal).expect("a file");
    let block = "-same\n".repeat(500);
    let fits = apply(&http, &format!("*** Update File: equal\n@@\n{block}+new\n"));
    assert_eq!(fits["status"], "applied", "{fits}");
    // Every place fits, but for the last line of the block.
    let near = apply(
        &http,
        &format!("*** Update File: equal\n@@\n{block}-other\n+new\n"),
    );
    assert_eq!(near["code"], "INVALID_PATCH", "{near}");
    let new = fs::read_to_string(http.root().join("equal")).expect("it");
    assert!(new == format!("new\n{}", "same\n".repeat(199_500)));
}
