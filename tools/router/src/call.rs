//! A call on its way through the stack.

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    BoxFuture, Caller, Code, Fingerprint, OperationId, Resolve, Scope, ToolError, ToolSpec,
    Workspace,
};

/// W3C trace context as the caller sent it, unparsed.
#[derive(Clone, Debug, Default)]
pub struct TraceContext {
    /// `traceparent`, from `_meta` or else from the HTTP header.
    pub parent: Option<String>,
    /// `tracestate`, of the same origin.
    pub state: Option<String>,
}

/// What came in: nothing decoded, nothing decided.
#[derive(Clone, Debug)]
pub struct RawCall {
    /// The tool's name as the client wrote it.
    pub tool: Arc<str>,
    /// The arguments as the client wrote them.
    pub arguments: Map<String, Value>,
    /// Who calls.
    pub caller: Caller,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// Where the caller's trace goes on.
    pub trace: TraceContext,
}

impl RawCall {
    /// A call without deadline or trace.
    #[must_use]
    pub fn new(tool: &str, arguments: Map<String, Value>, caller: Caller) -> Self {
        Self {
            tool: tool.into(),
            arguments,
            caller,
            deadline: None,
            trace: TraceContext::default(),
        }
    }
}

/// What a call is about. The workspace behind it is found by [`Resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The server itself: every workspace the caller may use.
    Server,
    /// A workspace by its id.
    Workspace(&'a str),
    /// A managed process by its id.
    Process(&'a str),
    /// A recorded patch, by its id.
    Operation(&'a str),
    /// A recorded patch, by the caller's own key.
    OperationKey(&'a str),
    /// Not exactly one identifier of an operation was given.
    NoOperation,
}

impl Subject<'_> {
    /// What a caller is told who may not see it: the same as if it did not exist.
    #[must_use]
    pub fn not_found(self) -> ToolError {
        match self {
            Subject::Server | Subject::Workspace(_) => ToolError::new(
                Code::WorkspaceNotFound,
                "no such workspace; call workspace_info without arguments for those you may use",
            ),
            Subject::Process(_) => ToolError::new(
                Code::ProcessNotFound,
                "no such process, or its handle has expired; start a new one with exec_command",
            ),
            Subject::Operation(_) | Subject::OperationKey(_) => ToolError::new(
                Code::OperationNotFound,
                "no such operation is recorded; if the patch was sent under this key, it was not begun and may be sent again",
            ),
            Subject::NoOperation => ToolError::new(
                Code::OperationNotFound,
                "give exactly one of operation_id and operation_key",
            ),
        }
    }
}

/// Arguments that say what they are about.
pub trait OnSubject {
    /// The subject.
    fn subject(&self) -> Subject<'_>;
}

/// Arguments that can be refused without touching anything.
pub trait Validate {
    /// Checks, and may keep what the check worked out (a parsed patch).
    ///
    /// # Errors
    /// The refusal; it leaves no record and uses up no key.
    fn validate(&mut self, workspace: &Workspace) -> Result<(), ToolError>;
}

/// Arguments of a call that is recorded and can be repeated by key.
pub trait Keyed {
    /// The caller's key, if it gave one.
    fn operation_key(&self) -> Option<&str>;
    /// What the key stands for: the known arguments with defaults filled in.
    fn fingerprint(&self) -> Fingerprint;
    /// Every path the call names, sorted.
    fn files(&self) -> Vec<String>;
}

/// A call whose arguments have the tool's own type. Not yet allowed to do anything.
pub struct Decoded<A> {
    spec: Arc<ToolSpec>,
    caller: Caller,
    args: A,
}

impl<A> Decoded<A> {
    /// A decoded call of the tool `spec`.
    pub fn new(spec: Arc<ToolSpec>, caller: Caller, args: A) -> Self {
        Self { spec, caller, args }
    }

    /// The arguments.
    pub fn args(&self) -> &A {
        &self.args
    }
}

impl<A: OnSubject> Decoded<A> {
    /// Finds the subject and applies policy: the only way to an [`AuthorizedCall`].
    ///
    /// # Errors
    /// What the caller may not see is not found; what it may see but not do is
    /// `UNAUTHORIZED`.
    pub async fn authorize(self, resolve: &dyn Resolve) -> Result<AuthorizedCall<A>, ToolError> {
        let Self { spec, caller, args } = self;
        let subject = args.subject();
        let workspace = match subject {
            Subject::Server => None,
            Subject::NoOperation => return Err(subject.not_found()),
            _ => {
                let found = resolve.workspace(subject, &caller).await?;
                match found.filter(|workspace| caller.sees(workspace.id.as_str())) {
                    Some(workspace) => Some(workspace),
                    None => return Err(subject.not_found()),
                }
            }
        };
        let scope = spec.class.scope();
        if !caller.scopes().has(scope) {
            return Err(missing_scope(&spec, scope));
        }
        if let Some(workspace) = &workspace
            && spec.class.mutates()
            && workspace.profile == crate::Profile::ReadOnly
        {
            return Err(ToolError::new(
                Code::Unauthorized,
                format!(
                    "workspace {} is read-only, and {} changes things; nothing was done. Its operator can set profile = \"workspace-write\"",
                    workspace.id, spec.name
                ),
            ));
        }
        Ok(AuthorizedCall {
            spec,
            caller,
            args,
            workspace,
            lease: None,
            operation: None,
        })
    }
}

fn missing_scope(spec: &ToolSpec, scope: Scope) -> ToolError {
    ToolError::new(
        Code::Unauthorized,
        format!(
            "{} needs the scope {:?}, which this caller does not have; nothing was done",
            spec.name,
            scope.as_str()
        ),
    )
}

/// A call that policy allows. Made by [`Decoded::authorize`] and nowhere else.
pub struct AuthorizedCall<A> {
    spec: Arc<ToolSpec>,
    caller: Caller,
    args: A,
    workspace: Option<Arc<Workspace>>,
    lease: Option<Lease>,
    operation: Option<OperationId>,
}

/// A held workspace lease; dropping it frees the workspace.
pub type Lease = Box<dyn Send + Sync>;

impl<A> AuthorizedCall<A> {
    /// The tool that is called.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Who calls.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The arguments.
    pub fn args(&self) -> &A {
        &self.args
    }

    /// The arguments, for a layer that keeps what it worked out.
    pub fn args_mut(&mut self) -> &mut A {
        &mut self.args
    }

    /// Takes the call apart at its end.
    pub fn into_args(self) -> A {
        self.args
    }

    /// The workspace the call is about.
    ///
    /// # Errors
    /// `INTERNAL` for a call about the server as a whole; no tool that asks has one.
    pub fn workspace(&self) -> Result<&Arc<Workspace>, ToolError> {
        self.workspace.as_ref().ok_or_else(|| {
            ToolError::internal("a call about no workspace reached a layer that needs one")
        })
    }

    /// Puts the lease into the call, where it lives as long as the work.
    pub fn hold_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Takes the lease out, to hand it to what lives longer than the call.
    pub fn take_lease(&mut self) -> Option<Lease> {
        self.lease.take()
    }

    /// Names the operation this call is recorded as.
    pub fn record_as(&mut self, operation: OperationId) {
        self.operation = Some(operation);
    }

    /// The operation this call is recorded as.
    pub fn operation(&self) -> Option<&OperationId> {
        self.operation.as_ref()
    }
}

impl<A> fmt::Debug for Decoded<A> {
    // Arguments hold paths, patches and commands, which no log may have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoded")
            .field("tool", &self.spec.name)
            .finish_non_exhaustive()
    }
}

impl<A> fmt::Debug for AuthorizedCall<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizedCall")
            .field("tool", &self.spec.name)
            .finish_non_exhaustive()
    }
}

/// A boxed future of a port's answer.
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, ToolError>>;
