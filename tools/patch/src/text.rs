//! The outside of a patch text: its lines, its wrapping, its markers.

use crate::error::PatchError;

const BEGIN: &str = "*** Begin Patch";
pub(crate) const END: &str = "*** End Patch";
pub(crate) const END_OF_FILE: &str = "*** End of File";
const HEREDOC: [&str; 3] = ["<<EOF", "<<'EOF'", "<<\"EOF\""];

/// A line of the patch text without its ending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    /// From 1, in the text as it was given.
    pub(crate) number: usize,
}

/// The lines between Begin and End.
pub(crate) struct Envelope<'a> {
    pub(crate) lines: Vec<Line<'a>>,
    /// The number of the End line.
    pub(crate) end: usize,
    pub(crate) crlf: bool,
}

/// Takes the wrapping off: blank space, here-document, Begin, Environment ID, End.
pub(crate) fn open(text: &str) -> Result<Envelope<'_>, PatchError> {
    let all: Vec<&str> = text.split('\n').collect();
    let numbered = |at: usize| Line {
        text: all[at].strip_suffix('\r').unwrap_or(all[at]),
        number: at + 1,
    };
    let mut lines = trimmed((0..all.len()).map(numbered).collect());
    let wrapped = lines
        .first()
        .is_some_and(|line| HEREDOC.contains(&line.text.trim()));
    if wrapped {
        match lines.last() {
            Some(last) if last.text.trim() == "EOF" => {}
            last => {
                return Err(PatchError::invalid(
                    last.map_or(1, |last| last.number),
                    "the here-document does not end with `EOF`",
                ));
            }
        }
        lines.pop();
        lines.remove(0);
        lines = trimmed(lines);
    }
    let Some(first) = lines.first().copied() else {
        return Err(PatchError::invalid(1, "the patch is empty"));
    };
    if first.text.trim() != BEGIN {
        return Err(PatchError::invalid(
            first.number,
            not_a_patch(first.text.trim()),
        ));
    }
    let crlf = all[first.number - 1].ends_with('\r');
    let last = lines.pop().unwrap_or(first);
    if last.text.trim() != END {
        let reason = if lines.iter().any(|line| line.text.trim_end() == END) {
            "text follows `*** End Patch`"
        } else {
            "the patch does not end with `*** End Patch`; it may be cut off"
        };
        return Err(PatchError::invalid(last.number, reason));
    }
    let environment = lines
        .get(1)
        .is_some_and(|line| line.text.trim().starts_with("*** Environment ID:"));
    let lines = lines.split_off(if environment { 2 } else { 1 });
    Ok(Envelope {
        lines,
        end: last.number,
        crlf,
    })
}

/// Without blank lines at either end.
fn trimmed(mut lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let blank = |line: &Line<'_>| line.text.trim().is_empty();
    while lines.last().is_some_and(blank) {
        lines.pop();
    }
    let start = lines.iter().take_while(|line| blank(line)).count();
    lines.split_off(start)
}

/// Says what the text seems to be, because a model that is only told "line 1" sends the same thing again.
fn not_a_patch(first: &str) -> &'static str {
    if first.starts_with(['{', '[', '"']) {
        "this is JSON; send the plain patch text, starting with `*** Begin Patch`, not an object that holds it"
    } else if first.starts_with("```") {
        "take the Markdown fence away; the text starts with `*** Begin Patch`"
    } else if first.contains("<<") {
        "this is a shell command; send only the patch text, starting with `*** Begin Patch`"
    } else if first.starts_with("diff ") || first.starts_with("--- ") {
        "this is a unified diff; write the patch in the V4A format, starting with `*** Begin Patch`"
    } else {
        "the first line is not `*** Begin Patch`"
    }
}

/// Whether a trimmed line is a marker that can follow an Update's header.
pub(crate) fn is_marker(line: &str) -> bool {
    const HEADERS: [&str; 4] = [
        "*** Move to:",
        "*** Add File:",
        "*** Delete File:",
        "*** Update File:",
    ];
    line == END || HEADERS.iter().any(|marker| line.starts_with(marker))
}

/// The path after a marker; empty when nothing follows it.
pub(crate) fn argument(line: &str, marker: &str) -> Option<String> {
    let rest = line.strip_prefix(marker)?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim().to_owned())
}

/// `Some(None)` for a bare `@@`, `Some(Some(context))` for one with context.
pub(crate) fn anchor(line: &str) -> Option<Option<&str>> {
    let marker = line.trim_start();
    if marker.trim_end() == "@@" {
        return Some(None);
    }
    // The context keeps its own blanks: an exact match comes before a looser one.
    marker.strip_prefix("@@ ").map(Some)
}
