//! From a patch to a draft of what will change: everything that can be refused is
//! refused here, before the first byte is written.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

use codespace_patch::{
    Entry, ErrorCode, PatchError, PathFault, Plan, PlanError, PlannedChange, Tree, plan,
};
use codespace_router::{Code, OperationStatus, ToolError};
use serde_json::{Map, Value};

use super::{
    journal::{Effect, Journal, Print},
    load::{FileSeen, Place, View, too_large},
    path,
    read::version,
    root::FileRoot,
    transaction::{Transaction, Work},
};
use crate::{Applied, Change, ChangeKind, Hunk, PatchJob};

impl FileRoot {
    /// Plans a patch and, unless the job only checks, commits it. Call it under the
    /// workspace's lease.
    ///
    /// # Errors
    /// The refusal; nothing was written.
    pub fn apply(self: &Arc<Self>, job: PatchJob) -> Result<Applied, ToolError> {
        let PatchJob {
            operation,
            patch,
            expected,
            check_only,
            ..
        } = job;
        let mut view = View::new(self);
        let paths = patch.paths();
        for path in &paths {
            path::check(path)?;
            view.place(path)?;
        }
        check_versions(&mut view, &expected)?;
        let plan = plan(&patch, &mut view).map_err(|error| match error {
            PlanError::Patch(error) => patch_refusal(&error),
            PlanError::Tree { error, line, .. } => error.with_detail("line", line),
        })?;
        let mut draft = Draft::new(&mut view, plan)?;
        if check_only || draft.works.is_empty() {
            let status = if check_only {
                OperationStatus::Checked
            } else {
                OperationStatus::Applied
            };
            return Ok(Applied {
                status,
                reason: None,
                changes: draft.changes,
                undo: None,
            });
        }
        let missing = missing_folders(&mut view, &draft)?;
        let effects: Vec<Effect> = (0..)
            .zip(&mut draft.works)
            .map(|(number, work)| {
                Effect::new(
                    &operation,
                    number,
                    std::mem::take(&mut work.path),
                    work.before.take(),
                    work.after.take(),
                )
            })
            .collect();
        let files = paths.iter().map(|path| (*path).to_owned()).collect();
        let journal = Journal::new(operation, files, draft.changes, effects, missing);
        let works = draft.works.into_iter().map(|work| work.work).collect();
        Transaction::new(Arc::clone(self), view.folders, journal, works).run()
    }
}

impl Tree for View<'_> {
    type Error = ToolError;

    fn load(&mut self, path: &str) -> Result<Entry, ToolError> {
        Ok(match self.place(path)? {
            Place::Absent => Entry::Absent,
            Place::File(file) => Entry::File(Arc::clone(&file.bytes)),
            Place::Directory => Entry::Directory,
            Place::Special => Entry::Special,
            Place::TooLarge => Entry::TooLarge,
        })
    }

    fn eol_crlf(&mut self, path: &str) -> Result<bool, ToolError> {
        self.wants_crlf(path)
    }
}

/// What the client is told of a patch that cannot be parsed or does not fit. `details`
/// has `line`, `path`, `hunk`, `reason` and `closest`, as far as they are known.
#[must_use]
pub fn patch_refusal(error: &PatchError) -> ToolError {
    let message = format!("{error}. Nothing was changed; read the file and send a corrected patch");
    let details = match serde_json::to_value(&error.details) {
        Ok(Value::Object(details)) => details,
        _ => Map::new(),
    };
    ToolError::new(code_of(error.code), message).with_details(details)
}

/// What the client is told of a path that cannot be normalised.
#[must_use]
pub fn path_refusal(fault: PathFault, path: &str) -> ToolError {
    let error = ToolError::new(
        code_of(fault.code()),
        format!("{}; nothing was done", fault.reason()),
    );
    // An absolute path may be one of the host's.
    if fault == PathFault::Absolute {
        error
    } else {
        error.with_detail("path", path)
    }
}

fn code_of(code: ErrorCode) -> Code {
    match code {
        ErrorCode::InvalidPatch => Code::InvalidPatch,
        ErrorCode::FileNotFound => Code::FileNotFound,
        ErrorCode::AddFileExists => Code::AddFileExists,
        ErrorCode::MoveDestinationExists => Code::MoveDestinationExists,
        ErrorCode::SpecialFile => Code::SpecialFileRejected,
        ErrorCode::NotDirectory => Code::PathNotDirectory,
        ErrorCode::PathEscape => Code::PathEscape,
        ErrorCode::TooLarge => Code::FileOperationFailed,
    }
}

fn check_versions(
    view: &mut View<'_>,
    expected: &BTreeMap<String, String>,
) -> Result<(), ToolError> {
    for (path, wanted) in expected {
        path::check(path)?;
        let place = view.place(path)?;
        let current = match &place {
            Place::Absent => "absent",
            Place::File(file) => file.version(),
            Place::Directory | Place::Special => return Err(path::special(path)),
            Place::TooLarge => return Err(too_large(path, view.root.limits.patch_file_bytes)),
        };
        if current != wanted {
            return Err(conflict(path, wanted, current));
        }
    }
    Ok(())
}

/// The refusal of a file that is not what it should be.
pub(super) fn conflict(path: &str, expected: &str, current: &str) -> ToolError {
    ToolError::new(
        Code::VersionConflict,
        format!("{path} is not at the expected version; nothing was changed. Read it again and make the patch from what it holds now"),
    )
    .with_detail("path", path)
    .with_detail("expected", expected)
    .with_detail("current", current)
}

