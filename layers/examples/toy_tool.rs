//! A tool behind the real layers, without MCP: `cargo run --example toy_tool --features test-util`.

use std::sync::Arc;

use codespace_layers::{AuthorizeLayer, DecodeLayer, LeaseLayer, fakes};
use codespace_router::{
    AccessClass, AuthorizedCall, BoxTool, Caller, LeaseOwner, OnSubject, RawCall, Registration,
    Subject, ToolError, ToolReply, ToolRouter,
};
use serde::Deserialize;
use serde_json::json;
use tower::{ServiceBuilder, ServiceExt, service_fn};

#[derive(Deserialize)]
struct Shout {
    workspace: String,
    text: String,
}

impl OnSubject for Shout {
    fn subject(&self) -> Subject<'_> {
        Subject::Workspace(&self.workspace)
    }
}

async fn shout(call: AuthorizedCall<Shout>) -> Result<ToolReply, ToolError> {
    ToolReply::from_result(&json!({ "shouted": call.args().text.to_uppercase() }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ToolError> {
    let spec = fakes::spec("shout", AccessClass::Running);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::<Shout>::new(spec.clone()))
        .layer(AuthorizeLayer::new(Arc::new(fakes::OneWorkspace)))
        .layer(LeaseLayer::new(
            Arc::new(fakes::MemoryLeases::default()),
            LeaseOwner::Process,
        ))
        .service(service_fn(shout));
    let router = ToolRouter::new(vec![Registration {
        spec,
        service: BoxTool::new(service),
    }])?;

    for arguments in [
        json!({ "workspace": "demo", "text": "hello" }),
        json!({ "workspace": "other", "text": "hello" }),
    ] {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        match router
            .clone()
            .oneshot(RawCall::new("shout", arguments, Caller::local()))
            .await
        {
            Ok(reply) => println!("answered: {}", reply.value),
            Err(error) => println!("refused: {}", error.body()),
        }
    }
    Ok(())
}
