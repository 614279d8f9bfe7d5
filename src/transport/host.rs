//! Host and Origin: what a browser may be tricked into, every listener refuses.
//!
//! A page of an attacker can point its own name at 127.0.0.1 (DNS rebinding); its
//! requests then carry that name in `Host`. Loopback names are always allowed, others
//! only from the config.

use std::{ops::ControlFlow, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode, Uri, header},
    response::Response,
};

use super::{http::refusal, step::Step};
use crate::config::Public;

/// Refuses a request whose Host or Origin is not ours with 403.
#[derive(Clone)]
pub struct Names(pub Arc<Public>);

impl Step for Names {
    type Kept = ();

    fn before(&self, request: &Request) -> ControlFlow<Response> {
        match fault(&self.0, request.headers(), request.uri()) {
            None => ControlFlow::Continue(()),
            Some(message) => {
                ControlFlow::Break(refusal(StatusCode::FORBIDDEN, "FORBIDDEN", message))
            }
        }
    }

    fn after(&self, (): (), _: &mut Response) {}
}

fn fault(public: &Public, headers: &HeaderMap, uri: &Uri) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    // HTTP/2 has the authority in the URI.
    let host = hosts.next().map_or_else(
        || uri.authority().map(|authority| authority.as_str()),
        |value| value.to_str().ok(),
    );
    // An absolute request target outweighs Host (RFC 9112, section 3.2.2), so both must be ours.
    let target = uri.authority().map(|authority| authority.as_str());
    if hosts.next().is_some()
        || !host.is_some_and(|host| allows_host(public, host))
        || !target.is_none_or(|target| allows_host(public, target))
    {
        return Some(
            "this Host is not served; its operator can add it to server.allowed_hosts or set server.public_url",
        );
    }
    for origin in headers.get_all(header::ORIGIN) {
        if !origin
            .to_str()
            .is_ok_and(|origin| allows_origin(public, origin))
        {
            return Some("this Origin may not call; its operator can set server.public_url");
        }
    }
    None
}

fn allows_host(public: &Public, host: &str) -> bool {
    let (name, _) = split_port(host);
    is_loopback(name)
        || public.hosts.iter().any(|allowed| {
            let (allowed_name, port) = split_port(allowed);
            if port.is_some() {
                allowed.eq_ignore_ascii_case(host)
            } else {
                allowed_name.eq_ignore_ascii_case(name)
            }
        })
}

fn allows_origin(public: &Public, origin: &str) -> bool {
    let local = origin.split_once("://").is_some_and(|(scheme, authority)| {
        matches!(scheme, "http" | "https") && is_loopback(split_port(authority).0)
    });
    local
        || public
            .origins
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(origin))
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (name, Some(port))
        }
        _ => (host, None),
    }
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || matches!(name, "127.0.0.1" | "[::1]" | "::1")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn refused(public: &Public, host: &'static str, origin: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        }
        fault(public, &headers, &Uri::from_static("/mcp")).is_some()
    }

    #[test]
    fn loopback_and_configured_names_pass_and_nothing_else() {
        let public = Public {
            hosts: vec!["code.example.com".into(), "other.example.com:8443".into()],
            origins: vec!["https://code.example.com".into()],
            prefix: String::new(),
        };
        for host in [
            "localhost",
            "127.0.0.1:8787",
            "[::1]:8787",
            "code.example.com",
            "CODE.example.com:443",
            "other.example.com:8443",
        ] {
            assert!(!refused(&public, host, None), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "other.example.com:1",
            "localhost.evil.example",
            "a@127.0.0.1",
        ] {
            assert!(refused(&public, host, None), "{host}");
        }
        assert!(!refused(
            &public,
            "localhost",
            Some("https://code.example.com")
        ));
        assert!(!refused(
            &public,
            "localhost",
            Some("http://localhost:6274")
        ));
        for origin in [
            "https://evil.example",
            "null",
            "http://code.example.com",
            "http://localhost.evil.example",
        ] {
            assert!(refused(&public, "localhost", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn a_request_without_a_host_is_refused() {
        assert!(
            fault(
                &Public::default(),
                &HeaderMap::new(),
                &Uri::from_static("/mcp")
            )
            .is_some()
        );
    }
}
