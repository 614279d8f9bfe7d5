//! HTTP/2 over the gateway's end of the socket pair, as what the generated client calls.
//!
//! hyper's own connection, without tonic's channel around it: there is one worker, which
//! is never connected to again, so a channel's reconnecting, balancing and queueing would
//! only hide its loss and cost a hop between tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::body::Body;
use tower_service::Service;

// A patch or an output fits without waiting for the other side; the peer is trusted.
pub(crate) const WINDOW: u32 = 8 << 20;
// Beyond all the calls the gateway lets in at once.
pub(crate) const STREAMS: u32 = 1 << 16;
pub(crate) const FRAME: u32 = 1 << 18;

/// The connection itself: to be polled until it ends.
pub(crate) type Driver = http2::Connection<TokioIo<UnixStream>, Body, TokioExecutor>;

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link(SendRequest<Body>);

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct LinkFault {
    /// Whether the worker may have seen it.
    pub(crate) sent: bool,
    cause: hyper::Error,
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker gave no answer: {}", self.cause)
    }
}

impl std::error::Error for LinkFault {}

impl Link {
    pub(crate) async fn new(socket: UnixStream) -> hyper::Result<(Self, Driver)> {
        let (send, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME)
            // Callers that leave reset streams as fast as they like: no attack.
            .max_concurrent_reset_streams(STREAMS as usize)
            .initial_max_send_streams(STREAMS as usize)
            .handshake(TokioIo::new(socket))
            .await?;
        Ok((Self(send), driver))
    }
}

impl Service<Request<Body>> for Link {
    type Response = Response<Incoming>;
    type Error = LinkFault;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, LinkFault>> + Send>>;

    // hyper refuses nothing here but a closed connection, which the call tells better.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkFault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.try_send_request(request);
        Box::pin(async move {
            answer.await.map_err(|mut fault| LinkFault {
                sent: fault.take_message().is_none(),
                cause: fault.into_error(),
            })
        })
    }
}
