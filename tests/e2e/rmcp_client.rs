//! The whole working loop with rmcp's own client, over stdio and over HTTP (TCP with a token, and
//! a Unix socket), in both revisions: `initialize` is 2025-11-25, `discover` 2026-07-28.

use std::{fs, path::Path, process::Stdio};

use rmcp::{
    model::{CallToolRequestParams, ProtocolVersion},
    service::{ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService},
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};

use crate::support::{
    http::{Http, TOKEN},
    program,
};

type Client = RunningService<RoleClient, ()>;

fn lifecycles() -> [(ClientLifecycleMode, ProtocolVersion); 2] {
    let new = ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    [
        (
            ClientLifecycleMode::Initialize,
            ProtocolVersion::V_2025_11_25,
        ),
        (new, ProtocolVersion::V_2026_07_28),
    ]
}

fn assert_speaks(client: &Client, revision: &ProtocolVersion) {
    let server = client.peer_info().expect("the server's own words");
    assert_eq!(&server.protocol_version, revision);
}

async fn call(client: &Client, tool: &'static str, arguments: Value) -> Value {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object")
    };
    let result = client
        .call_tool(CallToolRequestParams::new(tool).with_arguments(arguments))
        .await
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let value = result.structured_content.expect("a structured result");
    let text = result.content[0].as_text().expect("text").text.clone();
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    value
}

/// What an agent does: look, preview, patch, read back, run, follow, stop, look up.
async fn work(client: &Client, root: &Path, key: &str) {
    let tools = client.list_all_tools().await.expect("tools");
    assert!(tools.iter().any(|tool| tool.name == "apply_patch"));
    fs::write(root.join("a.txt"), "one\ntwo\n").expect("a file");
    fs::write(root.join("test.sh"), "grep -q 2 a.txt && echo passed\n").expect("a script");

    let info = call(client, "workspace_info", json!({ "workspace_id": "w" })).await;
    assert_eq!(
        info["workspaces"][0]["execution"]["permissions"]["exec"],
        true
    );
    let found = call(
        client,
        "find",
        json!({ "workspace_id": "w", "glob": "*.txt" }),
    )
    .await;
    assert_eq!(found["paths"], json!(["a.txt"]));
    let file = call(
        client,
        "read",
        json!({ "workspace_id": "w", "path": "a.txt" }),
    )
    .await;
    assert_eq!(file["content"], "one\ntwo\n");

    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** End Patch\n";
    let preview = json!({ "workspace_id": "w", "patch": patch, "check_only": true });
    assert_eq!(
        call(client, "apply_patch", preview).await["status"],
        "checked"
    );
    assert_eq!(
        fs::read_to_string(root.join("a.txt")).expect("it"),
        "one\ntwo\n"
    );
    let apply = json!({
        "workspace_id": "w", "patch": patch, "operation_key": key,
        "expected_versions": { "a.txt": file["version"] },
    });
    let applied = call(client, "apply_patch", apply.clone()).await;
    assert_eq!(applied["status"], "applied", "{applied}");
    assert_eq!(call(client, "apply_patch", apply).await["replayed"], true);
    let after = call(
        client,
        "read",
        json!({ "workspace_id": "w", "path": "a.txt" }),
    )
    .await;
    assert_eq!(after["content"], "one\n2\n");
    assert_eq!(after["version"], applied["changes"][0]["after_version"]);
    assert_eq!(
        fs::read_to_string(root.join("a.txt")).expect("it"),
        "one\n2\n"
    );

    let command = json!({ "workspace_id": "w", "command": ["sh", "test.sh"] });
    let process = call(client, "exec_command", command).await["process_id"].clone();
    let (mut text, mut cursor) = (String::new(), json!(0));
    loop {
        let read = json!({ "process_id": process, "cursor": cursor, "wait_ms": 10_000 });
        let part = call(client, "read_process", read).await;
        text.push_str(part["chunk"].as_str().expect("text"));
        cursor = part["cursor"].clone();
        if part["eof"] == true {
            break;
        }
    }
    assert_eq!(text, "passed\n");
    let wait = json!({ "process_id": process, "wait_ms": 10_000 });
    assert_eq!(call(client, "process_status", wait).await["exit_code"], 0);

    let runaway = json!({ "workspace_id": "w", "command": ["sleep", "600"] });
    let process = call(client, "exec_command", runaway).await["process_id"].clone();
    let busy = call(
        client,
        "exec_command",
        json!({ "workspace_id": "w", "command": ["true"] }),
    )
    .await;
    assert_eq!(busy["code"], "WORKSPACE_BUSY");
    call(
        client,
        "terminate_process",
        json!({ "process_id": process }),
    )
    .await;
    let status = call(client, "process_status", json!({ "process_id": process })).await;
    assert_eq!(status["termination"], "terminated");
    let record = call(client, "operation_status", json!({ "operation_key": key })).await;
    assert_eq!(record["status"], "applied");
}

