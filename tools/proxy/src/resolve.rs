//! From a name to its addresses.
//!
//! A trait, so that a test can be a name server that lies. The proxy asks it once per
//! connection and dials only what that answer held.

use std::{
    future::Future,
    io,
    net::{IpAddr, ToSocketAddrs},
    pin::Pin,
    sync::Arc,
};

use tokio::{sync::Semaphore, task::spawn_blocking};

/// The future of [`Resolve::resolve`].
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of names.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of `name`, which is lower-case ASCII without a trailing dot, in the
    /// order in which they should be tried.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// The resolver of the host: its `/etc/hosts`, its name servers.
///
/// One serves all workspaces. It never holds more than a few of the runtime's blocking
/// threads, even when name servers do not answer: the file tools live on the same ones.
#[derive(Debug)]
pub struct SystemResolver {
    lookups: Arc<Semaphore>,
}

impl SystemResolver {
    const LOOKUPS: usize = 32;
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(Self::LOOKUPS)),
        }
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let permit = Arc::clone(&self.lookups).acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            let name = name.to_owned();
            // The lookup cannot be called off: its thread keeps the permit to its end, also
            // when the one who asked has left.
            let found = spawn_blocking(move || {
                let _permit = permit;
                let found = (name.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip()).collect())
            });
            found.await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_hosts_file_and_no_name() {
        let resolver = SystemResolver::default();
        let found = resolver.resolve("localhost").await.unwrap();
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty());
        assert!(resolver.resolve("no-such-name.invalid").await.is_err());
    }
}
