//! Gives every tool call one span, `tools_call`.
//!
//! Outermost, so that whatever the other layers log lies in the span. It refuses nothing
//! and never records arguments, paths, or who calls. Fields follow OpenTelemetry's
//! conventions for MCP servers; `traceparent` is the caller's own, kept only if it has
//! the shape W3C Trace Context gives it. A dropped call ends its span with the error type
//! `CANCELLED`. A fault of ours is logged with its causes, anything else at debug.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use codespace_router::{Code, RawCall, ToolError};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Instrument, Span, field::Empty, instrument::Instrumented};

use crate::ToolLabels;

/// Wraps a service in [`Trace`]. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct TraceLayer {
    labels: ToolLabels,
}

/// Opens a span around each call. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Trace<S> {
    inner: S,
    labels: ToolLabels,
}

pin_project! {
    /// Response future for [`Trace`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: Instrumented<F>,
        open: OpenSpan,
    }
}

#[derive(Debug)]
struct OpenSpan {
    span: Span,
    ended: bool,
}

// === impl TraceLayer ===

impl TraceLayer {
    /// Spans named after these labels.
    #[must_use]
    pub fn new(labels: ToolLabels) -> Self {
        Self { labels }
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace {
            inner,
            labels: self.labels.clone(),
        }
    }
}

// === impl Trace ===

impl<S> Service<RawCall> for Trace<S>
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

    fn call(&mut self, call: RawCall) -> Self::Future {
        let tool = self.labels.of(&call.tool);
        let span = tracing::info_span!(
            "tools_call",
            otel.name = format_args!("tools/call {tool}"),
            otel.kind = "server",
            mcp.method.name = "tools/call",
            gen_ai.tool.name = tool,
            gen_ai.operation.name = "execute_tool",
            traceparent = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        );
        if let Some(parent) = call
            .trace
            .parent
            .as_deref()
            .filter(|text| is_traceparent(text))
        {
            span.record("traceparent", parent);
        }
        let inner = span
            .in_scope(|| self.inner.call(call))
            .instrument(span.clone());
        ResponseFuture {
            inner,
            open: OpenSpan { span, ended: false },
        }
    }
}

// W3C Trace Context, section 3.2: version, trace id, parent id, flags, in lower-case hex.
fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|b| b != b'0');
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, parent, flags] = parts[..] else {
        return false;
    };
    version != "ff"
        && is_hex(version, 2)
        && is_id(trace, 32)
        && is_id(parent, 16)
        && is_hex(flags, 2)
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
        let result = ready!(this.inner.poll(cx)).map_err(Into::into);
        this.open.end(result.as_ref().err());
        Poll::Ready(result)
    }
}

// === impl OpenSpan ===

impl OpenSpan {
    fn end(&mut self, error: Option<&ToolError>) {
        self.ended = true;
        // OpenTelemetry leaves the status of what went well unset. The events name their span
        // instead of entering it, which costs even where nobody listens to them.
        let Some(error) = error else {
            tracing::debug!(parent: &self.span, "tool call answered");
            return;
        };
        let code = error.code().as_str();
        self.span.record("error.type", code);
        self.span.record("otel.status_code", "ERROR");
        match error.code() {
            Code::Internal => tracing::warn!(
                parent: &self.span,
                causes = causes(error),
                "tool call failed by a fault of the server"
            ),
            _ => tracing::debug!(parent: &self.span, code, "tool call not done"),
        }
    }
}

fn causes(error: &ToolError) -> String {
    let chain = std::iter::successors(error.source(), |cause| (*cause).source());
    chain
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if !self.ended {
            self.span.record("error.type", Code::Cancelled.as_str());
            self.span.record("otel.status_code", "ERROR");
            tracing::debug!(parent: &self.span, "tool call dropped by its caller");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn passes_answers_errors_and_readiness_on() {
        let (mut service, mut handle) = mock::spawn_layer(TraceLayer::new(testing::labels()));
        handle.allow(0);
        assert_pending!(service.poll_ready());
        handle.allow(2);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::raw("toy", "me")));
        testing::next(&mut handle)
            .await
            .1
            .send_response(testing::reply());
        assert_ready_ok!(call.poll());
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::raw("toy", "me")));
        testing::next(&mut handle)
            .await
            .1
            .send_error(testing::busy());
        assert_eq!(assert_ready_err!(call.poll()).code(), Code::WorkspaceBusy);
    }

    #[test]
    fn keeps_only_a_real_traceparent() {
        assert!(is_traceparent(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        ));
        for bad in [
            "",
            "/home/me",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