#[tokio::test]
async fn the_loop_over_stdio() {
    for (lifecycle, revision) in lifecycles() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("root");
        fs::create_dir(&root).expect("a root");
        let mut command = tokio::process::Command::from(program());
        let mut child = command
            .args(["stdio", "--workspace"])
            .arg(format!("w={}", root.display()))
            .env("XDG_STATE_HOME", place.path().join("state"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let pipes = (
            child.stdout.take().expect("a pipe"),
            child.stdin.take().expect("a pipe"),
        );
        let client = ().serve_with_lifecycle(pipes, lifecycle).await.expect("a client");
        assert_speaks(&client, &revision);
        work(&client, &root, &format!("key {revision}")).await;
        client.cancel().await.expect("it closes");
        assert!(child.wait().await.expect("it ends").success());
    }
}

#[tokio::test]
async fn the_loop_over_http_with_a_token() {
    for sessions in ["false", "true"] {
        let mut server = Http::start_with(|command| {
            command.env("CODESPACE_SERVER__SESSIONS", sessions);
        });
        for (lifecycle, revision) in lifecycles() {
            let url = format!("http://{}/mcp", server.address);
            let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(TOKEN);
            let transport = StreamableHttpClientTransport::from_config(config);
            let client = ().serve_with_lifecycle(transport, lifecycle).await.expect("a client");
            assert_speaks(&client, &revision);
            work(&client, &server.root(), &format!("key {revision}")).await;
            client.cancel().await.expect("it closes");
        }
        let url = format!("http://{}/mcp", server.address);
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header("wrong");
        let transport = StreamableHttpClientTransport::from_config(config);
        let refused = ().serve_with_lifecycle(transport, ClientLifecycleMode::Initialize).await;
        assert!(refused.is_err(), "a wrong token is let in");
        assert!(server.stop().success());
    }
}

// Over a Unix listener, whose file has mode 0600 and goes with the server.
#[tokio::test]
async fn the_loop_over_http_on_a_unix_socket() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("root")).expect("a root");
    let socket = place.path().join("codespace.sock");
    // Left over from a crash: nobody answers on it.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let mut server = Http::start_in(place, |command| {
        command.env_remove("CODESPACE_HTTP_TOKEN").env(
            "CODESPACE_SERVER__LISTEN",
            format!("unix:{}", socket.display()),
        );
    });
    let mode = fs::metadata(&socket)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    for (lifecycle, revision) in lifecycles() {
        let path = socket.to_str().expect("UTF-8");
        let transport =
            StreamableHttpClientTransport::from_unix_socket(path, "http://localhost/mcp");
        let client = ().serve_with_lifecycle(transport, lifecycle).await.expect("a client");
        assert_speaks(&client, &revision);
        work(&client, &server.root(), &format!("key {revision}")).await;
        client.cancel().await.expect("it closes");
    }
    // A second server does not take the socket of a living one.
    let second = program()
        .args(["serve", "--workspace"])
        .arg(format!("w={}", server.root().display()))
        .env("XDG_STATE_HOME", server.place.path().join("state2"))
        .env("CODESPACE_ADMIN__LISTEN", "")
        .env(
            "CODESPACE_SERVER__LISTEN",
            format!("unix:{}", socket.display()),
        )
        .output()
        .expect("it runs");
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("server.listen"));
    let pid = nix::unistd::Pid::from_raw(server.child.id().try_into().expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
    assert!(server.child.wait().expect("it ends").success());
    assert!(!socket.exists());
}
