//! Counts HTTP requests by route, method and status: each from a fixed set.

use std::{
    ops::ControlFlow,
    sync::{Arc, OnceLock},
};

use axum::{
    extract::Request,
    http::{Method, StatusCode},
    response::Response,
};
use metrics::{Counter, Histogram};
use tokio::time::Instant;

use super::step::Step;

const ROUTES: [&str; 2] = ["other", "/mcp"];
const METHODS: [&str; 5] = ["other", "GET", "POST", "DELETE", "OPTIONS"];
const STATUSES: [(u16, &str); 15] = [
    (0, "other"),
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

/// Counts each request, a refused one too.
#[derive(Clone)]
pub struct Count {
    /// One of each combination, made when it is first needed: a look-up by labels costs
    /// more than all the rest here.
    series: Arc<[OnceLock<(Counter, Histogram)>]>,
}

impl Count {
    pub fn new() -> Self {
        let all = ROUTES.len() * METHODS.len() * STATUSES.len();
        Self {
            series: (0..all).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Step for Count {
    type Kept = (usize, usize, Instant);

    fn before(&self, request: &Request) -> ControlFlow<Response, Self::Kept> {
        let (route, method) = (route(request.uri().path()), method(request.method()));
        ControlFlow::Continue((route, method, Instant::now()))
    }

    fn after(&self, (route, method, begun): Self::Kept, response: &mut Response) {
        let status = status(response.status());
        let at = (route * METHODS.len() + method) * STATUSES.len() + status;
        let (requests, seconds) = self.series[at].get_or_init(|| {
            let (route, method, (_, status)) = (ROUTES[route], METHODS[method], STATUSES[status]);
            (
                metrics::counter!("codespace_http_requests_total", "route" => route, "method" => method, "status" => status),
                metrics::histogram!("codespace_http_request_duration_seconds", "route" => route, "method" => method, "status" => status),
            )
        });
        requests.increment(1);
        seconds.record(begun.elapsed().as_secs_f64());
    }
}

fn route(path: &str) -> usize {
    usize::from(is_mcp(path))
}

/// Whether a path is one that MCP is served at, below whichever prefix.
pub(super) fn is_mcp(path: &str) -> bool {
    path.trim_end_matches('/').rsplit('/').next() == Some("mcp")
}

fn method(method: &Method) -> usize {
    let known = METHODS.iter().position(|known| *known == method.as_str());
    known.unwrap_or(0)
}

fn status(status: StatusCode) -> usize {
    let known = STATUSES
        .iter()
        .position(|(code, _)| *code == status.as_u16());
    known.unwrap_or(0)
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
