//! The HTTP edge, what other systems' users ran into: prefixes, names, revisions, cancels,
//! clients that leave.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
};

use serde_json::{Value, json};

use crate::support::{
    http::{Http, TOKEN, assert_status, body_of},
    program, until,
};

const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const JSON: &str = "Content-Type: application/json";
const BOTH: &str = "Accept: application/json, text/event-stream";

fn auth() -> String {
    format!("Authorization: Bearer {TOKEN}")
}

fn call(id: &Value, tool: &str, arguments: &Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
        .to_string()
        .into_bytes()
}

#[test]
fn every_way_to_the_endpoint_answers_the_same_without_a_redirect() {
    let http = Http::start_with(|command| {
        command
            .env(
                "CODESPACE_SERVER__PUBLIC_URL",
                "https://code.example.com/tools",
            )
            .env("CODESPACE_SERVER__ALLOWED_HOSTS", "[\"other.example\"]");
    });
    let auth = auth();
    for path in ["/mcp", "/mcp/", "/tools/mcp", "/tools/mcp/"] {
        for host in [
            "localhost",
            "127.0.0.1:8787",
            "code.example.com",
            "code.example.com:443",
            "other.example",
        ] {
            let host = format!("Host: {host}");
            let answer = http.send("POST", path, &[&auth, JSON, &host], LIST);
            assert_status(&answer, 200);
            assert!(answer.contains("apply_patch"), "{path} {host}: {answer}");
        }
        let origin = "Origin: https://code.example.com";
        let answer = http.send("POST", path, &[&auth, JSON, origin], LIST);
        assert_status(&answer, 200);
        for wrong in [
            "Host: evil.example",
            "Host: code.example.com.evil.example",
            "Host: evil.example\r\nX-Forwarded-Host: code.example.com",
            "Host: evil.example\r\nForwarded: host=code.example.com",
        ] {
            assert_status(&http.send("POST", path, &[&auth, JSON, wrong], LIST), 403);
        }
    }
    for path in ["/tools", "/tools/tools/mcp", "/mcp/x", "//mcp", "/MCP"] {
        assert_status(&http.send("POST", path, &[&auth, JSON], LIST), 404);
    }
}

#[test]
fn revisions_are_negotiated_and_an_unknown_or_contradictory_one_is_refused() {
    let http = Http::start();
    let auth = auth();
    for (version, status) in [
        ("1999-01-01", 400),
        ("nonsense", 400),
        ("2025-03-26", 200),
        ("2025-06-18", 200),
        ("2025-11-25", 200),
    ] {
        let version = format!("MCP-Protocol-Version: {version}");
        let answer = http.send("POST", "/mcp", &[&auth, JSON, BOTH, &version], LIST);
        assert_status(&answer, status);
    }
    let hello = |asked: &str| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "e2e", "version": "1" },
        } })
        .to_string()
    };
    for (asked, answered) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2999-01-01", "2025-11-25"),
    ] {
        let answer = body_of(&http.post(hello(asked).as_bytes()));
        assert_eq!(answer["result"]["protocolVersion"], answered, "{answer}");
    }
    // A handshake whose header and body disagree.
    for (header, status) in [
        ("2025-11-25", 200),
        ("2025-06-18", 400),
        ("2026-07-28", 400),
        ("1999-01-01", 400),
    ] {
        let header = format!("MCP-Protocol-Version: {header}");
        let headers = [auth.as_str(), JSON, BOTH, header.as_str()];
        let answer = http.send("POST", "/mcp", &headers, hello("2025-11-25").as_bytes());
        assert_status(&answer, status);
    }
}

#[test]
fn a_batch_runs_nothing_and_a_preflight_is_plainly_refused() {
    let http = Http::start();
    let patch = "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n";
    let one = call(
        &json!(1),
        "apply_patch",
        &json!({ "workspace_id": "w", "patch": patch }),
    );
    let batch = [b"[", &one[..], b",", &one[..], b"]"].concat();
    let answer = http.post(&batch);
    assert_status(&answer, 400);
    assert_eq!(body_of(&answer)["error"]["code"], -32600, "{answer}");
    assert!(!http.root().join("a").exists());

    let preflight = [
        "Origin: http://localhost:6274",
        "Access-Control-Request-Method: POST",
    ];
    let answer = http.send("OPTIONS", "/mcp", &preflight, b"");
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(
        !answer.to_lowercase().contains("access-control-allow"),
        "{answer}"
    );
    for method in ["GET", "DELETE", "PUT", "PATCH"] {
        let answer = http.send(method, "/mcp", &[&auth()], b"");
        assert_status(&answer, 405);
        assert!(answer.to_lowercase().contains("allow: post"), "{answer}");
    }
}

