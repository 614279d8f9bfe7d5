//! One Update: its hunks found in the old text, and the new text built from slices of it.

use serde::Serialize;

use crate::error::{ErrorCode, PatchError};
use crate::lines::Lines;
use crate::matching::{MatchKind, Searcher};
use crate::parse::{Hunk, LineKind};
use crate::places::Work;

/// How a hunk was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HunkReport {
    /// The first line it matched (or that it was put before), from 1, in the file as this Update found it.
    pub line: usize,
    /// The pass that matched. An insertion has its last `@@ context`'s, or `Exact` without one.
    #[serde(rename = "match")]
    pub matched: MatchKind,
    /// How many places of the searched range matched in that pass; the first was taken.
    pub candidates: usize,
}

/// Lines `at..at + removed` go, `added` come in their place.
struct Edit<'a> {
    at: usize,
    removed: usize,
    added: Vec<&'a [u8]>,
}

/// Applies hunks to a file. The error names hunk and line, not the path.
pub(crate) fn apply(
    old: &[u8],
    hunks: &[Hunk],
    header: usize,
    work: &mut Work,
) -> Result<(Vec<u8>, Vec<HunkReport>), PatchError> {
    // Every Update reads its file and writes it anew; a byte is far quicker than a line.
    if !work.spend(old.len() / 16) {
        return Err(too_much(header));
    }
    let lines = Lines::new(old).ok_or_else(|| {
        PatchError::new(
            ErrorCode::TooLarge,
            header,
            "the file is too large to be patched",
        )
    })?;
    let blocks: Vec<Block<'_>> = hunks
        .iter()
        .map(|hunk| Block::new(hunk, lines.has_bom()))
        .collect();
    let needles = blocks
        .iter()
        .flat_map(|block| block.anchors.iter().copied().chain(block.old()))
        .collect();
    let mut placer = Placer {
        search: Searcher::new(&lines, needles),
        position: 0,
    };
    let (mut edits, mut reports, mut first) = (Vec::new(), Vec::with_capacity(hunks.len()), 0);
    for (at, block) in blocks.iter().enumerate() {
        let found = placer
            .place(block, first, work)
            .map_err(|error| error.hunk(at + 1))?;
        first += block.anchors.len() + block.old().count();
        found.edits(&mut edits);
        reports.push(found.report);
    }
    // An insertion before a line comes before what replaces that line, whichever hunk was first.
    edits.sort_by_key(|edit: &Edit<'_>| (edit.at, edit.removed > 0));
    Ok((build(&lines, &edits), reports))
}

fn too_much(line: usize) -> PatchError {
    let reason = "the patch needs too many comparisons (many hunks over much repeated text, or many updates of one large file); make several patches of it, or put the updates of one file into one";
    PatchError::new(ErrorCode::TooMuchWork, line, reason)
}

/// A hunk as bytes.
struct Block<'a> {
    hunk: &'a Hunk,
    anchors: Vec<&'a [u8]>,
    lines: Vec<(LineKind, &'a [u8])>,
}

impl<'a> Block<'a> {
    fn new(hunk: &'a Hunk, bom: bool) -> Self {
        // A file's mark belongs to no line; a hunk that quotes it means line 1 all the same.
        let quoted = hunk
            .lines
            .iter()
            .find(|line| line.kind != LineKind::Add)
            .is_some_and(|line| line.text.starts_with('\u{feff}'));
        let bytes = |text: &'a str| {
            if bom && quoted {
                text.strip_prefix('\u{feff}').unwrap_or(text)
            } else {
                text
            }
            .as_bytes()
        };
        let mut lines: Vec<_> = hunk
            .lines
            .iter()
            .map(|line| (line.kind, bytes(&line.text)))
            .collect();
        let text = lines.len() - hunk.trailing_blanks;
        if lines[..text].iter().all(|line| line.0 == LineKind::Add) {
            // Only additions, then blank lines: those are the space before the next marker, not context.
            lines.truncate(text);
        }
        Block {
            hunk,
            anchors: hunk
                .anchors
                .iter()
                .map(|anchor| anchor.text.as_bytes())
                .collect(),
            lines,
        }
    }

    fn old(&self) -> impl Iterator<Item = &'a [u8]> {
        self.lines
            .iter()
            .filter(|line| line.0 != LineKind::Add)
            .map(|line| line.1)
    }

    /// The lines without the empty one the old lines end in, and without its counterpart among the new ones.
    fn without_last_empty(&self) -> Option<Vec<(LineKind, &'a [u8])>> {
        let mut lines = self.lines.clone();
        let last = lines.iter().rposition(|line| line.0 != LineKind::Add)?;
        if !lines[last].1.is_empty() {
            return None;
        }
        if lines.remove(last).0 == LineKind::Remove
            && lines
                .last()
                .is_some_and(|line| line.0 == LineKind::Add && line.1.is_empty())
        {
            lines.pop();
        }
        Some(lines)
    }

    /// The lines without the bare blank ones before the next marker.
    fn without_blanks(&self) -> Option<Vec<(LineKind, &'a [u8])>> {
        let blanks = self.blanks();
        (blanks > 1).then(|| self.lines[..self.lines.len() - blanks].to_vec())
    }

    fn blanks(&self) -> usize {
        self.hunk
            .trailing_blanks
            .min(self.lines.len() + self.hunk.trailing_blanks - self.hunk.lines.len())
    }
}

