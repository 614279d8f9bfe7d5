//! `runner.kind = "uds"`: the worker is killed at random points, and so is the server.
//!
//! Whatever a call was told must be so, the workspace must be free afterwards, and nothing
//! of a killed worker's or server's commands may be left.

use std::{collections::BTreeMap, fs, path::Path, thread::sleep, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    crash::{old_files, on_disk, patch_and_new_files, write},
    support::Server,
};

struct Bench {
    server: Server,
    place: TempDir,
}

fn start(sandbox: &str) -> Bench {
    let place = tempfile::tempdir().expect("a folder");
    let (root, state) = (place.path().join("root"), place.path().join("state"));
    fs::create_dir(&root).expect("a root");
    let server = Server::start_with(
        &root,
        &state,
        &[
            ("CODESPACE_RUNNER__KIND", "uds"),
            ("CODESPACE_SANDBOX__MODE", sandbox),
        ],
    );
    Bench { server, place }
}

fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).expect("/proc is there");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn command_line(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The worker of this server, if one lives.
fn worker(server: u32) -> Option<i32> {
    numbers("/proc").into_iter().find(|pid| {
        parent(*pid) == Some(server.cast_signed()) && command_line(*pid).ends_with(b"\0worker\0")
    })
}

fn is_running(marker: &str) -> bool {
    let marker = format!("\0{marker}\0");
    numbers("/proc").into_iter().any(|pid| {
        let line = command_line(pid);
        line.windows(marker.len())
            .any(|part| part == marker.as_bytes())
    })
}

fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

impl Bench {
    fn root(&self) -> std::path::PathBuf {
        self.place.path().join("root")
    }

    fn kill_worker(&self) {
        // One that was lost before may be about to be replaced.
        let server = self.server.id();
        until("a worker runs", || worker(server).is_some());
        let Some(pid) = worker(server) else { return };
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it can be killed");
    }

    fn exec(&mut self, command: &[&str]) -> Value {
        self.server.call(
            "exec_command",
            json!({ "workspace_id": "w", "command": command }),
        )
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.server.receive().expect("an answer");
            if message["id"] == id {
                return message["result"]["structuredContent"].clone();
            }
        }
    }

    /// A command runs to its end: the workspace is free, and a worker there.
    fn works(&mut self, context: &str) {
        let started = self.exec(&["echo", "works"]);
        assert_eq!(
            started["dispatch_status"], "confirmed",
            "{context}: {started}"
        );
        let id = started["process_id"].as_str().expect("an id").to_owned();
        let status = self.server.call(
            "process_status",
            json!({ "process_id": id, "wait_ms": 30000 }),
        );
        assert_eq!(status["exit_code"], 0, "{context}: {status}");
    }
}

/// Files without those that the test adds between rounds.
fn reset(root: &Path, old: &BTreeMap<String, String>) {
    fs::remove_dir_all(root.join("new")).ok();
    fs::remove_dir_all(root.join("added")).ok();
    fs::remove_file(root.join("after.txt")).ok();
    write(root, old);
}

#[test]
fn a_patch_is_told_what_became_of_it_when_its_worker_is_killed() {
    let mut bench = start("off");
    let root = bench.root();
    let old = old_files(50);
    let (patch, new) = patch_and_new_files(&old, 50);
    let rounds = 40;
    let mut seen = BTreeMap::<String, usize>::new();
    for round in 0..rounds {
        reset(&root, &old);
        let id = bench.server.send_call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": patch, "operation_key": format!("k{round}") }),
        );
        sleep(Duration::from_micros(round * 60_000 / rounds));
        bench.kill_worker();
        let told = bench.answer(id);
        let status = told["status"].as_str().unwrap_or_default().to_owned();
        match status.as_str() {
            "applied" => assert_eq!(on_disk(&root), new, "round {round}: {told}"),
            "failed_rolled_back" => assert_eq!(on_disk(&root), old, "round {round}: {told}"),
            _ => panic!("round {round}: {told}"),
        }
        let recorded = bench.server.call(
            "operation_status",
            json!({ "operation_key": format!("k{round}") }),
        );
        assert_eq!(recorded["status"], status, "round {round}: {recorded}");
        let after = bench.server.call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": "*** Begin Patch\n*** Add File: after.txt\n+ok\n*** End Patch\n" }),
        );
        assert_eq!(after["status"], "applied", "round {round}: {after}");
        *seen.entry(status).or_default() += 1;
    }
    println!("{seen:?}");
    // What a lost worker kept was cleared away with its records.
    let journals = journals_below(&bench.place.path().join("state"));
    assert_eq!(journals, Vec::<String>::new());
}

/// The journals below a state folder.
fn journals_below(state: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![state.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.contains("/op_") {
                names.push(name);
            }
        }
    }
    names
}

