//! MCP over stdin and stdout, for one local caller. EOF on stdin ends the server.

use anyhow::Result;
use rmcp::ServiceExt;

use crate::handler::Handler;

/// Serves until stdin ends or `stop` does; calls in flight are answered first.
///
/// # Errors
/// None on an ordinary end, a client that leaves before its handshake included.
pub async fn serve(handler: Handler, stop: impl Future<Output = ()>) -> Result<()> {
    let serving = match handler.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(serving) => serving,
        Err(error) => {
            tracing::debug!(%error, "the client left before a session began");
            return Ok(());
        }
    };
    let cancel = serving.cancellation_token();
    tokio::select! {
        ended = serving.waiting() => { ended?; }
        () = stop => cancel.cancel(),
    }
    Ok(())
}
