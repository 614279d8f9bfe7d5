//! `find`: which files there are.

use std::sync::Arc;

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use codespace_runner::Runner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Tool,
    tool::{LOOKS, refuse_work},
};

/// Arguments of `find`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The workspace, as workspace_info lists it.
    #[schemars(extend("x-mcp-header" = "Workspace-Id"))]
    workspace_id: String,
    /// A path glob: `*`, `?`, `**`, `[...]`, `{a,b}`. Without `/` it matches at any depth;
    /// with `/` it is anchored at the root. Left out: every file.
    #[serde(default)]
    #[schemars(with = "String")]
    glob: Option<String>,
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

/// Result of `find`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// Matching files relative to the root, in byte order.
    paths: Vec<String>,
    /// Whether there are more; narrow the glob to see them.
    truncated: bool,
}

/// Finds files by glob.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct Find(pub Arc<dyn Runner>);

impl Tool for Find {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "find";
    const TITLE: &'static str = "Find files";
    const DESCRIPTION: &'static str = "List the files of a workspace whose path matches a glob, sorted. `*.rs` matches \
at any depth, `src/*.rs` only in src, `src/**` everything below it. Hidden files are listed, .gitignore is not applied, \
symbolic links are neither listed nor followed, and `.git` is skipped unless the glob names it. At most 1,000 paths come \
(`truncated` tells): narrow the glob then.";
    const CLASS: AccessClass = AccessClass::Reading;
    const ANNOTATIONS: Annotations = LOOKS;

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        refuse_work(call.args().work_id.as_deref())?;
        let found = self
            .0
            .find(&call.workspace()?.id, call.args().glob.as_deref())
            .await?;
        ToolReply::from_result(&Out {
            paths: found.paths,
            truncated: found.truncated,
        })
    }
}
