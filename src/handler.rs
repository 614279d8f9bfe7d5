//! rmcp's `ServerHandler` on one side, the stack on the other; nothing else.

use std::sync::Arc;

use codespace_router::{Caller, Code, RawCall, ToolError, ToolReply, ToolRouter, TraceContext};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, Implementation,
        ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
        Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::Value;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::stack::CallService;

const INSTRUCTIONS: &str = "CodeSpace reads, patches and runs in workspaces an operator registered. Start with \
workspace_info. find and read look; apply_patch changes files, all or nothing (check_only previews); exec_command starts \
a command, read_process follows its output, process_status tells how it ended. After a lost connection, operation_status \
tells by key what became of a patch.";

/// Serves MCP from the stack. Cheap to clone: rmcp clones it for every request.
#[derive(Clone)]
pub struct Handler {
    /// Behind one count: a clone of the stack clones each of its layers.
    calls: Arc<CallService>,
    tools: Arc<[Tool]>,
    in_flight: TaskTracker,
}

impl Handler {
    /// A handler over the stack. `in_flight` has a token for each call that is not answered.
    pub fn new(calls: CallService, router: &ToolRouter, in_flight: TaskTracker) -> Self {
        let tools = router
            .specs()
            .map(|spec| {
                let hints = ToolAnnotations::with_title(spec.title)
                    .read_only(spec.annotations.read_only)
                    .destructive(spec.annotations.destructive)
                    .idempotent(spec.annotations.idempotent)
                    .open_world(spec.annotations.open_world);
                Tool::new(spec.name, spec.description, Arc::clone(&spec.input))
                    .with_title(spec.title)
                    .with_raw_output_schema(Arc::clone(&spec.output))
                    .with_annotations(hints)
            })
            .collect();
        Self {
            calls: Arc::new(calls),
            tools,
            in_flight,
        }
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("codespace", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // The list is the same for every caller, and for the life of the server.
        Ok(ListToolsResult::with_all_items(self.tools.to_vec())
            .with_ttl_ms(60_000)
            .with_cache_scope(CacheScope::Private))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _in_flight = self.in_flight.token();
        let parts = context.extensions.get::<http::request::Parts>();
        let caller = match parts {
            None => Caller::local(),
            // The edge authenticates every request before rmcp sees it.
            Some(parts) => parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
                ErrorData::internal_error("the request was not authenticated", None)
            })?,
        };
        let header = |name: &str| {
            parts
                .and_then(|parts| parts.headers.get(name)?.to_str().ok())
                .map(str::to_owned)
        };
        // A proxy routes and may authorize by this header, whatever the revision. rmcp checks it,
        // in its base64 form too, from 2026-07-28 on.
        let asked = request
            .arguments
            .as_ref()
            .and_then(|arguments| arguments.get("workspace_id"))
            .and_then(Value::as_str);
        let contradicts = parts.is_some_and(|parts| names_another(&parts.headers, asked));
        if contradicts && context.protocol_version() < Some(ProtocolVersion::V_2026_07_28) {
            return Err(ErrorData::invalid_params(
                "Mcp-Param-Workspace-Id: must equal the argument workspace_id, or be left out",
                None,
            ));
        }
        let meta = &context.meta.0;
        let trace = TraceContext {
            parent: meta
                .get_traceparent()
                .map(str::to_owned)
                .or_else(|| header("traceparent")),
            state: meta
                .get_tracestate()
                .map(str::to_owned)
                .or_else(|| header("tracestate")),
        };
        let call = RawCall {
            trace,
            ..RawCall::new(&request.name, request.arguments.unwrap_or_default(), caller)
        };
        tokio::select! {
            biased;
            answer = CallService::clone(&self.calls).oneshot(call) => respond(answer),
            // Dropping the stack's future is how a layer learns that the caller left; rmcp sends
            // no answer for a cancelled request.
            () = context.ct.cancelled() => respond(Err(ToolError::new(Code::Cancelled, "the caller left"))),
        }
    }
}

/// Whether `Mcp-Param-Workspace-Id` is there and is not what was asked for. Each value counts, one
/// that is no text too: who knows which of them a proxy reads.
fn names_another(headers: &http::HeaderMap, asked: Option<&str>) -> bool {
    let mut told = headers.get_all("mcp-param-workspace-id").iter();
    told.any(|told| asked.is_none_or(|asked| told.as_bytes() != asked.as_bytes()))
}

fn respond(answer: Result<ToolReply, ToolError>) -> Result<CallToolResponse, ErrorData> {
    match answer {
        Ok(reply) => Ok(CallToolResult::structured(reply.value).into()),
        Err(error) => match error.code() {
            Code::InvalidArguments | Code::UnknownTool => {
                Err(ErrorData::invalid_params(error.message().to_owned(), None))
            }
            _ => Ok(CallToolResult::structured_error(error.body()).into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_that_is_there_must_name_the_workspace() {
        for (told, asked, wrong) in [
            (&[][..], Some("w"), false),
            (&[], None, false),
            (&[&b"w"[..]], Some("w"), false),
            (&[b"w", b"w"], Some("w"), false),
            (&[b"w", b"v"], Some("w"), true),
            (&[b"v", b"w"], Some("w"), true),
            (&[b"w\xff"], Some("w"), true),
            (&[b""], Some("w"), true),
            (&[b"w"], None, true),
        ] {
            let mut headers = http::HeaderMap::new();
            for value in told {
                let value = http::HeaderValue::from_bytes(value).expect("a value");
                headers.append("mcp-param-workspace-id", value);
            }
            assert_eq!(names_another(&headers, asked), wrong, "{told:?} {asked:?}");
        }
    }
}
