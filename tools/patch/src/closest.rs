//! The place of a file that is most like lines that were not found.

use std::collections::HashMap;

use serde::Serialize;

use crate::matching::{MatchKind, Searcher, key};

/// The closest place for lines that were not found. Numbers only: no content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Closest {
    /// The file's line where the old lines would start, from 1.
    pub line: usize,
    /// How many of the old lines agree there, under the loosest comparison.
    pub agree: usize,
    /// The file's line that is the first to differ, from 1; one more than the file has lines when it is too
    /// short. `None` when every line agrees: then the place was taken or out of range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs_at: Option<usize>,
    /// The line of the patch text that has no equal there, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_line: Option<usize>,
    /// What the patch expects on that line, cut to 120 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
}

/// How many lines of a file are looked at through equal lines, whatever the file's size.
const BUDGET: usize = 1 << 20;
const EXPECTED_CHARS: usize = 120;

impl Searcher<'_> {
    /// `block` is needles, `patch_lines` the line of the patch text of each.
    pub(crate) fn closest(&mut self, block: &[usize], patch_lines: &[usize]) -> Option<Closest> {
        let start = self
            .by_equal_lines(block)
            .or_else(|| self.by_likeness(block))?;
        let pass = self.pass(MatchKind::Unicode);
        let agrees = |at: usize| pass.lines.get(start + at) == Some(&pass.needles[block[at]]);
        let agree = (0..block.len()).filter(|at| agrees(*at)).count();
        let differs = (0..block.len()).find(|at| !agrees(*at));
        Some(Closest {
            line: start + 1,
            agree,
            differs_at: differs.map(|at| (start + at).min(self.lines.len()) + 1),
            patch_line: differs.and_then(|at| patch_lines.get(at).copied()),
            expected: differs.map(|at| {
                String::from_utf8_lossy(self.needles[block[at]])
                    .chars()
                    .take(EXPECTED_CHARS)
                    .collect()
            }),
        })
    }

    /// Every line of the file that equals a line of the block votes for the place where the block would start.
    fn by_equal_lines(&mut self, block: &[usize]) -> Option<usize> {
        let blank: Vec<bool> = block
            .iter()
            .map(|needle| key(MatchKind::Space, self.needles[*needle]).is_empty())
            .collect();
        let pass = self.pass(MatchKind::Unicode);
        let share = (BUDGET / block.len().max(1)).max(16);
        let mut votes: HashMap<usize, usize> = HashMap::new();
        for (at, needle) in block
            .iter()
            .enumerate()
            .filter(|(at, _)| !blank[*at])
            .take(BUDGET / 16)
        {
            let hits = &pass.hits[pass.needles[*needle] as usize];
            for start in hits
                .iter()
                .take(share)
                .filter_map(|line| (*line as usize).checked_sub(at))
            {
                *votes.entry(start).or_default() += 1;
            }
        }
        votes
            .into_iter()
            .max_by_key(|(start, votes)| (*votes, std::cmp::Reverse(*start)))
            .map(|(start, _)| start)
    }

    /// No line is equal, so the first line that says something looks for the one most like it.
    fn by_likeness(&mut self, block: &[usize]) -> Option<usize> {
        let wanted = |at: &usize| key(MatchKind::Space, self.needles[block[*at]]);
        let at = (0..block.len()).find(|at| !wanted(at).is_empty())?;
        let wanted = wanted(&at);
        let (mut best, mut most) = (None, 0);
        for line in 0..self.lines.len() {
            let likeness = likeness(&wanted, self.lines.content(line).trim_ascii());
            if likeness > most {
                (best, most) = (Some(line), likeness);
            }
        }
        best.map(|line| line.saturating_sub(at))
    }
}

/// How many bytes two lines have in common at their start and end.
fn likeness(one: &[u8], other: &[u8]) -> usize {
    let start = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[start..], &other[start..]);
    start
        + one
            .iter()
            .rev()
            .zip(other.iter().rev())
            .take_while(|(a, b)| a == b)
            .count()
}
