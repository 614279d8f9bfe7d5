//! `read`: a file's content and version.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use codespace_runner::{Encoding, Runner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Tool,
    tool::{LOOKS, refuse_work},
};

/// Arguments of `read`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The workspace, as workspace_info lists it.
    #[schemars(extend("x-mcp-header" = "Workspace-Id"))]
    workspace_id: String,
    /// Path of the file relative to the workspace root, with `/`.
    path: String,
    /// The work this call belongs to, if any.
    #[serde(default)]
    #[schemars(with = "String")]
    work_id: Option<String>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Workspace(&self.workspace_id)
    }
}

/// Result of `read`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// The path as asked.
    path: String,
    /// The text, or base64 of the bytes, as `encoding` says.
    content: String,
    /// `utf-8`, or `base64` when the file is not UTF-8.
    encoding: Encoding,
    /// `sha256:` and 64 hex digits over the whole file, also when truncated.
    version: String,
    /// The whole file's size in bytes.
    size: u64,
    /// Whether `content` is only the start of the file.
    truncated: bool,
}

/// Reads one file.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct Read(pub Arc<dyn Runner>);

impl Tool for Read {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "read";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Read one file of a workspace: its content, its version (a hash of the whole \
file) and its size. Text comes as it is, line endings and byte-order mark included; a file that is not UTF-8 comes as \
base64. At most 1 MiB is returned (`truncated` tells). Refuses directories, devices, symbolic links and paths outside \
the workspace. Pass the version to apply_patch as expected_versions to be sure that you change what you read.";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        refuse_work(call.args().work_id.as_deref())?;
        let workspace = Arc::clone(call.workspace()?);
        let path = call.into_args().path;
        let file = self.0.read(&workspace.id, &path).await?;
        ToolReply::from_result(&Out {
            path,
            content: file.content,
            encoding: file.encoding,
            version: file.version,
            size: file.size,
            truncated: file.truncated,
        })
    }
}
