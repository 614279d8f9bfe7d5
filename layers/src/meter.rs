//! Counts and times every call.
//!
//! Stands above whatever refuses, so that refusals are counted too, and below the span
//! only. It refuses nothing, and never takes a label from a client: an unregistered tool
//! is `unknown`. A dropped call is an outcome, `cancelled`, recorded from `Drop`. Emits
//! `codespace_tool_calls_total`, `codespace_tool_call_duration_seconds` and
//! `codespace_tool_calls_in_flight`.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll, ready},
};

use codespace_router::{Code, RawCall, ToolError, ToolReply};
use metrics::{Counter, Gauge, Histogram};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::{ToolLabels, names};

/// Wraps a service in [`Meter`]. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct MeterLayer {
    tools: Tools,
}

/// Counts and times calls. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Meter<S> {
    inner: S,
    tools: Tools,
}

pin_project! {
    /// Response future for [`Meter`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        running: Running,
    }
}

/// How a call ended, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done.
    Ok,
    /// The tool failed, or its failure is recorded, or the server is at fault.
    Error,
    /// Turned away before anything was done: steps 0 to 12 of the stack.
    Refused,
    /// Answered from the record of an earlier call, whatever that answer was.
    Replayed,
    /// Waits for an approval.
    Held,
    /// The caller left.
    Cancelled,
}

/// The series of each tool that was called. The labels are from a closed set, so this
/// stays as small as that.
#[derive(Clone)]
struct Tools {
    labels: ToolLabels,
    seen: Arc<RwLock<HashMap<&'static str, Arc<Series>>>>,
}

/// What every call of a tool needs: finding a series by its labels costs more than all
/// else that is done here. Other outcomes than success are rare enough to be looked up.
struct Series {
    tool: &'static str,
    in_flight: Gauge,
    ok: Counter,
    ok_seconds: Histogram,
}

#[derive(Debug)]
struct Running {
    series: Arc<Series>,
    begun: Instant,
    ended: bool,
}

// === impl Outcome ===

impl Outcome {
    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Refused => "refused",
            Outcome::Replayed => "replayed",
            Outcome::Held => "held",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// The outcome an answer stands for.
#[must_use]
pub fn outcome(result: &Result<ToolReply, ToolError>) -> Outcome {
    let error = match result {
        Ok(reply) if reply.replayed => return Outcome::Replayed,
        Ok(_) => return Outcome::Ok,
        Err(error) => error,
    };
    if error.is_replayed() {
        return Outcome::Replayed;
    }
    // A recorded failure passed every gate.
    if error.operation_id().is_some() {
        return Outcome::Error;
    }
    match error.code() {
        Code::ApprovalRequired => Outcome::Held,
        Code::Cancelled => Outcome::Cancelled,
        // What limits, router, decoding, authorization, validation, replay and lease say.
        // `InvalidPatch` and `PathEscape` from the tool carry the operation's id.
        Code::LimitExceeded
        | Code::Timeout
        | Code::UnknownTool
        | Code::InvalidArguments
        | Code::Unauthorized
        | Code::WorkspaceNotFound
        | Code::ProcessNotFound
        | Code::OperationNotFound
        | Code::InvalidCommand
        | Code::InvalidPatch
        | Code::OperationKeyConflict
        | Code::WorkspaceBusy => Outcome::Refused,
        _ => Outcome::Error,
    }
}

// === impl MeterLayer ===

impl MeterLayer {
    /// Counts under these labels.
    #[must_use]
    pub fn new(labels: ToolLabels) -> Self {
        let seen = Arc::default();
        Self {
            tools: Tools { labels, seen },
        }
    }
}

impl<S> Layer<S> for MeterLayer {
    type Service = Meter<S>;

    fn layer(&self, inner: S) -> Meter<S> {
        Meter {
            inner,
            tools: self.tools.clone(),
        }
    }
}

// === impl Meter ===

impl<S> Service<RawCall> for Meter<S>
where
    S: Service<RawCall, Response = ToolReply>,
    S::Error: Into<ToolError>,
{
    type Response = ToolReply;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: RawCall) -> Self::Future {
        let running = Running::begin(self.tools.series(&call.tool));
        ResponseFuture {
            inner: self.inner.call(call),
            running,
        }
    }
}

// === impl ResponseFuture ===

