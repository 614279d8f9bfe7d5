//! Files beneath a root: reading, listing, and the patch transaction.
//!
//! `root` holds the root and makes every open; `read` and `find` look. A patch goes
//! `apply` (plan) → `load` (what is there) → `transaction` (journal, `stage`, `commit`)
//! → `restore` when something fails, `kept` when it is over, and `settle` after a crash
//! (from what `journals` still holds). Both ways back decide by
//! what is on disk, so one function serves the live case and the dead one.

mod apply;
mod attributes;
mod commit;
mod find;
mod glob;
mod journal;
mod journals;
mod kept;
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
pub use journals::Word;
pub use read::OpenFile;
pub use root::{FileLimits, FileRoot, LockFault, RootLock};
pub use settle::Settled;
