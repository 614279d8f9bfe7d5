//! `sessions = true`: Mcp-Session-Id for revisions before 2026-07-28.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use crate::support::{
    http::{Http, TOKEN, assert_status, body_of},
    until,
};

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
    assert!(http.stop().success());
}

fn start() -> Http {
    Http::start_with(|command| {
        command.env("CODESPACE_SERVER__SESSIONS", "true");
    })
}

fn post(http: &Http, session: Option<&str>, body: &[u8]) -> String {
    let auth = format!("Authorization: Bearer {TOKEN}");
    let session = session.map(|session| format!("Mcp-Session-Id: {session}"));
    let mut headers = vec![
        auth.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    headers.extend(session.as_deref());
    http.send("POST", "/mcp", &headers, body)
}

/// A session that is ready for calls.
fn begin(http: &Http) -> String {
    let session = session_of(&post(http, None, HELLO));
    let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_status(&post(http, Some(&session), ready), 202);
    session
}

/// The event stream of a session, and its head.
fn listen(http: &Http, session: &str) -> (TcpStream, String) {
    let mut stream = http.connect();
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    for line in BufReader::new(&stream).lines() {
        let line = line.expect("text");
        if line.is_empty() {
            break;
        }
        answer.push_str(&line.to_lowercase());
        answer.push('\n');
    }
    (stream, answer)
}

#[test]
fn a_session_outlives_its_stream_and_not_its_server() {
    let http = start();
    let session = begin(&http);
    for _ in 0..3 {
        let (stream, head) = listen(&http, &session);
        assert!(head.contains(" 200 "), "{head}");
        // What a proxy must not keep back.
        for wanted in [
            "content-type: text/event-stream",
            "cache-control: no-cache",
            "x-accel-buffering: no",
        ] {
            assert!(head.contains(wanted), "{wanted}: {head}");
        }
        assert!(!head.contains("content-encoding"), "{head}");
        drop(stream);
        assert_status(&post(&http, Some(&session), LIST), 200);
    }
    drop(http);
    let http = start();
    let lost = post(&http, Some(&session), LIST);
    assert_status(&lost, 404);
    assert!(!lost.to_lowercase().contains("www-authenticate"), "{lost}");
    assert_status(&post(&http, Some(&begin(&http)), LIST), 200);
}

#[test]
fn sessions_are_capped_and_one_that_ends_makes_room() {
    let http = start();
    let first = begin(&http);
    let mut last = String::new();
    let mut begun = 1;
    let refused = loop {
        let answer = post(&http, None, HELLO);
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        last = session_of(&answer);
        begun += 1;
        assert!(begun <= 1_000, "there is no cap");
    };
    assert_status(&refused, 503);
    assert_eq!(body_of(&refused)["code"], "TOO_MANY_SESSIONS", "{refused}");
    assert_eq!(begun, 1_000);
    // Those who are in go on, and so does who needs no session.
    assert_status(&post(&http, Some(&first), LIST), 200);
    let auth = format!("Authorization: Bearer {TOKEN}");
    let last = format!("Mcp-Session-Id: {last}");
    let ended = http.send("DELETE", "/mcp", &[&auth, &last], b"");
    assert!(ended.starts_with("HTTP/1.1 2"), "{ended}");
    assert_status(&post(&http, None, HELLO), 200);
    assert_status(&post(&http, None, HELLO), 503);
}

#[test]
fn who_has_no_token_gets_no_session() {
    let http = start();
    let session = begin(&http);
    for token in ["", "Authorization: Bearer wrong-wrong-wrong-wrong"] {
        for _ in 0..20 {
            let mut headers = vec!["Content-Type: application/json"];
            headers.extend((!token.is_empty()).then_some(token));
            let answer = http.send("POST", "/mcp", &headers, HELLO);
            assert_status(&answer, 401);
            assert!(
                !answer.to_lowercase().contains("mcp-session-id:"),
                "{answer}"
            );
            // Knowing a session's id is no permission either.
            let known = format!("Mcp-Session-Id: {session}");
            headers.push(&known);
            assert_status(&http.send("POST", "/mcp", &headers, LIST), 401);
            assert_status(&http.send("DELETE", "/mcp", &headers, b""), 401);
        }
    }
    assert_status(&post(&http, Some(&session), LIST), 200);
}

#[test]
fn two_sessions_with_equal_request_ids_get_their_own_answers() {
    let http = start();
    let sessions = [begin(&http), begin(&http)];
    assert_ne!(sessions[0], sessions[1]);
    for name in ["0", "1"] {
        fs::write(http.root().join(name), name).expect("a file");
    }
    std::thread::scope(|scope| {
        for (name, session) in ["0", "1"].iter().zip(&sessions) {
            let http = &http;
            scope.spawn(move || {
                for id in 0..20 {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"read","arguments":{{"workspace_id":"w","path":"{name}"}}}}}}"#
                    );
                    let answer = body_of(&post(http, Some(session), body.as_bytes()));
                    assert_eq!(answer["id"], id, "{answer}");
                    let content = &answer["result"]["structuredContent"]["content"];
                    assert_eq!(content, name, "{answer}");
                }
            });
        }
    });
}

#[test]
fn the_end_with_an_open_stream_closes_the_store_and_ends_commands() {
    let mut http = start();
    let session = begin(&http);
    let (stream, head) = listen(&http, &session);
    assert!(head.contains(" 200 "), "{head}");
    let seconds = format!("7001{}", std::process::id());
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"exec_command","arguments":{{"workspace_id":"w","command":["sleep","{seconds}"]}}}}}}"#
    );
    let started = post(&http, Some(&session), body.as_bytes());
    assert!(started.contains("confirmed"), "{started}");
    let command_lines = || {
        let folders = fs::read_dir("/proc").expect("a folder");
        folders
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("cmdline")).ok())
            .filter(|line| line.contains(&format!("sleep\0{seconds}")))
            .count()
    };
    // A process has no arguments for a moment while it becomes another program.
    until("the command runs", || command_lines() > 0);
    assert!(http.stop().success());
    assert_eq!(command_lines(), 0);
    let state = fs::read_dir(http.place.path().join("state/codespace")).expect("a folder");
    let left: Vec<_> = state
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().ends_with("-wal"))
        .collect();
    assert!(left.is_empty(), "the store was not closed: {left:?}");
    drop(stream);
}

#[test]
fn a_cancelled_call_gets_no_response_and_the_session_goes_on() {
    let http = start();
    let session = begin(&http);
    let call = |id: u32, tool: &str, arguments: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        );
        post(&http, Some(&session), body.as_bytes())
    };
    let sleep = r#"{"workspace_id":"w","command":["sleep","600"]}"#;
    let started = body_of(&call(5, "exec_command", sleep));
    let id = &started["result"]["structuredContent"]["process_id"];
    let wait = format!(r#"{{"process_id":{id},"wait_ms":30000}}"#);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(77, "process_status", &wait));
        let cancel =
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}"#;
        // One that comes before its call is ignored.
        until("the call ends", || {
            assert_status(&post(&http, Some(&session), cancel), 202);
            waiting.is_finished()
        });
        let answer = waiting.join().expect("it ends");
        assert!(!answer.contains(r#""id":77"#), "{answer}");
    });
    assert_status(&post(&http, Some(&session), LIST), 200);
    let now = call(6, "process_status", &format!(r#"{{"process_id":{id}}}"#));
    assert!(now.contains("running"), "{now}");
}
