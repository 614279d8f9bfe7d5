//! The operations of a patch, in order, on one view of the tree.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{ErrorCode, PatchError, PlanError};
use crate::parse::{Hunk, Op, Patch};
use crate::places::Work;
use crate::rows::{self, Plan};
use crate::update::{self, HunkReport};

/// What stands at a path before the patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Absent,
    /// A regular file with these bytes. Not `Arc<[u8]>`: that would copy every file once more.
    File(Arc<Vec<u8>>),
    /// A directory.
    Directory,
    /// A device, socket, pipe or the like.
    Special,
    /// A regular file over the caller's size limit; it was not read.
    TooLarge,
}

/// Where [`plan`] gets files from.
pub trait Tree {
    /// What a look-up can fail with (a symbolic link, a denied path, I/O); passed on as it is.
    type Error;

    /// What stands at a normalised path. Asked at most once a path, when the first operation needs it.
    ///
    /// # Errors
    /// Any; it ends the plan.
    fn load(&mut self, path: &str) -> Result<Entry, Self::Error>;

    /// Whether the tree's `.gitattributes` say `eol=crlf` for a path. Asked only for an Add of a patch whose
    /// own text is CRLF.
    ///
    /// # Errors
    /// Any; it ends the plan.
    fn eol_crlf(&mut self, path: &str) -> Result<bool, Self::Error>;
}

/// A file in the view.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// The path it had before the patch; none for a file the patch adds.
    pub(crate) origin: Option<String>,
    pub(crate) hunks: Vec<HunkReport>,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Absent,
    File(File),
    Directory,
    Special,
    TooLarge,
}

/// A path at the start and now.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) before: Option<Arc<Vec<u8>>>,
    pub(crate) now: Node,
}

/// Computes what every path of a patch would hold after it. All or nothing.
///
/// # Errors
/// [`PlanError::Patch`] when the patch does not fit (see [`ErrorCode`]); [`PlanError::Tree`] when the tree
/// could not answer.
pub fn plan<T: Tree>(patch: &Patch, tree: &mut T) -> Result<Plan, PlanError<T::Error>> {
    let mut view = View {
        tree,
        slots: HashMap::new(),
        directories: HashSet::new(),
    };
    let mut work = Work::default();
    for op in patch.ops() {
        match op {
            Op::Add { path, line, lines } => {
                view.vacant(
                    path,
                    *line,
                    ErrorCode::AddFileExists,
                    "the file to add exists; update it, or delete it first",
                )?;
                let ending = if patch.is_crlf() && view.eol_crlf(path, *line)? {
                    "\r\n"
                } else {
                    "\n"
                };
                let bytes: String = lines
                    .iter()
                    .flat_map(|text| [text.as_str(), ending])
                    .collect();
                view.put(
                    path,
                    File {
                        bytes: Arc::new(bytes.into_bytes()),
                        origin: None,
                        hunks: Vec::new(),
                    },
                );
            }
            Op::Delete { path, line } => {
                view.file(path, *line)?;
                view.set(path, Node::Absent);
            }
            Op::Update {
                path,
                line,
                move_to,
                hunks,
            } => {
                let file = view.file(path, *line)?;
                if let Some(to) = move_to {
                    view.vacant(
                        to,
                        line + 1,
                        ErrorCode::MoveDestinationExists,
                        "the destination of the move exists",
                    )?;
                }
                let file =
                    updated(file, hunks, *line, &mut work).map_err(|error| error.path(path))?;
                if move_to.is_some() {
                    view.set(path, Node::Absent);
                }
                view.put(move_to.as_ref().unwrap_or(path), file);
            }
        }
    }
    Ok(rows::compare(&view.slots))
}

