//! The HTTP side: `CONNECT`, and plain requests in absolute form (RFC 9110, 9112).
//!
//! hyper reads and writes both sides. What a client calls its host is taken from the
//! request's target and from nowhere else: the `Host` header is written anew from it, so
//! that it cannot name another. A plain request's connection to its origin is kept for the
//! client's next request to the same origin; nothing is shared between clients.

mod forward;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    ext::ReasonPhrase,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    decision::Decision,
    dial::{Dialer, Refusal},
    host::Target,
    relay::{Activity, Watched, relay},
    serve::Limits,
};

use forward::Origin;

type Body = Either<Incoming, Full<Bytes>>;

/// What the requests of one client connection share.
struct Client {
    dialer: Arc<Dialer>,
    activity: Activity,
    /// Where the last plain request went, if its connection can take another.
    origin: Mutex<Option<Origin>>,
    /// Set by the `CONNECT` that ends the HTTP part of the connection.
    tunnel: Mutex<Option<(OnUpgrade, TcpStream)>>,
}

/// Serves one connection that began with a letter.
pub(crate) async fn serve(
    stream: TcpStream,
    dialer: &Arc<Dialer>,
    activity: &Activity,
    limits: Limits,
) {
    let client = Arc::new(Client {
        dialer: Arc::clone(dialer),
        activity: activity.clone(),
        origin: Mutex::default(),
        tunnel: Mutex::default(),
    });
    let service = service_fn(|request| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        // hyper panics below its own smallest buffer.
        .max_buf_size(limits.head_bytes.max(8192))
        // A client that has said all of its request may close its side and wait.
        .half_close(true)
        .serve_connection(
            TokioIo::new(Watched::new(stream, activity.clone())),
            service,
        )
        .with_upgrades()
        .await;
    // hyper has answered such a request itself.
    if served.is_err_and(|error| error.is_parse()) {
        Decision::Malformed.count();
    }
    let tunnel = taken(&client.tunnel);
    if let Some((upgrade, mut server)) = tunnel
        && let Ok(upgraded) = upgrade.await
        && let Ok(parts) = upgraded.downcast::<TokioIo<Watched>>()
        // What the client sent without waiting for the answer is the tunnel's first data.
        && server.write_all(&parts.read_buf).await.is_ok()
    {
        relay(parts.io.into_inner().into_inner(), server, activity).await;
    }
}

fn taken<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn put<T>(slot: &Mutex<Option<T>>, value: T) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

impl Client {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if request.method() == Method::CONNECT {
            return self.connect(request).await;
        }
        let uri = request.uri();
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) => {
                // Credentials in a URL are the client's to turn into a header.
                let host = authority.as_str();
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                match Target::parse(host, Some(80)) {
                    Ok(target) => self.forward(request, target).await,
                    Err(rule) => malformed(rule),
                }
            }
            (Some(_), _) => malformed("only http:// is forwarded; all else goes through CONNECT"),
            (None, _) => malformed("this is a proxy: the target of a request is a whole URL"),
        }
    }

    async fn connect(&self, mut request: Request<Incoming>) -> Response<Body> {
        let target = match request.uri().authority() {
            Some(authority) => Target::parse(authority.as_str(), None),
            None => Err("the target of CONNECT is host:port"),
        };
        let target = match target {
            Ok(target) => target,
            Err(rule) => return malformed(rule),
        };
        match self.dialer.dial(&target).await {
            Ok(server) => {
                put(&self.tunnel, (hyper::upgrade::on(&mut request), server));
                Response::new(Either::Right(Full::default()))
            }
            Err(refusal) => self.refused(&target, refusal),
        }
    }

    fn refused(&self, target: &Target, refusal: Refusal) -> Response<Body> {
        let status = match refusal {
            Refusal::Name | Refusal::Address => StatusCode::FORBIDDEN,
            Refusal::Unknown | Refusal::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Refusal::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        };
        let mut response = text(status, self.dialer.explain(target, refusal));
        // Of a refused CONNECT many clients show the status line and no body.
        if let Some(key) = self.dialer.key(refusal)
            && let Ok(reason) = ReasonPhrase::try_from(format!("Refused by {key}").into_bytes())
        {
            response.extensions_mut().insert(reason);
        }
        response
    }
}

fn malformed(rule: &str) -> Response<Body> {
    Decision::Malformed.count();
    text(
        StatusCode::BAD_REQUEST,
        format!("codespace proxy: {rule}\n"),
    )
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
