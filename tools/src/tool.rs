//! What a tool is: typed arguments, a typed result, its words, and one async function.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, Code, OnSubject, ProcessId, Subject, ToolError,
    ToolReply, ToolSpec,
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tower::Service;

/// A tool. Registered in the program's catalogue, wrapped in its class's layers.
pub trait Tool: Clone + Send + Sync + 'static {
    /// What it takes.
    type Args: DeserializeOwned + JsonSchema + OnSubject + Send + Sync + 'static;
    /// What it answers, as its output schema tells.
    type Out: JsonSchema;

    /// The wire name.
    const NAME: &'static str;
    /// A few words for a person.
    const TITLE: &'static str;
    /// For a model: what it does, what it refuses, what to do next.
    const DESCRIPTION: &'static str;
    /// What it does to its workspace.
    const CLASS: AccessClass;
    /// MCP's hints.
    const ANNOTATIONS: Annotations;

    /// Does it.
    fn run(
        &self,
        call: AuthorizedCall<Self::Args>,
    ) -> impl Future<Output = Result<ToolReply, ToolError>> + Send;

    /// What the tool says of itself, schemas included.
    fn spec() -> Arc<ToolSpec> {
        Arc::new(ToolSpec {
            name: Self::NAME,
            title: Self::TITLE,
            description: Self::DESCRIPTION,
            class: Self::CLASS,
            annotations: Self::ANNOTATIONS,
            input: Arc::new(schema::<Self::Args>(
                SchemaSettings::draft2020_12().for_deserialize(),
            )),
            output: Arc::new(or_error(schema::<Self::Out>(
                SchemaSettings::draft2020_12().for_serialize(),
            ))),
        })
    }
}

// Subschemas are inlined: several clients do not follow `$ref`.
fn schema<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    strip_formats(&mut schema);
    let mut map = schema.as_object().cloned().unwrap_or_default();
    map.remove("title");
    map
}

// Rust's integer widths are no JSON Schema formats; validators warn of each.
fn strip_formats(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("type").is_some_and(Value::is_string) {
                map.remove("format");
            }
            map.values_mut().for_each(strip_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_formats),
        _ => {}
    }
}

// Clients validate `structuredContent` of an error result, too: either the result's own
// fields are there, or those of an error body.
fn or_error(mut schema: Map<String, Value>) -> Map<String, Value> {
    let required = schema.remove("required").unwrap_or_else(|| json!([]));
    schema.insert(
        "anyOf".to_owned(),
        json!([{ "required": required }, { "required": ["code", "message"] }]),
    );
    schema
}

/// A [`Tool`] as a Tower service; always ready.
#[derive(Clone, Debug)]
pub struct ToolService<T>(pub T);

impl<T: Tool> Service<AuthorizedCall<T::Args>> for ToolService<T> {
    type Response = ToolReply;
    type Error = ToolError;
    type Future = Pin<Box<dyn Future<Output = Result<ToolReply, ToolError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: AuthorizedCall<T::Args>) -> Self::Future {
        let tool = self.0.clone();
        Box::pin(async move { tool.run(call).await })
    }
}

/// Hints of a tool that only looks.
pub(crate) const LOOKS: Annotations = Annotations {
    read_only: true,
    destructive: false,
    idempotent: true,
    open_world: false,
};

/// The longest a call may ask to wait.
pub(crate) const MAX_WAIT_MS: u64 = 30_000;

pub(crate) fn wait(wait_ms: Option<u64>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(MAX_WAIT_MS))
}

pub(crate) fn process_id(text: &str) -> Result<ProcessId, ToolError> {
    text.parse().map_err(|_| Subject::Process(text).not_found())
}

/// Works are not part of this server yet, so every work id is an unknown one.
pub(crate) fn refuse_work(work_id: Option<&str>) -> Result<(), ToolError> {
    match work_id {
        None => Ok(()),
        Some(_) => Err(ToolError::new(
            Code::WorkNotFound,
            "no such work; leave work_id out, this server keeps no works",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A call is never silent for longer: idle limits of proxies start at a minute.
    #[test]
    fn a_wait_is_at_most_half_a_minute() {
        for (asked, given) in [
            (None, 0),
            (Some(0), 0),
            (Some(29_999), 29_999),
            (Some(30_001), 30_000),
            (Some(u64::MAX), 30_000),
        ] {
            assert_eq!(wait(asked), Duration::from_millis(given));
        }
    }
}
