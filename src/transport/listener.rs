//! Accepts connections over TCP or a Unix socket and serves a router on them, until told to stop.

use std::{io, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::Semaphore,
};

use crate::config::Listen;

/// Connections at once; further ones wait in the kernel's backlog.
const CONNECTIONS: usize = 2_048;
/// A head that takes longer comes from a stalled or hostile client. Also how long an idle
/// connection is kept: longer than common pauses between calls.
const HEAD: Duration = Duration::from_secs(75);

/// A bound listener. A Unix socket's file goes with it.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?)),
            Listen::Unix(path) => {
                // A socket nobody answers on is left over from a crash; one that answers is in use.
                if std::os::unix::net::UnixStream::connect(path).is_err()
                    && std::fs::symlink_metadata(path).is_ok_and(|meta| {
                        std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type())
                    })
                {
                    std::fs::remove_file(path)?;
                }
                // Nobody else may connect in the moment before the mode is set.
                let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
                let bound = UnixListener::bind(path);
                nix::sys::stat::umask(mask);
                let listener = bound?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Serves until `stop`; then lets open connections finish their request and returns the rest.
    pub(super) async fn serve(
        self,
        router: Router,
        stop: impl Future<Output = ()>,
    ) -> GracefulShutdown {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(connections()));
        tokio::pin!(stop);
        loop {
            let place = tokio::select! {
                () = &mut stop => break,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            // Connections that the kernel has made already are taken before the stop.
            let stream: io::Result<Box<dyn Stream>> = tokio::select! {
                biased;
                stream = self.accept() => stream,
                () = &mut stop => break,
            };
            match stream {
                Ok(stream) => serve_connection(stream, router.clone(), &graceful, place),
                Err(error) => {
                    // Out of descriptors, most likely: accepting again at once would spin.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        if let Self::Unix(_, path) = &self {
            let _ = std::fs::remove_file(path);
        }
        graceful
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // With Nagle's algorithm a call in a session takes 40 ms more.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// No more than half of the descriptors there are: calls need some, too.
fn connections() -> usize {
    use nix::sys::resource::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft);
    usize::try_from(descriptors / 2).map_or(CONNECTIONS, |half| half.clamp(1, CONNECTIONS))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn serve_connection<P: Send + 'static>(
    stream: Box<dyn Stream>,
    router: Router,
    graceful: &GracefulShutdown,
    place: P,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HEAD))
        .max_concurrent_streams(256);
    let connection = builder
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .into_owned();
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        let _place = place;
        if let Err(error) = connection.await {
            tracing::debug!(error, "a connection ended early");
        }
    });
}
