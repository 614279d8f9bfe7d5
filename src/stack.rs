//! THE page: every layer a call passes, outermost first, each with its reason.
//!
//! A request comes in through [`edge`] (HTTP only), then every call, from whichever
//! transport, goes through [`calls`], and below the router through the list of its
//! tool's class. `ServiceBuilder` lists layers in the order a request meets them.

use std::{sync::Arc, time::Duration};

use axum::Router;
use codespace_layers::{
    AuthenticateLayer, Authenticator, AuthorizeLayer, CallerLimitLayer, CatchPanicLayer,
    DeadlineLayer, DecodeLayer, DetachLayer, LeaseLayer, MeterLayer, ReplayLayer, SettleLayer,
    ToolLabels, TraceLayer, ValidateLayer,
};
use codespace_router::{
    BoxTool, Keyed, LeaseOwner, Leases, Ledger, RawCall, Registration, Resolve, ToolError,
    ToolReply, ToolRouter, Validate,
};
use codespace_tools::{Tool, ToolService};
use tokio_util::task::TaskTracker;
use tower::{ServiceBuilder, util::BoxCloneSyncService};

use crate::{
    config::Public,
    transport::{
        ending::Ending, envelope::EnvelopeLayer, host::Names, http::Mcp, meter::Count,
        step::StepLayer,
    },
};

/// Calls of one caller at once: a runaway client must not take every place.
const CALLS_PER_CALLER: usize = 512;
/// Calls at once: bounds memory; a long poll is a cheap one.
const CALLS: usize = 1024;
/// Beyond the longest wait a tool offers (30 s), a grace period (7 s), and a large patch.
const DEADLINE: Duration = Duration::from_secs(120);

/// The whole stack as one service.
pub type CallService = BoxCloneSyncService<RawCall, ToolReply, ToolError>;

/// What the steps of [`edge`] need.
pub struct Edge {
    /// Whether the server is closing, and which requests are under way.
    pub ending: Ending,
    /// The names the server goes by.
    pub public: Arc<Public>,
    /// Who may call.
    pub authenticator: Authenticator,
    /// What is served behind it.
    pub mcp: Mcp,
}

/// What every HTTP request passes before it can become a call.
pub fn edge(routes: Router, steps: Edge) -> Router {
    routes.layer(
        ServiceBuilder::new()
            // Outermost: refusals are counted too.
            .layer(StepLayer(Count::new()))
            // A closing server lets requests finish, and tells clients to go elsewhere.
            .layer(StepLayer(steps.ending))
            // Host and Origin, before anything is believed of a request: is it meant for us?
            .layer(StepLayer(Names(steps.public)))
            // A request becomes one with a `Caller`, or 401: before a body is held for anyone.
            .layer(AuthenticateLayer::new(steps.authenticator))
            // Body limit and shape, innermost: rmcp then sees well-formed messages only.
            .layer(EnvelopeLayer(steps.mcp)),
    )
}

/// What every call passes.
pub fn calls(router: ToolRouter) -> CallService {
    let names = router.clone();
    let labels = ToolLabels::new(move |tool: &str| names.label(tool));
    let stack = ServiceBuilder::new()
        // Outermost, so that the span covers refusals, and whatever logs below does so inside it.
        .layer(TraceLayer::new(labels.clone()))
        // Sees every outcome, a dropped call too; below trace, so that exemplars have a span.
        .layer(MeterLayer::new(labels))
        // Below the meter, so that a panic is counted as the INTERNAL it becomes.
        .layer(CatchPanicLayer::new())
        // Before any work: one caller's flood is refused at once and takes nobody's place.
        .layer(CallerLimitLayer::new(CALLS_PER_CALLER))
        // The caller's patience. Mutations detach below it and outlive it.
        .layer(DeadlineLayer::new(DEADLINE))
        // tower's own limit sheds instead of queueing: a refusal is better than a hidden wait.
        .map_err(ToolError::from)
        .load_shed()
        .concurrency_limit(CALLS)
        // Always ready; drives the chosen tool's own readiness inside the call.
        .service(router);
    BoxCloneSyncService::new(stack)
}