/// A hunk with its place.
struct Placed<'a> {
    lines: Vec<(LineKind, &'a [u8])>,
    start: usize,
    report: HunkReport,
}

struct Placer<'a> {
    search: Searcher<'a>,
    /// Where the next search starts.
    position: usize,
}

impl<'a> Placer<'a> {
    /// `first` is the number of the block's first needle.
    fn place(
        &mut self,
        block: &Block<'a>,
        first: usize,
        work: &mut Work,
    ) -> Result<Placed<'a>, PatchError> {
        let mut anchored = (MatchKind::Exact, 1);
        for (at, anchor) in block.hunk.anchors.iter().enumerate() {
            let found = self.search.find(&[first + at], self.position, false, work);
            if work.is_over() {
                return Err(too_much(anchor.line));
            }
            let Some(found) = found else {
                let reason = "the line after `@@` is not in the file (from the place the hunks before it lead to)";
                return Err(PatchError::invalid(anchor.line, reason)
                    .closest(self.search.closest(&[first + at], &[anchor.line])));
            };
            self.position = found.start + 1;
            anchored = (found.kind, found.candidates);
        }
        let needles: Vec<usize> = (first + block.anchors.len()..)
            .take(block.old().count())
            .collect();
        let versions = [
            Some(block.lines.clone()),
            block.without_last_empty(),
            block.without_blanks(),
        ];
        // Forward from the position in every version first; only then, without an anchor, anywhere else.
        for forward in [true, false] {
            if !forward && !block.anchors.is_empty() {
                break;
            }
            for (version, lines) in versions.iter().enumerate() {
                let Some(lines) = lines else { continue };
                let count = lines.iter().filter(|line| line.0 != LineKind::Add).count();
                if count == 0 {
                    return Ok(self.insert(block, lines.clone(), anchored));
                }
                let from = if forward { self.position } else { 0 };
                let end_of_file = block.hunk.end_of_file;
                let found = self.search.find(&needles[..count], from, end_of_file, work);
                if work.is_over() {
                    return Err(too_much(block.hunk.line));
                }
                let Some(found) = found else {
                    continue;
                };
                if !forward && found.candidates > 1 {
                    let reason = format!(
                        "the lines come after no earlier hunk, and stand in {} places before it; name one with `@@ context`",
                        found.candidates
                    );
                    return Err(PatchError::invalid(block.hunk.line, reason));
                }
                let blanks = if version == 0 { block.blanks() } else { 0 };
                // Blank lines before a marker may be mere space: they are matched, but left for the next hunk.
                let end = found.start + count - blanks;
                self.search.take(found.start, end);
                self.position = end;
                let report = HunkReport {
                    line: found.start + 1,
                    matched: found.kind,
                    candidates: found.candidates,
                };
                return Ok(Placed {
                    lines: lines.clone(),
                    start: found.start,
                    report,
                });
            }
        }
        let lines: Vec<usize> = block
            .hunk
            .lines
            .iter()
            .filter(|line| line.kind != LineKind::Add)
            .map(|line| line.line)
            .collect();
        let reason = if block.hunk.end_of_file {
            "the old lines of the hunk are not the last lines of the file"
        } else {
            "the old lines of the hunk are not in the file, or not after the place it starts from; read the file again"
        };
        let line = lines.first().copied().unwrap_or(block.hunk.line);
        Err(PatchError::invalid(line, reason).closest(self.search.closest(&needles, &lines)))
    }

    /// A hunk without old lines: after its last anchor, else (or with the end marker) at the end of the file.
    fn insert(
        &mut self,
        block: &Block<'a>,
        lines: Vec<(LineKind, &'a [u8])>,
        anchored: (MatchKind, usize),
    ) -> Placed<'a> {
        let end = block.anchors.is_empty() || block.hunk.end_of_file;
        let start = if end {
            self.search.lines.len()
        } else {
            self.position
        };
        Placed {
            lines,
            start,
            report: HunkReport {
                line: start + 1,
                matched: anchored.0,
                candidates: anchored.1,
            },
        }
    }
}

