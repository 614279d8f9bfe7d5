//! Refuses what can be refused without touching anything.
//!
//! Stands below authorization, since some rules are the workspace's (protected paths),
//! and above replay and hold: a call that can only fail uses up no key and asks no
//! person. It never reads a file. What the check worked out stays in the arguments. A
//! drop drops the inner call. Emits what the arguments' own check says: `INVALID_PATCH`,
//! `INVALID_COMMAND`, `PATH_ESCAPE`.

use std::task::{Context, Poll};

use codespace_router::{AuthorizedCall, ToolError, Validate};
use tower_layer::Layer;
use tower_service::Service;

use crate::refuse::ResponseFuture;

/// Wraps a service in [`Checked`]. See the [module docs](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct ValidateLayer;

/// Lets through what its arguments' own check accepts. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Checked<S> {
    inner: S,
}

// === impl ValidateLayer ===

impl ValidateLayer {
    /// The layer; it has nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for ValidateLayer {
    type Service = Checked<S>;

    fn layer(&self, inner: S) -> Checked<S> {
        Checked { inner }
    }
}

// === impl Checked ===

impl<A, S> Service<AuthorizedCall<A>> for Checked<S>
where
    A: Validate,
    S: Service<AuthorizedCall<A>>,
    S::Error: Into<ToolError>,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: AuthorizedCall<A>) -> Self::Future {
        let workspace = call.workspace().cloned();
        match workspace.and_then(|workspace| call.args_mut().validate(&workspace)) {
            Ok(()) => ResponseFuture::running(self.inner.call(call)),
            Err(error) => ResponseFuture::refused(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn refuses_without_touching_inner() {
        let (mut service, mut handle) = mock::spawn_layer(ValidateLayer::new());
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::authorized(None, 99).await));
        assert_eq!(
            assert_ready_err!(call.poll()).code(),
            codespace_router::Code::InvalidPatch
        );
        let mut call = task::spawn(service.call(testing::authorized(None, 0).await));
        testing::next(&mut handle)
            .await
            .1
            .send_response(testing::reply());
        assert_ready_ok!(call.poll());
    }
}
