//! What can go wrong, in a form a caller can pass on.

use std::fmt;

use serde::Serialize;

use crate::closest::Closest;

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// The text is not a patch, or a hunk does not fit its file.
    InvalidPatch,
    /// An Update or Delete names a path where nothing is.
    FileNotFound,
    /// An Add names a path where something is.
    AddFileExists,
    /// A Move names a path where something is, its own old path included.
    MoveDestinationExists,
    /// An Update or Delete names a directory, device, socket or pipe.
    SpecialFile,
    /// A parent of a new file is a file.
    NotDirectory,
    /// A path is absolute, or has a `..` component or a NUL byte.
    PathEscape,
    /// A file is over the size the tree allows (or over 4 GiB, which the engine cannot index).
    TooLarge,
    /// Its hunks need more comparisons than a patch may cost.
    TooMuchWork,
}

/// The most bytes of a path that an error echoes.
const SHOWN: usize = 200;

/// Where in the patch an error is, and what is known about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Details {
    /// Line of the patch text, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The path as the patch means it. Left out for an absolute path, which may be a host path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Hunk within its Update, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hunk: Option<usize>,
    /// What is wrong, without any file content.
    pub reason: String,
    /// For lines that were not found: the place in the file that is most like them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closest: Option<Closest>,
}

/// A patch that cannot be applied. Nothing is half done: no plan comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchError {
    /// The class of the error.
    pub code: ErrorCode,
    /// Where and why. Boxed because the error is rare and the details are wide.
    pub details: Box<Details>,
}

impl PatchError {
    pub(crate) fn new(code: ErrorCode, line: usize, reason: impl Into<String>) -> Self {
        let details = Details {
            line: Some(line),
            reason: reason.into(),
            ..Details::default()
        };
        PatchError {
            code,
            details: Box::new(details),
        }
    }

    pub(crate) fn invalid(line: usize, reason: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidPatch, line, reason)
    }

    pub(crate) fn path(mut self, path: &str) -> Self {
        // Long enough to tell which; a path may be megabytes of text.
        self.details.path = Some(if path.len() <= SHOWN {
            path.to_owned()
        } else {
            format!("{}…", &path[..path.floor_char_boundary(SHOWN)])
        });
        self
    }

    pub(crate) fn hunk(mut self, hunk: usize) -> Self {
        self.details.hunk = Some(hunk);
        self
    }

    pub(crate) fn closest(mut self, closest: Option<Closest>) -> Self {
        self.details.closest = closest;
        self
    }
}

impl fmt::Display for PatchError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.details;
        if let Some(line) = details.line {
            write!(out, "patch line {line}")?;
        }
        if let Some(path) = &details.path {
            write!(out, ", {path}")?;
        }
        if let Some(hunk) = details.hunk {
            write!(out, ", hunk {hunk}")?;
        }
        write!(out, ": {}", details.reason)
    }
}

impl std::error::Error for PatchError {}

/// Why [`plan`](crate::plan()) gave no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError<E> {
    /// The patch does not fit the tree.
    Patch(PatchError),
    /// The tree could not answer for a path.
    Tree {
        /// The normalised path asked for.
        path: String,
        /// Line of the patch text that names it, from 1.
        line: usize,
        /// The tree's own error.
        error: E,
    },
}

impl<E> From<PatchError> for PlanError<E> {
    fn from(error: PatchError) -> Self {
        PlanError::Patch(error)
    }
}

impl<E: fmt::Display> fmt::Display for PlanError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Patch(error) => error.fmt(out),
            PlanError::Tree { path, line, error } => {
                write!(out, "patch line {line}, {path}: {error}")
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for PlanError<E> {}
