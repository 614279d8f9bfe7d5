//! What the tests of the layers share.

use codespace_router::{
    AccessClass, AuthorizedCall, Caller, Code, Decoded, Fingerprint, Keyed, OnSubject, RawCall,
    Subject, ToolError, ToolReply, Validate, Workspace,
};
use metrics_util::debugging::{DebugValue, Snapshotter};
use serde::Deserialize;
use serde_json::json;
use tower_test::mock::{Handle, SendResponse};

use crate::{ToolLabels, fakes};

#[derive(Debug, Deserialize)]
pub(crate) struct Args {
    pub(crate) workspace: String,
    #[serde(default)]
    pub(crate) key: Option<String>,
    #[serde(default)]
    pub(crate) print: u8,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Workspace(&self.workspace)
    }
}

impl Validate for Args {
    fn validate(&mut self, _: &Workspace) -> Result<(), ToolError> {
        if self.print == 99 {
            Err(ToolError::new(Code::InvalidPatch, "bad"))
        } else {
            Ok(())
        }
    }
}

impl Keyed for Args {
    fn operation_key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint([self.print; 32])
    }

    fn files(&self) -> Vec<String> {
        vec!["a.txt".to_owned()]
    }
}

pub(crate) fn raw(tool: &str, caller: &str) -> RawCall {
    let caller = Caller::new(
        caller.to_owned(),
        codespace_router::Scopes::all(),
        None,
        codespace_router::Authentication::Bearer,
    );
    RawCall::new(tool, serde_json::Map::new(), caller)
}

pub(crate) fn decoded(workspace: &str, key: Option<&str>, print: u8) -> Decoded<Args> {
    let args = Args {
        workspace: workspace.to_owned(),
        key: key.map(str::to_owned),
        print,
    };
    Decoded::new(
        fakes::spec("toy", AccessClass::Writing),
        Caller::local(),
        args,
    )
}

pub(crate) async fn authorized(key: Option<&str>, print: u8) -> AuthorizedCall<Args> {
    decoded("demo", key, print)
        .authorize(&fakes::OneWorkspace)
        .await
        .expect("allowed")
}

pub(crate) fn labels() -> ToolLabels {
    ToolLabels::new(|tool| if tool == "toy" { "toy" } else { "unknown" })
}

pub(crate) fn reply() -> ToolReply {
    ToolReply {
        value: json!({ "done": true }),
        replayed: false,
        recorded: None,
    }
}

pub(crate) fn busy() -> ToolError {
    ToolError::new(Code::WorkspaceBusy, "busy")
}

/// Counters and gauges as `name{a=b} value`, sorted; zeros left out.
pub(crate) fn series(snapshotter: &Snapshotter) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<String> = key
            .key()
            .labels()
            .map(|l| format!("{}={}", l.key(), l.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(n) => n.to_string(),
            DebugValue::Gauge(n) => n.to_string(),
            DebugValue::Histogram(n) => n.len().to_string(),
        };
        if value != "0" {
            lines.push(format!(
                "{}{{{}}} {value}",
                key.key().name(),
                labels.join(",")
            ));
        }
    }
    lines.sort();
    lines
}

/// The next request that reached the mock, and the way to answer it.
pub(crate) async fn next<R>(handle: &mut Handle<R, ToolReply>) -> (R, SendResponse<ToolReply>) {
    handle.next_request().await.expect("a request")
}
