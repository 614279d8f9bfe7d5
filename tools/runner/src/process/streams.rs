//! The server's ends of a command's streams: two pipes, or one terminal.

use std::{io, sync::Arc};

use tokio::{io::AsyncReadExt, net::unix::pipe};

use super::terminal::Terminal;

/// Where a command's output is read.
pub(super) enum Output {
    Pipe(pipe::Receiver),
    Terminal(Arc<Terminal>),
}

impl Output {
    /// Reads some; zero bytes are the end. Allocates nothing for a command that says
    /// nothing, and little for one that says little.
    pub(super) async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => {
                pipe.readable().await?;
                grow(buffer);
                pipe.read(buffer).await
            }
            Self::Terminal(terminal) => {
                grow(buffer);
                std::future::poll_fn(|cx| terminal.poll_read(cx, buffer)).await
            }
        }
    }
}

fn grow(buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        buffer.resize(4096, 0);
    }
}

/// Where a command's input is written.
pub(super) enum Input {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

impl Input {
    /// Writes as much as is taken now; `WouldBlock` when that is nothing.
    pub(super) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_write(data),
            Self::Terminal(terminal) => terminal.try_write(data),
        }
    }

    /// Waits until it may take more.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.writable().await,
            Self::Terminal(terminal) => terminal.writable().await,
        }
    }
}
