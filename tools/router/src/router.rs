//! Picks the tool a call names.
//!
//! Always ready: a tool's own readiness is driven in the call's future, so that one
//! slow tool never holds up another. Limits therefore stand above the router.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use tower::{
    Service, ServiceExt,
    util::{BoxCloneSyncService, Oneshot},
};

use crate::{Code, RawCall, ToolError, ToolReply, ToolSpec};

/// A tool with its class's layers around it, erased once at registration.
pub type BoxTool = BoxCloneSyncService<RawCall, ToolReply, ToolError>;

/// A tool's words and its service.
#[derive(Clone, Debug)]
pub struct Registration {
    /// What it says of itself.
    pub spec: Arc<ToolSpec>,
    /// What answers its calls.
    pub service: BoxTool,
}

/// The tools by name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolRouter {
    tools: Arc<[Registration]>,
    by_name: Arc<HashMap<&'static str, usize>>,
}

impl ToolRouter {
    /// A router over these tools, listed in this order.
    ///
    /// # Errors
    /// Two tools of one name, or an `x-mcp-header` annotation that a client would
    /// reject (not an RFC 9110 token, or used twice in one schema).
    pub fn new(tools: Vec<Registration>) -> Result<Self, ToolError> {
        let mut by_name = HashMap::with_capacity(tools.len());
        for (index, tool) in tools.iter().enumerate() {
            check_headers(&tool.spec)?;
            if by_name.insert(tool.spec.name, index).is_some() {
                return Err(ToolError::internal(format!(
                    "two tools are named {}",
                    tool.spec.name
                )));
            }
        }
        Ok(Self {
            tools: tools.into(),
            by_name: Arc::new(by_name),
        })
    }

    /// Every tool's words, in the order of registration.
    pub fn specs(&self) -> impl Iterator<Item = &Arc<ToolSpec>> {
        self.tools.iter().map(|tool| &tool.spec)
    }

    /// The words of one tool.
    #[must_use]
    pub fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.by_name.get(name).map(|index| &self.tools[*index].spec)
    }

    /// The fixed label of a tool's name: itself, or `unknown`.
    #[must_use]
    pub fn label(&self, name: &str) -> &'static str {
        self.spec(name).map_or("unknown", |spec| spec.name)
    }
}

fn check_headers(spec: &ToolSpec) -> Result<(), ToolError> {
    let Some(properties) = spec
        .input
        .get("properties")
        .and_then(|value| value.as_object())
    else {
        return Ok(());
    };
    let mut seen: Vec<String> = Vec::new();
    for (name, property) in properties {
        let Some(header) = property.get("x-mcp-header") else {
            continue;
        };
        let token = header
            .as_str()
            .filter(|text| !text.is_empty() && text.bytes().all(is_token))
            .ok_or_else(|| {
                ToolError::internal(format!(
                    "{}.{name}: x-mcp-header is not an RFC 9110 token",
                    spec.name
                ))
            })?;
        let folded = token.to_ascii_lowercase();
        if seen.contains(&folded) {
            return Err(ToolError::internal(format!(
                "{}.{name}: x-mcp-header {token} is used twice",
                spec.name
            )));
        }
        seen.push(folded);
    }
    Ok(())
}

// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Service<RawCall> for ToolRouter {
    type Response = ToolReply;
    type Error = ToolError;
    type Future =
        Either<Oneshot<BoxTool, RawCall>, std::future::Ready<Result<ToolReply, ToolError>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: RawCall) -> Self::Future {
        match self.by_name.get(&*call.tool) {
            Some(index) => Either::Left(self.tools[*index].service.clone().oneshot(call)),
            None => Either::Right(std::future::ready(Err(ToolError::new(
                Code::UnknownTool,
                "no tool has this name; tools/list has those there are",
            )))),
        }
    }
}
