//! A plain request on its way to the origin, and the answer on its way back.

use http_body_util::Either;
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{
        CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use super::{Body, Client, put, taken, text};
use crate::{
    host::Target,
    relay::{Activity, Watched},
};

/// A connection to an origin. Its driver is a task that ends with it.
pub(super) struct Origin {
    target: Target,
    requests: SendRequest<Incoming>,
    _driver: JoinSet<()>,
}

impl Origin {
    async fn new(target: Target, stream: TcpStream, activity: Activity) -> hyper::Result<Self> {
        let io = TokioIo::new(Watched::new(stream, activity));
        let (requests, connection) = http1::handshake(io).await?;
        let mut driver = JoinSet::new();
        // How it ends, the one who waits for the answer or its body is told.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self {
            target,
            requests,
            _driver: driver,
        })
    }
}

impl Client {
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        target: Target,
    ) -> Response<Body> {
        let mut request = match rewritten(request, &target) {
            Ok(request) => request,
            Err(rule) => return super::malformed(rule),
        };
        // The kept connection first. The origin may have closed it in the meantime: then the
        // request comes back unsent, and goes out on a new one.
        if let Some(mut origin) = taken(&self.origin)
            && origin.target == target
            && origin.requests.ready().await.is_ok()
        {
            match origin.requests.try_send_request(request).await {
                Ok(response) => return self.returned(response, origin),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return no_answer(&target),
                },
            }
        }
        let stream = match self.dialer.dial(&target).await {
            Ok(stream) => stream,
            Err(refusal) => return self.refused(&target, refusal),
        };
        let Ok(mut origin) = Origin::new(target.clone(), stream, self.activity.clone()).await
        else {
            return no_answer(&target);
        };
        match origin.requests.send_request(request).await {
            Ok(response) => self.returned(response, origin),
            Err(_) => no_answer(&target),
        }
    }

    /// The origin's answer as the client's. The connection stays with the client, whose
    /// end is the end of it and of a body that is still on its way.
    fn returned(&self, response: Response<Incoming>, origin: Origin) -> Response<Body> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return no_answer(&origin.target);
        }
        put(&self.origin, origin);
        let mut response = response.map(Either::Left);
        end_to_end(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        response
    }
}

fn no_answer(target: &Target) -> Response<Body> {
    text(
        StatusCode::BAD_GATEWAY,
        format!("codespace proxy: {target}: no valid HTTP answer\n"),
    )
}

/// The request as its origin gets it: in origin form, with the `Host` of its target.
fn rewritten(
    mut request: Request<Incoming>,
    target: &Target,
) -> Result<Request<Incoming>, &'static str> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
    *request.version_mut() = Version::HTTP_11;
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let host = match target.port {
        80 => target.host.to_string(),
        _ => target.to_string(),
    };
    let host = HeaderValue::try_from(host).map_err(|_| "the host is no header value")?;
    let headers = request.headers_mut();
    end_to_end(headers);
    // hyper has answered it: the client sends its body without waiting for the origin.
    headers.remove(EXPECT);
    if chunked {
        // One length, so that no two readers disagree on where a body ends.
        headers.remove(CONTENT_LENGTH);
    }
    headers.insert(HOST, host);
    Ok(request)
}

/// Removes what is between two neighbours only (RFC 9110, 7.6.1), and leaves this hop's mark.
fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        // Framing is not the client's to take away.
        .filter(|name| name != CONTENT_LENGTH && name != HOST)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ] {
        headers.remove(name);
    }
    headers.append(VIA, HeaderValue::from_static("1.1 codespace"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-One, content-length"),
            ("connection", "x-two,,\u{e9}"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("content-length", "5"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("via", "1.0 before"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        end_to_end(&mut headers);
        let mut left: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        left.sort();
        let expected = [
            "content-length: 5",
            "via: 1.0 before",
            "via: 1.1 codespace",
            "x-three: 3",
        ];
        assert_eq!(left, expected);
    }
}
