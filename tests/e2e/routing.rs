//! `Mcp-Param-Workspace-Id`: what a proxy routes on must be what the server does.

use serde_json::{Value, json};

use crate::support::http::{Http, TOKEN, assert_status, body_of};

/// A read of `a` in workspace `w`, in a revision, with more headers.
fn read(http: &Http, revision: &str, arguments: &Value, more: &[&str]) -> String {
    let auth = format!("Authorization: Bearer {TOKEN}");
    let version = format!("MCP-Protocol-Version: {revision}");
    let mut headers = vec![
        auth.as_str(),
        version.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    let mut params = json!({ "name": "read", "arguments": arguments });
    if revision == "2026-07-28" {
        headers.extend(["Mcp-Method: tools/call", "Mcp-Name: read"]);
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": revision,
            "io.modelcontextprotocol/clientInfo": { "name": "e2e", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
    }
    headers.extend(more);
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    http.send("POST", "/mcp", &headers, message.to_string().as_bytes())
}

#[test]
fn a_header_that_names_another_workspace_is_refused() {
    let http = Http::start();
    std::fs::write(http.root().join("a"), "text\n").expect("a file");
    let arguments = json!({ "workspace_id": "w", "path": "a" });
    for revision in ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"] {
        let ask = |more: &[&str]| read(&http, revision, &arguments, more);
        let good = ask(&["Mcp-Param-Workspace-Id: w"]);
        assert_status(&good, 200);
        let content = &body_of(&good)["result"]["structuredContent"]["content"];
        assert_eq!(content, "text\n", "{revision}: {good}");
        for wrong in [
            &["Mcp-Param-Workspace-Id: other"][..],
            &["Mcp-Param-Workspace-Id: W"],
            &["Mcp-Param-Workspace-Id:"],
            &["Mcp-Param-Workspace-Id: w", "Mcp-Param-Workspace-Id: other"],
            &["Mcp-Param-Workspace-Id: other", "Mcp-Param-Workspace-Id: w"],
        ] {
            let answer = ask(wrong);
            assert!(
                body_of(&answer)["error"]["code"].is_i64(),
                "{revision} {wrong:?}: {answer}"
            );
            assert!(!answer.contains("text"), "{revision} {wrong:?}: {answer}");
        }
    }
    // The header is optional before 2026-07-28, required since; the body never is optional.
    assert_status(&read(&http, "2025-11-25", &arguments, &[]), 200);
    let missing = read(&http, "2026-07-28", &arguments, &[]);
    assert_eq!(body_of(&missing)["error"]["code"], -32020, "{missing}");
    for revision in ["2026-07-28", "2025-11-25"] {
        let answer = read(
            &http,
            revision,
            &json!({ "path": "a" }),
            &["Mcp-Param-Workspace-Id: w"],
        );
        assert!(
            body_of(&answer)["error"]["code"].is_i64(),
            "{revision}: {answer}"
        );
    }
    // 2026-07-28 has a form for values outside ASCII: =?base64?…?=
    let encoded = ["Mcp-Param-Workspace-Id: =?base64?dw==?="];
    assert_status(&read(&http, "2026-07-28", &arguments, &encoded), 200);
    let other = ["Mcp-Param-Workspace-Id: =?base64?eA==?="];
    let answer = read(&http, "2026-07-28", &arguments, &other);
    assert_eq!(body_of(&answer)["error"]["code"], -32020, "{answer}");
}

#[test]
fn headers_that_contradict_the_body_are_refused() {
    let http = Http::start();
    let auth = format!("Authorization: Bearer {TOKEN}");
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "workspace_info", "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "e2e", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    } });
    for (method, name, good) in [
        ("tools/call", "workspace_info", true),
        ("tools/list", "workspace_info", false),
        ("tools/call", "read", false),
    ] {
        let (method, name) = (format!("Mcp-Method: {method}"), format!("Mcp-Name: {name}"));
        let headers = [
            auth.as_str(),
            "MCP-Protocol-Version: 2026-07-28",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            &method,
            &name,
        ];
        let answer = http.send("POST", "/mcp", &headers, message.to_string().as_bytes());
        if good {
            assert_status(&answer, 200);
        } else {
            assert_status(&answer, 400);
            assert_eq!(body_of(&answer)["error"]["code"], -32020, "{answer}");
        }
    }
}
