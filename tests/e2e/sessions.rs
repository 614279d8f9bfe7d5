//! `sessions = true`: Mcp-Session-Id for revisions before 2026-07-28.

use std::io::{BufRead, BufReader, Write};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::http::{Http, TOKEN, assert_status};

const HELLO: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}"#;
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

fn session_of(answer: &str) -> String {
    let line = answer
        .lines()
        .find(|line| line.to_lowercase().starts_with("mcp-session-id:"))
        .unwrap_or_else(|| panic!("no session: {answer}"));
    line.split_once(':').expect("a header").1.trim().to_owned()
}

#[test]
fn a_session_begins_serves_ends_and_holds_up_no_shutdown() {
    let mut http = Http::start_with(|command| {
        command.env("CODESPACE_SERVER__SESSIONS", "true");
    });
    let auth = format!("Authorization: Bearer {TOKEN}");
    let json = "Content-Type: application/json";
    let accept = "Accept: application/json, text/event-stream";
    let hello = http.send("POST", "/mcp", &[&auth, json, accept], HELLO);
    assert_status(&hello, 200);
    let session = format!("Mcp-Session-Id: {}", session_of(&hello));
    let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_status(
        &http.send("POST", "/mcp", &[&auth, json, accept, &session], ready),
        202,
    );
    let list = http.send("POST", "/mcp", &[&auth, json, accept, &session], LIST);
    assert_status(&list, 200);
    assert!(list.contains("apply_patch"), "{list}");
    let unknown = "Mcp-Session-Id: nobody";
    assert_status(
        &http.send("POST", "/mcp", &[&auth, json, accept, unknown], LIST),
        404,
    );

    // A second one ends by DELETE.
    let other = session_of(&http.send("POST", "/mcp", &[&auth, json, accept], HELLO));
    let other = format!("Mcp-Session-Id: {other}");
    let deleted = http.send("DELETE", "/mcp", &[&auth, &other], b"");
    assert!(deleted.starts_with("HTTP/1.1 2"), "{deleted}");
    assert_status(
        &http.send("POST", "/mcp", &[&auth, json, accept, &other], LIST),
        404,
    );

    // An open event stream does not keep the server from ending.
    let mut stream = http.connect();
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\n{auth}\r\nAccept: text/event-stream\r\n{session}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut lines = BufReader::new(&stream).lines();
    assert!(lines.next().expect("a head").expect("text").contains("200"));
    let pid = Pid::from_raw(http.child.id().try_into().expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("signalled");
    assert!(http.child.wait().expect("it ends").success());
}
