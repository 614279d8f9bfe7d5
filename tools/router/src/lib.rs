//! What every part of CodeSpace speaks of: calls, callers, workspaces, replies,
//! errors, the ports a layer needs, and the [`ToolRouter`] that picks a tool.
//!
//! This crate knows no tool, no SQL, no file system and no protocol. A layer takes
//! one of the call types below and hands on the next:
//!
//! ```text
//! RawCall ──decode──▶ Decoded<A> ──authorize──▶ AuthorizedCall<A> ──▶ the tool
//! ```
//!
//! Only [`Decoded::authorize`] makes an [`AuthorizedCall`], so a layer that needs a
//! workspace and is put above authorization does not compile.

mod call;
mod caller;
mod error;
mod ids;
mod ports;
mod reply;
mod router;
mod spec;
mod transport;
mod workspace;

pub use call::{
    AuthorizedCall, Decoded, Keyed, Lease, OnSubject, RawCall, Subject, TraceContext, Validate,
};
pub use caller::{Authentication, Caller, Scope, Scopes};
pub use error::{BoxError, Code, ToolError};
pub use ids::{ApprovalId, IdFault, IntentId, OperationId, ProcessId, WorkId};
pub use ports::{
    BoxFuture, Event, Fingerprint, LeaseOwner, Leases, Ledger, Lookup, Minted, NewOperation,
    OperationRecord, OperationStatus, Resolve, Settlement,
};
pub use reply::{Recorded, ToolReply, Undo};
pub use router::{BoxTool, Registration, ToolRouter};
pub use spec::{AccessClass, Annotations, ToolSpec};
pub use transport::{Exchange, is_transport_failure};
pub use workspace::{Profile, Workspace, WorkspaceId};
