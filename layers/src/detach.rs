//! Lets a call run to its end even if the caller leaves.
//!
//! Stands below the hold (a call waiting for a person may be dropped) and above the
//! lease: from there on a drop would part a patch from its record or a process from its
//! id. The call becomes a task of its own, in the caller's span; a drop leaves it
//! running, and shutdown waits for it through the tracker. It refuses nothing, and bounds
//! nothing: the leases do. A panic of the task is an `INTERNAL` error.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use codespace_router::ToolError;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::task::TaskTracker;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::panics;

/// Wraps a service in [`Detach`]. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct DetachLayer {
    tracker: TaskTracker,
}

/// Runs each call as a task. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Detach<S> {
    inner: S,
    tracker: TaskTracker,
}

/// Response future for [`Detach`]. Dropping it leaves the task running.
#[derive(Debug)]
pub struct ResponseFuture<T, E> {
    task: JoinHandle<Result<T, E>>,
}

// === impl DetachLayer ===

impl DetachLayer {
    /// Detached calls are tasks of `tracker`, on which shutdown waits.
    #[must_use]
    pub fn new(tracker: TaskTracker) -> Self {
        Self { tracker }
    }
}

impl<S> Layer<S> for DetachLayer {
    type Service = Detach<S>;

    fn layer(&self, inner: S) -> Detach<S> {
        Detach {
            inner,
            tracker: self.tracker.clone(),
        }
    }
}

// === impl Detach ===

impl<S, Req> Service<Req> for Detach<S>
where
    S: Service<Req>,
    S::Response: Send + 'static,
    S::Error: Into<ToolError> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = ResponseFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let inner = self.inner.call(request).in_current_span();
        ResponseFuture {
            task: self.tracker.spawn(inner),
        }
    }
}

// === impl ResponseFuture ===

impl<T, E: Into<ToolError>> Future for ResponseFuture<T, E> {
    type Output = Result<T, ToolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.task).poll(cx)) {
            Ok(result) => result.map_err(Into::into),
            Err(lost) => Err(into_error(lost)),
        })
    }
}

fn into_error(lost: JoinError) -> ToolError {
    match lost.try_into_panic() {
        Ok(payload) => panics::into_error(&*payload),
        // Only the runtime's own end cancels the task.
        Err(lost) => ToolError::internal(lost),
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_ok};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn a_dropped_call_runs_to_its_end() {
        let tracker = TaskTracker::new();
        let (mut service, mut handle) = mock::spawn_layer(DetachLayer::new(tracker.clone()));
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        drop(service.call(()));
        let (_, answer) = testing::next(&mut handle).await;
        tracker.close();
        let mut drained = tokio_test::task::spawn(tracker.wait());
        assert_pending!(drained.poll());
        answer.send_response(testing::reply());
        drained.await;
    }
}