impl<'a> Placed<'a> {
    /// Each run of lines that go and come between two context lines is one edit.
    fn edits(&self, edits: &mut Vec<Edit<'a>>) {
        let mut at = self.start;
        for run in self
            .lines
            .split_inclusive(|line| line.0 == LineKind::Context)
        {
            let removed = run.iter().filter(|line| line.0 == LineKind::Remove).count();
            let added: Vec<&[u8]> = run
                .iter()
                .filter(|line| line.0 == LineKind::Add)
                .map(|line| line.1)
                .collect();
            let context = run
                .iter()
                .filter(|line| line.0 == LineKind::Context)
                .count();
            if removed > 0 || !added.is_empty() {
                edits.push(Edit { at, removed, added });
            }
            at += removed + context;
        }
    }
}

/// The new text: slices of the old one with the edits between them.
fn build(lines: &Lines<'_>, edits: &[Edit<'_>]) -> Vec<u8> {
    let old = lines.bytes();
    let added: usize = edits
        .iter()
        .flat_map(|edit| &edit.added)
        .map(|line| line.len() + 2)
        .sum();
    let mut new = Vec::with_capacity(old.len() + added + 2);
    let text = lines.start(0);
    let mut copied = 0;
    for edit in edits {
        new.extend_from_slice(&old[copied..lines.start(edit.at)]);
        copied = lines.start(edit.at + edit.removed);
        if !edit.added.is_empty() && new.len() > text && new.last() != Some(&b'\n') {
            // The line before is the file's last and had no ending; now another follows it.
            new.extend_from_slice(lines.ending_at(lines.len() - 1).bytes());
        }
        for (nth, line) in edit.added.iter().enumerate() {
            // The line this one replaces; past those, the line before it; at the top, the line after it.
            let model = if edit.removed > 0 {
                edit.at + nth.min(edit.removed - 1)
            } else {
                edit.at.saturating_sub(1)
            };
            new.extend_from_slice(line);
            new.extend_from_slice(
                if model < lines.len() {
                    lines.ending_at(model)
                } else {
                    crate::lines::Ending::Lf
                }
                .bytes(),
            );
        }
    }
    new.extend_from_slice(&old[copied..]);
    new
}

#[cfg(test)]
mod tests;