#[test]
fn cancelling_what_nobody_knows_is_taken_and_ignored() {
    let http = Http::start();
    for id in [json!(99), json!("gone")] {
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
        assert_status(&http.post(cancel.to_string().as_bytes()), 202);
    }
    assert_status(&http.post(LIST), 200);
}

#[test]
fn clients_that_leave_in_the_midst_of_a_call_give_their_places_back() {
    let http = Http::start();
    let command = json!({ "workspace_id": "w", "command": ["sleep", "600"] });
    let process = http.call("exec_command", command);
    let poll = json!({ "process_id": process["process_id"], "wait_ms": 30_000 });
    // More than one caller may have under way at once.
    for id in 0..600 {
        let body = call(&json!(id), "process_status", &poll);
        let mut stream = http.connect();
        let request = [Http::head(body.len()).as_bytes(), &body].concat();
        stream.write_all(&request).expect("sent");
    }
    until("a place is free", || {
        http.call("workspace_info", json!({})).get("code").is_none()
    });
    // Nobody waits for it any more, and it runs all the same.
    let now = json!({ "process_id": process["process_id"] });
    assert_eq!(http.call("process_status", now)["state"], "running");
}

#[test]
fn who_loses_the_answer_to_a_patch_can_look_it_up() {
    let http = Http::start();
    fs::write(http.root().join("a"), "0\n").expect("a file");
    let patch = "*** Begin Patch\n*** Update File: a\n@@\n-0\n+1\n*** End Patch\n";
    let arguments = json!({ "workspace_id": "w", "patch": patch, "operation_key": "k" });
    let body = call(&json!(1), "apply_patch", &arguments);
    let mut stream = http.connect();
    let request = [Http::head(body.len()).as_bytes(), &body].concat();
    stream.write_all(&request).expect("sent");
    let look_up = || http.call("operation_status", json!({ "operation_key": "k" }));
    // Once it is recorded, the caller leaves.
    until("the operation is known", || {
        look_up()["code"] != "OPERATION_NOT_FOUND"
    });
    drop(stream);
    until("it has ended", || look_up()["status"] == "applied");
    let again = http.call("apply_patch", arguments);
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!(again["operation_id"], look_up()["operation_id"]);
    assert_eq!(
        fs::read_to_string(http.root().join("a")).expect("it"),
        "1\n"
    );
}

#[test]
fn a_connection_outlives_a_pause_between_calls() {
    let http = Http::start();
    let mut stream = http.connect();
    let request = [Http::head(LIST.len()).as_bytes(), LIST].concat();
    for turn in 0..2 {
        if turn > 0 {
            // Servers with a short idle limit close after five seconds.
            std::thread::sleep(std::time::Duration::from_secs(6));
        }
        stream.write_all(&request).expect("sent");
        let mut reader = BufReader::new(&stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            if let Some((name, value)) = line.trim_end().split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        assert!(
            String::from_utf8_lossy(&body).contains("apply_patch"),
            "{turn}"
        );
    }
}

#[test]
fn equal_request_ids_of_many_clients_do_not_cross() {
    let http = Http::start();
    for client in 0..20 {
        fs::write(http.root().join(client.to_string()), client.to_string()).expect("a file");
    }
    std::thread::scope(|scope| {
        for client in 0..20 {
            let http = &http;
            scope.spawn(move || {
                for id in [json!(1), json!("1"), json!(1)] {
                    let path = client.to_string();
                    let body = call(&id, "read", &json!({ "workspace_id": "w", "path": path }));
                    let answer = body_of(&http.post(&body));
                    assert_eq!(answer["id"], id, "{answer}");
                    let content = &answer["result"]["structuredContent"]["content"];
                    assert_eq!(content, &path, "{answer}");
                }
            });
        }
    });
}

#[test]
fn a_file_where_the_socket_should_be_is_left_alone() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(place.path().join("file"), "precious").expect("a file");
    fs::create_dir(place.path().join("folder")).expect("a folder");
    std::os::unix::fs::symlink("file", place.path().join("link")).expect("a link");
    for name in ["file", "folder", "link", "missing/socket"] {
        let listen = format!("unix:{}", place.path().join(name).display());
        let output = program()
            .args(["serve", "--listen", &listen, "--workspace"])
            .arg(format!("w={}", root.display()))
            .env("XDG_STATE_HOME", place.path().join("state"))
            .env("CODESPACE_ADMIN__LISTEN", "")
            .output()
            .expect("it runs");
        assert!(!output.status.success(), "{name}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("server.listen"), "{name}: {told}");
    }
    let text = fs::read_to_string(place.path().join("file")).expect("it");
    assert_eq!(text, "precious");
    assert!(place.path().join("link").is_symlink());
    assert!(place.path().join("folder").is_dir());
}
