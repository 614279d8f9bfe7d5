//! Clients that send too much, too little or too slowly: each is answered or dropped, and the
//! server goes on working for the others.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
};

use serde_json::{Value, json};

use crate::support::{
    Server,
    http::{Http, TOKEN, assert_status, body_of},
};

/// What every misbehaviour is followed by.
fn assert_works(http: &Http) {
    let read = http.call("read", json!({ "workspace_id": "w", "path": "a" }));
    assert_eq!(read["content"], "text\n", "{read}");
}

fn start() -> Http {
    let http = Http::start();
    fs::write(http.root().join("a"), "text\n").expect("a file");
    http
}

fn message(tool: &str, arguments: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
        .to_string()
}

#[test]
fn clients_that_stall_in_their_request_hold_up_nobody() {
    let http = start();
    let body = message("read", &json!({ "workspace_id": "w", "path": "a" }));
    let (first, second) = body.split_at(body.len() / 2);
    let mut stalled: Vec<_> = (0..60)
        .map(|at| {
            let mut stream = http.connect();
            let head = Http::head(body.len());
            // Some in the head, some before the body, most in the midst of it.
            let sent = match at % 4 {
                0 => head[..head.len() / 2].to_owned(),
                1 => head,
                _ => head + first,
            };
            stream.write_all(sent.as_bytes()).expect("sent");
            stream
        })
        .collect();
    assert_works(&http);
    // Who goes on is answered; the others leave, and nothing comes of what they began.
    let mut late = stalled.remove(2);
    late.write_all(second.as_bytes()).expect("sent");
    let mut line = String::new();
    BufReader::new(&late).read_line(&mut line).expect("read");
    assert!(line.contains(" 200 "), "{line}");
    drop(stalled);
    assert_works(&http);
}

#[test]
fn a_client_that_never_reads_its_answers_holds_up_nobody_and_no_shutdown() {
    let mut http = start();
    fs::write(http.root().join("large"), "x".repeat(1 << 20)).expect("a file");
    let body = message("read", &json!({ "workspace_id": "w", "path": "large" }));
    let request = Http::head(body.len()) + &body;
    let deaf: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = http.connect();
            // More answers than any socket buffer takes: the server must stop writing.
            for _ in 0..32 {
                stream.write_all(request.as_bytes()).expect("sent");
            }
            stream
        })
        .collect();
    assert_works(&http);
    // One of them does read in the end, and gets what it asked for.
    let mut answer = vec![0; 1 << 20];
    (&deaf[0]).read_exact(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    assert_works(&http);
    assert!(http.stop().success());
    drop(deaf);
}

#[test]
fn a_body_over_the_limit_is_413_however_it_is_sent() {
    let http = start();
    let large = message(
        "read",
        &json!({ "workspace_id": "w", "path": "x".repeat(5 << 20) }),
    );
    let told = http.post(large.as_bytes());
    assert_status(&told, 413);
    assert_eq!(body_of(&told)["code"], "BODY_TOO_LARGE", "{told}");
    assert_works(&http);

    // Announced and not sent.
    let announced = http.exchange(Http::head(1 << 40).as_bytes());
    assert_status(&announced, 413);
    assert_works(&http);

    // In chunks, of which none tells the whole.
    let mut chunked = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for chunk in large.as_bytes().chunks(64 * 1024) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    assert_status(&http.exchange(&chunked), 413);
    assert_works(&http);

    // A stranger's body is not read at all.
    let stranger = Http::head(large.len()).replace(TOKEN, "somebody-else-altogether");
    assert_status(&http.exchange(stranger.as_bytes()), 401);
    assert_works(&http);

    // Just below the limit it is an ordinary call.
    let near = "x".repeat((4 << 20) - 1_000);
    let answer = http.call("read", json!({ "workspace_id": "w", "path": near }));
    assert_eq!(answer["code"], "FILE_OPERATION_FAILED", "{answer}");
    assert_works(&http);
}

