//! SOCKS5 (RFC 1928): CONNECT without authentication, with names and addresses.
//!
//! A parser of our own: the crates for it write the hosts they read to the log. Names are
//! resolved here, never by the client, whose namespace has no name server.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    decision::Decision,
    dial::{Dialer, Refusal},
    host::{Host, Target},
    relay::{Activity, relay},
};

pub(crate) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;

/// The second byte of a reply (RFC 1928, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Reply {
    Succeeded = 0,
    Failure = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    Expired = 6,
    CommandNotSupported = 7,
    AddressNotSupported = 8,
}

/// Serves one connection whose first byte was [`VERSION`].
pub(crate) async fn serve(
    mut client: TcpStream,
    dialer: &Arc<Dialer>,
    activity: &Activity,
    patience: Duration,
) {
    let target = match timeout(patience, negotiate(&mut client)).await {
        Ok(Ok(target)) => target,
        Ok(Err(Fault::Malformed(answer))) => {
            Decision::Malformed.count();
            if let Some(answer) = answer {
                let _ = reply(&mut client, answer).await;
            }
            return;
        }
        Ok(Err(Fault::Io)) | Err(_) => return,
    };
    match dialer.dial(&target).await {
        Ok(server) => {
            if reply(&mut client, Reply::Succeeded).await.is_ok() {
                relay(client, server, activity).await;
            }
        }
        Err(refusal) => {
            let _ = reply(&mut client, refusal.into()).await;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The client left.
    Io,
    /// Not understood, and what to say to that where the protocol has something.
    Malformed(Option<Reply>),
}

async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(client: &mut S) -> Result<Target, Fault> {
    if client.read_u8().await? != VERSION {
        return Err(Fault::Malformed(None));
    }
    let mut methods = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(Fault::Malformed(None));
    }
    client.write_all(&[VERSION, NO_AUTHENTICATION]).await?;

    let [version, command, _reserved, kind] = {
        let mut head = [0; 4];
        client.read_exact(&mut head).await?;
        head
    };
    if version != VERSION {
        return Err(Fault::Malformed(Some(Reply::Failure)));
    }
    // Read to its end before it is judged, so that no answer crosses with unread bytes.
    let host = read_host(client, kind).await?;
    let port = client.read_u16().await?;
    if command != 1 {
        return Err(Fault::Malformed(Some(Reply::CommandNotSupported)));
    }
    match host {
        Some(host) if port > 0 => Ok(Target { host, port }),
        _ => Err(Fault::Malformed(Some(Reply::Failure))),
    }
}

/// The host of a request; `None` for one that is no host.
async fn read_host<S: AsyncRead + Unpin>(client: &mut S, kind: u8) -> Result<Option<Host>, Fault> {
    Ok(match kind {
        1 => Some(Host::Address(
            Ipv4Addr::from_bits(client.read_u32().await?).into(),
        )),
        4 => Some(Host::Address(
            Ipv6Addr::from_bits(client.read_u128().await?).into(),
        )),
        3 => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            std::str::from_utf8(&name).ok().and_then(named)
        }
        _ => return Err(Fault::Malformed(Some(Reply::AddressNotSupported))),
    })
}

/// Some clients send addresses as names, and IPv6 ones without the brackets of a URI.
fn named(text: &str) -> Option<Host> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(Host::Address(address)),
        Err(_) => Host::parse(text).ok(),
    }
}

/// The bound address is left zero, as most servers do: the real one tells of the host.
async fn reply<S: AsyncWrite + Unpin>(client: &mut S, reply: Reply) -> io::Result<()> {
    let message = [VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0];
    client.write_all(&message).await
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Name | Refusal::Address => Self::NotAllowed,
            Refusal::Unreachable(io::ErrorKind::ConnectionRefused) => Self::ConnectionRefused,
            Refusal::Unknown | Refusal::Unreachable(_) => Self::HostUnreachable,
            Refusal::TimedOut => Self::Expired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What `negotiate` makes of these bytes, and what it answered.
    async fn negotiated(bytes: &[u8]) -> (Result<Target, Fault>, Vec<u8>) {
        let (mut near, mut far) = tokio::io::duplex(1024);
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        let result = negotiate(&mut far).await;
        drop(far);
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        (result, answer)
    }

    async fn target(request: &[u8]) -> Result<String, Fault> {
        let bytes = [&[5, 1, 0], request].concat();
        negotiated(&bytes).await.0.map(|target| target.to_string())
    }

    #[tokio::test]
    async fn names_and_addresses() {
        let name =
            |text: &str| [&[5, 1, 0, 3, text.len() as u8], text.as_bytes(), &[1, 187]].concat();
        for (request, expected) in [
            (name("Example.com."), "example.com:443"),
            (name("192.0.2.1"), "192.0.2.1:443"),
            (name("::1"), "[::1]:443"),
            (name("[::1]"), "[::1]:443"),
            (vec![5, 1, 0, 1, 127, 0, 0, 1, 0, 80], "127.0.0.1:80"),
            (
                [&[5, 1, 0, 4][..], &[0; 15], &[1, 0, 80]].concat(),
                "[::1]:80",
            ),
        ] {
            assert_eq!(target(&request).await.as_deref(), Ok(expected));
        }
        for bad in ["", "a b", "0x7f.1", "127.1", "bücher.test", "a\0.test"] {
            let fault = Fault::Malformed(Some(Reply::Failure));
            assert_eq!(target(&name(bad)).await, Err(fault), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn what_is_not_spoken() {
        for (request, fault) in [
            // BIND and UDP ASSOCIATE.
            (
                &[5, 2, 0, 1, 1, 1, 1, 1, 0, 80][..],
                Some(Reply::CommandNotSupported),
            ),
            (
                &[5, 3, 0, 1, 1, 1, 1, 1, 0, 80],
                Some(Reply::CommandNotSupported),
            ),
            (
                &[5, 1, 0, 9, 1, 1, 1, 1, 0, 80],
                Some(Reply::AddressNotSupported),
            ),
            (&[4, 1, 0, 1, 1, 1, 1, 1, 0, 80], Some(Reply::Failure)),
            (&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0], Some(Reply::Failure)),
        ] {
            assert_eq!(target(request).await, Err(Fault::Malformed(fault)));
        }
        let (result, answer) = negotiated(&[5, 1, 2]).await;
        assert_eq!(result, Err(Fault::Malformed(None)));
        assert_eq!(answer, [5, 0xff]);
    }

    proptest! {
        /// No bytes panic.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), spoken: bool) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let prefix: &[u8] = if spoken { &[5, 1, 0, 5, 1, 0] } else { &[] };
            runtime.block_on(async { let _ = negotiated(&[prefix, &bytes].concat()).await; });
        }
    }
}