/// What the classes' layers need of the world.
#[derive(Clone)]
pub struct Classes {
    /// Finds the workspace behind a subject.
    pub resolve: Arc<dyn Resolve>,
    /// Records patches.
    pub ledger: Arc<dyn Ledger>,
    /// One mutation at a time per workspace.
    pub leases: Arc<dyn Leases>,
    /// Detached calls that shutdown waits for.
    pub detached: TaskTracker,
}

impl Classes {
    /// Tools that look: refused or answered, nothing to protect.
    pub fn reading<T: Tool>(&self, tool: T) -> Registration {
        let spec = T::spec();
        let service = ServiceBuilder::new()
            // Types first: everything below reads fields, not JSON.
            .layer(DecodeLayer::<T::Args>::new(Arc::clone(&spec)))
            // Policy before anything touches the workspace.
            .layer(AuthorizeLayer::new(Arc::clone(&self.resolve)))
            // (coordination comes here: counts of waiting user input, added on the way back)
            .service(ToolService(tool));
        Registration {
            spec,
            service: BoxTool::new(service),
        }
    }

    /// Tools that change files and are recorded.
    pub fn writing<T: Tool>(&self, tool: T) -> Registration
    where
        T::Args: Validate + Keyed,
    {
        let spec = T::spec();
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::<T::Args>::new(Arc::clone(&spec)))
            .layer(AuthorizeLayer::new(Arc::clone(&self.resolve)))
            // What can be refused without touching anything leaves no record and uses up no key.
            .layer(ValidateLayer::new())
            // A finished record under the same key is the answer: no lease, no second hold.
            .layer(ReplayLayer::new(Arc::clone(&self.ledger)))
            // (the approval hold comes here: below replay, above the lease, since a call that waits
            //  for a person must hold no workspace)
            // From here the call runs to its end, whoever leaves: no write without its record.
            .layer(DetachLayer::new(self.detached.clone()))
            // Below detach, so that the lease lives as long as the work and not as the caller.
            .layer(LeaseLayer::new(Arc::clone(&self.leases), LeaseOwner::Patch))
            // Under the lease: checks the key again, mints, and stores the end before the lease goes.
            .layer(SettleLayer::new(Arc::clone(&self.ledger)))
            .service(ToolService(tool));
        Registration {
            spec,
            service: BoxTool::new(service),
        }
    }

    /// Tools that start a process, which takes the lease with it.
    pub fn running<T: Tool>(&self, tool: T) -> Registration
    where
        T::Args: Validate,
    {
        let spec = T::spec();
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::<T::Args>::new(Arc::clone(&spec)))
            .layer(AuthorizeLayer::new(Arc::clone(&self.resolve)))
            .layer(ValidateLayer::new())
            // (the approval hold comes here)
            // A caller that leaves cannot drop a spawn before its handle is kept.
            .layer(DetachLayer::new(self.detached.clone()))
            // Handed to the runner, which drops it when the process tree is gone.
            .layer(LeaseLayer::new(
                Arc::clone(&self.leases),
                LeaseOwner::Process,
            ))
            .service(ToolService(tool));
        Registration {
            spec,
            service: BoxTool::new(service),
        }
    }

    /// Tools that act on a process that holds the lease already.
    pub fn driving<T: Tool>(&self, tool: T) -> Registration {
        let spec = T::spec();
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::<T::Args>::new(Arc::clone(&spec)))
            .layer(AuthorizeLayer::new(Arc::clone(&self.resolve)))
            // Bytes half taken by a pipe must not be forgotten because the caller left.
            .layer(DetachLayer::new(self.detached.clone()))
            .service(ToolService(tool));
        Registration {
            spec,
            service: BoxTool::new(service),
        }
    }
}
