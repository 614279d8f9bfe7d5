//! `operation_status`: what became of a patch.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, Event, Ledger, Lookup, OnSubject, OperationId,
    OperationStatus, Subject, ToolError, ToolReply,
};
use codespace_runner::Change;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Tool, tool::LOOKS};

/// Arguments of `operation_status`: exactly one of the two.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The id apply_patch answered.
    #[serde(default)]
    #[schemars(with = "String")]
    operation_id: Option<String>,
    /// The key you gave to apply_patch.
    #[serde(default)]
    #[schemars(with = "String")]
    operation_key: Option<String>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        match (&self.operation_id, &self.operation_key) {
            (Some(id), None) => Subject::Operation(id),
            (None, Some(key)) => Subject::OperationKey(key),
            _ => Subject::NoOperation,
        }
    }
}

/// The only kind of operation there is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Patch,
}

/// Result of `operation_status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// Its id.
    operation_id: OperationId,
    /// Always `patch`.
    kind: Kind,
    /// What became of it.
    status: OperationStatus,
    /// Where it happened.
    workspace_id: String,
    /// When it began, RFC 3339 UTC.
    created_at: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    /// Every path it named, sorted.
    files: Vec<String>,
    /// One row per path that ended up different.
    changes: Vec<Change>,
    /// Its history, oldest first.
    events: Vec<Event>,
    /// Of a rejected one, the error it was answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    error: Option<Value>,
}

/// Looks an operation up.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a ledger has nothing to show")]
pub struct OperationStatusTool(pub Arc<dyn Ledger>);

impl Tool for OperationStatusTool {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "operation_status";
    const TITLE: &'static str = "Look a patch up";
    const DESCRIPTION: &'static str = "Tell what became of a patch, by operation_id or by the operation_key you gave \
(exactly one of them). Use it after a lost connection or a restart, before you send a patch again. `applied`: it is \
done. `rejected` and `failed_rolled_back`: nothing changed. `running`: not ended yet. `failed_partial` and `unknown`: \
read the files. OPERATION_NOT_FOUND by key means that it was not begun: send it again.";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let args = call.args();
        let gone = || args.subject().not_found();
        let lookup = match (&args.operation_id, &args.operation_key) {
            (Some(id), None) => Lookup::Id(id.parse().map_err(|_| gone())?),
            (None, Some(key)) => Lookup::Key {
                caller: call.caller().subject().to_owned(),
                key: key.clone(),
            },
            _ => return Err(gone()),
        };
        let record = self.0.find(lookup).await?.ok_or_else(gone)?;
        let changes = record
            .result
            .as_ref()
            .and_then(|result| result.get("changes"))
            .and_then(|changes| serde_json::from_value(changes.clone()).ok())
            .unwrap_or_default();
        let error = record
            .result
            .filter(|_| record.status == OperationStatus::Rejected);
        ToolReply::from_result(&Out {
            operation_id: record.operation_id,
            kind: Kind::Patch,
            status: record.status,
            workspace_id: record.workspace.as_str().to_owned(),
            created_at: record.created_at,
            finished_at: record.finished_at,
            files: record.files,
            changes,
            events: record.events,
            error,
        })
    }
}
