//! Turns an HTTP request into one with a `Caller`, or answers 401.
//!
//! Innermost at the HTTP edge: size, rate and Host are checked before a secret is looked
//! at, and nothing of MCP runs without a caller. A presented token is hashed and compared
//! with every known digest, in constant time and without an early end. The token is never
//! logged, and is taken out of the request once it is known. Two `Authorization` headers
//! are malformed: no proxy and no server must disagree on which one counts. A drop drops
//! the inner call. Emits `codespace_auth_failures_total` by `reason`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use codespace_router::{Authentication, Caller, Scopes};
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use pin_project_lite::pin_project;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tower_layer::Layer;
use tower_service::Service;

use crate::names;

/// Wraps a service in [`Authenticate`]. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct AuthenticateLayer {
    authenticator: Authenticator,
}

/// Lets through requests of known callers. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct Authenticate<S> {
    inner: S,
    authenticator: Authenticator,
}

/// How callers are known. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Authenticator {
    /// Whoever reaches the listener is the anonymous caller.
    None,
    /// Whoever has one of these tokens.
    Bearer(Arc<[Token]>),
}

/// A bearer token, known by its digest only.
#[derive(Clone)]
pub struct Token {
    digest: [u8; 32],
    caller: Caller,
}

pin_project! {
    /// Response future for [`Authenticate`].
    #[derive(Debug)]
    #[allow(missing_docs, reason = "pin_project takes no docs on a pinned field")]
    #[project = Step]
    pub enum ResponseFuture<F, R> {
        /// The caller is known.
        Running {
            #[pin]
            inner: F,
        },
        /// It is not.
        Refused {
            response: Option<R>,
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Missing,
    Malformed,
    Unknown,
}

// === impl Token ===

impl Token {
    /// The token named `name`, which scopes its operation keys, whose SHA-256 is `digest`.
    /// `workspaces: None` means every one.
    #[must_use]
    pub fn new(
        name: &str,
        digest: [u8; 32],
        scopes: Scopes,
        workspaces: Option<Vec<String>>,
    ) -> Self {
        let caller = Caller::new(name.to_owned(), scopes, workspaces, Authentication::Bearer);
        Self { digest, caller }
    }
}

impl fmt::Debug for Token {
    // The digest of a weak token can be guessed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.caller.subject())
            .finish_non_exhaustive()
    }
}

// === impl Authenticator ===

impl Authenticator {
    /// Callers known by these tokens.
    #[must_use]
    pub fn bearer(tokens: Vec<Token>) -> Self {
        Self::Bearer(tokens.into())
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Failure> {
        match self {
            Authenticator::None => Ok(Caller::anonymous()),
            Authenticator::Bearer(tokens) => {
                find(tokens, presented(headers)?).ok_or(Failure::Unknown)
            }
        }
    }
}

// RFC 6750, section 2.1: one header, the scheme in any case, one token.
fn presented(headers: &HeaderMap) -> Result<&[u8], Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Failure::Missing)?;
    if values.next().is_some() {
        return Err(Failure::Malformed);
    }
    let (scheme, token) = value
        .as_bytes()
        .split_at_checked("Bearer ".len())
        .ok_or(Failure::Malformed)?;
    let token = token.trim_ascii();
    let is_token = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
    if scheme.eq_ignore_ascii_case(b"bearer ") && is_token {
        Ok(token)
    } else {
        Err(Failure::Malformed)
    }
}

fn find(tokens: &[Token], presented: &[u8]) -> Option<Caller> {
    let digest: [u8; 32] = Sha256::digest(presented).into();
    let mut known = Choice::from(0);
    let mut index = 0_u64;
    for (at, token) in (0_u64..).zip(tokens) {
        let same = token.digest.ct_eq(&digest);
        index.conditional_assign(&at, same);
        known |= same;
    }
    let token = tokens.get(usize::try_from(index).ok()?)?;
    bool::from(known).then(|| token.caller.clone())
}

// === impl Failure ===

