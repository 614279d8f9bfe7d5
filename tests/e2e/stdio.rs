//! The stdio transport and the tools behind it.

use std::{fs, path::PathBuf, process::Command};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Server;

struct Bench {
    _place: TempDir,
    root: PathBuf,
    server: Server,
}

fn bench() -> Bench {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("a.txt"), "hello\n").expect("a file");
    let server = Server::start(&root, &place.path().join("state"));
    Bench {
        _place: place,
        root,
        server,
    }
}

impl Bench {
    fn call(&mut self, tool: &str, mut arguments: Value) -> Value {
        if tool != "read_process"
            && tool != "process_status"
            && tool != "write_stdin"
            && tool != "terminate_process"
            && tool != "operation_status"
        {
            arguments["workspace_id"] = "w".into();
        }
        self.server.call(tool, arguments)
    }

    fn run_to_end(&mut self, command: &[&str]) -> (String, Value) {
        let started = self.call("exec_command", json!({ "command": command }));
        let id = started["process_id"]
            .as_str()
            .unwrap_or_else(|| panic!("{started}"))
            .to_owned();
        let mut output = String::new();
        let mut cursor = json!(0);
        loop {
            let chunk = self.call(
                "read_process",
                json!({ "process_id": id, "cursor": cursor, "wait_ms": 20_000 }),
            );
            output.push_str(chunk["chunk"].as_str().expect("a chunk"));
            cursor = chunk["cursor"].clone();
            if chunk["eof"] == true {
                break;
            }
        }
        (
            output,
            self.call(
                "process_status",
                json!({ "process_id": id, "wait_ms": 20_000 }),
            ),
        )
    }
}

#[test]
fn calls_in_flight_are_answered_at_end_of_input() {
    let mut bench = bench();
    let id = bench
        .server
        .send_call("read", json!({ "workspace_id": "w", "path": "a.txt" }));
    bench.server.close_stdin();
    let answer = bench.server.receive().expect("an answer before the end");
    assert_eq!(answer["id"], id);
    assert_eq!(answer["result"]["structuredContent"]["content"], "hello\n");
    assert!(bench.server.wait().success());
}

#[test]
fn an_unknown_method_does_not_end_the_session() {
    let mut bench = bench();
    let answer = bench.server.request("no/such", json!({}));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    let tools = bench.server.request("tools/list", json!({}));
    assert_eq!(
        tools["result"]["tools"].as_array().map(Vec::len),
        Some(11),
        "{tools}"
    );
}

