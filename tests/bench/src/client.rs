//! The least HTTP/1.1 client that can call a tool: one keep-alive connection, one
//! request at a time, every answer checked.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A connection to a server.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A tool call, ready to be sent any number of times.
pub(crate) struct Request(Vec<u8>);

impl Request {
    pub(crate) fn tool(name: &str, arguments: &Value) -> Self {
        Self::method(
            "tools/call",
            &json!({ "name": name, "arguments": arguments }),
        )
    }

    pub(crate) fn method(method: &str, params: &Value) -> Self {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        Self([head, body].concat().into_bytes())
    }
}

impl Client {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(32 * 1024),
        })
    }

    /// Sends a request and answers the body of its answer, which must be a 200.
    pub(crate) async fn send(&mut self, request: &Request) -> Result<&[u8]> {
        self.stream.write_all(&request.0).await?;
        self.buffer.clear();
        loop {
            let got = self.stream.read_buf(&mut self.buffer).await?;
            ensure!(got > 0, "the server closed the connection");
            let Some(body) = body_start(&self.buffer) else {
                continue;
            };
            let head = std::str::from_utf8(&self.buffer[..body])?;
            let Some(length) = content_length(head) else {
                bail!("an answer without a length: {head}");
            };
            if self.buffer.len() < body + length {
                continue;
            }
            ensure!(
                head.starts_with("HTTP/1.1 200 "),
                "refused: {}",
                String::from_utf8_lossy(&self.buffer)
            );
            ensure!(
                self.buffer.len() == body + length,
                "more came than was asked for"
            );
            return Ok(&self.buffer[body..]);
        }
    }

    /// Calls a tool and answers its structured result; an error result is an error here.
    pub(crate) async fn call(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        let body = self.send(&Request::tool(name, arguments)).await?;
        let mut answer: Value = serde_json::from_slice(body)?;
        let result = answer["result"].take();
        ensure!(result["isError"] == false, "{name}: {answer}{result}");
        let structured = &result["structuredContent"];
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().context("text")?)?;
        ensure!(*structured == text, "{name}: text and structure differ");
        Ok(text)
    }
}

fn body_start(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(at + 4)
}

fn content_length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    })
}
