//! A server of this build over stdio, spoken to by hand: one JSON message a line.

pub(crate) mod http;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

use serde_json::{Value, json};

pub(crate) struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    next_id: u64,
}

/// Waits until something holds. Gives up after so many looks that it hangs.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..24_000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("never: {what}");
}

/// The program under test: the one built with these tests, or another build of it.
pub(crate) fn program() -> Command {
    match std::env::var_os("CODESPACE_UNDER_TEST") {
        Some(other) => Command::new(other),
        None => Command::new(env!("CARGO_BIN_EXE_codespace")),
    }
}

impl Server {
    /// Starts one on `root`, with its state below `state`, and shakes hands.
    pub(crate) fn start(root: &Path, state: &Path) -> Self {
        Self::start_with(root, state, |_| {})
    }

    /// The same, with other arguments, environment or streams.
    pub(crate) fn start_with(root: &Path, state: &Path, more: impl FnOnce(&mut Command)) -> Self {
        Self::start_on(state, |command| {
            command
                .arg("--workspace")
                .arg(format!("w={}", root.display()));
            more(command);
        })
    }

    /// The same, with the workspaces and the rest as `with` says.
    pub(crate) fn start_on(state: &Path, with: impl FnOnce(&mut Command)) -> Self {
        let mut command = program();
        command
            .arg("stdio")
            .env("XDG_STATE_HOME", state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        with(&mut command);
        let mut child = command.spawn().expect("the program starts");
        // What it has of the streams it hands on.
        drop(command);
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut server = Self {
            child,
            stdin,
            stdout,
            next_id: 0,
        };
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "e2e", "version": "1" } });
        let answer = server.request("initialize", hello);
        assert_eq!(
            answer["result"]["protocolVersion"], "2025-11-25",
            "{answer}"
        );
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        server
    }

    /// The same; also what it said on stderr when it started.
    pub(crate) fn start_and_listen(root: &Path, state: &Path) -> (Self, Vec<String>) {
        let mut server = Self::start_with(root, state, |command| {
            command.stderr(Stdio::piped());
        });
        let stderr = server.child.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(stderr).lines();
        let mut told = Vec::new();
        loop {
            let line = lines.next().expect("a banner").expect("text");
            let last = line.trim_start().starts_with("store ");
            told.push(line);
            if last {
                break;
            }
        }
        // Keeps the pipe open, so that a log line never fails.
        std::thread::spawn(move || lines.for_each(drop));
        (server, told)
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        // A killed server is found out by the reader.
        let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
    }

    /// Sends a tool call without waiting for its answer.
    pub(crate) fn send_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool, "arguments": arguments } }));
        id
    }

    /// The next message; `None` when the server is gone.
    pub(crate) fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(n) if n > 0 => Some(serde_json::from_str(&line).expect("stdout carries MCP only")),
            _ => None,
        }
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let message = self.receive().expect("an answer");
            if message["id"] == id {
                return message;
            }
        }
    }

    /// A tool's structured result, or its error body.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        );
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// Runs a command in the workspace `w` to its end; what it printed.
    pub(crate) fn run(&mut self, command: &[&str]) -> String {
        let started = self.call(
            "exec_command",
            json!({ "workspace_id": "w", "command": command }),
        );
        let id = &started["process_id"];
        let status = self.call(
            "process_status",
            json!({ "process_id": id, "wait_ms": 30_000 }),
        );
        assert_eq!(status["state"], "exited", "{started} {status}");
        let output = self.call("read_process", json!({ "process_id": id }));
        output["chunk"].as_str().expect("text").to_owned()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is reaped");
    }

    /// How many descriptors it has open. Root's to see, since the server is not dumpable.
    pub(crate) fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder)
            .expect("these tests run as root")
            .count()
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("it runs");
    }

    /// The process with this word on its command line, once there is one.
    pub(crate) fn process_running(&self, word: &str) -> i32 {
        loop {
            let processes = std::fs::read_dir("/proc").expect("/proc");
            let found = processes
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
                .find(|pid| {
                    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    line.split(|byte| *byte == 0).collect::<Vec<_>>()
                        == [b"sleep", word.as_bytes(), b""]
                        && self.is_below(*pid)
                });
            if let Some(pid) = found {
                return pid;
            }
            std::thread::yield_now();
        }
    }

    fn is_below(&self, mut pid: i32) -> bool {
        while pid > 1 {
            if u32::try_from(pid) == Ok(self.child.id()) {
                return true;
            }
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.split(' ').nth(1));
            pid = parent.and_then(|parent| parent.parse().ok()).unwrap_or(0);
        }
        false
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
