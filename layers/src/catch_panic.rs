//! Turns a panic below into an `INTERNAL` error, so that the server lives on.
//!
//! Stands below metrics and trace, which must see the call end, and above everything
//! that runs code of a tool. It refuses nothing and catches no panic of a task the inner
//! service spawned (that is the detaching layer's). A drop drops the inner call. The
//! panic's message becomes the error's source, for the log, and never reaches the client.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use codespace_router::ToolError;
use futures_util::{FutureExt, future::CatchUnwind};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::panics;

/// Wraps a service in [`CatchPanic`]. See the [module docs](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct CatchPanicLayer;

/// Answers a panic with an error. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct CatchPanic<S> {
    inner: S,
}

pin_project! {
    /// Response future for [`CatchPanic`].
    #[derive(Debug)]
    #[allow(missing_docs, reason = "pin_project takes no docs on a pinned field")]
    #[project = Step]
    pub enum ResponseFuture<F> {
        /// The inner call goes on.
        Running {
            #[pin]
            inner: CatchUnwind<AssertUnwindSafe<F>>,
        },
        /// `call` itself panicked.
        Panicked {
            error: Option<ToolError>,
        },
    }
}

// === impl CatchPanicLayer ===

impl CatchPanicLayer {
    /// The layer; it has nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;

    fn layer(&self, inner: S) -> CatchPanic<S> {
        CatchPanic { inner }
    }
}

// === impl CatchPanic ===

impl<S, Req> Service<Req> for CatchPanic<S>
where
    S: Service<Req>,
    S::Error: Into<ToolError>,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // Unwind safe as far as we rely on it: a service is cloned for each call, and the
        // instance that panicked is not called again.
        match catch_unwind(AssertUnwindSafe(|| self.inner.call(request))) {
            Ok(inner) => ResponseFuture::Running {
                inner: AssertUnwindSafe(inner).catch_unwind(),
            },
            Err(payload) => ResponseFuture::Panicked {
                error: Some(panics::into_error(&*payload)),
            },
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
        match self.project() {
            Step::Running { inner } => Poll::Ready(match ready!(inner.poll(cx)) {
                Ok(result) => result.map_err(Into::into),
                Err(payload) => Err(panics::into_error(&*payload)),
            }),
            Step::Panicked { error } => {
                Poll::Ready(Err(error.take().expect("future polled after completion")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    struct Fuse;

    impl Service<&'static str> for Fuse {
        type Response = ();
        type Error = ToolError;
        type Future = Pin<Box<dyn Future<Output = Result<(), ToolError>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, when: &'static str) -> Self::Future {
            assert!(when != "call", "in call");
            Box::pin(async move { panic!("in the future") })
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_without_its_message() {
        for when in ["call", "later"] {
            let error = CatchPanicLayer::new()
                .layer(Fuse)
                .call(when)
                .await
                .expect_err("panicked");
            assert_eq!(error.code(), codespace_router::Code::Internal);
            assert!(!error.message().contains("in "), "{error}");
        }
    }

    #[tokio::test]
    async fn keeps_the_inner_error() {
        let (mut service, mut handle) = mock::spawn_layer(CatchPanicLayer::new());
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(()));
        testing::next(&mut handle)
            .await
            .1
            .send_error(testing::busy());
        assert_eq!(
            assert_ready_err!(call.poll()).code(),
            codespace_router::Code::WorkspaceBusy
        );
    }
}
