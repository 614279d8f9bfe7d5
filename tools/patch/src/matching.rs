//! Where the old lines of a hunk stand in a file.
//!
//! Every distinct line of an Update gets a number (a needle), and every line of the file the number of the
//! needle it equals. Finding a block is then a search in numbers. A looser pass is numbered only once a hunk
//! needs it, and for all hunks of the Update together.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;

use crate::lines::Lines;

/// Which pass found the lines of a hunk, strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchKind {
    /// Byte for byte.
    Exact,
    /// But for white space at the end of lines.
    TrailingSpace,
    /// But for white space at both ends of lines.
    Space,
    /// The same, and with typographic dashes, quotes and spaces read as ASCII.
    Unicode,
}

pub(crate) const PASSES: [MatchKind; 4] = [
    MatchKind::Exact,
    MatchKind::TrailingSpace,
    MatchKind::Space,
    MatchKind::Unicode,
];

/// What a line is compared as in a pass.
pub(crate) fn key(pass: MatchKind, line: &[u8]) -> Cow<'_, [u8]> {
    if pass == MatchKind::Exact {
        return Cow::Borrowed(line);
    }
    let Ok(text) = std::str::from_utf8(line) else {
        // Not text: only ASCII blanks mean anything.
        return Cow::Borrowed(if pass == MatchKind::TrailingSpace {
            line.trim_ascii_end()
        } else {
            line.trim_ascii()
        });
    };
    match pass {
        MatchKind::Exact | MatchKind::TrailingSpace => Cow::Borrowed(text.trim_end().as_bytes()),
        MatchKind::Unicode if !text.is_ascii() => Cow::Owned(
            text.trim()
                .chars()
                .map(plain)
                .collect::<String>()
                .into_bytes(),
        ),
        MatchKind::Space | MatchKind::Unicode => Cow::Borrowed(text.trim().as_bytes()),
    }
}

fn plain(given: char) -> char {
    match given {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201B}' => '\'',
        '\u{201C}'..='\u{201F}' => '"',
        '\u{A0}' | '\u{2002}'..='\u{200A}' | '\u{202F}' | '\u{205F}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// No needle equals this line.
const NONE: u32 = u32::MAX;

/// One pass over the whole file.
#[derive(Debug)]
pub(crate) struct Pass {
    /// The number of every needle in this pass; needles that are equal here share one.
    pub(crate) needles: Vec<u32>,
    /// The number of every line of the file.
    pub(crate) lines: Vec<u32>,
    /// The lines that have each number, ascending.
    pub(crate) hits: Vec<Vec<u32>>,
}

impl Pass {
    fn new(kind: MatchKind, lines: &Lines<'_>, needles: &[&[u8]]) -> Self {
        let mut numbers: HashMap<Cow<'_, [u8]>, u32> = HashMap::with_capacity(needles.len());
        let mut filter = [false; 4096];
        let needles = needles
            .iter()
            .map(|needle| {
                let key = key(kind, needle);
                filter[slot(&key)] = true;
                let next = numbers.len() as u32;
                *numbers.entry(key).or_insert(next)
            })
            .collect();
        let mut hits = vec![Vec::new(); numbers.len()];
        let mut all = Vec::with_capacity(lines.len());
        // Long runs of one line (and blank lines) are common enough to skip the hash for them.
        let mut last: (&[u8], u32) = (b"", numbers.get(&b""[..]).copied().unwrap_or(NONE));
        for at in 0..lines.len() {
            let line = lines.content(at);
            if line != last.0 {
                let key = key(kind, line);
                let number = if filter[slot(&key)] {
                    numbers.get(&*key).copied().unwrap_or(NONE)
                } else {
                    NONE
                };
                last = (line, number);
            }
            all.push(last.1);
            if last.1 != NONE {
                hits[last.1 as usize].push(at as u32);
            }
        }
        Pass {
            needles,
            lines: all,
            hits,
        }
    }
}

/// A cheap digest that rules most lines of a file out before they are hashed.
fn slot(key: &[u8]) -> usize {
    let ends =
        key.first().copied().unwrap_or(0) as usize * 31 + key.last().copied().unwrap_or(0) as usize;
    (key.len() * 257 + ends) & 4095
}

/// Where a block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) kind: MatchKind,
    /// How many places of the searched range match in this pass.
    pub(crate) candidates: usize,
}