fn updated(
    mut file: File,
    hunks: &[Hunk],
    line: usize,
    work: &mut Work,
) -> Result<File, PatchError> {
    if !hunks.is_empty() {
        let (bytes, reports) = update::apply(&file.bytes, hunks, line, work)?;
        // Whether they are other bytes at all is found out at the end, once.
        file.bytes = Arc::new(bytes);
        file.hunks.extend(reports);
    }
    Ok(file)
}

struct View<'t, T> {
    tree: &'t mut T,
    slots: HashMap<String, Slot>,
    /// Directories that new files brought; they stay when such a file goes again.
    directories: HashSet<String>,
}

impl<T: Tree> View<'_, T> {
    fn node(&mut self, path: &str, line: usize) -> Result<Node, PlanError<T::Error>> {
        if let Some(slot) = self.slots.get(path)
            && !matches!(slot.now, Node::Absent)
        {
            return Ok(slot.now.clone());
        }
        if self.directories.contains(path) {
            return Ok(Node::Directory);
        }
        if self.slots.contains_key(path) {
            return Ok(Node::Absent);
        }
        let entry = self.tree.load(path).map_err(|error| PlanError::Tree {
            path: path.to_owned(),
            line,
            error,
        })?;
        let (before, now) = match entry {
            Entry::Absent => (None, Node::Absent),
            Entry::File(bytes) => {
                let file = File {
                    bytes: Arc::clone(&bytes),
                    origin: Some(path.to_owned()),
                    hunks: Vec::new(),
                };
                (Some(bytes), Node::File(file))
            }
            Entry::Directory => (None, Node::Directory),
            Entry::Special => (None, Node::Special),
            Entry::TooLarge => (None, Node::TooLarge),
        };
        self.slots.insert(
            path.to_owned(),
            Slot {
                before,
                now: now.clone(),
            },
        );
        Ok(now)
    }

    /// The file an Update or Delete is about.
    fn file(&mut self, path: &str, line: usize) -> Result<File, PlanError<T::Error>> {
        let (code, reason) = match self.node(path, line)? {
            Node::File(file) => return Ok(file),
            Node::Absent => (ErrorCode::FileNotFound, "there is no such file"),
            Node::Directory => (ErrorCode::SpecialFile, "this is a directory, not a file"),
            Node::Special => (ErrorCode::SpecialFile, "this is not a regular file"),
            Node::TooLarge => (
                ErrorCode::TooLarge,
                "the file is larger than limits.patch_file_bytes allows in a patch",
            ),
        };
        Err(PatchError::new(code, line, reason).path(path).into())
    }

    /// Checks that a file can be put at a path.
    fn vacant(
        &mut self,
        path: &str,
        line: usize,
        code: ErrorCode,
        reason: &str,
    ) -> Result<(), PlanError<T::Error>> {
        for (end, _) in path.match_indices('/') {
            // Only this patch's own files: those of the tree show when it looks the path up.
            if let Some(Slot {
                now: Node::File(_), ..
            }) = self.slots.get(&path[..end])
            {
                let reason = "a parent of the path is a file";
                return Err(PatchError::new(ErrorCode::NotDirectory, line, reason)
                    .path(path)
                    .into());
            }
        }
        match self.node(path, line)? {
            Node::Absent => Ok(()),
            Node::File(_) | Node::Directory | Node::Special | Node::TooLarge => {
                Err(PatchError::new(code, line, reason).path(path).into())
            }
        }
    }

    fn eol_crlf(&mut self, path: &str, line: usize) -> Result<bool, PlanError<T::Error>> {
        self.tree.eol_crlf(path).map_err(|error| PlanError::Tree {
            path: path.to_owned(),
            line,
            error,
        })
    }

    fn set(&mut self, path: &str, now: Node) {
        if let Some(slot) = self.slots.get_mut(path) {
            slot.now = now;
        }
    }

    fn put(&mut self, path: &str, file: File) {
        self.directories.extend(
            path.match_indices('/')
                .map(|(end, _)| path[..end].to_owned()),
        );
        self.set(path, Node::File(file));
    }
}
