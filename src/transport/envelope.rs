//! Reads a POST's body whole and answers malformed JSON-RPC as JSON-RPC.
//!
//! Sits below authentication, so that a stranger cannot make the server hold a body,
//! and above rmcp, which answers such input with plain text and odd statuses. One
//! borrowed pass over the bytes; what passes is handed on unchanged.

use std::{borrow::Cow, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::http::{Mcp, refusal};

/// A client that sends nothing for this long has stalled.
const STALL: Duration = Duration::from_secs(30);
/// Sessions at once: an idle one costs about 100 KB.
const SESSIONS: usize = 1_000;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Checks the body of a POST; other methods pass.
pub(super) async fn check(State(mcp): State<Mcp>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return other_method(&mcp, request, next).await;
    }
    let (mut parts, body) = request.into_parts();
    let collected = tokio::time::timeout(STALL, Limited::new(body, mcp.body_bytes).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "BODY_TOO_LARGE",
                "the request body is larger than server.body_bytes allows; send less at once",
            );
        }
        Ok(Err(_)) => {
            return refusal(
                StatusCode::BAD_REQUEST,
                "BODY_BROKEN",
                "the request body ended early; send it again",
            );
        }
        Err(_) => {
            return refusal(
                StatusCode::REQUEST_TIMEOUT,
                "BODY_STALLED",
                "the request body did not arrive in time; send it again",
            );
        }
    };
    match fault(&bytes) {
        Err(refused) => return *refused,
        Ok(is_initialize) => {
            if is_initialize && mcp.sessions_full(SESSIONS).await {
                return refusal(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "TOO_MANY_SESSIONS",
                    "all sessions are taken; end one with DELETE, or wait until idle ones expire",
                );
            }
        }
    }
    // A client that takes anything takes what we send; rmcp wants both types named.
    let any = parts
        .headers
        .get(header::ACCEPT)
        .is_none_or(|accept| accept == "*/*");
    if any {
        parts.headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
    }
    in_json(
        next.run(Request::from_parts(parts, Body::from(bytes)))
            .await,
    )
    .await
}

/// rmcp's refusals in plain text, as the JSON that clients read.
async fn in_json(response: Response) -> Response {
    const UNREADABLE: &str = "fail to deserialize request body ";
    let status = response.status();
    let plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !plain || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = Limited::new(body, 8 * 1024).collect().await;
    let text = text.map(|text| text.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    if let Some(why) = text.strip_prefix(UNREADABLE) {
        return *if why.contains("unrecognized") {
            let rule =
                "not a JSON-RPC message: jsonrpc must be \"2.0\", and id a string or an integer";
            rpc_error(None, -32600, rule)
        } else {
            rpc_error(None, -32700, &format!("not JSON that can be held: {why}"))
        };
    }
    let code = match status {
        StatusCode::NOT_FOUND => "NOT_FOUND",
        StatusCode::NOT_ACCEPTABLE => "NOT_ACCEPTABLE",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UNSUPPORTED_MEDIA_TYPE",
        status if status.is_server_error() => "INTERNAL",
        _ => "BAD_REQUEST",
    };
    let mut refused = refusal(status, code, text.trim());
    for (name, value) in &parts.headers {
        if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
            refused.headers_mut().append(name, value.clone());
        }
    }
    refused
}

async fn other_method(mcp: &Mcp, request: Request, next: Next) -> Response {
    let served = matches!(*request.method(), Method::GET | Method::DELETE) && mcp.has_sessions();
    if served {
        return in_json(next.run(request).await).await;
    }
    let mut response = refusal(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this server keeps no sessions: send every message by POST",
    );
    let allow = if mcp.has_sessions() {
        "GET, POST, DELETE"
    } else {
        "POST"
    };
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

/// Nesting that a recursive reader takes; serde_json's own bound.
const DEPTH: usize = 127;

fn is_too_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    bytes.iter().any(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEPTH
    })
}

/// Whether the message is an `initialize`; or the answer to what is none.
fn fault(bytes: &[u8]) -> Result<bool, Box<Response>> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(rpc_error(
            None,
            -32600,
            "a batch is not served; send one message a request",
        ));
    }
    if is_too_deep(bytes) {
        return Err(rpc_error(
            None,
            -32700,
            "nested deeper than 127 levels; send a flatter message",
        ));
    }
    let message: Message<'_> = match serde_json::from_slice(bytes) {
        Ok(message) => message,
        Err(error) if error.is_data() => {
            return Err(rpc_error(
                None,
                -32600,
                &format!("not a JSON-RPC message: {error}"),
            ));
        }
        Err(error) => return Err(rpc_error(None, -32700, &format!("not JSON: {error}"))),
    };
    let Some(method) = message.method.as_deref() else {
        return Ok(false);
    };
    if method == "tools/call" {
        let shape = message.params.map_or("null", RawValue::get);
        let invalid = |why: &str| Err(rpc_error(message.id, -32602, why));
        let Ok(params) = serde_json::from_str::<CallParams<'_>>(shape) else {
            return invalid("params: must be an object with name and arguments");
        };
        if !params.name.is_some_and(|name| name.get().starts_with('"')) {
            return invalid("params.name: must be a string, the name of a tool");
        }
        if !params
            .arguments
            .is_none_or(|arguments| arguments.get().starts_with(['{', 'n']))
        {
            return invalid("params.arguments: must be an object");
        }
    }
    Ok(method == "initialize")
}

fn rpc_error(id: Option<&RawValue>, code: i32, message: &str) -> Box<Response> {
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    let response = (
        StatusCode::BAD_REQUEST,
        [(header::CONTENT_TYPE, "application/json")],
        body.to_string(),
    );
    Box::new(response.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn code(body: &str) -> i64 {
        let response = *fault(body.as_bytes()).expect_err("refused");
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let value: serde_json::Value = serde_json::from_slice(&bytes).expect("json");
        value["error"]["code"].as_i64().expect("a code")
    }

    #[tokio::test]
    async fn malformed_messages_are_answered_as_json_rpc() {
        assert_eq!(code("{").await, -32700);
        assert_eq!(code("").await, -32700);
        assert_eq!(
            code(&format!("{}1{}", "[".repeat(3), "]".repeat(3))).await,
            -32600
        );
        assert_eq!(code("3").await, -32600);
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#).await,
            -32602
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":3}}"#).await,
            -32602
        );
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":[]}}"#).await, -32602);
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(code(&deep).await, -32700);
    }

    #[test]
    fn good_messages_pass() {
        assert!(!fault(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{}}}"#).expect("passes"));
        assert!(
            fault(br#" {"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#)
                .expect("passes")
        );
        assert!(!fault(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).expect("a response passes"));
    }

    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "null",
        "1",
        "-1e999",
        "\"\\ud800\"",
        "\u{0}",
        "\"jsonrpc\":\"2.0\"",
        "\"id\":1",
        "\"id\":{}",
        "\"method\":\"tools/call\"",
        "\"method\":\"initialize\"",
        "\"params\":{",
        "\"name\":\"read\"",
        "\"arguments\":{",
        "\"arguments\":[",
        " ",
        "\n",
        "\u{feff}",
        "é",
    ];

    proptest::proptest! {
        #[test]
        fn anything_passes_or_is_answered(picks in proptest::collection::vec(0..PIECES.len(), 0..40)) {
            let body: String = picks.into_iter().map(|pick| PIECES[pick]).collect();
            match fault(body.as_bytes()) {
                Ok(_) => assert!(serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok(), "{body}"),
                Err(response) => assert_eq!(response.status(), StatusCode::BAD_REQUEST),
            }
        }
    }
}
