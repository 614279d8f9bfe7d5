//! Terminals, as a client sees them.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Server;

struct Bench {
    _place: TempDir,
    server: Server,
}

fn bench() -> Bench {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    std::fs::create_dir(&root).expect("a root");
    let server = Server::start(&root, &place.path().join("state"));
    Bench {
        _place: place,
        server,
    }
}

struct Terminal {
    id: Value,
    cursor: Value,
    unread: String,
}

impl Bench {
    fn start(&mut self, command: &[&str]) -> Terminal {
        let started = self.server.call(
            "exec_command",
            json!({ "workspace_id": "w", "command": command, "tty": true }),
        );
        assert_eq!(started["dispatch_status"], "confirmed", "{started}");
        Terminal {
            id: started["process_id"].clone(),
            cursor: json!(0),
            unread: String::new(),
        }
    }

    fn types(&mut self, terminal: &Terminal, data: &str) {
        let answer = self.server.call(
            "write_stdin",
            json!({ "process_id": terminal.id, "data": data }),
        );
        assert_eq!(answer, json!({ "ok": true, "written": data.len() }));
    }

    /// Takes the output up to the first `text`, waiting for it.
    fn sees(&mut self, terminal: &mut Terminal, text: &str) -> String {
        loop {
            if let Some(at) = terminal.unread.find(text) {
                return terminal.unread.drain(..at + text.len()).collect();
            }
            assert!(
                self.more(terminal),
                "{text:?} never came, only {:?}",
                terminal.unread
            );
        }
    }

    /// Everything that comes, and the status after it.
    fn ends(&mut self, mut terminal: Terminal) -> (String, Value) {
        while self.more(&mut terminal) {}
        let status = self.server.call(
            "process_status",
            json!({ "process_id": terminal.id, "wait_ms": 20_000 }),
        );
        (terminal.unread, status)
    }

    fn more(&mut self, terminal: &mut Terminal) -> bool {
        let chunk = self.server.call(
            "read_process",
            json!({ "process_id": terminal.id, "cursor": terminal.cursor, "wait_ms": 20_000 }),
        );
        assert!(
            chunk["eof"] == true || chunk["cursor"] != terminal.cursor,
            "hangs: {:?}",
            terminal.unread
        );
        terminal.cursor = chunk["cursor"].clone();
        terminal
            .unread
            .push_str(chunk["chunk"].as_str().expect("a chunk"));
        chunk["eof"] == false
    }

    fn resize(&mut self, id: &Value, rows: u32, cols: u32) -> Value {
        let arguments = json!({ "process_id": id, "rows": rows, "cols": cols });
        self.server.call("process_resize", arguments)
    }
}

#[test]
fn workspace_info_tells_of_terminals() {
    let mut bench = bench();
    let info = bench
        .server
        .call("workspace_info", json!({ "workspace_id": "w" }));
    let capabilities = &info["workspaces"][0]["execution"]["process"]["capabilities"];
    assert_eq!(capabilities["resize"], true, "{info}");
    assert_eq!(
        capabilities["tty"],
        json!({ "supported": true, "default": false, "initial_rows": 24, "initial_cols": 80, "resize_supported": true })
    );
    let tools = info["tools_exposed"].as_array().expect("names");
    assert!(tools.contains(&json!("process_resize")), "{info}");
}

#[test]
fn a_shell_is_typed_at_resized_and_left() {
    let mut bench = bench();
    let mut shell = bench.start(&["bash", "--norc", "--noprofile", "-i"]);
    bench.sees(&mut shell, "bash-");
    bench.types(&shell, "stty size; tty; echo type=$TERM\n");
    // By its own name, or by the sandbox's.
    bench.sees(&mut shell, "24 80\r\n/dev/");
    bench.sees(&mut shell, "type=xterm-256color\r\n");
    assert_eq!(bench.resize(&shell.id, 50, 132), json!({ "ok": true }));
    bench.types(&shell, "stty size\n");
    bench.sees(&mut shell, "50 132\r\n");
    bench.types(&shell, "echo i''n; cat\n");
    bench.sees(&mut shell, "in\r\n");
    // Once it answers, Ctrl-C is for it and not for the shell that starts it.
    bench.types(&shell, "hello\n");
    bench.sees(&mut shell, "hello\r\nhello\r\n");
    bench.types(&shell, "\u{3}");
    bench.sees(&mut shell, "bash-");
    bench.types(&shell, "echo code=$?; exit 9\n");
    let id = shell.id.clone();
    let (rest, status) = bench.ends(shell);
    assert!(rest.contains("code=130\r\n"), "{rest:?}");
    assert_eq!(
        (&status["termination"], &status["exit_code"]),
        (&json!("exited"), &json!(9)),
        "{status}"
    );
    assert_eq!(bench.resize(&id, 1, 1)["code"], "PROCESS_NOT_RUNNING");
    let late = bench
        .server
        .call("write_stdin", json!({ "process_id": id, "data": "x" }));
    assert_eq!(late["code"], "PROCESS_NOT_FOUND");
}

#[test]
fn close_types_the_end_of_input() {
    let mut bench = bench();
    let cat = bench.start(&["sh", "-c", "cat; cat; exit 4"]);
    for data in ["unfinished", "line\n"] {
        let arguments = json!({ "process_id": cat.id, "data": data, "close": true });
        let answer = bench.server.call("write_stdin", arguments);
        assert_eq!(answer, json!({ "ok": true, "written": data.len() }));
    }
    let (text, status) = bench.ends(cat);
    assert_eq!(status["exit_code"], 4, "{text:?} {status}");
    assert!(text.ends_with("line\r\n"), "{text:?}");
}

#[test]
fn a_resize_that_cannot_be_is_refused() {
    let mut bench = bench();
    let pipes = bench.server.call(
        "exec_command",
        json!({ "workspace_id": "w", "command": ["cat"] }),
    );
    let id = pipes["process_id"].clone();
    assert_eq!(bench.resize(&id, 24, 80)["code"], "PROCESS_NOT_TTY");
    let unknown = bench.resize(&json!("proc_1"), 24, 80);
    assert_eq!(unknown["code"], "PROCESS_NOT_FOUND");
    for (field, rows, cols) in [
        ("rows", json!(0), json!(80)),
        ("rows", json!(65_536), json!(80)),
        ("cols", json!(24), json!(-1)),
        ("cols", json!(24), json!("80")),
    ] {
        let arguments = json!({ "process_id": id, "rows": rows, "cols": cols });
        let answer = bench.server.request(
            "tools/call",
            json!({ "name": "process_resize", "arguments": arguments }),
        );
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert_eq!(
            answer["error"]["message"],
            format!("invalid argument {field}: expected a whole number from 1 to 65535")
        );
    }
}

#[test]
fn three_hundred_terminals_leave_nothing_behind() {
    let mut bench = bench();
    let warm = bench.start(&["true"]);
    bench.ends(warm);
    let before = bench.server.descriptors();
    for _ in 0..300 {
        let terminal = bench.start(&["sh", "-c", "echo hi; exit 3"]);
        let (text, status) = bench.ends(terminal);
        assert_eq!((text.as_str(), &status["exit_code"]), ("hi\r\n", &json!(3)));
    }
    assert_eq!(
        bench.server.descriptors(),
        before,
        "the server leaks descriptors"
    );
}
