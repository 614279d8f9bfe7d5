//! Finds what a call is about and applies policy to it.
//!
//! Stands below decoding, which names the subject, and above everything that touches a
//! workspace; the only layer to make an `AuthorizedCall`, so a stack with the lease above
//! it does not compile (the [crate docs](crate) show one). What the caller may not see
//! does not exist for it; what it may see but not do is `UNAUTHORIZED`. It records
//! nothing. A drop ends the search; nothing was begun.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use codespace_router::{AuthorizedCall, BoxFuture, Decoded, OnSubject, Resolve, ToolError};
use tower_layer::Layer;
use tower_service::Service;

/// Wraps a service in [`Authorize`]. See the [module docs](self).
#[derive(Clone)]
pub struct AuthorizeLayer {
    resolve: Arc<dyn Resolve>,
}

/// Lets through what policy allows. See the [module docs](self).
#[derive(Clone)]
pub struct Authorize<S> {
    inner: S,
    resolve: Arc<dyn Resolve>,
}

// === impl AuthorizeLayer ===

impl AuthorizeLayer {
    /// Finds subjects through `resolve`.
    #[must_use]
    pub fn new(resolve: Arc<dyn Resolve>) -> Self {
        Self { resolve }
    }
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize {
            inner,
            resolve: self.resolve.clone(),
        }
    }
}

impl fmt::Debug for AuthorizeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorizeLayer")
    }
}

// === impl Authorize ===

impl<A, S> Service<Decoded<A>> for Authorize<S>
where
    A: OnSubject + Send + Sync + 'static,
    S: Service<AuthorizedCall<A>> + Clone + Send + 'static,
    S::Error: Into<ToolError>,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = BoxFuture<'static, Result<S::Response, ToolError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: Decoded<A>) -> Self::Future {
        // The clone has not been readied: it stays, and the readied one is called.
        let unready = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, unready);
        let resolve = self.resolve.clone();
        Box::pin(async move {
            let call = call.authorize(&*resolve).await?;
            ready.call(call).await.map_err(Into::into)
        })
    }
}

impl<S> fmt::Debug for Authorize<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize")
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn what_is_not_seen_is_not_found_and_inner_is_the_readied_one() {
        let layer = AuthorizeLayer::new(Arc::new(crate::fakes::OneWorkspace));
        let (mut service, mut handle) = mock::spawn_layer(layer);
        handle.allow(2);
        assert_ready_ok!(service.poll_ready());
        let error = service
            .call(testing::decoded("other", None, 0))
            .await
            .expect_err("refused");
        assert_eq!(error.code(), codespace_router::Code::WorkspaceNotFound);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(testing::decoded("demo", None, 0)));
        assert_pending!(call.poll());
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
