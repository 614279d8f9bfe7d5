//! The walk over the lines of a patch, line by line.

use crate::error::PatchError;
use crate::parse::{Anchor, Hunk, HunkLine, LineKind, Op};
use crate::text::{self, Line};

/// The operations so far; the last one is open.
pub(crate) struct Walk {
    pub(crate) ops: Vec<Op>,
    /// The last hunk of the last operation still takes lines.
    in_hunk: bool,
}

const UNEXPECTED: &str = "this line starts no operation; want `*** Add File: `, `*** Delete File: ` or `*** Update File: `";

impl Walk {
    pub(crate) fn new() -> Self {
        Walk {
            ops: Vec::new(),
            in_hunk: false,
        }
    }

    pub(crate) fn line(&mut self, line: Line<'_>) -> Result<(), PatchError> {
        let reason = match self.ops.last_mut() {
            Some(Op::Update { .. }) => return self.update_line(line),
            Some(Op::Add { lines, .. }) => {
                if let Some(text) = line.text.strip_prefix('+') {
                    lines.push(text.to_owned());
                    return Ok(());
                }
                "every line of an added file starts with `+`, an empty one too"
            }
            Some(Op::Delete { .. }) | None => UNEXPECTED,
        };
        if self.header(line)? {
            Ok(())
        } else {
            Err(PatchError::invalid(line.number, reason))
        }
    }

    /// Opens an operation if the line is a header.
    fn header(&mut self, line: Line<'_>) -> Result<bool, PatchError> {
        let marker = line.text.trim();
        if marker == text::END {
            return Err(PatchError::invalid(
                line.number,
                "text follows `*** End Patch`",
            ));
        }
        let number = line.number;
        let op = if let Some(path) = text::argument(marker, "*** Add File:") {
            Op::Add {
                path,
                line: number,
                lines: Vec::new(),
            }
        } else if let Some(path) = text::argument(marker, "*** Delete File:") {
            Op::Delete { path, line: number }
        } else if let Some(path) = text::argument(marker, "*** Update File:") {
            Op::Update {
                path,
                line: number,
                move_to: None,
                hunks: Vec::new(),
            }
        } else {
            return Ok(false);
        };
        self.close_op(number)?;
        self.ops.push(op);
        Ok(true)
    }

    fn update_line(&mut self, line: Line<'_>) -> Result<(), PatchError> {
        let open = self.in_hunk;
        let Some(Op::Update {
            move_to,
            hunks,
            line: header,
            ..
        }) = self.ops.last_mut()
        else {
            return Ok(());
        };
        let number = line.number;
        let marker = line.text.trim();
        // Straight after the header nothing says yet that a blank is a prefix, so an indented marker is one.
        let fresh = hunks.is_empty() && text::is_marker(marker);
        let kind = match line.text.as_bytes().first() {
            Some(b'+') => Some(LineKind::Add),
            Some(b'-') => Some(LineKind::Remove),
            Some(b' ') if !fresh => Some(LineKind::Context),
            None if open => Some(LineKind::Context),
            // Blank lines between hunks.
            None => return Ok(()),
            Some(_) => None,
        };
        if let Some(kind) = kind {
            if !open && !hunks.is_empty() {
                return Err(PatchError::invalid(
                    number,
                    "a hunk after `*** End of File` starts with `@@`",
                ));
            }
            if !open {
                hunks.push(Hunk {
                    line: number,
                    ..Hunk::default()
                });
                self.in_hunk = true;
            }
            if let Some(hunk) = hunks.last_mut() {
                let body = line.text.get(1..).unwrap_or_default();
                hunk.trailing_blanks = if line.text.is_empty() {
                    hunk.trailing_blanks + 1
                } else {
                    0
                };
                hunk.lines.push(HunkLine {
                    kind,
                    text: body.to_owned(),
                    line: number,
                });
            }
            return Ok(());
        }
        if let Some(to) = text::argument(marker, "*** Move to:") {
            if move_to.is_some() || number != *header + 1 {
                return Err(PatchError::invalid(
                    number,
                    "`*** Move to: ` stands once, on the line after `*** Update File: `",
                ));
            }
            *move_to = Some(to);
            return Ok(());
        }
        if marker == text::END_OF_FILE {
            if let (true, Some(hunk)) = (open, hunks.last_mut())
                && !hunk.lines.is_empty()
            {
                // Blank lines before this marker are inside the hunk.
                (hunk.end_of_file, hunk.trailing_blanks) = (true, 0);
                self.in_hunk = false;
                return Ok(());
            }
            return Err(PatchError::invalid(
                number,
                "`*** End of File` follows no hunk line",
            ));
        }
        if let Some(context) = text::anchor(line.text) {
            let stacked = open && hunks.last().is_some_and(|hunk| hunk.lines.is_empty());
            if !stacked {
                self.close_hunk(number)?;
                self.in_hunk = true;
            }
            if let Some(Op::Update { hunks, .. }) = self.ops.last_mut() {
                if !stacked {
                    hunks.push(Hunk {
                        line: number,
                        ..Hunk::default()
                    });
                }
                if let (Some(context), Some(hunk)) = (context, hunks.last_mut()) {
                    hunk.anchors.push(Anchor {
                        text: context.to_owned(),
                        line: number,
                    });
                }
            }
            return Ok(());
        }
        if self.header(line)? {
            return Ok(());
        }
        let reason = if marker.starts_with("***") {
            "this marker is not known"
        } else {
            "a hunk line starts with a blank, `+` or `-`"
        };
        Err(PatchError::invalid(number, reason))
    }

    fn close_hunk(&mut self, at: usize) -> Result<(), PatchError> {
        let Some(Op::Update { hunks, .. }) = self.ops.last_mut() else {
            return Ok(());
        };
        if self.in_hunk
            && hunks
                .last()
                .is_some_and(|hunk| hunk.lines.len() == hunk.trailing_blanks)
        {
            // Blank lines straight under the header, before the first `@@`, never open a hunk; these had an `@@`.
            return Err(PatchError::invalid(
                at,
                "the hunk before this line has no lines",
            ));
        }
        self.in_hunk = false;
        Ok(())
    }

    pub(crate) fn close_op(&mut self, at: usize) -> Result<(), PatchError> {
        self.close_hunk(at)?;
        match self.ops.last() {
            Some(Op::Update {
                move_to: None,
                hunks,
                ..
            }) if hunks.is_empty() => Err(PatchError::invalid(
                at,
                "an Update needs a hunk or a `*** Move to: `",
            )),
            _ => Ok(()),
        }
    }

    /// Adds what is known of the open operation to an error.
    pub(crate) fn located(&self, error: PatchError) -> PatchError {
        let Some(op) = self.ops.last() else {
            return error;
        };
        let path = op.path();
        let error = if path.starts_with('/') || path.is_empty() {
            error
        } else {
            error.path(path)
        };
        match op {
            Op::Update { hunks, .. } if !hunks.is_empty() => error.hunk(hunks.len()),
            _ => error,
        }
    }
}
