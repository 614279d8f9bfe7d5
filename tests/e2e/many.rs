//! Many clients at once.

use std::{fs, path::Path, sync::Barrier, thread};

use serde_json::{Value, json};

use crate::support::{http::Http, until};

const CLIENTS: usize = 100;
const WORKSPACES: usize = 4;

fn entries(pid: u32, folder: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{folder}"))
        .expect("these tests run as root")
        .count()
}

fn start() -> Http {
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("root")).expect("a root");
    let roots: Vec<_> = (0..WORKSPACES)
        .map(|at| place.path().join(format!("root{at}")))
        .collect();
    for root in &roots {
        fs::create_dir(root).expect("a root");
    }
    Http::start_in(place, |command| {
        for (at, root) in roots.iter().enumerate() {
            let argument = format!("w{at}={}", root.display());
            command.args(["--workspace", &argument]);
        }
    })
}

/// What one client does in its workspace, and what it must be told.
fn work(http: &Http, workspace: &str, root: &Path, client: usize) {
    let name = format!("{client}.txt");
    let at = |mut arguments: Value| {
        arguments["workspace_id"] = workspace.into();
        arguments
    };
    let read = http.call("read", at(json!({ "path": name })));
    assert_eq!(read["content"], "one\ntwo\n", "{read}");
    let found = http.call("find", at(json!({ "glob": name })));
    assert_eq!(found["paths"], json!([name]), "{found}");
    // One mutation at a time: the others are told so at once, and come again.
    let patch =
        format!("*** Begin Patch\n*** Update File: {name}\n@@\n-two\n+{client}\n*** End Patch\n");
    let arguments = at(json!({
        "patch": patch, "operation_key": name, "expected_versions": { &name: read["version"] },
    }));
    let applied = until_free(|| http.call("apply_patch", arguments.clone()));
    assert_eq!(applied["status"], "applied", "{applied}");
    assert_eq!(applied["files"], json!([name]), "somebody else's answer");
    let command = at(json!({ "command": ["tail", "-n", "1", name] }));
    let process = until_free(|| http.call("exec_command", command.clone()));
    let id = &process["process_id"];
    let status = http.call(
        "process_status",
        json!({ "process_id": id, "wait_ms": 30_000 }),
    );
    assert_eq!(status["exit_code"], 0, "{status}");
    let output = http.call("read_process", json!({ "process_id": id }));
    assert_eq!(output["chunk"], format!("{client}\n"), "{output}");
    let text = fs::read_to_string(root.join(&name)).expect("it");
    assert_eq!(text, format!("one\n{client}\n"));
}

#[test]
fn a_hundred_clients_in_four_workspaces_are_all_answered_and_leave_nothing() {
    let http = start();
    let root = |client: usize| {
        let place = http.place.path();
        place.join(format!("root{}", client % WORKSPACES))
    };
    let workspace = |client: usize| format!("w{}", client % WORKSPACES);
    // What the first call of each kind in a workspace starts stays.
    for client in 0..WORKSPACES + CLIENTS {
        let file = root(client).join(format!("{client}.txt"));
        fs::write(file, "one\ntwo\n").expect("a file");
    }
    for client in 0..WORKSPACES {
        work(&http, &workspace(client), &root(client), client);
    }
    let pid = http.child.id();
    let (descriptors, threads) = (entries(pid, "fd"), entries(pid, "task"));
    let start = Barrier::new(CLIENTS);
    thread::scope(|scope| {
        for client in WORKSPACES..WORKSPACES + CLIENTS {
            let (http, start, workspace, root) = (&http, &start, &workspace, &root);
            scope.spawn(move || {
                start.wait();
                work(http, &workspace(client), &root(client), client);
            });
        }
    });
    // The last connections are closed by tasks of their own, and a thread that has nothing to do
    // waits a while for more.
    until("descriptors as before", || {
        entries(pid, "fd") <= descriptors
    });
    until("threads as before", || entries(pid, "task") <= threads);
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
