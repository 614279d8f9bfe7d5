//! Counts HTTP requests by route, method and status: each from a fixed set.

use axum::{
    extract::Request,
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use tokio::time::Instant;

/// Counts one request, a refused one too.
pub async fn count(request: Request, next: Next) -> Response {
    let route = route(request.uri().path());
    let method = method(request.method());
    let begun = Instant::now();
    let response = next.run(request).await;
    let status = status(response.status());
    metrics::counter!("codespace_http_requests_total", "route" => route, "method" => method, "status" => status).increment(1);
    metrics::histogram!("codespace_http_request_duration_seconds", "route" => route, "method" => method, "status" => status)
        .record(begun.elapsed().as_secs_f64());
    response
}

fn route(path: &str) -> &'static str {
    if is_mcp(path) { "/mcp" } else { "other" }
}

/// Whether a path is one that MCP is served at, below whichever prefix.
pub(super) fn is_mcp(path: &str) -> bool {
    path.trim_end_matches('/').rsplit('/').next() == Some("mcp")
}

fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

fn status(status: StatusCode) -> &'static str {
    const KNOWN: [(u16, &str); 14] = [
        (200, "200"),
        (202, "202"),
        (204, "204"),
        (400, "400"),
        (401, "401"),
        (403, "403"),
        (404, "404"),
        (405, "405"),
        (406, "406"),
        (408, "408"),
        (413, "413"),
        (415, "415"),
        (500, "500"),
        (503, "503"),
    ];
    KNOWN
        .iter()
        .find(|(code, _)| *code == status.as_u16())
        .map_or("other", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::is_mcp;

    #[test]
    fn the_endpoint_is_known_below_any_prefix() {
        for path in ["/mcp", "/mcp/", "/tools/mcp", "/a/b/mcp/"] {
            assert!(is_mcp(path), "{path}");
        }
        for path in ["/", "", "/metrics", "/mcpx", "/MCP", "/mcp/x", "/x-mcp"] {
            assert!(!is_mcp(path), "{path}");
        }
    }
}
