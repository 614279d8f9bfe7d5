//! The listening socket, its connections and their limits.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::{
    decision::Decision, dial::Dialer, http, policy::Policy, relay::Activity, resolve::Resolve,
    socks,
};

/// What one proxy spends on its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, one at least; more wait in the listener's queue.
    pub connections: usize,
    /// For a client to say what it wants: a SOCKS5 request, or the head of an HTTP one.
    pub head: Duration,
    /// Bytes of an HTTP request's head that are buffered while its end is missing; 8192 at
    /// least, and one read more may be taken.
    pub head_bytes: usize,
    /// For a lookup, and again for a connection.
    pub dial: Duration,
    /// After which a connection ends on which nothing moved.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            // Also the time an HTTP connection may wait for its next request.
            head: Duration::from_secs(60),
            head_bytes: 64 * 1024,
            dial: Duration::from_secs(15),
            // A command runs ten minutes by default, and may wait for one slow answer.
            idle: Duration::from_secs(600),
        }
    }
}

/// The managed proxy. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct Proxy;

/// A running proxy; its drop ends it with every connection.
#[derive(Debug)]
pub struct ProxyHandle {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    /// Serves on `listener`, which may be of another network namespace, under `policy`.
    ///
    /// # Errors
    /// If the socket cannot be used, or this is no Tokio runtime.
    pub fn serve(
        listener: std::net::TcpListener,
        policy: Arc<Policy>,
        resolver: Arc<dyn Resolve>,
    ) -> io::Result<ProxyHandle> {
        Self::serve_within(listener, policy, resolver, Limits::default())
    }

    /// [`serve`](Self::serve) with other limits.
    ///
    /// # Errors
    /// As there.
    pub fn serve_within(
        listener: std::net::TcpListener,
        policy: Arc<Policy>,
        resolver: Arc<dyn Resolve>,
        limits: Limits,
    ) -> io::Result<ProxyHandle> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        let dialer = Arc::new(Dialer {
            policy,
            resolver,
            patience: limits.dial,
        });
        let accepting = runtime.spawn(accept(listener, dialer, limits));
        Ok(ProxyHandle { address, accepting })
    }
}

/// Accepts for ever. The connections belong to this future: its end is theirs.
async fn accept(listener: TcpListener, dialer: Arc<Dialer>, limits: Limits) {
    let mut connections = JoinSet::new();
    // With none allowed neither branch below could ever run.
    let most = limits.connections.max(1);
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < most => {
                match accepted {
                    Ok((client, _)) => {
                        connections.spawn(connection(client, Arc::clone(&dialer), limits));
                    }
                    // Out of descriptors, most likely: there will be some again.
                    Err(error) => {
                        tracing::warn!(kind = %error.kind(), "the proxy could not accept a connection");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

async fn connection(client: TcpStream, dialer: Arc<Dialer>, limits: Limits) {
    let _ = client.set_nodelay(true);
    let activity = Activity::default();
    tokio::select! {
        () = by_protocol(client, &dialer, &activity, limits) => {}
        () = activity.silence(limits.idle) => {}
    }
}

/// All protocols share the port: the first byte tells them apart.
async fn by_protocol(client: TcpStream, dialer: &Arc<Dialer>, activity: &Activity, limits: Limits) {
    let mut first = [0];
    match timeout(limits.head, client.peek(&mut first)).await {
        Ok(Ok(1)) => {}
        // It left, or said nothing: no connection was asked for.
        Ok(Ok(_) | Err(_)) | Err(_) => return,
    }
    match first[0] {
        socks::VERSION => socks::serve(client, dialer, activity, limits.head).await,
        b'A'..=b'Z' | b'a'..=b'z' => http::serve(client, dialer, activity, limits).await,
        // TLS to the proxy itself, SOCKS4, or noise; none has an answer they would read.
        _ => Decision::Malformed.count(),
    }
}

// === impl ProxyHandle ===

impl ProxyHandle {
    /// The address of the listener, inside its network namespace.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The variables that send a command's programs to a proxy at `address`.
    ///
    /// `ALL_PROXY` names the HTTP side too: several HTTP libraries fail at their start
    /// when it holds a SOCKS URL and an optional package is missing. `NO_PROXY` is empty,
    /// for a host that it excepts cannot be reached at all.
    pub fn environment(address: SocketAddr) -> Vec<(String, String)> {
        let url = format!("http://{address}");
        ["http_proxy", "https_proxy", "all_proxy", "no_proxy"]
            .into_iter()
            .flat_map(|name| [name.to_owned(), name.to_ascii_uppercase()])
            .map(|name| {
                let is_exception = name.eq_ignore_ascii_case("no_proxy");
                let value = if is_exception {
                    String::new()
                } else {
                    url.clone()
                };
                (name, value)
            })
            .collect()
    }

    /// Ends it, and returns when every connection and the listener are closed.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
