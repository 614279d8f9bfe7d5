//! curl, in each of the ways it can use a proxy.

use serde_json::Value;

use crate::support::{Origin, same};

fn big() -> Vec<u8> {
    (0..8_000_000_u32).map(|n| (n % 251) as u8).collect()
}

#[tokio::test]
async fn every_way_through() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    origin.put("big", big());
    let plain = format!("http://code.test:{}", origin.http);
    let secret = format!("https://code.test:{}", origin.https);
    let socks = format!("{}", proxy.address());
    let file = origin.home().join("got");
    let got = file.to_str().unwrap();
    for arguments in [
        vec!["-f", "-o", got, &format!("{plain}/big")],
        vec!["-f", "-o", got, &format!("{secret}/big")],
        // A tunnel for plain HTTP.
        vec!["-f", "-o", got, "-p", &format!("{plain}/big")],
        vec![
            "-f",
            "-o",
            got,
            "--socks5-hostname",
            &socks,
            &format!("{secret}/big"),
        ],
        vec![
            "-f",
            "-o",
            got,
            "--socks5-hostname",
            &socks,
            &format!("{plain}/big"),
        ],
        vec!["-f", "-o", got, "--http1.0", &format!("{plain}/big")],
    ] {
        let (code, text) = origin.curl(&proxy, &arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {text}");
        assert!(same(&file, &big()), "{arguments:?}");
        std::fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn bodies_of_requests() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let data = origin.home().join("data");
    std::fs::write(&data, big()).unwrap();
    let data = data.to_str().unwrap();
    for (scheme, port) in [("http", origin.http), ("https", origin.https)] {
        let url = format!("{scheme}://code.test:{port}/echo");
        for arguments in [
            // With a length (and Expect: 100-continue), and in chunks.
            vec!["-f", "-T", data, &url],
            vec!["-f", "-T", data, "-H", "Transfer-Encoding: chunked", &url],
        ] {
            let (code, text) = origin.curl(&proxy, &arguments).await;
            assert_eq!(code, 0, "{arguments:?}: {text}");
            let arrived: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(arrived["length"], 8_000_000, "{arguments:?}: {text}");
        }
    }
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let url = format!("http://code.test:{}/echo?[1-3]", origin.http);
    let format = "\n%{num_connects}\n";
    let (code, text) = origin.curl(&proxy, &["-f", "-w", format, &url]).await;
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    // To the proxy: the first one connects.
    assert_eq!([lines[1], lines[3], lines[5]], ["1", "0", "0"]);
    // To the origin: one port of the proxy for all.
    let ports = [lines[0], lines[2], lines[4]].map(|line| {
        let arrived: Value = serde_json::from_str(line).unwrap();
        arrived["port"].as_u64().unwrap()
    });
    assert_eq!(ports, [ports[0]; 3]);
}

#[tokio::test]
async fn what_a_refusal_looks_like() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let (code, text) = origin.curl(&proxy, &["-i", "http://other.test/"]).await;
    assert_eq!(code, 0);
    assert!(
        text.starts_with("HTTP/1.1 403 Refused by workspaces.demo.allow_domains"),
        "{text}"
    );
    let body =
        "codespace proxy: refused: workspaces.demo.allow_domains does not list other.test:80\n";
    assert!(text.ends_with(body), "{text}");

    let (code, text) = origin.curl(&proxy, &["https://other.test/"]).await;
    assert_eq!(code, 56, "{text}");
    assert!(text.contains("403"), "{text}");

    let socks = proxy.address().to_string();
    let arguments = ["--socks5-hostname", &socks, "https://other.test/"];
    let (code, text) = origin.curl(&proxy, &arguments).await;
    assert_eq!(code, 97, "{text}");
}
