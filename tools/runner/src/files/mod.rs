//! Files beneath a root: reading, listing, and the patch transaction.
//!
//! `root` holds the root and makes every open; `read` and `find` look. A patch goes
//! `apply` (plan) → `load` (what is there) → `transaction` (journal, `stage`, `commit`)
//! → `restore` when something fails, and `settle` after a crash. Both ways back decide by
//! what is on disk, so one function serves the live case and the dead one.

mod apply;
mod attributes;
mod commit;
mod find;
mod glob;
mod journal;
mod load;
mod path;
mod read;
mod restore;
mod root;
mod settle;
mod stage;
mod steps;
#[cfg(test)]
mod tests;
mod transaction;

pub use apply::{patch_refusal, path_refusal};
pub use read::OpenFile;
pub use root::{FileLimits, FileRoot, Held, LockFault, RootLock};
pub use settle::Settled;
