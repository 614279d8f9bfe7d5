//! A server of this build over stdio, spoken to by hand: one JSON message a line.

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

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_codespace"))
}

impl Server {
    /// Starts one on `root`, with its state below `state`, and shakes hands. The tests' own
    /// environment passes through, so that CODESPACE_RUNNER__KIND chooses the runner.
    pub(crate) fn start(root: &Path, state: &Path) -> Self {
        Self::start_with(root, state, &[])
    }

    /// The same with more in its environment.
    pub(crate) fn start_with(root: &Path, state: &Path, env: &[(&str, &str)]) -> Self {
        let mut child = program()
            .args(["stdio", "--workspace"])
            .arg(format!("w={}", root.display()))
            .env("XDG_STATE_HOME", state)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
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

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is reaped");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How many descriptors it has open. Root's to see, since the server is not dumpable.
    pub(crate) fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder)
            .expect("these tests run as root")
            .count()
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
