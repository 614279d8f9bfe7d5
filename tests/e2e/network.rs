//! What commands reach: nothing, or what the managed proxy lets through.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use serde_json::json;

use crate::support::http::Http;

/// A web server of the host that answers every request.
fn host_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let answer =
                b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached";
            let _ = stream.write_all(answer);
        }
    });
    port
}

fn start(keys: &str) -> Http {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    let config = place.path().join("codespace.toml");
    let text = format!(
        "[workspaces.net]\nroot = {:?}\nprofile = \"workspace-write\"\n{keys}",
        place.path().join("net")
    );
    fs::create_dir(place.path().join("net")).expect("a root");
    fs::write(&config, text).expect("a config");
    Http::start_in(place, |command| {
        command.env("CODESPACE_CONFIG", &config);
    })
}

fn curl(http: &Http, workspace: &str, url: &str) -> String {
    let command = ["curl", "-sS", "--max-time", "20", url];
    let started = http.call(
        "exec_command",
        json!({ "workspace_id": workspace, "command": command }),
    );
    let id = &started["process_id"];
    let status = http.call(
        "process_status",
        json!({ "process_id": id, "wait_ms": 30_000 }),
    );
    assert_eq!(status["state"], "exited", "{started} {status}");
    let output = http.call("read_process", json!({ "process_id": id }));
    output["chunk"].as_str().expect("text").to_owned()
}

#[test]
fn a_command_reaches_what_its_workspace_names_and_nothing_else() {
    let (named, other) = (host_server(), host_server());
    let http = start(&format!(
        "network = \"enabled\"\nallow_domains = [\"localhost:{named}\", \"localhost:{other}\"]\nallow_private = [\"localhost:{named}\"]\n"
    ));
    let facts = http.call("workspace_info", json!({ "workspace_id": "net" }));
    let network = &facts["workspaces"][0]["execution"]["network"];
    assert_eq!(network["policy"], "enabled", "{facts}");
    assert_eq!(network["enforcement"], "enforced", "{facts}");
    assert_eq!(
        curl(&http, "net", &format!("http://localhost:{named}/")),
        "reached"
    );
    let refused = curl(&http, "net", &format!("http://localhost:{other}/"));
    assert!(
        refused.contains("workspaces.net.allow_private"),
        "{refused}"
    );
    let refused = curl(&http, "net", "http://elsewhere.example/");
    assert!(
        refused.contains("workspaces.net.allow_domains"),
        "{refused}"
    );
    // Around the proxy there is no way.
    let around = http.call(
        "exec_command",
        json!({ "workspace_id": "net", "command": ["curl", "-sS", "--noproxy", "*", format!("http://127.0.0.1:{named}/")] }),
    );
    let id = &around["process_id"];
    let status = http.call(
        "process_status",
        json!({ "process_id": id, "wait_ms": 30_000 }),
    );
    assert_eq!(status["exit_code"], 7, "{status}");

    // The workspace beside it has no network at all.
    let nothing = curl(&http, "w", &format!("http://localhost:{named}/"));
    assert!(!nothing.contains("reached"), "{nothing}");
}
