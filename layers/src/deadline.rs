//! Answers `TIMEOUT` when a call passes its deadline.
//!
//! Stands above the router, where reading tools are simply dropped; what writes or runs
//! is detached further down and goes on to its record. The deadline is the call's own or
//! the default, and is written into the call for the layers below. An answer that is
//! ready at the deadline wins over the clock. A drop drops the inner call and the timer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use codespace_router::{BoxError, RawCall, ToolError};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::timeout::error::Elapsed;
use tower_layer::Layer;
use tower_service::Service;

/// Wraps a service in [`Deadline`]. See the [module docs](self).
#[derive(Clone, Copy, Debug)]
pub struct DeadlineLayer {
    default: Duration,
}

/// Bounds how long a call is waited for. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Deadline<S> {
    inner: S,
    default: Duration,
}

pin_project! {
    /// Response future for [`Deadline`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        #[pin]
        clock: Sleep,
    }
}

// === impl DeadlineLayer ===

impl DeadlineLayer {
    /// Calls without a deadline of their own get `default`.
    #[must_use]
    pub fn new(default: Duration) -> Self {
        Self { default }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline {
            inner,
            default: self.default,
        }
    }
}

// === impl Deadline ===

impl<S> Service<RawCall> for Deadline<S>
where
    S: Service<RawCall>,
    S::Error: Into<ToolError>,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: RawCall) -> Self::Future {
        let deadline = *call
            .deadline
            .get_or_insert_with(|| Instant::now() + self.default);
        ResponseFuture {
            inner: self.inner.call(call),
            clock: sleep_until(deadline),
        }
    }
}

// === impl ResponseFuture ===

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<ToolError>,
{
    type Output = Result<T, ToolError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.inner.poll(cx) {
            return Poll::Ready(result.map_err(Into::into));
        }
        ready!(this.clock.poll(cx));
        // One wording with tower's own timeout: the vocabulary names it.
        let elapsed: BoxError = Box::new(Elapsed::new());
        Poll::Ready(Err(elapsed.into()))
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test(start_paused = true)]
    async fn refuses_late_answers_and_keeps_timely_ones() {
        let (mut service, mut handle) =
            mock::spawn_layer(DeadlineLayer::new(Duration::from_secs(5)));
        handle.allow(2);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::raw("toy", "me")));
        let (seen, answer) = testing::next(&mut handle).await;
        assert!(seen.deadline.is_some());
        assert_pending!(call.poll());
        tokio::time::advance(Duration::from_secs(6)).await;
        answer.send_response(testing::reply());
        assert_ready_ok!(call.poll(), "the answer wins over the clock");
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::raw("toy", "me")));
        let _kept = testing::next(&mut handle).await;
        assert_pending!(call.poll());
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(
            assert_ready_err!(call.poll()).code(),
            codespace_router::Code::Timeout
        );
    }
}
