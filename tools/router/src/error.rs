//! One closed error for the whole stack.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{ApprovalId, OperationId};

/// What tower's own layers and the test mock speak.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

// Meaning and rustdoc are one string, written once.
macro_rules! codes {
    ($($name:ident = $wire:literal: $meaning:literal,)*) => {
        /// The wire codes of an error body; a label value, so a closed set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $meaning] $name,)* }

        impl Code {
            /// Every code, for documents and metric registration.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $wire,)* }
            }

            /// What the code means, in one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$name => $meaning,)* }
            }
        }
    };
}

codes! {
    Unauthorized = "UNAUTHORIZED": "Tool policy refused the action; nothing was recorded.",
    WorkspaceNotFound = "WORKSPACE_NOT_FOUND": "The workspace id is not registered, or not visible to this caller.",
    WorkspaceBusy = "WORKSPACE_BUSY": "Another mutation or a live command holds the workspace.",
    InvalidPatch = "INVALID_PATCH": "The patch could not be parsed or does not fit; details have line, path and hunk.",
    InvalidCommand = "INVALID_COMMAND": "The argument vector is bad; refused before anything ran.",
    ProcessSpawnFailed = "PROCESS_SPAWN_FAILED": "The backend confirms that no managed process was started.",
    PathEscape = "PATH_ESCAPE": "The path is absolute, contains `..` or NUL, or leads outside the workspace.",
    FileNotFound = "FILE_NOT_FOUND": "No such file in the workspace.",
    PathNotDirectory = "PATH_NOT_DIRECTORY": "A file stands where the path wants a directory.",
    FileOperationFailed = "FILE_OPERATION_FAILED": "The file system refused; the message has its reason.",
    SymlinkRejected = "SYMLINK_REJECTED": "A symbolic link stands on the path; links are never followed.",
    SpecialFileRejected = "SPECIAL_FILE_REJECTED": "A device, socket, FIFO, or a directory where a file is wanted.",
    AddFileExists = "ADD_FILE_EXISTS": "Add names a path that exists; nothing is overwritten.",
    MoveDestinationExists = "MOVE_DESTINATION_EXISTS": "Move names a destination that exists; nothing is overwritten.",
    VersionConflict = "VERSION_CONFLICT": "The content differs from the expected version; details have the current one.",
    OperationKeyConflict = "OPERATION_KEY_CONFLICT": "This operation key was used with different arguments.",
    OperationNotFound = "OPERATION_NOT_FOUND": "No such operation, or not exactly one identifier was given.",
    ProcessNotFound = "PROCESS_NOT_FOUND": "No such handle, or it expired, or (writing) its stdin is closed.",
    ProcessNotTty = "PROCESS_NOT_TTY": "The process runs on pipes and has no terminal to resize.",
    ProcessNotRunning = "PROCESS_NOT_RUNNING": "The process has exited.",
    OutputLimit = "OUTPUT_LIMIT": "A helper's output passed its cap.",
    Timeout = "TIMEOUT": "The call, a managed command or a helper passed its time limit.",
    WorkNotFound = "WORK_NOT_FOUND": "No such work, or not visible to this caller.",
    WorkClosed = "WORK_CLOSED": "The work is closed.",
    IntentNotFound = "INTENT_NOT_FOUND": "No such intent.",
    IntentAlreadyClaimed = "INTENT_ALREADY_CLAIMED": "The intent was claimed already.",
    IntentNotEditable = "INTENT_NOT_EDITABLE": "The intent's state does not allow the change.",
    IntentRevisionConflict = "INTENT_REVISION_CONFLICT": "The intent was changed since the revision given.",
    QueueNotEmpty = "QUEUE_NOT_EMPTY": "Reserved; `work_finish` answers `closed: false`.",
    ApprovalRequired = "APPROVAL_REQUIRED": "Allowed by policy, waiting for confirmation.",
    ApprovalNotFound = "APPROVAL_NOT_FOUND": "No such hold.",
    ApprovalConflict = "APPROVAL_CONFLICT": "The hold's state does not allow it.",
    ApprovalAmbiguous = "APPROVAL_AMBIGUOUS": "A resume was interrupted and its result is unknown.",
    LimitExceeded = "LIMIT_EXCEEDED": "A configured cap is reached; nothing was done.",
    StoreUnavailable = "STORE_UNAVAILABLE": "The ledger cannot be read or written; nothing was done.",
    Internal = "INTERNAL": "A fault of the server itself; it is in the server's log.",
    InvalidArguments = "INVALID_ARGUMENTS": "The arguments do not fit the input schema (answered as JSON-RPC error -32602).",
    UnknownTool = "UNKNOWN_TOOL": "No tool has this name (answered as JSON-RPC error -32602).",
    Cancelled = "CANCELLED": "The caller left before the call was answered; nobody receives it.",
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Code {
    /// The code with this wire name.
    #[must_use]
    pub fn from_wire(name: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

/// Why a call was not done, or failed: the one error of the whole stack.
///
/// The message says what to do next, and never holds a token, an absolute host
/// path, or file content.
#[derive(Debug)]
pub struct ToolError {
    code: Code,
    message: String,
    operation_id: Option<OperationId>,
    approval_id: Option<ApprovalId>,
    details: Map<String, Value>,
    replayed: bool,
    source: Option<BoxError>,
}

impl ToolError {
    /// An error with a code and a message for the client.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            operation_id: None,
            approval_id: None,
            details: Map::new(),
            replayed: false,
            source: None,
        }
    }

    /// A fault of ours. The cause goes to the log, never to the client.
    pub fn internal(cause: impl Into<BoxError>) -> Self {
        let mut error = Self::new(
            Code::Internal,
            "the server failed at this call; its log has the reason. Look at the state before you repeat it",
        );
        error.source = Some(cause.into());
        error
    }

    /// Adds a fact to `details`.
    #[must_use]
    pub fn with_detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Replaces `details`.
    #[must_use]
    pub fn with_details(mut self, details: Map<String, Value>) -> Self {
        self.details = details;
        self
    }

    /// Names the operation that recorded this error.
    #[must_use]
    pub fn with_operation(mut self, id: OperationId) -> Self {
        self.operation_id = Some(id);
        self
    }

    /// Names the hold the call waits for.
    #[must_use]
    pub fn with_approval(mut self, id: ApprovalId) -> Self {
        self.approval_id = Some(id);
        self
    }

    /// Keeps what caused this error for the log.
    #[must_use]
    pub fn with_source(mut self, cause: impl Into<BoxError>) -> Self {
        self.source = Some(cause.into());
        self
    }

    /// Marks the stored answer of an earlier call: `details.replayed` is true.
    #[must_use]
    pub fn into_replayed(mut self) -> Self {
        self.replayed = true;
        self.with_detail("replayed", true)
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What the client is told.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The facts beside the message.
    #[must_use]
    pub fn details(&self) -> &Map<String, Value> {
        &self.details
    }

    /// The operation that recorded this error, if one did.
    #[must_use]
    pub fn operation_id(&self) -> Option<&OperationId> {
        self.operation_id.as_ref()
    }

    /// Whether this is the stored answer of an earlier call.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// The body a client gets: `code, message, operation_id?, approval_id?, details?`.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = json!({ "code": self.code.as_str(), "message": self.message });
        if let Value::Object(map) = &mut body {
            if let Some(id) = &self.operation_id {
                map.insert("operation_id".into(), id.as_str().into());
            }
            if let Some(id) = &self.approval_id {
                map.insert("approval_id".into(), id.as_str().into());
            }
            if !self.details.is_empty() {
                map.insert("details".into(), Value::Object(self.details.clone()));
            }
        }
        body
    }

    /// The error a stored [`body`](Self::body) stands for; `None` for another shape.
    #[must_use]
    pub fn from_body(body: &Value) -> Option<Self> {
        let code = Code::from_wire(body.get("code")?.as_str()?)?;
        let mut error = Self::new(code, body.get("message")?.as_str()?);
        if let Some(id) = body.get("operation_id").and_then(Value::as_str) {
            error.operation_id = id.parse().ok();
        }
        if let Some(details) = body.get("details").and_then(Value::as_object) {
            error.details = details.clone();
        }
        Some(error)
    }
}

impl std::fmt::Display for ToolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for ToolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|cause| cause as _)
    }
}