struct Draft {
    changes: Vec<Change>,
    works: Vec<DraftWork>,
}

struct DraftWork {
    path: String,
    before: Option<Print>,
    after: Option<Print>,
    work: Work,
}

impl Draft {
    fn new(view: &mut View<'_>, plan: Plan) -> Result<Self, ToolError> {
        let mut draft = Self {
            changes: Vec::with_capacity(plan.changes.len()),
            works: Vec::new(),
        };
        let own_rows: BTreeSet<String> = plan
            .changes
            .iter()
            .map(|change| change.path.clone())
            .collect();
        // A moved file takes its attributes along, also where it replaces another.
        let origins: HashMap<String, String> = plan
            .changes
            .iter()
            .filter_map(|change| Some((change.moved_to.clone()?, change.path.clone())))
            .collect();
        let mut gone = Vec::new();
        for change in plan.changes {
            let before = seen(view, &change.path)?;
            let after = change
                .after
                .as_ref()
                .map(|bytes| (Arc::clone(bytes), print(bytes)));
            draft.changes.push(row(
                &change,
                before.as_deref(),
                after.as_ref().map(|(_, print)| print),
            ));
            match (&change.moved_to, after) {
                (Some(to), Some(after)) => {
                    // The same bytes may stand there already: deleted and replaced by this move.
                    if !own_rows.contains(to) && seen(view, to)?.is_none() {
                        draft
                            .works
                            .push(work(to.clone(), None, Some(after), before.clone()));
                    }
                    gone.push(work(change.path, before, None, None));
                }
                (None, Some(after)) => {
                    let like = match origins.get(&change.path) {
                        Some(origin) => seen(view, origin)?,
                        None => before.clone(),
                    };
                    draft
                        .works
                        .push(work(change.path, before, Some(after), like));
                }
                (_, None) => gone.push(work(change.path, before, None, None)),
            }
        }
        // Names appear before others go: of a moved file a reader sees one or both, never none.
        draft.works.append(&mut gone);
        Ok(draft)
    }
}

fn seen(view: &mut View<'_>, path: &str) -> Result<Option<Rc<FileSeen>>, ToolError> {
    Ok(match view.place(path)? {
        Place::File(file) => Some(file),
        Place::Absent => None,
        Place::Directory | Place::Special => return Err(path::special(path)),
        Place::TooLarge => return Err(too_large(path, view.root.limits.patch_file_bytes)),
    })
}

fn work(
    path: String,
    before: Option<Rc<FileSeen>>,
    after: Option<(Arc<[u8]>, Print)>,
    like: Option<Rc<FileSeen>>,
) -> DraftWork {
    let (bytes, after) = after.unzip();
    DraftWork {
        path,
        before: before.as_ref().map(|file| Print {
            version: file.version().to_owned(),
            size: file.bytes.len() as u64,
        }),
        after,
        work: Work {
            seen: before.map(|file| file.seen),
            after: bytes,
            like,
        },
    }
}

fn print(bytes: &[u8]) -> Print {
    Print {
        version: version(bytes),
        size: bytes.len() as u64,
    }
}

fn row(change: &PlannedChange, before: Option<&FileSeen>, after: Option<&Print>) -> Change {
    let kind = match change.kind {
        codespace_patch::ChangeKind::Add => ChangeKind::Add,
        codespace_patch::ChangeKind::Update => ChangeKind::Update,
        codespace_patch::ChangeKind::Delete => ChangeKind::Delete,
        codespace_patch::ChangeKind::Move => ChangeKind::Move,
    };
    let hunk = |report: &codespace_patch::HunkReport| Hunk {
        line: report.line as u64,
        matched: match report.matched {
            codespace_patch::MatchKind::Exact => "exact",
            codespace_patch::MatchKind::TrailingSpace => "trailing_space",
            codespace_patch::MatchKind::Space => "space",
            codespace_patch::MatchKind::Unicode => "unicode",
        }
        .to_owned(),
        candidates: report.candidates as u64,
    };
    Change {
        path: change.path.clone(),
        kind,
        before_version: before.map(|file| file.version().to_owned()),
        after_version: after.map(|print| print.version.clone()),
        moved_to: change.moved_to.clone(),
        hunks: change.hunks.iter().map(hunk).collect(),
    }
}

// The folders the new files need, outermost first. A folder's path that is also a new
// file's path would fail half-way, so it is refused here.
fn missing_folders(view: &mut View<'_>, draft: &Draft) -> Result<Vec<String>, ToolError> {
    let new = |work: &&DraftWork| work.after.is_some();
    let files: BTreeSet<&str> = draft
        .works
        .iter()
        .filter(new)
        .map(|work| work.path.as_str())
        .collect();
    let mut missing = BTreeSet::new();
    for path in &files {
        if view.folders.get(view.root, path::split(path).0).is_ok() {
            continue;
        }
        for folder in path::ancestors(path) {
            if files.contains(folder) {
                return Err(path::refusal(path, rustix::io::Errno::NOTDIR));
            }
            match view.folders.get(view.root, folder) {
                Ok(_) => {}
                Err(rustix::io::Errno::NOENT) => {
                    missing.insert(folder.to_owned());
                }
                Err(errno) => return Err(view.root.refusal(path, errno)),
            }
        }
    }
    Ok(missing.into_iter().collect())
}
