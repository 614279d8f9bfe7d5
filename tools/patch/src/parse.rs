//! The parsed patch.

use crate::error::PatchError;
use crate::path::normalize;
use crate::text;
use crate::walk::Walk;

/// A parsed patch. It owns its text, and every path in it is normalised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    ops: Vec<Op>,
    crlf: bool,
}

/// One operation, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make a file.
    Add {
        /// The new file, normalised.
        path: String,
        /// Its header's line in the patch text, from 1.
        line: usize,
        /// Its lines without endings.
        lines: Vec<String>,
    },
    /// Remove a file.
    Delete {
        /// The file, normalised.
        path: String,
        /// Its header's line in the patch text, from 1.
        line: usize,
    },
    /// Change a file, move it, or both.
    Update {
        /// The file, normalised.
        path: String,
        /// Its header's line in the patch text, from 1.
        line: usize,
        /// Where the file goes, normalised, when it moves.
        move_to: Option<String>,
        /// The changes; none in a plain move.
        hunks: Vec<Hunk>,
    },
}

/// One change of an Update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hunk {
    /// Its first line in the patch text, from 1.
    pub line: usize,
    /// The `@@ context` lines, outermost first. A bare `@@` leaves none.
    pub anchors: Vec<Anchor>,
    /// Context, removed and added lines.
    pub lines: Vec<HunkLine>,
    /// `*** End of File` follows: the old lines are the file's last ones.
    pub end_of_file: bool,
    /// How many of the last `lines` are bare empty lines before the next marker. They may be meant as
    /// context or only as space between hunks.
    pub trailing_blanks: usize,
}

/// A `@@ context` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The line to look for.
    pub text: String,
    /// Its line in the patch text, from 1.
    pub line: usize,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HunkLine {
    /// What the line does.
    pub kind: LineKind,
    /// The line without its prefix and ending.
    pub text: String,
    /// Its line in the patch text, from 1.
    pub line: usize,
}

/// What a line of a hunk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// Stays.
    Context,
    /// Comes.
    Add,
    /// Goes.
    Remove,
}

impl Patch {
    /// Reads a patch text.
    ///
    /// # Errors
    /// `INVALID_PATCH` when the text is not a patch, with the line and, once they are known, the path and
    /// hunk. Then, for the first path that may not be named, `PATH_ESCAPE` or `INVALID_PATCH` (see
    /// [`normalize`]).
    pub fn parse(text: &str) -> Result<Patch, PatchError> {
        let envelope = text::open(text)?;
        let mut walk = Walk::new();
        for line in &envelope.lines {
            walk.line(*line).map_err(|error| walk.located(error))?;
        }
        walk.close_op(envelope.end)
            .map_err(|error| walk.located(error))?;
        if walk.ops.is_empty() {
            return Err(PatchError::invalid(
                envelope.end,
                "the patch has no operation",
            ));
        }
        for op in &mut walk.ops {
            op.check_paths()?;
        }
        Ok(Patch {
            ops: walk.ops,
            crlf: envelope.crlf,
        })
    }

    /// The operations, in the order of the text.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Every path the patch names, move destinations included: normalised, sorted, each once.
    pub fn paths(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = self
            .ops
            .iter()
            .flat_map(|op| [Some(op.path()), op.move_to()])
            .flatten()
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// How many bytes of lines its operations hold.
    pub fn text_bytes(&self) -> usize {
        let of_op = |op: &Op| match op {
            Op::Add { lines, .. } => lines.iter().map(String::len).sum::<usize>(),
            Op::Update { hunks, .. } => {
                let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
                lines.map(|line| line.text.len()).sum()
            }
            Op::Delete { .. } => 0,
        };
        self.ops.iter().map(of_op).sum()
    }

    /// Whether the patch text itself has CRLF endings (its first line decides).
    pub fn is_crlf(&self) -> bool {
        self.crlf
    }
}

impl Op {
    /// The path the operation is about; the old path of a move.
    pub fn path(&self) -> &str {
        match self {
            Op::Add { path, .. } | Op::Delete { path, .. } | Op::Update { path, .. } => path,
        }
    }

    /// The destination of a move.
    pub fn move_to(&self) -> Option<&str> {
        match self {
            Op::Update { move_to, .. } => move_to.as_deref(),
            Op::Add { .. } | Op::Delete { .. } => None,
        }
    }

    /// The line of the operation's header in the patch text, from 1.
    pub fn line(&self) -> usize {
        match self {
            Op::Add { line, .. } | Op::Delete { line, .. } | Op::Update { line, .. } => *line,
        }
    }

    fn check_paths(&mut self) -> Result<(), PatchError> {
        let (Op::Add { path, line, .. }
        | Op::Delete { path, line }
        | Op::Update { path, line, .. }) = self;
        let line = *line;
        check_path(path, line)?;
        if let Op::Update {
            move_to: Some(to), ..
        } = self
        {
            // The destination stands on the line after the header: the grammar allows it nowhere else.
            check_path(to, line + 1)?;
        }
        Ok(())
    }
}

fn check_path(path: &mut String, line: usize) -> Result<(), PatchError> {
    *path = normalize(path).map_err(|fault| {
        let error = PatchError::new(fault.code(), line, fault.reason());
        // An absolute path may tell where things are on the host; no error repeats it.
        if path.starts_with('/') {
            error
        } else {
            error.path(path)
        }
    })?;
    Ok(())
}