impl From<BoxError> for ToolError {
    /// Recovers a boxed `ToolError` and names what tower's own layers refuse.
    fn from(error: BoxError) -> Self {
        let error = match error.downcast::<ToolError>() {
            Ok(own) => return *own,
            Err(other) => other,
        };
        if error.is::<tower::timeout::error::Elapsed>() {
            return Self::new(
                Code::Timeout,
                "the call passed its deadline: what only reads was stopped, and may be repeated; what writes or runs goes on and is recorded, so ask operation_status or process_status first",
            );
        }
        if error.is::<tower::load_shed::error::Overloaded>() {
            return Self::new(
                Code::LimitExceeded,
                "too many calls at once; wait for one to end, then repeat this one",
            );
        }
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_survives_the_store() {
        let error = ToolError::new(Code::VersionConflict, "changed")
            .with_detail("path", "a.txt")
            .with_operation("op_00000000000000000000000000000001".parse().expect("id"));
        let back = ToolError::from_body(&error.body()).expect("a body");
        assert_eq!(back.body(), error.body());
    }

    #[test]
    fn a_boxed_error_keeps_its_kind() {
        let boxed: BoxError = Box::new(ToolError::new(Code::WorkspaceBusy, "busy"));
        assert_eq!(ToolError::from(boxed).code(), Code::WorkspaceBusy);
        let elapsed: BoxError = Box::new(tower::timeout::error::Elapsed::new());
        assert_eq!(ToolError::from(elapsed).code(), Code::Timeout);
    }

    #[test]
    fn an_internal_error_tells_the_client_nothing_of_its_cause() {
        let error = ToolError::internal("secret /root/path");
        assert!(!error.body().to_string().contains("secret"));
    }
}
