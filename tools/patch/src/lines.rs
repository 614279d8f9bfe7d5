//! A file as lines, without a copy of any of them.

use memchr::memchr_iter;

/// How a line ends. A lone CR is content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Lf,
    CrLf,
}

impl Ending {
    pub(crate) fn bytes(self) -> &'static [u8] {
        match self {
            Ending::Lf => b"\n",
            Ending::CrLf => b"\r\n",
        }
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Where each line of a file starts. A byte-order mark belongs to no line, so that line 1 can be matched.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    bytes: &'a [u8],
    /// The start of every line, then the end of the last one. 32 bits halve the table of a file of short lines.
    starts: Vec<u32>,
}

impl<'a> Lines<'a> {
    /// `None` for a file whose offsets do not fit 32 bits.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let end = u32::try_from(bytes.len()).ok()?;
        let bom = if bytes.starts_with(BOM) { BOM.len() } else { 0 };
        // Counting takes a tenth of what a table that grows by copying costs.
        let ends = || memchr_iter(b'\n', &bytes[bom..]);
        let mut starts = Vec::with_capacity(ends().count() + 2);
        starts.push(bom as u32);
        starts.extend(ends().map(|at| (bom + at + 1) as u32));
        if starts.last() != Some(&end) {
            starts.push(end);
        }
        Some(Lines { bytes, starts })
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn has_bom(&self) -> bool {
        self.starts[0] != 0
    }

    /// Byte offset of a line's start; of the file's end for the line after the last.
    pub(crate) fn start(&self, line: usize) -> usize {
        self.starts[line] as usize
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The line without its ending.
    pub(crate) fn content(&self, line: usize) -> &'a [u8] {
        let raw = &self.bytes[self.start(line)..self.start(line + 1)];
        match raw.strip_suffix(b"\n") {
            Some(body) => body.strip_suffix(b"\r").unwrap_or(body),
            None => raw,
        }
    }

    fn ending(&self, line: usize) -> Option<Ending> {
        let raw = &self.bytes[self.start(line)..self.start(line + 1)];
        if raw.ends_with(b"\r\n") {
            Some(Ending::CrLf)
        } else if raw.ends_with(b"\n") {
            Some(Ending::Lf)
        } else {
            None
        }
    }

    /// The ending a line in this place takes: its own, else that of the line before, else LF.
    /// Only the last line can be without one, so one step back is enough.
    pub(crate) fn ending_at(&self, line: usize) -> Ending {
        let before = || line.checked_sub(1).and_then(|before| self.ending(before));
        self.ending(line).or_else(before).unwrap_or(Ending::Lf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(text: &str) -> Vec<String> {
        let lines = Lines::new(text.as_bytes()).unwrap();
        (0..lines.len())
            .map(|at| String::from_utf8_lossy(lines.content(at)).into_owned())
            .collect()
    }

    #[test]
    fn splits_on_lf_and_crlf_only() {
        assert!(contents("").is_empty());
        assert_eq!(contents("\n"), [""]);
        assert_eq!(contents("a"), ["a"]);
        assert_eq!(contents("a\r\nb\rc\n\u{2028}d"), ["a", "b\rc", "\u{2028}d"]);
        assert_eq!(contents("\u{feff}a\n"), ["a"]);
        assert!(contents("\u{feff}").is_empty());
        assert_eq!(contents("a\r"), ["a\r"]);
    }

    #[test]
    fn an_unterminated_line_takes_the_ending_before_it() {
        let lines = Lines::new(b"a\r\nb").unwrap();
        assert_eq!(lines.ending_at(1), Ending::CrLf);
        assert_eq!(Lines::new(b"b").unwrap().ending_at(0), Ending::Lf);
    }
}
