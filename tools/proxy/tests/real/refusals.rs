//! What must not get through, whichever protocol asks.

use std::sync::{Arc, atomic::Ordering};

use codespace_proxy::{CONNECTIONS_TOTAL, Decision, Limits, ProxyHandle};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::net::TcpListener;

use crate::support::{Names, Raw, proxy, proxy_within};

/// The status of an HTTP answer to CONNECT and to a plain request, and SOCKS5's reply.
async fn asked(proxy: &ProxyHandle, host: &str, port: u16) -> (String, String, u8) {
    let status = async |request: String| {
        let mut raw = Raw::connect(proxy.address()).await;
        raw.send(request).await;
        raw.answer().await.0[9..12].to_owned()
    };
    let connect = status(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n")).await;
    let plain = status(format!(
        "GET http://{host}:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    ))
    .await;
    let mut raw = Raw::connect(proxy.address()).await;
    let name = [&[5, 1, 0, 5, 1, 0, 3, host.len() as u8], host.as_bytes()].concat();
    raw.send([&name[..], &port.to_be_bytes()].concat()).await;
    let reply = raw.rest().await;
    assert_eq!(reply[..2], [5, 0]);
    (connect, plain, reply[3])
}

/// A port of the loopback on which no connection may ever arrive.
struct Guarded(TcpListener);

impl Guarded {
    async fn new() -> (Self, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (Self(listener), port)
    }

    async fn assert_untouched(self) {
        // A connection of the test's own: were there an earlier one, it would come first.
        let own = Raw::connect(self.0.local_addr().unwrap()).await;
        let (_, first) = self.0.accept().await.unwrap();
        assert_eq!(first, own.0.get_ref().local_addr().unwrap());
    }
}

#[tokio::test]
async fn a_name_that_is_not_listed_or_a_port() {
    let (guarded, port) = Guarded::new().await;
    let names = Names::local(&["code.test", "other.test"]);
    let allow = [format!("code.test:{port}")];
    let proxy = proxy(&allow, &allow, Arc::clone(&names));
    let refused = ("403".to_owned(), "403".to_owned(), 2);
    assert_eq!(asked(&proxy, "other.test", port).await, refused);
    assert_eq!(asked(&proxy, "code.test", port ^ 1).await, refused);
    assert_eq!(asked(&proxy, "127.0.0.1", port).await, refused);
    assert_eq!(asked(&proxy, "[::1]", port).await, refused);
    assert_eq!(asked(&proxy, "localhost", port).await, refused);
    assert_eq!(names.asked.load(Ordering::SeqCst), 0);
    guarded.assert_untouched().await;
}

#[tokio::test]
async fn a_listed_name_that_leads_home() {
    let (guarded, port) = Guarded::new().await;
    let mut names = Names::default();
    let own = nix::ifaddrs::getifaddrs().unwrap();
    let own: Vec<String> = own
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip().to_string()))
        .collect();
    let mut hosts = vec![
        ("a.test".to_owned(), "127.0.0.1".to_owned()),
        ("b.test".to_owned(), "::ffff:127.0.0.1".to_owned()),
        ("c.test".to_owned(), "0.0.0.0".to_owned()),
        ("d.test".to_owned(), "169.254.169.254".to_owned()),
        ("e.test".to_owned(), "::1".to_owned()),
    ];
    let own = own.into_iter().enumerate();
    hosts.extend(own.map(|(n, address)| (format!("own{n}.test"), address)));
    for (host, address) in &hosts {
        names.add(host, &[address]);
    }
    let allow: Vec<String> = hosts
        .iter()
        .map(|(host, _)| format!("{host}:{port}"))
        .collect();
    let allow = [&allow[..], &[format!("127.0.0.1:{port}")]].concat();
    let proxy = proxy(&allow, &[], Arc::new(names));
    let refused = ("403".to_owned(), "403".to_owned(), 2);
    for (host, address) in &hosts {
        assert_eq!(asked(&proxy, host, port).await, refused, "{address}");
    }
    assert_eq!(asked(&proxy, "127.0.0.1", port).await, refused);
    guarded.assert_untouched().await;
}

#[tokio::test]
async fn a_name_server_that_changes_its_mind() {
    let (guarded, port) = Guarded::new().await;
    let mut names = Names::default();
    // Global by its form, and routed nowhere: a NAT64 address. The first question is
    // answered with it, all others with the loopback.
    names.add("re.test", &["64:ff9b::808:808"]);
    names.add("re.test", &["127.0.0.1"]);
    let names = Arc::new(names);
    let allow = [format!("re.test:{port}")];
    let limits = Limits {
        dial: std::time::Duration::from_millis(500),
        ..Limits::default()
    };
    let proxy = proxy_within(&allow, &[], Arc::clone(&names), limits);
    let mut raw = Raw::connect(proxy.address()).await;
    raw.send(format!("CONNECT re.test:{port} HTTP/1.1\r\n\r\n"))
        .await;
    let (head, _) = raw.answer().await;
    assert!(
        head.starts_with("HTTP/1.1 502") || head.starts_with("HTTP/1.1 504"),
        "{head}"
    );
    assert_eq!(names.asked.load(Ordering::SeqCst), 1);
    let refused = ("403".to_owned(), "403".to_owned(), 2);
    assert_eq!(asked(&proxy, "re.test", port).await, refused);
    assert_eq!(names.asked.load(Ordering::SeqCst), 4);
    guarded.assert_untouched().await;
}

#[tokio::test]
async fn an_unknown_name_and_a_closed_port() {
    let port = Guarded::new().await.1;
    let allow = ["none.test", "code.test"].map(|host| format!("{host}:{port}"));
    let proxy = proxy(&allow, &allow, Names::local(&["code.test"]));
    let unknown = ("502".to_owned(), "502".to_owned(), 4);
    assert_eq!(asked(&proxy, "none.test", port).await, unknown);
    let closed = ("502".to_owned(), "502".to_owned(), 5);
    assert_eq!(asked(&proxy, "code.test", port).await, closed);
}

/// A recorder is of a thread, so the runtime is too.
#[test]
fn decisions_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let (guarded, port) = Guarded::new().await;
            let rule = |host: &str| format!("{host}:{port}");
            let allow = ["home.test", "none.test"].map(rule);
            let names = Names::local(&["code.test", "home.test"]);
            let open = Guarded::new().await;
            let code = format!("code.test:{}", open.1);
            let allow = [&allow[..], std::slice::from_ref(&code)].concat();
            let proxy = proxy(&allow, &[code], names);
            asked(&proxy, "home.test", port).await;
            asked(&proxy, "other.test", port).await;
            asked(&proxy, "none.test", port).await;
            for request in [
                "GET / HTTP/1.1\r\n\r\n",
                "NO\x01SENSE\r\n\r\n",
                "\x16\x03\x01",
                "\x04",
            ] {
                let mut raw = Raw::connect(proxy.address()).await;
                raw.send(request).await;
                raw.0.get_mut().set_zero_linger().unwrap();
                let mut byte = [0];
                let _ = tokio::io::AsyncReadExt::read(&mut raw.0, &mut byte).await;
            }
            guarded.assert_untouched().await;
            let mut raw = Raw::connect(proxy.address()).await;
            raw.send(format!("CONNECT code.test:{} HTTP/1.1\r\n\r\n", open.1))
                .await;
            assert!(raw.answer().await.0.starts_with("HTTP/1.1 200"));
            proxy.stop().await;
        });
    });
    let mut counts: Vec<(String, u64)> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == CONNECTIONS_TOTAL)
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| label.value().to_owned())
                .collect();
            let DebugValue::Counter(count) = value else {
                panic!("not a counter")
            };
            (labels.join(","), count)
        })
        .collect();
    counts.sort();
    let expected = [
        (Decision::Allowed, 1),
        (Decision::DeniedAddress, 3),
        (Decision::DeniedName, 3),
        (Decision::Failed, 3),
        (Decision::Malformed, 4),
    ];
    assert_eq!(
        counts,
        expected.map(|(decision, count)| (decision.as_str().to_owned(), count))
    );
}
