//! Commands over pipes: input, waiting, ends, and who else may go on meanwhile.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Server, until};

struct Bench {
    place: TempDir,
    server: Server,
}

fn bench_with(key: &str, value: &str) -> Bench {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    let server = Server::start_with(&root, &place.path().join("state"), |command| {
        command.env(key, value);
    });
    Bench { place, server }
}

fn bench() -> Bench {
    bench_with("UNUSED", "")
}

impl Bench {
    fn start(&mut self, command: &[&str]) -> Value {
        let arguments = json!({ "workspace_id": "w", "command": command });
        let started = self.server.call("exec_command", arguments);
        assert!(started["process_id"].is_string(), "{started}");
        started["process_id"].clone()
    }

    fn of(&mut self, tool: &str, id: &Value, mut more: Value) -> Value {
        more["process_id"] = id.clone();
        self.server.call(tool, more)
    }

    fn end(&mut self, id: &Value) -> Value {
        let status = self.of("process_status", id, json!({ "wait_ms": 30_000 }));
        assert_eq!(status["state"], "exited", "{status}");
        status
    }
}

/// Processes of this host whose command line holds a word.
fn running(word: &str) -> usize {
    let folders = fs::read_dir("/proc").expect("a folder");
    let lines = folders.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(word))
        .count()
}

#[test]
fn a_command_that_reads_gets_its_own_input_and_not_the_servers() {
    let mut bench = bench();
    let id = bench.start(&["cat"]);
    // Each of these calls is a line on the server's own stdin.
    for _ in 0..20 {
        let status = bench.of("process_status", &id, json!({}));
        assert_eq!(status["state"], "running", "{status}");
        assert_eq!(status["output_total"], 0, "{status}");
    }
    let written = bench.of("write_stdin", &id, json!({ "data": "a\n" }));
    assert_eq!(
        (&written["ok"], &written["written"]),
        (&json!(true), &json!(2))
    );
    let read = bench.of("read_process", &id, json!({ "wait_ms": 30_000 }));
    assert_eq!(
        (&read["chunk"], &read["eof"]),
        (&json!("a\n"), &json!(false))
    );
    bench.of("write_stdin", &id, json!({ "data": "", "close": true }));
    assert_eq!(bench.end(&id)["exit_code"], 0);
    let rest = bench.of("read_process", &id, json!({ "cursor": 2 }));
    assert_eq!((&rest["chunk"], &rest["eof"]), (&json!(""), &json!(true)));

    // Closing is what a program that wants all of its input waits for.
    let id = bench.start(&["tac"]);
    bench.of(
        "write_stdin",
        &id,
        json!({ "data": "a\nb\n", "close": true }),
    );
    assert_eq!(bench.end(&id)["exit_code"], 0);
    assert_eq!(bench.of("read_process", &id, json!({}))["chunk"], "b\na\n");
}

#[test]
fn writing_to_what_has_ended_is_not_found_at_any_moment() {
    let mut bench = bench();
    for _ in 0..30 {
        let id = bench.start(&["true"]);
        let answer = bench.of("write_stdin", &id, json!({ "data": "x" }));
        // As near to the exit as it gets: taken by the pipe, or told that nobody reads it.
        assert!(
            answer["ok"] == true || answer["code"] == "PROCESS_NOT_FOUND",
            "{answer}"
        );
        bench.end(&id);
        let answer = bench.of("write_stdin", &id, json!({ "data": "x" }));
        assert_eq!(answer["code"], "PROCESS_NOT_FOUND", "{answer}");
        let words = answer["message"].as_str().expect("words");
        assert!(words.contains("exited"), "{answer}");
    }
    let unknown = json!("proc_00000000000000000000000000000000");
    let answer = bench.of("write_stdin", &unknown, json!({ "data": "x" }));
    assert_eq!(answer["code"], "PROCESS_NOT_FOUND", "{answer}");
}

#[test]
fn an_interrupt_byte_is_data_in_a_pipe_and_terminate_ends_the_command() {
    let mut bench = bench();
    let script = r#"trap 'echo got; exit 7' INT; head -c 1 | od -An -tx1; echo on; while :; do sleep 0.05; done"#;
    let id = bench.start(&["sh", "-c", script]);
    bench.of("write_stdin", &id, json!({ "data": "\u{3}" }));
    let mut text = String::new();
    let mut cursor = json!(0);
    until("the byte arrived as data", || {
        let read = bench.of(
            "read_process",
            &id,
            json!({ "cursor": cursor, "wait_ms": 1_000 }),
        );
        text.push_str(read["chunk"].as_str().expect("text"));
        cursor = read["cursor"].clone();
        text.ends_with("on\n")
    });
    assert_eq!(text, " 03\non\n");
    let status = bench.of("process_status", &id, json!({}));
    assert_eq!(status["state"], "running", "{status}");
    bench.of("terminate_process", &id, json!({}));
    let status = bench.end(&id);
    assert_eq!(status["termination"], "terminated", "{status}");
    assert!(status.get("exit_code").is_none(), "{status}");
    // A second time is no error, and changes nothing of what is told.
    assert_eq!(bench.of("terminate_process", &id, json!({}))["ok"], true);
    assert_eq!(bench.end(&id), status);
}

