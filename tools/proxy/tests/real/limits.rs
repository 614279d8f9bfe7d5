//! What one proxy spends, and that it ends.

use std::time::Duration;

use codespace_proxy::Limits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    support::Raw,
    wire::{get, head, played, tunnel},
};

#[tokio::test]
async fn a_head_without_end() {
    let limits = Limits {
        head_bytes: 8192,
        ..Limits::default()
    };
    let (_listener, _, proxy) = played(limits).await;
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!(
        "{:x<8192}",
        "GET http://code.test/ HTTP/1.1\r\nX: "
    ))
    .await;
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_client_that_does_not_read() {
    const MOST: usize = 64 << 20;
    let chunk = vec![b'x'; 1 << 20];
    for method in ["CONNECT", "GET"] {
        let (listener, port, proxy) = played(Limits::default()).await;
        let mut raw = Raw::connect(proxy.address()).await;
        match method {
            "GET" => {
                raw.send(get(port).replace("Host: x", "Connection: close"))
                    .await
            }
            _ => {
                raw.send(format!("CONNECT code.test:{port} HTTP/1.1\r\n\r\n"))
                    .await
            }
        }
        let (mut server, _) = listener.accept().await.unwrap();
        if method == "GET" {
            head(&mut server).await;
            let answer = format!("HTTP/1.1 200 OK\r\nX-Length: {MOST}\r\n\r\n");
            server.write_all(answer.as_bytes()).await.unwrap();
        }
        let mut sent = 0;
        // A write that takes this long waits for the reader; one that only seems to ends the
        // loop early, which does no harm.
        while let Ok(written) = timeout(Duration::from_millis(500), server.write(&chunk)).await {
            sent += written.unwrap();
            assert!(sent < MOST, "{method}");
        }
        drop(server);
        assert!(raw.answer().await.0.starts_with("HTTP/1.1 200"));
        let got = raw.rest().await;
        let got = got.iter().filter(|byte| **byte == b'x').count();
        assert_eq!(got, sent, "{method}");
    }
}

#[tokio::test]
async fn the_drop_of_the_handle_ends_everything() {
    let (mut raw, mut server, proxy) = tunnel(Limits::default()).await;
    let address = proxy.address();
    let mut idle = Raw::connect(address).await;
    drop(proxy);
    assert_eq!(raw.rest().await, b"");
    assert_eq!(idle.rest().await, b"");
    assert_eq!(server.read(&mut [0]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_client_that_says_nothing_or_half() {
    let limits = Limits {
        head: Duration::from_millis(50),
        ..Limits::default()
    };
    let (_listener, _, proxy) = played(limits).await;
    for start in [
        "",
        "GET http://code.test/ HTTP/1.1\r\nHo",
        "\x05\x01",
        "\x05\x01\x00\x05",
    ] {
        let mut raw = Raw::connect(proxy.address()).await;
        raw.send(start).await;
        // It ends: without the limit this would wait for ever.
        raw.rest().await;
    }
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_moves() {
    let limits = Limits {
        idle: Duration::from_millis(500),
        ..Limits::default()
    };
    let (mut raw, mut server, _proxy) = tunnel(limits).await;
    assert_eq!(raw.rest().await, b"");
    assert_eq!(server.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn more_connections_than_the_limit_wait() {
    let limits = Limits {
        connections: 1,
        ..Limits::default()
    };
    let (raw, server, proxy) = tunnel(limits).await;
    let mut second = Raw::connect(proxy.address()).await;
    second.send("CONNECT other.test:443 HTTP/1.1\r\n\r\n").await;
    let answer = second.answer();
    tokio::pin!(answer);
    tokio::select! {
        _ = &mut answer => panic!("served beyond the limit"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    drop((raw, server));
    assert!(answer.await.0.starts_with("HTTP/1.1 403"));
}
