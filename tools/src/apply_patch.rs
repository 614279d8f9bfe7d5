//! `apply_patch`: a V4A patch, all of it or nothing.

use std::{collections::BTreeMap, sync::Arc};

use codespace_patch::{Patch, normalize};
use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, Code, Fingerprint, Keyed, OnSubject, OperationId,
    OperationStatus, Recorded, Subject, ToolError, ToolReply, Validate, Workspace,
};
use codespace_runner::{Change, PatchJob, Runner, patch_refusal, path_refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Tool, tool::refuse_work};

/// The longest operation key, in bytes.
const KEY_BYTES: usize = 256;

/// Arguments of `apply_patch`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The workspace, as workspace_info lists it.
    #[schemars(extend("x-mcp-header" = "Workspace-Id"))]
    workspace_id: String,
    /// The patch: plain text from `*** Begin Patch` to `*** End Patch`.
    patch: String,
    /// Versions that paths must have now, as read answered them, or `absent`.
    #[serde(default)]
    expected_versions: BTreeMap<String, String>,
    /// Your own name for this operation (up to 256 bytes). The same key and arguments again answer
    /// the stored result and change nothing; operation_status finds it by this key.
    #[serde(default)]
    #[schemars(with = "String")]
    operation_key: Option<String>,
    /// Only tell what would happen; write nothing. Needs another key than the real call.
    #[serde(default)]
    check_only: bool,
    /// The work this call belongs to, if any.
    #[serde(default)]
    #[schemars(with = "String")]
    work_id: Option<String>,
    /// Filled in by validation, so that the text is parsed once.
    #[serde(skip)]
    #[schemars(skip)]
    parsed: Option<Arc<Patch>>,
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Workspace(&self.workspace_id)
    }
}

impl Validate for Args {
    fn validate(&mut self, workspace: &Workspace) -> Result<(), ToolError> {
        refuse_work(self.work_id.as_deref())?;
        if let Some(key) = &self.operation_key
            && (key.is_empty() || key.len() > KEY_BYTES)
        {
            return Err(ToolError::new(
                Code::InvalidArguments,
                format!(
                    "operation_key: must be 1 to {KEY_BYTES} bytes long, this one has {}",
                    key.len()
                ),
            ));
        }
        let mut expected = BTreeMap::new();
        for (path, version) in std::mem::take(&mut self.expected_versions) {
            if version != "absent" && !is_version(&version) {
                return Err(ToolError::new(
                    Code::InvalidArguments,
                    format!(
                        "expected_versions[{path:?}]: must be \"absent\" or a version as read answers it (sha256: and 64 hex digits)"
                    ),
                ));
            }
            expected.insert(
                normalize(&path).map_err(|fault| path_refusal(fault, &path))?,
                version,
            );
        }
        self.expected_versions = expected;
        let patch = Patch::parse(&self.patch).map_err(|error| patch_refusal(&error))?;
        for path in patch.paths() {
            refuse_protected(path, workspace)?;
        }
        self.parsed = Some(Arc::new(patch));
        Ok(())
    }
}

fn is_version(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

// A hook or a config of git runs later, outside any sandbox, with the user's rights.
fn refuse_protected(path: &str, workspace: &Workspace) -> Result<(), ToolError> {
    let refused = if path.split('/').any(|part| part == ".git") {
        Some(".git")
    } else {
        workspace.protect.iter().map(String::as_str).find(|kept| {
            path.strip_prefix(kept)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    match refused {
        None => Ok(()),
        Some(kept) => Err(ToolError::new(
            Code::Unauthorized,
            format!("{path}: {kept} is protected, no patch may touch it; nothing was written. Leave this file out of the patch"),
        )
        .with_detail("path", path)),
    }
}

impl Keyed for Args {
    fn operation_key(&self) -> Option<&str> {
        self.operation_key.as_deref()
    }

    fn fingerprint(&self) -> Fingerprint {
        // Length prefixes keep two different argument lists from reading the same.
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(b"apply_patch");
        part(self.workspace_id.as_bytes());
        part(self.patch.as_bytes());
        part(&[u8::from(self.check_only)]);
        for (path, version) in &self.expected_versions {
            part(path.as_bytes());
            part(version.as_bytes());
        }
        Fingerprint(hash.finalize().into())
    }

    fn files(&self) -> Vec<String> {
        self.parsed
            .as_ref()
            .map(|patch| patch.paths().into_iter().map(str::to_owned).collect())
            .unwrap_or_default()
    }
}

/// Result of `apply_patch`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// `applied` or, for a preview, `checked`. `failed_rolled_back`: nothing changed after all.
    /// `failed_partial` and `unknown`: look at the files.
    status: OperationStatus,
    /// What the call is recorded as; operation_status takes it.
    operation_id: OperationId,
    /// Whether this is the stored answer of an earlier call with the same key.
    replayed: bool,
    /// Every path the patch named, sorted.
    files: Vec<String>,
    /// One row per path that ends up different; of a preview, that would.
    changes: Vec<Change>,
    /// Why, when it is not a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Applies or previews a patch.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct ApplyPatch(pub Arc<dyn Runner>);

impl Tool for ApplyPatch {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply a patch";
    const DESCRIPTION: &'static str = "Change files with a patch in the V4A format, all of it or nothing. \
Example:\n*** Begin Patch\n*** Update File: src/main.py\n@@ def main():\n-    print(\"old\")\n+    print(\"new\")\n\
*** Add File: notes.txt\n+first line\n*** Delete File: old.txt\n*** End Patch\n\
Paths are relative. In an update, context lines start with a blank, removed ones with `-`, added ones with `+`; \
`@@ text` jumps to that line first; `*** Move to: path` after the Update line renames. Existing files are never \
overwritten by Add or Move. `.git` is refused. With check_only nothing is written and you see what would match. \
Give expected_versions to refuse if a file changed since you read it, and an operation_key so that after a lost \
connection operation_status tells what became of it. If a hunk is not found, details name the closest place: read the \
file again and repeat with its exact lines. WORKSPACE_BUSY: a command or another patch runs; wait and repeat.";
    const CLASS: AccessClass = AccessClass::Writing;
    const ANNOTATIONS: Annotations = Annotations {
        read_only: false,
        destructive: true,
        idempotent: false,
        open_world: false,
    };

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let workspace = Arc::clone(call.workspace()?);
        let unrecorded = || ToolError::internal("a patch reached its tool without a record");
        let operation = call.operation().cloned().ok_or_else(unrecorded)?;
        let files = call.args().files();
        let args = call.into_args();
        let patch = args
            .parsed
            .ok_or_else(|| ToolError::internal("a patch reached its tool unparsed"))?;
        let job = PatchJob {
            operation: operation.clone(),
            patch,
            text: args.patch,
            expected: args.expected_versions,
            check_only: args.check_only,
        };
        let applied = self.0.apply(&workspace.id, job).await?;
        let mut reply = ToolReply::from_result(&Out {
            status: applied.status,
            operation_id: operation,
            replayed: false,
            files,
            changes: applied.changes,
            reason: applied.reason.clone(),
        })?;
        reply.recorded = Some(Recorded {
            status: applied.status,
            reason: applied.reason,
            undo: applied.undo,
        });
        Ok(reply)
    }
}
