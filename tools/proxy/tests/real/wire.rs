//! What only bytes written by hand can show.

use codespace_proxy::{Limits, ProxyHandle};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::support::{Names, Origin, Raw, proxy_within};

/// A listener that plays `code.test`, and a proxy that leads only there.
pub(crate) async fn played(limits: Limits) -> (TcpListener, u16, ProxyHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rules = [format!("code.test:{port}")];
    let proxy = proxy_within(&rules, &rules, Names::local(&["code.test"]), limits);
    (listener, port, proxy)
}

/// A tunnel: the client's end and the server's.
pub(crate) async fn tunnel(limits: Limits) -> (Raw, TcpStream, ProxyHandle) {
    let (listener, port, proxy) = played(limits).await;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!("CONNECT code.test:{port} HTTP/1.1\r\n\r\n"))
        .await;
    let (server, _) = listener.accept().await.unwrap();
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 200"));
    (raw, server, proxy)
}

/// A plain request for `code.test`.
pub(crate) fn get(port: u16) -> String {
    format!("GET http://code.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n")
}

/// Reads the head of a request as the origin.
pub(crate) async fn head(server: &mut TcpStream) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        assert!(server.read_buf(&mut seen).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn the_url_rules_and_hop_by_hop_headers_stay() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let port = origin.http;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!(
        "GET http://user:word@CODE.test.:{port}/echo?a=b HTTP/1.1\r\nHost: other.test\r\n\
         Connection: keep-alive, x-secret\r\nX-Secret: 1\r\nX-Kept: 2\r\n\
         Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\r\n"
    ))
    .await;
    let (head, body) = raw.answer().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(!head.to_lowercase().contains("x-hop"), "{head}");
    let arrived: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(arrived["request"], "GET /echo?a=b HTTP/1.1");
    let mut headers: Vec<_> = arrived["headers"].as_object().unwrap().iter().collect();
    headers.sort_by_key(|(name, _)| *name);
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let host = format!("host: \"code.test:{port}\"");
    assert_eq!(headers, [&host, "via: \"1.1 codespace\"", "x-kept: \"2\""]);

    // The next one on the same connection is judged anew.
    raw.send("GET http://other.test/ HTTP/1.1\r\nHost: code.test\r\n\r\n")
        .await;
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 403"));
    raw.send(format!(
        "GET http://code.test:{port}/echo HTTP/1.1\r\nHost: x\r\n\r\n"
    ))
    .await;
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn two_lengths_are_one_or_none() {
    let (listener, port, proxy) = played(Limits::default()).await;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!(
        "POST http://code.test:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\
         Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ))
    .await;
    let arrived = async {
        let (mut server, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"0\r\n\r\n") {
            assert!(server.read_buf(&mut seen).await.unwrap() > 0);
        }
        String::from_utf8(seen).unwrap().to_lowercase()
    };
    // hyper may refuse it as well as forward it; two lengths must not arrive.
    tokio::select! {
        arrived = arrived => assert!(!arrived.contains("content-length"), "{arrived}"),
        (head, _) = raw.answer() => assert!(head.starts_with("HTTP/1.1 400"), "{head}"),
    }
}

#[tokio::test]
async fn requests_that_are_none() {
    let (_listener, port, proxy) = played(Limits::default()).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: code.test\r\n\r\n".to_owned(),
        format!("GET https://code.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
        "GET ftp://code.test/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "CONNECT code.test HTTP/1.1\r\n\r\n".to_owned(),
        "CONNECT code.test:0 HTTP/1.1\r\n\r\n".to_owned(),
        "GET http://127.1/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "GET http://0x7f000001/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "GET http://a%2eb/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "G\u{0}T / HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let mut raw = Raw::connect(proxy.address()).await;
        raw.send(&request).await;
        let (head, _) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 400"), "{request:?}: {head}");
    }
    // HTTP/2 without asking: the client reads no HTTP/1 answer, the end is enough.
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(raw.rest().await, b"");
}

#[tokio::test]
async fn data_sent_before_the_tunnel_stands() {
    let (listener, port, proxy) = played(Limits::default()).await;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!("CONNECT code.test:{port} HTTP/1.1\r\n\r\nearly "))
        .await;
    raw.send("late").await;
    raw.0.get_mut().shutdown().await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "early late");
    // The other direction still works: each side ends its own.
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 200"));
    assert_eq!(raw.rest().await, b"answer");
}

#[tokio::test]
async fn a_client_that_ends_its_side_after_a_plain_request() {
    let (listener, port, proxy) = played(Limits::default()).await;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(get(port)).await;
    raw.0.get_mut().shutdown().await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    head(&mut server).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await
        .unwrap();
    assert_eq!(raw.answer().await.1, "ok");
}

#[tokio::test]
async fn an_origin_that_closed_the_kept_connection() {
    let (listener, port, proxy) = played(Limits::default()).await;
    let closed = Notify::new();
    let origin = async {
        for _ in 0..3 {
            let (mut server, _) = listener.accept().await.unwrap();
            head(&mut server).await;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            server.write_all(answer).await.unwrap();
            drop(server);
            closed.notify_one();
        }
    };
    let client = async {
        let mut raw = Raw::connect(proxy.address()).await;
        for _ in 0..3 {
            raw.send(get(port)).await;
            assert_eq!(raw.answer().await.1, "ok");
            closed.notified().await;
        }
    };
    tokio::join!(origin, client);
}

/// A reader that stops stops the writer: nothing piles up in between.
#[tokio::test]
async fn an_origin_that_speaks_no_http() {
    let (listener, port, proxy) = played(Limits::default()).await;
    for answer in [
        "SSH-2.0-x\r\n\r\n",
        "",
        "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    ] {
        let mut raw = Raw::connect(proxy.address()).await;
        raw.send(get(port)).await;
        let (mut server, _) = listener.accept().await.unwrap();
        head(&mut server).await;
        server.write_all(answer.as_bytes()).await.unwrap();
        server.shutdown().await.unwrap();
        let (head, _) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 502"), "{answer:?}: {head}");
    }
}

#[test]
fn outside_of_a_runtime() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let policy = codespace_proxy::Policy::parse("demo", [""; 0], [""; 0]).unwrap();
    let served = codespace_proxy::Proxy::serve(listener, policy.into(), Names::local(&[]));
    assert!(served.is_err());
}

#[test]
fn the_variables() {
    let variables = ProxyHandle::environment("127.0.0.1:3128".parse().unwrap());
    let mut names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "ALL_PROXY",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "all_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    ];
    assert_eq!(names, expected);
    for (name, value) in &variables {
        let none = name.eq_ignore_ascii_case("no_proxy");
        assert_eq!(value, if none { "" } else { "http://127.0.0.1:3128" });
    }
}
