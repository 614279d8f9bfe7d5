//! The other end of the comparison: rmcp with one tool that answers from memory.
//!
//! The same rmcp, configuration and answer as the server's `read`, and nothing else: no
//! checks, no stack, no file.

use std::sync::Arc;

use anyhow::Result;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ServerCapabilities, ServerConfig,
        Tool,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

/// The text that both servers answer: 4 KiB of lines.
pub(crate) fn text() -> String {
    "a line of text, as long as many a line is in a source file.....\n".repeat(64)[..4096]
        .to_owned()
}

#[derive(Clone)]
struct Bare {
    text: Arc<str>,
    tool: Tool,
}

impl ServerHandler for Bare {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (self.tool.name == name).then(|| self.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let path = arguments.get("path").and_then(Value::as_str).unwrap_or("");
        Ok(CallToolResult::structured(json!({
            "path": path,
            "content": &*self.text,
            "encoding": "utf-8",
            "version": "sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "size": self.text.len(),
            "truncated": false,
        }))
        .into())
    }
}

/// Serves until it is killed; says where on stderr, as the real server does.
pub(crate) fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let bare = Bare {
            text: text().into(),
            tool: Tool::new("read", "Answers from memory.", Arc::new(Map::new())),
        };
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true);
        let manager = Arc::new(LocalSessionManager::default());
        let service = StreamableHttpService::new(move || Ok(bare.clone()), manager, config);
        let router = axum::Router::new().route_service("/mcp", service);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        eprintln!("  listening  http://{}/mcp", listener.local_addr()?);
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            let _ = stream.set_nodelay(true);
        });
        Ok(axum::serve(listener, router).await?)
    })
}
