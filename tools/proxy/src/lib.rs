//! The managed proxy: with `network = "enabled"`, a sandboxed command's only way out.
//!
//! A command sits in a network namespace that has a loopback and nothing else. On that
//! loopback someone inside made a listening socket and passed it out; [`Proxy::serve`]
//! accepts on it and dials from the host's network, so no process bridges the two. One
//! port takes HTTP `CONNECT`, plain HTTP requests in absolute form, and SOCKS5.
//!
//! What keeps it safe is in three places. `host` gives every name one spelling, `policy`
//! knows the names that are allowed, and `dial` is the only place that connects: it asks
//! the [`Resolve`]r once and connects only with addresses of that answer that it checked
//! (`address`), so a name server cannot change its mind between check and use.
//!
//! Nothing here logs or labels with a host or a URL. Emits
//! `codespace_proxy_connections_total{decision}`.
//!
//! ```
//! use std::{net::TcpListener, sync::Arc};
//! use codespace_proxy::{Policy, Proxy, ProxyHandle, SystemResolver};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:0")?; // made inside the namespace
//! let policy = Policy::parse("demo", ["crates.io", "*.crates.io"], [""; 0])?;
//! let resolver = Arc::new(SystemResolver::default());
//! let proxy = Proxy::serve(listener, Arc::new(policy), resolver)?;
//! let environment = ProxyHandle::environment(proxy.address()); // for the command
//! drop(proxy); // ends every connection
//! # assert_eq!(environment.len(), 8);
//! # Ok(())
//! # }
//! ```

mod address;
mod decision;
mod dial;
mod host;
mod http;
mod policy;
mod relay;
mod resolve;
mod serve;
mod socks;

pub use decision::{CONNECTIONS_TOTAL, Decision};
pub use policy::{Policy, PolicyError};
pub use resolve::{Resolve, Resolving, SystemResolver};
pub use serve::{Limits, Proxy, ProxyHandle};
