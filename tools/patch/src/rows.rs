//! What a patch changed: the start compared with the end, whatever happened between.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::plan::{File, Node, Slot};
use crate::update::HunkReport;

/// What a patch would do to a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One row per path that ends up different, sorted by path. A move is one row, under the old path.
    pub changes: Vec<PlannedChange>,
}

/// One path that ends up different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The path; the old one of a move.
    pub path: String,
    /// What happens to it.
    pub kind: ChangeKind,
    /// Where a moved file ends up. That path has its own `Update` row only if it held another file before.
    pub moved_to: Option<String>,
    /// The bytes at `path` before; none for an Add.
    pub before: Option<Arc<Vec<u8>>>,
    /// The bytes afterwards: at `moved_to` for a move, at `path` otherwise; none for a Delete.
    pub after: Option<Arc<Vec<u8>>>,
    /// How the hunks that made `after` were placed, in the order of the patch.
    pub hunks: Vec<HunkReport>,
}

/// What happens to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Nothing was there.
    Add,
    /// Other bytes were there.
    Update,
    /// Nothing is there afterwards.
    Delete,
    /// Nothing is there afterwards, because the file is at `moved_to`.
    Move,
}

pub(crate) fn compare(slots: &HashMap<String, Slot>) -> Plan {
    // Where each file of the start is now.
    let homes: HashMap<&str, (&str, &File)> = slots
        .iter()
        .filter_map(|(path, slot)| {
            let file = now(slot)?;
            Some((file.origin.as_deref()?, (path.as_str(), file)))
        })
        .collect();
    // A file counts as moved only if nothing else took its old path: that path has one row.
    let moved = |origin: &str| {
        slots
            .get(origin)
            .is_some_and(|slot| slot.before.is_some() && now(slot).is_none())
    };
    let mut changes: Vec<PlannedChange> = slots
        .iter()
        .filter_map(|(path, slot)| {
            let (kind, moved_to, file) = match (&slot.before, now(slot)) {
                (None, None) => return None,
                (Some(before), Some(file)) if *before == file.bytes => return None,
                (Some(_), Some(file)) => (ChangeKind::Update, None, Some(file)),
                (None, Some(file)) if file.origin.as_deref().is_some_and(moved) => return None,
                (None, Some(file)) => (ChangeKind::Add, None, Some(file)),
                (Some(_), None) => match homes.get(path.as_str()) {
                    Some((home, file)) => (ChangeKind::Move, Some((*home).to_owned()), Some(*file)),
                    None => (ChangeKind::Delete, None, None),
                },
            };
            Some(PlannedChange {
                path: path.clone(),
                kind,
                moved_to,
                before: slot.before.clone(),
                after: file.map(|file| Arc::clone(&file.bytes)),
                hunks: file.map(|file| file.hunks.clone()).unwrap_or_default(),
            })
        })
        .collect();
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    Plan { changes }
}

fn now(slot: &Slot) -> Option<&File> {
    match &slot.now {
        Node::File(file) => Some(file),
        Node::Absent | Node::Directory | Node::Special | Node::TooLarge => None,
    }
}