#[test]
fn reads_go_on_with_the_next_worker() {
    let mut bench = start("off");
    fs::write(bench.root().join("f"), "text").expect("a file");
    for round in 0..30_u64 {
        let ids: Vec<u64> = (0..8)
            .map(|_| {
                let arguments = json!({ "workspace_id": "w", "path": "f" });
                bench.server.send_call("read", arguments)
            })
            .collect();
        sleep(Duration::from_micros(round * 100));
        bench.kill_worker();
        let mut missing = ids.clone();
        while !missing.is_empty() {
            let message = bench.server.receive().expect("an answer");
            missing.retain(|id| message["id"] != *id);
            let content = &message["result"]["structuredContent"]["content"];
            assert_eq!(content, "text", "round {round}: {message}");
        }
    }
}

fn a_command_is_told_whether_it_ran(sandbox: &str) {
    let mut bench = start(sandbox);
    bench.works("before");
    let mut seen = BTreeMap::<String, usize>::new();
    for round in 0..25_u64 {
        let id = bench.server.send_call(
            "exec_command",
            json!({ "workspace_id": "w", "command": ["sleep", "300"] }),
        );
        sleep(Duration::from_micros(round * 600));
        bench.kill_worker();
        let told = bench.answer(id);
        let what = told["dispatch_status"].as_str().or(told["code"].as_str());
        let what = what.unwrap_or_default().to_owned();
        match what.as_str() {
            "confirmed" | "unknown" => {
                let process = json!({ "process_id": told["process_id"] });
                let status = bench.server.call("process_status", process.clone());
                if status["state"] == "running" {
                    // The kill came first, and the command went to the next worker.
                    let ended = bench.server.call("terminate_process", process);
                    assert_eq!(ended["ok"], true, "round {round}: {ended}");
                } else {
                    assert_eq!(
                        status["code"], "PROCESS_NOT_FOUND",
                        "round {round}: {status}"
                    );
                    let says = status["message"].as_str().unwrap_or_default();
                    assert!(says.contains("worker"), "round {round}: {status}");
                }
            }
            "PROCESS_SPAWN_FAILED" => {}
            _ => panic!("round {round}: {told}"),
        }
        *seen.entry(what).or_default() += 1;
        bench.works(&format!("round {round}"));
    }
    println!("{seen:?}");
}

#[test]
fn a_command_is_told_whether_it_ran_with_a_sandbox() {
    a_command_is_told_whether_it_ran("preferred");
}

#[test]
fn a_command_is_told_whether_it_ran_without_a_sandbox() {
    a_command_is_told_whether_it_ran("off");
}

// In the command's own tree and in a session of its own, without its streams.
fn with_a_daemon(marker: &str) -> String {
    format!("setsid sleep {marker} </dev/null >/dev/null 2>&1 & exec sleep {marker}")
}

fn nothing_is_left_of_a_lost_worker(sandbox: &str, marker: &str) {
    let mut bench = start(sandbox);
    let script = with_a_daemon(marker);
    let started = bench.exec(&["sh", "-c", &script]);
    assert_eq!(started["dispatch_status"], "confirmed", "{started}");
    until("the command runs", || is_running(marker));
    let waiting = bench.server.send_call(
        "process_status",
        json!({ "process_id": started["process_id"], "wait_ms": 30000 }),
    );
    bench.kill_worker();
    // Answered at the loss, not after its wait.
    let told = bench.answer(waiting);
    assert_eq!(told["code"], "PROCESS_NOT_FOUND", "{told}");
    // By then nothing is left, and the workspace is free.
    assert!(!is_running(marker));
    bench.works("after");
    // The server ends as ever.
    let pid = bench.server.id();
    let second = worker(pid).expect("a worker");
    bench.server.close_stdin();
    assert!(bench.server.wait().success());
    assert!(command_line(second).is_empty(), "the worker is left");
}

#[test]
fn nothing_is_left_of_a_lost_worker_with_a_sandbox() {
    nothing_is_left_of_a_lost_worker("preferred", "90071");
}

#[test]
fn nothing_is_left_of_a_lost_worker_without_a_sandbox() {
    nothing_is_left_of_a_lost_worker("off", "90072");
}

fn nothing_is_left_of_a_killed_server(sandbox: &str, marker: &str) {
    let mut bench = start(sandbox);
    let script = with_a_daemon(marker);
    let started = bench.exec(&["sh", "-c", &script]);
    assert_eq!(started["dispatch_status"], "confirmed", "{started}");
    until("the command runs", || is_running(marker));
    let pid = worker(bench.server.id()).expect("a worker");
    bench.server.kill();
    until("the worker ends", || command_line(pid).is_empty());
    // It ends its trees first.
    assert!(!is_running(marker));
}

#[test]
fn nothing_is_left_of_a_killed_server_with_a_sandbox() {
    nothing_is_left_of_a_killed_server("preferred", "90073");
}

#[test]
fn nothing_is_left_of_a_killed_server_without_a_sandbox() {
    nothing_is_left_of_a_killed_server("off", "90074");
}
