//! Hosts and targets, in the one spelling in which they are compared.
//!
//! A name that two parts of a program read differently is how a filter is passed: so
//! everything a rule or a client may write becomes a [`Host`] here or is refused, and
//! what is checked, resolved and written to an origin is that value, never the text.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A host: a lower-case ASCII name without a trailing dot, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Name(String),
    Address(IpAddr),
}

/// What a client asks to be connected with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Host {
    /// Reads a host as it stands in a URI: a name, an IPv4 address, or an IPv6 address in
    /// brackets (RFC 3986, 3.2.2). The error is the rule that was broken.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(inside) = text.strip_prefix('[') {
            return inside
                .strip_suffix(']')
                .and_then(|address| address.parse::<Ipv6Addr>().ok())
                .map(|address| Self::Address(address.into()))
                .ok_or("what is in brackets must be an IPv6 address, without a zone");
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        if text.contains(':') {
            return Err("an IPv6 address goes in brackets");
        }
        name(text).map(Self::Name)
    }
}

/// A name by RFC 1123, with the underscore that real names have. Non-ASCII names must come
/// in their `xn--` form: mapping them here could differ from what the client meant.
fn name(text: &str) -> Result<String, &'static str> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        return Err("the host is missing");
    }
    if !text.is_ascii() {
        return Err("a name is ASCII; write an international name in its xn-- form");
    }
    if text.len() > 253 {
        return Err("a name is at most 253 characters long");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    for label in text.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err("each part of a name has 1 to 63 characters");
        }
        if !label.bytes().all(allowed) {
            return Err("a name consists of letters, digits, hyphens and dots");
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("no part of a name starts or ends with a hyphen");
        }
    }
    // The C library reads 127.1, 2130706433 and 0x7f.1 as addresses; nothing else may.
    let last = text.rsplit('.').next().unwrap_or(text);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    if last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        return Err("a name does not end in a number; an IPv4 address has four decimal parts");
    }
    Ok(text.to_ascii_lowercase())
}

impl Target {
    /// Reads `host` or `host:port`, the port being `default` if it is not there.
    pub(crate) fn parse(text: &str, default: Option<u16>) -> Result<Self, &'static str> {
        let (host, port) = split_port(text)?;
        Ok(Self {
            host: Host::parse(host)?,
            port: port.or(default).ok_or("the port is missing")?,
        })
    }
}

/// Splits `host:port`, where the host may be an address in brackets.
pub(crate) fn split_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let end = match text.find(']') {
        Some(bracket) if text.starts_with('[') => bracket + 1,
        _ => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(end);
    if rest.is_empty() {
        return Ok((host, None));
    }
    let digits = rest
        .strip_prefix(':')
        .ok_or("after the brackets comes a port or nothing")?;
    if digits.contains(':') {
        return Err("an IPv6 address goes in brackets");
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a port is a number from 1 to 65535");
    }
    match digits.parse::<u16>() {
        Ok(port) if port > 0 => Ok((host, Some(port))),
        _ => Err("a port is a number from 1 to 65535"),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> Result<String, &'static str> {
        Host::parse(text).map(|host| host.to_string())
    }

    #[test]
    fn one_spelling() {
        for (text, host) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("XN--Bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("localhost", "localhost"),
            ("3com.x", "3com.x"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:DB8::0:1]", "[2001:db8::1]"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(host), "{text}");
        }
    }

    #[test]
    fn what_is_no_host() {
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "a@b",
            "a%00",
            "bücher.example",
            "-a.b",
            "a-.b",
            "::1",
            "[::1",
            "[]",
            "[1.2.3.4]",
            "[fe80::1%eth0]",
            "127.1",
            "127.0.0.1.",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "1.2.3.0X4",
            "0177.0.0.1",
            "1.2.3.4.5",
            "a\0b",
            "0x",
        ] {
            assert!(shown(text).is_err(), "{text:?} {:?}", shown(text));
        }
        assert!(shown(&"a".repeat(64)).is_err());
        assert!(shown(&"a.".repeat(130)).is_err());
    }

    #[test]
    fn targets() {
        let target = |text| Target::parse(text, Some(80)).map(|target| target.to_string());
        assert_eq!(target("a.b").as_deref(), Ok("a.b:80"));
        assert_eq!(target("a.b:8443").as_deref(), Ok("a.b:8443"));
        assert_eq!(target("[::1]:22").as_deref(), Ok("[::1]:22"));
        assert_eq!(target("[::1]").as_deref(), Ok("[::1]:80"));
        for text in [
            "a:", "a:0", "a:65536", "a:+1", "a: 1", "a:1:2", "::1", "[::1]22", "[::1]:", ":80",
        ] {
            assert!(target(text).is_err(), "{text:?}");
        }
        assert!(Target::parse("a.b", None).is_err());
    }

    proptest! {
        /// No text panics, and what is a host reads the same again.
        #[test]
        fn any_text(text in "\\PC{0,40}|[\\[\\]:.0-9a-fx*-]{0,20}") {
            if let Ok(target) = Target::parse(&text, Some(1)) {
                prop_assert_eq!(Target::parse(&target.to_string(), None), Ok(target));
            }
        }
    }
}
