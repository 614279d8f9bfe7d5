//! Bytes both ways between two sockets, and the watch for silence.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::sleep,
};

/// The buffer of one direction. Two of them for each tunnel, whether it is busy or not.
const BUFFER: usize = 32 * 1024;

/// Counts the moves of one connection, so that its silence can be noticed without a timer
/// being set for every read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<AtomicU64>);

impl Activity {
    pub(crate) fn touch(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when nothing moved for `limit` (and at the latest for twice as long).
    pub(crate) async fn silence(&self, limit: Duration) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            sleep(limit).await;
            let now = self.0.load(Ordering::Relaxed);
            if now == seen {
                return;
            }
            seen = now;
        }
    }
}

/// A socket whose moves are noticed.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TcpStream,
    activity: Activity,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, activity: Activity) -> Self {
        Self { stream, activity }
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    fn note<T>(&self, moved: io::Result<T>) -> Poll<io::Result<T>> {
        self.activity.touch();
        Poll::Ready(moved)
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        self.note(read)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data));
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, data));
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Carries bytes both ways until both sides have ended theirs, or one broke.
pub(crate) async fn relay(mut client: TcpStream, mut server: TcpStream, activity: &Activity) {
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let broke = tokio::try_join!(
        carry(client_read, server_write, activity),
        carry(server_read, client_write, activity),
    )
    .is_err();
    if broke {
        // One side reset its connection. An orderly end would tell the other that it has
        // everything, which a protocol without lengths of its own would believe.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// One direction, to its end; the end is passed on while the other direction lives.
///
/// An error is one of reading: that side is gone altogether. One that takes no more may
/// still have something to say, an answer given before it saw the whole request.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        activity.touch();
        if count == 0 {
            let _ = to.shutdown().await;
            return Ok(());
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return Ok(());
        }
        activity.touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{net::TcpListener, task::JoinHandle};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// The two outer ends of a relay, and the relay.
    async fn relayed() -> (TcpStream, TcpStream, JoinHandle<()>) {
        let (client, inner_client) = pair().await;
        let (inner_server, server) = pair().await;
        let task = tokio::spawn(async move {
            relay(inner_client, inner_server, &Activity::default()).await;
        });
        (client, server, task)
    }

    #[tokio::test]
    async fn one_side_ends_and_the_other_goes_on() {
        let (mut client, mut server, task) = relayed().await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "question");
        let answer = vec![7; 3 * 1024 * 1024];
        let (sent, got) = tokio::join!(
            async {
                server.write_all(&answer).await.unwrap();
                server.shutdown().await
            },
            async {
                let mut got = Vec::new();
                client.read_to_end(&mut got).await.unwrap();
                got
            }
        );
        sent.unwrap();
        assert!(got == answer);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_reset_arrives_as_a_reset() {
        let (mut client, server, task) = relayed().await;
        server.set_zero_linger().unwrap();
        drop(server);
        task.await.unwrap();
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_noticed_and_movement_too() {
        let limit = Duration::from_secs(10);
        let activity = Activity::default();
        let watched = activity.clone();
        let silence = tokio::spawn(async move { watched.silence(limit).await });
        for _ in 0..5 {
            sleep(limit / 2).await;
            activity.touch();
            assert!(!silence.is_finished());
        }
        silence.await.unwrap();
    }
}
