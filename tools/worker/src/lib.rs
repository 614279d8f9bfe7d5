//! The runner in a process of its own.
//!
//! A fault of the process that parses patches and starts commands then leaves the one that
//! holds clients, tokens and the store alone, and its loss is told truly. It is a crate
//! of its own so that `codespace-runner`, which does the work, does not carry gRPC, a code
//! generator and HTTP/2 along for whoever needs none of them.
//!
//! [`Remote`] is the gateway's side: a `Runner` whose every call goes to a child over one
//! end of a socket pair. [`worker_main`] is the child's: it owns an `InProcess` runner, ends
//! with every tree when the other end is closed, and holds nothing that outlives it but
//! journals. The way of a call: `remote` → `connection` (one worker, from its start to the
//! end of what it left) → `link` (HTTP/2) → `service` → `InProcess`; what the worker tells
//! unasked goes back through `outbox` and `inbox`. `convert` is both sides' wire form.

mod connection;
mod convert;
mod handles;
mod inbox;
mod link;
mod outbox;
mod preamble;
mod remote;
mod serve;
mod service;
mod setup;
mod undo;
#[allow(
    clippy::all,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    reason = "generated"
)]
mod wire {
    tonic::include_proto!("codespace.worker");
}

pub use remote::Remote;
pub use serve::worker_main;
pub use setup::{Logs, Setup, WorkerHome};