#[test]
fn arguments_that_do_not_fit_are_json_rpc_errors_naming_the_field() {
    let mut bench = bench();
    let answer = bench.server.request(
        "tools/call",
        json!({ "name": "read", "arguments": { "workspace_id": "w" } }),
    );
    assert_eq!(answer["error"]["code"], -32602);
    assert!(
        answer["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("path")),
        "{answer}"
    );
    let answer = bench.server.request(
        "tools/call",
        json!({ "name": "no_such_tool", "arguments": {} }),
    );
    assert_eq!(answer["error"]["code"], -32602);
}

#[test]
fn refusals_have_their_code_and_leave_nothing() {
    let mut bench = bench();
    let add = |path: &str| json!({ "patch": format!("*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\n"), "operation_key": "k" });
    let rows = [
        ("read", json!({ "path": "../x" }), "PATH_ESCAPE"),
        ("read", json!({ "path": "/etc/passwd" }), "PATH_ESCAPE"),
        ("read", json!({ "path": "none" }), "FILE_NOT_FOUND"),
        ("read", json!({ "path": "a.txt/b" }), "PATH_NOT_DIRECTORY"),
        ("read", json!({ "path": "" }), "SPECIAL_FILE_REJECTED"),
        (
            "read",
            json!({ "path": "a.txt", "work_id": "work_1" }),
            "WORK_NOT_FOUND",
        ),
        ("exec_command", json!({ "command": [] }), "INVALID_COMMAND"),
        (
            "exec_command",
            json!({ "command": [""] }),
            "INVALID_COMMAND",
        ),
        (
            "exec_command",
            json!({ "command": ["a\0b"] }),
            "INVALID_COMMAND",
        ),
        (
            "exec_command",
            json!({ "command": ["no-such-program-here"] }),
            "PROCESS_SPAWN_FAILED",
        ),
        (
            "apply_patch",
            json!({ "patch": "{\"patch\": 1}" }),
            "INVALID_PATCH",
        ),
        ("apply_patch", add(".git/hooks/pre-commit"), "UNAUTHORIZED"),
        (
            "apply_patch",
            add("vendor/sub/.git/hooks/x"),
            "UNAUTHORIZED",
        ),
        // The pointer file of a worktree or a submodule.
        ("apply_patch", add("vendor/sub/.git"), "UNAUTHORIZED"),
        (
            "read_process",
            json!({ "process_id": "proc_1" }),
            "PROCESS_NOT_FOUND",
        ),
        ("operation_status", json!({}), "OPERATION_NOT_FOUND"),
        (
            "operation_status",
            json!({ "operation_key": "k", "operation_id": "op_1" }),
            "OPERATION_NOT_FOUND",
        ),
        (
            "operation_status",
            json!({ "operation_key": "k" }),
            "OPERATION_NOT_FOUND",
        ),
    ];
    for (tool, arguments, code) in rows {
        let answer = bench.call(tool, arguments.clone());
        assert_eq!(answer["code"], code, "{tool} {arguments}: {answer}");
        assert!(answer.get("operation_id").is_none(), "{answer}");
        assert!(
            !answer
                .to_string()
                .contains(bench.root.to_str().expect("a path")),
            "{answer}"
        );
    }
    assert_eq!(fs::read_dir(&bench.root).expect("the root").count(), 1);
}

#[test]
fn a_key_has_one_effect() {
    let mut bench = bench();
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-hello\n+bye\n*** End Patch\n";
    let first = bench.call(
        "apply_patch",
        json!({ "patch": patch, "operation_key": "k" }),
    );
    assert_eq!(first["status"], "applied", "{first}");
    let second = bench.call(
        "apply_patch",
        json!({ "patch": patch, "operation_key": "k" }),
    );
    assert_eq!(
        (&second["replayed"], &second["operation_id"]),
        (&json!(true), &first["operation_id"])
    );
    let other = bench.call(
        "apply_patch",
        json!({ "patch": patch, "operation_key": "k", "check_only": true }),
    );
    assert_eq!(other["code"], "OPERATION_KEY_CONFLICT");
    let rejected = bench.call(
        "apply_patch",
        json!({ "patch": patch, "operation_key": "r" }),
    );
    assert_eq!(rejected["code"], "INVALID_PATCH");
    let again = bench.call(
        "apply_patch",
        json!({ "patch": patch, "operation_key": "r" }),
    );
    assert_eq!(
        (&again["code"], &again["details"]["replayed"]),
        (&json!("INVALID_PATCH"), &json!(true))
    );
    assert_eq!(again["operation_id"], rejected["operation_id"]);
    let stale = bench.call("apply_patch", json!({
        "patch": "*** Begin Patch\n*** Delete File: a.txt\n*** End Patch\n", "expected_versions": { "a.txt": "absent" },
    }));
    assert_eq!(stale["code"], "VERSION_CONFLICT", "{stale}");
    assert_eq!(
        fs::read_to_string(bench.root.join("a.txt")).expect("a file"),
        "bye\n"
    );
}

#[test]
fn a_command_holds_the_workspace_until_its_tree_is_gone() {
    let mut bench = bench();
    let started = bench.call(
        "exec_command",
        json!({ "command": ["sh", "-c", "sleep 600 & sleep 600"] }),
    );
    let id = started["process_id"].as_str().expect("an id").to_owned();
    let busy = bench.call("exec_command", json!({ "command": ["true"] }));
    assert_eq!(busy["code"], "WORKSPACE_BUSY");
    assert_eq!(
        bench.call("read", json!({ "path": "a.txt" }))["content"],
        "hello\n"
    );
    assert_eq!(
        bench.call("terminate_process", json!({ "process_id": id }))["ok"],
        true
    );
    let status = bench.call("process_status", json!({ "process_id": id }));
    assert_eq!(
        (&status["state"], &status["termination"]),
        (&json!("exited"), &json!("terminated")),
        "{status}"
    );
    let (output, status) = bench.run_to_end(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(
        (output.as_str(), &status["exit_code"]),
        ("out\nerr\n", &json!(3))
    );
}

#[test]
fn a_command_gets_nothing_of_the_servers_environment() {
    let mut bench = bench();
    let (output, _) = bench.run_to_end(&["env"]);
    let names: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    assert!(
        names
            .iter()
            .all(|name| ["PATH", "HOME", "LANG"].contains(name)),
        "{names:?}"
    );
}

#[test]
fn two_hundred_commands_leave_nothing_behind() {
    let mut bench = bench();
    bench.run_to_end(&["/bin/echo", "warm"]);
    let before = bench.server.descriptors();
    for _ in 0..200 {
        let (output, status) = bench.run_to_end(&["/bin/echo", "hi"]);
        assert_eq!((output.as_str(), &status["exit_code"]), ("hi\n", &json!(0)));
    }
    assert_eq!(
        bench.server.descriptors(),
        before,
        "the server leaks descriptors"
    );
    // Seen from a command, the server's children are that command alone.
    let (children, _) = bench.run_to_end(&[
        "sh",
        "-c",
        "ps --no-headers --ppid $PPID -o stat,comm | grep -v ' ps$'",
    ]);
    assert_eq!(children.lines().count(), 1, "{children}");
    // A command itself has its three, and the one that `ls` opens.
    let (own, _) = bench.run_to_end(&["ls", "/proc/self/fd"]);
    assert_eq!(own.lines().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[test]
fn every_line_that_is_no_message_is_answered() {
    let mut bench = bench();
    let server = &mut bench.server;
    let deep = "[".repeat(100_000);
    let long = "x".repeat(5 * 1024 * 1024);
    for (line, id, code) in [
        ("{", Value::Null, -32700),
        ("[]", Value::Null, -32600),
        ("3", Value::Null, -32600),
        (&deep, Value::Null, -32600),
        (&long, Value::Null, -32600),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            json!(1),
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            Value::Null,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":1e999}}"#,
            json!(7),
            -32700,
        ),
        (
            r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"read","arguments":[]}}"#,
            json!("a"),
            -32602,
        ),
    ] {
        server.send_line(line);
        let answer = server.receive().expect("an answer");
        let start = &line[..line.len().min(60)];
        assert_eq!(answer["id"], id, "{start}: {answer}");
        assert_eq!(answer["error"]["code"], code, "{start}: {answer}");
    }
    assert!(server.request("ping", json!({}))["result"].is_object());
}

/// A server with a command that sleeps, and the name of a file that tells its process id.
fn with_sleeper(more: impl FnOnce(&mut Command)) -> (TempDir, Server, i32) {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("large"), vec![b'x'; 1 << 20]).expect("a file");
    let mut server = Server::start_with(&root, &place.path().join("state"), more);
    let marker = "987654";
    server.call(
        "exec_command",
        json!({ "workspace_id": "w", "command": ["sleep", marker] }),
    );
    let pid = server.process_running(marker);
    (place, server, pid)
}

