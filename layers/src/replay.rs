//! Answers a repeated call from the record of the first.
//!
//! Stands above hold and lease: a call that is done already asks no person again and is
//! not in anyone's way. A finished record under the caller's key and with the same
//! arguments is the answer; with other arguments it is `OPERATION_KEY_CONFLICT`. A record
//! that is still running goes on down, where the lease and settle decide. It writes
//! nothing. A drop ends the look-up; nothing was begun. Emits
//! `codespace_idempotent_replays_total` and `codespace_operation_key_conflicts_total`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use codespace_router::{AuthorizedCall, BoxFuture, Keyed, Ledger, Lookup, ToolError, ToolReply};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::record;

/// Wraps a service in [`Replay`]. See the [module docs](self).
#[derive(Clone)]
pub struct ReplayLayer {
    ledger: Arc<dyn Ledger>,
}

/// Answers from the ledger where it can. See the [module docs](self).
#[derive(Clone)]
pub struct Replay<S> {
    inner: S,
    ledger: Arc<dyn Ledger>,
}

pin_project! {
    /// Response future for [`Replay`].
    #[allow(missing_docs, reason = "pin_project takes no docs on a pinned field")]
    #[project = Step]
    pub enum ResponseFuture<F> {
        /// A call without a key.
        Passing {
            #[pin]
            inner: F,
        },
        /// A call with one: the look-up, then perhaps the inner call.
        Looking {
            answer: BoxFuture<'static, Result<ToolReply, ToolError>>,
        },
    }
}

// === impl ReplayLayer ===

impl ReplayLayer {
    /// Looks keys up in `ledger`.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger }
    }
}

impl<S> Layer<S> for ReplayLayer {
    type Service = Replay<S>;

    fn layer(&self, inner: S) -> Replay<S> {
        Replay {
            inner,
            ledger: self.ledger.clone(),
        }
    }
}

impl fmt::Debug for ReplayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayLayer")
    }
}

// === impl Replay ===

impl<A, S> Service<AuthorizedCall<A>> for Replay<S>
where
    A: Keyed + Send + Sync + 'static,
    S: Service<AuthorizedCall<A>, Response = ToolReply> + Clone + Send + 'static,
    S::Error: Into<ToolError>,
    S::Future: Send,
{
    type Response = ToolReply;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: AuthorizedCall<A>) -> Self::Future {
        let Some(key) = call.args().operation_key() else {
            return ResponseFuture::Passing {
                inner: self.inner.call(call),
            };
        };
        let lookup = Lookup::Key {
            caller: call.caller().subject().to_owned(),
            key: key.to_owned(),
        };
        let unready = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, unready);
        let ledger = self.ledger.clone();
        let answer = Box::pin(async move {
            if let Some(found) = ledger.find(lookup).await?
                && let Some(answer) = record::answer(found, call.args().fingerprint())
            {
                return answer;
            }
            ready.call(call).await.map_err(Into::into)
        });
        ResponseFuture::Looking { answer }
    }
}

impl<S> fmt::Debug for Replay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replay")
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
        match self.project() {
            Step::Passing { inner } => Poll::Ready(ready!(inner.poll(cx)).map_err(Into::into)),
            Step::Looking { answer } => answer.as_mut().poll(cx),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn only_a_finished_record_answers() {
        let ledger = Arc::new(crate::fakes::MemoryLedger::default());
        let (mut service, mut handle) = mock::spawn_layer(ReplayLayer::new(ledger.clone()));
        handle.allow(9);
        for key in [None, Some("k")] {
            assert_ready_ok!(service.poll_ready());
            let mut call = task::spawn(service.call(testing::authorized(key, 0).await));
            assert_pending!(call.poll());
            testing::next(&mut handle)
                .await
                .1
                .send_response(testing::reply());
            assert!(!assert_ready_ok!(call.poll()).replayed);
        }
        let operation = codespace_router::NewOperation {
            caller: "local".to_owned(),
            key: Some("k".to_owned()),
            fingerprint: codespace_router::Fingerprint([0; 32]),
            workspace: crate::fakes::workspace().id.clone(),
            files: Vec::new(),
        };
        let codespace_router::Minted::New(id) = ledger.mint(operation).await.expect("minted")
        else {
            panic!("taken")
        };
        let status = codespace_router::OperationStatus::Applied;
        let result = serde_json::json!({ "done": true });
        ledger
            .finish(
                id,
                codespace_router::Settlement {
                    status,
                    reason: None,
                    result,
                },
            )
            .await
            .expect("finished");
        assert_ready_ok!(service.poll_ready());
        let reply = service
            .call(testing::authorized(Some("k"), 0).await)
            .await
            .expect("replayed");
        assert_eq!(
            (reply.replayed, &reply.value["replayed"]),
            (true, &true.into())
        );
        assert_ready_ok!(service.poll_ready());
        let error = service
            .call(testing::authorized(Some("k"), 1).await)
            .await
            .expect_err("conflict");
        assert_eq!(error.code(), codespace_router::Code::OperationKeyConflict);
    }
}