// Else a client makes the server hold and write several times what it sends.
#[test]
fn what_is_refused_for_its_length_is_not_repeated() {
    let http = start();
    let long = "x".repeat(1 << 20);
    let patch = |section: String| json!({ "workspace_id": "w", "patch": format!("*** Begin Patch\n{section}*** End Patch\n") });
    let mut expected = patch("*** Delete File: a\n".to_owned());
    expected["expected_versions"] = json!({ &long: "absent" });
    let mut stale = patch("*** Delete File: a\n".to_owned());
    stale["expected_versions"] = json!({ "a": long });
    let mut key = patch("*** Delete File: b\n".to_owned());
    key["operation_key"] = long.clone().into();
    for (tool, arguments) in [
        ("read", json!({ "workspace_id": "w", "path": long })),
        (
            "read",
            json!({ "workspace_id": "w", "path": format!("a/{long}") }),
        ),
        (
            "read",
            json!({ "workspace_id": "w", "path": format!("../{long}") }),
        ),
        ("read", json!({ "workspace_id": long, "path": "a" })),
        (
            "read",
            json!({ "workspace_id": "w", "path": "a", "work_id": long }),
        ),
        ("find", json!({ "workspace_id": "w", "glob": long })),
        (
            "find",
            json!({ "workspace_id": "w", "glob": format!("[{long}") }),
        ),
        ("apply_patch", json!({ "workspace_id": "w", "patch": long })),
        ("apply_patch", patch(format!("*** Delete File: {long}\n"))),
        ("apply_patch", patch(format!("*** Delete File: /{long}\n"))),
        (
            "apply_patch",
            patch(format!("*** Update File: {long}\n@@\n-a\n+b\n")),
        ),
        ("apply_patch", patch(format!("*** Add File: {long}\n+b\n"))),
        (
            "apply_patch",
            patch(format!("*** Update File: a\n*** Move to: {long}\n")),
        ),
        (
            "apply_patch",
            patch(format!("*** Update File: a\n@@\n-{long}\n+b\n")),
        ),
        (
            "apply_patch",
            patch(format!("*** Update File: a\n@@ {long}\n-text\n+b\n")),
        ),
        (
            "apply_patch",
            patch(format!("*** Update File: a\n@@\n{long}\n")),
        ),
        ("apply_patch", patch(format!("*** {long}\n"))),
        ("apply_patch", expected),
        ("apply_patch", stale),
        ("apply_patch", key),
        (
            "exec_command",
            json!({ "workspace_id": "w", "command": [long] }),
        ),
        (
            "exec_command",
            json!({ "workspace_id": "w", "command": ["true", long] }),
        ),
        (
            "exec_command",
            json!({ "workspace_id": long, "command": ["true"] }),
        ),
        ("process_status", json!({ "process_id": long })),
        ("operation_status", json!({ "operation_id": long })),
        ("operation_status", json!({ "operation_key": long })),
        ("workspace_info", json!({ "workspace_id": long })),
        (long.as_str(), json!({})),
        ("read", json!({ "workspace_id": "w", "path": [long] })),
        ("read", json!({ "workspace_id": "w", "path": { &long: 1 } })),
        ("read", json!({ &long: "w" })),
    ] {
        let answer = http.post(message(tool, &arguments).as_bytes());
        let start = arguments.to_string();
        let start = &start[..start.len().min(80)];
        assert!(
            answer.len() < 16 * 1024,
            "{start}: answered with {} bytes: {}",
            answer.len(),
            &answer[..600]
        );
        assert_works(&http);
    }
}

#[test]
fn large_and_deep_arguments_over_stdio_are_answered_under_their_id() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("a"), "text\n").expect("a file");
    let mut server = Server::start(&root, &place.path().join("state"));
    let deep = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(
            r#"{{"jsonrpc":"2.0","id":"deep","method":"tools/call","params":{{"name":"read","arguments":{{"workspace_id":"w","path":"a","x":{open}{close}}}}}}}"#
        )
    };
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":"large","method":"tools/call","params":{{"name":"read","arguments":{{"workspace_id":"w","path":"{}"}}}}}}"#,
        "x".repeat(5 << 20)
    );
    for (line, id, code) in [
        (large, json!("large"), -32600),
        (deep(50_000), Value::Null, -32700),
    ] {
        server.send_line(&line);
        let answer = server.receive().expect("an answer");
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        let read = server.call("read", json!({ "workspace_id": "w", "path": "a" }));
        assert_eq!(read["content"], "text\n", "{read}");
    }
    // What a reader still takes is read, and an argument nobody knows is ignored.
    server.send_line(&deep(100));
    let answer = server.receive().expect("an answer");
    assert_eq!(answer["id"], "deep", "{answer}");
    let content = &answer["result"]["structuredContent"]["content"];
    assert_eq!(content, "text\n", "{answer}");
}

#[test]
fn wrong_names_are_refused_and_right_ones_go_on_working() {
    let http = start();
    let auth = format!("Authorization: Bearer {TOKEN}");
    let json = "Content-Type: application/json";
    let body = message("read", &json!({ "workspace_id": "w", "path": "a" }));
    for wrong in [
        "Host: evil.example",
        "Host: localhost.evil.example",
        "Host: localhost\r\nHost: evil.example",
        "Origin: https://evil.example",
        "Origin: null",
        "Origin: http://localhost.evil.example",
    ] {
        let answer = http.send("POST", "/mcp", &[&auth, json, wrong], body.as_bytes());
        assert!(
            answer.starts_with("HTTP/1.1 403 ") || answer.starts_with("HTTP/1.1 400 "),
            "{wrong}: {answer}"
        );
        assert!(!answer.contains("text\\n"), "{wrong}: {answer}");
        assert_works(&http);
    }
    // HTTP/1.0 has no Host of its own; without one nobody can tell whom the request is for.
    let nameless = format!(
        "POST /mcp HTTP/1.0\r\n{auth}\r\n{json}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = http.exchange(nameless.as_bytes());
    assert!(!answer.contains("text\\n"), "{answer}");
    assert!(answer.contains(" 403 "), "{answer}");
    assert_works(&http);
}
