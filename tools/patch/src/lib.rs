//! The V4A patch engine: patch text in, planned file contents out.
//!
//! Nothing here touches a file system. [`Patch::parse`] reads the text and checks every path lexically;
//! [`plan`] asks a [`Tree`] for the files it needs and answers what each path would hold afterwards.
//! File content is bytes throughout: a file that is not UTF-8 can be patched and is never re-encoded.

mod closest;
mod error;
mod lines;
mod matching;
mod parse;
mod path;
mod places;
mod plan;
mod rows;
mod text;
mod update;
mod walk;

pub use closest::Closest;
pub use error::{Details, ErrorCode, PatchError, PlanError};
pub use matching::MatchKind;
pub use parse::{Anchor, Hunk, HunkLine, LineKind, Op, Patch};
pub use path::{PathFault, normalize};
pub use plan::{Entry, Tree, plan};
pub use rows::{ChangeKind, Plan, PlannedChange};
pub use update::HunkReport;
