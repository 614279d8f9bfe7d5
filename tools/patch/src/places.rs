//! Where a block stands, and which of its places are still free: found once for each distinct block and kept
//! up to date, so that a thousand hunks of one line cost what one hunk costs, not a thousand times that.

use std::collections::BTreeMap;

/// What a patch may cost in all, in comparisons of lines: seconds, where real patches take milliseconds.
const MOST: usize = 1 << 28;

/// The work a patch has done. What is over the limit is refused, so that no text can hold a workspace for long.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work(usize);

impl Work {
    /// Counts comparisons; false when the patch has used up its share.
    pub(crate) fn spend(&mut self, comparisons: usize) -> bool {
        self.0 = self.0.saturating_add(comparisons);
        !self.is_over()
    }

    pub(crate) fn is_over(self) -> bool {
        self.0 > MOST
    }

    /// So much is left.
    #[cfg(test)]
    pub(crate) fn left(comparisons: usize) -> Self {
        Work(MOST - comparisons)
    }

    #[cfg(test)]
    pub(crate) fn done(self) -> usize {
        self.0
    }
}

/// What hunks already took: disjoint ranges of lines.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    by_start: BTreeMap<usize, usize>,
    /// The same, in the order they were taken.
    log: Vec<(usize, usize)>,
}

impl Taken {
    pub(crate) fn take(&mut self, start: usize, end: usize) {
        if start < end {
            self.by_start.insert(start, end);
            self.log.push((start, end));
        }
    }

    pub(crate) fn is_free(&self, start: usize, end: usize) -> bool {
        let before = self.by_start.range(..end).next_back();
        before.is_none_or(|(_, taken)| *taken <= start)
    }
}

/// Fewer places than this are counted one by one.
const FEW: usize = 32;

/// The places of one block in one pass.
#[derive(Debug)]
pub(crate) struct Places {
    at: Vec<u32>,
    /// Lines of the block.
    length: usize,
    free: Option<Free>,
}

/// Which places are free: a list of the next free one, and a tree that counts them.
#[derive(Debug)]
struct Free {
    next: Vec<u32>,
    count: Vec<u32>,
    /// How much of the log of taken ranges is in here.
    seen: usize,
}

impl Places {
    pub(crate) fn new(at: Vec<u32>, length: usize) -> Self {
        Places {
            at,
            length,
            free: None,
        }
    }

    /// The first free place from a line on, and how many there are.
    pub(crate) fn first_free(
        &mut self,
        from: usize,
        taken: &Taken,
        work: &mut Work,
    ) -> Option<(usize, usize)> {
        let first = self.at.partition_point(|place| (*place as usize) < from);
        let seen = self.free.as_ref().map_or(0, |free| free.seen);
        let ahead = self.at.len() - first;
        if ahead <= FEW.max(taken.log.len() - seen) {
            work.spend(ahead + 1);
            let mut free = self.at[first..]
                .iter()
                .map(|place| *place as usize)
                .filter(|place| taken.is_free(*place, place + self.length));
            return Some((free.next()?, 1 + free.count()));
        }
        let free = self.free.get_or_insert_with(|| {
            work.spend(self.at.len());
            Free::all(self.at.len())
        });
        for (start, end) in &taken.log[free.seen..] {
            let reach = |line: usize| self.at.partition_point(|place| (*place as usize) < line);
            let (low, high) = (reach((start + 1).saturating_sub(self.length)), reach(*end));
            work.spend(1);
            let mut place = free.next_from(low);
            while place < high {
                free.remove(place);
                work.spend(1);
                place = free.next_from(place);
            }
        }
        free.seen = taken.log.len();
        work.spend(1);
        let place = free.next_from(first);
        let found = *self.at.get(place)? as usize;
        Some((found, free.from(place)))
    }
}

impl Free {
    fn all(places: usize) -> Self {
        Free {
            next: (0..=places as u32).collect(),
            // A Fenwick tree of ones: each node counts as many as its lowest bit says.
            count: (0..=places as u32)
                .map(|node| node & node.wrapping_neg())
                .collect(),
            seen: 0,
        }
    }

    /// The first free place from this one on, halving the way for the next who asks.
    fn next_from(&mut self, mut place: usize) -> usize {
        while self.next[place] as usize != place {
            let further = self.next[self.next[place] as usize];
            self.next[place] = further;
            place = further as usize;
        }
        place
    }

    fn remove(&mut self, place: usize) {
        self.next[place] = place as u32 + 1;
        let mut node = place + 1;
        while node < self.count.len() {
            self.count[node] -= 1;
            node += node & node.wrapping_neg();
        }
    }

    fn before(&self, place: usize) -> usize {
        let (mut node, mut count) = (place, 0);
        while node > 0 {
            count += self.count[node] as usize;
            node &= node - 1;
        }
        count
    }

    fn from(&self, place: usize) -> usize {
        self.before(self.count.len() - 1) - self.before(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_counts_as_trying_each_place_does() {
        // A few thousand steps of a fixed pseudo-random walk.
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for length in [1, 2, 5] {
            let at: Vec<u32> = (0..400).filter(|_| random(3) > 0).collect();
            let mut places = Places::new(at.clone(), length);
            let (mut taken, mut work) = (Taken::default(), Work::default());
            for _ in 0..200 {
                let start = random(400);
                let end = start + 1 + random(4);
                if taken.is_free(start, end) {
                    taken.take(start, end);
                }
                if random(3) == 0 {
                    continue;
                }
                let from = random(420);
                let free: Vec<usize> = at
                    .iter()
                    .map(|place| *place as usize)
                    .filter(|place| *place >= from && taken.is_free(*place, place + length))
                    .collect();
                let expected = free.first().map(|first| (*first, free.len()));
                assert_eq!(places.first_free(from, &taken, &mut work), expected);
            }
        }
    }
}
