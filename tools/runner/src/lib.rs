//! The one place where CodeSpace touches files and starts processes.
//!
//! A tool makes exactly one [`Runner`] call. Which runner answers it, the tool cannot tell.

mod files;
mod in_process;
mod leases;
mod process;
mod runner;

pub use codespace_sandbox::{Features, Plan, TreeKill};
pub use files::{
    FileLimits, FileRoot, Held, LockFault, OpenFile, RootLock, Settled, patch_refusal, path_refusal,
};
pub use in_process::{Home, InProcess};
pub use leases::RootLeases;
pub use process::{
    Confinement, Demand, Heir, Launch, Probe, ProcessLimits, Processes, Verdict, plan,
};
pub use runner::{
    Applied, Change, ChangeKind, Chunk, Dispatch, Encoding, ExecSpec, FileContent, Found, Hunk,
    LimitHit, PatchJob, ProcessState, ProcessStatus, Runner, Started, Termination,
};
