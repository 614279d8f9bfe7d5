//! One file per Tower layer of CodeSpace. The layers know no tool, no SQL and no
//! file system; what they need of the world are the ports of `codespace-router`.
//!
//! Their order is not decided here but on one page, `src/stack.rs`. Some orders do not
//! even compile: a layer that needs a workspace takes an `AuthorizedCall`, which only
//! authorization makes. So this is a stack,
//!
//! ```
//! # use std::sync::Arc;
//! # use codespace_layers::{AuthorizeLayer, DecodeLayer, LeaseLayer};
//! # use codespace_router::{AuthorizedCall, LeaseOwner, Leases, OnSubject, RawCall, Resolve, ToolError, ToolReply, ToolSpec};
//! # use tower::{Service, ServiceBuilder};
//! fn stack<A, S>(spec: Arc<ToolSpec>, resolve: Arc<dyn Resolve>, leases: Arc<dyn Leases>, tool: S)
//! -> impl Service<RawCall, Response = ToolReply, Error = ToolError>
//! where
//!     A: serde::de::DeserializeOwned + OnSubject + Send + Sync + 'static,
//!     S: Service<AuthorizedCall<A>, Response = ToolReply, Error = ToolError> + Clone + Send + 'static,
//!     S::Future: Send,
//! {
//!     ServiceBuilder::new()
//!         .layer(DecodeLayer::<A>::new(spec))
//!         .layer(AuthorizeLayer::new(resolve))
//!         .layer(LeaseLayer::new(leases, LeaseOwner::Patch))
//!         .service(tool)
//! }
//! ```
//!
//! and this, with the lease taken before anyone asked whether the caller may, is none:
//!
//! ```compile_fail,E0277
//! # use std::sync::Arc;
//! # use codespace_layers::{AuthorizeLayer, DecodeLayer, LeaseLayer};
//! # use codespace_router::{AuthorizedCall, LeaseOwner, Leases, OnSubject, RawCall, Resolve, ToolError, ToolReply, ToolSpec};
//! # use tower::{Service, ServiceBuilder};
//! fn stack<A, S>(spec: Arc<ToolSpec>, resolve: Arc<dyn Resolve>, leases: Arc<dyn Leases>, tool: S)
//! -> impl Service<RawCall, Response = ToolReply, Error = ToolError>
//! where
//!     A: serde::de::DeserializeOwned + OnSubject + Send + Sync + 'static,
//!     S: Service<AuthorizedCall<A>, Response = ToolReply, Error = ToolError> + Clone + Send + 'static,
//!     S::Future: Send,
//! {
//!     ServiceBuilder::new()
//!         .layer(DecodeLayer::<A>::new(spec))
//!         .layer(LeaseLayer::new(leases, LeaseOwner::Patch))
//!         .layer(AuthorizeLayer::new(resolve))
//!         .service(tool)
//! }
//! ```

pub mod authenticate;
pub mod authorize;
pub mod catch_panic;
pub mod deadline;
pub mod decode;
pub mod detach;
#[cfg(any(test, feature = "test-util"))]
pub mod fakes;
mod labels;
pub mod lease;
pub mod meter;
pub mod names;
mod panics;
pub mod per_caller;
mod record;
pub mod refuse;
pub mod replay;
pub mod settle;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod validate;

pub use authenticate::{Authenticate, AuthenticateLayer, Authenticator, Token};
pub use authorize::{Authorize, AuthorizeLayer};
pub use catch_panic::{CatchPanic, CatchPanicLayer};
pub use deadline::{Deadline, DeadlineLayer};
pub use decode::{Decode, DecodeLayer};
pub use detach::{Detach, DetachLayer};
pub use labels::ToolLabels;
pub use lease::{LeaseLayer, Leased};
pub use meter::{Meter, MeterLayer, Outcome, outcome};
pub use per_caller::{CallerLimit, CallerLimitLayer};
pub use replay::{Replay, ReplayLayer};
pub use settle::{Settle, SettleLayer};
pub use trace::{Trace, TraceLayer};
pub use validate::{Checked, ValidateLayer};
