//! What tells a request that the server is closing, and the server that its requests are done.

use std::ops::ControlFlow;

use axum::{
    extract::Request,
    http::{HeaderValue, Version, header},
    response::Response,
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::step::Step;

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
impl Step for Ending {
    type Kept = (TaskTrackerToken, bool);

    fn before(&self, request: &Request) -> ControlFlow<Response, Self::Kept> {
        let http1 = request.version() < Version::HTTP_2;
        ControlFlow::Continue((self.requests.token(), http1))
    }

    fn after(&self, (_token, http1): Self::Kept, response: &mut Response) {
        if http1 && self.closing.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
}
