//! A server over HTTP, spoken to by hand.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::program;

pub(crate) const TOKEN: &str = "0123456789abcdef0123";

pub(crate) struct Http {
    pub(crate) child: Child,
    /// Host and port, or `unix:/PATH`.
    pub(crate) address: String,
    /// Host and port of the operator's listener; empty for none.
    pub(crate) admin: String,
    pub(crate) place: TempDir,
}

impl Http {
    /// A server on the folder `root` of a place of its own, as workspace `w`.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// The same, with more arguments or environment.
    pub(crate) fn start_with(more: impl FnOnce(&mut Command)) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        fs::create_dir(place.path().join("root")).expect("a root");
        Self::start_in(place, more)
    }

    /// The same, in a place that is prepared already.
    pub(crate) fn start_in(place: TempDir, more: impl FnOnce(&mut Command)) -> Self {
        let mut command = program();
        command
            .args(["serve", "--workspace"])
            .arg(format!("w={}", place.path().join("root").display()))
            .env("XDG_STATE_HOME", place.path().join("state"))
            .env("CODESPACE_SERVER__LISTEN", "127.0.0.1:0")
            .env("CODESPACE_ADMIN__LISTEN", "")
            .env("CODESPACE_HTTP_TOKEN", TOKEN)
            .stderr(Stdio::piped());
        more(&mut command);
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut address = None;
        let admin = loop {
            let line = lines.next().expect("a banner").expect("text");
            assert!(!line.contains(TOKEN), "the token is in the log");
            if let Some((_, rest)) = line.split_once("listening  ") {
                let rest = rest.trim_start_matches("http://");
                address = Some(rest.trim_end_matches("/mcp").to_owned());
            }
            if let Some((_, rest)) = line.split_once("admin      ") {
                let rest = rest.strip_prefix("http://").unwrap_or_default();
                break rest.split(' ').next().unwrap_or_default().to_owned();
            }
        };
        // Keeps the pipe open, so that a log line never fails.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: address.expect("an address"),
            admin,
            place,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// Calls a tool: its structured result, or its error body.
    pub(crate) fn call(&self, tool: &str, arguments: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } });
        let answer = self.post(body.to_string().as_bytes());
        let mut body = body_of(&answer);
        assert!(body["result"].is_object(), "{answer}");
        body["result"]["structuredContent"].take()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    /// Sends a request's bytes as they are, and reads to the connection's end.
    pub(crate) fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may answer and close before it has read all of what it refuses.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The head of a POST to /mcp with a body of `length` bytes, on a connection that is kept.
    pub(crate) fn head(length: usize) -> String {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    }

    /// Asks the server to end, and waits until it has.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
        self.child.wait().expect("it ends")
    }

    /// Status line, headers and body of one exchange.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> String {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            head.push_str("Host: localhost\r\n");
        }
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        self.exchange(&[format!("{head}\r\n").as_bytes(), body].concat())
    }

    pub(crate) fn post(&self, body: &[u8]) -> String {
        let auth = format!("Authorization: Bearer {TOKEN}");
        self.send(
            "POST",
            "/mcp",
            &[&auth, "Content-Type: application/json", "Accept: */*"],
            body,
        )
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn assert_status(answer: &str, status: u16) {
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")),
        "wanted {status}: {}",
        &answer[..answer.len().min(400)]
    );
}

/// The JSON after the head; of an event stream, the last message in it.
pub(crate) fn body_of(answer: &str) -> Value {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let body = if head.to_lowercase().contains("text/event-stream") {
        let mut data = body
            .lines()
            .rev()
            .filter_map(|line| line.strip_prefix("data: "));
        data.next().unwrap_or_default()
    } else {
        body
    };
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}
