//! The HTTP edge, spoken to by hand: what a browser, a scanner or a broken client sends.

use std::io::{Read, Write};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::http::{Http, TOKEN, assert_status};

#[test]
fn the_edge_refuses_what_is_not_for_it() {
    let http = Http::start();
    let auth = format!("Authorization: Bearer {TOKEN}");
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let json = "Content-Type: application/json";
    let none = http.send("POST", "/mcp", &[json], list);
    assert_status(&none, 401);
    assert!(
        none.to_lowercase().contains("www-authenticate: bearer"),
        "{none}"
    );
    assert_status(
        &http.send(
            "POST",
            "/mcp",
            &[json, "Authorization: Bearer wrong-wrong-wrong-wrong"],
            list,
        ),
        401,
    );
    assert_status(&http.send("POST", "/mcp", &[json, &auth, &auth], list), 401);
    assert_status(
        &http.send("POST", "/mcp", &[json, &auth, "Host: evil.example"], list),
        403,
    );
    assert_status(
        &http.send(
            "POST",
            "/mcp",
            &[
                json,
                &auth,
                "X-Forwarded-Host: localhost",
                "Host: evil.example",
            ],
            list,
        ),
        403,
    );
    assert_status(
        &http.send(
            "POST",
            "/mcp",
            &[json, &auth, "Origin: https://evil.example"],
            list,
        ),
        403,
    );
    assert_status(&http.send("POST", "/elsewhere", &[json, &auth], list), 404);
    let get = http.send("GET", "/mcp", &[&auth], b"");
    assert_status(&get, 405);
    assert!(get.to_lowercase().contains("allow: post"), "{get}");
    for path in ["/mcp", "/mcp/"] {
        let answer = http.send(
            "POST",
            path,
            &[
                "Content-Type: application/json; charset=utf-8",
                "Accept: */*",
                &auth,
            ],
            list,
        );
        assert_status(&answer, 200);
        assert!(answer.contains("apply_patch"), "{answer}");
    }
}

#[test]
fn malformed_and_oversized_bodies_are_answered_and_the_server_lives() {
    let http = Http::start();
    for (body, code) in [
        (&b"{"[..], "-32700"),
        (b"[]", "-32600"),
        (b"3", "-32600"),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":1e999}}"#,
            "-32700",
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\ud800"}}"#,
            "-32700",
        ),
        (
            br#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#,
            "-32600",
        ),
        (
            br#"{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}"#,
            "-32600",
        ),
        (b"\xff\xfe", "-32700"),
    ] {
        let answer = http.post(body);
        assert_status(&answer, 400);
        assert!(answer.contains(code), "{answer}");
    }
    assert_status(&http.post("[".repeat(100_000).as_bytes()), 400);
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"read","arguments":{{"a":{}1{}}}}}}}"#,
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    assert_status(&http.post(deep.as_bytes()), 400);
    assert_status(&http.post(&vec![b' '; 5 * 1024 * 1024]), 413);
    // What rmcp refuses in plain text is JSON here, too.
    let auth = format!("Authorization: Bearer {TOKEN}");
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    for (headers, status) in [
        ([auth.as_str(), "Content-Type: text/plain"], 415),
        (
            [
                auth.as_str(),
                "Accept: text/html\r\nContent-Type: application/json",
            ],
            406,
        ),
    ] {
        let answer = http.send("POST", "/mcp", &headers, list);
        assert_status(&answer, status);
        assert!(answer.contains(r#""message":"#), "{answer}");
    }
    // Half a request that stalls takes no one's place.
    let mut stalled = http.connect();
    stalled
        .write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        .expect("sent");
    assert_status(
        &http.post(br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#),
        200,
    );
}

#[test]
fn sigterm_answers_calls_that_are_on_their_way_and_exits_zero() {
    let mut http = Http::start();
    let call = |tool: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        )
    };
    let sleep = r#"{"workspace_id":"w","command":["sleep","600"]}"#;
    let started = http.post(call("exec_command", sleep).as_bytes());
    let at = started.find("proc_").unwrap_or_else(|| panic!("{started}"));
    let id = &started[at..at + 37];
    let auth = format!("Authorization: Bearer {TOKEN}");
    let send = |body: &str| {
        let mut stream = http.connect();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{auth}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    };
    // Whether the server has read these before the signal, or finds them in its socket after
    // it, they are answered; and the connection ends although the client would keep it.
    let wait = format!(r#"{{"process_id":"{id}","wait_ms":30000}}"#);
    let mut poll = send(&call("process_status", &wait));
    let mut short = send(&call("workspace_info", "{}"));
    kill(
        Pid::from_raw(http.child.id().try_into().expect("a pid")),
        Signal::SIGTERM,
    )
    .expect("signalled");
    for (stream, wanted) in [(&mut poll, "terminated"), (&mut short, "workspaces")] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains(wanted), "{answer}");
    }
    assert!(http.child.wait().expect("it ends").success());
}
