//! The future of a layer that refuses a call or passes it on, and nothing else.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use codespace_router::ToolError;
use pin_project_lite::pin_project;

pin_project! {
    /// The inner answer, or a refusal that never reached the inner service.
    #[derive(Debug)]
    #[allow(missing_docs, reason = "pin_project takes no docs on a pinned field")]
    #[project = Step]
    pub enum ResponseFuture<F> {
        /// Passed on.
        Running {
            #[pin]
            inner: F,
        },
        /// Refused.
        Refused {
            error: Option<ToolError>,
        },
    }
}

impl<F> ResponseFuture<F> {
    pub(crate) fn running(inner: F) -> Self {
        Self::Running { inner }
    }

    pub(crate) fn refused(error: ToolError) -> Self {
        Self::Refused { error: Some(error) }
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<ToolError>,
{
    type Output = Result<T, ToolError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Step::Running { inner } => Poll::Ready(ready!(inner.poll(cx)).map_err(Into::into)),
            Step::Refused { error } => {
                Poll::Ready(Err(error.take().expect("future polled after completion")))
            }
        }
    }
}