impl<F, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ToolReply, E>>,
    E: Into<ToolError>,
{
    type Output = Result<ToolReply, ToolError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx)).map_err(Into::into);
        let code = result.as_ref().err().map(ToolError::code);
        this.running.end(outcome(&result), code);
        Poll::Ready(result)
    }
}

// === impl Tools ===

impl Tools {
    fn series(&self, tool: &str) -> Arc<Series> {
        let label = self.labels.of(tool);
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = seen.get(label) {
            return Arc::clone(series);
        }
        drop(seen);
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        let series = seen
            .entry(label)
            .or_insert_with(|| Series::new(label).into());
        Arc::clone(series)
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.labels.fmt(f)
    }
}

// === impl Series ===

impl Series {
    fn new(tool: &'static str) -> Self {
        let (outcome, code) = (Outcome::Ok.as_str(), "none");
        Self {
            tool,
            in_flight: metrics::gauge!(names::TOOL_CALLS_IN_FLIGHT, "tool" => tool),
            ok: metrics::counter!(names::TOOL_CALLS, "tool" => tool, "outcome" => outcome, "code" => code),
            ok_seconds: metrics::histogram!(names::TOOL_CALL_DURATION, "tool" => tool, "outcome" => outcome),
        }
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tool)
    }
}

// === impl Running ===

impl Running {
    fn begin(series: Arc<Series>) -> Self {
        series.in_flight.increment(1.0);
        Self {
            series,
            begun: Instant::now(),
            ended: false,
        }
    }

    fn end(&mut self, outcome: Outcome, code: Option<Code>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        self.series.in_flight.decrement(1.0);
        if outcome == Outcome::Ok {
            self.series.ok.increment(1);
            self.series.ok_seconds.record(seconds);
            return;
        }
        let (tool, outcome) = (self.series.tool, outcome.as_str());
        let code = code.map_or("none", Code::as_str);
        metrics::counter!(names::TOOL_CALLS, "tool" => tool, "outcome" => outcome, "code" => code)
            .increment(1);
        metrics::histogram!(names::TOOL_CALL_DURATION, "tool" => tool, "outcome" => outcome)
            .record(seconds);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Outcome::Cancelled, Some(Code::Cancelled));
    }
}

#[cfg(test)]
mod tests {
    use metrics_util::debugging::DebuggingRecorder;
    use tokio_test::{assert_pending, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn counts_answers_refusals_and_drops() {
        let recorder = DebuggingRecorder::new();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let (mut service, mut handle) = mock::spawn_layer(MeterLayer::new(testing::labels()));
        handle.allow(3);
        for end in ["ok", "refused", "dropped"] {
            assert_ready_ok!(service.poll_ready());
            let mut call = task::spawn(
                service.call(testing::raw(if end == "ok" { "toy" } else { "x/y" }, "me")),
            );
            assert_pending!(call.poll());
            let (_, answer) = testing::next(&mut handle).await;
            match end {
                "ok" => answer.send_response(testing::reply()),
                "refused" => answer.send_error(testing::busy()),
                _ => continue,
            }
            assert!(call.poll().is_ready());
        }
        let series = testing::series(&recorder.snapshotter());
        let counts: Vec<_> = series
            .iter()
            .filter(|line| !line.contains("_seconds"))
            .map(String::as_str)
            .collect();
        assert_eq!(
            counts,
            [
                "codespace_tool_calls_total{tool=toy,outcome=ok,code=none} 1",
                "codespace_tool_calls_total{tool=unknown,outcome=cancelled,code=CANCELLED} 1",
                "codespace_tool_calls_total{tool=unknown,outcome=refused,code=WORKSPACE_BUSY} 1",
            ]
        );
    }

    #[test]
    fn tells_a_recorded_failure_from_a_refusal() {
        let of = |error: ToolError| outcome(&Err(error));
        let invalid = || ToolError::new(Code::InvalidPatch, "bad");
        assert_eq!(of(invalid()), Outcome::Refused);
        assert_eq!(
            of(invalid().with_operation(codespace_router::OperationId::mint())),
            Outcome::Error
        );
        assert_eq!(of(invalid().into_replayed()), Outcome::Replayed);
        assert_eq!(
            of(ToolError::new(Code::ApprovalRequired, "wait")),
            Outcome::Held
        );
        assert_eq!(
            of(ToolError::new(Code::FileNotFound, "none")),
            Outcome::Error
        );
        assert_eq!(of(ToolError::internal("x")), Outcome::Error);
    }
}
