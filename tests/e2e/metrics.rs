//! What the operator's listener tells, whatever clients do.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::json;

use crate::support::http::{Http, TOKEN};

fn start() -> Http {
    Http::start_with(|command| {
        command.env("CODESPACE_ADMIN__LISTEN", "127.0.0.1:0");
    })
}

fn admin(http: &Http, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(&http.admin).expect("it listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Name and labels of every series.
fn series(http: &Http) -> BTreeSet<String> {
    let answer = admin(http, "/metrics", "localhost");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let lines = answer.lines().filter(|line| line.starts_with("codespace_"));
    lines
        .map(|line| line.rsplit_once(' ').expect("a value").0.to_owned())
        .collect()
}

fn value(http: &Http, start: &str) -> f64 {
    let answer = admin(http, "/metrics", "localhost");
    let lines = answer.lines().filter(|line| line.starts_with(start));
    lines
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

/// One round of everything a client can make up; `salt` makes it different each time.
fn make_up(http: &Http, salt: &str) {
    let auth = format!("Authorization: Bearer {TOKEN}");
    let session = format!("Mcp-Session-Id: {salt}");
    let json_type = "Content-Type: application/json";
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    for path in ["/mcp", &format!("/{salt}"), &format!("/mcp/{salt}")] {
        for method in ["POST", "GET", &format!("X{salt}")] {
            http.send(method, path, &[&auth, json_type, &session], list);
        }
    }
    let token = format!("Authorization: Bearer {salt}-wrong-wrong-wrong");
    http.send("POST", "/mcp", &[&token, json_type], list);
    let unknown = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": format!("tool_{salt}"), "arguments": {} } });
    http.post(unknown.to_string().as_bytes());
    let method = json!({ "jsonrpc": "2.0", "id": 1, "method": format!("method/{salt}") });
    http.post(method.to_string().as_bytes());
    http.call("read", json!({ "workspace_id": "w", "path": salt }));
    http.call("read", json!({ "workspace_id": salt, "path": "a" }));
    http.call("find", json!({ "workspace_id": "w", "glob": salt }));
    http.call("operation_status", json!({ "operation_key": salt }));
    http.call(
        "exec_command",
        json!({ "workspace_id": "w", "command": [format!("/no/{salt}")] }),
    );
    let patch = format!("*** Begin Patch\n*** Add File: {salt}\n+x\n*** End Patch\n");
    http.call(
        "apply_patch",
        json!({ "workspace_id": "w", "patch": patch, "operation_key": salt }),
    );
}

#[test]
fn what_clients_make_up_makes_no_series() {
    let http = start();
    make_up(&http, "warm");
    let before = series(&http);
    for round in 0..40 {
        make_up(&http, &format!("salt{round}"));
    }
    let after = series(&http);
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{new:?}");
    assert!(before.is_subset(&after), "a series went away");
    let text = admin(&http, "/metrics", "localhost");
    assert!(!text.contains("salt"), "{text}");
    assert!(!text.contains(TOKEN));
}

#[test]
fn refusals_at_the_edge_are_seen_and_counters_only_grow() {
    let http = start();
    let auth = format!("Authorization: Bearer {TOKEN}");
    let requests = |status: u16| {
        let answer = admin(&http, "/metrics", "localhost");
        let wanted = format!("status=\"{status}\"");
        let lines = answer.lines().filter(|line| {
            line.starts_with("codespace_http_requests_total{") && line.contains(&wanted)
        });
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum::<f64>()
    };
    let mut last = 0.0;
    for round in 1..=5 {
        http.send("POST", "/mcp", &[&auth, "Host: evil.example"], b"{}");
        http.send("POST", "/mcp", &["Content-Type: application/json"], b"{}");
        assert_eq!(requests(403), f64::from(round));
        assert_eq!(requests(401), f64::from(round));
        http.call("workspace_info", json!({}));
        let calls = value(&http, "codespace_tool_calls_total{");
        assert!(calls > last, "{calls} after {last}");
        last = calls;
    }
    // The operator's listener asks for a name, too, and is not on the public one.
    assert!(admin(&http, "/metrics", "evil.example").starts_with("HTTP/1.1 403 "));
    for path in ["/metrics", "/livez", "/readyz"] {
        let public = http.send("GET", path, &[&auth], b"");
        assert!(public.starts_with("HTTP/1.1 404 "), "{public}");
        let own = admin(&http, path, "localhost");
        assert!(own.starts_with("HTTP/1.1 200 "), "{own}");
    }
}
