//! Where the old lines of a hunk stand in a file.
//!
//! Every distinct line of an Update gets a number (a needle), and every line of the file the number of the
//! needle it equals. Finding a block is then a search in numbers. A looser pass is numbered only once a hunk
//! needs it, and for all hunks of the Update together. The places of a block are found once, however many hunks
//! ask for it (`places.rs`).

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;

use crate::lines::Lines;
use crate::places::{Places, Taken, Work};

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
    /// The places of every block asked for so far, by pass and numbers.
    known: [HashMap<Box<[u32]>, Places>; 4],
    taken: Taken,
}

impl<'a> Searcher<'a> {
    pub(crate) fn new(lines: &'a Lines<'a>, needles: Vec<&'a [u8]>) -> Self {
        Searcher {
            lines,
            needles,
            passes: [const { None }; 4],
            known: Default::default(),
            taken: Taken::default(),
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
        self.taken.take(start, end);
    }

    /// The first free place from a line on, in the strictest pass that has one.
    pub(crate) fn find(
        &mut self,
        block: &[usize],
        from: usize,
        at_end: bool,
        work: &mut Work,
    ) -> Option<Found> {
        PASSES.into_iter().find_map(|kind| {
            if self.passes[kind as usize].is_none() {
                work.spend(self.lines.len());
            }
            self.pass(kind);
            let pass = self.passes[kind as usize].as_ref()?;
            let block: Vec<u32> = block.iter().map(|needle| pass.needles[*needle]).collect();
            let (start, candidates) = if at_end {
                let last = pass.lines.len().checked_sub(block.len())?;
                work.spend(block.len());
                let is_there = last >= from && pass.lines[last..] == *block;
                let is_free = is_there && self.taken.is_free(last, last + block.len());
                is_free.then_some((last, 1))?
            } else {
                let known = &mut self.known[kind as usize];
                if !known.contains_key(&*block) {
                    let places = pass.places(&block, work);
                    known.insert(block.clone().into(), Places::new(places, block.len()));
                }
                known
                    .get_mut(&*block)?
                    .first_free(from, &self.taken, work)?
            };
            Some(Found {
                start,
                kind,
                candidates,
            })
        })
    }
}

impl Pass {
    /// Every place of a block in the file, ascending.
    fn places(&self, block: &[u32], work: &mut Work) -> Vec<u32> {
        let mut places = Vec::new();
        let Some(last) = self.lines.len().checked_sub(block.len()) else {
            return places;
        };
        let rarest = (0..block.len()).min_by_key(|at| self.hits[block[*at] as usize].len());
        let Some(rarest) = rarest else { return places };
        let hits = &self.hits[block[rarest] as usize];
        // Trying each place is quickest while few lines can be the rarest one; else the block is searched
        // in time linear in the file, whatever repeats in it.
        let tries = hits.len().saturating_mul(block.len());
        if block.len() == 1 || tries <= self.lines.len() {
            work.spend(tries);
            places.extend(
                hits.iter()
                    .filter_map(|line| (*line as usize).checked_sub(rarest))
                    .take_while(|place| *place <= last)
                    .filter(|place| self.lines[*place..place + block.len()] == *block)
                    .map(|place| place as u32),
            );
        } else if work.spend(2 * self.lines.len()) {
            linear(&self.lines, block, |place| places.push(place as u32));
        }
        places
    }
}

/// Knuth, Morris and Pratt's search, overlapping places included.
fn linear(lines: &[u32], block: &[u32], mut each: impl FnMut(usize)) {
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
    for (at, line) in lines.iter().enumerate() {
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