fn is_gone(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_err() || status.is_ok_and(|status| status.contains("State:\tZ"))
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_up_the_end() {
    let (_place, mut server, sleeper) = with_sleeper(|_| {});
    for _ in 0..28 {
        server.send_call("read", json!({ "workspace_id": "w", "path": "large" }));
    }
    server.close_stdin();
    server.wait();
    assert!(is_gone(sleeper));
}

#[test]
fn signals_that_ask_for_an_end_end_commands_too() {
    for signal in [
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGINT,
        Signal::SIGTERM,
    ] {
        let (_place, mut server, sleeper) = with_sleeper(|_| {});
        server.signal(signal);
        assert!(server.wait().success(), "{signal}");
        assert!(is_gone(sleeper), "{signal}");
    }
}

#[test]
fn a_full_stderr_stops_nothing() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let full = writer.try_clone().expect("a copy");
    fill(&full);
    let (_place, mut server, _) = with_sleeper(|command| {
        command.stderr(writer);
    });
    assert!(server.request("ping", json!({}))["result"].is_object());
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    drop(reader);
}

/// Writes until a pipe takes no more.
fn fill(pipe: &std::io::PipeWriter) {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("set");
    while std::io::Write::write(&mut &*pipe, &[b'x'; 4096]).is_ok() {}
    while std::io::Write::write(&mut &*pipe, b"x").is_ok() {}
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty())).expect("set");
}
