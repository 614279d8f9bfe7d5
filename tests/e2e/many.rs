//! Many clients at once.

use std::{fs, sync::Barrier, thread};

use serde_json::{Value, json};

use crate::support::http::Http;

fn entries(pid: u32, folder: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{folder}"))
        .expect("these tests run as root")
        .count()
}

#[test]
fn a_hundred_clients_are_all_answered_and_leave_nothing() {
    const CLIENTS: usize = 100;
    let http = Http::start();
    for client in 0..CLIENTS {
        fs::write(http.root().join(format!("{client}.txt")), "one\ntwo\n").expect("a file");
    }
    let pid = http.child.id();
    // What the first call of each kind starts stays.
    http.call("read", json!({ "workspace_id": "w", "path": "0.txt" }));
    let descriptors = entries(pid, "fd");
    let start = Barrier::new(CLIENTS);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (http, start) = (&http, &start);
            scope.spawn(move || {
                start.wait();
                let name = format!("{client}.txt");
                let read = http.call("read", json!({ "workspace_id": "w", "path": name }));
                assert_eq!(read["content"], "one\ntwo\n", "{read}");
                let found = http.call("find", json!({ "workspace_id": "w", "glob": name }));
                assert_eq!(found["paths"], json!([name]), "{found}");
                // One mutation at a time: the others are told so at once, and come again.
                let patch = format!(
                    "*** Begin Patch\n*** Update File: {name}\n@@\n-two\n+{client}\n*** End Patch\n"
                );
                let arguments =
                    json!({ "workspace_id": "w", "patch": patch, "operation_key": name });
                until_free(|| http.call("apply_patch", arguments.clone()));
                let process = until_free(|| {
                    http.call(
                        "exec_command",
                        json!({ "workspace_id": "w", "command": ["tail", "-n", "1", name] }),
                    )
                });
                let wait = json!({ "process_id": process["process_id"], "wait_ms": 30_000 });
                let status = http.call("process_status", wait);
                assert_eq!(status["exit_code"], 0, "{status}");
                let output = http.call(
                    "read_process",
                    json!({ "process_id": process["process_id"] }),
                );
                assert_eq!(output["chunk"], format!("{client}\n"), "{output}");
            });
        }
    });
    // The last connections are closed by tasks of their own.
    while entries(pid, "fd") > descriptors + 8 {
        thread::yield_now();
    }
}

fn until_free(call: impl Fn() -> Value) -> Value {
    loop {
        let answer = call();
        if answer["code"] != "WORKSPACE_BUSY" {
            assert!(answer.get("code").is_none(), "{answer}");
            return answer;
        }
        thread::sleep(std::time::Duration::from_millis(2));
    }
}
