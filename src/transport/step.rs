//! A step of the HTTP edge that decides at once: before a request, and after its answer.
//!
//! What axum's `from_fn` offers too, for an `async fn`, at the price of three allocations
//! and a copy of everything below it for each request.

use std::{
    ops::ControlFlow,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{extract::Request, response::Response};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

/// What is done beside a request. Cheap to clone.
pub trait Step: Clone {
    /// What is kept from the request until its answer.
    type Kept;

    /// Looks at a request. `Break` answers it; nothing below sees it then.
    fn before(&self, request: &Request) -> ControlFlow<Response, Self::Kept>;

    /// Looks at the answer that came from below.
    fn after(&self, kept: Self::Kept, response: &mut Response);
}

/// A [`Step`] as a layer.
#[derive(Clone)]
pub struct StepLayer<T>(pub T);

/// A [`Step`] around a service.
#[derive(Clone)]
pub struct Stepped<T, S> {
    step: T,
    inner: S,
}

pin_project! {
    /// Response future of [`Stepped`].
    #[project = Way]
    pub enum ResponseFuture<T: Step, F> {
        Passed {
            #[pin]
            inner: F,
            step: T,
            kept: Option<T::Kept>,
        },
        Answered {
            response: Option<Response>,
        },
    }
}

impl<T: Step, S> Layer<S> for StepLayer<T> {
    type Service = Stepped<T, S>;

    fn layer(&self, inner: S) -> Stepped<T, S> {
        Stepped {
            step: self.0.clone(),
            inner,
        }
    }
}

impl<T, S> Service<Request> for Stepped<T, S>
where
    T: Step,
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = ResponseFuture<T, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.step.before(&request) {
            ControlFlow::Continue(kept) => ResponseFuture::Passed {
                inner: self.inner.call(request),
                step: self.step.clone(),
                kept: Some(kept),
            },
            ControlFlow::Break(response) => ResponseFuture::Answered {
                response: Some(response),
            },
        }
    }
}

impl<T, F, E> Future for ResponseFuture<T, F>
where
    T: Step,
    F: Future<Output = Result<Response, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Way::Passed { inner, step, kept } => {
                let mut result = ready!(inner.poll(cx));
                if let (Ok(response), Some(kept)) = (&mut result, kept.take()) {
                    step.after(kept, response);
                }
                Poll::Ready(result)
            }
            Way::Answered { response } => {
                Poll::Ready(Ok(response.take().expect("future polled after completion")))
            }
        }
    }
}
