//! What tells a request that the server is closing, and the server that its requests are done.

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Version, header},
    middleware::Next,
    response::Response,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What the end of serving is coordinated by.
#[derive(Clone, Default)]
pub struct Ending {
    /// Cancelled by the signal to stop.
    pub(super) closing: CancellationToken,
    /// Has a token for each request that has no response yet.
    pub(super) requests: TaskTracker,
}

/// Counts requests without a response. While the server is closing, tells HTTP/1 clients not
/// to send more on this connection; HTTP/2 has a frame for that.
pub async fn track(State(ending): State<Ending>, request: Request, next: Next) -> Response {
    let _token = ending.requests.token();
    let http1 = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if http1 && ending.closing.is_cancelled() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}