impl Failure {
    const fn as_str(self) -> &'static str {
        match self {
            Failure::Missing => "missing",
            Failure::Malformed => "malformed",
            Failure::Unknown => "unknown",
        }
    }

    fn response<R: From<String>>(self) -> Response<R> {
        metrics::counter!(names::AUTH_FAILURES, "reason" => self.as_str()).increment(1);
        // RFC 6750, section 3.1: no error code for a request without credentials.
        let (challenge, message) = match self {
            Failure::Missing => (
                "Bearer",
                "send Authorization: Bearer with a token of this server",
            ),
            Failure::Malformed => (
                "Bearer error=\"invalid_request\"",
                "send one Authorization header, the word Bearer, a space and a token",
            ),
            Failure::Unknown => (
                "Bearer error=\"invalid_token\"",
                "this server does not know the token",
            ),
        };
        let body = serde_json::json!({ "code": "UNAUTHENTICATED", "message": message });
        let mut response = Response::new(R::from(body.to_string()));
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        let headers = response.headers_mut();
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

// === impl AuthenticateLayer ===

impl AuthenticateLayer {
    /// Knows callers by `authenticator`.
    #[must_use]
    pub fn new(authenticator: Authenticator) -> Self {
        Self { authenticator }
    }
}

impl<S> Layer<S> for AuthenticateLayer {
    type Service = Authenticate<S>;

    fn layer(&self, inner: S) -> Authenticate<S> {
        Authenticate {
            inner,
            authenticator: self.authenticator.clone(),
        }
    }
}

// === impl Authenticate ===

impl<S, B, R> Service<Request<B>> for Authenticate<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, Response<R>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.authenticator.caller(request.headers()) {
            Ok(caller) => {
                request.headers_mut().remove(AUTHORIZATION);
                request.extensions_mut().insert(caller);
                ResponseFuture::Running {
                    inner: self.inner.call(request),
                }
            }
            Err(failure) => ResponseFuture::Refused {
                response: Some(failure.response()),
            },
        }
    }
}

// === impl ResponseFuture ===

impl<F, R, E> Future for ResponseFuture<F, R>
where
    F: Future<Output = Result<R, E>>,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Step::Running { inner } => inner.poll(cx),
            Step::Refused { response } => {
                Poll::Ready(Ok(response.take().expect("future polled after completion")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_ready_ok, task};
    use tower_test::mock;

    use super::*;

    #[tokio::test]
    async fn knows_its_tokens_and_refuses_the_rest() {
        let tokens = ["one", "two"].map(|name| {
            Token::new(
                name,
                Sha256::digest(format!("s-{name}")).into(),
                Scopes::all(),
                None,
            )
        });
        let layer = AuthenticateLayer::new(Authenticator::bearer(tokens.into()));
        let (mut service, mut handle) =
            mock::spawn_layer::<Request<()>, Response<String>, _>(layer);
        handle.allow(9);
        for (headers, reason) in [
            (&[][..], "send Authorization"),
            (&["Bearer nope"], "does not know"),
            (&["Basic s-one"], "send one"),
            (&["Bearer "], "send one"),
            (&["Bearer s-one", "Bearer s-one"], "send one"),
        ] {
            let mut request = Request::new(());
            for value in headers {
                request
                    .headers_mut()
                    .append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            assert_ready_ok!(service.poll_ready());
            let refused = assert_ready_ok!(task::spawn(service.call(request)).poll());
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
            assert!(refused.headers().contains_key(WWW_AUTHENTICATE));
            assert!(
                refused.body().contains(reason),
                "{headers:?}: {}",
                refused.body()
            );
        }
        let mut request = Request::new(());
        request
            .headers_mut()
            .insert(AUTHORIZATION, HeaderValue::from_static("bearer s-two"));
        assert_ready_ok!(service.poll_ready());
        let _call = task::spawn(service.call(request));
        let (seen, _answer) = handle.next_request().await.expect("a request");
        assert_eq!(
            seen.extensions().get::<Caller>().map(Caller::subject),
            Some("two")
        );
        assert!(!seen.headers().contains_key(AUTHORIZATION));
    }
}
