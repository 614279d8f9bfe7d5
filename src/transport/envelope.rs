//! Reads a POST's body whole and answers malformed JSON-RPC as JSON-RPC.
//!
//! Sits below authentication, so that a stranger cannot make the server hold a body,
//! and above rmcp, which answers such input with plain text and odd statuses. One
//! borrowed pass over the bytes; what passes is handed on unchanged.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower::{Layer, Service};

use super::{
    http::{Mcp, refusal},
    message::{self, Fault},
    meter,
};

/// A client that sends nothing for this long has stalled.
const STALL: Duration = Duration::from_secs(30);
/// Sessions at once: an idle one costs about 100 KB.
const SESSIONS: usize = 1_000;

/// Checks the body of a POST; other methods pass.
#[derive(Clone)]
pub struct EnvelopeLayer(pub Mcp);

/// See [`EnvelopeLayer`].
#[derive(Clone)]
pub struct Envelope<S> {
    mcp: Mcp,
    inner: S,
}

impl<S> Layer<S> for EnvelopeLayer {
    type Service = Envelope<S>;

    fn layer(&self, inner: S) -> Envelope<S> {
        let mcp = self.0.clone();
        Envelope { mcp, inner }
    }
}

impl<S> Service<Request> for Envelope<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let unready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, unready);
        Box::pin(check(self.mcp.clone(), request, ready))
    }
}

async fn check<S>(mcp: Mcp, request: Request, mut next: S) -> Result<Response, Infallible>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    // Elsewhere nothing is served, by any method.
    if !meter::is_mcp(request.uri().path()) {
        return next.call(request).await;
    }
    if request.method() != Method::POST {
        return if served_without_body(&mcp, request.method()) {
            Ok(in_json(next.call(request).await?, b"").await)
        } else {
            Ok(no_method(&mcp))
        };
    }
    if request
        .headers()
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| coding != "identity")
    {
        return Ok(refusal(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
            "Content-Encoding: bodies are read as they are; send this one uncompressed",
        ));
    }
    let (mut parts, body) = request.into_parts();
    // Who announces too much need not send it, and is not waited for.
    if body.size_hint().lower() > mcp.body_bytes as u64 {
        return Ok(too_large());
    }
    let collected = tokio::time::timeout(STALL, Limited::new(body, mcp.body_bytes).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Ok(too_large());
        }
        Ok(Err(_)) => {
            return Ok(refusal(
                StatusCode::BAD_REQUEST,
                "BODY_BROKEN",
                "the request body ended early; send it again",
            ));
        }
        Err(_) => {
            return Ok(refusal(
                StatusCode::REQUEST_TIMEOUT,
                "BODY_STALLED",
                "the request body did not arrive in time; send it again",
            ));
        }
    };
    match message::check(&bytes) {
        Err(fault) => return Ok(bad_request(&fault)),
        Ok(is_initialize) => {
            if is_initialize && mcp.sessions_full(SESSIONS).await {
                return Ok(refusal(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "TOO_MANY_SESSIONS",
                    "all sessions are taken; end one with DELETE, or wait until idle ones expire",
                ));
            }
        }
    }
    // A client that takes anything takes what we send; rmcp wants both types named.
    let any = parts
        .headers
        .get(header::ACCEPT)
        .is_none_or(|accept| accept == "*/*");
    if any {
        parts.headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
    }
    let request = Request::from_parts(parts, Body::from(bytes.clone()));
    Ok(in_json(next.call(request).await?, &bytes).await)
}

fn too_large() -> Response {
    refusal(
        StatusCode::PAYLOAD_TOO_LARGE,
        "BODY_TOO_LARGE",
        "the request body is larger than server.body_bytes allows; send less at once",
    )
}

fn bad_request(fault: &Fault) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::BAD_REQUEST, json, fault.to_json()).into_response()
}

/// rmcp's refusals in plain text, as the JSON that clients read.
async fn in_json(response: Response, asked: &[u8]) -> Response {
    const UNREADABLE: &str = "fail to deserialize request body ";
    let status = response.status();
    let plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !plain || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = Limited::new(body, 8 * 1024).collect().await;
    let text = text.map(|text| text.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    if let Some(why) = text.strip_prefix(UNREADABLE) {
        return bad_request(&Fault::unreadable(asked, why));
    }
    let code = match status {
        StatusCode::NOT_FOUND => "NOT_FOUND",
        StatusCode::NOT_ACCEPTABLE => "NOT_ACCEPTABLE",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UNSUPPORTED_MEDIA_TYPE",
        status if status.is_server_error() => "INTERNAL",
        _ => "BAD_REQUEST",
    };
    let mut refused = refusal(status, code, text.trim());
    for (name, value) in &parts.headers {
        if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
            refused.headers_mut().append(name, value.clone());
        }
    }
    refused
}

fn served_without_body(mcp: &Mcp, method: &Method) -> bool {
    matches!(*method, Method::GET | Method::DELETE) && mcp.has_sessions()
}

fn no_method(mcp: &Mcp) -> Response {
    let mut response = refusal(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this server keeps no sessions: send every message by POST",
    );
    let allow = if mcp.has_sessions() {
        "GET, POST, DELETE"
    } else {
        "POST"
    };
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}
