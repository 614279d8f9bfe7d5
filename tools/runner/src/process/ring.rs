//! The last bytes a process wrote.
//!
//! Addressed by the offset in the whole output, so that a reader who fell behind is
//! told what it missed. Grows with what is written; a quiet process costs nothing.

use crate::Chunk;

/// The most raw bytes one chunk holds.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

pub(super) struct Ring {
    bytes: Vec<u8>,
    capacity: usize,
    total: u64,
    closed: bool,
}

impl Ring {
    /// A ring of `capacity` bytes; at least 4, so that any one character fits.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            bytes: Vec::new(),
            capacity: capacity.max(4),
            total: 0,
            closed: false,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The offset of the oldest byte still kept.
    pub(super) fn retained_from(&self) -> u64 {
        self.total - self.bytes.len() as u64
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Says that nothing more will come.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Appends, and answers how many bytes were dropped for it.
    pub(super) fn push(&mut self, data: &[u8]) -> usize {
        let before = self.bytes.len();
        let (growing, rest) = data.split_at(data.len().min(self.capacity - before));
        if self.bytes.capacity() - before < growing.len() {
            let wanted = (before + growing.len())
                .next_power_of_two()
                .min(self.capacity);
            self.bytes.reserve_exact(wanted - before);
        }
        self.bytes.extend_from_slice(growing);
        self.total += data.len() as u64;
        // Only the last `capacity` bytes of what is left can stay.
        let kept = &rest[rest.len().saturating_sub(self.capacity)..];
        if !kept.is_empty() {
            let at = self.index(self.total - kept.len() as u64);
            let (tail, head) = kept.split_at(kept.len().min(self.capacity - at));
            self.bytes[at..at + tail.len()].copy_from_slice(tail);
            self.bytes[..head.len()].copy_from_slice(head);
        }
        rest.len()
    }

    // Byte n of the output lies at n modulo the capacity, also while the ring grows.
    fn index(&self, offset: u64) -> usize {
        (offset % self.capacity as u64) as usize
    }

    fn copy(&self, start: u64, end: u64) -> Vec<u8> {
        let length = (end - start) as usize;
        let at = self.index(start);
        let first = length.min(self.bytes.len() - at.min(self.bytes.len()));
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&self.bytes[at.min(self.bytes.len())..][..first]);
        out.extend_from_slice(&self.bytes[..length - first]);
        out
    }

    /// The chunk at `cursor`. Its `cursor` stays where it was asked (clamped) when
    /// there is nothing to tell yet.
    pub(super) fn chunk(&self, cursor: u64) -> Chunk {
        let retained_from = self.retained_from();
        let asked = cursor.min(self.total);
        let output_lost = asked < retained_from;
        let start = asked.max(retained_from);
        let end = self.total.min(start + CHUNK_BYTES as u64);
        let raw = self.copy(start, end);
        let mut text = &raw[..];
        if !(self.closed && end == self.total) {
            text = &text[..text.len() - incomplete_tail(text)];
        }
        let cursor = start + text.len() as u64;
        if output_lost {
            // The rest of a character whose start is among the lost bytes.
            let broken = text
                .iter()
                .take(3)
                .take_while(|byte| **byte & 0xC0 == 0x80)
                .count();
            text = &text[broken..];
        }
        Chunk {
            cursor,
            chunk: String::from_utf8_lossy(text).into_owned(),
            eof: self.closed && cursor == self.total,
            output_lost,
            retained_from,
        }
    }
}

/// How many bytes at the end may yet become a character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    (0..last.len())
        .map(|at| &last[at..])
        .find(|tail| {
            tail[0] >= 0xC0
                && std::str::from_utf8(tail)
                    .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Bytes as programs write them: text with wide characters, and rubbish.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "[a→😀é\n]{0,12}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..12),
            prop::collection::vec(
                prop::sample::select(vec![0xE2, 0x86, 0x92, 0xF0, 0x9F, 0x41]),
                0..40
            ),
        ]
    }

    proptest! {
        #[test]
        fn keeps_the_last_bytes(capacity in 4usize..40, pieces in prop::collection::vec(piece(), 0..20)) {
            let mut ring = Ring::new(capacity);
            let mut all = Vec::new();
            let mut dropped = 0;
            for piece in pieces {
                dropped += ring.push(&piece);
                all.extend_from_slice(&piece);
                let from = all.len().saturating_sub(capacity);
                prop_assert_eq!(ring.total(), all.len() as u64);
                prop_assert_eq!(ring.retained_from(), from as u64);
                prop_assert_eq!(dropped, from);
                prop_assert_eq!(ring.copy(from as u64, all.len() as u64), &all[from..]);
            }
        }

        #[test]
        fn chunks_read_along_are_the_text(pieces in prop::collection::vec(piece(), 0..20)) {
            let mut ring = Ring::new(1 << 20);
            let mut all = Vec::new();
            let (mut cursor, mut text) = (0, String::new());
            for piece in pieces {
                ring.push(&piece);
                all.extend_from_slice(&piece);
                let chunk = ring.chunk(cursor);
                prop_assert!(!chunk.eof && !chunk.output_lost && chunk.cursor >= cursor);
                prop_assert!(ring.total() - chunk.cursor <= 3);
                cursor = chunk.cursor;
                text.push_str(&chunk.chunk);
            }
            ring.close();
            let chunk = ring.chunk(cursor);
            prop_assert!(chunk.eof);
            text.push_str(&chunk.chunk);
            prop_assert_eq!(text, String::from_utf8_lossy(&all));
        }

        #[test]
        fn any_cursor_is_answered(capacity in 4usize..40, pieces in prop::collection::vec(piece(), 0..20), cursor: u16, far: bool, closed: bool) {
            let mut ring = Ring::new(capacity);
            for piece in &pieces { ring.push(piece); }
            if closed { ring.close(); }
            let cursor = if far { u64::MAX } else { u64::from(cursor % 300) };
            let chunk = ring.chunk(cursor);
            let all = pieces.concat();
            let start = cursor.min(all.len() as u64).max(chunk.retained_from);
            prop_assert!(chunk.cursor >= start && chunk.cursor <= all.len() as u64);
            prop_assert_eq!(chunk.output_lost, cursor.min(all.len() as u64) < chunk.retained_from);
            prop_assert_eq!(chunk.eof, closed);
            if !chunk.output_lost {
                prop_assert_eq!(&*chunk.chunk, String::from_utf8_lossy(&all[start as usize..chunk.cursor as usize]));
            }
        }
    }

    #[test]
    fn a_chunk_ends_between_characters() {
        let mut ring = Ring::new(1 << 20);
        ring.push(&[b"xx".as_slice(), "→".repeat(CHUNK_BYTES / 3 + 5).as_bytes()].concat());
        let first = ring.chunk(0);
        assert!(first.chunk.ends_with('→') && first.chunk.len() <= CHUNK_BYTES);
        let second = ring.chunk(first.cursor);
        assert_eq!(second.chunk, "→".repeat(5 + 1), "the cut one comes whole");
    }

    #[test]
    fn after_a_loss_the_first_character_is_whole() {
        let mut ring = Ring::new(8);
        ring.push("→→→→".as_bytes());
        let chunk = ring.chunk(0);
        assert_eq!(
            (
                chunk.chunk.as_str(),
                chunk.output_lost,
                chunk.retained_from,
                chunk.cursor
            ),
            ("→→", true, 4, 12)
        );
    }
}