#[test]
fn a_wait_ends_with_something_new_or_with_the_exit() {
    let mut bench = bench();
    let id = bench.start(&["sh", "-c", "echo first; read x; echo second; exit 3"]);
    let read = bench.of("read_process", &id, json!({ "wait_ms": 30_000 }));
    assert_eq!(
        (&read["chunk"], &read["eof"]),
        (&json!("first\n"), &json!(false))
    );
    bench.of("write_stdin", &id, json!({ "data": "\n" }));
    let status = bench.end(&id);
    assert_eq!(status["exit_code"], 3, "{status}");
    // What has ended is waited for no longer, and read as long as it is kept.
    for _ in 0..3 {
        let more = json!({ "cursor": read["cursor"], "wait_ms": 30_000 });
        let rest = bench.of("read_process", &id, more);
        assert_eq!(
            (&rest["chunk"], &rest["eof"]),
            (&json!("second\n"), &json!(true))
        );
        assert_eq!(bench.end(&id), status);
    }
}

#[test]
fn the_time_limit_ends_the_whole_tree() {
    let mut bench = bench_with("CODESPACE_LIMITS__PROCESS_SECONDS", "1");
    let word = format!("6001{}", std::process::id());
    for script in [
        // A writer that never stops behind a pipe that is never closed.
        format!(
            "mkfifo p; (while :; do echo x; sleep 0.1; done > p; sleep {word}) & cat p > /dev/null; sleep {word}"
        ),
        // Daemons: of a session of their own, and of a parent that has left.
        format!("setsid sleep {word} & (setsid sleep {word} > /dev/null 2>&1 &) ; sleep {word}"),
        // Who will not go.
        format!("trap '' TERM INT HUP; sleep {word} & sleep {word}; sleep {word}"),
    ] {
        let id = bench.start(&["sh", "-c", &script]);
        let status = bench.end(&id);
        assert_eq!(status["termination"], "timeout", "{script}: {status}");
        assert_eq!(status["eof"], true, "{script}: {status}");
        assert_eq!(running(&format!("sleep\0{word}")), 0, "{script}");
        fs::remove_file(bench.place.path().join("root/p")).ok();
    }
}

#[test]
fn silent_commands_in_some_workspaces_hold_up_no_other() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir(&path).expect("a root");
        fs::write(path.join("a"), "text\n").expect("a file");
        path
    };
    let root = folder("root");
    let mut server = Server::start_with(&root, &place.path().join("state"), |command| {
        for name in ["s0", "s1", "s2"] {
            let path: &Path = &folder(name);
            command.args(["--workspace", &format!("{name}={}", path.display())]);
        }
    });
    let mut silent = Vec::new();
    for name in ["s0", "s1", "s2"] {
        let command = json!({ "workspace_id": name, "command": ["sleep", "600"] });
        silent.push(server.call("exec_command", command)["process_id"].clone());
        // Somebody waits for each of them.
        for id in &silent {
            server.send_call(
                "read_process",
                json!({ "process_id": id, "wait_ms": 30_000 }),
            );
        }
    }
    let read = json!({ "workspace_id": "w", "path": "a" });
    assert_eq!(server.call("read", read)["content"], "text\n");
    assert_eq!(server.run(&["cat", "a"]), "text\n");
    let patch = "*** Begin Patch\n*** Update File: a\n@@\n-text\n+new\n*** End Patch\n";
    let applied = server.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch }),
    );
    assert_eq!(applied["status"], "applied", "{applied}");
    for id in &silent {
        let status = server.call("process_status", json!({ "process_id": id }));
        assert_eq!(status["state"], "running", "{status}");
        let read = server.call("read_process", json!({ "process_id": id }));
        assert_eq!((&read["chunk"], &read["eof"]), (&json!(""), &json!(false)));
    }
}

#[test]
fn a_cancelled_call_is_not_answered_and_the_session_goes_on() {
    let mut bench = bench();
    let id = bench.start(&["sleep", "600"]);
    let server = &mut bench.server;
    let call = server.send_call(
        "process_status",
        json!({ "process_id": id, "wait_ms": 30_000 }),
    );
    for cancelled in [json!(call), json!("nobody")] {
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": cancelled } }));
    }
    // Ending the command would answer the call, if it still waited.
    let ended = server.send_call("terminate_process", json!({ "process_id": id }));
    let first = server.receive().expect("an answer");
    assert_eq!(first["id"], ended, "{first}");
    let ping = server.request("ping", json!({}));
    assert!(ping["result"].is_object(), "{ping}");
    server.close_stdin();
    assert!(server.receive().is_none(), "nothing more is answered");
    assert!(server.wait().success());
}
