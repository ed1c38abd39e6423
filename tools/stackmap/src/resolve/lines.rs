// SPDX-License-Identifier: MIT OR Apache-2.0

//! A text line by line, in constant memory however long its lines are.

use std::io::{self, BufRead, Read};

/// Lines longer than this come in pieces, in bytes. The kernel's are at most two pages.
pub(super) const MAX_LINE: usize = 64 << 10;

/// A line of a text, or a piece of one.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Chunk<'a> {
    /// The bytes, with the newline if it is there.
    pub(super) bytes: &'a [u8],
    /// Whether a line begins here.
    pub(super) begins: bool,
    /// Whether the line is complete: `begins`, and not longer than [`MAX_LINE`].
    pub(super) whole: bool,
}

impl Chunk<'_> {
    /// The bytes without the newline.
    pub(super) fn text(&self) -> &[u8] {
        let text = self.bytes.strip_suffix(b"\n").unwrap_or(self.bytes);
        text.strip_suffix(b"\r").unwrap_or(text)
    }
}

/// Reads lines.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    begins: bool,
    offset: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads them from `input`.
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            begins: true,
            offset: 0,
        }
    }

    /// How many bytes were read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether more lies ready, so that reading it will not wait.
    pub(super) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// The next line or piece of a line; [`None`] at the end.
    pub(super) fn next_chunk(&mut self) -> io::Result<Option<Chunk<'_>>> {
        self.buffer.clear();
        let mut limited = self.input.by_ref().take(MAX_LINE as u64);
        let len = limited.read_until(b'\n', &mut self.buffer)?;
        if len == 0 {
            return Ok(None);
        }
        self.offset += len as u64;
        let begins = self.begins;
        let ends = self.buffer.ends_with(b"\n") || len < MAX_LINE;
        self.begins = ends;
        Ok(Some(Chunk {
            bytes: &self.buffer,
            begins,
            whole: begins && ends,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &[u8]) -> Vec<(usize, bool, bool)> {
        let mut lines = Lines::new(text);
        let mut chunks = Vec::new();
        while let Some(chunk) = lines.next_chunk().unwrap() {
            chunks.push((chunk.bytes.len(), chunk.begins, chunk.whole));
        }
        chunks
    }

    #[test]
    fn long_lines_come_in_pieces() {
        assert_eq!(chunks(b""), []);
        assert_eq!(chunks(b"\n"), [(1, true, true)]);
        assert_eq!(chunks(b"ab\ncd"), [(3, true, true), (2, true, true)]);
        let mut text = vec![b'x'; MAX_LINE + 10];
        text.extend_from_slice(b"\nab\n");
        assert_eq!(
            chunks(&text),
            [(MAX_LINE, true, false), (11, false, false), (3, true, true)]
        );
    }

    #[test]
    fn newlines_are_not_part_of_the_text() {
        let mut lines = Lines::new(&b"ab\r\n\n"[..]);
        assert_eq!(lines.next_chunk().unwrap().unwrap().text(), b"ab");
        assert_eq!(lines.next_chunk().unwrap().unwrap().text(), b"");
        assert_eq!(lines.next_chunk().unwrap(), None);
    }
}