/// Searches one file for the blocks of one Update. A block is a list of needles.
#[derive(Debug)]
pub(crate) struct Searcher<'a> {
    pub(crate) lines: &'a Lines<'a>,
    pub(crate) needles: Vec<&'a [u8]>,
    passes: [Option<Pass>; 4],
    /// What hunks already took: disjoint ranges, ascending.
    taken: Vec<(usize, usize)>,
}

impl<'a> Searcher<'a> {
    pub(crate) fn new(lines: &'a Lines<'a>, needles: Vec<&'a [u8]>) -> Self {
        Searcher {
            lines,
            needles,
            passes: [const { None }; 4],
            taken: Vec::new(),
        }
    }

    pub(crate) fn pass(&mut self, kind: MatchKind) -> &Pass {
        let Searcher {
            lines,
            needles,
            passes,
            ..
        } = self;
        passes[kind as usize].get_or_insert_with(|| Pass::new(kind, lines, needles))
    }

    pub(crate) fn take(&mut self, start: usize, end: usize) {
        if start < end {
            let at = self.taken.partition_point(|range| range.0 < start);
            self.taken.insert(at, (start, end));
        }
    }

    /// The first free place from a line on, in the strictest pass that has one.
    pub(crate) fn find(&mut self, block: &[usize], from: usize, at_end: bool) -> Option<Found> {
        PASSES.into_iter().find_map(|kind| {
            self.pass(kind);
            let pass = self.passes[kind as usize].as_ref()?;
            let block: Vec<u32> = block.iter().map(|needle| pass.needles[*needle]).collect();
            let (mut start, mut candidates) = (None, 0);
            pass.places(&block, from, at_end, |place| {
                if free(&self.taken, place, place + block.len()) {
                    start.get_or_insert(place);
                    candidates += 1;
                }
            });
            start.map(|start| Found {
                start,
                kind,
                candidates,
            })
        })
    }
}

fn free(taken: &[(usize, usize)], start: usize, end: usize) -> bool {
    let next = taken.partition_point(|range| range.1 <= start);
    taken.get(next).is_none_or(|range| range.0 >= end)
}

impl Pass {
    /// Calls `each` with every place of a block, ascending.
    fn places(&self, block: &[u32], from: usize, at_end: bool, mut each: impl FnMut(usize)) {
        let Some(last) = self.lines.len().checked_sub(block.len()) else {
            return;
        };
        let is_at = |place: usize| self.lines[place..place + block.len()] == *block;
        if at_end {
            if last >= from && is_at(last) {
                each(last);
            }
            return;
        }
        let rarest = (0..block.len()).min_by_key(|at| self.hits[block[*at] as usize].len());
        let Some(rarest) = rarest else { return };
        let hits = &self.hits[block[rarest] as usize];
        let hits = &hits[hits.partition_point(|line| (*line as usize) < from + rarest)..];
        // Trying each place is quickest while few lines can be the rarest one; else the block is searched
        // in time linear in the file, whatever repeats in it.
        if block.len() == 1
            || hits.len().saturating_mul(block.len())
                <= self.lines.len() - from.min(self.lines.len())
        {
            let places = hits.iter().map(|line| *line as usize - rarest);
            places
                .take_while(|place| *place <= last)
                .filter(|place| is_at(*place))
                .for_each(each);
        } else {
            linear(&self.lines, block, from, each);
        }
    }
}

/// Knuth, Morris and Pratt's search, overlapping places included.
fn linear(lines: &[u32], block: &[u32], from: usize, mut each: impl FnMut(usize)) {
    let mut border = vec![0; block.len()];
    let mut matched = 0;
    for at in 1..block.len() {
        while matched > 0 && block[at] != block[matched] {
            matched = border[matched - 1];
        }
        matched += usize::from(block[at] == block[matched]);
        border[at] = matched;
    }
    matched = 0;
    for (at, line) in lines.iter().enumerate().skip(from) {
        while matched > 0 && *line != block[matched] {
            matched = border[matched - 1];
        }
        matched += usize::from(*line == block[matched]);
        if matched == block.len() {
            each(at + 1 - matched);
            matched = border[matched - 1];
        }
    }
}
