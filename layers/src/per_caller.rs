//! Refuses a call when its caller has too many under way.
//!
//! Stands above the router, beside the global limit, so that one caller cannot use the
//! whole of it up. Never waits. The response future owns the place, so an answer or a
//! drop frees it; work that goes on detached is bounded by the workspace leases instead.
//! Keeps nothing of a caller without calls. Emits `LIMIT_EXCEEDED`.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use codespace_router::{Caller, Code, RawCall, ToolError};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

/// Wraps a service in [`CallerLimit`]. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct CallerLimitLayer {
    places: Places,
}

/// Bounds the calls of one caller. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct CallerLimit<S> {
    inner: S,
    places: Places,
}

#[derive(Clone, Debug)]
struct Places {
    max: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

#[derive(Debug)]
struct Place {
    places: Places,
    caller: Caller,
}

pin_project! {
    /// Response future for [`CallerLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: crate::refuse::ResponseFuture<F>,
        place: Option<Place>,
    }
}

// === impl CallerLimitLayer ===

impl CallerLimitLayer {
    /// At most `max` calls of one caller at a time, over every service this layer makes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            places: Places {
                max,
                taken: Arc::default(),
            },
        }
    }
}

impl<S> Layer<S> for CallerLimitLayer {
    type Service = CallerLimit<S>;

    fn layer(&self, inner: S) -> CallerLimit<S> {
        CallerLimit {
            inner,
            places: self.places.clone(),
        }
    }
}

// === impl CallerLimit ===

impl<S> Service<RawCall> for CallerLimit<S>
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
        use crate::refuse::ResponseFuture as Inner;
        let place = self.places.take(&call.caller);
        let inner = match place {
            Some(_) => Inner::running(self.inner.call(call)),
            None => Inner::refused(ToolError::new(
                Code::LimitExceeded,
                "this caller has too many calls at once; wait for one to end, then repeat this one",
            )),
        };
        ResponseFuture { inner, place }
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
        let result = ready!(this.inner.poll(cx));
        // Free before the answer is seen: its reader may call again at once.
        drop(this.place.take());
        Poll::Ready(result)
    }
}

// === impl Places ===

impl Places {
    // Counts are whole after any panic: nothing under the lock can unwind halfway.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, caller: &Caller) -> Option<Place> {
        let mut taken = self.lock();
        match taken.get_mut(caller.subject()) {
            Some(count) if *count >= self.max => return None,
            Some(count) => *count += 1,
            None if self.max == 0 => return None,
            None => drop(taken.insert(caller.subject().to_owned(), 1)),
        }
        Some(Place {
            places: self.clone(),
            caller: caller.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        match taken.get_mut(self.caller.subject()) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(self.caller.subject())),
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
    async fn one_caller_cannot_take_anothers_place() {
        let layer = CallerLimitLayer::new(1);
        let (mut service, mut handle) =
            mock::spawn_layer::<_, codespace_router::ToolReply, _>(layer.clone());
        handle.allow(0);
        assert_pending!(service.poll_ready());
        handle.allow(9);
        assert_ready_ok!(service.poll_ready());
        let first = task::spawn(service.call(testing::raw("toy", "me")));
        let mut second = task::spawn(service.call(testing::raw("toy", "me")));
        assert_eq!(assert_ready_err!(second.poll()).code(), Code::LimitExceeded);
        drop(first);
        assert!(
            layer.places.lock().is_empty(),
            "a dropped call frees its place"
        );
        assert_ready_ok!(service.poll_ready());
        let mut third = task::spawn(service.call(testing::raw("toy", "me")));
        assert_pending!(third.poll());
        assert_eq!(layer.places.lock().len(), 1);
    }
}
