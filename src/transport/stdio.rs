//! MCP over stdin and stdout, for one local caller: a message a line. EOF on stdin ends the
//! server.
//!
//! rmcp's own line transport drops what it cannot read, and its client waits for ever; here
//! every such line is answered.

use std::{io, sync::Arc, time::Duration};

use anyhow::Result;
use rmcp::{
    RoleServer, ServiceExt,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::message::{self, Fault};
use crate::handler::Handler;

/// How long calls in flight may take after the end of input.
const GRACE: Duration = Duration::from_secs(10);
/// How much of a line that is too long is kept to look for its id in.
const ID_WITHIN: usize = 4096;
/// How long a client may take to read the last answers.
const ANSWERS: Duration = Duration::from_secs(2);

/// Serves until stdin ends or `stop` does; calls in flight are answered first, in bounded
/// time: `drain` ends what they may wait for. A line of more than `line_bytes` is refused.
///
/// # Errors
/// None on an ordinary end, a client that leaves before its handshake included.
pub async fn serve(
    handler: Handler,
    line_bytes: usize,
    stop: CancellationToken,
    drain: impl Future<Output = ()>,
) -> Result<()> {
    let (reader, writer) = rmcp::transport::io::stdio_pipes();
    let ended = CancellationToken::new();
    let lines = Lines {
        reader: BufReader::new(reader),
        line: Vec::new(),
        too_long: false,
        line_bytes,
        writer: Arc::new(Mutex::new(writer)),
        refusal: None,
        stop: stop.clone(),
        ended: ended.clone(),
    };
    let serving = async {
        match handler.serve(lines).await {
            Ok(serving) => serving.waiting().await.map(drop).map_err(Into::into),
            Err(error) => {
                tracing::debug!(%error, "the client left before a session began");
                Ok(())
            }
        }
    };
    let late = async {
        ended.cancelled().await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(GRACE) => {}
        }
        drain.await;
        tokio::time::sleep(ANSWERS).await;
    };
    tokio::select! {
        served = serving => served,
        () = late => {
            tracing::warn!("the client did not read its last answers in time");
            Ok(())
        }
    }
}

struct Lines<R, W> {
    reader: R,
    /// What has been read of the line under way; a dropped `receive` goes on from here.
    line: Vec<u8>,
    too_long: bool,
    line_bytes: usize,
    writer: Arc<Mutex<W>>,
    /// The answer to a bad line, in a task of its own: a dropped `receive` must not cut it.
    refusal: Option<JoinHandle<io::Result<()>>>,
    /// Nothing more is read after it.
    stop: CancellationToken,
    /// Told when nothing more will be read.
    ended: CancellationToken,
}

impl<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin + Send + 'static> Lines<R, W> {
    /// Reads up to a line's end, or the input's; whether there was a line.
    async fn read_line(&mut self) -> io::Result<bool> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                // The last line may lack its end.
                return Ok(self.too_long || !self.line.is_empty());
            }
            let end = memchr::memchr(b'\n', available);
            let piece = &available[..end.unwrap_or(available.len())];
            if self.line.len() + piece.len() > self.line_bytes {
                self.too_long = true;
                // Its id stands near its start, as a rule.
                self.line.truncate(ID_WITHIN);
                self.line.shrink_to_fit();
            }
            if !self.too_long {
                self.line.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// The next message, after answers to what is none. `None` at the end of input.
    async fn next_message(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            // One at a time: who does not read answers is not read from.
            if let Some(refusal) = &mut self.refusal {
                let written = refusal.await;
                self.refusal = None;
                written.ok()?.ok()?;
            }
            if !self.read_line().await.ok()? {
                return None;
            }
            match self.take_message() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(fault) => {
                    let writer = Arc::clone(&self.writer);
                    let line = fault.to_json().into_bytes();
                    self.refusal =
                        Some(tokio::spawn(async move { write_line(&writer, line).await }));
                }
            }
        }
    }

    /// The line as a message; `None` for an empty one.
    fn take_message(&mut self) -> Result<Option<RxJsonRpcMessage<RoleServer>>, Fault> {
        if std::mem::take(&mut self.too_long) {
            let start = std::mem::take(&mut self.line);
            return Err(Fault::request(format!(
                "a line is longer than server.body_bytes ({}) allows; send less at once",
                self.line_bytes
            ))
            .of(&start));
        }
        let line = std::mem::take(&mut self.line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        message::check(&line)?;
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| Fault::unreadable(&line, error))
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncBufRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let writer = Arc::clone(&self.writer);
        async move { write_line(&writer, serde_json::to_vec(&item)?).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let stop = self.stop.clone();
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            message = self.next_message() => message,
        };
        if message.is_none() {
            self.ended.cancel();
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.lock().await.shutdown().await
    }
}

async fn write_line<W: AsyncWrite + Unpin>(writer: &Mutex<W>, mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    let mut writer = writer.lock().await;
    writer.write_all(&line).await?;
    writer.flush().await
}
