//! Refuses a call while another holds its workspace.
//!
//! Stands below hold and detach (who waits for a person holds nothing; who holds cannot
//! be dropped) and above settle, which records under the lease. Never waits. The lease
//! travels in the call and lives as long as the work: whoever ends the work drops it, and
//! dropping a call that nobody took it from frees the workspace. Emits `WORKSPACE_BUSY`
//! and `codespace_workspace_busy_total`.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use codespace_router::{AuthorizedCall, Code, LeaseOwner, Leases, ToolError};
use tower_layer::Layer;
use tower_service::Service;

use crate::{names, refuse::ResponseFuture};

/// Wraps a service in [`Leased`]. See the [module docs](self).
#[derive(Clone)]
pub struct LeaseLayer {
    leases: Arc<dyn Leases>,
    owner: LeaseOwner,
}

/// Runs at most one call per workspace. See the [module docs](self).
#[derive(Clone)]
pub struct Leased<S> {
    inner: S,
    leases: Arc<dyn Leases>,
    owner: LeaseOwner,
}

// === impl LeaseLayer ===

impl LeaseLayer {
    /// Takes leases from `leases`, in the name of `owner`.
    #[must_use]
    pub fn new(leases: Arc<dyn Leases>, owner: LeaseOwner) -> Self {
        Self { leases, owner }
    }
}

impl<S> Layer<S> for LeaseLayer {
    type Service = Leased<S>;

    fn layer(&self, inner: S) -> Leased<S> {
        Leased {
            inner,
            leases: self.leases.clone(),
            owner: self.owner,
        }
    }
}

impl fmt::Debug for LeaseLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLayer")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

// === impl Leased ===

impl<A, S> Service<AuthorizedCall<A>> for Leased<S>
where
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
        let held = call
            .workspace()
            .and_then(|workspace| self.leases.try_hold(workspace, self.owner));
        match held {
            Ok(lease) => {
                call.hold_lease(lease);
                ResponseFuture::running(self.inner.call(call))
            }
            Err(error) => {
                if error.code() == Code::WorkspaceBusy {
                    metrics::counter!(names::WORKSPACE_BUSY, "tool" => call.spec().name)
                        .increment(1);
                }
                ResponseFuture::refused(error)
            }
        }
    }
}

impl<S> fmt::Debug for Leased<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn a_second_call_is_refused_and_a_drop_releases() {
        let leases = crate::fakes::MemoryLeases::default();
        let layer = LeaseLayer::new(Arc::new(leases.clone()), LeaseOwner::Patch);
        let (mut service, mut handle) =
            mock::spawn_layer::<_, codespace_router::ToolReply, _>(layer);
        handle.allow(0);
        assert_pending!(service.poll_ready());
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let first = task::spawn(service.call(testing::authorized(None, 0).await));
        let mut second = task::spawn(service.call(testing::authorized(None, 0).await));
        assert_eq!(assert_ready_err!(second.poll()).code(), Code::WorkspaceBusy);
        let reached = testing::next(&mut handle).await;
        drop(first);
        assert!(
            leases.is_held(&crate::fakes::workspace()),
            "the lease lives in the call"
        );
        drop(reached);
        assert!(!leases.is_held(&crate::fakes::workspace()));
    }
}
